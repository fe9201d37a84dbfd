"""Locks of filelock: one run at a time works on a results folder, and one job at a time writes a store's metadata."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from errno import ENOLCK, ENOSYS, ENOTSUP
from pathlib import Path

from filelock import FileLock, Timeout

from heatproof.errors import HeatproofError, machine_fault
from heatproof.store.reading import read_json, refuse_links, require_regular
from heatproof.store.writing import write_json

LOCK = ".lock"
# Beside the lock, because filelock may empty the file of a lock that another process holds.
HOLDER = ".holder.lock"
# Errors of file systems without locks, such as some network file systems.
WITHOUT_LOCKS = (ENOLCK, ENOSYS, ENOTSUP)


def lock_folder(folder: str, kind: str = "results folder") -> FileLock:
    """Lock a folder until `unlock_folder` is called, or this process ends.

    Parameters
    ----------
    folder
        The results folder, or another folder that one process at a time may write to.
    kind
        What the folder is, for the error message.

    Raises
    ------
    HeatproofError
        If another process holds the lock; the message names its host and process.
    """
    path = Path(folder) / LOCK
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = _acquired(path, 0)
        write_json(path.with_name(HOLDER), {"host": os.uname().nodename, "process": os.getpid()})
    except Timeout:
        holder = read_json(path.with_name(HOLDER)) or {}
        process, host = holder.get("process", "unknown"), holder.get("host", "an unknown host")
        raise HeatproofError(
            f"Another run works on {folder} (process {process} on {host}): wait for it, or give this one a {kind} "
            "of its own."
        ) from None
    except OSError as error:
        raise HeatproofError(machine_fault(error) or f"{path} cannot be opened ({error.strerror}).") from None
    return lock


@contextmanager
def locked_folder(folder: str, kind: str = "results folder") -> Iterator[None]:
    """Lock a folder within a context, as `lock_folder` does."""
    held = lock_folder(folder, kind)
    try:
        yield
    finally:
        unlock_folder(held)


def unlock_folder(lock: FileLock) -> None:
    """Release the lock of a folder, unless it has been released."""
    if lock.is_locked:
        # The folder may be gone.
        with suppress(OSError):
            Path(lock.lock_file).with_name(HOLDER).unlink(missing_ok=True)
        lock.release()


@contextmanager
def file_lock(path: Path) -> Iterator[None]:
    """Wait for a lock, and hold it within a context; on a file system without locks, continue without."""
    lock = _acquired(path, -1)
    try:
        yield
    finally:
        lock.release()


def _acquired(path: Path, seconds: float) -> FileLock:
    """Return a lock that is held; on a file system without locks, one that is not.

    Whoever can open a file can hold its lock: only users who may write to the folder can open it.
    """
    refuse_links(path)
    with suppress(FileNotFoundError):
        require_regular(path, path.lstat().st_mode)
    lock = FileLock(path, seconds, mode=0o600, thread_local=False)
    try:
        lock.acquire()
    except (NotImplementedError, OSError) as error:
        if not isinstance(error, NotImplementedError) and error.errno not in WITHOUT_LOCKS:
            raise
    # Only the owner of the file may do this.
    with suppress(OSError):
        folder = path.parent.stat()
        os.chown(path, -1, folder.st_gid)
        # Whoever may write into the folder may write and read.
        os.chmod(path, 0o600 | (folder.st_mode & 0o022) * 3)
    return lock

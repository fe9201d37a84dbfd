"""Lock a results folder, so that one run at a time works on it; several working folders can share it."""

from __future__ import annotations

import fcntl
import json
import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import psutil

from heatproof.errors import HeatproofError, machine_fault
from heatproof.store.reading import read_json
from heatproof.store.writing import open_lock

LOCK = ".lock"
# Seconds between two updates of the modification time of the lock file, by which other hosts see that its holder runs.
BEAT = 15.0
# Of each lock that this process holds: the thread that updates its file, and the event that ends the thread.
_BEATS: dict[IO[str], tuple[threading.Thread, threading.Event]] = {}


def lock_folder(folder: str, kind: str = "results folder") -> IO[str]:
    """Lock a folder until `unlock_folder` is called.

    The system releases the lock when the process ends, even if it is killed. For file systems without locks between
    hosts, the lock file names its holder, which updates the modification time every few seconds while it runs.

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
        file = open_lock(path)
        locked, holder = _lock(file), read_json(path) or {}
        age = time.time() - os.fstat(file.fileno()).st_mtime
    except OSError as error:
        raise HeatproofError(machine_fault(error) or f"{path} cannot be opened ({error.strerror}).") from None
    me = {"host": os.uname().nodename, "process": os.getpid(), "started": psutil.Process().create_time()}
    if not locked or _is_alive(holder, me, age):
        process, host = holder.get("process", "unknown"), holder.get("host", "an unknown host")
        file.close()
        raise HeatproofError(
            f"Another run works on {folder} (process {process} on {host}): wait for it, or give this one a {kind} "
            f"of its own. If that process is gone, remove {path} and run the same command again."
        )
    file.truncate()
    json.dump(me, file)
    file.flush()
    released = threading.Event()
    beat = threading.Thread(target=_show_life, args=(file, released), daemon=True)
    _BEATS[file] = beat, released
    beat.start()
    return file


@contextmanager
def locked_folder(folder: str, kind: str = "results folder") -> Iterator[None]:
    """Lock a folder within a context, as `lock_folder` does."""
    held = lock_folder(folder, kind)
    try:
        yield
    finally:
        unlock_folder(held)


def unlock_folder(file: IO[str]) -> None:
    """Release the lock of a folder."""
    beat, released = _BEATS.pop(file, (None, None))
    if beat is not None and released is not None:
        released.set()
        beat.join()
    # The file may be closed already, or the folder may be gone.
    with suppress(OSError, ValueError):
        file.seek(0)
        file.truncate()
        # Closing is not enough: a process that was forked meanwhile has the file open as well.
        fcntl.flock(file, fcntl.LOCK_UN)
        file.close()


def _lock(file: IO[str]) -> bool:
    """Take the system's lock, and return whether no other process has it; True on a file system without locks."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return not isinstance(error, BlockingIOError)
    return True


def _is_alive(holder: Mapping[str, Any], me: Mapping[str, Any], age: float) -> bool:
    """Return whether another process wrote the lock file and is still running."""
    if not holder or holder == me:
        return False
    if holder.get("host") != me["host"]:
        return age < 4 * BEAT
    try:
        return bool(psutil.Process(holder.get("process")).create_time() == holder.get("started"))
    except (psutil.Error, TypeError, ValueError):
        return False


def _show_life(file: IO[str], released: threading.Event) -> None:
    while not (file.closed or released.wait(BEAT)):
        with suppress(OSError, ValueError):
            os.utime(file.fileno())

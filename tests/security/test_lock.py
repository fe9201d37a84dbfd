"""Users without write permission for a results folder cannot block others from working on it."""

import errno
import fcntl
import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from heatproof.errors import HeatproofError
from heatproof.store.lock import HOLDER, LOCK, file_lock, lock_folder, unlock_folder

SOMEBODY, GROUP = 65534, 65533
# Opens a file in any way that is permitted, and takes its lock.
HOLD = """
import fcntl, os, sys
user, group, path = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
os.setgroups([])
os.setgid(group)
os.setuid(user)
for way in (os.O_RDONLY, os.O_WRONLY, os.O_RDWR):
    try:
        file = os.open(path, way)
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        continue
    print("held", flush=True)
    sys.stdin.read()
    break
"""
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")


@pytest.fixture
def results(tmp_path):
    """A results folder that all users can reach."""
    for folder in (tmp_path, *tmp_path.parents):
        if folder == Path(tempfile.gettempdir()).resolve():
            break
        folder.chmod(0o755)
    (tmp_path / "results").mkdir()
    return tmp_path / "results"


def take(path: Path, user: int, group: int) -> subprocess.Popen | None:
    """Let another user try to take a lock, and return who holds it."""
    command = [sys.executable, "-c", HOLD, str(user), str(group), str(path)]
    other = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    if other.stdout.readline() == "held\n":
        return other
    other.communicate(timeout=60)
    return None


def make(lock: str, folder: Path) -> Path:
    """Take and release a lock of the folder or of a store in it, and return the lock file."""
    if lock == "the folder's":
        unlock_folder(lock_folder(str(folder)))
        return folder / LOCK
    with file_lock(folder / ".saliency.zarr.lock"):
        return folder / ".saliency.zarr.lock"


@needs_root
@pytest.mark.parametrize("umask", [0o022, 0o002, 0o000])
@pytest.mark.parametrize("lock", ["the folder's", "a store's"])
@pytest.mark.parametrize(
    ("mode", "group", "may"),
    [
        (0o755, 0, False),
        # Another user of the same group, and one of another group.
        (0o775, SOMEBODY, True),
        (0o775, 0, False),
        (0o777, 0, True),
        (0o755, SOMEBODY, False),
    ],
    ids=["owner", "group", "another group", "all", "group that only reads"],
)
def test_users_who_may_hold_a_lock(results, umask, lock, mode, group, may):
    results.chmod(mode)
    os.chown(results, 0, group)
    old = os.umask(umask)
    try:
        path = make(lock, results)
    finally:
        os.umask(old)
    other = take(path, SOMEBODY, SOMEBODY)
    assert (other is not None) == may
    if other is not None:
        other.communicate(timeout=60)


@needs_root
def test_two_users_of_a_group_can_work_in_turn(results):
    """With the default umask, and whatever the primary group of each user is."""
    results.chmod(0o775)
    os.chown(results, 0, GROUP)
    held = lock_folder(str(results))
    assert take(results / LOCK, SOMEBODY, GROUP) is None
    unlock_folder(held)
    other = take(results / LOCK, SOMEBODY, GROUP)
    with pytest.raises(HeatproofError, match="Another run works on"):
        lock_folder(str(results))
    other.communicate(timeout=60)
    unlock_folder(lock_folder(str(results)))


@pytest.mark.parametrize("lock", ["the folder's", "a store's"])
def test_a_pipe_in_place_of_a_lock_is_refused(results, lock):
    path = results / (LOCK if lock == "the folder's" else ".saliency.zarr.lock")
    os.mkfifo(path)
    with pytest.raises(HeatproofError, match=r"is a named pipe, not a regular file: remove it"):
        make(lock, results)


@pytest.mark.parametrize("lock", ["the folder's", "a store's"])
@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOTSUP])
def test_a_file_system_without_permissions_or_locks(results, lock, number, monkeypatch):
    def fails(*arguments):
        raise OSError(number, os.strerror(number))

    for module, name in ((os, "chown"), (fcntl, "flock")):
        monkeypatch.setattr(module, name, fails)
    assert stat.S_ISREG(make(lock, results).stat().st_mode)


# Holds the lock of a folder until its input ends.
HOLD_FOLDER = """
import sys
from heatproof.store.lock import lock_folder
held = lock_folder(sys.argv[1])
print("held", flush=True)
sys.stdin.read()
"""


def test_a_second_run_names_the_first_and_a_killed_one_leaves_the_folder_free(results):
    command = [sys.executable, "-c", HOLD_FOLDER, str(results)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "held\n"
        for _ in range(2):
            with pytest.raises(HeatproofError, match=rf"process {other.pid} on {os.uname().nodename}\): wait for it"):
                lock_folder(str(results))
        other.kill()
        other.wait()
    unlock_folder(lock_folder(str(results)))
    assert not (results / HOLDER).exists()

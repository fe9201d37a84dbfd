"""Inject faults of a machine at random places and times into a run, and check the rerun.

Each function returns an `Outcome`. Whatever the fault, the rerun must end with the bytes of an undisturbed run.
Finished and undamaged results must not be made again. Every reader of a damaged file must report it in one sentence
that names the file and the remedy, which is then applied literally.
"""

from __future__ import annotations

import os
import random
import re
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from toy_workflow import Ended, Run

from heatproof.store.manifest import read_checksummed

# Points from which work is left to do: everything that depends on these outputs is removed first.
BEGIN = ["weights", "maps", "drops", "subsets", "curves", "scores", ""]
REMEDY = re.compile(r"`(rm (?:-r )?[\w./\[\]* -]+)`")


@dataclass
class Outcome:
    """The outcome of a fault.

    Attributes
    ----------
    what
        Where it was injected, for debugging.
    injected
        Whether it had an effect: a run may end before it is killed.
    noticed
        Whether a run that ended early reported a reason, or the damaged file was made again.
    lost
        Images, epochs and weights that were finished and undamaged before the fault, and were made again.
    unnoticed
        Files whose bytes differ from those of an undisturbed run, without the damaged one.
    unread
        Whether the damaged file is still damaged at the end, because no job read it.
    wrong
        Other errors.
    """

    what: str
    injected: bool = True
    noticed: bool = False
    lost: int = 0
    unnoticed: int = 0
    unread: int = 0
    wrong: str = ""


def unfinished(finished_run: Run, folder: Path, draw: random.Random) -> Run:
    """Return a copy of a finished run with work left to do from a random stage on."""
    run = finished_run.copy(folder)
    begin = draw.choice(BEGIN)
    stages = BEGIN[BEGIN.index(begin) :]
    for job in run.jobs:
        part = job.outputs[0].split("/")[1]
        if begin == "weights" and draw.random() < 0.5 and "pretrained" in job.outputs[0]:
            continue
        if part in stages or (part not in BEGIN and part != "datasets"):
            run.remove(job.outputs)
    return run


def settle(run: Run, finished_run: Run, outcome: Outcome, damaged: str = "") -> Outcome:
    """Run again until everything is done, apply the remedies in messages, and compare."""
    for _ in range(6):
        ended = run.run()
        outcome.noticed |= ended.status != 0 or "damaged" in ended.output
        # Files that are found damaged at the start are made again by the same run.
        if ended.status == 0:
            break
        if not heal(run, ended):
            outcome.wrong = f"status {ended.status}: {ended.sentence or ended.output[-600:]}"
            return outcome
    else:
        outcome.wrong = f"not healed: {ended.sentence}"
        return outcome
    again = run.computed_twice()
    outcome.lost = len(again)
    left = run.bytes()
    expected = finished_run.bytes()
    differ = [name for name in expected if left.get(name) != expected[name] and name != damaged]
    more = [name for name in left if name not in expected]
    outcome.unnoticed = len(differ)
    if differ or more or again:
        outcome.wrong = f"differ: {differ[:3]}; left behind: {more[:3]}; made again: {again[:3]}"
    return outcome


def heal(run: Run, ended: Ended) -> bool:
    """Apply the remedy in a message, and return whether there was one; it may concern only files of results."""
    remedy = REMEDY.search(ended.sentence)
    if remedy:
        assert ".." not in remedy[1]
        assert all(part.startswith("results/") for part in remedy[1].split() if part not in ("rm", "-r")), remedy[1]
        parts = [part for part in remedy[1].split() if part.startswith("results/")]
        run.strike([str(path.relative_to(run.folder)) for part in parts for path in run.folder.glob(part)])
        subprocess.run(remedy[1], shell=True, cwd=run.folder, check=True)
    return bool(remedy) or "is missing: run your snakemake command with this path as its target" in ended.sentence


# ---- processes that end ----------------------------------------------------------------------------------------------


def cut_off(
    finished_run: Run, folder: Path, draw: random.Random, number: int, grace: float = 0.0
) -> tuple[Run, Ended, float]:
    run = unfinished(finished_run, folder, draw)
    moment = draw.uniform(0.02, 1.6)
    process = run.start()
    time.sleep(moment)
    os.kill(process, number)
    deadline = time.monotonic() + grace
    while (
        grace
        and time.monotonic() < deadline
        and os.waitid(os.P_PID, process, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None
    ):
        time.sleep(0.005)
    if grace:
        os.kill(process, signal.SIGKILL)
    return run, run.finish(process), moment


def sigkill(finished_run: Run, folder: Path, draw: random.Random) -> Outcome:
    """SIGKILL, as after the loss of a node, or by the kernel when memory runs out."""
    run, ended, moment = cut_off(finished_run, folder, draw, signal.SIGKILL)
    outcome = Outcome(f"after {moment:.2f} s", injected=ended.status == -9, noticed=ended.status == -9)
    return settle(run, finished_run, outcome)


def sigterm(finished_run: Run, folder: Path, draw: random.Random) -> Outcome:
    """SIGTERM, and SIGKILL ten seconds later, as after preemption or a time limit."""
    run, ended, moment = cut_off(finished_run, folder, draw, signal.SIGTERM, grace=10)
    outcome = Outcome(f"after {moment:.2f} s", injected=ended.status != 0)
    # Between two jobs, or before the first one, no process of heatproof runs that could report it.
    is_reported = ended.status == 143 and "The job was ended by SIGTERM" in ended.sentence
    outcome.noticed = is_reported or ended.status == -15
    if outcome.injected and not outcome.noticed:
        outcome.wrong = f"status {ended.status}: {ended.output[-500:]}"
        return outcome
    # Files that a signal during cleanup leaves must be removed at the next start.
    return settle(run, finished_run, outcome)


def memory(finished_run: Run, folder: Path, draw: random.Random) -> Outcome:
    """A limit of the address space that is too small for the work."""
    run = unfinished(finished_run, folder, draw)
    room = int(draw.uniform(0, 12e6))

    def limit() -> None:
        size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + room, size + room))

    ended = run.run(limit)
    outcome = Outcome(f"{room} bytes", injected=ended.status != 0)
    return settle_if_reported(run, finished_run, outcome, ended, "Memory ran out")


def settle_if_reported(run: Run, finished_run: Run, outcome: Outcome, ended: Ended, sentence: str) -> Outcome:
    if outcome.injected and not (ended.status == 1 and sentence in ended.sentence):
        outcome.wrong = f"status {ended.status}: {ended.output[-900:]}"
        return outcome
    outcome.noticed = outcome.injected
    return settle(run, finished_run, outcome)


# ---- the disk --------------------------------------------------------------------------------------------------------


@contextmanager
def mounted(folder: Path, megabytes: int = 64):
    """Mount a memory disk on a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", folder], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def can_mount(folder: Path) -> bool:
    """Return whether this user may mount."""
    try:
        with mounted(folder / "probe", 1):
            return True
    except (OSError, subprocess.CalledProcessError):
        return False


def full_disk(finished_run: Run, folder: Path, draw: random.Random) -> Outcome:
    """A memory disk with a random amount of free space; without permission to mount, a limit of the file size."""
    if not can_mount(folder.parent):
        return large_file(finished_run, folder, draw)
    with mounted(folder / "results"):
        source = unfinished(finished_run, folder / "from", draw)
        subprocess.run(["cp", "-a", f"{source.results}/.", folder / "results"], check=True)
        shutil.copy(source.ledger, folder)
        run = Run(folder, finished_run.jobs, finished_run.files)
        room = int(draw.uniform(0, 4e5))
        free = os.statvfs(run.results).f_bavail * os.statvfs(run.results).f_frsize
        ballast = run.results / "ballast"
        with open(ballast, "wb") as file:
            os.posix_fallocate(file.fileno(), 0, max(free - room, 1))
        ended = run.run()
        ballast.unlink()
        outcome = Outcome(f"{room} bytes left", injected=ended.status != 0)
        return settle_if_reported(run, finished_run, outcome, ended, "The disk is full")


def large_file(finished_run: Run, folder: Path, draw: random.Random) -> Outcome:
    """A limit of the file size, as with a quota."""
    run = unfinished(finished_run, folder, draw)
    size = int(draw.uniform(100, 4e4))
    ended = run.run(lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size)))
    outcome = Outcome(f"{size} bytes", injected=ended.status != 0)
    if "ulimit -f" not in ended.sentence and ended.status:
        # The log has the same limit; beyond it, there is only the exit status.
        outcome.noticed = run.log.stat().st_size >= size
        if not outcome.noticed:
            outcome.wrong = f"status {ended.status}: {ended.output[-900:]}"
            return outcome
    outcome.noticed = outcome.injected
    return settle(run, finished_run, outcome)


def read_only(finished_run: Run, folder: Path, draw: random.Random) -> Outcome:
    """Results that may be read but not written, as for a user without permissions."""
    run = unfinished(finished_run, folder, draw)
    nobody = 65534

    def lose_rights() -> None:
        if os.geteuid() == 0:
            for path in (run.log, run.begun, run.ledger):
                path.touch()
                os.chown(path, nobody, nobody)
            os.setgroups([])
            os.setgid(nobody)
            os.setuid(nobody)

    for parent in [folder, *folder.parents]:
        if os.access(parent, os.W_OK) and os.geteuid() == 0 and parent != Path("/") and not os.stat(parent).st_mode & 1:
            os.chmod(parent, os.stat(parent).st_mode | 0o011)
    folders = [path for path in [run.results, *run.results.rglob("*")] if path.is_dir()]
    for path in folders:
        path.chmod(0o555)
    ended = run.run(lose_rights)
    for path in folders:
        path.chmod(0o755)
    outcome = Outcome("results", injected=ended.status != 0)
    return settle_if_reported(run, finished_run, outcome, ended, "Permission to write")


# ---- damage ----------------------------------------------------------------------------------------------------------


def flip_a_bit(content: bytes, draw: random.Random) -> bytes:
    position = draw.randrange(len(content))
    return content[:position] + bytes([content[position] ^ (1 << draw.randrange(8))]) + content[position + 1 :]


def cut_short(content: bytes, draw: random.Random) -> bytes:
    return content[: draw.choice([0, draw.randrange(len(content))])]


def zeros_at_the_end(content: bytes, draw: random.Random) -> bytes:
    """The state in which some file systems leave a file after a power failure."""
    length = draw.randrange(len(content))
    return content[:length] + bytes(len(content) - length)


def damage(change: Callable[[bytes, random.Random], bytes]) -> Callable[[Run, Path, random.Random], Outcome]:
    """Return an injection that changes one file, and removes results so that jobs read it again."""

    def inject(finished_run: Run, folder: Path, draw: random.Random) -> Outcome:
        if draw.random() < 0.15:
            return in_journal(finished_run, folder, draw)
        run = finished_run.copy(folder)
        kinds: dict[str, list[Path]] = {}
        for path in sorted(run.results.rglob("*")):
            name = str(path.relative_to(run.folder))
            if (
                path.is_file()
                and not path.name.endswith(".lock")
                and not name.startswith(("results/figures", "results/report/"))
            ):
                shard = "/c/" in name
                kinds.setdefault(f"{name.split('/')[1]} {'shard' if shard else path.suffix}", []).append(path)
        # All kinds of files with the same probability.
        path = draw.choice(kinds[draw.choice(sorted(kinds))])
        name = str(path.relative_to(run.folder))
        content, times = path.read_bytes(), os.stat(path)
        path.write_bytes(change(content, draw))
        if path.read_bytes() == content:
            return Outcome(name, injected=False)
        if draw.random() < 0.5:
            # With the old times, as for a disk error; otherwise with new ones, as for a program that writes the file.
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
        parts = ["datasets", "weights", "maps", "drops", "subsets", "curves", "scores"]
        part = name.split("/")[1]
        after = parts[parts.index(part) + 1 :] if part in parts else []
        for job in run.jobs:
            job_part = job.outputs[0].split("/")[1]
            later = job_part in after or (
                job_part not in parts and (part in parts or not name.startswith(f"results/{job_part}"))
            )
            if later and name not in job.outputs and job_part != part:
                run.remove(job.outputs)
        # The next stage of the weights reads the first ones.
        if part == "weights" and "pretrained" in name:
            run.remove(run.jobs[2].outputs)
        run.strike([name])
        outcome = settle(run, finished_run, Outcome(name), name)
        if outcome.wrong:
            return outcome
        # A manifest that was made again has other times.
        same = run.bytes().get(name) == finished_run.bytes()[name] and (
            path.suffix != ".json" or read_checksummed(path)
        )
        healed = path.exists() and (path.read_bytes() == content or bool(same))
        if outcome.noticed and not healed:
            outcome.wrong = f"{name} was noticed and not healed"
        outcome.unread = int(not outcome.noticed and not healed)
        if outcome.unread and name in run.tables:
            outcome.wrong = f"{name} is damaged, and the command that makes it takes it as it is"
        outcome.noticed |= healed
        return outcome

    def in_journal(finished_run: Run, folder: Path, draw: random.Random) -> Outcome:
        for attempt in range(8):
            part = folder / str(attempt)
            run, _, _ = cut_off(finished_run, part, draw, signal.SIGKILL)
            journals = sorted(run.results.rglob(".*.journal/*/[0-9]*.npz"))
            if journals:
                path = draw.choice(journals)
                path.write_bytes(change(path.read_bytes(), draw))
                manifest = re.sub(r"/\.([^/]+)\.journal/.*", r"/\1.json", str(path.relative_to(run.folder)))
                # Later batches are made again as well, because batches are resumed in order.
                run.strike([manifest], int(path.stem))
                return settle(run, finished_run, Outcome(f"journal of {manifest}", noticed=True))
        return Outcome("journal", injected=False)

    return inject


KINDS: dict[str, Callable[[Run, Path, random.Random], Outcome]] = {
    "SIGKILL (lost node, kernel)": sigkill,
    "SIGTERM, then SIGKILL": sigterm,
    "no memory left": memory,
    "full disk": full_disk,
    "limit to files": large_file,
    "read-only results": read_only,
    "flipped bit": damage(flip_a_bit),
    "truncated file": damage(cut_short),
    "zeros at the end": damage(zeros_at_the_end),
}

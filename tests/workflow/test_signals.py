"""SIGTERM, SIGHUP and SIGINT to each command: one message, the exit status of a shell, and no process left."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from snakemake_project import TABLE, Project

from heatproof.core.signals import SIGNALS, _runs
from heatproof.store.lock import HOLDER, lock_folder, unlock_folder

pytestmark = pytest.mark.workflow

RUN = ["-P", "-m", "heatproof", "run", "micro.yaml", "--cores", "2", "--target", TABLE]
JOB_ENDED = "heatproof: The job was ended by "
SNAKEMAKE = ["-m", "snakemake", "--cores", "2", TABLE, "--configfile", "micro.yaml"]


def start(project: Project, arguments: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *arguments],
        cwd=project.folder,
        env=project.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A process group, because a terminal sends signals to a group.
        start_new_session=True,
        preexec_fn=lambda: [signal.signal(number, signal.SIG_DFL) for number in SIGNALS],
    )


def tree_of(running: subprocess.Popen[str], until: str) -> list[psutil.Process]:
    """Return all child processes, as soon as the command of one of them contains a word."""
    deadline = time.monotonic() + 100
    while time.monotonic() < deadline and running.poll() is None:
        tree = psutil.Process(running.pid).children(recursive=True)
        if any(until in " ".join(_command(process)) for process in tree):
            return tree
        time.sleep(0.02)
    raise AssertionError(f"nothing runs with {until}: {running.communicate()}")


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def assert_ended(running: subprocess.Popen[str], tree: list[psutil.Process], number: int, what: str) -> None:
    output = running.communicate(timeout=60)[1]
    assert not any(map(_runs, tree))
    assert running.returncode == 128 + number, output
    # Snakemake also shows the logs of jobs that the signal has ended.
    ours = [line for line in output.splitlines() if line.startswith("heatproof: ") and not line.startswith(JOB_ENDED)]
    assert len(ours) == 1, output
    assert ours[0].startswith(f"heatproof: The {what} was ended by {signal.Signals(number).name}, ")
    # Snakemake shows the logs of jobs between such lines; a job can end while it imports a library.
    assert "Traceback" not in re.sub(r"={20,}.*?={20,}", "", output, flags=re.DOTALL)


@pytest.mark.parametrize(
    ("whose", "number"),
    [
        pytest.param(whose, number, marks=pytest.mark.slow if often else pytest.mark.long)
        for whose in ("command", "terminal", "Snakemake", "plain Snakemake")
        for number in SIGNALS
        for often in [
            (whose, number)
            in (
                ("command", signal.SIGHUP),
                ("terminal", signal.SIGINT),
                ("Snakemake", signal.SIGTERM),
                ("plain Snakemake", signal.SIGTERM),
            )
        ]
    ],
)
def test_a_signal_ends_a_run_with_its_jobs(project, whose, number):
    shutil.rmtree(project.folder / "results/maps")
    (project.folder / TABLE).unlink()
    project.write_config()
    expected = project.manifests()
    running = start(project, SNAKEMAKE if whose == "plain Snakemake" else RUN)
    tree = tree_of(running, "heatproof.workflow.job")
    if whose == "terminal":
        # Twice, as by an impatient user.
        for _ in range(2):
            os.killpg(running.pid, number)
            time.sleep(0.2)
    elif whose == "Snakemake":
        next(process for process in tree if "snakemake" in _command(process)).send_signal(number)
    else:
        running.send_signal(number)
    assert_ended(running, tree, number, "run" if whose == "plain Snakemake" else "command")
    unlock_folder(lock_folder(str(project.folder / "results")))
    assert not (project.folder / "results/.jobs").exists()
    assert not (project.folder / "results" / HOLDER).exists()
    assert project.manifests().keys() <= expected.keys() | {"results/tables.json"}


@pytest.mark.slow
@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_to_all_processes_before_snakemake_begins_ends_the_run(project, number):
    running = start(project, RUN)
    tree = tree_of(running, "snakemake")
    os.killpg(running.pid, number)
    assert_ended(running, tree, number, "command")


@pytest.mark.slow
def test_a_command_that_is_killed_leaves_no_snakemake_and_no_job(project):
    shutil.rmtree(project.folder / "results/maps")
    (project.folder / TABLE).unlink()
    running = start(project, RUN)
    tree = tree_of(running, "heatproof.workflow.job")
    running.kill()
    _, left = psutil.wait_procs(tree, timeout=30)
    assert not [process for process in left if _runs(process)]
    running.communicate()


COMMANDS = {
    "report": ["report", "micro.yaml"],
    "estimate": ["estimate", "micro.yaml", "--images", "1"],
    "prune": ["prune", "micro.yaml"],
    "rank": ["rank", TABLE, "--out", "ranks"],
    "check": ["check", "micro.yaml"],
    "status": ["status", "micro.yaml"],
    "init": ["init", "photos", "--model", "cifar_resnet20", "--out", "new.yaml"],
    "list": ["list", "methods"],
    "maps ls": ["maps", "ls"],
    "maps show": ["maps", "show", "results/maps/digits/vgg/finetuned/saliency.zarr"],
}


def files(folder: Path) -> set[str]:
    names = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    return {name for name in names if not name.endswith((".lock", ".pyc")) and ".snakemake" not in name}


@pytest.mark.parametrize(
    ("command", "number"),
    [
        pytest.param(command, number, marks=pytest.mark.slow if index % 3 == which else pytest.mark.long)
        for index, command in enumerate(COMMANDS)
        for which, number in enumerate(SIGNALS)
    ],
)
def test_a_signal_ends_every_command_without_leftovers(project, command, number):
    """At any moment: the command is done, or reports the signal, and leaves no file and no process."""
    project.write_config()
    (project.folder / "photos/a").mkdir(parents=True)
    before, ended = files(project.folder), 0
    # At the first signal, some commands have not installed their handlers yet; at the last, others have ended.
    for moment in (0.15, 0.25, 0.35, 0.5, 0.8):
        running = start(project, ["-P", "-m", "heatproof", *COMMANDS[command]])
        try:
            output = running.communicate(timeout=moment)[1]
        except subprocess.TimeoutExpired:
            tree = psutil.Process(running.pid).children(recursive=True)
            running.send_signal(number)
            output = running.communicate(timeout=60)[1]
            assert not any(map(_runs, tree))
        if running.returncode == 128 + number:
            ended += 1
            sentences = [line for line in output.splitlines() if line.startswith("heatproof: ")]
            assert len(sentences) == 1, output
            assert sentences[0].startswith(f"heatproof: The command was ended by {number.name}, ")
            assert files(project.folder) <= before
        else:
            before |= files(project.folder)
        assert "Traceback" not in output
        unlock_folder(lock_folder(str(project.folder / "results")))
    # This takes less time than Python needs to start.
    assert ended or command == "verify"

"""Waiting for a process as long as it works, however little of the machine it gets."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import psutil

# Of a processor: one that only looks whether something has come uses less, one that works beside twenty others more.
AT_REST = 0.02


def finished(command: Sequence[str], idle: float = 60.0, **settings: Any) -> subprocess.CompletedProcess[str]:
    """Run a command as `subprocess.run` does, and return what came of it.

    Parameters
    ----------
    command
        With its arguments.
    idle
        Seconds after which a command that is at rest, such as one that waits for the other end of a pipe, is ended.

    Raises
    ------
    subprocess.TimeoutExpired
        If it was at rest for so long.
    """
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    running, used = subprocess.Popen(command, **pipes, **settings), 0.0
    while True:
        try:
            said, errors = running.communicate(timeout=idle)
            return subprocess.CompletedProcess(command, running.returncode, said, errors)
        except subprocess.TimeoutExpired:
            now = _processor_seconds(tree := _tree(running.pid))
            if now - used < AT_REST * idle:
                for process in tree:
                    with suppress(psutil.NoSuchProcess):
                        process.kill()
                running.communicate()
                raise
            used = now


def _tree(pid: int) -> list[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    return []


def _processor_seconds(tree: Sequence[psutil.Process]) -> float:
    """Return what processes have used, and those that they have waited for."""
    used = 0.0
    for process in tree:
        with suppress(psutil.Error):
            used += sum(process.cpu_times()[:4])
    return used

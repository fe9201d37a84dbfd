"""Waiting for a process as long as it works, however little CPU time it gets."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import psutil

# Share of a CPU: a process that only polls uses less, and one that works next to twenty others uses more.
AT_REST = 0.02


def finished(command: Sequence[str], idle: float = 60.0, **settings: Any) -> subprocess.CompletedProcess[str]:
    """Run a command as `subprocess.run` does, and return its result.

    Parameters
    ----------
    command
        The command with its arguments.
    idle
        Seconds after which an idle command is killed, such as one that waits for the other end of a pipe.

    Raises
    ------
    subprocess.TimeoutExpired
        If the command was idle for that long.
    """
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    running, used = subprocess.Popen(command, **pipes, **settings), 0.0
    while True:
        try:
            output, errors = running.communicate(timeout=idle)
            return subprocess.CompletedProcess(command, running.returncode, output, errors)
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
    """Return the CPU time that processes, and the children that they waited for, have used."""
    used = 0.0
    for process in tree:
        with suppress(psutil.Error):
            used += sum(process.cpu_times()[:4])
    return used

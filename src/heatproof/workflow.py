"""What the Snakefile needs of Python beside the plan."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, Any

from heatproof.adopt import adopt, notice_replaced
from heatproof.check import check_checkpoints, check_layers
from heatproof.errors import KEPT, HeatproofError, fault_of
from heatproof.plan.whole import Plan, make_plan
from heatproof.store import write_text

# A network's activations are asked of the system and given back at every layer, unless glibc keeps them: half of the
# time of an EfficientNet at 224 pixels on a CPU goes into that. Other allocators do not read these.
MALLOC = {
    "MALLOC_MMAP_THRESHOLD_": str(2**32),
    "MALLOC_TRIM_THRESHOLD_": str(2**32),
    "MALLOC_TOP_PAD_": str(2**28),
}

KILLED = (
    "The job was killed, most likely by the kernel because memory ran out: let fewer jobs run at once, or lower "
    "batch_size at the top of the config, which remakes nothing and helps all jobs but trainings, and run the same "
    f"command again; {KEPT}."
)
# Megabytes with which no job can do anything.
LITTLE = 16

# Held for as long as the process lives; the system lets go of it even if the process is killed.
_held: list[IO[str]] = []


def check_before_start(config: Mapping[str, Any], is_main: bool, deployment: Iterable[object] = ()) -> Plan:
    """Return the plan of a config; the main process also looks at libraries, checkpoints, networks and results.

    With conda among the software deployment methods, jobs have libraries of their own.
    """
    plan = make_plan(config)
    if is_main:
        if not uses_conda(deployment):
            plan.require_libraries()
        check_checkpoints(plan)
        check_layers(plan)
        adopt(plan)
        notice_replaced(plan)
    return plan


def stage(name: str) -> str:
    """Return the shell command of a stage, with the placeholders that Snakemake fills.

    Snakemake compares the command as written here. The place of Python and how jobs run reach it by environment
    variables, so that neither reruns anything.
    """
    run = f'"$HEATPROOF_PYTHON" -m heatproof run {name} {{params.spec:q}} > {{log:q}} 2>&1'
    # The kernel's SIGKILL leaves a program no word; the shell that outlives it has one.
    return f'{run} || {{{{ code=$?; [ $code -ne 137 ] || echo "$HEATPROOF_KILLED" >> {{log:q}}; exit $code; }}}}'


def job_environment(plan: Plan, folder: str, deployment: Iterable[object]) -> dict[str, str]:
    """Return the environment variables of jobs.

    Parameters
    ----------
    plan
        For the machine's settings.
    folder
        The workflow's folder, whose ``src`` is importable in a job's own conda environment too.
    deployment
        Snakemake's software deployment methods; with conda, a job runs the Python of its environment.
    """
    conda = uses_conda(deployment)
    path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), os.path.join(folder, "src")]))
    return {
        "HEATPROOF_PYTHON": "python" if conda else sys.executable,
        "HEATPROOF_MACHINE": json.dumps(plan.machine(), sort_keys=True),
        # Jobs end when this process does.
        "HEATPROOF_CONTROLLER": str(os.getpid()),
        "HEATPROOF_KILLED": f"heatproof: {KILLED}",
        **{name: os.environ.get(name, value) for name, value in MALLOC.items()},
        **({"PYTHONPATH": path} if conda else {}),
    }


def uses_conda(deployment: Iterable[object]) -> bool:
    """Tell whether Snakemake's software deployment methods have conda among them."""
    return any(str(method).lower().endswith("conda") for method in deployment)


def job_threads(plan: Plan, cores: int | None, is_local: bool) -> int:
    """Return the threads that a job is counted with.

    With more `--cores` than this machine has, each job counts for several, so that jobs do not crowd each other out;
    what a job really uses is the config's ``threads``, because float sums depend on it.
    """
    threads = plan.config["threads"]
    if not is_local or not cores:
        return threads
    here = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(threads, -(-cores * threads // here)) if cores > here else threads


def hold_folder(folder: str) -> None:
    """Refuse to run beside another run on the same folder; a run that was killed holds nothing.

    Raises
    ------
    HeatproofError
        If another run is going on.
    """
    path = Path(folder) / "heatproof.lock"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = open(path, "a", encoding="utf-8")  # noqa: SIM115
    except OSError as error:
        raise HeatproofError(fault_of(error) or f"{path} cannot be opened ({error.strerror}).") from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise HeatproofError(
            "Another Snakemake is running in this folder: wait for it, or work in another folder."
        ) from None
    except OSError:
        pass  # a file system without locks
    _held.append(file)


def check_writable(folder: str) -> None:
    """Write a file into the results folder and remove it.

    Raises
    ------
    HeatproofError
        If it is read-only or its disk is full.
    """
    try:
        write_text(Path(folder) / ".writable", "")
        (Path(folder) / ".writable").unlink()
    except OSError as error:
        raise HeatproofError(fault_of(error) or f"{folder} cannot be written ({error.strerror}).") from None


def why_it_failed(folder: str) -> str | None:
    """Return what a look at the results folder tells of a failed run, where the jobs' own logs could not be written."""
    try:
        check_writable(folder)
    except HeatproofError as error:
        return str(error)
    free = shutil.disk_usage(folder).free // 10**6
    if free < LITTLE:
        return f"The disk of {folder} has {free} MB left: make room and run the same command again; {KEPT}."
    return None

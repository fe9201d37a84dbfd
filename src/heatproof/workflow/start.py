"""Functions that the Snakefile calls, besides the plan."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from heatproof.base.ending import CONTROLLER, EndedBySignal, end_with_parent, install_signal_handlers, received_signal
from heatproof.base.provenance import digest
from heatproof.base.specs import spec_file_name
from heatproof.errors import RESUME_HINT, HeatproofError, machine_fault
from heatproof.files.lock import lock_folder, unlock_folder
from heatproof.files.publishing import escaped
from heatproof.files.reading import refuse_links, refuse_links_in
from heatproof.files.writing import write_json, write_text
from heatproof.plan.graph import Graph, Job
from heatproof.plan.paths import producing_job
from heatproof.plan.stage import STAGES
from heatproof.plan.validate import Plan, make_plan
from heatproof.stores.manifest import read_checksummed
from heatproof.stores.sources import FileChanges, data_root, is_there, record_path, write_record
from heatproof.workflow.changed_data import DatasetChanges, changes_by_dataset, inspect_data
from heatproof.workflow.check import check_machine
from heatproof.workflow.last_run import NAMES_VARIABLE, RECORD
from heatproof.workflow.reconcile import modification_times, reconcile, switch_target

# A network's activations are asked of the system and given back at every layer, unless glibc keeps them: half of the
# time of an EfficientNet at 224 pixels on a CPU goes into that. Other allocators do not read these.
MALLOC = {"MALLOC_MMAP_THRESHOLD_": str(2**32), "MALLOC_TRIM_THRESHOLD_": str(2**32), "MALLOC_TOP_PAD_": str(2**28)}

KILLED = (
    "The job was killed, most likely by the kernel because memory ran out: let fewer jobs run at once, or lower "
    "batch_size at the top of the config, which remakes nothing and helps all jobs but trainings, and run the same "
    f"command again; {RESUME_HINT}."
)
PICKLE = ".snakemake/iocache/latest.pkl"
# Where `snakemake --archive` puts packages of environments.
CONDA_ARCHIVE = ".snakemake/conda-archive"
# Megabytes with which no job can do anything.
LITTLE = 16


# Folders in which Snakemake, and the shell of a job, write without a look at links.
BY_SNAKEMAKE = ("logs", "benchmarks")
# What jobs are told, by key; written when they start and removed when the run ends.
SPECS = ".jobs"


def check_before_start(
    config: Mapping[str, Any], is_main: bool, deployment: Iterable[object] = (), local: bool = True
) -> Graph:
    """Return the job graph of a config; the main process also looks at libraries, checkpoints and networks.

    With conda among the software deployment methods, jobs have libraries of their own.
    """
    plan = make_plan(config)
    if is_main:
        # A login node needs no GPU.
        gaps: list[str] = []
        check_machine(plan, not uses_conda(deployment), local, gaps)
        # What one method or metric lacks is a gap, and all others are scored.
        for sentence in gaps:
            print(escaped(f"heatproof: {sentence} The run goes on without it."), file=sys.stderr)
    return Graph(plan)


def refuse_packages_of_folder(deployment: Any) -> None:
    """Let Snakemake execute nothing that lies below ``.snakemake`` of the working folder.

    Parameters
    ----------
    deployment
        Snakemake's settings; environments of conda are made in a folder of the user's, unless they name one.

    Raises
    ------
    HeatproofError
        If Snakemake would install packages from there.
    """
    # What a dry run knew of files, which --trust-io-cache reads; it may be another's.
    with suppress(OSError):
        os.unlink(PICKLE)
    if not (deployment and uses_conda(deployment.deployment_method)):
        return
    if os.path.isdir(CONDA_ARCHIVE) and os.listdir(CONDA_ARCHIVE):
        raise HeatproofError(
            f"Snakemake would install the packages in {CONDA_ARCHIVE} of this folder, and no run of heatproof puts "
            "anything there: remove it."
        )
    if deployment.conda_prefix is None:
        cache = os.environ.get("XDG_CACHE_HOME", "")
        deployment.conda_prefix = (Path(cache) if os.path.isabs(cache) else Path.home() / ".cache") / "heatproof/conda"


def named_configs(settings: Any) -> list[str]:
    """Return what a run was given as its config, from Snakemake's settings: files, and values as ``key=value``."""
    if NAMES_VARIABLE in os.environ:
        return json.loads(os.environ[NAMES_VARIABLE])
    return [*map(str, settings.configfiles), *(f"{key}={value}" for key, value in settings.config.items())]


def handle_signals(is_main: bool) -> None:
    """End in order where a signal asks Snakemake to end, with its jobs on this machine; `heatproof run` says so itself.

    Snakemake would wait on SIGTERM for what may take days, and leave its jobs alone on SIGHUP.

    Parameters
    ----------
    is_main
        Whether this is the process that a user or `heatproof run` started, and not one that a cluster did.
    """
    install_signal_handlers("" if "HEATPROOF_COMMAND" in os.environ else "run")
    if is_main:
        end_with_parent()


def start_run(graph: Graph, folder: str, dry_run: bool) -> None:
    """Look at the results before a run of the main process, and take the folder for it.

    A dry run beside another run leaves the results as they are.

    Parameters
    ----------
    graph
        The jobs of the config.
    folder
        The results folder.
    dry_run
        Whether nothing is to be made.

    Raises
    ------
    HeatproofError
        If another run is going on, the folder cannot be written, or its results are of another version.
    """
    try:
        held = lock_folder(folder)
    except HeatproofError:
        if dry_run:
            return
        raise
    atexit.register(unlock_folder, held)
    for name in BY_SNAKEMAKE:
        refuse_links_in(Path(folder) / name)
    switch_target(folder, graph.plan.config["target"])
    if not dry_run:
        check_writable(folder)
        remove_specs(folder)
        refuse_links(Path(folder) / RECORD)
        atexit.register(shutil.rmtree, Path(folder) / SPECS, ignore_errors=True)
    found = update_data_records(graph, folder, dry_run)
    # Snakemake takes a table that is there for whole, and no job may read it.
    _say(f"{sentence} A run that needs it makes it again." for sentence in reconcile(graph, found))
    if dry_run:
        unlock_folder(held)


def update_data_records(graph: Graph, folder: str, dry_run: bool) -> dict[str, FileChanges]:
    """Look at the files of datasets, say what changed, and list the images of those again whose files did.

    Returns
    -------
    dict
        What was found where nothing may be written; nothing where the records on the disk are of today.

    Raises
    ------
    HeatproofError
        If files are no dataset any more.
    """
    seen = inspect_data(graph)
    for one in seen.values():
        _say(one.sentences)
    if not dry_run:
        for one in (*seen.values(), *_of_other_rows(graph, seen)):
            _list_again(graph, one, folder)
    return changes_by_dataset(seen) if dry_run else {}


def _of_other_rows(graph: Graph, seen: Container[str]) -> Iterator[DatasetChanges]:
    """Yield the datasets with rows whose list is missing or of other options, such as the rows of another target.

    What does not depend on these, such as networks, is not made again for a list that is newer.
    """
    for name in graph.plan.datasets:
        job, spec_json = graph.job("prepare", {"dataset": name}), graph.plan.dataset_spec(name)
        (product,) = job.products
        was_listed = os.path.lexists(record_path(product.manifest))
        listed = read_checksummed(product.manifest) if os.path.lexists(product.manifest) else {}
        # What is damaged is said, and made again by the run.
        had_rows = listed is not None and "pictures" in listed.get("splits", {}).get("evaluation", {})
        has_rows = listed is not None and (had_rows or graph.plan.has_label_rows(name))
        if name not in seen and was_listed and has_rows and is_there(data_root(spec_json.options)):
            yield DatasetChanges(job, None, is_listed=False)


def _say(sentences: Iterable[str]) -> None:
    for sentence in sentences:
        print(escaped(f"heatproof: {sentence}"), file=sys.stderr)


def _list_again(graph: Graph, seen: DatasetChanges, folder: str) -> None:
    """List the images of a dataset again where its files have changed, or record their times where only these have.

    Here, and not by Snakemake, which would start all jobs of the dataset, as it goes by times alone.

    Raises
    ------
    HeatproofError
        If the files are no dataset any more.
    """
    (product,) = seen.job.products
    if seen.is_listed:
        if seen.file_changes is not None and seen.file_changes.is_record_outdated:
            write_record(record_path(product.manifest), seen.file_changes.record)
        return
    command = [sys.executable, "-P", "-m", "heatproof.workflow.job", spec_file(graph, seen.job, folder)]
    environment = {**os.environ, **job_environment(graph.plan, "", ())}
    done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)  # noqa: S603
    if done.returncode:
        told = [line for line in done.stderr.splitlines() if line.startswith("heatproof: ")]
        raise HeatproofError(told[-1].removeprefix("heatproof: ") if told else done.stderr)


def remove_specs(folder: str) -> None:
    """Remove what jobs of an earlier run were told.

    A spec names what a job runs, and one that is there already is not written again: none may come with the folder.

    Raises
    ------
    HeatproofError
        If it is a symbolic link, or cannot be removed.
    """
    specs = refuse_links(Path(folder) / SPECS)
    try:
        if specs.is_dir():
            shutil.rmtree(specs)
        else:
            specs.unlink(missing_ok=True)
    except OSError as error:
        raise HeatproofError(
            machine_fault(error) or f"{specs} cannot be removed ({error.strerror}): remove it."
        ) from None


def spec_file(graph: Graph, job: Job, folder: str, write: bool = True) -> str:
    """Return the path of the small file that tells a job what to do, named by its content.

    Parameters
    ----------
    graph, job
        The job, and what the others of the graph make.
    folder
        The results folder, which compute nodes share.
    write
        Write the file, unless it is there.
    """
    content = {"run": job.run, "spec": job.spec_json}
    path = Path(folder) / SPECS / spec_file_name(job.stage, content)
    if write and not path.exists():
        write_json(path, {**content, "reads": graph.upstream_keys(job)})
    return str(path)


# Without the working folder among the places of modules: a psutil.py in a received folder would run in every job.
# The kernel's SIGKILL leaves a program no word; the shell that outlives it has one. The shell outlives a signal to both
# as well, since Snakemake takes a job whose shell has ended for one that writes nothing any more.
JOB_COMMAND = (
    'exec > {log:q} 2>&1; trap : TERM HUP INT; "$HEATPROOF_PYTHON" -P -m heatproof.workflow.job {params.spec:q} '
    '|| {{ code=$?; [ $code -ne 137 ] || echo "$HEATPROOF_KILLED"; exit $code; }}'
)
"""The shell command of every job. The place of Python and how jobs run reach it by environment variables."""


def one_file_per_job(files: Iterable[str], *, apart: bool) -> list[str]:
    """Return the files that Snakemake is told of, of those that a job reads: one of each job that makes shards.

    Snakemake looks at every input of every ready job again and again. The files of one job come together, and so the
    one that is missing or has the earliest time (stale files are dated back: `heatproof.workflow.reconcile`)
    stands for all.

    Parameters
    ----------
    files
        Paths below the results folder, and others.
    apart
        Whether each explainer has jobs of its own.
    """
    groups: dict[tuple[str, ...], list[str]] = {}
    for file in files:
        groups.setdefault(producing_job(file, apart), []).append(file)
    # What is missing has no time, and comes first.
    return [
        group[0] if len(group) == 1 else min(group, key=lambda file: modification_times([file]))
        for group in groups.values()
    ]


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
        # Processes that a job starts import from where the job does.
        "PYTHONSAFEPATH": "1",
        "HEATPROOF_MACHINE": json.dumps(vars(plan.runtime()), sort_keys=True),
        # Jobs end when this process does.
        CONTROLLER: str(os.getpid()),
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
        raise HeatproofError(machine_fault(error) or f"{folder} cannot be written ({error.strerror}).") from None


def explain_failure(folder: str) -> str | None:
    """Return what a look at the results folder tells of a failed run, where the jobs' own logs could not be written.

    Raises
    ------
    Ended
        If a signal ended the run; Snakemake knows no exit status for that.
    """
    if (number := received_signal()) is not None:
        raise EndedBySignal(number)
    try:
        check_writable(folder)
    except HeatproofError as error:
        return str(error)
    free = shutil.disk_usage(folder).free // 10**6
    if free < LITTLE:
        return f"The disk of {folder} has {free} MB left: make room and run the same command again; {RESUME_HINT}."
    return None


KINDS = {".csv": "table", ".txt": "text", ".html": "page", ".png": "figure", ".svg": "figure"}


def captions_folder() -> str:
    """Return a folder for captions, which is removed when this process ends."""
    folder = tempfile.mkdtemp(prefix="heatproof-captions-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def outputs_of(
    graph: Graph, stage: str, report: Callable[..., Any], update: Callable[..., Any], captions: str | None
) -> list[Any]:
    """Return the outputs of a stage's rule as Snakemake takes them.

    Parameters
    ----------
    graph
        The jobs of the config.
    stage
        The stage.
    report
        Snakemake's mark of what stands in its report.
    update
        Snakemake's mark of what is kept when a job starts.
    captions
        The folder that captions are written into, which Snakemake reads from files; None for none.
    """
    marked = []
    for output in STAGES[stage].patterns(graph.plan):
        file, about = update(output.path) if output.is_updated else output.path, output.report_entry
        if about is not None:
            caption = Path(captions) / f"{stage}-{digest(about.what)}.rst" if captions else None
            if caption:
                caption.write_text(about.caption, encoding="utf-8")
            labels = {"what": about.what, "kind": KINDS[Path(file).suffix]}
            file = report(file, caption=caption and str(caption), category=about.category, labels=labels)
        marked.append(file)
    return marked

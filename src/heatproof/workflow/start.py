"""Functions that the Snakefile calls: checks before a run, environment and specs of jobs, outputs of rules."""

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

from heatproof.core.provenance import digest
from heatproof.core.signals import CONTROLLER, EndedBySignal, end_with_parent, install_signal_handlers, received_signal
from heatproof.core.specs import spec_file_name
from heatproof.errors import RESUME_HINT, HeatproofError, machine_fault
from heatproof.store.lock import lock_folder, unlock_folder
from heatproof.store.manifest import read_checksummed
from heatproof.store.publishing import escaped
from heatproof.store.reading import refuse_links, refuse_links_in
from heatproof.store.source_files import FileChanges, data_root, is_there, record_path, write_record
from heatproof.store.writing import write_json, write_text
from heatproof.workflow.changed_data import DatasetChanges, changes_by_dataset, inspect_data
from heatproof.workflow.check import check_machine
from heatproof.workflow.config.removed import without_removed_keys
from heatproof.workflow.last_run import NAMES_VARIABLE, RECORD
from heatproof.workflow.plan.graph import Graph, Job
from heatproof.workflow.plan.paths import producing_job
from heatproof.workflow.plan.stage import STAGES
from heatproof.workflow.plan.validate import Plan, make_plan
from heatproof.workflow.reconcile import modification_times, reconcile, switch_target

# By default, glibc requests the memory of activations from the system at every layer and releases it again, which
# takes half of the time of an EfficientNet at 224 pixels on a CPU. With these variables, it keeps the memory. Other
# allocators ignore them.
MALLOC = {"MALLOC_MMAP_THRESHOLD_": str(2**32), "MALLOC_TRIM_THRESHOLD_": str(2**32), "MALLOC_TOP_PAD_": str(2**28)}

KILLED = (
    "The job was killed, most likely by the kernel because memory ran out: run fewer jobs at once, or lower batch_size "
    "at the top of the config, which recomputes nothing and reduces the memory of jobs that run networks, except "
    f"trainings, and run the same command again; {RESUME_HINT}."
)
PICKLE = ".snakemake/iocache/latest.pkl"
# Folder in which `snakemake --archive` puts packages of environments.
CONDA_ARCHIVE = ".snakemake/conda-archive"
# Megabytes of free disk space below which no job can work.
LITTLE = 16


# Folders in which Snakemake and the shell of a job write without checking for links.
BY_SNAKEMAKE = ("logs", "benchmarks")
# Folder of the specs of jobs, which are written when jobs start and removed when the run ends.
SPECS = ".jobs"


def check_before_start(
    config: Mapping[str, Any], is_main: bool, deployment: Iterable[object] = (), local: bool = True
) -> Graph:
    """Return the job graph of a config; the main process also checks libraries, checkpoints and networks.

    Parameters
    ----------
    config
        The config.
    is_main
        Whether this is the main process of the run.
    deployment
        Snakemake's software deployment methods; with conda, jobs have other libraries than this process.
    local
        Whether jobs run on this machine.
    """
    remaining, removed = without_removed_keys(config)
    plan = make_plan(remaining)
    if is_main:
        _print_messages(removed)
        # `local`, because a login node needs no GPU.
        trial = check_machine(plan, not uses_conda(deployment), local)
        # A method or a metric that fails is not applicable, and all others are scored.
        _print_messages(f"{sentence} The run goes on without it." for sentence in trial.unusable)
    return Graph(plan)


def refuse_packages_of_folder(deployment: Any) -> None:
    """Prevent Snakemake from executing files below ``.snakemake`` of the working folder.

    Parameters
    ----------
    deployment
        Snakemake's deployment settings. Environments of conda are made in the user's cache folder, unless the settings
        name another one.

    Raises
    ------
    HeatproofError
        If Snakemake would install packages from there.
    """
    # A pickle file that --trust-io-cache reads; it may come from an untrusted source.
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
    """Return the names of the configs of a run from Snakemake's settings: files, and values as ``key=value``."""
    if NAMES_VARIABLE in os.environ:
        return json.loads(os.environ[NAMES_VARIABLE])
    return [*map(str, settings.configfiles), *(f"{key}={value}" for key, value in settings.config.items())]


def handle_signals(is_main: bool) -> None:
    """Install signal handlers that end Snakemake and its jobs on this machine.

    Without them, Snakemake would wait for running jobs on SIGTERM, which can take days, and leave jobs running on
    SIGHUP. If `heatproof run` started Snakemake, that command prints the message.

    Parameters
    ----------
    is_main
        Whether this process was started by a user or by `heatproof run`, and not by a cluster.
    """
    install_signal_handlers("" if "HEATPROOF_COMMAND" in os.environ else "run")
    if is_main:
        end_with_parent()


def start_run(graph: Graph, folder: str, dry_run: bool) -> None:
    """Lock the results folder, and reconcile the results with the config, before the main process runs jobs.

    A dry run that cannot lock the folder, because another run works on it, changes nothing.

    Parameters
    ----------
    graph
        The jobs of the config.
    folder
        The results folder.
    dry_run
        Whether the run is a dry run.

    Raises
    ------
    HeatproofError
        If another run works on the folder, the folder is not writable, or its results are from another version.
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
    records = update_data_records(graph, folder, dry_run)
    # Damage is reported here, because Snakemake takes an existing file for complete, and possibly no job reads it.
    _print_messages(f"{sentence} A run that needs it recomputes it." for sentence in reconcile(graph, records))
    if dry_run:
        unlock_folder(held)


def update_data_records(graph: Graph, folder: str, dry_run: bool) -> dict[str, FileChanges]:
    """Report changes of the files of datasets, and list the images of changed datasets again.

    Returns
    -------
    dict
        In a dry run, which writes nothing, the changes by dataset; otherwise it is empty, because the records on disk
        have been updated.

    Raises
    ------
    HeatproofError
        If the files of a dataset are not a valid dataset any more.
    """
    seen = inspect_data(graph)
    for changes in seen.values():
        _print_messages(changes.sentences)
    if not dry_run:
        for changes in (*seen.values(), *_of_other_rows(graph, seen)):
            _list_again(graph, changes, folder)
    return changes_by_dataset(seen) if dry_run else {}


def _of_other_rows(graph: Graph, seen: Container[str]) -> Iterator[DatasetChanges]:
    """Yield datasets whose rows differ from their images, and whose list of rows is missing or from other options.

    The rows of another target are an example. They are listed here and not by a job, because a newer list would make
    Snakemake repeat jobs that do not depend on rows, such as trainings.
    """
    for name in graph.plan.datasets:
        job, spec = graph.job("prepare", {"dataset": name}), graph.plan.dataset_spec(name)
        (product,) = job.products
        was_listed = os.path.lexists(record_path(product.manifest))
        listed = read_checksummed(product.manifest) if os.path.lexists(product.manifest) else {}
        # A damaged list is reported elsewhere, and made again by the run.
        had_rows = listed is not None and "pictures" in listed.get("splits", {}).get("evaluation", {})
        has_rows = listed is not None and (had_rows or graph.plan.has_label_rows(name))
        if name not in seen and was_listed and has_rows and is_there(data_root(spec.options)):
            yield DatasetChanges(job, None, is_listed=False)


def _print_messages(sentences: Iterable[str]) -> None:
    for sentence in sentences:
        print(escaped(f"heatproof: {sentence}"), file=sys.stderr)


def _list_again(graph: Graph, seen: DatasetChanges, folder: str) -> None:
    """List the images of a dataset again if its files have changed; if only times have, update the record.

    This is not left to Snakemake, which decides by times and would repeat all jobs of the dataset.

    Raises
    ------
    HeatproofError
        If the files are not a valid dataset any more.
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
        errors = [line for line in done.stderr.splitlines() if line.startswith("heatproof: ")]
        raise HeatproofError(errors[-1].removeprefix("heatproof: ") if errors else done.stderr)


def remove_specs(folder: str) -> None:
    """Remove the specs of jobs of an earlier run.

    A spec determines what a job executes, and existing specs are not written again. A received folder must therefore
    not bring its own.

    Raises
    ------
    HeatproofError
        If the folder of specs is a symbolic link, or cannot be removed.
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
    """Return the path of the spec file of a job; its name contains a digest of its content.

    Parameters
    ----------
    graph
        The jobs of the config.
    job
        The job.
    folder
        The results folder, which compute nodes share.
    write
        Whether to write the file if it does not exist.
    """
    content = {"run": job.run, "spec": job.spec_json}
    path = Path(folder) / SPECS / spec_file_name(job.stage, content)
    if write and not path.exists():
        write_json(path, {**content, "reads": graph.upstream_keys(job)})
    return str(path)


# -P keeps the working folder out of the module search path, because a psutil.py in a received folder would run in every
# job. A process cannot print a message on SIGKILL, so the shell does. The shell also outlives other signals, because
# Snakemake assumes that a job whose shell has ended does not write any more.
JOB_COMMAND = (
    'exec > {log:q} 2>&1; trap : TERM HUP INT; "$HEATPROOF_PYTHON" -P -m heatproof.workflow.job {params.spec:q} '
    '|| {{ code=$?; [ $code -ne 137 ] || echo "$HEATPROOF_KILLED"; exit $code; }}'
)
"""The shell command of every job. It gets the path of Python and the runtime settings from environment variables."""


def one_file_per_job(files: Iterable[str], *, apart: bool) -> list[str]:
    """Reduce the inputs of a job to one input for each upstream job that makes shards.

    Snakemake checks every input of every ready job again and again. All files of one job are made together, so that the
    one that is missing or has the earliest time (stale files have times before `STALE_TIME`) represents them.

    Parameters
    ----------
    files
        Inputs, below the results folder or elsewhere.
    apart
        Whether each explainer has its own jobs.
    """
    groups: dict[tuple[str, ...], list[str]] = {}
    for file in files:
        groups.setdefault(producing_job(file, apart), []).append(file)
    # A missing file has no time, and comes first.
    return [
        group[0] if len(group) == 1 else min(group, key=lambda file: modification_times([file]))
        for group in groups.values()
    ]


def job_environment(plan: Plan, folder: str | None, deployment: Iterable[object]) -> dict[str, str]:
    """Return the environment variables of jobs.

    Parameters
    ----------
    plan
        The plan, for the runtime settings.
    folder
        The clone of the workflow, whose ``src`` is on the module search path in conda environments; None without one.
    deployment
        Snakemake's software deployment methods; with conda, a job runs the Python of its environment.

    Raises
    ------
    HeatproofError
        If jobs run in a conda environment, and there is no clone from which they import heatproof.
    """
    conda = uses_conda(deployment)
    source = os.path.join(folder or "", "src")
    if conda and not (folder and os.path.isdir(source)):
        raise HeatproofError(
            "Jobs in a conda environment import heatproof from a clone of its repository, and this workflow is not in "
            "one: leave out conda, or name the Snakefile of a clone."
        )
    path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), source]))
    return {
        "HEATPROOF_PYTHON": "python" if conda else sys.executable,
        # As -P for the job, for processes that it starts.
        "PYTHONSAFEPATH": "1",
        "HEATPROOF_MACHINE": json.dumps(vars(plan.runtime()), sort_keys=True),
        # Jobs end when this process does.
        CONTROLLER: str(os.getpid()),
        "HEATPROOF_KILLED": f"heatproof: {KILLED}",
        **{name: os.environ.get(name, value) for name, value in MALLOC.items()},
        **({"PYTHONPATH": path} if conda else {}),
    }


def uses_conda(deployment: Iterable[object]) -> bool:
    """Return whether conda is among Snakemake's software deployment methods."""
    return any(str(method).lower().endswith("conda") for method in deployment)


def job_threads(plan: Plan, cores: int | None, is_local: bool) -> int:
    """Return the number of threads that a job counts with in Snakemake's scheduler.

    If `--cores` exceeds the cores of this machine, each job counts with more threads, so that not too many jobs run at
    the same time. Jobs always use the config's ``threads``, because float sums depend on it.
    """
    threads = plan.config["threads"]
    if not is_local or not cores:
        return threads
    here = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(threads, -(-cores * threads // here)) if cores > here else threads


def check_writable(folder: str) -> None:
    """Check that the results folder is writable, by writing a file and removing it.

    Raises
    ------
    HeatproofError
        If the folder is read-only or its disk is full.
    """
    try:
        write_text(Path(folder) / ".writable", "")
        (Path(folder) / ".writable").unlink()
    except OSError as error:
        raise HeatproofError(machine_fault(error) or f"{folder} cannot be written ({error.strerror}).") from None


def explain_failure(folder: str) -> str | None:
    """Return a reason why a run failed that jobs could not write to their logs, such as a full disk; None if none.

    Raises
    ------
    EndedBySignal
        If a signal ended the run, because Snakemake has no exit status for that.
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
    """Return a new folder for captions, which is removed when this process ends."""
    folder = tempfile.mkdtemp(prefix="heatproof-captions-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def outputs_of(
    graph: Graph, stage: str, report: Callable[..., Any], update: Callable[..., Any], captions: str | None
) -> list[Any]:
    """Return the outputs of the rule of a stage, with Snakemake's flags.

    Parameters
    ----------
    graph
        The jobs of the config.
    stage
        Name of the stage.
    report
        Snakemake's flag for outputs in its report.
    update
        Snakemake's flag for outputs that it must not remove when a job starts.
    captions
        Folder for the captions, which Snakemake reads from files; None for no captions.
    """
    marked = []
    for output in STAGES[stage].patterns(graph.plan):
        file, entry = update(output.path) if output.is_updated else output.path, output.report_entry
        if entry is not None:
            caption = Path(captions) / f"{stage}-{digest(entry.what)}.rst" if captions else None
            if caption:
                caption.write_text(entry.caption, encoding="utf-8")
            labels = {"what": entry.what, "kind": KINDS[Path(file).suffix]}
            file = report(file, caption=caption and str(caption), category=entry.category, labels=labels)
        marked.append(file)
    return marked

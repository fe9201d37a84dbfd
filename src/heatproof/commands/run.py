"""`heatproof run`, `status` and `report`: the workflow without a clone of its repository."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from heatproof.base.ending import CONTROLLER, SIGNALS, describe_signal
from heatproof.config.files import config_file, read_config, workflow_folder
from heatproof.errors import HeatproofError
from heatproof.files.publishing import escaped
from heatproof.files.reading import printable_path
from heatproof.files.strict_yaml import dump

# Of a working folder; in the first, Snakemake imports every plugin that it finds, and in the others it makes no files
# for a run of heatproof.
SNAKEMAKE = ".snakemake"
PIP_DEPLOYMENTS = f"{SNAKEMAKE}/pip-deployments"
ENVIRONMENTS = ("conda", "conda-archive", "singularity", "storage")


def run(
    configs: Sequence[str],
    *,
    cores: str | None = None,
    profile: str | None = None,
    targets: Sequence[str] = (),
    dry: bool = False,
    more: Sequence[str] = (),
) -> None:
    """Run the workflow in the present folder, as `snakemake` does in the repository.

    Parameters
    ----------
    configs
        Files or names of shipped configs, each laid over those before it; none for the default.
    cores
        As Snakemake's; by default all, or what the profile says.
    profile
        A folder, or the name of one that comes with heatproof, such as ``slurm``.
    targets
        Files to make; by default all.
    dry
        Whether only what would run is printed.
    more
        Further arguments for Snakemake.

    Raises
    ------
    SystemExit
        With Snakemake's status, where it is not 0.
    """
    files = [str(config_file(one).resolve()) for one in configs]
    # Says in one sentence what Snakemake says in several.
    read_config(*files)
    _start(files, cores=cores, profile=profile, targets=targets, more=[*(["--dry-run"] if dry else []), *more])


def _start(
    files: Sequence[str],
    *,
    cores: str | None = None,
    profile: str | None = None,
    targets: Sequence[str] = (),
    more: Sequence[str] = (),
    **environment: str,
) -> None:
    """Start Snakemake with configs, so that no file of the working folder that nobody named is executed."""
    refuse_code_of_snakemake()
    folder = workflow_folder()
    # Without the working folder among the places of modules, here and in what Snakemake starts, on other hosts too.
    command = [sys.executable, "-P", "-m", "snakemake", "--snakefile", str(folder / "Snakefile")]
    command += ["--configfile", *files] if files else []
    command += ["--workflow-profile", str(folder / "profiles/default")]
    if profile is not None:
        # A name that comes with heatproof is never a folder's: that is written ./slurm.
        shipped = {one.name: str(one) for one in (folder / "profiles").iterdir()}
        command += ["--profile", shipped.get(profile, profile)]
    if cores is not None or profile is None:
        command += ["--cores", cores or "all"]
    # After --, since options such as --configfile take any number of values.
    command += [*more, *(["--", *targets] if targets else [])]
    # Jobs of another folder import this very package. Snakemake ends when this process does.
    given = {"HEATPROOF_COMMAND": "heatproof run", "PYTHONSAFEPATH": "1", CONTROLLER: str(os.getpid()), **environment}
    # Ctrl-C in a terminal reaches Snakemake as well: not before it has begun to listen, which says nothing.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    snakemake = subprocess.Popen(command, env={**os.environ, **given})  # noqa: S603
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    # Where a signal ends this process, it ends its children as well and waits for them (`heatproof.base.ending`).
    code = snakemake.wait()
    number = -code if code < 0 else code - 128
    if number in SIGNALS or code < 0:
        # Snakemake alone was asked to end.
        print(f"heatproof: {describe_signal('command', number)}", file=sys.stderr, flush=True)
        raise SystemExit(128 + number)
    if code:
        raise SystemExit(code)


def refuse_code_of_snakemake() -> None:
    """Refuse a working folder whose files Snakemake would execute although nobody named them.

    Raises
    ------
    HeatproofError
        If Snakemake would import plugins of the folder, would take its profile for one of the user's own, or would
        write through a link.
    """
    if os.path.lexists(PIP_DEPLOYMENTS):
        raise HeatproofError(
            f"Snakemake would execute what is in {PIP_DEPLOYMENTS} of this folder, and no run of heatproof puts "
            "anything there: remove it."
        )
    if odd := _no_file(SNAKEMAKE):
        raise HeatproofError(
            f"{printable_path(odd)} is neither a file nor a folder, and Snakemake would write through it or wait for it: remove "
            "it."
        )
    profiles = os.environ.get("SNAKEMAKE_PROFILE", "").split(",")
    for profile in profiles:
        if profile and not os.path.isabs(profile) and os.path.exists(profile):
            raise HeatproofError(
                f"The environment variable SNAKEMAKE_PROFILE names {profile}, and Snakemake would take that of this "
                "folder: let it name the whole path."
            )


def _no_file(place: str) -> str | None:
    """Return the first link, pipe or the like of Snakemake's folder; environments have links."""
    if os.path.islink(place):
        return place
    try:
        for entry in os.scandir(place):
            if entry.is_dir(follow_symlinks=False):
                if entry.name not in ENVIRONMENTS and (odd := _no_file(entry.path)):
                    return odd
            elif not entry.is_file(follow_symlinks=False):
                return entry.path
    except FileNotFoundError:
        return None
    return None


def report(configs: Sequence[str], *, cores: str | None = None) -> None:
    """Make the page of a config's results from what is there, and print where it is.

    Parameters
    ----------
    configs
        As for `run`; none for that of the last run.
    cores
        As for `run`.

    Raises
    ------
    HeatproofError
        If networks would have to be trained, or images to pass through them; nothing is done then.
    """
    from heatproof.plan.graph import Graph
    from heatproof.workflow.changed_data import changes_by_dataset, inspect_data
    from heatproof.workflow.last_run import NAMES_VARIABLE, load_named_or_last
    from heatproof.workflow.reconcile import Results

    followed = load_named_or_last(configs)
    graph = Graph(followed.plan)
    page = graph.spec("report_page").files["page"]
    results = Results(graph, changes_by_dataset(inspect_data(graph)))
    lacking = Counter(job.stage for job in results.jobs_to_run([page]) if job.spec.runs_network)
    if lacking:
        stages = ", ".join(f"{count} of {stage}" for stage, count in lacking.items())
        raise HeatproofError(
            f"{followed.note} The page needs {lacking.total()} jobs first that train networks or pass images through "
            f"them ({stages}): {_command(followed.named, page)} runs them.".strip()
        )
    if followed.note:
        print(escaped(followed.note))
    with TemporaryDirectory() as folder:
        values = Path(folder) / "config.yaml"
        values.write_text(dump(followed.config), encoding="utf-8")
        _start([str(values)], cores=cores, targets=[page], **{NAMES_VARIABLE: json.dumps(followed.named)})
    print(escaped(str(Path(page).resolve()), keep=""))


def _command(named: Sequence[str], target: str = "") -> str:
    """Return the command that runs a config, in backticks."""
    return f"`{shlex.join(['heatproof', 'run', *named, *(['--target', target] if target else [])])}`"


def status(configs: Sequence[str]) -> str:
    """Return how much of a config, or of that of the last run, is made, a line for each stage."""
    from heatproof.plan.graph import Graph
    from heatproof.workflow.changed_data import changes_by_dataset, inspect_data
    from heatproof.workflow.last_run import load_named_or_last
    from heatproof.workflow.reconcile import Results

    followed = load_named_or_last(configs)
    graph = Graph(followed.plan)
    seen = inspect_data(graph)
    results = Results(graph, changes_by_dataset(seen))
    stages: dict[str, list[bool]] = {}
    damaged: list[str] = []
    for job in graph.jobs_leading_to(graph.targets()):
        found = list(filter(None, map(results.damage, job.products)))
        whole = all(results.manifest(one.manifest) and not results.is_stale(job, one) for one in job.products)
        stages.setdefault(job.stage, []).append(whole and not found)
        damaged += found
    every = [one for jobs in stages.values() for one in jobs]
    lines = [f"{stage:<16} {sum(jobs):>5} of {len(jobs):>5} jobs" for stage, jobs in stages.items()]
    left = len(every) - sum(every)
    rest = f", {left} are left: {_command(followed.named)} runs them." if left else "."
    said = f"{sum(every)} of {len(every)} jobs are made{rest}"
    spec = [
        *filter(None, [followed.note]),
        *(describe_signal for one in seen.values() for describe_signal in one.sentences),
    ]
    return "\n".join([*spec, *damaged, *lines, "", said])

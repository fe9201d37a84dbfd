"""`heatproof run`, `status` and `report`: use the workflow without a clone of the repository."""

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

from heatproof.core.signals import CONTROLLER, SIGNALS, describe_signal
from heatproof.errors import HeatproofError
from heatproof.store.publishing import escaped
from heatproof.store.reading import printable_path
from heatproof.store.strict_yaml import dump
from heatproof.workflow.config.files import config_file, read_config, workflow_folder

# Snakemake's folder in the working folder. Below it, Snakemake imports every plugin that it finds in the folder of pip
# deployments, and the folders of environments contain links.
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
    """Run the workflow in the working folder, as `snakemake` does in the repository.

    Parameters
    ----------
    configs
        Files or names of shipped configs, each merged into the ones before; empty for the default config.
    cores
        Snakemake's option; by default all cores, or the number in the profile.
    profile
        A folder, or the name of a shipped profile, such as ``slurm``.
    targets
        Files to make; by default those of the rule `all`.
    dry
        Whether to print what would run, without running it.
    more
        Further arguments for Snakemake.

    Raises
    ------
    SystemExit
        With Snakemake's exit status if it is not 0.
    """
    files = [str(config_file(config).resolve()) for config in configs]
    # Errors of the config are reported here in one sentence, and not by Snakemake.
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
    """Start Snakemake with configs, so that it executes no file of the working folder that the user did not name."""
    refuse_code_of_snakemake()
    folder = workflow_folder()
    # -P, and PYTHONSAFEPATH for processes that Snakemake starts, keep the working folder out of the module search path.
    command = [sys.executable, "-P", "-m", "snakemake", "--snakefile", str(folder / "Snakefile")]
    command += ["--configfile", *files] if files else []
    command += ["--workflow-profile", str(folder / "profiles/default")]
    if profile is not None:
        # The name of a shipped profile takes precedence; a folder of that name is written ./slurm.
        shipped = {profile.name: str(profile) for profile in (folder / "profiles").iterdir()}
        command += ["--profile", shipped.get(profile, profile)]
    if cores is not None or profile is None:
        command += ["--cores", cores or "all"]
    # After --, because options such as --configfile take any number of values.
    command += [*more, *(["--", *targets] if targets else [])]
    # Snakemake ends when this process does.
    variables = {
        "HEATPROOF_COMMAND": "heatproof run",
        "PYTHONSAFEPATH": "1",
        CONTROLLER: str(os.getpid()),
        **environment,
    }
    # Ctrl-C in a terminal reaches Snakemake too. It is blocked until Snakemake has installed its signal handlers.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    snakemake = subprocess.Popen(command, env={**os.environ, **variables})  # noqa: S603
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    # If a signal ends this process, its handler ends Snakemake as well and waits for it (`heatproof.core.signals`).
    code = snakemake.wait()
    number = -code if code < 0 else code - 128
    if number in SIGNALS or code < 0:
        # The signal was sent to Snakemake only.
        print(f"heatproof: {describe_signal('command', number)}", file=sys.stderr, flush=True)
        raise SystemExit(128 + number)
    if code:
        raise SystemExit(code)


def refuse_code_of_snakemake() -> None:
    """Raise an error if Snakemake would execute files of the working folder that the user did not name.

    Raises
    ------
    HeatproofError
        If Snakemake would import plugins from the folder, use a profile in it, or write through a link.
    """
    if os.path.lexists(PIP_DEPLOYMENTS):
        raise HeatproofError(
            f"Snakemake would execute what is in {PIP_DEPLOYMENTS} of this folder, and no run of heatproof puts "
            "anything there: remove it."
        )
    if irregular := _first_irregular(SNAKEMAKE):
        raise HeatproofError(
            f"{printable_path(irregular)} is neither a file nor a folder, and Snakemake would write through it or "
            "wait for it: remove it."
        )
    profiles = os.environ.get("SNAKEMAKE_PROFILE", "").split(",")
    for profile in profiles:
        if profile and not os.path.isabs(profile) and os.path.exists(profile):
            raise HeatproofError(
                f"The environment variable SNAKEMAKE_PROFILE names {profile}, and Snakemake would take that of this "
                "folder: set it to an absolute path."
            )


def _first_irregular(folder: str) -> str | None:
    """Return the first link, pipe or the like in Snakemake's folder, except in environments, which contain links."""
    if os.path.islink(folder):
        return folder
    try:
        for entry in os.scandir(folder):
            if entry.is_dir(follow_symlinks=False):
                if entry.name not in ENVIRONMENTS and (irregular := _first_irregular(entry.path)):
                    return irregular
            elif not entry.is_file(follow_symlinks=False):
                return entry.path
    except FileNotFoundError:
        return None
    return None


def report(configs: Sequence[str], *, cores: str | None = None) -> None:
    """Make the page of a config from existing results, and print its path.

    Parameters
    ----------
    configs
        As for `run`; empty for the config of the last run.
    cores
        As for `run`.

    Raises
    ------
    HeatproofError
        If networks would have to be trained, or images passed through them; nothing is made then.
    """
    from heatproof.workflow.changed_data import changes_by_dataset, inspect_data
    from heatproof.workflow.last_run import NAMES_VARIABLE, load_named_or_last
    from heatproof.workflow.plan.graph import Graph
    from heatproof.workflow.reconcile import Results

    run_config = load_named_or_last(configs)
    graph = Graph(run_config.plan)
    page = graph.spec("report_page").files["page"]
    results = Results(graph, changes_by_dataset(inspect_data(graph)))
    missing = Counter(job.stage for job in results.jobs_to_run([page]) if job.spec.runs_network)
    if missing:
        stages = ", ".join(f"{count} of {stage}" for stage, count in missing.items())
        raise HeatproofError(
            f"{run_config.note} The page needs {missing.total()} jobs first that train networks or pass images through "
            f"them ({stages}): {_command(run_config.named, page)} runs them.".strip()
        )
    if run_config.note:
        print(escaped(run_config.note))
    with TemporaryDirectory() as folder:
        values = Path(folder) / "config.yaml"
        values.write_text(dump(run_config.config), encoding="utf-8")
        _start([str(values)], cores=cores, targets=[page], **{NAMES_VARIABLE: json.dumps(run_config.named)})
    print(escaped(str(Path(page).resolve()), keep=""))


def _command(named: Sequence[str], target: str = "") -> str:
    """Return the command that runs a config, in backticks."""
    return f"`{shlex.join(['heatproof', 'run', *named, *(['--target', target] if target else [])])}`"


def status(configs: Sequence[str]) -> str:
    """Return a table of the finished jobs of a config, by default that of the last run, with a line for each stage."""
    from heatproof.workflow.changed_data import changes_by_dataset, inspect_data
    from heatproof.workflow.last_run import load_named_or_last
    from heatproof.workflow.plan.graph import Graph
    from heatproof.workflow.reconcile import Results

    run_config = load_named_or_last(configs)
    graph = Graph(run_config.plan)
    seen = inspect_data(graph)
    results = Results(graph, changes_by_dataset(seen))
    stages: dict[str, list[bool]] = {}
    damaged: list[str] = []
    for job in graph.jobs_leading_to(graph.targets()):
        damage = list(filter(None, map(results.damage, job.products)))
        is_made = all(
            results.manifest(product.manifest) and not results.is_stale(job, product) for product in job.products
        )
        stages.setdefault(job.stage, []).append(is_made and not damage)
        damaged += damage
    are_made = [is_made for jobs in stages.values() for is_made in jobs]
    lines = [f"{stage:<16} {sum(jobs):>5} of {len(jobs):>5} jobs" for stage, jobs in stages.items()]
    remaining = len(are_made) - sum(are_made)
    rest = f", {remaining} are left: {_command(run_config.named)} runs them." if remaining else "."
    summary = f"{sum(are_made)} of {len(are_made)} jobs are finished{rest}"
    notes = [
        *filter(None, [run_config.note]),
        *(sentence for changes in seen.values() for sentence in changes.sentences),
    ]
    return "\n".join([*notes, *damaged, *lines, "", summary])

"""`heatproof run`, `status` and `report`: the workflow without a clone of its repository."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from heatproof.config import read_config, workflow_folder
from heatproof.errors import HeatproofError
from heatproof.registry import nearest


def config_file(given: str) -> Path:
    """Return the path of a config: a file, or the name of one that comes with heatproof, such as ``quick``.

    Raises
    ------
    HeatproofError
        If there is neither.
    """
    path, shipped = Path(given), workflow_folder() / "config"
    if path.is_file():
        return path
    if (shipped / f"{given}.yaml").is_file():
        return shipped / f"{given}.yaml"
    known = sorted(one.stem for one in shipped.glob("*.yaml"))
    raise HeatproofError(
        f"There is no config {given}, neither a file nor one that comes with heatproof: "
        f"{nearest(given, known, 'configs')}"
    )


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
    folder = workflow_folder()
    command = [sys.executable, "-m", "snakemake", "--snakefile", str(folder / "Snakefile")]
    files = [str(config_file(one).resolve()) for one in configs]
    # Says in one sentence what Snakemake says in several.
    read_config(*files)
    command += ["--configfile", *files] if files else []
    command += ["--workflow-profile", str(folder / "profiles/default")]
    if profile is not None:
        shipped = folder / "profiles" / profile
        command += ["--profile", str(shipped if not Path(profile).is_dir() and shipped.is_dir() else profile)]
    if cores is not None or profile is None:
        command += ["--cores", cores or "all"]
    command += [*(["--dry-run"] if dry else []), *more]
    # After --, since options such as --configfile take any number of values.
    command += ["--", *targets] if targets else []
    # Jobs of another folder import this very package.
    done = subprocess.run(command, check=False, env={**os.environ, "HEATPROOF_COMMAND": "heatproof run"})  # noqa: S603
    if done.returncode:
        raise SystemExit(done.returncode)


def report(configs: Sequence[str], *, cores: str | None = None) -> None:
    """Make the page of a config's results, with whatever it still lacks, and print where it is."""
    from heatproof.plan.paths import PAGE

    run(configs, cores=cores, targets=[PAGE])
    print(Path(PAGE).resolve())


def status(configs: Sequence[str]) -> str:
    """Return how much of a config is made, a line for each stage."""
    from heatproof.adopt import Results
    from heatproof.plan.graph import Graph
    from heatproof.plan.reports import targets
    from heatproof.plan.validate import make_plan

    graph = Graph(make_plan(read_config(*(config_file(one) for one in configs))))
    results = Results(graph)
    stages: dict[str, list[bool]] = {}
    for job in graph.needed(targets(graph.plan)):
        whole = all(results.manifest(one.manifest) and not results.is_stale(job, one) for one in job.products)
        stages.setdefault(job.stage, []).append(whole)
    every = [one for jobs in stages.values() for one in jobs]
    lines = [f"{stage:<16} {sum(jobs):>5} of {len(jobs):>5} jobs" for stage, jobs in stages.items()]
    left = len(every) - sum(every)
    return "\n".join(
        [*lines, "", f"{sum(every)} of {len(every)} jobs are made" + (f", {left} are left." if left else ".")]
    )

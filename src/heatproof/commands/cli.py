"""The command line interface, `heatproof`."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pkgutil import resolve_name
from typing import Any

from heatproof.base.options import parse_duration
from heatproof.errors import HeatproofError
from heatproof.files.publishing import escaped
from heatproof.workflow.job import run_and_report_errors


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status: 0, or 1 with one sentence on what is wrong."""

    def work() -> None:
        options = vars(_parser().parse_args(arguments))
        # Modules of a command are imported when it runs. A command prints, or returns text to print.
        output = resolve_name(options.pop("run"))(*options.pop("paths", ()), **options)
        if output is not None:
            print(escaped(output))

    return run_and_report_errors(work)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="heatproof", description="Prove your heatmaps.")
    parser.add_argument("--version", action="version", version=f"heatproof {version('heatproof')}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    merged = "a YAML config, and others merged into it"
    configs = argparse.ArgumentParser(add_help=False)
    configs.add_argument("paths", nargs="+", metavar="config", help=merged)
    any_configs = argparse.ArgumentParser(add_help=False)
    default = f"{merged}; without any, the default: three networks on embedded digits, some 200 jobs"
    any_configs.add_argument("configs", nargs="*", metavar="config", help=default)
    last = argparse.ArgumentParser(add_help=False)
    last.add_argument("configs", nargs="*", metavar="config", help=f"{merged}; without any, that of the last run here")

    def command(name: str, run: str, summary: str, under: Any = commands, **settings: Any) -> argparse.ArgumentParser:
        parser = under.add_parser(name, help=summary, **settings)
        parser.set_defaults(run=run)
        return parser

    listing = command("list", "heatproof.commands.list_names:print_names", "what can be named in a config")
    kinds = ["configs", "datasets", "models", "explainers", "methods", "metrics"]
    listing.add_argument("what", nargs="?", choices=kinds, help="left out, these kinds are listed")
    whose = "methods of this config instead of the default one"
    listing.add_argument("--config", dest="config_path", metavar="CONFIG", help=whose)

    checking = command(
        "check", "heatproof.workflow.check:check_config", "check a config before work starts", parents=[configs]
    )
    every_byte = "read every file that results were made from, and not only those whose size or times changed"
    checking.add_argument("--contents", action="store_true", help=every_byte)

    new = "write a config for a folder of photographs and a network"
    starting = command("init", "heatproof.commands.init:init", new)
    networks = "timm:NAME, torchvision:NAME, transformers:FOLDER, package.module:function or one of heatproof's own"
    starting.add_argument("photos", help="class folders, or train beside val or test with class folders")
    starting.add_argument("--model", required=True, help=networks)
    starting.add_argument("--out", default="mine.yaml", metavar="FILE", help="where the config is written")
    starting.add_argument("--checkpoint", metavar="FILE", help="published weights, whose head is trained anew")
    table = "a table of labels, or `folders`; left out, what is found in the folder or beside it"
    starting.add_argument("--labels", metavar="FILE", help=table)
    tasks = ["binary", "multiclass", "multilabel", "regression"]
    starting.add_argument("--task", choices=tasks, help="what the labels are for; left out, what they say")
    named = "a column of the table, such as label=diagnosis; several labels are one a class"
    starting.add_argument("--column", dest="columns", action="append", default=[], metavar="WHAT=NAME", help=named)

    going = "run the workflow in this folder; a config is a file, or the name of one that comes with heatproof"
    running = command("run", "heatproof.commands.run:run", going, parents=[any_configs])
    running.add_argument("--cores", metavar="N", help="how many at once; by default all")
    running.add_argument("--profile", metavar="PROFILE", help="of a cluster: slurm, or a folder of your own")
    running.add_argument("--target", dest="targets", action="append", default=[], metavar="FILE", help="instead of all")
    running.add_argument("--dry-run", "-n", dest="dry", action="store_true", help="print what would run")
    more = "further options of snakemake, as one argument: --more='--keep-going --jobs 3'"
    running.add_argument("--more", type=shlex.split, default=(), metavar="OPTIONS", help=more)
    command("status", "heatproof.commands.run:status", "how much of a config is made", parents=[last])
    where = "make the page of the results that are there, and say where it is; trains nothing"
    page = command("report", "heatproof.commands.run:report", where, parents=[last])
    page.add_argument("--cores", metavar="N", help="how many at once; by default all")

    keep = "keep results of other code whose values today's code makes the same"
    command("accept", "heatproof.commands.cli:accept", keep, parents=[configs])

    room = "what of the results can go, and what it would cost to make it again"
    pruned = command("prune", "heatproof.commands.prune:prune", room, parents=[configs])
    requested = "what runs ask Snakemake for, instead of all"
    pruned.add_argument("--target", dest="targets", action="append", default=[], metavar="TARGET", help=requested)
    pruned.add_argument("--delete", action="append", default=[], metavar="KIND", help="remove what is of this kind")

    cost = "what a config costs, from a few images on this device"
    costs = command("estimate", "heatproof.estimate.estimate:estimate", cost, parents=[configs])
    most = "GPUs, or jobs at once on a CPU"
    costs.add_argument("--gpus", "--jobs", dest="workers", type=int, default=1, metavar="N", help=most)
    costs.add_argument("--device", choices=["auto", "cpu", "cuda", "mps"], help="instead of the config's")
    costs.add_argument("--images", type=int, metavar="N", help="how many are timed")
    every = "results/scores.csv as well, and so every response"
    costs.add_argument("--scores", dest="responses", action="store_true", help=every)
    timing = "of timing, after which each network is timed by one pass"
    costs.add_argument("--seconds", dest="budget", metavar="SECONDS", type=float, default=300, help=timing)
    fits = "instead of the config's: how many images fit"
    costs.add_argument("--budget", dest="within", type=parse_duration, metavar="TIME", help=fits)
    other = "hours of a device where N images a second go through MODEL, or of a GPU with a published throughput"
    costs.add_argument("--as-if", type=_throughput, metavar="MODEL=N|GPU", help=other)

    pack = "one file to cite: tables, page, config, provenance and checksums of a run"
    packed = command("bundle", "heatproof.commands.bundle:bundle", pack, parents=[last])
    packed.add_argument("--out", default="heatproof.zip", metavar="FILE.zip")
    checked = command("verify", "heatproof.commands.bundle:verify", "check that a bundle is whole")
    checked.add_argument("path", metavar="FILE.zip")

    anybody = "rank the methods of anybody's tables of scores, of runs and of bundles"
    rank = command("rank", "heatproof.commands.cli:rank", anybody)
    columns = "CSV with method, score and any of dataset, model, …; results; bundles"
    rank.add_argument("paths", nargs="+", metavar="TABLE", help=columns)
    rank.add_argument("--out", metavar="FOLDER", help="write tables and a heat map of the consistency there")
    rank.add_argument("--lower", type=_names, default="", metavar="METRIC,...", help="metrics of which lower is better")
    rank.add_argument("--metrics", type=_names, default="", metavar="METRIC,...", help="those that count; or all")
    rank.add_argument("--methods", type=_names, default="", metavar="METHOD,...", help="those that count; or all")
    once = "what counts once: a network, or each test case, as in the paper of Meta-Rank"
    rank.add_argument("--independent", choices=["network", "case"], default="network", help=once)
    rank.add_argument("--seed", type=int, default=0, help="of the resamples")

    two = "what moved between two runs, and whether by more than their intervals"
    moved = command("diff", "heatproof.commands.diff:print_diff", two)
    moved.add_argument("before", metavar="BEFORE", help="results of a run, or its bundle")
    moved.add_argument("after", metavar="AFTER")
    moved.add_argument("--out", metavar="FILE", help="all scores beside each other: .csv, or a page as .html")

    maps = commands.add_parser("maps", help="look at cached attribution maps")
    map_commands = maps.add_subparsers(required=True, metavar="COMMAND")
    ls = command("ls", "heatproof.commands.list_stores:print_stores", "list the map stores", map_commands)
    ls.add_argument("folder", nargs="?", default="results/maps")
    show = command("show", "heatproof.commands.cli:show", "picture of an image beside its maps", map_commands)
    show.add_argument("store", help="a .zarr store, or a folder of stores, as `maps ls` prints them")
    show.add_argument("--image", default="0", help="number in the evaluation split, or image id")
    show.add_argument("--methods", type=_names, help="comma-separated; left out, all in the store")
    show.add_argument("--grid", type=_grid, metavar="N|ROWSxCOLUMNS", help="draw this patch grid, with patch sums")
    show.add_argument("--drops", action="store_true", help="show the cached logit drops of each patch beside the image")
    named = "the config of the run: needed where pictures are in a folder of yours, or the dataset is code of your own"
    show.add_argument("--config", help=named)
    show.add_argument("-o", "--output", default="maps.png")
    return parser


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _grid(text: str) -> Any:
    from heatproof.base.grids import parse_grid_name

    return parse_grid_name(text)


def _throughput(text: str) -> tuple[str, float] | str:
    from heatproof.estimate.estimate import GPUS

    model, _, rate = text.rpartition("=")
    if text in GPUS:
        return text
    try:
        return model, float(rate)
    except ValueError:
        raise HeatproofError(
            f"--as-if is {text}: give a model and its images a second, as resnet50=1200, or one of {', '.join(GPUS)}."
        ) from None


def accept(*paths: str) -> str:
    """Keep results from other code whose values are unchanged, and return a report."""
    from heatproof.commands.accept import report
    from heatproof.config.files import read_config
    from heatproof.files.lock import locked_folder
    from heatproof.plan.graph import Graph
    from heatproof.plan.paths import RESULTS
    from heatproof.plan.validate import make_plan

    plan = make_plan(read_config(*paths))
    with locked_folder(RESULTS):
        return report(Graph(plan), plan.runtime())


def rank(*paths: str, **options: Any) -> None:
    """Rank methods by tables, bundles and results folders."""
    from heatproof.commands.bundle import tables
    from heatproof.report.tables import ranking

    ranking.rank(tables(paths), **options)


def show(output: str, methods: list[str] | None, **options: Any) -> str:
    """Draw maps of an image, and return the path of the figure."""
    from heatproof.report.figures import map_figure

    map_figure.show(**options, methods=methods or None, output=output)
    return output


if __name__ == "__main__":
    sys.exit(main())

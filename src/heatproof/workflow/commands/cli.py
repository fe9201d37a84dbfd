"""The command line interface, `heatproof`."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pkgutil import resolve_name
from typing import Any

from heatproof.core.grids import parse_grid_name
from heatproof.core.options import parse_duration
from heatproof.errors import HeatproofError
from heatproof.store.publishing import escaped
from heatproof.workflow.job import run_and_report_errors

# Commands of earlier versions, and what does their work now.
REMOVED = {
    "accept": "run the jobs again that other code would make again",
    "bundle": "pack the results folder, for example with zip",
    "verify": "read the folder with `heatproof.open`, which compares files with their records",
    "diff": "read both tables with pandas, and compare their intervals",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status: 0, or 1 with one sentence on what is wrong."""

    def work() -> None:
        words = sys.argv[1:] if arguments is None else arguments
        if words and words[0] in REMOVED:
            raise HeatproofError(f"`heatproof {words[0]}` went in heatproof 0.3.0: {REMOVED[words[0]]}.")
        options = vars(_parser().parse_args(words))
        # Modules of a command are imported when it runs. A command prints, or returns text to print.
        output = resolve_name(options.pop("run"))(*options.pop("paths", ()), **options)
        if output is not None:
            print(escaped(output))

    return run_and_report_errors(work)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="heatproof", description="Prove your heatmaps.")
    parser.add_argument("--version", action="version", version=f"heatproof {version('heatproof')}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    config_help = "a YAML config, and others merged into it"
    configs = argparse.ArgumentParser(add_help=False)
    configs.add_argument("paths", nargs="+", metavar="config", help=config_help)
    any_configs = argparse.ArgumentParser(add_help=False)
    any_config_help = f"{config_help}; without any, the default: three networks on embedded digits, some 200 jobs"
    any_configs.add_argument("configs", nargs="*", metavar="config", help=any_config_help)
    last = argparse.ArgumentParser(add_help=False)
    last.add_argument(
        "configs", nargs="*", metavar="config", help=f"{config_help}; without any, that of the last run here"
    )

    def command(name: str, run: str, summary: str, under: Any = commands, **settings: Any) -> argparse.ArgumentParser:
        parser = under.add_parser(name, help=summary, **settings)
        parser.set_defaults(run=f"heatproof.workflow.{run}")
        return parser

    listing = command("list", "commands.list_names:print_names", "list the names that a config can use")
    kinds = ["configs", "datasets", "models", "explainers", "methods", "metrics"]
    listing.add_argument("what", nargs="?", choices=kinds, help="by default, these kinds are listed")
    whose_methods_help = "methods of this config instead of the default one"
    listing.add_argument("--config", dest="config_path", metavar="CONFIG", help=whose_methods_help)

    checking = command("check", "check:check_config", "check a config before work starts", parents=[configs])
    contents_help = "read every input file, not only those whose size or time changed"
    checking.add_argument("--contents", action="store_true", help=contents_help)

    init_summary = "write a config for a folder of photographs and a network"
    starting = command("init", "commands.init:init", init_summary)
    model_help = "timm:NAME, torchvision:NAME, transformers:FOLDER, package.module:function or one of heatproof's own"
    starting.add_argument(
        "photos", help="a folder with class folders, or with train and val or test, which have class folders"
    )
    starting.add_argument("--model", required=True, help=model_help)
    starting.add_argument("--out", default="mine.yaml", metavar="FILE", help="where the config is written")
    starting.add_argument(
        "--checkpoint",
        metavar="FILE",
        help="published weights; their head is kept if it fits, otherwise a new one is trained",
    )
    labels_help = "a table of labels, or `folders`; by default, what is found in the folder or next to it"
    starting.add_argument("--labels", metavar="FILE", help=labels_help)
    tasks = ["binary", "multiclass", "multilabel", "regression"]
    starting.add_argument("--task", choices=tasks, help="task of the labels; by default inferred from them")
    named_help = "a column of the table, such as label=diagnosis; several label columns have one class each"
    starting.add_argument("--column", dest="columns", action="append", default=[], metavar="WHAT=NAME", help=named_help)

    run_summary = "run the workflow in this folder; a config is a file, or the name of one that comes with heatproof"
    running = command("run", "commands.run:run", run_summary, parents=[any_configs])
    running.add_argument("--cores", metavar="N", help="number of cores; by default all")
    running.add_argument("--profile", metavar="PROFILE", help="profile of a cluster: slurm, or your own folder")
    running.add_argument(
        "--target", dest="targets", action="append", default=[], metavar="FILE", help="file to make, instead of all"
    )
    running.add_argument("--dry-run", "-n", dest="dry", action="store_true", help="print the jobs that would run")
    more_help = "further options of snakemake, as one argument: --more='--keep-going --jobs 3'"
    running.add_argument("--more", type=shlex.split, default=(), metavar="OPTIONS", help=more_help)
    command("status", "commands.run:status", "show how many jobs of a config are done", parents=[last])
    report_summary = "make the page from existing results, and print its path; trains nothing"
    page = command("report", "commands.run:report", report_summary, parents=[last])
    page.add_argument("--cores", metavar="N", help="number of cores; by default all")

    prune_summary = "list results that can be removed, with the cost of recomputing them"
    pruned = command("prune", "commands.prune:prune", prune_summary, parents=[configs])
    target_help = "target of the runs in this folder, instead of all"
    pruned.add_argument("--target", dest="targets", action="append", default=[], metavar="TARGET", help=target_help)
    pruned.add_argument("--delete", action="append", default=[], metavar="KIND", help="remove results of this kind")

    estimate_summary = "estimate the cost of a config, from a few images on this device"
    costs = command("estimate", "estimate.estimate:estimate", estimate_summary, parents=[configs])
    workers_help = "number of GPUs, or of parallel jobs on a CPU"
    costs.add_argument("--gpus", "--jobs", dest="workers", type=int, default=1, metavar="N", help=workers_help)
    costs.add_argument("--device", choices=["auto", "cpu", "cuda", "mps"], help="instead of the config's")
    costs.add_argument("--images", type=int, metavar="N", help="number of images that are timed")
    scores_help = "include results/scores.csv, which needs every response"
    costs.add_argument("--scores", dest="responses", action="store_true", help=scores_help)
    seconds_help = "time after which further networks are estimated from one pass"
    costs.add_argument("--seconds", dest="budget", metavar="SECONDS", type=float, default=300, help=seconds_help)
    budget_help = "instead of the config's; prints how many images fit"
    as_if_help = "for a device where MODEL has a throughput of N images per second"
    costs.add_argument("--as-if", type=_throughput, metavar="MODEL=N", help=as_if_help)
    costs.add_argument("--budget", dest="within", type=parse_duration, metavar="TIME", help=budget_help)

    rank_summary = "rank methods by scores in tables and results folders"
    rank = command("rank", "commands.rank:rank", rank_summary)
    tables_help = "CSV with method, score and any of dataset, model, …; or a results folder"
    rank.add_argument("paths", nargs="+", metavar="TABLE", help=tables_help)
    rank.add_argument("--out", metavar="FOLDER", help="write tables and a heat map of the consistency there")
    rank.add_argument(
        "--lower", type=_names, default="", metavar="METRIC,...", help="metrics for which lower is better"
    )
    rank.add_argument("--metrics", type=_names, default="", metavar="METRIC,...", help="metrics to use; by default all")
    rank.add_argument(
        "--methods", type=_names, default="", metavar="METHOD,...", help="methods to rank; by default all"
    )
    independent_help = "unit that counts once: a network, or each test case, as in the paper on Meta-Rank"
    rank.add_argument("--independent", choices=["network", "case"], default="network", help=independent_help)
    rank.add_argument("--seed", type=int, default=0, help="seed of the resamples")

    maps = commands.add_parser("maps", help="inspect stored attribution maps")
    map_commands = maps.add_subparsers(required=True, metavar="COMMAND")
    ls = command("ls", "commands.list_stores:print_stores", "list the map stores", map_commands)
    ls.add_argument("folder", nargs="?", default="results/maps")
    show = command("show", "commands.cli:show", "draw an image with its maps", map_commands)
    show.add_argument("store", help="a .zarr store, or a folder of stores, as `maps ls` prints them")
    show.add_argument("--image", default="0", help="position in the evaluation split, or image id")
    show.add_argument("--methods", type=_names, help="comma-separated; by default all in the store")
    show.add_argument("--grid", type=_grid, metavar="N|ROWSxCOLUMNS", help="draw this patch grid, with patch sums")
    show.add_argument("--drops", action="store_true", help="show the stored logit drop of each patch next to the image")
    named_help = "config of the run; needed if images are in your own folder, or the dataset is your own code"
    show.add_argument("--config", help=named_help)
    show.add_argument("-o", "--output", default="maps.png")
    return parser


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _grid(text: str) -> Any:
    return parse_grid_name(text)


def _throughput(text: str) -> tuple[str, float]:
    model, _, rate = text.rpartition("=")
    try:
        return model, float(rate)
    except ValueError:
        raise HeatproofError(
            f"--as-if is {text}: give a model and its images per second, such as resnet50=1200."
        ) from None


def show(output: str, methods: list[str] | None, **options: Any) -> str:
    """Draw maps of an image, and return the path of the figure."""
    from heatproof.workflow.commands import show_maps

    show_maps.show(**options, methods=methods or None, output=output)
    return output


if __name__ == "__main__":
    sys.exit(main())

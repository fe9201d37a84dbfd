"""The command line."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence

from heatproof.errors import HeatproofError
from heatproof.job import guarded

log = logging.getLogger(__name__)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status: 0, or 1 with one sentence on what is wrong."""
    parser = _parser()
    options = parser.parse_args(arguments)
    return guarded(lambda: options.run(options))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="heatproof", description="Prove your heatmaps.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    listing = commands.add_parser("list", help="what can be named in a config")
    listing.add_argument("what", choices=["datasets", "models", "explainers", "methods", "metrics"])
    listing.add_argument("--config", help="methods of this config instead of the default one")
    listing.set_defaults(run=_list)

    check = commands.add_parser("check", help="check a config before work starts")
    check.add_argument("configs", nargs="+", metavar="config", help="a YAML config, and others laid over it")
    check.set_defaults(run=_check)

    keep = commands.add_parser("accept", help="keep results of other code whose values today's code makes the same")
    keep.add_argument("configs", nargs="+", metavar="config", help="a YAML config, and others laid over it")
    keep.set_defaults(run=_accept)

    costs = commands.add_parser("estimate", help="what a config costs, from a few images on this device")
    costs.add_argument("configs", nargs="+", metavar="config", help="a YAML config, and others laid over it")
    costs.add_argument("--gpus", "--jobs", type=int, default=1, metavar="N", help="GPUs, or jobs at once on a CPU")
    costs.add_argument("--device", choices=["auto", "cpu", "cuda", "mps"], help="instead of the config's")
    costs.add_argument("--images", type=int, metavar="N", help="how many are timed")
    costs.add_argument("--scores", action="store_true", help="results/scores.csv as well, and so every response")
    costs.add_argument("--seconds", type=float, default=300, help="of timing, before networks are told by one pass")
    costs.add_argument("--as-if", metavar="MODEL=N", help="hours of a device where N images a second go through MODEL")
    costs.set_defaults(run=_estimate)

    rank = commands.add_parser("rank", help="rank the methods of anybody's tables of scores")
    rank.add_argument(
        "tables", nargs="+", metavar="TABLE.csv", help="columns method, score, and any of dataset, model, …"
    )
    rank.add_argument("--out", metavar="FOLDER", help="write tables and a heat map of the consistency there")
    rank.add_argument("--lower", default="", metavar="METRIC,...", help="metrics of which lower is better")
    rank.add_argument("--seed", type=int, default=0, help="of the resamples")
    rank.set_defaults(run=_rank)

    maps = commands.add_parser("maps", help="look at cached attribution maps")
    map_commands = maps.add_subparsers(required=True, metavar="COMMAND")
    ls = map_commands.add_parser("ls", help="list the map stores")
    ls.add_argument("folder", nargs="?", default="results/maps")
    ls.set_defaults(run=_maps_ls)
    show = map_commands.add_parser("show", help="picture of an image beside its maps")
    show.add_argument("store", help="a .zarr store, or a folder of stores, as `maps ls` prints them")
    show.add_argument("--image", default="0", help="number in the evaluation split, or image id")
    show.add_argument("--methods", help="comma-separated; left out, all in the store")
    show.add_argument("--grid", type=int, help="draw this patch grid, with patch sums")
    show.add_argument("--drops", action="store_true", help="show the cached logit drops of each patch beside the image")
    show.add_argument("--config", help="the config that names the dataset, where that is code of your own")
    show.add_argument("-o", "--output", default="maps.png")
    show.set_defaults(run=_maps_show)
    return parser


def _list(options: argparse.Namespace) -> None:
    from heatproof.report import listing

    listing.print_names(options.what, options.config)


def _check(options: argparse.Namespace) -> None:
    from heatproof.check import check_config

    print(check_config(*options.configs))


def _accept(options: argparse.Namespace) -> None:
    from heatproof.accept import report
    from heatproof.config import read_config
    from heatproof.plan.graph import Graph
    from heatproof.plan.whole import make_plan
    from heatproof.workflow import hold_folder

    held = hold_folder(".snakemake")
    plan = make_plan(read_config(*options.configs))
    print(report(Graph(plan), plan.machine()))
    held.close()


def _estimate(options: argparse.Namespace) -> None:
    from heatproof.estimate.estimate import estimate

    told = estimate(
        *options.configs,
        workers=options.gpus,
        device=options.device,
        images=options.images,
        responses=options.scores,
        budget=options.seconds,
        as_if=_throughput(options.as_if) if options.as_if else None,
        say=lambda line: log.info("timing %s", line),
    )
    print(told)


def _throughput(given: str) -> tuple[str, float]:
    model, _, rate = given.rpartition("=")
    try:
        return model, float(rate)
    except ValueError:
        raise HeatproofError(f"--as-if is {given}: give a model and its images a second, as resnet50=1200.") from None


def _rank(options: argparse.Namespace) -> None:
    from heatproof.report.ranking import rank

    lower = [name.strip() for name in options.lower.split(",") if name.strip()]
    rank(options.tables, out=options.out, lower=lower, seed=options.seed)


def _maps_ls(options: argparse.Namespace) -> None:
    from heatproof.report.listing import print_stores

    print_stores(options.folder)


def _maps_show(options: argparse.Namespace) -> None:
    from heatproof.report.show import show

    methods = options.methods.split(",") if options.methods else None
    show(
        options.store,
        options.image,
        methods,
        options.output,
        grid=options.grid,
        drops=options.drops,
        config=options.config,
    )
    print(options.output)


if __name__ == "__main__":
    sys.exit(main())

"""How often a run draws false conclusions, on networks that have learnt nothing.

python benchmarks/null_control.py RESULTS [--repetitions 200]

RESULTS is the folder of a run of config/null_control.yaml: its verdicts and claims are counted. Then random maps are
drawn many times and scored on the cached patch drops of those networks. Such methods are equivalent, so that every
difference between them in the intervals, the tests, the set of the best or Meta-Rank is false.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pandas as pd

from heatproof.core.randomness import numpy_generator
from heatproof.metrics.arrays import spearman_rows
from heatproof.metrics.bootstrap import summarise
from heatproof.stats.best import best_set
from heatproof.stats.meta_rank import meta_rank
from heatproof.stats.references import compare_with_references
from heatproof.stats.significance import pairwise_wilcoxon
from heatproof.store.zarr_store import read

METHODS = 8
NETWORK = ["dataset", "model", "weights"]


def cached_drops(results: Path, images: int) -> dict[tuple[str, ...], np.ndarray]:
    """Return the logit drops (N, P) of every network of a run."""
    drops_of_network = {}
    for store in sorted(results.glob("drops/*/*/*/g*.zarr")):
        logit = read(str(store), "logit", 0, images).astype(np.float64)
        drops_of_network[store.parts[-4:-1]] = logit[:, :1] - logit[:, 1:]
    return drops_of_network


def false_differences(drops: dict[tuple[str, ...], np.ndarray], repetitions: int, level: float) -> pd.DataFrame:
    """Return how often a difference between equivalent methods is found, with the nominal rate.

    Parameters
    ----------
    drops
        Logit drops (N, P) by network.
    repetitions
        Draws of `METHODS` random maps for each network.
    level
        Confidence level of the intervals, tests and sets.
    """
    names = [f"random_{number}" for number in range(METHODS)]
    counts: dict[str, list[float]] = {}

    def count(what: str, values: list[float] | np.ndarray) -> None:
        counts.setdefault(what, []).extend(np.asarray(values, dtype=float).ravel().tolist())

    kinds = [network[:2] for network in drops]
    for repetition in range(repetitions):
        means = np.empty((len(drops), METHODS))
        for row, (network, dropped) in enumerate(drops.items()):
            draws = numpy_generator(repetition, "null control", "/".join(network))
            maps = draws.standard_normal((METHODS, *dropped.shape))
            scores = np.stack([spearman_rows(map_values, dropped) for map_values in maps])
            summary = summarise(scores, repetition, repetitions=200, level=level)
            means[row] = summary["mean"]
            count("interval of a score leaves out 0", (summary["ci_low"] > 0) | (summary["ci_high"] < 0))
            count("set of the best leaves out a method", [not best_set(scores, level=level).members.all()])
            table = pd.DataFrame(scores, names)
            tests = pairwise_wilcoxon(table.T, level=1 - level)
            count("a pair of methods differs (Wilcoxon, Holm)", [bool(tests["significant"].any())])
            count(
                "a method is above the reference maps", [bool(compare_with_references(table, names[:2], level).methods)]
            )
        ranked = meta_rank(means, seed=repetition, repetitions=200, level=level, groups=kinds)
        count("interval of κ leaves out 0", (ranked.ci_low > 0) | (ranked.ci_high < 0))
    rows = [
        {"what": what, "rate": np.mean(values), "nominal": 1 - level, "trials": len(values)}
        for what, values in counts.items()
    ]
    return pd.DataFrame(rows)


def concluded(results: Path) -> pd.DataFrame:
    """Return the counts of the conclusions of the run itself."""
    verdict = pd.read_csv(results / "verdict.csv")
    claims = pd.read_csv(results / "claims.csv")
    rows = [("verdict: " + str(name), count, len(verdict)) for name, count in verdict["verdict"].value_counts().items()]
    rows += [("claim: " + str(name), count, len(claims)) for name, count in claims["verdict"].value_counts().items()]
    return pd.DataFrame(rows, columns=["what", "count", "of"])


def main() -> None:
    """Print both tables as markdown, and write them into the folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("--repetitions", type=int, default=200)
    parser.add_argument("--images", type=int, default=64)
    args = parser.parse_args()
    drops = cached_drops(args.results, args.images)
    tables = {
        "concluded": concluded(args.results),
        "false_differences": false_differences(drops, args.repetitions, 0.95),
    }
    for name, table in tables.items():
        (args.results / "null_control").mkdir(exist_ok=True)
        table.to_csv(args.results / "null_control" / f"{name}.csv", index=False)
        displayed = table.astype({column: str for column in table.columns if table[column].dtype == int})
        print("| " + " | ".join(displayed.columns) + " |\n|" + " --- |" * len(displayed.columns))
        for row in displayed.to_dict("records"):
            print("| " + " | ".join(f"{v:.3f}" if isinstance(v, float) else str(v) for v in row.values()) + " |")
        print()


if __name__ == "__main__":
    main()

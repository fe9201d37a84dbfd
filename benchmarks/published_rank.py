"""Published tables of scores, ranked by `heatproof rank` and by their mean scores.

    python benchmarks/published_rank.py imagenet_idsds.csv cifar100_idsds.csv --out docs/data/published_rank

One row per method: its mean score over networks with its place, and κ with its rank where networks count once, and
where test cases do.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pandas as pd

from heatproof.report.tables.ranking import rank_table
from heatproof.report.tables.score_import import read_scores
from heatproof.stats.ranks import rank_methods


def compared(path: Path) -> pd.DataFrame:
    """Return the methods of a table, best κ first."""
    scores = read_scores([path])
    mean = scores.groupby("method")["score"].mean()
    table = pd.DataFrame({"method": mean.index, "mean": mean.to_numpy(), "mean_rank": rank_methods(mean.to_numpy())})
    for independent, ending in (("network", ""), ("case", "_case")):
        ranked = rank_table(scores, independent=independent).meta_rank
        ranked = ranked[["method", "kappa", "ci_low", "ci_high", "rank"]]
        table = table.merge(ranked.rename(columns={name: f"{name}{ending}" for name in ranked if name != "method"}))
    table.insert(1, "networks", scores["model"].nunique())
    return table.sort_values(["rank", "method"], ignore_index=True)


def main() -> None:
    """Rank each table, and store the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--small", action="store_true", help="a table of random scores")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    if args.small:
        names = [f"method{number}" for number in range(5)]
        scores = pd.DataFrame(np.random.default_rng(0).random((7, 5)), columns=names)
        scores.insert(0, "model", [f"net{number}" for number in range(7)])
        args.tables = [args.out / "random_scores.csv"]
        scores.to_csv(args.tables[0], index=False)
    for path in args.tables:
        table = compared(path)
        table.to_csv(args.out / path.name, index=False, float_format="%.6g")
        together = table["mean_rank"].corr(table["rank"].astype(float), method="spearman")
        print(
            f"{path.stem}: {table['networks'].iloc[0]} networks, {len(table)} methods, ρ of both orders {together:.3f}"
        )


if __name__ == "__main__":
    main()

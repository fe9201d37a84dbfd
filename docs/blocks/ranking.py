"""Tables of docs/ranking.md and docs/simulations.md: published score tables, ranked, and simulations."""

import csv
from pathlib import Path

import numpy as np
import pandas as pd

from blocks import DATA, interval, number, rows
from heatproof.claims import published_numbers
from heatproof.report.tables.ranking import Ranking, rank_table

PUBLISHED = Path(published_numbers.__file__).parent / "published/reproduction_scores.csv"


def _ranked(dataset: str, output: str, methods: list[str] | None = None) -> tuple[Ranking, int]:
    table = pd.read_csv(PUBLISHED)
    table = table[(table["dataset"] == dataset) & (table["output"] == output)]
    table = table[table["method"].isin(methods)] if methods else table
    scores = table.assign(weights="published", metric="idsds", higher_is_better=True).drop(columns="output")
    return rank_table(scores.reset_index(drop=True)), scores["method"].nunique()


def published_rankings() -> str:
    """Return Meta-Rank and the agreement of networks, of each published table."""
    table = pd.read_csv(PUBLISHED)
    both = sorted(set(table.loc[table["output"] == "probability", "method"]))
    requested = [
        ("ImageNet", "imagenet", "logit", None),
        ("CIFAR-100", "cifar100", "logit", None),
        ("ImageNet, methods with both outputs, logits", "imagenet", "logit", both),
        ("ImageNet, the same methods, probabilities", "imagenet", "probability", both),
    ]
    cells = [
        [
            "table",
            "networks × methods",
            "first three, with κ",
            "mean ρ between two networks",
            "lowest ρ",
            "methods in the set of the best",
        ]
    ]
    for title, dataset, output, methods in requested:
        ranking, count = _ranked(dataset, output, methods)
        first = ranking.meta_rank.head(3).to_dict("records")
        pairs = ranking.tables["consistency"]["spearman"]
        cells.append(
            [
                title,
                f"{len(ranking.names)} × {count}",
                ", ".join(f"{row['method']} {interval(row['kappa'], row['ci_low'], row['ci_high'])}" for row in first),
                number(pairs.mean()),
                number(pairs.min()),
                str(int(ranking.meta_rank["in_best_set"].sum())),
            ]
        )
    return rows(cells)


def families_of_networks(dataset: str) -> str:
    """Return the mean ρ within and between families of networks."""
    pairs = _ranked(dataset, "logit")[0].tables["consistency"]
    kinds = np.array([["vgg" in pairs[side][row] for side in ("case", "other_case")] for row in range(len(pairs))])
    both = kinds.sum(axis=1)
    cells = [["networks", "mean ρ", "lowest", "highest"]]
    for name, chosen in (("two ResNets", both == 0), ("a ResNet and a VGG", both == 1), ("two VGGs", both == 2)):
        part = pairs.loc[chosen, "spearman"]
        cells.append([name, number(part.mean()), number(part.min()), number(part.max())])
    return rows(cells)


def outputs_agree() -> str:
    """Return ρ of the rankings of one network by drops of the logit and of the probability."""
    table = pd.read_csv(PUBLISHED)
    table = table[table["dataset"] == "imagenet"]
    wide = table.pivot(index=["model", "method"], columns="output", values="score").dropna()
    networks = wide.groupby(level="model")
    rho = [part["logit"].corr(part["probability"], method="spearman") for _, part in networks]
    return f"ρ between the two rankings of one network: mean {number(np.mean(rho))}, lowest {number(min(rho))}."


# Columns of the tables of benchmarks/coverage.py that the page has, by place, with their heads.
COVERAGE = {
    "intervals": {
        0: "networks",
        1: "correlation",
        2: "coverage of κ, simple",
        3: "width of κ, simple",
        4: "coverage of κ, heatproof",
        5: "coverage of the mean κ, heatproof",
        6: "width of κ, heatproof",
        7: "coverage of the mean score, simple",
        9: "coverage of the mean score, heatproof",
    },
    "shapes": {
        0: "methods, spread",
        1: "networks",
        2: "coverage of κ",
        3: "coverage of the mean κ",
        4: "width of κ",
    },
    "drawn": {0: "what the bootstrap resamples", 1: "coverage of κ"},
    "skewed": {0: "skewness of the scores", 1: "images", 2: "coverage of the mean score"},
    "far_apart": {
        0: "noise",
        1: "networks",
        2: "correlation of test cases",
        3: "coverage of κ",
        4: "coverage of κ, worst method",
        5: "coverage of the mean κ",
    },
}
# Heads of the tables of benchmarks/best_set.py; the columns with shares are shown in percent.
BEST_SET = {
    "methods": "methods",
    "images": "images",
    "d": "d",
    "noise": "noise",
    "nothing left out": "runs that exclude no method",
    "median set": "median size of the set",
    "found": "found",
    "named": "number named",
    "named where not found": "number named if not found",
    "median number": "median of the number",
    "number at the true effect": "number for the true d",
    "found then": "found with the named number",
    "runs": "runs",
}
SHARES = {"nothing left out", "found", "named", "named where not found", "found then"}


def coverage(name: str) -> str:
    """Return a table of benchmarks/coverage.py."""
    with open(DATA / "coverage" / f"{name}.csv", encoding="utf-8", newline="") as file:
        cells = list(csv.reader(file))[1:]
    return rows([list(COVERAGE[name].values()), *([row[column] for column in COVERAGE[name]] for row in cells)])


def best_level() -> str:
    """Return how often the set of the best leaves out an equally best method: the noise for which it does most."""
    table = pd.read_csv(DATA / "best_set" / "level.csv")
    columns = sorted(table["methods"].unique())
    cells = [["cases", *(f"{count} methods" for count in columns), "runs per cell"]]
    # As in the benchmark: images first, then networks, few before many.
    for cases, part in sorted(
        table.groupby("cases", sort=False), key=lambda group: ("network" in group[0], "and" in group[0])
    ):
        row = [str(cases).replace(" and images", ", images resampled too")]
        for count in columns:
            of_count = part[part["methods"] == count]
            worst = of_count.sort_values("left out").iloc[-1]
            abstains = bool((of_count["abstains"] == 1).all())
            row.append("abstains" if abstains else f"{worst['left out']:.3f} ({worst['noise']})")
        few, most = part["runs"].min(), part["runs"].max()
        cells.append([*row, f"{few:,}" if few == most else f"{few:,} or {most:,}"])
    return rows(cells)


def best_set(name: str) -> str:
    """Return another table of benchmarks/best_set.py."""
    table = pd.read_csv(DATA / "best_set" / f"{name}.csv")
    texts = {}
    for column, values in table.items():
        if column in SHARES:
            texts[column] = ["" if pd.isna(value) else f"{100 * value:.1f} %" for value in values]
        else:
            plain = (f"{value:g}" if isinstance(value, float) else str(value) for value in values)
            texts[column] = ["" if text == "nan" else text for text in plain]
    return rows([[BEST_SET[column] for column in texts], *(list(row) for row in zip(*texts.values(), strict=True))])


def published_order() -> str:
    """Return how far κ orders the methods of published tables otherwise than their mean scores do."""
    largest = 0.0
    head = ["table", "networks × methods", "ρ of the two rankings", "methods whose rank differs"]
    head += ["largest difference of rank", "first three by mean score", "first three by κ"]
    cells = [head]
    for path in sorted((DATA / "published_rank").glob("*.csv")):
        table = pd.read_csv(path)
        moved = (table["mean_rank"] - table["rank"]).abs()
        most = table.loc[moved.idxmax()]
        alike = table["mean_rank"].corr(table["rank"], method="spearman")
        by_mean = table.sort_values("mean_rank", kind="stable")["method"].head(3)
        columns = ["kappa", "ci_low", "ci_high"]
        apart = (table[columns] - table[[f"{column}_case" for column in columns]].to_numpy()).abs()
        largest = max(largest, apart.max(axis=None))
        cells.append(
            [
                f"`{path.stem}`",
                f"{table['networks'].iloc[0]} × {len(table)}",
                number(alike, 3),
                f"{(moved > 0).sum()}",
                f"{most['method']}: {most['mean_rank']:.0f} by mean, {most['rank']:.0f} by κ"
                if moved.any()
                else "none",
                ", ".join(by_mean),
                ", ".join(table["method"].head(3)),
            ]
        )
    amount = f"change by at most {largest:.2g}" if largest else "do not change"
    change = f"Under `--independent case`, κ and the ends of its intervals {amount}."
    return f"{rows(cells)}\n\n{change}"


def published_places(name: str, count: str) -> str:
    """Return the first methods of a published table by κ, with their place by mean score."""
    table = pd.read_csv(DATA / "published_rank" / f"{name}.csv").head(int(count))
    cells = [["method", "rank by κ", "κ (interval)", "mean score", "rank by mean score"]]
    for row in table.to_dict("records"):
        kappa = interval(row["kappa"], row["ci_low"], row["ci_high"])
        cells.append([row["method"], f"{row['rank']}", kappa, number(row["mean"], 3), f"{row['mean_rank']:.0f}"])
    return rows(cells)


TABLES = (
    best_level,
    best_set,
    published_order,
    published_places,
    published_rankings,
    families_of_networks,
    outputs_agree,
    coverage,
)
BLOCKS = {function.__name__: function for function in TABLES}

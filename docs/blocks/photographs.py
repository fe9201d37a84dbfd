"""Tables of docs/photographs.md."""

import re

import pandas as pd

from blocks import DATA, interval, number, rows

FILES = {
    "photographs": [
        "accuracy.csv",
        "idsds_table.csv",
        "published.csv",
        "published_methods.csv",
        "verdict.csv",
        "checks/summary.csv",
    ]
}
# Verdicts of these runs, which are older than the rule that `occlusion` cannot win one.
ABOVE = re.compile(r"occlusion is the best of (\d+) methods; (\d+) are above all reference maps")
# Settings of stored comparisons that are no names of metrics, and their words on the page.
WORDS = {
    "in-domain": "finetuned, once with each baseline",
    "pretrained": "pretrained",
    "single deletion": "SDS before, IDSDS after",
}
# Methods named in a table of those that differ.
MOST = 5


def _read(name: str, table: str) -> pd.DataFrame:
    return pd.read_csv(DATA / "photographs" / name / f"{table}.csv")


def accuracies(name: str) -> str:
    """Return the accuracy of each network, intact and without its worst patch."""
    table = _read(name, "accuracy")
    cells = [["network", "weights", "baseline", "top-1 intact", "top-1, worst patch deleted"]]
    for row in table.to_dict("records"):
        shares = [number(100 * row[key], 1) + " %" for key in ("top1_clean", "top1_worst_patch")]
        grid = f", {row['grid']}×{row['grid']} patches" if table["grid"].nunique() > 1 else ""
        cells.append([row["model"], row["weights"], row["baseline"] + grid, *shares])
    return rows(cells)


def orders(name: str, count: str = "") -> str:
    """Return the scores of all or the first methods before and after finetuning, a column for a network and weights."""
    table = _read(name, "idsds_table")
    table = table[table["metric"].isin(["idsds", "sds"])]
    wide = table.pivot(index="method", columns=["model", "metric"], values="score")
    ranks = wide.rank(ascending=False, method="min")
    last = [column for column in wide.columns if column[1].startswith("idsds")] or list(wide.columns)
    order = wide[last].mean(axis=1).sort_values(ascending=False, kind="stable").index
    order = order[: int(count)] if count else order
    cells = [["method", *(f"{model}, {metric.upper()} (rank)" for model, metric in wide.columns)]]
    for method in order:
        scores = [(wide.loc[method, metric], ranks.loc[method, metric]) for metric in wide.columns]
        formatted = ["–" if pd.isna(score) else f"{number(score)} ({rank:.0f})" for score, rank in scores]
        cells.append([f"`{method}`", *formatted])
    return rows(cells)


def before_after(name: str, factor: str) -> str:
    """Return the agreement of rankings under two baselines, or before and after finetuning (factor ``weights``)."""
    table = _read(name, "summary")
    table = table[table["factor"] == factor]
    networks = list(dict.fromkeys(table["model"]))
    cells = [["weights" if factor == "baseline" else "metric"]]
    for model in networks:
        cells[0] += [f"ρ, {model} (interval)", f"methods whose rank changes by more than 3, {model}"]
    for setting, part in table.groupby("setting", sort=False):
        row = [WORDS.get(setting, f"`{setting}`")]
        for row_of_network in part.set_index("model").loc[networks].to_dict("records"):
            row.append(interval(*(row_of_network[key] for key in ("spearman", "spearman_low", "spearman_high"))))
            row.append(f"{row_of_network['n_moved']} of {row_of_network['n_methods']}")
        cells.append(row)
    return rows(cells)


def beside_published(name: str, *metrics: str) -> str:
    """Return the agreement with the published orders by these metrics, as Spearman's ρ."""
    cells = [["network", "metric", "published rankings on", "methods in both"]]
    cells[0] += ["ρ with published", "ρ between two published"]
    table = _read(name, "published")
    for row in table[table["metric"].isin(metrics)].to_dict("records"):
        cells.append(
            [
                f"{row['model']} {row['weights']}",
                f"`{row['metric']}`",
                f"{row['published']}, {row['networks']} networks",
                str(row["methods"]),
                interval(row["spearman"], row["spearman_low"], row["spearman_high"]),
                number(row["spearman_among"]),
            ]
        )
    return rows(cells)


def differing(name: str) -> str:
    """Return the methods whose rank differs most from the published one, over the networks of the run."""
    table = _read(name, "published_methods")
    table = table[table["metric"].isin(["idsds", "sds"])]
    score = "idsds" if (table["metric"] == "idsds").any() else "sds"
    table = table[table["metric"] == score]
    cells = [["published rankings on", "method", "mean rank in this run", "mean published rank", "methods in both"]]
    for dataset, part in table.groupby("published", sort=False):
        means = part.groupby("method", sort=False)[["rank", "published_rank", "difference"]].mean()
        largest = means["difference"].abs().sort_values(ascending=False, kind="stable").index[:MOST]
        for method in largest:
            mean_ranks = [number(means.loc[method, key], 1) for key in ("rank", "published_rank")]
            cells.append([str(dataset), f"`{method}`", *mean_ranks, str(len(means))])
    return rows(cells)


def sentences(name: str) -> str:
    """Return how many methods of each network are above all reference maps, from the verdicts of the run."""
    cells = [["network", "weights", "metric", "methods significantly above all reference maps"]]
    for row in _read(name, "verdict").to_dict("records"):
        above = ABOVE.sub(r"\2 of \1", row["sentence"]).removesuffix(".")
        cells.append([row["model"], row["weights"], f"`{row['metric']}`", above])
    return rows(cells)


TABLES = (accuracies, orders, before_after, beside_published, differing, sentences)
BLOCKS = {function.__name__: function for function in TABLES}

"""Tables of soundness and completeness in docs/soundness_check.md: at levels, and on synthetic data."""

import pandas as pd

from blocks import DATA, number, rows

FILES = {"levels": ["ranking/consistency.csv", "scores.csv"]}
DIRECTIONS = {"up": "rises", "down": "falls", "same": "stays"}


def level_ranks(name: str) -> str:
    """Return the mean rank of each method over networks, by level."""
    table = pd.read_csv(DATA / "levels" / name / "scores.csv")
    metrics = [metric for metric in table["metric"].unique() if metric.startswith(("soundness", "completeness"))]
    wide = table.pivot_table(index="method", columns="metric", values="rank")[metrics]
    at = {"soundness": "soundness at accuracy", "completeness": "completeness at threshold"}
    heads = [f"{at[metric]} {level} %" for metric, level in (metric.split("_") for metric in metrics)]
    cells = [["mean rank over networks", *heads]]
    for method, row in wide.sort_values(metrics[0]).iterrows():
        cells.append([f"`{method}`", *(f"{value:g}" for value in row)])
    return rows(cells)


def level_agreement(name: str) -> str:
    """Return Spearman's correlation of the rankings of two levels on one network: mean, lowest, highest."""
    table = pd.read_csv(DATA / "levels" / name / "consistency.csv")
    sides = [table[column].str.extract(r"(?P<model>.*) · (?P<metric>[a-z]+)_") for column in ("case", "other_case")]
    both = sides[0].join(sides[1], rsuffix="_other").assign(spearman=table["spearman"])
    both = both[both["model"] == both["model_other"]].dropna()
    both["pair"] = [" · ".join(sorted(pair)) for pair in zip(both["metric"], both["metric_other"], strict=True)]
    cells = [["compared levels on one network", "pairs", "mean ρ", "lowest ρ", "highest ρ"]]
    for pair, part in both[~both["pair"].str.contains("sds")].groupby("pair"):
        first, second = pair.split(" · ")
        named = f"two levels of {first}" if first == second else f"a level of {first} and one of {second}"
        texts = [number(getattr(part["spearman"], what)()) for what in ("mean", "min", "max")]
        cells.append([named, str(len(part)), *texts])
    return rows(cells)


def directions() -> str:
    """Return a row for each statement of the paper: the scores of changed maps, their directions, and agreement."""
    table = pd.read_csv(DATA / "synthetic/directions.csv")
    schemes = list(table["scheme"].unique())
    cells = [["statement of the paper", "score of the correct map", *(f"`{scheme}`" for scheme in schemes)]]
    for statement, part in table.groupby("paper", sort=False):
        by_scheme = part.set_index("scheme")
        texts = [
            f"{number(row['measured'], 3)}, {DIRECTIONS[row['direction']]}: "
            f"{'agrees' if row['same'] == 'yes' else 'disagrees'}"
            for row in (by_scheme.loc[scheme] for scheme in schemes)
        ]
        cells.append([_reword(str(statement)), number(part["right_map"].iloc[0], 3), *texts])
    return rows(cells)


def _reword(statement: str) -> str:
    """Return a statement of the stored table in the words of the page."""
    remove = "Remove keeps soundness at 1, the value of the correct map"
    return statement.replace("Remove stays at 1, where the right map is", remove).replace("right map", "correct map")


def curve_deviations() -> str:
    """Return the largest standard deviation over trials of the means of soundness and completeness."""
    table = pd.read_csv(DATA / "synthetic/means.csv")
    largest = table.groupby("metric")["deviation"].max()
    return (
        f"The standard deviation of a score over the {table['trials'].max()} trials is at most "
        f"{number(largest['soundness'], 3)} for soundness and {number(largest['completeness'], 3)} for completeness."
    )


BLOCKS = {function.__name__: function for function in (level_ranks, level_agreement, directions, curve_deviations)}

"""Tables of docs/protocol.md."""

import re

import pandas as pd

from blocks import DATA, interval, number, rows

FILES = {
    "protocol": ["checks/summary.csv", "checks/captions.csv"],
    "in_domain": ["in_domain.csv"],
    "probe": ["probe.csv"],
}


def conventions(name: str) -> str:
    """Return a row for every factor and setting: means over models and pairs of levels."""
    summary = pd.read_csv(DATA / "protocol" / name / "summary.csv")
    head = [
        "convention",
        "weights or score",
        "mean ρ of two levels",
        "lowest ρ of two levels (95 % interval)",
        "levels and network with the lowest ρ",
        "mean ρ between halves, same level",
        "mean ρ between halves, different levels",
    ]
    cells = [[*head, "ranks that change by more than 3 places", "pairs of levels with the same best method"]]
    for (factor, setting), part in summary.groupby(["factor", "setting"], sort=False):
        low = part.loc[part["spearman"].idxmin()]
        least = interval(low["spearman"], low["spearman_low"], low["spearman_high"])
        cells.append(
            [
                factor,
                setting,
                number(part["spearman"].mean()),
                least,
                f"{low['level']} and {low['other_level']}, {low['model']}",
                number(part["halves_same"].mean()),
                number(part["halves_other"].mean()),
                f"{part['n_moved'].sum()} of {part['n_methods'].sum()}",
                f"{int((part['first'] == part['other_first']).sum())} of {len(part)}",
            ]
        )
    return rows(cells)


# The sentences of stored captions that the page shows, and what `heatproof.report.tables.protocol` writes today.
REWORDED = {
    r"The order hardly depends on it: other images would change it as much\.": (
        "The ranking hardly depends on this convention: other images would change the ranking as much."
    ),
    r"The order depends on it, beyond the choice of images\.": (
        "The ranking depends on this convention more than on the choice of images."
    ),
    r"Farthest moves (\w+), which (\w+) from (\d+) to (\d+) at (.*?), by (\S+ to \S+) under resampled images\.": (
        r"\1 moves farthest: it \2 from rank \3 at the reference level to rank \4 at \5; the interval of this "
        r"change is \6."
    ),
}


def captions(name: str) -> str:
    """Return the conclusion of each convention, and the method that moves farthest, in the words of today.

    The numbers of the other sentences are in the table of conventions.
    """
    table = pd.read_csv(DATA / "protocol" / name / "captions.csv")
    lines = []
    for row in table.to_dict("records"):
        text = row["conclusion"]
        for old, new in REWORDED.items():
            text = re.sub(old, new, text)
        conclusion, *others = text.split(". ")
        farthest = next(sentence for sentence in others if " moves farthest: " in sentence)
        lines.append(f"- **{row['factor']}**: {conclusion}. {farthest}.")
    return "\n".join(lines)


def statistic_with_interval(row: pd.Series, statistic: str) -> str:
    """Return a statistic of the probe with its interval."""
    return interval(row[statistic], row[f"{statistic}_low"], row[f"{statistic}_high"])


def _before_after(name: str) -> list[tuple[str, pd.DataFrame, pd.DataFrame]]:
    """Return each model, and what the probe tells of its layers before and after finetuning."""
    table = pd.read_csv(DATA / "in_domain" / name / "in_domain.csv")
    return [
        (model, *(part[part["weights"] == weights].set_index("layer") for weights in ("pretrained", "finetuned")))
        for model, part in table[table["paired"].notna()].groupby("model", sort=False)
    ]


def probes(name: str) -> str:
    """Return what the probe tells before and after finetuning of the first layer, that of the highest AUC, the last."""
    head = [f"{what} {when} finetuning" for what in ("paired share", "AUC") for when in ("before", "after")]
    cells = [["network", "layer", *head]]
    for model, before, after in _before_after(name):
        named = {"first": before.index[0], "highest AUC": before["auc"].idxmax(), "last": before.index[-1]}
        for what, layer in named.items():
            intervals = [
                statistic_with_interval(layers.loc[layer], statistic)
                for statistic in ("paired", "auc")
                for layers in (before, after)
            ]
            cells.append([model, f"{what}: `{layer}`", *intervals])
    return rows(cells)


def probe_change(name: str) -> str:
    """Return how many layers show the deletion, and how far finetuning moves the last of them."""
    models = _before_after(name)
    detected = pd.concat([layers["paired_low"] > 0.5 for _, *both in models for layers in both])
    last = pd.DataFrame([after.iloc[-1][["paired", "auc"]] - before.iloc[-1] for _, before, after in models])
    columns = (last[statistic] for statistic in ("paired", "auc"))
    paired, area = (f"{number(values.min())} to {number(values.max())}" for values in columns)
    return (
        f"Before and after finetuning, {int(detected.sum())} of {len(detected)} layers show the deletion: the interval "
        "of their paired share lies above one half. Finetuning changes the paired share of the last layer by "
        f"{paired}, and its AUC by {area}."
    )


def answers(name: str) -> str:
    """Return accuracy, confidence and calibration of intact images and of images with a deleted patch."""
    table = pd.read_csv(DATA / "in_domain" / name / "in_domain.csv")
    quantities = ("accuracy", "confidence", "ece")
    versions = ("intact", "deleted")
    cells = [["network", "weights", *(f"{what}, {version}" for what in quantities for version in versions)]]
    for row in table[table["layer"] == "output"].to_dict("records"):
        values = [number(row[f"{what}_{version}"], 3) for what in quantities for version in versions]
        cells.append([row["model"], row["weights"], *values])
    return rows(cells)


BLOCKS = {function.__name__: function for function in (conventions, captions, probes, probe_change, answers)}

"""Tables of docs/protocol.md."""

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
    head = ["convention", "setting", "mean ρ", "lowest ρ (interval)", "ρ of halves, same · other level"]
    cells = [[*head, "moved by more than 3 ranks", "same first method"]]
    for (factor, setting), part in summary.groupby(["factor", "setting"], sort=False):
        low = part.loc[part["spearman"].idxmin()]
        least = interval(low["spearman"], low["spearman_low"], low["spearman_high"])
        cells.append(
            [
                factor,
                setting,
                number(part["spearman"].mean()),
                f"{least}: {low['level']}, {low['other_level']}, {low['model']}",
                f"{number(part['halves_same'].mean())} · {number(part['halves_other'].mean())}",
                f"{part['n_moved'].sum()} of {part['n_methods'].sum()}",
                f"{int((part['first'] == part['other_first']).sum())} of {len(part)}",
            ]
        )
    return rows(cells)


def captions(name: str) -> str:
    """Return what the run itself concluded of each convention."""
    table = pd.read_csv(DATA / "protocol" / name / "captions.csv")
    return "\n".join(f"- **{row['factor']}**: {row['conclusion']}" for row in table.to_dict("records"))


def told(row: pd.Series, statistic: str) -> str:
    """Return a statistic of the probe with its interval."""
    return interval(row[statistic], row[f"{statistic}_low"], row[f"{statistic}_high"])


def _before_after(name: str) -> list[tuple[str, pd.DataFrame, pd.DataFrame]]:
    """Return each model, and what the probe tells of its layers before and after finetuning."""
    table = pd.read_csv(DATA / "in_domain" / name / "in_domain.csv")
    return [
        (model, *(part[part["weights"] == one].set_index("layer") for one in ("pretrained", "finetuned")))
        for model, part in table[table["paired"].notna()].groupby("model", sort=False)
    ]


def probes(name: str) -> str:
    """Return what the probe tells before and after finetuning of the first layer, that of the highest AUC, the last."""
    head = [f"{what}, {when}" for what in ("paired share", "AUC") for when in ("before", "after")]
    cells = [["network", "layer", *head]]
    for model, before, after in _before_after(name):
        named = {"first": before.index[0], "highest": before["auc"].idxmax(), "last": before.index[-1]}
        for what, layer in named.items():
            found = [told(one.loc[layer], statistic) for statistic in ("paired", "auc") for one in (before, after)]
            cells.append([model, f"{what}: `{layer}`", *found])
    return rows(cells)


def probe_change(name: str) -> str:
    """Return how many layers show the deletion, and how far finetuning moves the last of them."""
    every = _before_after(name)
    shown = pd.concat([one["paired_low"] > 0.5 for _, *both in every for one in both])
    last = pd.DataFrame([after.iloc[-1][["paired", "auc"]] - before.iloc[-1] for _, before, after in every])
    paired, area = (f"{number(last[one].min())} to {number(last[one].max())}" for one in ("paired", "auc"))
    return (
        f"Before and after finetuning, {int(shown.sum())} of {len(shown)} layers show the deletion: the interval of "
        "their paired share lies above one half. Finetuning changes the paired share of the last layer by "
        f"{paired}, and its AUC by {area}."
    )


def answers(name: str) -> str:
    """Return accuracy, confidence and calibration of intact images and of images with a deleted patch."""
    table = pd.read_csv(DATA / "in_domain" / name / "in_domain.csv")
    shown = ("accuracy", "confidence", "ece")
    cells = [["network", "weights", *(f"{what}, intact · deleted" for what in shown)]]
    for row in table[table["layer"] == "output"].to_dict("records"):
        told = [f"{number(row[f'{what}_intact'], 3)} · {number(row[f'{what}_deleted'], 3)}" for what in shown]
        cells.append([row["model"], row["weights"], *told])
    return rows(cells)


BLOCKS = {function.__name__: function for function in (conventions, captions, probes, probe_change, answers)}

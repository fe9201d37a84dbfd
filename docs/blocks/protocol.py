"""Tables of docs/protocol.md."""

import pandas as pd

from blocks import DATA, interval, number, rows

FILES = {"protocol": ["checks/summary.csv", "checks/captions.csv"], "in_domain": ["in_domain.csv"]}


def conventions(name: str) -> str:
    """Return a row for every factor and setting: means over models and pairs of levels."""
    summary = pd.read_csv(DATA / "protocol" / name / "summary.csv")
    head = ["convention", "setting", "ρ, mean", "lowest (interval)", "ρ of halves, same · other"]
    cells = [[*head, "moved by more than 3", "first kept"]]
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


def _told(row: pd.Series) -> str:
    return interval(row["auc"], row["ci_low"], row["ci_high"])


def probes(name: str) -> str:
    """Return the AUC of the probe before and after finetuning, by layer: the first, the highest, and the last."""
    table = pd.read_csv(DATA / "in_domain" / name / "in_domain.csv")
    cells = [["network", "layer", "before", "after"]]
    for model, part in table[table["auc"].notna()].groupby("model", sort=False):
        before, after = (part[part["weights"] == one].set_index("layer") for one in ("pretrained", "finetuned"))
        named = {"first": before.index[0], "highest": before["auc"].idxmax(), "last": before.index[-1]}
        for what, layer in named.items():
            cells.append([model, f"{what}: `{layer}`", _told(before.loc[layer]), _told(after.loc[layer])])
    return rows(cells)


def answers(name: str) -> str:
    """Return accuracy, confidence and calibration of intact images and of images with a deleted patch."""
    table = pd.read_csv(DATA / "in_domain" / name / "in_domain.csv")
    shown = ("accuracy", "confidence", "ece")
    cells = [["network", "weights", *(f"{what}, intact · deleted" for what in shown)]]
    for row in table[table["layer"] == "output"].to_dict("records"):
        told = [f"{number(row[f'{what}_intact'], 3)} · {number(row[f'{what}_deleted'], 3)}" for what in shown]
        cells.append([row["model"], row["weights"], *told])
    return rows(cells)


BLOCKS = {function.__name__: function for function in (conventions, captions, probes, answers)}

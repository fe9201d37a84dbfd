"""Tables of docs/self_taught.md."""

import pandas as pd
from scipy.stats import kendalltau

from blocks import DATA, interval, number, rows
from blocks.protocol import statistic_with_interval

FILES = {
    "self_taught": [
        "accuracy.csv",
        "idsds_table.csv",
        "in_domain.csv",
        "checks/summary.csv",
        "similarity/similarity.csv",
    ]
}
WEIGHTS = ("finetuned", "taught")


def _read(name: str, table: str) -> pd.DataFrame:
    return pd.read_csv(DATA / "self_taught" / name / f"{table}.csv")


def taught(name: str) -> str:
    """Return accuracy, probe and changes of each network after finetuning with labels and without."""
    accuracy, probes, drift = (_read(name, table) for table in ("accuracy", "in_domain", "similarity"))
    drift = drift[drift["pair"] == "finetuning"]
    head = [
        "network",
        "weights",
        "top-1, intact images",
        "top-1, worst patch deleted",
        "probe: paired share",
        "probe: AUC",
    ]
    cells = [[*head, "change of the softmax", "ρ of maps before and after finetuning"]]
    for model in accuracy["model"].unique():
        for weights in ("pretrained", *WEIGHTS):
            of = accuracy[(accuracy["model"] == model) & (accuracy["weights"] == weights)].iloc[0]
            probed = probes[(probes["model"] == model) & (probes["weights"] == weights)].set_index("layer")
            moved = drift[(drift["model"] == model) & (drift["other_weights"] == weights)]
            softmax = moved[moved["quantity"] == "softmax"]
            ranks = moved.loc[moved["quantity"] == "map_ranks", "value"]
            cells.append(
                [
                    model,
                    weights,
                    *(f"{number(100 * of[key], 1)} %" for key in ("top1_clean", "top1_worst_patch")),
                    *(statistic_with_interval(probed.loc["penultimate"], statistic) for statistic in ("paired", "auc")),
                    interval(*softmax[["value", "ci_low", "ci_high"]].iloc[0], 3) if len(softmax) else "–",
                    number(ranks.mean()) if len(ranks) else "–",
                ]
            )
    return rows(cells)


def taught_orders(name: str) -> str:
    """Return the agreement of the rankings of methods after finetuning with labels and without."""
    table = _read(name, "idsds_table")
    wide = table[table["metric"] == "idsds"].pivot(index="method", columns=["model", "weights"], values="score")
    before = _read(name, "summary")
    before = before[(before["factor"] == "weights") & (before["setting"] == "single deletion")]
    between = "between the rankings with labels and with own outputs"
    before_finetuning = "with the ranking before finetuning"
    cells = [
        [
            *("network", "methods", f"ρ {between}", f"τ {between}"),
            *(f"ρ {before_finetuning}: {option}" for option in ("labels", "own outputs")),
        ]
    ]
    for model in wide.columns.get_level_values(0).unique():
        both = wide[model][list(WEIGHTS)].dropna()
        first, other = (both[weights] for weights in WEIGHTS)
        agreement = [before[(before["model"] == model) & (before["other_level"] == weights)] for weights in WEIGHTS]
        cells.append(
            [
                model,
                str(len(both)),
                number(first.corr(other, method="spearman")),
                number(kendalltau(first, other).statistic),
                *(
                    interval(*of[["spearman", "spearman_low", "spearman_high"]].iloc[0]) if len(of) else "–"
                    for of in agreement
                ),
            ]
        )
    return rows(cells)


BLOCKS = {function.__name__: function for function in (taught, taught_orders)}

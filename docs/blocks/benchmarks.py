"""Tables of benchmarks/README.md, docs/scaling.md, docs/devices.md, docs/models.md and docs/metric_quality.md."""

import pandas as pd

from blocks import DATA, number, rows

FILES = {
    "choice": ["choice.csv"],
    "road": ["road.csv"],
    "metrics": ["metrics.csv"],
    "cache": ["cache.csv"],
    "malloc": ["malloc.csv"],
    "random_numbers": ["random_numbers.csv"],
    "reference": ["reference.csv"],
    "precision": ["precision_speed.csv", "precision_change.csv", "precision_scores.csv"],
    "meta_rank": ["meta_rank_scaling.png", "meta_rank.csv"],
    "scale": ["scaling.png", "scale_scoring.csv", "scale_planning.csv"],
    "scale_runs": ["scaling_runs.png", "scale_runs.csv"],
    "slurm_overhead": ["slurm_overhead.csv"],
    "scheduler": ["scheduler.csv"],
    "full_size": ["full_size.csv"],
    "peers": ["peers.csv"],
    "same_task": ["same_task.csv"],
    "device": ["device.csv"],
    "main_command": ["main_command.csv"],
    "pic": ["pic.csv"],
    "no_batch_norm": ["no_batch_norm.csv"],
    "metric_quality": [
        *("metric_quality.png", "critical_difference.png", "metric_quality.csv"),
        *("modified_curves.png", "modified_curves.csv"),
    ],
}
STUDIES = {
    ("offset", "share_of_spread"): "change by an offset, as a share of the range of scores",
    ("noise", "share_of_spread"): "change by noise, as a share of the range of scores",
    ("reliability", "alpha"): "α over images",
    ("baseline", "consistency"): "ρ between baselines",
    ("distance", "minimal"): "smallest distance between curves",
    ("reliability", "n_undefined"): "undefined images",
}


# Columns of docs/data/device, and their heads on the page.
DEVICE = {
    "network": "network",
    "stage": "stage",
    "for": "weights and method",
    "passes": "passes",
    "padding and check": "of these, for padding and checks",
    "seconds": "time (s)",
    "floor s": "floor (s)",
    "over the floor": "time ÷ floor",
    "start-up": "start-up (s)",
    "GiB": "memory (GiB)",
}


def metric_quality() -> str:
    """Return a row for each metric, means over the settings of a study."""
    table = pd.read_csv(DATA / "metric_quality/metric_quality.csv")
    means = table.groupby(["metric", "study", "quantity"], sort=False)["value"].mean()
    cells = [["metric", *STUDIES.values()]]
    for metric in table["metric"].unique():
        values = [means.get((metric, *study)) for study in STUDIES]
        texts = ["–" if value is None else number(value, 0 if "n_undefined" in study else 2)
                for study, value in zip(STUDIES, values, strict=True)]  # fmt: skip
        cells.append([f"`{metric}`", *texts])
    return rows(cells)


def broken_network() -> str:
    """Return accuracy, probability and deletion areas of a network as trained, and broken."""
    table = pd.read_csv(DATA / "broken_network/broken_network.csv")
    cells = [[name if name == "network" else name.replace("_", " ") for name in table]]
    cells += [[str(row[0]), *(number(value, 3) for value in row[1:])] for row in table.to_numpy().tolist()]
    return rows(cells)


def no_batch_norm(name: str) -> str:
    """Return the accuracies of the seeds, a row a training and a column a network."""
    table = pd.read_csv(DATA / name / "no_batch_norm.csv")
    networks = list(table["network"].unique())
    cells = [["images", "training", "epochs", *(f"`{network}`" for network in networks)]]
    for (data, optimizer, lr, epochs), part in table.groupby(["data", "optimizer", "lr", "epochs"], sort=False):
        texts = [", ".join(map(number, part.loc[part["network"] == network, "accuracy"])) for network in networks]
        cells.append([str(data), f"{optimizer} at {lr}", str(epochs), *texts])
    return rows(cells)


def device(name: str) -> str:
    """Return a row for each kind of job, with its passes and times."""
    table = pd.read_csv(DATA / name / "device.csv")
    table["passes"] = table["forward"] + table["gradient"]
    cells = [["" if pd.isna(cell) else number(cell, 0 if "pass" in column or "padding" in column else 2)
              if isinstance(cell, float) else str(cell) for column, cell in zip(DEVICE, row, strict=True)]
             for row in table[list(DEVICE)].astype(object).to_numpy()]  # fmt: skip
    return rows([list(DEVICE.values()), *cells])


BLOCKS = {
    "metric_quality": metric_quality,
    "no_batch_norm": no_batch_norm,
    "device": device,
    "broken_network": broken_network,
}

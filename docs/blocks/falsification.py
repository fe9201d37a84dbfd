"""Tables of docs/falsification.md."""

import pandas as pd

from blocks import DATA, interval, number, rows

NAMES = {"even": "an even map", "integrated_gradients": "IG", "deep_lift": "DeepLIFT", "grad_cam": "Grad-CAM"}


def _study(study: str) -> pd.DataFrame:
    table = pd.read_csv(DATA / "falsification/falsification.csv")
    return table[table["study"] == study]


def retraining() -> str:
    """Return the accuracy of the original and of retrained networks."""
    cells = [["network", "trained on", "tested on", "accuracy"]]
    for row in _study("retraining").to_dict("records"):
        cells.append([row["network"], row["trained_on"], row["tested_on"], number(row["value"], 3)])
    return rows(cells)


def watermarks() -> str:
    """Return the share of attribution inside the watermark, by map."""
    wide = _study("watermarks").pivot(index="method", columns="dataset")[["value", "ci_low", "ci_high"]]
    marks = {"number": "number", "stripes": "bands", "number on a blank canvas": "number on a blank canvas"}
    cells = [["mean over images (95 % interval)", *marks.values()]]
    for method in wide.index:
        told = []
        for dataset in marks:
            value, low, high = (wide.loc[method, (column, dataset)] for column in ("value", "ci_low", "ci_high"))
            told.append(number(value) if pd.isna(low) or low == high else interval(value, low, high))
        named = NAMES.get(method, method) if method.startswith("accuracy") else f"Attr% of {NAMES.get(method, method)}"
        cells.append([named, *told])
    return rows(cells)


def road_shares() -> str:
    """Return accuracy under ROAD in MoRF order: at some shares, and its mean over all."""
    table = _study("road")
    shown = [0.02, 0.1, 0.4]
    cells = [["images", "map", *(f"{share:.0%} removed".replace("%", " %") for share in shown), "mean over shares"]]
    for (dataset, method), part in table.groupby(["dataset", "method"], sort=False):
        at = part.set_index("removed")["value"]
        told = [number(at[share]) for share in shown]
        cells.append([dataset, NAMES.get(method, method), *told, number(at.mean())])
    return rows(cells)


BLOCKS = {function.__name__: function for function in (retraining, watermarks, road_shares)}

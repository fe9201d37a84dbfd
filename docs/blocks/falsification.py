"""Tables of docs/falsification.md."""

import pandas as pd
from scipy.stats import ttest_1samp

from blocks import DATA, interval, number, rows

MARKS = {"digits with a number": "number", "digits with bands": "bands", "number on a blank canvas": ""}
NAMES = {"even": "a constant map", "integrated_gradients": "IG", "deep_lift": "DeepLIFT", "grad_cam": "Grad-CAM"}


def _study(study: str) -> pd.DataFrame:
    table = pd.read_csv(DATA / "falsification/falsification.csv")
    return table[table["study"] == study]


def _mean_with_interval(values: pd.Series, digits: int = 2, *, share: bool = True) -> str:
    """Return a mean over trainings with Student's interval; that of a share is cut at 0 and 1."""
    mean = values.mean()
    if values.nunique() == 1:
        return number(mean, digits)
    low, high = ttest_1samp(values, 0).confidence_interval(0.95)
    return interval(mean, max(low, 0), min(high, 1), digits) if share else interval(mean, low, high, digits)


def retraining() -> str:
    """Return the accuracy of the original and of retrained networks."""
    cells = [["network", "trained on", "tested on", "accuracy"]]
    kinds = ["network", "trained_on", "tested_on"]
    for kind, part in _study("retraining").groupby(kinds, sort=False):
        cells.append([*kind, _mean_with_interval(part["value"], 3)])
    return rows(cells)


def watermarks() -> str:
    """Return the share of attribution inside the watermark, by map."""
    table = _study("watermarks")
    heads = (f"watermark: {short}" if short else name for name, short in MARKS.items())
    cells = [["quantity", *heads]]
    for method, part in table.groupby("method"):
        accuracy = method.replace("the mark", "the watermark")
        named = accuracy if method.startswith("accuracy") else f"Attr% of {NAMES.get(method, method)}"
        cells.append([named, *(_mean_with_interval(part.loc[part["dataset"] == name, "value"]) for name in MARKS)])
    return rows(cells)


def road_shares() -> str:
    """Return accuracy under ROAD in MoRF order: at some shares, and its mean over all."""
    table = _study("road")
    displayed_shares = [0.02, 0.1, 0.4]
    cells = [
        [
            "images",
            "map",
            *(f"{share:.0%} imputed".replace("%", " %") for share in displayed_shares),
            "mean over shares",
        ]
    ]
    for (dataset, method), part in table.groupby(["dataset", "method"], sort=False):
        wide = part.pivot(index="seed", columns="removed", values="value")
        means = [_mean_with_interval(wide[share]) for share in displayed_shares]
        cells.append([dataset, NAMES.get(method, method), *means, _mean_with_interval(wide.mean(axis=1))])
    return rows(cells)


def differences() -> str:
    """Return differences of the same trainings, on which the sentences of the page rest."""
    tables = {name: _study(name) for name in ("watermarks", "road")}
    mean = tables["road"].groupby(["dataset", "method", "seed"])["value"].mean()
    share = tables["watermarks"].groupby(["dataset", "method", "seed"])["value"].mean()
    number_, bands, blank = MARKS
    pairs = [
        ("Attr%", share, number_, "rect", "pooling"),
        ("Attr%", share, bands, "rect", "pooling"),
        ("Attr%", share, number_, "rect", "integrated_gradients"),
        ("Attr%", share, bands, "grad_cam", "even"),
        ("ROAD", mean, number_, "rect", "integrated_gradients"),
        ("ROAD", mean, number_, "grad_cam", "integrated_gradients"),
        ("ROAD", mean, number_, "grad_cam", "deep_lift"),
        ("ROAD", mean, blank, "grad_cam", "integrated_gradients"),
        ("ROAD", mean, blank, "grad_cam", "deep_lift"),
        ("ROAD", mean, "plain digits", "grad_cam", "integrated_gradients"),
        ("ROAD", mean, "plain digits", "grad_cam", "deep_lift"),
        ("ROAD", mean, "plain digits", "rect", "deep_lift"),
    ]
    cells = [["score", "images", "difference", "mean (95 % interval over trainings)"]]
    for of, values, dataset, first, other in pairs:
        less = values[dataset, first] - values[dataset, other]
        named = f"{NAMES.get(first, first)} minus {NAMES.get(other, other)}"
        cells.append([of, dataset, named, _mean_with_interval(less, share=False)])
    return rows(cells)


def photographs() -> str:
    """Return the accuracy of networks on photographs of which a twentieth is black, and how much was black before."""
    table = pd.read_csv(DATA / "falsification/photographs.csv")
    cells = [["network", "trained on", "tested on", "accuracy"]]
    names = {"square removed": "5 % black"}
    kinds = ["network", "trained_on", "tested_on"]
    for kind, part in table[table["study"] == "photographs"].groupby(kinds, sort=False):
        cells.append([*(names.get(name, name) for name in kind), _mean_with_interval(part["value"], 3)])
    return rows(cells)


def black_before() -> str:
    """Return which share of the pixels that are made black was dark already."""
    table = pd.read_csv(DATA / "falsification/photographs.csv")
    shares = table[table["study"] == "black before"].groupby("tested_on", sort=False)["value"].mean()
    return rows([["images", "removed pixels that were darker than a tenth of full brightness"],
                 *([name, f"{100 * share:.0f} %"] for name, share in shares.items())])  # fmt: skip


TABLES = (retraining, watermarks, road_shares, differences, photographs, black_before)
BLOCKS = {function.__name__: function for function in TABLES}

"""Soundness and completeness on a linear model with known attribution (paper 004, section 5.1, figure 6).

1,000 points of 200 Gaussian features, two classes by the sign of the sum (appendix G.1). The correct map is
x·sign(sum), negative values clipped, scaled to a maximum of 1. The paper does not say how it changes these maps. Here
it is done in five ways: those of its table 3, which are for maps of images, and by giving attribution to some features
without any and removing it from some with attribution. Thresholds are values on the scale of the correct map, which a
change does not move.

    python benchmarks/introduce_remove.py --out docs/data/synthetic && python docs/pages.py
"""

import argparse
import time
from pathlib import Path

import numpy as np
import pandas as pd

from heatproof.metrics.responses.curves import ResponseCurve
from heatproof.metrics.soundness import THRESHOLDS, completeness, soundness

FEATURES = 200
LEVELS = np.round(np.arange(0.1, 1.0, 0.05), 2)
# Algorithm 3 of the paper; its appendix E and the published code begin at 0.98.
REMOVED = np.round(np.arange(0.01, 1.0, 0.01), 2)
SHIFT = 0.6
# Share of the features with or without attribution that is changed, and the largest value that Introduce assigns.
SOME = {"some": (0.25, 1.0), "more": (0.5, 1.5)}
SCHEMES = (*SOME, "random", "constant", "partial")
# Place in the paper, subject, and sign of the change against the correct map; means only where the paper prints one.
STATEMENTS = (
    ("introduce", "soundness", -1, "5.1, first paragraph: Introduce hurts soundness", None),
    ("introduce", "completeness", 1, "5.1, first paragraph: Introduce improves completeness", None),
    ("introduce", "completeness", -1, "5.1, results: Introduce underperforms the right map in completeness", None),
    ("remove", "completeness", -1, "5.1, first paragraph: Remove lowers completeness", None),
    ("remove", "completeness", 1, "5.1, results: Remove outperforms the right map in completeness", None),
    ("remove", "soundness", 0, "5.1 and caption of figure 6: Remove stays at 1, where the right map is", 1.0),
)
MARKS = {1: "up", -1: "down", 0: "same"}


def changed(truth, kind, scheme, rng):
    """Return the maps (N, F) of a scheme: one of `SOME`, or of the paper's table 3."""
    add = kind == "introduce"
    if scheme in SOME:
        share, largest = SOME[scheme]
        chosen = (truth <= 0 if add else truth > 0) & (rng.random(truth.shape) < share)
        return np.where(chosen, largest * rng.random(truth.shape) if add else 0, truth)
    if scheme == "partial":
        quantile = np.argsort(np.argsort(truth, axis=1, kind="stable"), axis=1) / truth.shape[1]
        if add:
            return np.where(quantile < 0.4, np.quantile(truth, 0.8, axis=1, keepdims=True), truth)
        return np.where((quantile >= 0.6) & (quantile < 0.8), 0, truth)
    shift = SHIFT * (rng.random(truth.shape) if scheme == "random" else 1)
    return np.maximum(truth + shift if add else truth - shift, 0)


def right_map(points, weights):
    """Return the contribution of each feature to the deciding sum; negative values clipped, the largest 1."""
    maps = np.maximum(points * weights * np.sign((points * weights).sum(1, keepdims=True)), 0)
    return maps / maps.max(1, keepdims=True)


def curve_of(predicted, labels, positive, total, removed):
    """Return the input of a metric; the label is also the class that is predicted for the intact point."""
    arrays = {"predicted": predicted, "positive": positive, "total_positive": total, "changed": removed}
    return ResponseCurve(arrays, np.stack([labels, labels], axis=1), FEATURES)


def scores(points, maps):
    """Return soundness at each of `LEVELS` and completeness at each threshold; removed features are zero."""
    labels = (points.sum(1) > 0).astype(int)
    order = np.argsort(maps, axis=1, kind="stable")
    counts = np.unique(np.round(FEATURES * REMOVED).astype(int))
    gone, mass = (
        np.cumsum(np.take_along_axis(values, order, axis=1), axis=1)[:, counts - 1] for values in (points, maps)
    )
    predicted = (points.sum(1, keepdims=True) - gone > 0).astype(int)
    curve = curve_of(predicted, labels, mass, maps.sum(1), np.broadcast_to(counts, predicted.shape))
    sound = np.array([soundness(curve, level=level)[0].mean() for level in LEVELS])
    visible = np.stack([maps <= threshold for threshold in (np.inf, *sorted(THRESHOLDS, reverse=True))], axis=1)
    left = np.einsum("nsf,nf->ns", visible, points)
    # Without any feature the model predicts no class; the paper's step function is 0 there too.
    predicted = np.where(left == 0, -1, left > 0).astype(int)
    # Where no feature exceeds a threshold the metric is undefined; the paper counts the point as unchanged.
    lost = completeness(curve_of(predicted, labels, None, maps.sum(1), (~visible).sum(2)))[2]["completeness"]
    return sound, np.where(np.isnan(lost), 0, lost).mean(0)


def trials(count, points, seed=0):
    """Return by kind and scheme soundness (T, levels) and completeness (T, thresholds)."""
    rng = np.random.default_rng(seed)
    data = rng.standard_normal((points, FEATURES))
    truth = right_map(data, np.ones(FEATURES))
    results = {("right map", ""): [scores(data, truth)]}
    for kind in ("introduce", "remove"):
        for scheme in SCHEMES:
            # The other two draw nothing.
            times = count if scheme in ("random", *SOME) else 1
            results[kind, scheme] = [scores(data, changed(truth, kind, scheme, rng)) for _ in range(times)]
    return {name: [np.stack(part) for part in zip(*runs, strict=True)] for name, runs in results.items()}


def by_reader(points, seed=0, trials_of_each=20):
    """Return the change of completeness where a quarter of the features of one group gets U(0, 1).

    The model reads half of the features; the groups are those in favour of the class, those not read, and those against
    it.
    """
    rng = np.random.default_rng(seed)
    data = rng.standard_normal((points, FEATURES))
    weights = (np.arange(FEATURES) < FEATURES // 2).astype(float)
    truth, read = right_map(data, weights), np.broadcast_to(weights > 0, data.shape)
    before = scores(data * weights, truth)[1].mean()
    rows = []
    for name, group in (("for the class", truth > 0), ("not read", ~read), ("against the class", read & (truth <= 0))):
        differences = []
        for _ in range(trials_of_each):
            chosen = group & (rng.random(truth.shape) < 0.25)
            changed_map = np.where(chosen, np.maximum(rng.random(truth.shape), truth), truth)
            differences.append(scores(data * weights, changed_map)[1].mean() - before)
        rows.append({"features": name, "change": np.mean(differences), "deviation": np.std(differences)})
    return pd.DataFrame(rows)


def means(results):
    """Return a row for each kind, scheme and metric: mean and standard deviation over trials of the curve's mean."""
    rows = [
        {"kind": kind, "scheme": scheme, "metric": metric, "mean": values.mean(), "deviation": values.mean(1).std()}
        | {"trials": len(values)}
        for (kind, scheme), both in results.items()
        for metric, values in zip(("soundness", "completeness"), both, strict=True)
    ]
    return pd.DataFrame(rows)


def directions(results):
    """Return a row for each statement of the paper and scheme, with our change and whether its direction agrees."""
    table = means(results).set_index(["kind", "scheme", "metric"])["mean"]
    rows = []
    for kind, metric, sign, where, printed in STATEMENTS:
        for scheme in SCHEMES:
            right, ours = table["right map", "", metric], table[kind, scheme, metric]
            # A change below that of one of the thousand points counts as none.
            measured = 0 if abs(ours - right) < 1e-3 else int(np.sign(ours - right))
            rows.append(
                {"paper": where, "scheme": scheme, "right_map": right, "measured": ours, "paper_mean": printed}
                | {"paper_direction": MARKS[sign], "direction": MARKS[measured]}
                | {"same": "yes" if measured == sign else "no"}
            )
    return pd.DataFrame(rows)


def draw(results, path):
    """Draw both curves, mean and standard deviation over trials, of the random schemes."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(9.5, 3.8), layout="constrained")
    for (kind, scheme), both in results.items():
        if scheme in ("", "random", *SOME):
            name = f"{kind}: {scheme}" if scheme else kind
            for panel, positions, values in zip(axes, (LEVELS, sorted(THRESHOLDS, reverse=True)), both, strict=True):
                panel.errorbar(positions, values.mean(0), values.std(0), label=name, capsize=2)
    axes[0].set(xlabel="accuracy", ylabel="soundness")
    axes[1].set(xlabel="features with attribution above this removed", ylabel="completeness")
    axes[1].invert_xaxis()
    axes[1].legend(frameon=False, fontsize=7)
    figure.savefig(path, dpi=110, metadata={"Software": None})


def main():
    """Run, print and store the tables, and draw the curves."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--out", type=Path, default=Path("introduce_remove"), help="folder of the tables and the figure"
    )
    parser.add_argument("--small", action="store_true", help="one trial, to see that it runs")
    args = parser.parse_args()
    count, points = (1, 100) if args.small else (1000, 1000)
    began = time.monotonic()
    results = trials(count, points)
    tables = {"means": means(results), "directions": directions(results), "readers": by_reader(points)}
    args.out.mkdir(parents=True, exist_ok=True)
    for name, table in tables.items():
        table.to_csv(args.out / f"{name}.csv", index=False, float_format="%.6f")
        print(table.to_string(index=False))
    draw(results, args.out / "introduce_remove.png")
    print(f"{count} trials of {points} points in {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()

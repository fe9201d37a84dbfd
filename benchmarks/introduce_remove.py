"""Soundness and completeness on a linear model whose right attribution is known (paper 004, section 5.1, figure 6).

Two classes by the sign of the sum of 200 Gaussian features. The right map is x·sign(sum), negative values clipped.
Introduce gives attribution to features that have none, Remove takes it from features that have some.

    python benchmarks/introduce_remove.py [FIGURE] [TRIALS] [POINTS]
"""

import sys
import time

import numpy as np

from heatproof.metrics.soundness import SHARES, THRESHOLDS, completeness, soundness
from heatproof.responses.curves import ResponseCurve

FEATURES = 200
LEVELS = np.round(np.arange(0.5, 1.0, 0.05), 2)
KINDS = ("ground truth", "introduce", "remove")


def modified(truth, kind, rng, share=0.25):
    """Give attribution to a random share of the features without any, or take it from a share of those with some."""
    maps = truth.copy()
    if kind == "ground truth":
        return maps
    among = truth <= 0 if kind == "introduce" else truth > 0
    chosen = among & (rng.random(truth.shape) < share)
    maps[chosen] = rng.uniform(0, truth.max(1, keepdims=True) * np.ones_like(truth))[chosen] * (kind == "introduce")
    return maps


def curve_of(predicted, labels, positive, total, changed):
    """Return what a metric reads; the label is also the class that is predicted for the intact point."""
    arrays = {"predicted": predicted, "positive": positive, "total_positive": total, "changed": changed}
    return ResponseCurve(arrays, np.stack([labels, labels], axis=1), FEATURES)


def scores(points, maps):
    """Return soundness at each of `LEVELS` and completeness at each threshold; removed features are zero."""
    labels = (points.sum(1) > 0).astype(int)
    order = np.argsort(maps, axis=1, kind="stable")
    counts = np.array([int(FEATURES * share) for share in SHARES])
    gone, mass = (
        np.cumsum(np.take_along_axis(values, order, axis=1), axis=1)[:, counts - 1] for values in (points, maps)
    )
    predicted = (points.sum(1, keepdims=True) - gone > 0).astype(int)
    changed = np.broadcast_to(counts, predicted.shape)
    curve = curve_of(predicted, labels, mass, maps.sum(1), changed)
    sound = np.array([np.nanmean(soundness(curve, level=level)[0]) for level in LEVELS])
    largest = maps.max(1, keepdims=True)
    kept = np.stack([maps <= largest * (1 - threshold) for threshold in (0, *THRESHOLDS)], axis=1)
    predicted = ((points[:, None] * kept).sum(2) > 0).astype(int)
    lost = completeness(curve_of(predicted, labels, None, maps.sum(1), (~kept).sum(2)))[2]["completeness"]
    return sound, np.nanmean(lost, axis=0)


def trials(count, points, seed=0):
    """Return, by kind, soundness (T, levels) and completeness (T, thresholds)."""
    rng = np.random.default_rng(seed)
    data = rng.standard_normal((points, FEATURES))
    truth = np.maximum(data * np.sign(data.sum(1, keepdims=True)), 0)
    found = {kind: [scores(data, modified(truth, kind, rng)) for _ in range(count)] for kind in KINDS}
    return {kind: [np.stack(part) for part in zip(*runs, strict=True)] for kind, runs in found.items()}


def draw(found, path):
    """Draw both curves, mean and standard deviation over trials."""
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    for kind, (sound, complete) in found.items():
        left.errorbar(LEVELS, sound.mean(0), sound.std(0), label=kind, capsize=2)
        right.errorbar(1 - np.array(THRESHOLDS), complete.mean(0), complete.std(0), label=kind, capsize=2)
    left.set(xlabel="accuracy", ylabel="soundness")
    right.set(xlabel="features above this share of the maximum removed", ylabel="completeness")
    right.invert_xaxis()
    left.legend(frameon=False)
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    target, count, points = (sys.argv[1:] + ["introduce_remove.png", "1000", "1000"][len(sys.argv) - 1 :])[:3]
    began = time.monotonic()
    result = trials(int(count), int(points))
    for name, (sound, complete) in result.items():
        print(f"{name:13} soundness {sound.mean():.4f} ± {sound.mean(1).std():.4f}", end="   ")
        print(f"completeness {complete.mean():.4f} ± {complete.mean(1).std():.4f}")
    print(f"{count} trials of {points} points in {time.monotonic() - began:.0f} s")
    draw(result, target)

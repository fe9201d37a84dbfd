"""Are deleted patches in domain? What a linear probe tells from features, and how the network answers without them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from heatproof.manifest import read_shard
from heatproof.metrics.bootstrap import draw_counts, interval
from heatproof.plan import paths
from heatproof.randomness import numpy_generator
from heatproof.report.drawing import broken, draw_legend, lay_out, new_figure, palette, white
from heatproof.report.results import publish
from heatproof.store import open_store, read

if TYPE_CHECKING:
    from heatproof.specs.jobs import Runtime
    from heatproof.specs.reports import InDomainSpec

FOLDS = 5
BINS = 15
# The layer's name in the rows of what the network answers.
OUTPUT = "output"
# Of both versions of an image, as stores of features have them.
QUANTITIES = [f"{name}_{version}" for name in ("accuracy", "confidence", "ece") for version in ("intact", "deleted")]
WHERE: Final = ("dataset", "model", "weights", "grid", "baseline", "in_domain")
PROBED = ["auc", "ci_low", "ci_high"]
ANSWERED = [f"{name}{end}" for name in QUANTITIES for end in ("", "_low", "_high")]
COLUMNS = [*WHERE, "layer", *PROBED, *ANSWERED, "n_images", "gap"]
# Weights (N,), how often each image was drawn, to a number.
Measure = Callable[[np.ndarray], float]


def in_domain(spec: InDomainSpec, runtime: Runtime) -> None:
    """Write in_domain.csv."""
    publish(spec, {paths.IN_DOMAIN: in_domain_table(spec)}, spec["data"])


def in_domain_table(spec: InDomainSpec) -> pd.DataFrame:
    """Tell for every network, grid and baseline whether deleted patches are in domain.

    Parameters
    ----------
    spec
        What the job is told: ``scored``, the stores of features with dataset, model, weights, grid, baseline and
        ``in_domain``; ``images``; and ``seed``, ``bootstrap`` and ``level`` of the intervals over images.

    Returns
    -------
    pandas.DataFrame
        `COLUMNS`. One row a layer, early to late, with ``auc`` of `probe_scores` and its interval: 0.5 if a linear
        probe cannot tell images with a deleted patch from intact ones, 1 if it always can, lower is better. Then a row
        of the layer ``output`` with accuracy, mean confidence (softmax of the predicted class) and `calibration_error`
        (``ece``) on intact and on deleted images, each with an interval (``_low``, ``_high``). A network whose layers
        cannot be followed has one row with the reason in ``gap``.
    """
    rows = []
    for item in spec["scored"]:
        where = {key: item[key] for key in WHERE}
        if gap := read_shard(item["features"], 0)["gap"]:
            rows.append({**where, "n_images": 0, "gap": gap})
            continue
        store, images = item["features"] + ".zarr", spec["images"]
        opened = open_store(store)
        layers, features = opened.coordinates["layer"], read(store, "features", 0, images)
        confidence, predicted = (read(store, name, 0, images) for name in ("confidence", "predicted"))
        right = predicted == opened.labels[:images, None]
        measures = [area_under_curve(probe_scores(features[:, :, place])) for place in range(len(layers))]
        measures += [_mean_of(values) for values in (*right.T, *confidence.T)]
        measures += [calibration_error(*answer) for answer in zip(confidence.T, right.T, strict=True)]
        probed, answers = np.split(_with_intervals(measures, images, spec), [len(layers)])
        where["n_images"] = images
        for layer, found in zip(layers, probed, strict=True):
            rows.append({**where, "layer": layer, **dict(zip(PROBED, found, strict=True))})
        rows.append({**where, "layer": OUTPUT, **dict(zip(ANSWERED, answers.ravel(), strict=True))})
    return pd.DataFrame(rows).reindex(columns=COLUMNS)


def probe_scores(features: np.ndarray) -> np.ndarray:
    """Return what a linear probe says of images that it was not fitted to: the higher, the more likely deleted.

    Logistic regression on standardised features, with scikit-learn's penalty (C = 1); five folds, both versions of an
    image in the same one, so that the probe has to know deletions and not images.

    Parameters
    ----------
    features
        (N, 2, F) of intact images and of the same with a deleted patch.

    Returns
    -------
    numpy.ndarray
        (N, 2); NaN for fewer than two images.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GroupKFold, cross_val_predict
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    images = len(features)
    if images < 2:
        return np.full((images, 2), np.nan)
    flat = features.reshape(2 * images, -1).astype(np.float64)
    # Narrow layers are filled up with zeros; what never varies tells nothing.
    flat = flat[:, np.ptp(flat, axis=0) > 0]
    if not flat.shape[1]:
        return np.zeros((images, 2))
    probe = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    deleted, groups = np.tile([0, 1], images), np.repeat(np.arange(images), 2)
    folds = GroupKFold(min(FOLDS, images))
    said = cross_val_predict(probe, flat, deleted, groups=groups, cv=folds, method="decision_function")
    return said.reshape(images, 2)


def area_under_curve(scores: np.ndarray) -> Measure:
    """Return what measures the share of pairs in which a deleted image scores higher than an intact one; ties are half.

    Parameters
    ----------
    scores
        (N, 2): of intact images, and of the deleted ones; all folds in one order.

    Returns
    -------
    callable
        Weights (N,), how often each image counts, to the share; NaN where there are no scores.
    """
    # Once for all resamples: they draw images, and leave the order of the scores as it is.
    level = np.unique(scores, return_inverse=True)[1].reshape(scores.shape)
    undefined = bool(np.isnan(scores).any())

    def measure(weights: np.ndarray) -> float:
        intact, deleted = (np.bincount(level[:, side], weights, level.max() + 1) for side in (0, 1))
        return np.nan if undefined else float((np.cumsum(intact) - intact / 2) @ deleted / weights.sum() ** 2)

    return measure


def calibration_error(confidence: np.ndarray, right: np.ndarray) -> Measure:
    """Return what measures the expected calibration error (Guo et al. 2017), in 15 bins of confidence of equal width.

    It is the distance between accuracy and mean confidence of a bin, (0, 1/15] to (14/15, 1], as a mean over bins
    weighted by their images. Of few images it is too high, and more so of resampled ones.

    Parameters
    ----------
    confidence
        (N,) in [0, 1].
    right
        (N,) booleans.

    Returns
    -------
    callable
        Weights (N,), how often each image counts, to the error in [0, 1].
    """
    confidence = confidence.astype(np.float64)
    bins = np.clip(np.ceil(confidence * BINS).astype(int) - 1, 0, BINS - 1)
    gap = right - confidence
    return lambda weights: float(np.abs(np.bincount(bins, weights * gap)).sum() / weights.sum())


def _mean_of(values: np.ndarray) -> Measure:
    return lambda weights: float(values @ weights / weights.sum())


def _with_intervals(measures: list[Measure], images: int, spec: InDomainSpec) -> np.ndarray:
    """Return values and ends of bootstrap intervals over images, (measures, 3); the same images drawn for all."""
    generator = numpy_generator(spec["seed"], "bootstrap over images")
    drawn = (draw_counts(generator, 1, images)[0] for _ in range(spec["bootstrap"]))
    means = np.array([[measure(weights) for measure in measures] for weights in drawn]).T
    low, high = interval(means, spec["level"]) if images > 1 else np.full((2, len(measures)), np.nan)
    return np.stack([[measure(np.ones(images)) for measure in measures], low, high], axis=1)


@white
def draw_in_domain(table: pd.DataFrame, level: float) -> Figure:
    """Draw the AUC of every layer, a panel a model, a line for its weights on each grid and baseline.

    Parameters
    ----------
    table
        results/in_domain.csv.
    level
        Coverage of the intervals.
    """
    rows = table[table["auc"].notna()].copy()
    if rows.empty:
        return Figure()
    if len(rows[["grid", "baseline"]].drop_duplicates()) > 1:
        rows["weights"] += ", grid " + rows["grid"].astype(str) + ", " + rows["baseline"]
    colours = palette(rows["weights"])
    grid = broken(list(rows.groupby(["dataset", "model"], sort=False)), 3)
    figure = new_figure(1.0 + 3.4 * len(grid[0]), 0.8 + 3.0 * len(grid))
    handles: dict[Any, Any] = {}
    for axes, ((dataset, model), part) in lay_out(figure, grid, sharey=True):
        axes.axhline(0.5, linestyle=":", color="grey", linewidth=1)
        for weights, own in part.groupby("weights", sort=False):
            places, colour = np.arange(len(own)), colours[weights]
            axes.fill_between(places, own["ci_low"], own["ci_high"], color=colour, alpha=0.15, linewidth=0)
            (handles[weights],) = axes.plot(places, own["auc"], color=colour, marker="o", markersize=3.6)
            axes.set_xticks(places, own["layer"], rotation=45, ha="right", size=7)
        axes.set_title(f"{dataset} · {model}", size=10, weight="bold", loc="left")
        axes.spines[["top", "right"]].set_visible(False)
    figure.supylabel(f"AUC of a linear probe, {level:.0%} interval", size=8.5)
    draw_legend(figure, handles, ncols=3)
    return figure

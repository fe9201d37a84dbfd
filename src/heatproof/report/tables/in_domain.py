"""Tests of whether deleted patches are in domain, by a linear probe on features and by accuracy and calibration."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedGroupKFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from statsmodels.stats.proportion import proportion_confint

from heatproof.core.randomness import derive_seed, numpy_generator
from heatproof.metrics.bootstrap import draw_counts, percentile_interval
from heatproof.report.figures.drawing import draw_legend, new_figure, palette, panel_axes, split_rows, white_style

FOLDS = 5
# Factors by which the variance of an out-of-fold score over samples of images exceeds that of independent images where
# the probe finds no difference: see `paired_share`.
VARIANCE_FACTOR = 2.0
SIGN_VARIANCE_FACTOR = 1 + 2 / np.pi
BINS = 15
# Name of the layer in the rows on the outputs of the network.
OUTPUT = "output"
# Columns for both versions of an image, in the order of the variants in stores of features.
QUANTITIES = [f"{name}_{version}" for name in ("accuracy", "confidence", "ece") for version in ("intact", "deleted")]
WHERE: Final = ("dataset", "model", "weights", "grid", "baseline", "in_domain")
PROBE_COLUMNS, OUTPUT_COLUMNS = (
    [f"{name}{end}" for name in names for end in ("", "_low", "_high")] for names in (["paired", "auc"], QUANTITIES)
)
COLUMNS = [*WHERE, "layer", *PROBE_COLUMNS, *OUTPUT_COLUMNS, "n_images", "gap"]
# Maps weights (N,), how often each image was drawn, to a statistic.
Measure = Callable[[np.ndarray], float]


def in_domain_table(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Return whether deleted patches are in domain, for every network, grid and baseline.

    Parameters
    ----------
    rows
        Values of some of the columns: `WHERE` and the number of images with the values of `in_domain_rows`, or with
        the reason in ``gap`` where the layers of a network cannot be traced.

    Returns
    -------
    pandas.DataFrame
        `COLUMNS`.
    """
    return pd.DataFrame(rows).reindex(columns=COLUMNS)


def in_domain_rows(
    layers: Sequence[str],
    features: np.ndarray,
    labels: np.ndarray,
    outputs: tuple[np.ndarray, np.ndarray] | None,
    *,
    seed: int,
    repetitions: int,
    level: float,
) -> list[dict[str, Any]]:
    """Test whether deleted patches are in domain for one network.

    Parameters
    ----------
    layers
        Names of the L layers, from early to late.
    features
        (N, 2, L, F), the features of intact images and of the same images with a deleted patch.
    labels
        (N,), the class of each image.
    outputs
        Confidence (softmax of the predicted class) and predicted class of both versions of each image, (N, 2) each;
        None where images have several labels or none.
    seed, repetitions, level
        Seed, number of resamples and coverage of the bootstrap over images; the folds depend on the seed as well.

    Returns
    -------
    list of dict
        One row for each layer, with two statistics of the same `probe_scores`, each with an interval (``_low``,
        ``_high``). Both are 0.5 if a linear probe cannot separate images with a deleted patch from intact ones, and 1
        if it always can. ``paired`` compares each image with its own intact version: it shows whether the features
        contain the deletion. ``auc`` compares it with all intact images: it shows whether the features contain the
        deletion without a comparison with the same image intact, which is how the network sees it. With `outputs`, a
        row of the layer ``output`` has accuracy, mean confidence and `calibration_error` (``ece``) on intact and on
        deleted images, each with an interval.
    """
    scores = [probe_scores(features[:, :, number], labels, seed) for number in range(len(layers))]
    measures = [area_under_curve(scores_of_layer) for scores_of_layer in scores]
    if outputs is not None:
        confidence, predicted = outputs
        right = predicted == labels[:, None]
        measures += [_mean_of(values) for values in (*right.T, *confidence.T)]
        measures += [calibration_error(*output) for output in zip(confidence.T, right.T, strict=True)]
    intervals = with_intervals(measures, len(features), seed, repetitions, level)
    areas, answers = np.split(intervals, [len(layers)])
    rows: list[dict[str, Any]] = []
    for layer, scores_of_layer, area in zip(layers, scores, areas, strict=True):
        shares = [*paired_share(scores_of_layer, level), *widened(area)]
        rows.append({"layer": layer, **dict(zip(PROBE_COLUMNS, shares, strict=True))})
    if outputs is not None:
        rows.append({"layer": OUTPUT, **dict(zip(OUTPUT_COLUMNS, answers.ravel(), strict=True))})
    return rows


def probe_scores(features: np.ndarray, labels: np.ndarray, seed: int) -> np.ndarray:
    """Return the scores of a linear probe for images that it was not fitted to; higher is more likely deleted.

    The probe is a logistic regression on standardised features, with scikit-learn's default penalty (C = 1). It is
    cross-validated in five shuffled folds, or in as many as there are images where these are fewer. Both versions of an
    image are in the same fold, so that the probe has to learn deletions and not images. Every class is spread over the
    folds, so that the probe is tested on no class that it was not fitted to; classes with fewer images than folds are
    spread together.

    Parameters
    ----------
    features
        (N, 2, F), features of intact images and of the same images with a deleted patch.
    labels
        (N,), the class of each image.
    seed
        Seed of the folds, which depend on it and on the labels alone: all layers and weights have the same folds.

    Returns
    -------
    numpy.ndarray
        (N, 2), the scores of both versions of an image by the same probe; NaN for fewer than two images.
    """
    images = len(features)
    if images < 2:
        return np.full((images, 2), np.nan)
    flat = features.reshape(2 * images, -1).astype(np.float64)
    # Stores pad narrow layers with zeros, and a constant feature carries no information.
    flat = flat[:, np.ptp(flat, axis=0) > 0]
    if not flat.shape[1]:
        return np.zeros((images, 2))
    probe = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    deleted, groups = np.tile([0, 1], images), np.repeat(np.arange(images), 2)
    # scikit-learn accepts seeds of 32 bits.
    drawn = derive_seed(seed, "folds of the probe") % 2**32
    folds = StratifiedGroupKFold(min(FOLDS, images), shuffle=True, random_state=drawn)
    splits = list(folds.split(flat, np.repeat(_strata(labels, folds.n_splits), 2), groups))
    scores = cross_val_predict(probe, flat, deleted, cv=splits, method="decision_function")
    return scores.reshape(images, 2)


def _strata(labels: np.ndarray, folds: int) -> np.ndarray:
    """Return the stratum of each image: its class, or -1 for all classes that have fewer images than there are folds.

    Where the images of -1 are still too few, the next larger class joins them.
    """
    _, of, counts = np.unique(labels, return_inverse=True, return_counts=True)
    order = np.argsort(counts, kind="stable")
    smaller = np.cumsum(counts[order]) - counts[order]
    rare = np.empty(len(counts), dtype=bool)
    rare[order] = (counts[order] < folds) | ((smaller > 0) & (smaller < folds))
    return np.where(rare[of], -1, of)


def paired_share(scores: np.ndarray, level: float) -> tuple[float, float, float]:
    """Return the share of images that score higher with a deleted patch than intact, and its confidence interval.

    Ties count as one half. Both scores of an image are from one probe, so that scores of different folds need no common
    scale.

    The interval is Wilson's (1927) for a proportion of N / (1 + 2/π) images, because each image is also used to fit the
    probes that score others. Where the features contain no information, a probe points along the sum of the differences
    δ between both versions of its images, and its decision on image i is the sign of Σⱼ δᵢ·δⱼ over the other folds. As
    δᵢ·δⱼ is in the sum of image j too, these sums correlate by one over the number of their terms, which doubles the
    variance of a sum over images; signs of normal variables correlate by 2/π of that (Sheppard 1899). So 0.5 lies in
    the interval with the nominal coverage, whatever the number of folds and features (docs/protocol.md has a
    simulation). Where the probe can separate the versions, its folds agree, and the interval is up to 1.28 times too
    wide: no unbiased estimate of the variance of cross-validation exists (Bengio and Grandvalet 2004), so the interval
    uses the variance that is known.

    Parameters
    ----------
    scores
        (N, 2), scores of intact images and of the same images with a deleted patch.
    level
        Nominal coverage.

    Returns
    -------
    share, low, high : float
        In [0, 1]: 0.5 if the probe cannot separate the versions, 1 if it always can; NaN where there are no scores.
    """
    if np.isnan(scores).any() or not len(scores):
        return np.nan, np.nan, np.nan
    share = float((np.sign(scores[:, 1] - scores[:, 0]) / 2 + 0.5).mean())
    images = len(scores) / SIGN_VARIANCE_FACTOR
    low, high = proportion_confint(share * images, images, 1 - level, method="wilson")
    return share, float(low), float(high)


def area_under_curve(scores: np.ndarray) -> Measure:
    """Return a function that computes the area under the ROC curve of deleted against intact images.

    The area is the share of pairs in which a deleted image scores higher than an intact one; ties count as one half.

    Parameters
    ----------
    scores
        (N, 2), scores of intact images and of the same images with a deleted patch; all folds are ranked together.

    Returns
    -------
    callable
        Maps weights (N,), how often each image counts, to the area in [0, 1]; NaN where there are no scores.
    """
    # Computed once for all resamples, which draw images and do not change the order of the scores.
    level = np.unique(scores, return_inverse=True)[1].reshape(scores.shape)
    undefined = bool(np.isnan(scores).any())

    def measure(weights: np.ndarray) -> float:
        intact, deleted = (np.bincount(level[:, side], weights, level.max() + 1) for side in (0, 1))
        return np.nan if undefined else float((np.cumsum(intact) - intact / 2) @ deleted / weights.sum() ** 2)

    return measure


def calibration_error(confidence: np.ndarray, right: np.ndarray) -> Measure:
    """Return a function that computes the expected calibration error (Guo et al. 2017).

    The error is the absolute difference between the accuracy and the mean confidence of a bin, averaged over 15 bins of
    equal width, (0, 1/15] to (14/15, 1], weighted by their numbers of images. It is biased upwards for few images, and
    more so for resampled ones.

    Parameters
    ----------
    confidence
        (N,), the confidence in [0, 1].
    right
        (N,), whether the prediction is right.

    Returns
    -------
    callable
        Maps weights (N,), how often each image counts, to the error in [0, 1].
    """
    confidence = confidence.astype(np.float64)
    bins = np.clip(np.ceil(confidence * BINS).astype(int) - 1, 0, BINS - 1)
    gap = right - confidence
    return lambda weights: float(np.abs(np.bincount(bins, weights * gap)).sum() / weights.sum())


def widened(area: np.ndarray) -> np.ndarray:
    """Return an area and its interval, widened to twice the variance.

    Resampled images are scored by the same probes, although each image is used to fit the probes that score others. The
    factor is that of `paired_share`, for a sum without signs.

    Parameters
    ----------
    area
        (3,), the area and the ends of its interval over resampled images.

    Returns
    -------
    numpy.ndarray
        (3,), within [0, 1].
    """
    return np.clip(area[0] + np.sqrt(VARIANCE_FACTOR) * (area - area[0]), 0, 1)


def _mean_of(values: np.ndarray) -> Measure:
    return lambda weights: float(values @ weights / weights.sum())


def with_intervals(measures: list[Measure], images: int, seed: int, repetitions: int, level: float) -> np.ndarray:
    """Return the values of statistics and their bootstrap intervals over images, (statistics, 3).

    The same images are drawn for all statistics.
    """
    generator = numpy_generator(seed, "bootstrap over images")
    drawn = (draw_counts(generator, 1, images)[0] for _ in range(repetitions))
    means = np.array([[measure(weights) for measure in measures] for weights in drawn]).T
    low, high = percentile_interval(means, level) if images > 1 else np.full((2, len(measures)), np.nan)
    return np.stack([[measure(np.ones(images)) for measure in measures], low, high], axis=1)


@white_style
def draw_in_domain(table: pd.DataFrame, level: float) -> Figure:
    """Draw the paired share of every layer: one panel for each model, one line for each weights, grid and baseline.

    Parameters
    ----------
    table
        results/in_domain.csv.
    level
        Coverage of the intervals.
    """
    rows = table[table["paired"].notna()].copy()
    if rows.empty:
        return Figure()
    if len(rows[["grid", "baseline"]].drop_duplicates()) > 1:
        rows["weights"] += ", grid " + rows["grid"].astype(str) + ", " + rows["baseline"]
    colours = palette(rows["weights"])
    grid = split_rows(list(rows.groupby(["dataset", "model"], sort=False)), 3)
    figure = new_figure(1.0 + 3.4 * len(grid[0]), 0.8 + 3.0 * len(grid))
    handles: dict[Any, Any] = {}
    for axes, ((dataset, model), part) in panel_axes(figure, grid, sharey=True):
        axes.axhline(0.5, linestyle=":", color="grey", linewidth=1)
        for weights, of_weights in part.groupby("weights", sort=False):
            places, colour = np.arange(len(of_weights)), colours[weights]
            axes.fill_between(
                places, of_weights["paired_low"], of_weights["paired_high"], color=colour, alpha=0.15, linewidth=0
            )
            (handles[weights],) = axes.plot(places, of_weights["paired"], color=colour, marker="o", markersize=3.6)
            axes.set_xticks(places, of_weights["layer"], rotation=45, ha="right", size=7)
        axes.set_title(f"{dataset} · {model}", size=10, weight="bold", loc="left")
        axes.spines[["top", "right"]].set_visible(False)
    figure.supylabel(f"paired share of a linear probe, {level:.0%} interval", size=8.5)
    draw_legend(figure, handles, ncols=3)
    return figure

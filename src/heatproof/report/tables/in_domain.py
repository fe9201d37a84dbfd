"""Are deleted patches in domain? What a linear probe tells from features, and how the network answers without them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from heatproof.base.grids import grid_table_value
from heatproof.base.randomness import derive_seed, numpy_generator
from heatproof.metrics.bootstrap import draw_counts, percentile_interval
from heatproof.report.figures.drawing import broken, draw_legend, lay_out, new_figure, palette, white
from heatproof.report.results import publish
from heatproof.stores.manifest import read_shard
from heatproof.stores.rows import rows_of_store
from heatproof.stores.store import open_store, read

if TYPE_CHECKING:
    from heatproof.stages.in_domain import InDomain

FOLDS = 5
# How much more an out-of-fold score varies over samples of images than images alone say, where the probe cannot tell:
# see `paired_share`.
LEARNT_FROM_EACH_OTHER = 2.0
SIGNS_LEARNT_FROM_EACH_OTHER = 1 + 2 / np.pi
BINS = 15
# The layer's name in the rows of what the network answers.
OUTPUT = "output"
# Of both versions of an image, as stores of features have them.
QUANTITIES = [f"{name}_{version}" for name in ("accuracy", "confidence", "ece") for version in ("intact", "deleted")]
WHERE: Final = ("dataset", "model", "weights", "grid", "baseline", "in_domain")
PROBED, ANSWERED = (
    [f"{name}{end}" for name in names for end in ("", "_low", "_high")] for names in (["paired", "auc"], QUANTITIES)
)
COLUMNS = [*WHERE, "layer", *PROBED, *ANSWERED, "n_images", "gap"]
# Weights (N,), how often each image was drawn, to a number.
Measure = Callable[[np.ndarray], float]


def in_domain(told: InDomain) -> None:
    """Write in_domain.csv."""
    publish(told, {told.files["in_domain"]: in_domain_table(told)}, told.data)


def in_domain_table(told: InDomain) -> pd.DataFrame:
    """Tell for every network, grid and baseline whether deleted patches are in domain.

    Parameters
    ----------
    told
        What the job is told.

    Returns
    -------
    pandas.DataFrame
        `COLUMNS`. One row a layer, early to late, with two statistics of the same `probe_scores`, each with an interval
        (``_low``, ``_high``); both are 0.5 if a linear probe cannot tell images with a deleted patch from intact ones,
        and 1 if it always can. ``paired`` compares each image with itself: it tells whether the features show the
        deletion. ``auc`` compares it with all images: it tells whether they show it without the intact image beside
        it, which is how the network sees it. Then a row of the layer ``output`` with accuracy, mean confidence
        (softmax of the predicted class) and `calibration_error` (``ece``) on intact and on deleted images, each with an
        interval, where images have one class. A network whose layers cannot be followed has one row with the reason in
        ``gap``.
    """
    rows = []
    for item in told.scored:
        where = {key: getattr(item, key) for key in WHERE} | {"grid": grid_table_value(item.grid)}
        if gap := read_shard(item.features, 0)["gap"]:
            rows.append({**where, "n_images": 0, "gap": gap})
            continue
        store, images = item.features + ".zarr", told.images
        opened = open_store(store)
        layers, features = opened.coordinates["layer"], read(store, "features", 0, images)
        known = rows_of_store(store, images)
        # Each picture once: rows of one have the same features.
        features, labels = features[known.first_rows], np.asarray(opened.labels[:images])[known.first_rows]
        images = len(features)
        scores = [probe_scores(features[:, :, place], labels, told.seed) for place in range(len(layers))]
        measures = [area_under_curve(one) for one in scores]
        if known.has_classes:
            confidence, predicted = (read(store, name, 0, images) for name in ("confidence", "predicted"))
            right = predicted == labels[:, None]
            measures += [_mean_of(values) for values in (*right.T, *confidence.T)]
            measures += [calibration_error(*answer) for answer in zip(confidence.T, right.T, strict=True)]
        found = with_intervals(measures, images, told.seed, told.bootstrap, told.level)
        areas, answers = np.split(found, [len(layers)])
        where["n_images"] = images
        for layer, one, area in zip(layers, scores, areas, strict=True):
            share = [*paired_share(one, told.level), *widened(area)]
            rows.append({**where, "layer": layer, **dict(zip(PROBED, share, strict=True))})
        if known.has_classes:
            rows.append({**where, "layer": OUTPUT, **dict(zip(ANSWERED, answers.ravel(), strict=True))})
    return pd.DataFrame(rows).reindex(columns=COLUMNS)


def probe_scores(features: np.ndarray, labels: np.ndarray, seed: int) -> np.ndarray:
    """Return what a linear probe says of images that it was not fitted to: the higher, the more likely deleted.

    Logistic regression on standardised features, with scikit-learn's penalty (C = 1), in five shuffled folds (as many
    as there are images, where these are fewer). Both versions of an image are in the same fold, so that the probe has
    to know deletions and not images; every class is spread over the folds, so that the probe is asked of no class that
    it never saw. Classes with fewer images than folds are spread together.

    Parameters
    ----------
    features
        (N, 2, F) of intact images and of the same with a deleted patch.
    labels
        (N,), the class of each image.
    seed
        Of the folds, which depend on it and on the labels alone: all layers and weights have the same.

    Returns
    -------
    numpy.ndarray
        (N, 2), both scores of an image by the same probe; NaN for fewer than two images.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedGroupKFold, cross_val_predict
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
    # scikit-learn takes 32 bits.
    drawn = derive_seed(seed, "folds of the probe") % 2**32
    folds = StratifiedGroupKFold(min(FOLDS, images), shuffle=True, random_state=drawn)
    splits = list(folds.split(flat, np.repeat(_strata(labels, folds.n_splits), 2), groups))
    said = cross_val_predict(probe, flat, deleted, cv=splits, method="decision_function")
    return said.reshape(images, 2)


def _strata(labels: np.ndarray, folds: int) -> np.ndarray:
    """Return a number for the class of each image, -1 for all classes that have too few images for so many folds.

    Where these together are still too few, the next larger class is with them.
    """
    _, of, counts = np.unique(labels, return_inverse=True, return_counts=True)
    order = np.argsort(counts, kind="stable")
    smaller = np.cumsum(counts[order]) - counts[order]
    rare = np.empty(len(counts), dtype=bool)
    rare[order] = (counts[order] < folds) | ((smaller > 0) & (smaller < folds))
    return np.where(rare[of], -1, of)


def paired_share(scores: np.ndarray, level: float) -> tuple[float, float, float]:
    """Return the share of images that score higher with a deleted patch than intact, ties half, and its interval.

    Both scores of an image are of one probe, so that they need no scale in common with other folds. The interval is
    Wilson's (1927) for a proportion of N / (1 + 2/π) images, because images teach the probes that score others. Where
    the features tell nothing, a probe points along the sum of the differences δ between both versions of its images,
    and says of image i the sign of Σⱼ δᵢ·δⱼ over the other folds. As δᵢ·δⱼ is in the sum of image j too, these sums
    correlate by one over the number of their terms, which doubles the variance of a sum over images; signs of normal
    variables correlate by 2/π of that (Sheppard 1899). So 0.5 lies in the interval as often as `level` says, whatever
    the number of folds and features (docs/protocol.md has a simulation). Where the probe can tell, its folds agree, and
    the interval is up to 1.28 times too wide: no unbiased estimate of the variance of cross-validation exists (Bengio
    and Grandvalet 2004), so it takes the one that is known.

    Parameters
    ----------
    scores
        (N, 2): of intact images, and of the deleted ones.
    level
        Nominal coverage.

    Returns
    -------
    share, low, high : float
        In [0, 1]; 0.5 if the probe cannot tell, 1 if it always can; NaN where there are no scores.
    """
    from statsmodels.stats.proportion import proportion_confint

    if np.isnan(scores).any() or not len(scores):
        return np.nan, np.nan, np.nan
    share = float((np.sign(scores[:, 1] - scores[:, 0]) / 2 + 0.5).mean())
    images = len(scores) / SIGNS_LEARNT_FROM_EACH_OTHER
    low, high = proportion_confint(share * images, images, 1 - level, method="wilson")
    return share, float(low), float(high)


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


def widened(area: np.ndarray) -> np.ndarray:
    """Return an area and its interval with twice the variance.

    Resampled images are scored by the same probes, but images teach the probes that score others: as `paired_share`
    has it, for a sum without signs.

    Parameters
    ----------
    area
        (3,): the area and the ends of its interval over resampled images.

    Returns
    -------
    numpy.ndarray
        (3,), within [0, 1].
    """
    return np.clip(area[0] + np.sqrt(LEARNT_FROM_EACH_OTHER) * (area - area[0]), 0, 1)


def _mean_of(values: np.ndarray) -> Measure:
    return lambda weights: float(values @ weights / weights.sum())


def with_intervals(measures: list[Measure], images: int, seed: int, repetitions: int, level: float) -> np.ndarray:
    """Return values and ends of bootstrap intervals over images, (measures, 3); the same images drawn for all."""
    generator = numpy_generator(seed, "bootstrap over images")
    drawn = (draw_counts(generator, 1, images)[0] for _ in range(repetitions))
    means = np.array([[measure(weights) for measure in measures] for weights in drawn]).T
    low, high = percentile_interval(means, level) if images > 1 else np.full((2, len(measures)), np.nan)
    return np.stack([[measure(np.ones(images)) for measure in measures], low, high], axis=1)


@white
def draw_in_domain(table: pd.DataFrame, level: float) -> Figure:
    """Draw the paired share of every layer, a panel a model, a line for its weights on each grid and baseline.

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
    grid = broken(list(rows.groupby(["dataset", "model"], sort=False)), 3)
    figure = new_figure(1.0 + 3.4 * len(grid[0]), 0.8 + 3.0 * len(grid))
    handles: dict[Any, Any] = {}
    for axes, ((dataset, model), part) in lay_out(figure, grid, sharey=True):
        axes.axhline(0.5, linestyle=":", color="grey", linewidth=1)
        for weights, own in part.groupby("weights", sort=False):
            places, colour = np.arange(len(own)), colours[weights]
            axes.fill_between(places, own["paired_low"], own["paired_high"], color=colour, alpha=0.15, linewidth=0)
            (handles[weights],) = axes.plot(places, own["paired"], color=colour, marker="o", markersize=3.6)
            axes.set_xticks(places, own["layer"], rotation=45, ha="right", size=7)
        axes.set_title(f"{dataset} · {model}", size=10, weight="bold", loc="left")
        axes.spines[["top", "right"]].set_visible(False)
    figure.supylabel(f"paired share of a linear probe, {level:.0%} interval", size=8.5)
    draw_legend(figure, handles, ncols=3)
    return figure

"""Compare each metric's ranking of methods with that of a metric with known ground truth."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import pandas as pd

from heatproof.metrics.arrays import spearman_rows
from heatproof.metrics.bootstrap import bootstrap_means, percentile_interval
from heatproof.stats.consistency import MINIMUM_METHODS
from heatproof.stats.per_image import iterate_test_cases

ALL, USE_MODEL = "all", "those that know the model"
COLUMNS = (
    "dataset",
    "model",
    "weights",
    "truth",
    "metric",
    "methods",
    "n_methods",
    "n_images",
    "spearman",
    "ci_low",
    "ci_high",
    "per_image",
    "per_image_low",
    "per_image_high",
    "n_undefined",
    "chosen",
    "best",
    "lost",
)


def truth_table(
    scores: pd.DataFrame,
    truths: Collection[str],
    references: Collection[str] = (),
    *,
    seed: int = 0,
    repetitions: int = 1000,
    level: float = 0.95,
) -> pd.DataFrame:
    """Compare each metric with the ground-truth metrics, on the same network and images.

    Parameters
    ----------
    scores
        As for `heatproof.stats.per_image.iterate_test_cases`.
    truths
        Metrics whose ranking of methods is the true one, such as ``part_deletion`` on a dataset whose parts can be
        removed. They are also compared with each other.
    references
        Reference methods, which do not use the model. A metric that only separates these from the other methods agrees
        partly with the truth; a second row of each comparison leaves them out.
    seed, repetitions, level
        Settings of the bootstrap over images, which draws the same images for the metric and for the truth.

    Returns
    -------
    pandas.DataFrame
        A row for each dataset, model, weights, truth, metric and choice of ``methods``; empty, with its columns, where
        no test case has a truth. ``spearman``, of the mean scores, and its percentile interval; ``per_image``, the mean
        over images of the correlation within one image, its interval, and ``n_undefined``, the number of images where
        it is undefined. Both correlations are in [-1, 1]; higher is closer to the truth. ``chosen`` is the metric's
        best method, or all methods that tie for it; ``best`` is the best method by the truth, and ``lost`` the true
        score of the best method minus that of the chosen one, or minus the mean of several chosen ones: the loss from
        relying on the metric, 0 or more. Correlations and ``lost`` are NaN, and ``chosen`` is empty, with fewer than
        `MINIMUM_METHODS` methods and where all mean scores are equal. Methods that the metric or the truth leaves
        undefined on half of the images or more are left out.
    """
    cases: dict[tuple[str, str, str], dict[str, pd.DataFrame]] = {}
    for case, wide in iterate_test_cases(scores):
        cases.setdefault((case["dataset"], case["model"], case["weights"]), {})[case["metric"]] = wide
    rows = []
    for network, metrics in cases.items():
        for truth in (name for name in metrics if name in truths):
            for name in (other for other in metrics if other != truth):
                for selection, left_out in ((ALL, ()), (USE_MODEL, references)):
                    comparison = _compare(metrics[name], metrics[truth], left_out, seed, repetitions, level)
                    rows.append([*network, truth, name, selection, *comparison])
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _compare(
    metric: pd.DataFrame, truth: pd.DataFrame, left_out: Collection[str], seed: int, repetitions: int, level: float
) -> list[object]:
    """Return the columns of a comparison from ``n_methods`` on."""
    images = truth.index.intersection(metric.index)
    both = [table.loc[images] for table in (metric, truth)]
    scored = [table.columns[table.notna().mean() > 0.5] for table in both]
    methods = [name for name in scored[1].intersection(scored[0]) if name not in left_out]
    metric_scores, true_scores = (table[methods].to_numpy(dtype=float) for table in both)
    nan = float("nan")
    if len(methods) < MINIMUM_METHODS:
        return [len(methods), len(images), *[nan] * 6, len(images), "", "", nan]
    means, true_means = (np.nanmean(values, axis=0) for values in (metric_scores, true_scores))
    correlation = spearman_rows(means[None], true_means[None])[0]
    drawn = [bootstrap_means(values.T, seed, repetitions).T for values in (metric_scores, true_scores)]
    low, high = percentile_interval(spearman_rows(*drawn)[None], level)
    correlations = spearman_of_images(metric_scores, true_scores)
    each_low, each_high = percentile_interval(bootstrap_means(correlations[None], seed, repetitions), level)
    undefined = int(np.isnan(correlations).sum())
    mean = float(np.nanmean(correlations)) if undefined < len(correlations) else nan
    best = int(true_means.argmax())
    # Means of the same scores in another order differ by rounding.
    chosen = (
        [] if np.isnan(correlation) else np.flatnonzero(np.isclose(means, means.max(), rtol=1e-12, atol=0)).tolist()
    )
    return [
        len(methods),
        len(images),
        *(float(value) for value in (correlation, low[0], high[0], mean, each_low[0], each_high[0])),
        undefined,
        ", ".join(methods[index] for index in chosen),
        methods[best],
        float(true_means[best] - true_means[chosen].mean()) if chosen else nan,
    ]


def spearman_of_images(metric: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Return the correlation of the rankings of methods by two metrics, for each image.

    Parameters
    ----------
    metric, truth
        (N, M), higher is better; NaN where a method has no score.

    Returns
    -------
    numpy.ndarray
        (N,) in [-1, 1], over the methods that both score on that image; NaN with fewer than `MINIMUM_METHODS` of them,
        or where all of their scores are equal.
    """
    defined = ~np.isnan(metric) & ~np.isnan(truth)
    correlations = np.full(len(metric), np.nan)
    for pattern in np.unique(defined, axis=0):
        rows = (defined == pattern).all(axis=1)
        if pattern.sum() >= MINIMUM_METHODS:
            correlations[rows] = spearman_rows(metric[rows][:, pattern], truth[rows][:, pattern])
    return correlations

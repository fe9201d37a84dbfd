"""Significance tests between methods over images, with correction for multiple tests and effect sizes.

The plan of tests follows Demšar, Statistical Comparisons of Classifiers over Multiple Data Sets, 2006, with images in
place of data sets. Wilcoxon's test replaces Nemenyi's, as recommended by Benavoli et al., Should We Really Use Post-Hoc
Tests Based on Mean-Ranks?, 2016. The results hold for the population of images, on this model.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np
import pandas as pd
from scipy.stats import rankdata, studentized_range, wilcoxon
from statsmodels.stats.multitest import multipletests

from heatproof.errors import HeatproofError
from heatproof.stats.reliability import image_ranks

POSTHOC = ("wilcoxon", "nemenyi")


def pairwise_wilcoxon(scores: pd.DataFrame, *, level: float = 0.05) -> pd.DataFrame:
    """Compare all pairs of methods by Wilcoxon's signed-rank test over images, with Holm's correction.

    Parameters
    ----------
    scores
        A row per image, a column per method; higher is better. A pair is compared on the images where both have a
        score.
    level
        Probability of at least one false discovery among all pairs, in (0, 1).

    Returns
    -------
    pandas.DataFrame
        A row per pair: ``method``, ``other``; ``n_images``, the number of compared images, and ``n_equal``, the number
        of those with equal scores, which the test leaves out; ``mean_difference``, the method's score less the other's;
        ``effect``, the matched-pairs rank-biserial correlation in [-1, 1] (Kerby 2014): the share of the rank sum in
        favour of the method less the share against it, 0 where all scores are equal; ``p`` two-sided, exact for up to
        50 images without ties and normal beyond, NaN with fewer than two images, 1 where all scores are equal;
        ``p_holm``, corrected over the pairs with a p-value; ``significant``.

    Raises
    ------
    HeatproofError
        If there are fewer than two methods, or the level is outside (0, 1).
    """
    _check_level(level)
    _check_methods(scores, 2)
    rows = []
    for method, other in combinations(scores.columns, 2):
        pair = (scores[method] - scores[other]).dropna().to_numpy(dtype=float)
        uneven = pair[pair != 0]
        effect, p = float("nan"), float("nan")
        if len(pair) > 1:
            # Wilcoxon's test is undefined where all scores are equal, which is no evidence of a difference.
            effect, p = 0.0, 1.0
        if len(pair) > 1 and len(uneven):
            ranks = rankdata(np.abs(uneven))
            effect = float((ranks * np.sign(uneven)).sum() / ranks.sum())
            p = float(wilcoxon(uneven).pvalue)
        mean = float(pair.mean()) if len(pair) else float("nan")
        rows.append((method, other, len(pair), len(pair) - len(uneven), mean, effect, p))
    table = pd.DataFrame(
        rows, columns=["method", "other", "n_images", "n_equal", "mean_difference", "effect", "p"]
    ).assign(p_holm=np.nan)
    tested = table["p"].notna()
    if tested.any():
        table.loc[tested, "p_holm"] = multipletests(table.loc[tested, "p"], method="holm")[1]
    return table.assign(significant=table["p_holm"] < level)


@dataclass(frozen=True)
class CriticalDifference:
    """Data of a critical-difference diagram.

    Attributes
    ----------
    ranks
        Mean rank over images of each method, best first; 1 is best.
    p
        (M, M) corrected p-values, methods in the order of `ranks`; 1 on the diagonal.
    difference
        Nemenyi's critical difference of mean ranks; None for Wilcoxon's test, which has none.
    posthoc, level
        The test, and its level.
    n_images, n_undefined
        Number of images on which all methods have a score, and of all other images, which are left out.
    """

    ranks: pd.Series
    p: pd.DataFrame
    difference: float | None
    posthoc: str
    level: float
    n_images: int
    n_undefined: int


def critical_difference(scores: pd.DataFrame, *, posthoc: str = "wilcoxon", level: float = 0.05) -> CriticalDifference:
    """Return mean ranks of methods, and the p-values between them.

    Parameters
    ----------
    scores
        As in `pairwise_wilcoxon`.
    posthoc
        ``wilcoxon``, with Holm's correction: the p-value of a pair depends on other methods only by the correction.
        ``nemenyi``: by the distance of mean ranks (Demšar 2006, section 3.2.2), on which all other methods have an
        influence; it has one critical difference for all pairs, q √(M (M + 1) / 6N).
    level
        As in `pairwise_wilcoxon`.

    Raises
    ------
    HeatproofError
        If an option is unknown, there are fewer than two methods, or fewer than two images have all scores.
    """
    if posthoc not in POSTHOC:
        raise HeatproofError(f"posthoc is {posthoc!r}: take one of {', '.join(POSTHOC)}.")
    _check_level(level)
    _check_methods(scores, 2)
    complete = scores.dropna()
    images, methods = complete.shape
    if images < 2:
        raise HeatproofError(
            f"{images} images have a score of every method: leave out the methods that are undefined on most images."
        )
    means = image_ranks(complete.to_numpy(dtype=float)).mean(axis=0)
    ranks = pd.Series(means, index=complete.columns, name="rank").sort_values(kind="stable")
    difference = None
    if posthoc == "wilcoxon":
        values = np.eye(methods)
        upper = np.triu_indices(methods, 1)
        # Pairs are in the order of the columns, which are sorted by rank here.
        values[upper] = values.T[upper] = pairwise_wilcoxon(complete[ranks.index], level=level)["p_holm"]
        p = pd.DataFrame(values, index=ranks.index, columns=ranks.index)
    else:
        # scikit-posthocs imports matplotlib and seaborn, which the default test does not need.
        from scikit_posthocs import posthoc_nemenyi_friedman

        # scikit-posthocs gives rank 1 to the smallest score, which does not change the distances between ranks.
        p = posthoc_nemenyi_friedman(complete.to_numpy(dtype=float))
        p.index = p.columns = complete.columns
        p = p.loc[ranks.index, ranks.index]
        quantile = studentized_range.ppf(1 - level, methods, np.inf) / np.sqrt(2)
        difference = float(quantile * np.sqrt(methods * (methods + 1) / (6 * images)))
    return CriticalDifference(ranks, p, difference, posthoc, level, images, len(scores) - images)


def _check_level(level: float) -> None:
    if not 0 < level < 1:
        raise HeatproofError(f"level is {level!r}: take a number between 0 and 1, for example 0.05.")


def _check_methods(scores: pd.DataFrame, least: int) -> None:
    if scores.shape[1] < least:
        raise HeatproofError(f"There are {scores.shape[1]} methods: this test needs at least {least}.")
    if scores.columns.duplicated().any():
        raise HeatproofError(
            f"The method {scores.columns[scores.columns.duplicated()][0]!r} has two columns: give each method one."
        )

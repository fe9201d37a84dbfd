"""Ranks of methods within test cases, and who wins against whom."""

from __future__ import annotations

import numpy as np
from scipy.stats import rankdata

# Pairs compared at a time; the arrays stay in the processor's cache.
_PAIRS = 1_048_576


def rank_methods(scores: np.ndarray, higher_is_better: bool = True) -> np.ndarray:
    """Rank methods as in a competition: the best is 1, and equal scores share the smallest of their ranks.

    Parameters
    ----------
    scores
        (..., M), ranked along the last axis.
    higher_is_better
        Direction of the scores.

    Returns
    -------
    numpy.ndarray
        (..., M) float64; NaN where the score is NaN, which takes no rank from others.
    """
    best_first = -scores if higher_is_better else scores
    return rankdata(best_first, method="min", axis=-1, nan_policy="omit")


def pairwise_wins(scores: np.ndarray) -> np.ndarray:
    """Count the test cases in which one method ranks above another.

    Parameters
    ----------
    scores
        (T, M), higher is better in every test case; NaN where a method has no score.

    Returns
    -------
    numpy.ndarray
        (M, M) float32: in row p and column q the number of test cases in which p has the larger score, a tie counted
        as ½ for both. Cases in which p or q has no score do not count, and the diagonal is 0.
    """
    places = comparable(scores)
    cases, methods = places.shape
    wins = np.empty((methods, methods), dtype=np.float32)
    step = max(1, _PAIRS // max(1, methods))
    for start in range(0, methods, step):
        rows = slice(start, start + step)
        # Twice the wins, so that a tie is a whole number; no comparison with NaN is true.
        twice = np.zeros((len(places[0, rows]), methods), dtype=np.int8 if cases < 64 else np.int32)
        for place in places:
            twice += np.greater(place[rows, None], place).view(np.int8)
            twice += np.greater_equal(place[rows, None], place).view(np.int8)
        np.multiply(twice, 0.5, out=wins[rows], casting="same_kind")
    np.fill_diagonal(wins, 0)
    return wins


def comparable(scores: np.ndarray) -> np.ndarray:
    """Return the scores of each row as dense ranks in float32, which compare like the scores; NaN stays NaN."""
    return rankdata(scores, method="dense", axis=-1, nan_policy="omit").astype(np.float32)

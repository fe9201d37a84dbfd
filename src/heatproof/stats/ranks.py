"""Ranks of methods within test cases, ties, pairwise wins, and Bradley-Terry strengths."""

from __future__ import annotations

import numpy as np
from scipy.optimize import minimize
from scipy.stats import rankdata

from heatproof.core.integer_types import widen_dtype

# Pairs compared at a time, so that the arrays fit into the processor's cache.
_PAIRS = 1_048_576
# float32 represents all integers up to this one.
EXACT = 2**24
# Scores that differ by less, relative to the larger one, are tied in every ranking. The rounding error of a mean of ten
# thousand numbers, and of κ, is at most 1e4 × 2^-53.
TOLERANCE = 1e-12
# Positive and negative numbers cancel in a mean, which leaves an error of some 2^-53 of their size. So where scores
# have both signs, those that differ by less than this, relative to the largest score, are tied as well.
CANCELLATION = 64 * 2.0**-52
# Size of κ, which is a log-odds: equal κ of methods differ by the rounding of sums of such numbers.
KAPPA_SIZE = 1.0


def rank_methods(scores: np.ndarray, higher_is_better: bool = True, *, size: float = 0.0) -> np.ndarray:
    """Rank methods by competition ranking: the best has rank 1, ties share the smallest rank.

    Parameters
    ----------
    scores
        (..., M), ranked along the last axis.
    higher_is_better
        Direction of the scores.
    size
        As in `to_dense_ranks`.

    Returns
    -------
    numpy.ndarray
        (..., M) float64; NaN where the score is NaN, which does not affect the other ranks. Scores that are tied with
        their neighbour, see `to_dense_ranks`, share a rank.

    Examples
    --------
    >>> rank_methods(np.array([0.5, 0.9, 0.5, np.nan]))
    array([ 2.,  1.,  2., nan])
    """
    ranks = to_dense_ranks(scores, size=size).astype(np.float64)
    return rankdata(-ranks if higher_is_better else ranks, method="min", axis=-1, nan_policy="omit")


def pairwise_wins(scores: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
    """Count the test cases in which one method ranks above another.

    Parameters
    ----------
    scores
        (T, M), higher is better in every test case; NaN where a method has no score.
    weights
        (T,), weight of each test case; by default 1.

    Returns
    -------
    numpy.ndarray
        (M, M): in row p and column q the number of test cases in which p has the larger score, with ½ for a tie. Cases
        in which p or q has no score do not count, and the diagonal is 0. Exact where every case counts 1 (float32, or
        float64 for more than 2^23 cases), otherwise float64.
    """
    dense_ranks = to_dense_ranks(scores)
    cases, methods = dense_ranks.shape
    equal_weights = weights is None or bool((weights == 1).all())
    wins = np.empty((methods, methods), dtype=np.float32 if equal_weights and 2 * cases <= EXACT else np.float64)
    dtype = np.float64 if not equal_weights else np.int8 if cases < 64 else widen_dtype("int32", 2 * cases)
    step = max(1, _PAIRS // max(1, methods))
    for start in range(0, methods, step):
        rows = slice(start, start + step)
        # Doubled wins, so that a tie is an integer; no comparison with NaN is true.
        doubled = np.zeros((len(dense_ranks[0, rows]), methods), dtype=dtype)
        for case, row in enumerate(dense_ranks):
            for won in (np.greater(row[rows, None], row), np.greater_equal(row[rows, None], row)):
                doubled += won.view(np.int8) if equal_weights or weights is None else weights[case] * won
        np.multiply(doubled, 0.5, out=wins[rows], casting="same_kind")
    np.fill_diagonal(wins, 0)
    return wins


def to_dense_ranks(scores: np.ndarray, *, size: float = 0.0) -> np.ndarray:
    """Return dense ranks of each row in the order of the scores; scores that differ by rounding only are tied.

    The rule is relative, so that scores in another unit have the same ranks: see `TOLERANCE` and `CANCELLATION`.

    Parameters
    ----------
    scores
        (..., M), ranked along the last axis.
    size
        Size of the numbers from which the scores were computed, where it is known: `TOLERANCE` is relative to it where
        both scores are smaller. `KAPPA_SIZE` for κ.

    Returns
    -------
    numpy.ndarray
        (..., M), 1 is the lowest, and NaN stays NaN. float32, or float64 where a row is too long for float32 to
        represent all ranks.
    """
    order = np.argsort(scores, axis=-1, kind="stable")
    ordered = np.take_along_axis(scores, order, axis=-1)
    below, above = ordered[..., :-1], ordered[..., 1:]
    with np.errstate(invalid="ignore"):
        is_apart = above - below > np.maximum(_rounding(below, above, size), _cancellation(ordered))
    dtype = np.float32 if scores.shape[-1] <= EXACT else np.float64
    ranks = np.ones(scores.shape, dtype=dtype)
    np.put_along_axis(ranks, order[..., 1:], 1 + np.cumsum(is_apart, axis=-1, dtype=dtype), axis=-1)
    ranks[np.isnan(scores)] = np.nan
    return ranks


def untied_differences(scores: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return `scores` less `others`; 0 where the two are tied by `TOLERANCE`, and NaN where one is NaN."""
    with np.errstate(invalid="ignore"):
        differences = scores - others
        return np.where(np.abs(differences) <= _rounding(scores, others), 0.0, differences)


def _rounding(scores: np.ndarray, others: np.ndarray, size: float = 0.0) -> np.ndarray:
    """Return the largest difference by which two scores are tied; infinite scores have no tolerance."""
    larger = np.maximum(np.maximum(np.abs(scores), np.abs(others)), size)
    return np.where(np.isfinite(larger), TOLERANCE * larger, 0.0)


def _cancellation(ordered: np.ndarray) -> np.ndarray:
    """Return the rounding error (..., 1) that cancellation leaves in increasing scores; 0 where all have one sign."""
    finite = np.where(np.isfinite(ordered), ordered, 0.0)
    lowest, highest = finite.min(axis=-1, keepdims=True, initial=0), finite.max(axis=-1, keepdims=True, initial=0)
    return np.where((lowest < 0) & (highest > 0), CANCELLATION * np.maximum(-lowest, highest), 0.0)


# Pairs handled at a time.
_PAIRS = 262_144


def bradley_terry(wins: np.ndarray) -> np.ndarray:
    """Fit log-strengths β under which p beats q with probability 1 / (1 + exp(β_q - β_p)).

    The fit maximises the likelihood, with ½ added to the wins of both sides of every pair that was compared. This is
    the regularisation of Meta-Rank's odds; without it a method that wins everywhere has no finite strength. Ties are
    half a win for each side. The likelihood is concave, and has one maximum where comparisons connect all methods.

    Parameters
    ----------
    wins
        (M, M), wins of the row over the column, as returned by `heatproof.stats.ranks.pairwise_wins`.

    Returns
    -------
    numpy.ndarray
        (M,) float64, mean 0, higher is better; natural logarithm of the strength, on the scale of Meta-Rank's κ.
    """
    methods = len(wins)
    step = max(1, _PAIRS // max(1, methods))
    blocks = [slice(start, min(start + step, methods)) for start in range(0, methods, step)]
    totals = np.empty_like(wins)
    won = np.empty(methods)
    for rows in blocks:
        played = wins[rows] + wins[:, rows].T
        totals[rows] = played + (played > 0)
        won[rows] = wins[rows].sum(axis=1, dtype=np.float64) + 0.5 * (played > 0).sum(axis=1)

    def negative_likelihood(strengths: np.ndarray) -> tuple[float, np.ndarray]:
        odds = np.exp(strengths)
        value = -won @ strengths
        gradient = -won
        for rows in blocks:
            sums = odds[rows, None] + odds
            value += 0.5 * np.vdot(totals[rows], np.log(sums))
            gradient[rows] += odds[rows] * (totals[rows] / sums).sum(axis=1)
        return value, gradient

    games = totals.sum(axis=1, dtype=np.float64)
    start = np.log(won / np.maximum(games - won, 0.5)) if methods > 1 else np.zeros(methods)
    options = {"maxiter": 1000, "ftol": 1e-15, "gtol": 1e-8 * max(1.0, games.max(initial=0.0))}
    strengths = minimize(negative_likelihood, start, jac=True, method="L-BFGS-B", options=options).x
    return strengths - strengths.mean()

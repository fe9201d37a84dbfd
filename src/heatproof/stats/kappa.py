"""κ of Meta-Rank from pairwise wins, on all test cases and on resamples."""

from __future__ import annotations

import numpy as np
from scipy.sparse.csgraph import connected_components

from heatproof.stats.ranks import pairwise_wins

# Pairs × resamples handled at a time, so that the arrays fit into the processor's cache.
_CELLS = 131_072


def compute_kappa(
    scores: np.ndarray, around: np.ndarray | None = None, weights: np.ndarray | None = None
) -> tuple[np.ndarray, int]:
    """Return κ of scores (T, M), and the number of connected components of the methods.

    Parameters
    ----------
    scores
        (T, M), higher is better in every test case; NaN where a method has no score.
    around
        (M,), values that fix the mean of κ in every component where there are several; by default 0.
    weights
        (T,), weight of each test case, not negative; by default 1.

    Returns
    -------
    kappa : numpy.ndarray
        (M,), higher is better; NaN for methods without a score, and for methods alone in their component where `around`
        is given.
    parts : int
        Number of connected components; κ compares only methods of one component.
    """
    counted = np.ones(len(scores)) if weights is None else weights
    present = ~np.isnan(scores)
    if not present[counted > 0].any():
        return np.full(scores.shape[1], np.nan), 0
    placed = np.zeros(scores.shape[1]) if around is None else np.nan_to_num(around)
    kappa, component = solve_kappa(win_balance(pairwise_wins(scores, weights)), present, counted, placed)
    if around is not None:
        kappa[_is_alone(component)] = np.nan
    return kappa, int(component.max()) + 1


def win_balance(wins: np.ndarray) -> np.ndarray:
    """Return Σ_q n_pq D_pq for every p."""
    balance = np.empty(len(wins))
    step = max(1, _CELLS // len(wins))
    for start in range(0, len(wins), step):
        won, lost = (part.astype(np.float64) for part in (wins[start : start + step], wins[:, start : start + step].T))
        balance[start : start + step] = ((won + lost) * (np.log(won + 0.5) - np.log(lost + 0.5))).sum(axis=1)
    return balance


def half_win_spread(wins: np.ndarray) -> np.ndarray:
    """Return the standard deviation of κ, (M,), due to the half wins that are added to both sides of every pair.

    The half win and half loss of a pair are treated as half an observation each, and pairs as independent: by the delta
    method this gives their share of the variance of κ. For two methods it is at most the variance of Gart and Zweifel,
    On the bias of various estimators of the logit, 1967: 1 / (w + ½) + 1 / (l + ½). Networks that all agree show no
    spread, and this is the spread that they cannot exclude.
    """
    spread = np.empty(len(wins))
    step = max(1, _CELLS // len(wins))
    for start in range(0, len(wins), step):
        won, lost = (part.astype(np.float64) for part in (wins[start : start + step], wins[:, start : start + step].T))
        played = won + lost
        others = (played > 0).sum(axis=1)
        part = played * (others / (others + 1) / np.maximum(played.sum(axis=1), 1e-300))[:, None]
        squares = (part / (won + 0.5)) ** 2 + (part / (lost + 0.5)) ** 2
        spread[start : start + step] = np.sqrt(squares.sum(axis=1) / 2)
    return spread


def solve_kappa(
    balance: np.ndarray, present: np.ndarray, weights: np.ndarray, around: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Solve the normal equations of κ when test case t counts `weights[t]` times.

    All methods of a test case are compared with each other, so that the matrix of the normal equations is a diagonal
    less one outer product for each test case, and the system reduces to one unknown for each test case: u_t, the sum of
    κ over its methods.

    Parameters
    ----------
    balance
        (M,), Σ_q n_pq D_pq.
    present
        (T, M) bool, where there is a score.
    weights
        (T,), not negative.
    around
        (M,); in each connected component, κ has the same mean as these values.

    Returns
    -------
    kappa : numpy.ndarray
        (M,), NaN for methods that are in no test case.
    part : numpy.ndarray
        (M,) int, the connected component of each method, counted from 0; -1 for methods that are in no test case.
    """
    component = component_numbers(present[weights > 0])
    inside = component >= 0
    label, count = component[inside], component.max() + 1
    cases = present[weights > 0][:, inside].astype(np.float64)
    root = np.sqrt(weights[weights > 0])[:, None]
    degree = ((root**2 * cases.sum(axis=1, keepdims=True)) * cases).sum(axis=0)
    scaled = root * cases
    right = scaled @ (balance[inside] / degree)
    matrix = np.eye(len(cases)) - (scaled / degree) @ scaled.T
    # Adding a constant to all of a component does not change the equations; these free directions are fixed at zero.
    free = scaled @ np.eye(count)[label]
    matrix += (free / (free**2).sum(axis=0)) @ free.T
    solved = (balance[inside] + scaled.T @ np.linalg.solve(matrix, right)) / degree
    offset = np.bincount(label, around[inside] - solved) / np.bincount(label)
    kappa = np.full(len(balance), np.nan)
    kappa[inside] = solved + offset[label]
    return kappa, component


def component_numbers(present: np.ndarray) -> np.ndarray:
    """Return the connected component of each method of (T, M), counted from 0; -1 for methods in no test case."""
    cases = present.astype(np.float32)
    _, part_of_case = connected_components(cases @ cases.T > 0, directed=False)
    return np.where(present.any(axis=0), part_of_case[present.argmax(axis=0)], -1)


def resampled_kappa(
    scores: np.ndarray, present: np.ndarray, counts: np.ndarray, kappa: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return κ (M, R) when test cases have the weights `counts` (R, T), and the number of connected components (R,)."""
    balances = resampled_win_balances(scores, present, counts)
    if present.all():
        # Where all scores are present, κ is the row mean of D, and no system has to be solved.
        total = counts.sum(axis=1) * scores.shape[1]
        return balances.T.astype(np.float64) / total, np.ones(len(counts), dtype=int)
    resampled = np.empty((scores.shape[1], len(counts)))
    n_components = np.empty(len(counts), dtype=int)
    for repetition, weights in enumerate(counts):
        solved, component = solve_kappa(balances[repetition].astype(np.float64), present, weights, kappa)
        resampled[:, repetition] = np.where(_is_alone(component), np.nan, solved)
        n_components[repetition] = component.max() + 1
    return resampled, n_components


def resampled_win_balances(ranks: np.ndarray, present: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return Σ_q n_pq D_pq, (R, M) float32, for every resample; as `win_balance`, but in single precision."""
    methods = ranks.shape[1]
    cases = counts.sum(axis=1, keepdims=True).astype(np.float32)
    # The last column adds 1 in the product, because wins are doubled and ½ is added to each.
    weights = np.column_stack([counts, np.ones(len(counts))]).astype(np.float32)
    complete = present.all()
    balances = np.zeros((len(counts), methods), dtype=np.float32)
    for first in range(methods - 1):
        # Doubled wins and losses are integers. Earlier methods have been compared with this one already.
        own_ranks, other_ranks = ranks[:, first, None], ranks[:, first + 1 :]
        won = _doubled_wins(np.greater(own_ranks, other_ranks), np.greater_equal(own_ranks, other_ranks))
        lost = (
            won if complete else _doubled_wins(np.less(own_ranks, other_ranks), np.less_equal(own_ranks, other_ranks))
        )
        step = max(1, _CELLS // other_ranks.shape[1])
        for start in range(0, len(counts), step):
            rows = slice(start, start + step)
            wins = weights[rows] @ won
            losses = 2 * cases[rows] + 2 - wins if complete else weights[rows] @ lost
            played = None if complete else (wins + losses - 2) / 2
            log_odds = np.log(np.divide(wins, losses, out=wins), out=wins)
            if played is not None:
                log_odds *= played
            balances[rows, first] += log_odds.sum(axis=1)
            balances[rows, first + 1 :] -= log_odds
    if complete:
        balances *= cases
    return balances


def _doubled_wins(above: np.ndarray, not_below: np.ndarray) -> np.ndarray:
    """Return float32 (T + 1, M): 2 for a win, 1 for a tie, and a last row of ones."""
    doubled = np.ones((len(above) + 1, above.shape[1]), dtype=np.float32)
    np.add(above, not_below, out=doubled[:-1], dtype=np.float32)
    return doubled


def _is_alone(component: np.ndarray) -> np.ndarray:
    """Return which methods are alone in their connected component."""
    return np.bincount(component + 1)[component + 1] < 2

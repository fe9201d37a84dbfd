"""Bradley-Terry strengths from pairwise wins."""

from __future__ import annotations

import numpy as np
from scipy.optimize import minimize

# Pairs handled at a time.
_PAIRS = 262_144


def bradley_terry(wins: np.ndarray) -> np.ndarray:
    """Fit log-strengths β under which p beats q with probability 1 / (1 + exp(β_q - β_p)).

    Maximum likelihood, with ½ added to the wins of both sides of every pair that was compared. This is the
    regularisation of Meta-Rank's odds; without it a method that wins everywhere has no finite strength. Ties are half
    a win for each. The likelihood is concave and has one maximum where all methods are connected by comparisons.

    Parameters
    ----------
    wins
        (M, M), wins of the row over the column, as made by `heatproof.ranking.ranks.pairwise_wins`.

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
            both = odds[rows, None] + odds
            value += 0.5 * np.vdot(totals[rows], np.log(both))
            gradient[rows] += odds[rows] * (totals[rows] / both).sum(axis=1)
        return value, gradient

    games = totals.sum(axis=1, dtype=np.float64)
    start = np.log(won / np.maximum(games - won, 0.5)) if methods > 1 else np.zeros(methods)
    options = {"maxiter": 1000, "ftol": 1e-15, "gtol": 1e-8 * max(1.0, games.max(initial=0.0))}
    strengths = minimize(negative_likelihood, start, jac=True, method="L-BFGS-B", options=options).x
    return strengths - strengths.mean()

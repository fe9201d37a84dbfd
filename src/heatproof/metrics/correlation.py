"""Rank correlation of many pairs of rows at once."""

from __future__ import annotations

import numpy as np

from heatproof.errors import HeatproofError


def spearman_rows(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Spearman rank-order correlation of each row of `a` with the same row of `b`; ties share their average rank.

    Parameters
    ----------
    a, b
        (N, P).

    Returns
    -------
    numpy.ndarray
        (N,) float64 in [-1, 1]; NaN where a row is constant (P = 1 included) or has a NaN.

    Raises
    ------
    HeatproofError
        If the shapes differ or are not (N, P).
    """
    # The workflow reads the names of metrics while it builds its plan, and scipy.stats is slow to import.
    from scipy.stats import rankdata

    if a.shape != b.shape or a.ndim != 2:
        raise HeatproofError(
            f"Two arrays of one shape (rows, values) can be correlated, but not {a.shape} and {b.shape}."
        )
    if a.size == 0:
        return np.full(len(a), np.nan)
    # scipy.stats.spearmanr correlates all columns with all, and with axis= warns at every constant row.
    ranks_a, ranks_b = (rankdata(rows, axis=1) - (a.shape[1] + 1) / 2 for rows in (a, b))
    covariance = (ranks_a * ranks_b).sum(axis=1)
    scale = np.sqrt((ranks_a**2).sum(axis=1) * (ranks_b**2).sum(axis=1))
    defined = scale > 0
    correlation = np.full(len(a), np.nan)
    # Rounding must not carry a perfect correlation beyond 1.
    correlation[defined] = np.clip(covariance[defined] / scale[defined], -1, 1)
    return correlation

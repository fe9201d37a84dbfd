"""Rank correlations and areas under curves that several metrics use."""

from __future__ import annotations

import numpy as np

from heatproof.errors import HeatproofError


def spearman_rows(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the Spearman correlation of each row of `a` with the same row of `b`.

    Tied values share their average rank.

    Parameters
    ----------
    a, b
        (N, P).

    Returns
    -------
    numpy.ndarray
        (N,) float64 in [-1, 1]; NaN where a row is constant (P = 1 included) or contains a NaN.

    Raises
    ------
    HeatproofError
        If the shapes differ or are not (N, P).
    """
    # Every scoring job has imported pandas already; importing scipy.stats takes longer than the scoring itself.
    import pandas as pd

    if a.shape != b.shape or a.ndim != 2:
        raise HeatproofError(
            f"Correlation needs two arrays of the same shape (rows, values), not {a.shape} and {b.shape}."
        )
    if a.size == 0:
        return np.full(len(a), np.nan)
    # scipy.stats.spearmanr correlates every column with every other one, and with axis= warns at each constant row.
    ranks_a, ranks_b = (pd.DataFrame(rows).rank(axis=1).to_numpy() - (a.shape[1] + 1) / 2 for rows in (a, b))
    covariance = (ranks_a * ranks_b).sum(axis=1)
    scale = np.sqrt((ranks_a**2).sum(axis=1) * (ranks_b**2).sum(axis=1))
    defined = scale > 0
    correlation = np.full(len(a), np.nan)
    # Rounding can push a perfect correlation just above 1.
    correlation[defined] = np.clip(covariance[defined] / scale[defined], -1, 1)
    return correlation


RULES = ("trapezoid", "left", "mean")


def area(curves: np.ndarray, rule: str = "trapezoid", at: np.ndarray | None = None) -> np.ndarray:
    """Return the mean height of each curve.

    Parameters
    ----------
    curves
        (N, S).
    rule
        ``trapezoid``: straight lines between the points; ``left``: the height of each point holds up to the next point,
        so that the last point does not count; ``mean``: the mean of all points, wherever they lie.
    at
        (N, S), increasing positions of the points; None for even spacing.

    Returns
    -------
    numpy.ndarray
        (N,) float64, in the units of the curves; NaN where all points of a curve have the same position.

    Raises
    ------
    HeatproofError
        If the rule is unknown, or if a curve has too few points for it.
    """
    if rule not in RULES:
        raise HeatproofError(f"rule is {rule!r}: take one of {', '.join(RULES)}.")
    if rule == "mean":
        return curves.mean(axis=1)
    if curves.shape[1] < 2:
        raise HeatproofError(f"The rule {rule!r} needs a curve of two points or more: take more steps, or 'mean'.")
    widths = np.ones((1, curves.shape[1] - 1)) if at is None else np.diff(at, axis=1)
    heights = curves[:, :-1] if rule == "left" else (curves[:, :-1] + curves[:, 1:]) / 2
    total_width = widths.sum(axis=1)
    return (heights * widths).sum(axis=1) / np.where(total_width > 0, total_width, np.nan)

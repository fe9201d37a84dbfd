"""The area under a curve."""

from __future__ import annotations

import numpy as np

from heatproof.errors import HeatproofError

RULES = ("trapezoid", "left", "mean")


def area(curves: np.ndarray, rule: str = "trapezoid") -> np.ndarray:
    """Return the mean height of curves with evenly spaced points.

    Parameters
    ----------
    curves
        (N, S).
    rule
        ``trapezoid``: the end points count half, divided by S - 1; ``left``: the mean without the last point;
        ``mean``: the mean of all points.

    Returns
    -------
    numpy.ndarray
        (N,) float64, in the units of the curves.

    Raises
    ------
    HeatproofError
        If the rule is unknown, or there are fewer than two points for it.
    """
    if rule not in RULES:
        raise HeatproofError(f"rule is {rule!r}: take one of {', '.join(RULES)}.")
    if rule == "mean":
        return curves.mean(axis=1)
    if curves.shape[1] < 2:
        raise HeatproofError(f"The rule {rule!r} needs a curve of two points or more: take more steps, or 'mean'.")
    if rule == "left":
        return curves[:, :-1].mean(axis=1)
    return (curves.sum(axis=1) - (curves[:, 0] + curves[:, -1]) / 2) / (curves.shape[1] - 1)

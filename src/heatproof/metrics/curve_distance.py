"""Hausdorff distance between the curves of a metric."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations

import numpy as np
from scipy.spatial.distance import cdist

from heatproof.errors import HeatproofError

KINDS = ("hausdorff", "modified")


def hausdorff(first: np.ndarray, second: np.ndarray, *, kind: str = "hausdorff") -> float:
    """Return the Hausdorff distance between two curves, as sets of points.

    Parameters
    ----------
    first, second
        (S, 2) and (T, 2), the points of each curve, for example share removed and accuracy. Points with a NaN are left
        out.
    kind
        ``hausdorff``: the largest distance from a point of either curve to the nearest point of the other one (Li et
        al. 2024, section 5.2). ``modified``: the mean of these distances in place of the largest, so that one outlier
        does not decide (Dubuisson and Jain, A Modified Hausdorff Distance for Object Matching, 1994, equation 23).

    Returns
    -------
    float
        0 for equal curves, in the units of the curves; NaN where a curve has no points.

    Raises
    ------
    HeatproofError
        If the kind is unknown, or the points are not pairs.
    """
    if kind not in KINDS:
        raise HeatproofError(f"kind is {kind!r}: take one of {', '.join(KINDS)}.")
    points = [np.asarray(curve, dtype=np.float64) for curve in (first, second)]
    if any(curve.ndim != 2 or curve.shape[1] != 2 for curve in points):
        raise HeatproofError(f"Curves must have shape (S, 2), not {points[0].shape} and {points[1].shape}.")
    points = [curve[~np.isnan(curve).any(axis=1)] for curve in points]
    if not (len(points[0]) and len(points[1])):
        return float("nan")
    distances = cdist(*points)
    nearest = distances.min(axis=1), distances.min(axis=0)
    return float(max(one_way.max() if kind == "hausdorff" else one_way.mean() for one_way in nearest))


def pairwise_distances(curves: Mapping[str, np.ndarray], *, kind: str = "hausdorff") -> dict[tuple[str, str], float]:
    """Compute the distance of every pair of curves.

    Parameters
    ----------
    curves
        Name to points (S, 2), for example ``original``, ``introduce`` and ``remove``.
    kind
        As in `hausdorff`.

    Returns
    -------
    dict
        Pair of names to distance. Li et al. 2024, table 1, report the smallest; it is near 0 where the metric does not
        distinguish two of the curves.
    """
    return {(a, b): hausdorff(curves[a], curves[b], kind=kind) for a, b in combinations(curves, 2)}

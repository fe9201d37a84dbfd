"""Intervals of κ from bootstrap resamples."""

from __future__ import annotations

import numpy as np
from scipy.stats import t as student

from heatproof.errors import HeatproofError
from heatproof.metrics.bootstrap import interval

INTERVALS = ("student", "percentile")


def interval_of(
    kappa: np.ndarray, resampled: np.ndarray, n_cases: np.ndarray, *, level: float = 0.95, kind: str = "student"
) -> tuple[np.ndarray, np.ndarray]:
    """Return the bootstrap interval of κ over n test cases.

    ``student``: κ ± t · s, where t is the quantile of Student's distribution with n - 1 degrees of freedom and s the
    standard deviation of the resamples times √(n / (n - 1)), because resamples spread by a variance that is divided by
    n (Efron and Tibshirani, An Introduction to the Bootstrap, 1993, chapter 12; Hesterberg, What Teachers Should Know
    about the Bootstrap, 2015). Percentiles lack both corrections and are too narrow with few test cases:
    benchmarks/coverage.py measures both.

    Parameters
    ----------
    kappa
        (M,), from all test cases.
    resampled
        (M, R); NaN where a resample knows nothing of the method, which is left out.
    n_cases
        (M,), test cases in which each method has a score.
    level
        Nominal coverage.
    kind
        ``student``, or ``percentile`` for the percentiles of the resamples.

    Returns
    -------
    low, high : numpy.ndarray
        (M,) each; NaN for a method scored in fewer than two test cases.

    Raises
    ------
    HeatproofError
        If there is no such kind.
    """
    if kind not in INTERVALS:
        raise HeatproofError(f"There is no interval named {kind!r}: known are {', '.join(INTERVALS)}.")
    some = n_cases > 1
    low, high = np.full((2, len(kappa)), np.nan)
    if kind == "percentile":
        low[some], high[some] = interval(resampled[some], level)
        return low, high
    known = ~np.isnan(resampled)
    count = known.sum(axis=1)
    some &= count > 1
    values = np.where(known, resampled, 0)[some]
    mean = values.sum(axis=1, keepdims=True) / count[some, None]
    spread = np.sqrt(np.where(known[some], (values - mean) ** 2, 0).sum(axis=1) / (count[some] - 1))
    n = n_cases[some]
    half = student.ppf((1 + level) / 2, n - 1) * np.sqrt(n / (n - 1)) * spread
    low[some], high[some] = kappa[some] - half, kappa[some] + half
    return low, high

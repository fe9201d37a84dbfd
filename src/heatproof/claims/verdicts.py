"""Measured quantities of claims, and the verdicts: value, interval, p, and q over the claims of a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.stats import false_discovery_control
from scipy.stats import t as student

from heatproof.metrics.bootstrap import bootstrap_interval

REPRODUCED, CONTRADICTED, OPEN, UNTESTED = "reproduced", "contradicted", "open", "not testable here"
# Fewest independent networks, and fewest trainings per side, for an interval over them.
MINIMUM_NETWORKS, MINIMUM_SEEDS = 3, 5


class Untestable(Exception):
    """A claim that these results cannot test; the text completes "not testable here, because ...".

    `value` is the quantity where it is known nevertheless, without an interval.
    """

    def __init__(self, reason: str, value: float = np.nan) -> None:
        super().__init__(reason)
        self.value = value


class Measurement(NamedTuple):
    """Measured quantity of a claim.

    Attributes
    ----------
    draws
        (1 + R,), the quantity on all images, and on R resamples; only the value where its error is known.
    basis
        Number and kind of the comparisons behind the quantity.
    networks
        Number of independent networks behind it; 0 where they are not counted.
    error, freedom
        Standard error and its degrees of freedom, where they are known from trainings or from a jackknife instead of
        resamples.
    seeds
        Number of trainings per side, where the quantity is over trainings; otherwise 0.
    largest
        Largest possible magnitude of the quantity, such as 1 for a correlation; the interval ends there.
    choices
        Number of comparisons of which the quantity is the extreme one. The extreme of several equal quantities lies
        beyond each of them by chance, so that interval and p are corrected for all of them (Bonferroni).
    """

    draws: np.ndarray
    basis: str = ""
    networks: int = 0
    error: float = np.nan
    freedom: float = np.nan
    seeds: int = 0
    largest: float = np.inf
    choices: int = 1


class Estimate(NamedTuple):
    """Value of a quantity, its interval, and the two-sided p-value of the limit being its true value."""

    value: float
    low: float
    high: float
    p: float


def estimate(measured: Measurement, limit: float, level: float, cases: int) -> Estimate:
    """Return the value, interval and p-value of a measured quantity.

    Parameters
    ----------
    measured
        The quantity.
    limit
        Limit of the claim's rule.
    level
        Nominal coverage of the interval.
    cases
        Number of independent cases that were drawn, images or networks: the interval is wider with few, see
        `bootstrap_interval`.

    Returns
    -------
    Estimate
        p is that of Student's t where the error is known, such as Welch's error of trainings; otherwise (1 + count) /
        (1 + R), where count is the number of the R resamples that lie at least as far from the value as the limit does.
    """
    level = 1 - (1 - level) / measured.choices
    value = float(measured.draws[0])
    distance = abs(value - limit)
    if not np.isnan(measured.error):
        half = student.ppf((1 + level) / 2, measured.freedom) * measured.error
        if measured.error > 0:
            p = 2 * student.sf(distance / measured.error, measured.freedom)
        else:
            # Equal trainings give no estimate of the error; rankings that agree on all halves have no error.
            p = np.nan if measured.seeds else float(distance == 0)
        return Estimate(value, value - half, value + half, float(p))
    draws = measured.draws[1:][~np.isnan(measured.draws[1:])]
    if np.isnan(value) or len(draws) < 2 or cases < 2:
        return Estimate(value, np.nan, np.nan, np.nan)
    if np.ptp(draws) == 0 and draws[0] == value:
        low = high = value
    else:
        (low,), (high,) = bootstrap_interval(np.array([value]), draws[None], np.array([cases]), level=level)
    # The variance of resamples is divided by the number of cases, see `bootstrap_interval`.
    spread = np.abs(draws - value) * np.sqrt(cases / (cases - 1))
    p = min(1.0, measured.choices * (1 + (spread >= distance).sum()) / (1 + len(draws)))
    low, high = np.clip([low, high], -measured.largest, measured.largest)
    return Estimate(value, float(low), float(high), float(p))


def verdict_of(estimated: Estimate, side: str, limit: float, opposite: float | None = None) -> str:
    """Return the verdict by the interval alone: on the claim's side of the limit, on the other side, or on both.

    With an `opposite`, the limit is that of `decisive_limit`.
    """
    limit = decisive_limit(estimated.value, side, limit, opposite)
    if np.isnan(estimated.low) or estimated.low <= limit <= estimated.high:
        return OPEN
    return REPRODUCED if (estimated.low > limit) == (side == "above") else CONTRADICTED


def decisive_limit(value: float, side: str, limit: float, opposite: float | None = None) -> float:
    """Return the limit that a value is tested against: the opposite one if there is one and the value lies beyond it.

    "Rankings differ" can only be reproduced below a share of 1, the share of rankings that do not differ, and only be
    contradicted above a lower limit, from which on a difference is too small to matter.
    """
    if opposite is None:
        return limit
    beyond = value > opposite if side == "below" else value < opposite
    return opposite if beyond else limit


def extreme_of(parts: Sequence[Measurement], choose: np.ufunc) -> Measurement:
    """Return the smallest, or with ``np.maximum`` the largest, of several quantities."""
    draws = choose.reduce([part.draws for part in parts])
    networks = min(part.networks for part in parts)
    return Measurement(draws, f"comparisons: {len(parts)}, {parts[0].basis}", networks, choices=len(parts))


def adjusted_p_values(p: Sequence[float]) -> np.ndarray:
    """Return Benjamini and Hochberg's q-values of p-values; NaN stays NaN."""
    values = np.asarray(p, dtype=float)
    defined = ~np.isnan(values)
    q = np.full(len(values), np.nan)
    if defined.any():
        q[defined] = false_discovery_control(values[defined], method="bh")
    return q

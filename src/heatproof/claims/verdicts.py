"""What is measured of a claim, and the verdict on it: value, interval, p, and q over the claims of a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.stats import false_discovery_control
from scipy.stats import t as student

from heatproof.metrics.bootstrap import bootstrap_interval

REPRODUCED, CONTRADICTED, OPEN, UNTESTED = "reproduced", "contradicted", "open", "not testable here"
# Independent networks, and trainings a side, below which there is no interval over them.
LEAST_NETWORKS, LEAST_SEEDS = 3, 5


class Untestable(Exception):
    """A claim that these results cannot test; the text completes "not testable here, because ...".

    `value` is the quantity where it is known all the same, only without an interval.
    """

    def __init__(self, reason: str, value: float = np.nan) -> None:
        super().__init__(reason)
        self.value = value


class Measured(NamedTuple):
    """Measured quantity of a claim.

    Attributes
    ----------
    draws
        (1 + R,) the quantity on all images, and on R resamples of them; the value alone where its error is known.
    basis
        How many comparisons, and of what, are behind the number.
    networks
        Independent networks behind it; 0 where they are not counted.
    error, freedom
        Standard error and its degrees of freedom, where they are known from trainings or from a jackknife instead of
        resamples.
    seeds
        Trainings a side, where the quantity is over trainings; else 0.
    largest
        Size that the quantity cannot exceed, such as 1 of a correlation; the interval ends there.
    choices
        Comparisons of which the quantity is the extreme one. Of several that are alike the least lies below each by
        chance alone, so that interval and p allow for all of them (Bonferroni).
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
    """Value of a quantity, its interval, and the two-sided p of the limit being its true value."""

    value: float
    low: float
    high: float
    p: float


def estimate(measured: Measured, limit: float, level: float, cases: int) -> Estimate:
    """Return value, interval and p of a measured quantity.

    Parameters
    ----------
    measured
        The quantity.
    limit
        Of the claim's rule.
    level
        Nominal coverage of the interval.
    cases
        Independent cases that were drawn, images or networks: the interval is wider with few, see `bootstrap_interval`.

    Returns
    -------
    Estimate
        p is that of Student's t where the error is known, as of trainings by Welch; else (1 + count) / (1 + R), where
        count is how many of R resamples lie as far from the value as the limit does.
    """
    level = 1 - (1 - level) / measured.choices
    value = float(measured.draws[0])
    away = abs(value - limit)
    if not np.isnan(measured.error):
        half = student.ppf((1 + level) / 2, measured.freedom) * measured.error
        if measured.error > 0:
            p = 2 * student.sf(away / measured.error, measured.freedom)
        else:
            # Trainings that are all the same say nothing; rankings that agree on all halves are as they are.
            p = np.nan if measured.seeds else float(away == 0)
        return Estimate(value, value - half, value + half, float(p))
    draws = measured.draws[1:][~np.isnan(measured.draws[1:])]
    if np.isnan(value) or len(draws) < 2 or cases < 2:
        return Estimate(value, np.nan, np.nan, np.nan)
    if np.ptp(draws) == 0 and draws[0] == value:
        low = high = value
    else:
        (low,), (high,) = bootstrap_interval(np.array([value]), draws[None], np.array([cases]), level=level)
    # Resamples spread by a variance that is divided by the number of cases, as `bootstrap_interval` says.
    spread = np.abs(draws - value) * np.sqrt(cases / (cases - 1))
    p = min(1.0, measured.choices * (1 + (spread >= away).sum()) / (1 + len(draws)))
    low, high = np.clip([low, high], -measured.largest, measured.largest)
    return Estimate(value, float(low), float(high), float(p))


def verdict_of(found: Estimate, side: str, limit: float, opposite: float | None = None) -> str:
    """Return the verdict of an interval alone: it lies on the claim's side of the limit, on the other, or on both.

    With an `opposite`, the limit is the one of `decisive_limit`.
    """
    limit = decisive_limit(found.value, side, limit, opposite)
    if np.isnan(found.low) or found.low <= limit <= found.high:
        return OPEN
    return REPRODUCED if (found.low > limit) == (side == "above") else CONTRADICTED


def decisive_limit(value: float, side: str, limit: float, opposite: float | None = None) -> float:
    """Return the limit that a value is tested against: the opposite one if there is one and the value lies beyond it.

    "Rankings differ" can only be reproduced below a share of 1, which is what rankings reach that do not differ, and
    only be contradicted above a lower limit, from which on a difference is too small to matter.
    """
    if opposite is None:
        return limit
    beyond = value > opposite if side == "below" else value < opposite
    return opposite if beyond else limit


def extreme(parts: Sequence[Measured], choose: np.ufunc) -> Measured:
    """Return the least, or by ``np.maximum`` the largest, of several quantities."""
    draws = choose.reduce([part.draws for part in parts])
    networks = min(part.networks for part in parts)
    return Measured(draws, f"comparisons: {len(parts)}, {parts[0].basis}", networks, choices=len(parts))


def adjusted(p: Sequence[float]) -> np.ndarray:
    """Return Benjamini and Hochberg's q of the known ones of some p-values."""
    values = np.asarray(p, dtype=float)
    known = ~np.isnan(values)
    q = np.full(len(values), np.nan)
    if known.any():
        q[known] = false_discovery_control(values[known], method="bh")
    return q

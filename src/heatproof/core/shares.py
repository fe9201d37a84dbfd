"""Shares of pixels, patches or channels as exact numbers, so that a count is not one off by rounding."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

# Largest denominator of a share that is written or computed as a simple fraction, such as 0.29, 1 / 3 and 1 - 0.8.
SIMPLE = 1_000_000
# Shares that are computed in a few steps differ by less from the fraction that they stand for.
ROUNDING = Fraction(1, 10**15)


def exact_share(share: float) -> Fraction:
    """Return the fraction that a share stands for: the simple one within rounding, or the decimal that is printed.

    Parameters
    ----------
    share
        A Python or NumPy number: 0.29 is 29/100, of which the float is a little less, and ``1 - 0.8`` is 1/5.
    """
    printed = Fraction(str(share))
    simple = printed.limit_denominator(SIMPLE)
    return simple if abs(simple - printed) <= ROUNDING else printed


def count_of_share(share: float, total: int, rounding: Callable[[Fraction], int] = math.floor) -> int:
    """Return how many of `total` pixels, patches or channels a share is.

    Parameters
    ----------
    share
        As in `exact_share`.
    total
        Number of all of them.
    rounding
        What to do with a share that falls between two counts: `math.floor`, `math.ceil` or `round`.
    """
    return rounding(exact_share(share) * total)

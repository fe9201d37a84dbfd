"""Numbers as they are read: rounded, with a true minus."""

from __future__ import annotations

import math


def rounded(value: float, places: int) -> str:
    """Write a finite number with so many places; what rounds to zero has no sign."""
    # The sum turns −0 into 0.
    return formatted(round(value, places) + 0.0, f".{places}f")


def formatted(value: float, form: str) -> str:
    """Write a number in a format of Python's."""
    return format(value, form).replace("-", "−")


def score_told(value: float) -> str:
    """Write the score of an image or a method; NaN is one that is undefined."""
    return "undefined" if math.isnan(value) else rounded(value, 2)


def told(value: str, places: int = 3) -> str:
    """Write a number for reading: rounded, with a true minus; what is no number stays as it is."""
    try:
        number = float(value)
    except ValueError:
        return value
    return "" if math.isnan(number) else rounded(number, places)


def digits_told(value: str) -> str:
    """Write a number of any size with three digits."""
    return formatted(float(value), ".3g") if value else ""


def share_told(value: str) -> str:
    """Write a share in [0, 1] as a percentage."""
    return f"{float(value):.1%}" if value else ""


def interval_told(low: str, high: str) -> str:
    """Write an interval; nothing where there is none."""
    return f"{told(low, 2)} to {told(high, 2)}" if low else ""

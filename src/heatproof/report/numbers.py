"""Numbers as they are read: rounded, with a true minus."""

from __future__ import annotations


def rounded(value: float, places: int) -> str:
    """Write a finite number with so many places; what rounds to zero has no sign."""
    # The sum turns −0 into 0.
    return f"{round(value, places) + 0.0:.{places}f}".replace("-", "−")

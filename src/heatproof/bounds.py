"""Annotations that bound the values of options, checked before work starts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated


@dataclass(frozen=True)
class Bounds:
    """Where a number has to lie, inside ``typing.Annotated``; None leaves a side open.

    Attributes
    ----------
    least, most
        Smallest and largest value, themselves allowed.
    above, below
        The same, themselves not allowed.
    """

    least: float | None = None
    above: float | None = None
    most: float | None = None
    below: float | None = None

    def hold(self, value: float) -> bool:
        """Tell whether a number lies within."""
        return (
            (self.least is None or value >= self.least)
            and (self.above is None or value > self.above)
            and (self.most is None or value <= self.most)
            and (self.below is None or value < self.below)
        )

    def __str__(self) -> str:
        words = {"of at least": self.least, "above": self.above, "of at most": self.most, "below": self.below}
        return " and ".join(f"{word} {limit:g}" for word, limit in words.items() if limit is not None)


Count = Annotated[int, Bounds(least=1)]

"""A response curve as metrics read it, and the area under a curve."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from heatproof.errors import HeatproofError

OUTPUTS = ("logit", "probability", "accuracy")
TARGETS = ("label", "predicted")
RULES = ("trapezoid", "left", "mean")


@dataclass(frozen=True)
class ResponseCurve:
    """What a network said along one perturbation sequence of N images with S points.

    Attributes
    ----------
    arrays
        ``logit``, ``log_probability`` (N, S, 2): of the label, and of the class predicted for the intact image;
        ``predicted`` (N, S): the class predicted at each point; ``changed`` (N, S): pixels that have changed;
        ``magnitude``, ``positive`` (N, S): sums of |map| and max(map, 0) over them; ``total_magnitude``,
        ``total_positive`` (N,): over the whole map.
    classes
        (N, 2): the label, and the class predicted for the intact image.
    pixels
        Pixels of an image.
    """

    arrays: Mapping[str, np.ndarray]
    classes: np.ndarray
    pixels: int

    def read(self, output: str, target: str) -> np.ndarray:
        """Return the responses (N, S) float64: a logit, a probability in [0, 1], or 1 where the class is predicted.

        Raises
        ------
        HeatproofError
            If there is no such output or target.
        """
        for name, value, allowed in (("output", output, OUTPUTS), ("target", target, TARGETS)):
            if value not in allowed:
                raise HeatproofError(f"{name} is {value!r}: take one of {', '.join(allowed)}.")
        which = TARGETS.index(target)
        if output == "accuracy":
            return (self.arrays["predicted"] == self.classes[:, which, None]).astype(np.float64)
        values = self.arrays["logit" if output == "logit" else "log_probability"][:, :, which].astype(np.float64)
        return values if output == "logit" else np.exp(values)

    @property
    def fractions(self) -> np.ndarray:
        """Share of the pixels that has changed: (N, S) float64."""
        return self.arrays["changed"] / self.pixels


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

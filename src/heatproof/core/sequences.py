"""Perturbation sequences: which pixels change at each step, and in which order.

Network passes and scores use the same functions, so that both see the same pixels. A sequence is nested: a pixel that
changes at a step remains changed at all later steps. Therefore the first step at which each pixel changes describes the
sequence completely.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np

from heatproof.core.grids import AnyGrid, as_grid, patch_boxes, patch_count
from heatproof.core.randomness import numpy_generator
from heatproof.core.shares import count_of_share, exact_share
from heatproof.errors import HeatproofError

MODES = ("deletion", "insertion")
ORDERS = ("morf", "lerf")
IMPUTATIONS = ("baseline", "road")
TIES = ("random", "index")


@dataclass(frozen=True)
class Perturbation:
    """A perturbation sequence: how an image changes step by step.

    Exactly one of `steps`, `step_size`, `fractions` and `thresholds` is set.

    Attributes
    ----------
    mode
        ``deletion`` goes from the image to its baseline, ``insertion`` from the baseline to the image.
    order
        ``morf``: most relevant pixels first; ``lerf``: least relevant pixels first.
    steps
        Number of equal steps into which the pixels (or patches) are divided; the curve has ``steps + 1`` points.
    step_size
        Number of pixels (or patches) per step.
    fractions
        Fraction of the pixels that has changed at each point of the curve, increasing; counts are rounded down.
    thresholds
        Instead of an order by rank: at each point, the pixels above ``1 - threshold`` of the rescaled map have changed.
        The first point of the curve is the unchanged image.
    rescale
        With `thresholds`, scale each map so that its smallest value is 0 and its largest 1, after negative values are
        set to zero; false does not shift the smallest value.
    magnitude
        Rank by the magnitude of the map instead of its signed value.
    grid
        Change complete patches of this grid, ranked by the sum of the map in each patch; None changes single pixels. An
        integer for a square grid, or (rows, columns).
    imputation
        ``baseline`` fills in the baseline image, ``road`` uses the noisy linear interpolation of ROAD.
    baseline, baseline_options
        Name of the baseline, and its options.
    noise
        Standard deviation of ROAD's noise, in the units of the network's input.
    update
        Recompute the map on the perturbed image before every step (Hesse et al. 2024, section 4.2).
    ties
        Order of equal values: ``random`` draws an order for each image, ``index`` goes row by row.
    """

    mode: str = "deletion"
    order: str = "morf"
    steps: int | None = None
    step_size: int | None = None
    fractions: tuple[float, ...] | None = None
    thresholds: tuple[float, ...] | None = None
    rescale: bool = True
    magnitude: bool = False
    grid: AnyGrid | None = None
    imputation: str = "baseline"
    baseline: str = "zeros"
    baseline_options: Mapping[str, Any] = field(default_factory=dict)
    noise: float = 0.01
    update: bool = False
    ties: str = "random"

    def __post_init__(self) -> None:
        if self.grid is not None:
            object.__setattr__(self, "grid", as_grid(self.grid, "grid"))
        for name, allowed in (("mode", MODES), ("order", ORDERS), ("imputation", IMPUTATIONS), ("ties", TIES)):
            if getattr(self, name) not in allowed:
                raise HeatproofError(f"{name} is {getattr(self, name)!r}: take one of {', '.join(allowed)}.")
        step_options = [n for n in ("steps", "step_size", "fractions", "thresholds") if getattr(self, n) is not None]
        if len(step_options) != 1:
            raise HeatproofError(
                f"Only one of steps, step_size and fractions can be set, not {' and '.join(step_options)}."
            )
        for name in ("steps", "step_size"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise HeatproofError(f"{name} must be a whole number of at least 1, not {value!r}.")
        for name in ("fractions", "thresholds"):
            values = getattr(self, name)
            if values is not None and not (
                len(values) and all(0 <= v <= 1 for v in values) and list(values) == sorted(set(values))
            ):
                raise HeatproofError(f"{name} must be increasing and lie within 0 and 1, not {list(values)}.")
        if self.mode == "insertion" and (self.imputation == "road" or self.thresholds is not None):
            raise HeatproofError("ROAD and value thresholds delete: insertion needs a baseline and an order.")
        if self.update and (self.mode == "insertion" or self.imputation == "road" or self.thresholds or self.grid):
            raise HeatproofError("A map can be updated along a deletion of single pixels with a baseline only.")

    def to_settings(self) -> dict[str, Any]:
        """Return the fields as JSON-compatible settings, without those that have no effect in this sequence."""
        without = ["baseline", "baseline_options"] if self.imputation == "road" else ["noise"]
        without += ["rescale"] if self.thresholds is None else ["order", "ties"]
        without += [] if self.magnitude else ["magnitude"]
        values = {key: value for key, value in asdict(self).items() if value is not None and key not in without}
        return {key: list(value) if isinstance(value, tuple) else value for key, value in values.items()}

    @classmethod
    def from_settings(cls, values: Mapping[str, Any]) -> Perturbation:
        """Return the sequence of settings from `to_settings`."""
        fields: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in values.items()
        }
        return cls(**fields)

    def units(self, height: int, width: int) -> int:
        """Return the number of pixels, or patches, that are ranked."""
        return height * width if self.grid is None else patch_count(self.grid)

    def counts(self, height: int, width: int) -> np.ndarray:
        """Return the number of pixels, or patches, that have changed at each point, (S,) int64, non-decreasing.

        Raises
        ------
        HeatproofError
            If there are more steps than pixels, or the sequence has thresholds, whose counts differ between images.
        """
        total = self.units(height, width)
        what = "pixels" if self.grid is None else "patches"
        if self.thresholds is not None:
            raise HeatproofError("How many pixels lie above a threshold differs between maps: it has no count.")
        if self.fractions is not None:
            return np.array([count_of_share(fraction, total) for fraction in self.fractions], dtype=np.int64)
        if self.steps is not None:
            if self.steps > total:
                raise HeatproofError(f"{self.steps} steps are more than the {total} {what}: take fewer steps.")
            return np.arange(self.steps + 1, dtype=np.int64) * total // self.steps
        assert self.step_size is not None
        return np.minimum(np.arange(0, total + self.step_size, self.step_size, dtype=np.int64), total)

    def points(self, height: int, width: int) -> int:
        """Return the number S of points of the curve."""
        return len(self.thresholds) + 1 if self.thresholds is not None else len(self.counts(height, width))


def pixel_ranking(
    maps: np.ndarray, image_ids: Sequence[str], seed: int, *, ties: str = "random", grid: AnyGrid | None = None
) -> np.ndarray:
    """Rank the pixels (or patches) of every map, most relevant first.

    Equal values are ordered at random, by a draw from (seed, ``"ties"``, image id) that is the same for all sequences
    of one image, or by their index, row by row. Reverse the ranking for LeRF.

    Parameters
    ----------
    maps
        Attribution maps (N, H, W) of any sign.
    image_ids
        N image ids.
    seed
        The workflow's seed.
    ties
        ``random`` or ``index``.
    grid
        Rank the patches of this grid by their sums; None ranks pixels.

    Returns
    -------
    numpy.ndarray
        (N, H × W) or (N, patches) int64: indices of pixels or patches, counted row by row.
    """
    values = _patch_values(maps, grid) if grid is not None else maps.reshape(len(maps), -1)
    ranking, units = np.empty(values.shape, dtype=np.int64), values.shape[1]
    for row, image_id in enumerate(image_ids):
        # Adding zero turns -0.0 into 0.0, so that both tie.
        falling = -values[row] + 0.0
        drawn = np.arange(units) if ties == "index" else numpy_generator(seed, "ties", image_id).permutation(units)
        ranking[row] = drawn[np.argsort(falling[drawn], kind="stable")]
    return ranking


def check_ranking(ranking: np.ndarray, count: int, units: int, image_ids: Sequence[str]) -> None:
    """Check that a ranking (N, P) has every pixel, or patch, of each image exactly once.

    Raises
    ------
    HeatproofError
        If it has not; the message names the image.
    """
    if ranking.shape != (count, units) or not np.issubdtype(ranking.dtype, np.integer):
        raise HeatproofError(
            f"The ranking is {ranking.dtype} {ranking.shape}: give whole numbers {(count, units)}, the indices of all "
            "pixels, or patches, of each image from most to least relevant."
        )
    wrong = np.flatnonzero((np.sort(ranking, axis=1) != np.arange(units)).any(axis=1))
    if len(wrong):
        raise HeatproofError(
            f"The ranking of image {image_ids[int(wrong[0])]!r} does not hold each of 0 … {units - 1} once: give the "
            "indices of all pixels, or patches, from most to least relevant."
        )


def first_changed(
    perturbation: Perturbation,
    maps: np.ndarray,
    image_ids: Sequence[str],
    seed: int,
    ranking: np.ndarray | None = None,
) -> np.ndarray:
    """Return the first point of the curve at which each pixel has changed; S for pixels that never change.

    Parameters
    ----------
    perturbation
        The sequence, with S points.
    maps
        Attribution maps (N, H, W).
    image_ids, seed
        They determine the order of equal values.
    ranking
        Ranking (N, H × W) or (N, patches), most relevant first, to use instead of that of the maps.

    Returns
    -------
    numpy.ndarray
        (N, H, W) int32.
    """
    count, height, width = maps.shape
    points = perturbation.points(height, width)
    if perturbation.thresholds is not None:
        values = np.maximum(maps.astype(np.float64), 0)
        bounds = np.stack([_bounds(positive, perturbation.thresholds, perturbation.rescale) for positive in values])
        above = values[..., None] > bounds[:, None, None]
        return (points - above.sum(axis=3)).astype(np.int32)
    counts = perturbation.counts(height, width)
    if ranking is None:
        ranking = pixel_ranking(maps, image_ids, seed, ties=perturbation.ties, grid=perturbation.grid)
    if perturbation.order == "lerf":
        ranking = ranking[:, ::-1]
    units = ranking.shape[1]
    point_of_rank = np.searchsorted(counts, np.arange(units), side="right").astype(np.int32)
    of_unit = np.empty(ranking.shape, dtype=np.int32)
    np.put_along_axis(of_unit, ranking, np.broadcast_to(point_of_rank, ranking.shape), axis=1)
    if perturbation.grid is None:
        return of_unit.reshape(count, height, width)
    first = np.empty(maps.shape, dtype=np.int32)
    for unit, box in enumerate(patch_boxes(perturbation.grid, height, width)):
        first[:, box.top : box.bottom, box.left : box.right] = of_unit[:, unit, None, None]
    return first


def changed_sums(first: np.ndarray, values: np.ndarray, points: int) -> np.ndarray:
    """Sum values over the pixels that have changed at each point.

    Parameters
    ----------
    first
        First point at which each pixel has changed (N, H, W), from `first_changed`.
    values
        Values to sum, (N, H, W).
    points
        Number S of points of the curve.

    Returns
    -------
    numpy.ndarray
        Sums (N, S) float64.
    """
    sums = [
        np.bincount(points_of_image.ravel(), weights=weights.ravel().astype(np.float64), minlength=points + 1)[:points]
        for points_of_image, weights in zip(first, values, strict=True)
    ]
    return np.cumsum(np.stack(sums), axis=1)


def _bounds(values: np.ndarray, thresholds: Sequence[float], rescale: bool) -> np.ndarray:
    """Return, for each threshold, the largest float that does not exceed ``1 - threshold`` of a map.

    It computes with fractions, because a rounded product could place a pixel that lies on a threshold above it.
    """
    low, high = Fraction(float(values.min()) if rescale else 0), Fraction(float(values.max()))
    bounds = []
    for threshold in thresholds:
        exact = low + (1 - exact_share(threshold)) * (high - low)
        bound = float(exact)
        bounds.append(bound if Fraction(bound) <= exact else np.nextafter(bound, -np.inf))
    return np.array(bounds)


def _patch_values(maps: np.ndarray, grid: AnyGrid) -> np.ndarray:
    cut = (maps[:, box.top : box.bottom, box.left : box.right] for box in patch_boxes(grid, *maps.shape[1:]))
    return np.stack([values.sum(axis=(1, 2), dtype=np.float64) for values in cut], axis=1)

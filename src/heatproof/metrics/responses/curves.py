"""Response curves along perturbation sequences, with a baseline or ROAD's imputation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from heatproof.core.batch import Arrays, Batch
from heatproof.core.registry import select_options
from heatproof.core.sequences import Perturbation
from heatproof.errors import HeatproofError
from heatproof.metrics.responses.base import MapResponse, Response

OUTPUTS = ("logit", "probability", "accuracy")
TARGETS = ("label", "predicted")
# Quantities of the map at each point, and of the complete map, which are equal at every point.
POINT_QUANTITIES, MAP_QUANTITIES = ("changed", "magnitude", "positive"), ("total_magnitude", "total_positive")
# `intact` is the class predicted for the intact image. It is equal at every point, so that it compresses well.
OUTPUT_QUANTITIES = (
    "logit_label",
    "logit_predicted",
    "log_probability_label",
    "log_probability_predicted",
    "predicted",
    "intact",
)


@dataclass(frozen=True)
class ResponseCurve:
    """Outputs of a network along one perturbation sequence, for N images and S points.

    Attributes
    ----------
    arrays
        ``logit``, ``log_probability`` (N, S, 2): outputs for the label, and for the class predicted for the intact
        image; ``predicted`` (N, S): the class predicted at each point; ``changed`` (N, S): the number of changed
        pixels; ``magnitude``, ``positive`` (N, S): sums over the changed pixels of the map's absolute values, and of
        its positive values; ``total_magnitude``, ``total_positive`` (N,): the same sums over the complete map.
    classes
        (N, 2): the label, and the class predicted for the intact image.
    pixels
        Number of pixels of an image.
    task
        Task of the network, which defines a decision; see `decisions`.
    """

    arrays: Mapping[str, np.ndarray]
    classes: np.ndarray
    pixels: int
    task: str = "multiclass"

    def read(self, output: str, target: str) -> np.ndarray:
        """Return the outputs for one target at each point, (N, S) float64.

        Parameters
        ----------
        output
            ``logit``; ``probability``, in [0, 1]; or ``accuracy``, 1 where the network decides for the target, else 0.
        target
            ``label``, or ``predicted`` for the class predicted for the intact image.

        Raises
        ------
        HeatproofError
            If there is no such output or target.
        """
        for name, value, allowed in (("output", output, OUTPUTS), ("target", target, TARGETS)):
            if value not in allowed:
                raise HeatproofError(f"{name} is {value!r}: take one of {', '.join(allowed)}.")
        index = TARGETS.index(target)
        if output == "accuracy":
            return decisions(self.arrays, self.classes, self.task)[:, :, index].astype(np.float64)
        values = self.arrays["logit" if output == "logit" else "log_probability"][:, :, index].astype(np.float64)
        return values if output == "logit" else np.exp(values)

    @property
    def fractions(self) -> np.ndarray:
        """Fraction of the pixels that has changed at each point, (N, S) float64."""
        return self.arrays["changed"] / self.pixels


def decisions(arrays: Mapping[str, np.ndarray], classes: np.ndarray, task: str) -> np.ndarray:
    """Return where a network decides for each target: (N, S, 2) bool.

    With classes that exclude each other, the network decides for the predicted class. With several labels, it decides
    for each label separately, for those with a logit above 0.

    Parameters
    ----------
    arrays, classes
        As in `ResponseCurve`.
    task
        One of `heatproof.core.tasks.WITH_PROBABILITY`.
    """
    if task == "multilabel":
        return arrays["logit"] > 0
    return arrays["predicted"][:, :, None] == classes[:, None]


class TwoTargets(MapResponse):
    """Map response for two target classes: the label, and the class predicted for the intact image."""

    needs_intact = True
    orders_pixels = True

    def outputs(self, batch: Batch, arrays: Arrays) -> dict[str, np.ndarray]:
        """Return the outputs for both targets as separate arrays, and the class predicted for the intact image."""
        assert batch.intact is not None
        by_target = {
            f"{output}_{target}": arrays[output][:, :, index]
            for output in ("logit", "log_probability")
            for index, target in enumerate(TARGETS)
        }
        return {**by_target, "predicted": arrays["predicted"], "intact": batch.intact["predicted"][:, None]}

    def for_both_targets(self, quantities: Arrays, batch: Batch) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Return the outputs (N, S, 2) for both targets, and their classes (N, 2)."""
        arrays = {
            output: np.stack([quantities[f"{output}_label"], quantities[f"{output}_predicted"]], axis=2)
            for output in ("logit", "log_probability")
        }
        arrays["predicted"] = quantities["predicted"].astype(np.int64)
        return arrays, np.stack([batch.labels, quantities["intact"][:, 0].astype(np.int64)], axis=1)

    def synthetic_store(self, logits: np.ndarray, other_quantities: Mapping[str, Any]) -> Arrays:
        """Return the store's array for two images, from logits (points,) for both targets and other quantities."""
        outputs = {"logit": logits, "log_probability": logits - 2}
        values = {f"{output}_{target}": outputs[output] for output in outputs for target in TARGETS} | dict(
            other_quantities
        )
        of_image = np.stack([np.broadcast_to(values.get(name, 0.0), logits.shape) for name in self.quantities])
        return {"response": np.stack([of_image, of_image])[:, None].astype(np.float64)}


class Curves(TwoTargets):
    """Responses along one perturbation sequence; the settings describe the sequence."""

    kind = "curves"
    quantities = (*OUTPUT_QUANTITIES, *POINT_QUANTITIES, *MAP_QUANTITIES, "pixels")

    @property
    def name_parts(self) -> list[str]:
        """Mode, order and imputation of the sequence."""
        settings = self.settings
        order = "value" if "thresholds" in settings else settings["order"]
        imputation = "road" if settings["imputation"] == "road" else settings["baseline"]
        extras = [word for key, word in (("magnitude", "magnitude"), ("update", "updated")) if settings.get(key)]
        return [settings["mode"], order, imputation, *extras]

    @property
    def recomputes_maps(self) -> bool:  # type: ignore[override]
        """Whether the map is recomputed before every step."""
        return bool(self.settings["update"])

    @cached_property
    def sequence(self) -> Perturbation:
        """The sequence that the settings describe."""
        return Perturbation.from_settings(self.settings)

    @classmethod
    def from_options(
        cls, options_function: Callable[..., Any], options: Mapping[str, Any], sizes: Iterable[tuple[int, int]] = ()
    ) -> dict[str, Response]:
        """Return a response for each of the metric's sequences, checked against the image sizes."""
        sequences: Mapping[str, Perturbation] = options_function(**select_options(options_function, options))
        for sequence in sequences.values():
            for size in sizes:
                sequence.points(*size)
        return {argument: cls(sequence.to_settings()) for argument, sequence in sequences.items()}

    def points(self, size: tuple[int, int]) -> int:
        """Return the number of points of the sequence."""
        return self.sequence.points(*size)

    def run(self, batch: Batch) -> Arrays:
        """Run the network along the sequence, and return its outputs and the sums of the map at each point."""
        from heatproof.core.passes import read_outputs
        from heatproof.core.perturb.curves import curve_variants, updated_curves

        two_targets, pixels = replace(batch, targets=batch.both_targets), np.array(batch.images[0, 0].numel())
        ranking, results = batch.inputs.get("ranking"), []
        for maps, explain in self.maps_by_method(batch):
            if self.recomputes_maps and explain is None:
                raise HeatproofError("A sequence with update=True needs `explain`, a function that recomputes the map.")
            if explain is None:
                batches, arranged = curve_variants(
                    two_targets, maps, self.sequence, intact=batch.intact, ranking=ranking
                )
                arrays = arranged(read_outputs(two_targets, batches))
            else:
                arrays = updated_curves(two_targets, maps, self.sequence, explain, ranking)
            at_points = {key: arrays[key] for key in POINT_QUANTITIES}
            of_maps = {key: arrays[key][:, None] for key in MAP_QUANTITIES}
            results.append({**self.outputs(batch, arrays), **at_points, **of_maps, "pixels": pixels})
        return self.stack_methods(results)

    def as_argument(self, quantities: Arrays, batch: Batch) -> ResponseCurve:
        """Return the response curve."""
        arrays, classes = self.for_both_targets(quantities, batch)
        arrays |= {name: quantities[name] for name in POINT_QUANTITIES}
        arrays |= {name: quantities[name][:, 0] for name in MAP_QUANTITIES}
        arrays["changed"] = arrays["changed"].astype(np.int64)
        return ResponseCurve(arrays, classes, int(quantities["pixels"][0, 0]), batch.task)

    def points_of(self, other: Response) -> list[int] | None:
        """Return the indices of another curve's fractions, or None.

        Curves with recomputed maps are never shared, because their maps depend on the points.
        """
        requested, available = other.settings.get("fractions"), self.settings.get("fractions")
        if requested is None or available is None or other.settings["update"] or len(available) <= len(requested):
            return None
        settings, other_settings = (
            {key: value for key, value in curve.settings.items() if key != "fractions"} for curve in (self, other)
        )
        return (
            [available.index(fraction) for fraction in requested]
            if settings == other_settings and set(requested) <= set(available)
            else None
        )

    @property
    def fineness(self) -> int:
        """Number of fractions; 0 for a sequence of equal steps, which is never shared."""
        return len(self.settings.get("fractions") or ())

    def synthetic_arrays(self, size: tuple[int, int]) -> Arrays:
        """Return a straight line between the outputs for the image and for its baseline."""
        sequence, pixels = self.sequence, size[0] * size[1]
        if sequence.thresholds is None:
            changed = sequence.counts(*size) * pixels / sequence.units(*size)
        else:
            changed = np.linspace(0, pixels, sequence.points(*size))
        fractions = changed / pixels
        outputs = 1 - fractions if sequence.mode == "deletion" else fractions
        map_quantities = {"changed": changed, "magnitude": fractions, "positive": fractions, "pixels": float(pixels)}
        return self.synthetic_store(outputs, map_quantities | dict.fromkeys(MAP_QUANTITIES, 1.0))

"""Patch drops: outputs of a network for each image, intact and with each patch of a grid deleted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import Any, ClassVar, Literal

from heatproof.core.batch import Arrays, Batch
from heatproof.core.grids import Grid, grid_name, patch_count
from heatproof.core.options import PatchGrid
from heatproof.metrics.responses.base import (
    Array,
    NetworkResponse,
    Response,
)


def patch_options(
    *,
    grid: PatchGrid | None = None,
    baseline: str | None = None,
    baseline_options: Mapping[str, Any] | None = None,
    output: Literal["logit", "probability"] = "logit",
) -> None:
    """Options of patch drops: grid, baseline and output; grid and baseline default to the finetuning's."""


class Patches(NetworkResponse):
    """Patch drops of one grid and baseline."""

    kind = "patches"
    rule = "drops"
    array_specs: ClassVar[Mapping[str, Array]] = {
        "logit": Array(("variant",)),
        "log_probability": Array(("variant",)),
        "predicted": Array(("variant",), "int32", is_class_number=True),
        "target_rank": Array(("variant",), "int16", is_class_number=True),
    }
    evaluate_only_options = ("baseline_options",)
    options = staticmethod(patch_options)

    @cached_property
    def name(self) -> str:
        """Name in paths: the grid and the baseline."""
        return f"g{grid_name(self.settings['grid'])}_{self.settings['baseline']}"

    @classmethod
    def complete(cls, options: Mapping[str, Any], reference: tuple[Grid, str] = (4, "zeros")) -> dict[str, Any]:
        """Return the options; grid and baseline default to those of the finetuning."""
        named = {"grid": options["grid"] or reference[0], "baseline": options["baseline"] or reference[1]}
        return {**options, **named}

    @classmethod
    def from_options(
        cls, options_function: Callable[..., Any], options: Mapping[str, Any], sizes: Iterable[tuple[int, int]] = ()
    ) -> dict[str, Response]:
        """Return the patch drops; the metric's option `truncate` allows grids that cut off borders."""
        settings = {key: options[key] for key in ("grid", "baseline")}
        settings |= {key: options[key] for key in ("baseline_options", "truncate") if options.get(key)}
        return {cls.argument: cls(settings)}

    @property
    def variants(self) -> int:
        """Number of variants: the patches and the intact image."""
        return patch_count(self.settings["grid"]) + 1

    def run(self, batch: Batch) -> Arrays:
        """Run the network on each image, intact and without each patch."""
        from heatproof.core.passes import read_variants
        from heatproof.core.perturb.patches import patch_variants

        return read_variants(batch, *patch_variants(batch, **self.settings))

    def extra_inputs(self, arrays: Arrays, batch: Batch) -> dict[str, Any]:
        """Return the grid."""
        return {"grid": self.settings["grid"]}

"""Read the metrics of a config, and find the responses that they need.

A response is identified by its settings, not by the metric that reads it. Metrics that need the same response share one
store, and a metric whose responses already exist needs no network pass.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from heatproof.core.batch import Batch
from heatproof.core.grids import Grid, NonSquareGrid, patch_size
from heatproof.core.options import (
    check_defaults,
    check_options,
    defining_module,
    normalise_grid_options,
    options_of,
    short_repr,
)
from heatproof.core.perturb.baselines import BASELINES
from heatproof.core.registry import import_callable, is_reference, look_up, suggest_name
from heatproof.errors import HeatproofError
from heatproof.metrics.registry import METRICS, Metric
from heatproof.metrics.responses.base import Response, at_points
from heatproof.store.table_formats import TABLES_WITH_SCORES
from heatproof.workflow.config.types import MAXIMUM_IMAGES


@dataclass(frozen=True)
class MetricChoice:
    """A metric with the name and the options that the config gives it.

    Attributes
    ----------
    metric
        Its entry in the registry.
    options
        All of its options, with defaults filled in.
    responses
        The responses that it reads, by the name of the argument that takes them.
    module
        Module of its code.
    output
        Which output of the network is read, if the metric does not choose it.
    domain
        The baseline of the run that the metric uses; None if it names its own or uses none. Weights finetuned in the
        domain of another baseline are not scored with it.
    images
        Number of images on which it is scored; None for all images of the responses that it reads.
    """

    name: str
    metric: Metric
    options: Mapping[str, Any]
    responses: Mapping[str, Response]
    module: str
    output: str
    domain: str | None = None
    images: int | None = None

    @property
    def kinds(self) -> set[str]:
        """Kinds of responses that it reads, by the keys of `evaluation.images`."""
        return {response.rule for response in self.responses.values()} & {"curves", "subsets", "parts"} or {"drops"}


def read_metric(
    name: str,
    settings: dict[str, Any],
    sizes: Iterable[tuple[int, int]] = (),
    reference: tuple[Grid, str] = (4, "zeros"),
    target: str | int = "label",
) -> MetricChoice:
    """Return a metric of the config, after checking its options by scoring made-up responses.

    Parameters
    ----------
    name, settings
        Name and settings from the config.
    sizes
        Height and width of the images of all datasets, where known.
    reference
        Grid and baseline of the finetuning.
    target
        The target that the run explains and scores.

    Raises
    ------
    HeatproofError
        A sentence about the first error.
    """
    kind, images, sizes = settings.pop("metric", name), settings.pop("images", None), list(sizes)
    if images is not None and (type(images) is not int or not 2 <= images <= MAXIMUM_IMAGES):
        raise HeatproofError(
            f"'images' of the metric {name!r} must be a whole number of at least 2 and at most {MAXIMUM_IMAGES}, not "
            f"{short_repr(images)}."
        )
    metric = _metric_of_reference(kind) if is_reference(kind) else look_up(METRICS, kind, "metric")
    what = f"metric {name!r}"
    if metric.name in ("idsds", "sds"):
        raise HeatproofError(
            f"The {what} follows from `drops`: every grid, baseline and output that is named there is scored, and "
            "called idsds where the weights are in-domain, else sds."
        )
    if name.endswith(TABLES_WITH_SCORES):
        raise HeatproofError(
            f"{name!r} cannot name a metric, because its file of scores would have the name of a table beside those of "
            f"{name.rpartition('.')[0]!r}: give it another name."
        )
    # The workflow takes the other options from the model or the dataset.
    defaults = {key: value for key, value in metric.options.items() if key not in metric.reads.evaluate_only_options}
    unknown = [key for key in settings if key not in defaults]
    if unknown:
        raise HeatproofError(f"The {what} has no option {unknown[0]!r}: {suggest_name(str(unknown[0]), defaults)}")
    for function in (metric.options_function, metric.function):
        options_of_function = {key: value for key, value in settings.items() if key in options_of(function)}
        check_options(
            function, options_of_function, what, positional=metric.inputs if function is metric.function else ()
        )
    settings = normalise_grid_options(settings, metric.options_function, metric.function)
    domain = None
    if "baseline" not in settings and defaults.get("baseline") == "zeros":
        # In the papers, zero is the mean colour, so the baseline of the run replaces it. A baseline that fills patches
        # from their border cannot fill single pixels; for these it is the mean.
        patches = "grid" in defaults and (settings.get("grid") or defaults["grid"])
        can_fill = patches or "grid" not in look_up(BASELINES, reference[1], "baseline").options
        domain = reference[1] if can_fill else "mean"
        settings = {**settings, "baseline": domain}
    if "target" in defaults:
        if settings.get("target", target) != target:
            raise HeatproofError(
                f"The {what} scores target: {settings['target']}, and the maps of this run explain target: {target}: "
                f"leave it out, or write target: {settings['target']} at the top of the config, for all maps and "
                "metrics."
            )
        # In responses, the target of the run has the place of the label.
        settings = {**settings, "target": "label"}
    options = {**defaults, **settings}
    check_defaults(options, what)
    try:
        responses = metric.responses(metric.reads.complete(options, reference), sizes)
        _check_grids(responses.values(), sizes)
        _check_baselines(responses.values(), what)
        _try_out(metric, options, responses, min(sizes, default=(224, 224)))
    except HeatproofError as error:
        raise HeatproofError(f"The {what} cannot be scored like that. {error}") from None
    except Exception as error:  # a user's metric can raise any exception
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise HeatproofError(f"The {what} fails on made-up responses ({reason}): mend it, or its options.") from None
    output = options.get("output", "logit")
    if not any("baseline" in response.settings for response in responses.values()):
        domain = None  # ROAD imputes
    return MetricChoice(
        name, metric, options, responses, defining_module(metric.function, kind), output, domain, images
    )


def _metric_of_reference(reference: str) -> Metric:
    function = import_callable(reference, "metric")
    matching = [metric for metric in METRICS.values() if metric.function is function]
    if not matching:
        raise HeatproofError(
            f"The metric {reference!r} says nothing of its direction and range: put the decorator "
            "`heatproof.metrics.registry.metric` before it."
        )
    if len(matching) > 1:
        names = " and ".join(repr(metric.name) for metric in matching)
        raise HeatproofError(f"The metric {reference!r} is entered as {names}: give each a function of its own.")
    return matching[0]


def _check_grids(responses: Iterable[Response], sizes: Sequence[tuple[int, int]]) -> None:
    for response in responses:
        if isinstance(grid := response.settings.get("grid"), int | NonSquareGrid):
            for size in sizes:
                patch_size(grid, *size, truncate=bool(response.settings.get("truncate")))


def _check_baselines(responses: Iterable[Response], what: str) -> None:
    for response in responses:
        if "baseline" in response.settings:
            baseline = look_up(BASELINES, response.settings["baseline"], "baseline")
            options = response.settings.get("baseline_options") or {}
            if baseline.options.get("grid", 0) is None and not {**options, **response.settings}.get("grid"):
                raise HeatproofError(
                    f"The baseline {baseline.name!r} fills patches from their border, and single pixels are replaced "
                    "here: name another baseline, or ROAD's metrics."
                )
            where = f"baseline {baseline.name!r} of the {what}"
            check_options(baseline.function, options, where, positional=("images", "image_ids", "seed"))


def _try_out(
    metric: Metric, options: Mapping[str, Any], responses: Mapping[str, Response], size: tuple[int, int]
) -> None:
    """Score two made-up images, so that a wrong option raises an error now, and not after a day of network passes."""
    numbers: Any = np.zeros(2, dtype=np.int64)
    batch = Batch(None, None, None, numbers, numbers, ("0", "1"), 0, size=size)
    inputs: dict[str, Any] = {"image_ids": batch.image_ids}
    for argument, response in responses.items():
        arrays = response.synthetic_arrays(size)
        if arrays is None:
            return
        arrays = at_points(arrays, 0) if response.needs_maps else arrays
        inputs |= response.inputs(argument, arrays, batch, options.get("output", "logit"))
    with np.errstate(all="ignore"), warnings.catch_warnings(action="ignore"):
        metric.score(inputs, options)

"""Metrics that a config names, and the responses that they read.

Responses are named by what they are, not by who reads them: metrics that need the same sequence share one cache, and a
metric over responses that are there makes no network pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from heatproof.bounds import Count
from heatproof.errors import HeatproofError
from heatproof.grids import patch_boxes
from heatproof.metrics.catalogue import METRICS
from heatproof.metrics.curve import ResponseCurve
from heatproof.metrics.registry import Metric, keyword_defaults
from heatproof.perturbation.baselines import BASELINES
from heatproof.plan.options import check_defaults, check_options, module_of
from heatproof.provenance import digest
from heatproof.registry import import_callable, is_reference, look_up, nearest
from heatproof.subsets import subset_masks

# What the workflow knows better than a config, by what a metric reads: it comes from the model or the dataset.
NOT_IN_A_CONFIG = {"pictures": ("mean", "std", "random_mask"), "parts": ("masks", "removed", "drops")}
# As many as there are thresholds in the published code.
PIC_POINTS = range(13)
# Settings of responses; the other options are the metric's own.
PICTURE_SETTINGS = ("thresholds", "masks")
SUBSET_SETTINGS = ("sizes", "samples", "baseline", "baseline_options")
CHANGE_SETTINGS = ("radius", "samples", "norm")
# Which patch drops a metric reads; grid and baseline are those of finetuning unless others are named.
PATCHES = {"grid": None, "baseline": None, "output": "logit"}


@dataclass(frozen=True)
class Response:
    """What a network is asked once, whatever the number of metrics that read the answer.

    Attributes
    ----------
    kind
        ``curves``, ``pictures`` and ``explanations`` belong to a method, ``subsets`` and ``parts`` to a model.
    settings
        All that decides what it is, in plain values.
    """

    kind: str
    settings: Mapping[str, Any] = field(hash=False)

    @property
    def name(self) -> str:
        """The name in paths: readable, and made of the settings."""
        words = [self.kind]
        if self.kind == "curves":
            order = "value" if "thresholds" in self.settings else self.settings["order"]
            fill = "road" if self.settings["imputation"] == "road" else self.settings["baseline"]
            words = [self.settings["mode"], order, fill, *(["updated"] if self.settings["update"] else [])]
        return "_".join(words) + "-" + digest([self.kind, dict(self.settings)])[:8]

    @property
    def explains(self) -> bool:
        """Whether maps are made anew on changed images."""
        return self.kind == "explanations" or bool(self.settings.get("update"))

    @property
    def modules(self) -> list[str]:
        """The modules of ours that make it."""
        if self.kind == "curves":
            road = self.settings["imputation"] == "road"
            return ["heatproof.perturbation.curves", *(["heatproof.perturbation.road"] if road else [])]
        return ["heatproof.perturbation." + {"pictures": "pic", "explanations": "sensitivity"}[self.kind]]


@dataclass(frozen=True)
class MetricEntry:
    """A metric under the name that the config gives it.

    Attributes
    ----------
    metric
        Its entry in the table.
    options
        All of its options, filled in.
    responses
        What it reads, by the name of the argument that takes it; empty for one over patch drops.
    module
        Where its code is.
    """

    name: str
    metric: Metric
    options: Mapping[str, Any]
    responses: Mapping[str, Response]
    module: str


def read_metric(name: str, given: dict[str, Any], sizes: Iterable[tuple[int, int]] = ()) -> MetricEntry:
    """Return what the config says of a metric, checked by scoring a made-up curve with it.

    Parameters
    ----------
    name, given
        From the config.
    sizes
        Height and width of the images of all datasets, where known.

    Raises
    ------
    HeatproofError
        One sentence for the first thing that is wrong.
    """
    kind, sizes = given.pop("metric", name), list(sizes)
    metric = _referenced(kind) if is_reference(kind) else look_up(METRICS, kind, "metric")
    what = f"metric {name!r}"
    if metric.name in ("idsds", "sds"):
        raise HeatproofError(
            f"The {what} follows from `drops`: every grid, baseline and output that is named there is scored, and "
            "called idsds where the weights are in-domain, else sds."
        )
    known = {**metric.options, **(PATCHES if metric.reads == "patches" else {})}
    for key in NOT_IN_A_CONFIG.get(metric.reads, ()):
        known.pop(key, None)
    unknown = [key for key in given if key not in known]
    if unknown:
        raise HeatproofError(f"The {what} has no option {unknown[0]!r}: {nearest(str(unknown[0]), known)}")
    for function in filter(None, (metric.sequences, metric.settings, metric.function)):
        own = {key: value for key, value in given.items() if key in keyword_defaults(function)}
        check_options(function, own, what, positional=metric.inputs if function is metric.function else ())
    if metric.reads == "patches":
        check_options(_patch_settings, {key: given[key] for key in PATCHES if key in given}, what)
    options = {**known, **given}
    check_defaults(options, what)
    try:
        responses = _responses(metric, options, sizes)
        _check_baselines(responses.values(), what)
        _try_out(metric, options, min(sizes, default=(224, 224)))
    except HeatproofError as error:
        raise HeatproofError(f"The {what} cannot be scored like that. {error}") from None
    except Exception as error:  # a metric can be the user's own, and fail in any way
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise HeatproofError(f"The {what} fails on made-up responses ({reason}): mend it, or its options.") from None
    return MetricEntry(name, metric, options, responses, module_of(metric.function, kind))


def _referenced(reference: str) -> Metric:
    function = import_callable(reference, "metric")
    found = [metric for metric in METRICS.values() if metric.function is function]
    if not found:
        raise HeatproofError(
            f"The metric {reference!r} says nothing of its direction and range: put the decorator "
            "`heatproof.metrics.registry.metric` before it."
        )
    if len(found) > 1:
        names = " and ".join(repr(metric.name) for metric in found)
        raise HeatproofError(f"The metric {reference!r} is entered as {names}: give each a function of its own.")
    return found[0]


def _responses(metric: Metric, options: Mapping[str, Any], sizes: list[tuple[int, int]]) -> dict[str, Response]:
    def part(keys: Iterable[str]) -> dict[str, Any]:
        return {key: _plain(options[key]) for key in keys if key in options}

    if metric.reads == "curves":
        sequences = metric.perturbations(options)
        for sequence in sequences.values():
            for size in sizes:
                sequence.points(*size)
                if sequence.grid is not None:
                    patch_boxes(sequence.grid, *size)
        return {argument: Response("curves", sequence.described()) for argument, sequence in sequences.items()}
    if metric.reads == "pictures":
        _check_pictures(options)
        return {"pictures": Response("pictures", part(PICTURE_SETTINGS))}
    if metric.reads == "subsets":
        subset_masks(["image"], 32, 32, options["sizes"], options["samples"], 0)
        return {"drops": Response("subsets", part(SUBSET_SETTINGS))}
    if metric.reads == "parts":
        return {"drops": Response("parts", {})}
    if metric.reads == "explanations":
        return {"changes": Response("explanations", part(CHANGE_SETTINGS))}
    return {}


def _check_baselines(responses: Iterable[Response], what: str) -> None:
    for response in responses:
        if "baseline" in response.settings:
            baseline = look_up(BASELINES, response.settings["baseline"], "baseline")
            options = response.settings.get("baseline_options") or {}
            where = f"baseline {baseline.name!r} of the {what}"
            check_options(baseline.function, options, where, positional=("images", "image_ids", "seed"))


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _check_pictures(options: Mapping[str, Any]) -> None:
    shares = options["thresholds"]
    if shares is not None and not (
        len(shares) and all(0 < share <= 1 for share in shares) and list(shares) == sorted(set(shares))
    ):
        raise HeatproofError(f"thresholds has to be increasing, above 0 and at most 1: {list(shares)} is not.")


def _patch_settings(
    *, grid: Count | None = None, baseline: str | None = None, output: Literal["logit", "probability"] = "logit"
) -> None:
    """Take what names patch drops."""


def _try_out(metric: Metric, options: Mapping[str, Any], size: tuple[int, int]) -> None:
    """Score two made-up images: what an option gets wrong is said now, and not after a day of passes."""
    inputs: Mapping[str, Any]
    if metric.reads == "curves":
        inputs = _made_up_curves(metric, options, *size)
    elif metric.reads == "pictures":
        inputs = {"pictures": _made_up_pictures(len(options["thresholds"] or PIC_POINTS) + 2)}
    else:
        return
    with np.errstate(all="ignore"):
        metric.score(inputs, options)


def _made_up_pictures(variants: int) -> dict[str, np.ndarray]:
    rising = np.stack([np.linspace(0, 1, variants)] * 2)
    both = np.stack([rising, rising], axis=2)
    zeros = np.zeros((2, variants), dtype=np.int64)
    entropy = (100 + 100 * rising).astype(np.int64)
    said = {"logit": both, "log_probability": both - 2, "predicted": zeros, "entropy": entropy}
    return {**said, "classes": zeros[:, :2]}


def _made_up_curves(metric: Metric, options: Mapping[str, Any], height: int, width: int) -> dict[str, ResponseCurve]:
    curves = {}
    for argument, sequence in metric.perturbations(options).items():
        points = sequence.points(height, width)
        if sequence.thresholds is None:
            units = height * width if sequence.grid is None else sequence.grid**2
            changed = sequence.counts(height, width) * (height * width) / units
        else:
            changed = np.linspace(0, height * width, points)
        rows = np.stack([changed, changed]) / (height * width)
        ends = 1 - rows if sequence.mode == "deletion" else rows
        arrays = {
            "logit": np.stack([ends, ends], axis=2),
            "log_probability": np.stack([ends, ends], axis=2) - 2,
            "predicted": np.zeros((2, points), dtype=np.int64),
            "changed": np.stack([changed, changed]).astype(np.int64),
            "magnitude": rows,
            "positive": rows,
            "total_magnitude": np.ones(2),
            "total_positive": np.ones(2),
        }
        curves[argument] = ResponseCurve(arrays, np.zeros((2, 2), dtype=np.int64), height * width)
    return curves


def serving(responses: Iterable[Response]) -> dict[str, tuple[Response, list[int] | None]]:
    """Choose what serves each response: itself, or a curve that has all of its points and more.

    Returns
    -------
    dict
        Name of a response to the one that serves it and the points to read; None for all of them.
    """
    unique = {response.name: response for response in responses}
    chosen: dict[str, tuple[Response, list[int] | None]] = {}
    for name, response in unique.items():
        chosen[name] = (response, None)
        fractions = response.settings.get("fractions")
        # A map that is made anew at every point makes another sequence of other points.
        if fractions is None or response.settings["update"]:
            continue
        rest = {key: value for key, value in response.settings.items() if key != "fractions"}
        for other in unique.values():
            more = other.settings.get("fractions") or []
            same = {key: value for key, value in other.settings.items() if key != "fractions"} == rest
            best = len(chosen[name][0].settings["fractions"])
            if same and len(more) > best and set(fractions) <= set(more):
                chosen[name] = (other, [list(more).index(share) for share in fractions])
    return chosen

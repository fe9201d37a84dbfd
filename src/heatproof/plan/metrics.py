"""Metrics that a config names, and the responses that they read.

Responses are named by what they are, not by who reads them: metrics that need the same sequence share one cache, and a
metric over responses that are there makes no network pass.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from heatproof.errors import HeatproofError
from heatproof.metrics.catalogue import METRICS
from heatproof.metrics.curve import ResponseCurve
from heatproof.metrics.registry import Metric
from heatproof.perturbation.baselines import BASELINES
from heatproof.plan.options import check_options, module_of
from heatproof.provenance import digest
from heatproof.registry import import_callable, is_reference, look_up, nearest
from heatproof.subsets import subset_masks

# What the workflow knows better than a config: it comes from the model.
FROM_THE_MODEL = ("mean", "std", "random_mask")
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
        ``curves``, ``pictures`` and ``explanations`` belong to a method, ``subsets`` to a model.
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


def read_metric(name: str, given: dict[str, Any], size: tuple[int, int] | None) -> MetricEntry:
    """Return what the config says of a metric, checked by scoring a made-up curve with it.

    Parameters
    ----------
    name, given
        From the config.
    size
        Height and width of the images; None if not known.

    Raises
    ------
    HeatproofError
        One sentence for the first thing that is wrong.
    """
    kind = given.pop("metric", name)
    metric = _referenced(kind) if is_reference(kind) else look_up(METRICS, kind, "metric")
    what = f"metric {name!r}"
    if metric.name in ("idsds", "sds"):
        raise HeatproofError(
            f"The {what} follows from `drops`: every grid, baseline and output that is named there is scored, and "
            "called idsds where the weights are in-domain, else sds."
        )
    known = {**metric.options, **(PATCHES if metric.reads == "patches" else {})}
    for key in FROM_THE_MODEL:
        known.pop(key, None)
    unknown = [key for key in given if key not in known]
    if unknown:
        raise HeatproofError(f"The {what} has no option {unknown[0]!r}: {nearest(unknown[0], known)}")
    for function in filter(None, (metric.sequences, metric.function)):
        own = {key: value for key, value in given.items() if key in _keywords(function)}
        check_options(function, own, what, positional=metric.inputs if function is metric.function else ())
    options = {**known, **given}
    try:
        responses = _responses(metric, options, size)
        _check_baselines(responses.values(), what)
        if metric.reads == "curves":
            _try_out(metric, options, size)
    except HeatproofError as error:
        raise HeatproofError(f"The {what} cannot be scored like that. {error}") from None
    return MetricEntry(name, metric, options, responses, module_of(metric.function, kind))


def _referenced(reference: str) -> Metric:
    function = import_callable(reference, "metric")
    found = next((metric for metric in METRICS.values() if metric.function is function), None)
    if found is None:
        raise HeatproofError(
            f"The metric {reference!r} says nothing of its direction and range: put the decorator "
            "`heatproof.metrics.registry.metric` before it."
        )
    return found


def _keywords(function: Any) -> set[str]:
    kinds = inspect.Parameter.KEYWORD_ONLY
    return {p.name for p in inspect.signature(function).parameters.values() if p.kind is kinds}


def _responses(metric: Metric, options: Mapping[str, Any], size: tuple[int, int] | None) -> dict[str, Response]:
    def part(keys: Iterable[str]) -> dict[str, Any]:
        return {key: _plain(options[key]) for key in keys if key in options}

    if metric.reads == "curves":
        sequences = metric.perturbations(options)
        if size is not None:
            for sequence in sequences.values():
                sequence.points(*size)
        return {argument: Response("curves", sequence.described()) for argument, sequence in sequences.items()}
    if metric.reads == "pictures":
        _check_pictures(options)
        return {"pictures": Response("pictures", part(PICTURE_SETTINGS))}
    if metric.reads == "subsets":
        subset_masks(["image"], 32, 32, options["sizes"], options["samples"], 0)
        if options["output"] not in ("logit", "probability"):
            raise HeatproofError(f"output is {options['output']!r}: take 'logit' or 'probability'.")
        return {"drops": Response("subsets", part(SUBSET_SETTINGS))}
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
    if options["masks"] not in ("rank", "quantile"):
        raise HeatproofError(f"masks is {options['masks']!r}: take 'rank' or 'quantile'.")


def _try_out(metric: Metric, options: Mapping[str, Any], size: tuple[int, int] | None) -> None:
    """Score curves of two made-up images: what an option gets wrong is said now, and not after a day of passes."""
    height, width = size or (224, 224)
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
    with np.errstate(all="ignore"):
        metric.score(curves, options)


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
        if fractions is None:
            continue
        rest = {key: value for key, value in response.settings.items() if key != "fractions"}
        for other in unique.values():
            more = other.settings.get("fractions") or []
            same = {key: value for key, value in other.settings.items() if key != "fractions"} == rest
            best = len(chosen[name][0].settings["fractions"])
            if same and len(more) > best and set(fractions) <= set(more):
                chosen[name] = (other, [list(more).index(share) for share in fractions])
    return chosen

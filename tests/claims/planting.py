"""Evidence with a known truth for tests of claims: scores by test case and method, with noise over images."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from heatproof.claims.evidence import Case, Evidence, Model, Resampling
from heatproof.core.methods import Method, MethodSpec
from heatproof.core.randomness import numpy_generator
from heatproof.metrics.registry import METRICS

# Plain ResNets of the same depth and width, which are equal in all properties that claims compare.
NETWORKS = {name: Model(name, "resnet", 20, 1.0, True, True, name) for name in ("net_a", "net_b", "net_c", "net_d")}
METHODS = ("saliency", "input_x_gradient", "integrated_gradients", "grad_cam", "rise", "layer_cam")


def method(name: str) -> Method:
    """Return the method of a name, ``explainer`` or ``explainer/map``; the suffix ``_abs`` means absolute values."""
    plain = name.removesuffix("_abs")
    kind, _, map_name = plain.partition("/")
    explainer = MethodSpec(kind, kind, maps=((map_name or kind, True),), uses_model=kind not in ("random", "edges"))
    return Method(name, explainer, transform="abs" if plain != name else "raw")


def trainings(models: Iterable[Model], seeds: int = 5) -> dict[str, Model]:
    """Return each model trained with several seeds."""
    return {
        f"{model.name}_seed{seed}": replace(model, name=f"{model.name}_seed{seed}", kind=model.name)
        for model in models
        for seed in range(seeds)
    }


def _of_kind(kind: str) -> dict[str, bool]:
    return {"magnitudes": METRICS[kind].reads_magnitudes()} if kind in METRICS else {}


def plant(
    level: Callable[[Case, Method], float | None],
    *,
    metrics: Sequence[str] | Mapping[str, Mapping[str, Any]] = ("idsds",),
    methods: Sequence[str] = METHODS,
    models: Mapping[str, Model] = NETWORKS,
    datasets: Sequence[str] = ("toy",),
    weights: Sequence[str] = ("finetuned",),
    noise: float = 0.05,
    images: int = 30,
    repetitions: int = 300,
    seed: int = 0,
    accuracy: pd.DataFrame | None = None,
) -> Evidence:
    """Return evidence in which the scores of a method are spread around a level that a function returns.

    Parameters
    ----------
    level
        Called with `Case` and `Method`; None leaves the method without a score there.
    metrics
        Kinds of metrics; or names to the fields of `Case` that differ from the defaults (`kind` is the name).
    methods
        As `method` reads them.
    models, datasets, weights
        Every combination of model, dataset and weights is a network.
    noise, images
        Standard deviation of an image's score, and number of images.
    repetitions
        Number of resamples of the bootstrap.
    seed
        Seed of the noise.
    accuracy
        As accuracy.csv.
    """
    case_fields = metrics if isinstance(metrics, Mapping) else {name: {} for name in metrics}
    defaults = {"options": {}, "higher_is_better": True, "grid": 4, "baseline": "zeros", "pixels": 32}
    cases = [
        Case(
            dataset,
            model,
            weights_name,
            name,
            **{"kind": name, **defaults, **_of_kind(fields.get("kind", name)), **fields},
        )
        for dataset in datasets
        for model in models
        for weights_name in weights
        for name, fields in case_fields.items()
    ]
    planted_methods = [method(name) for name in methods]
    rows = []
    for number, case in enumerate(cases):
        generator = numpy_generator(seed, "planted scores", str(number))
        for planted_method in planted_methods:
            drawn = noise * generator.standard_normal(images)
            mean = level(case, planted_method)
            if mean is not None:
                where = {"dataset": case.dataset, "model": case.model, "weights": case.weights, "metric": case.metric}
                rows += [
                    {**where, "method": planted_method.name, "image": i, "score": mean + deviation}
                    for i, deviation in enumerate(drawn)
                ]
    return Evidence(pd.DataFrame(rows), cases, planted_methods, models, accuracy, draws=Resampling(0, repetitions))

"""An explainer under test, and comparisons of its maps."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from heatproof.api.explain import explain
from heatproof.core.batch import Batch
from heatproof.core.input_facts import InputFacts
from heatproof.core.methods import Method
from heatproof.core.state import NetworkState, enable_gradients
from heatproof.errors import NotApplicable
from heatproof.explainers.explaining import called_explainer
from heatproof.explainers.registry import Explainer
from heatproof.testing._networks import (
    DEFAULT_FORM,
    NETWORKS,
    Form,
    NetworkBuilder,
    random_images,
    tiny_network,
)
from heatproof.testing._rules import RuleBroken

Maps = dict[str, torch.Tensor]
# Allowed rounding: kernel SHAP solves for small differences of logits, which processors round differently.
CLOSE = 2e-5
# Allowed difference between two precisions, or between two forms of one network.
SIMILAR = 1e-3


@dataclass(frozen=True)
class ExplainerSubject:
    """An explainer under test.

    Attributes
    ----------
    method
        The explainer with its options, as `heatproof.explain` takes it. If it `wraps` a function of a model, images and
        targets, that function has its options already.
    build
        Function that builds the tiny network.
    """

    method: Method
    build: NetworkBuilder

    @property
    def name(self) -> str:
        """Name of the explainer, for messages."""
        return self.method.name

    @property
    def explainer(self) -> Explainer:
        """The explainer."""
        return called_explainer(self.method)

    @property
    def kind(self) -> str:
        """The first kind of network that the explainer applies to."""
        return next(kind for kind in NETWORKS if kind in self.explainer.applies_to)

    @property
    def uses_model(self) -> bool:
        """Whether the explainer uses the network at all."""
        return self.explainer.uses_model

    def network(self, form: Form = DEFAULT_FORM, seed: int = 0) -> nn.Module:
        """Return a tiny network with weights from a seed."""
        return tiny_network(self.build, form, seed)

    def context(self, network: nn.Module, images: torch.Tensor | None = None, **changes: Any) -> Batch:
        """Return the input of the explainer; by default four images and the classes 0, 1, 2, 0."""
        images = random_images() if images is None else images
        form = Form(tuple(images.shape[2:]), images.shape[1])  # type: ignore[arg-type]
        background = random_images(form, 32, seed=9)
        used = network if self.uses_model else None
        context = Batch(
            network=used,
            output=used,
            facts=InputFacts() if self.uses_model else None,
            images=images,
            targets=torch.arange(len(images)) % 3,
            image_ids=tuple(f"image {row}" for row in range(len(images))),
            seed=0,
            background=lambda count: background[:count],
        )
        return replace(context, **changes)

    def call(self, context: Batch) -> Maps:
        """Call the explainer itself, without the precautions by which heatproof preserves the environment."""
        with enable_gradients(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return self.explainer.function(context, **self.method.options)

    def maps(self, context: Batch) -> Maps:
        """Return copies of the explainer's maps for copies of its inputs, and preserve the network."""
        # Copies, so that a cache inside the explainer gets new tensors.
        copied = replace(context, images=context.images.clone(), targets=context.targets.clone())
        with NetworkState(context.output):
            return {name: values.detach().float().clone() for name, values in self.call(copied).items()}

    def explain(self, network: nn.Module, images: torch.Tensor, targets: Any = None, **options: Any) -> Maps:
        """Return the maps of `heatproof.explain`."""
        targets = torch.arange(len(images)) % 3 if targets is None else targets
        form = Form(tuple(images.shape[2:]), images.shape[1])  # type: ignore[arg-type]
        background = random_images(form, 32, seed=9).to(images.dtype)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = explain(network, images, targets, {self.name: self.method}, background=background, **options)
        if reason := str(result["reason"].values[0]):
            raise NotApplicable(reason)
        names, maps = result["method"].values, result["attribution"].values
        return {str(name): torch.from_numpy(values) for name, values in zip(names, maps, strict=True)}

    def explain_equivalent(self, case: str, *arguments: Any, **options: Any) -> Maps:
        """Return the maps of `heatproof.explain` in a case that is equivalent to one where it is applicable."""
        try:
            return self.explain(*arguments, **options)
        except NotApplicable as reason:
            raise RuleBroken(
                f"is not applicable {case}, but is otherwise: {reason}", "let it apply in both cases"
            ) from reason


def distance(actual: Maps, expected: Maps) -> float:
    """Return the largest difference of maps, relative to the largest value of each map or to 1 if that is smaller."""
    if list(actual) != list(expected):
        raise RuleBroken(f"it returned {list(actual)} and {list(expected)}", "return the same maps each time")
    shares = [0.0]
    for name, expected_map in expected.items():
        actual_map = actual[name]
        if actual_map.shape != expected_map.shape or not (
            actual_map.isfinite().all() and expected_map.isfinite().all()
        ):
            return float("inf")
        if expected_map.numel():
            shares.append(float((actual_map - expected_map).abs().max() / expected_map.abs().max().clamp(1e-12, 1)))
    return max(shares)


def select_maps(maps: Maps, rows: Sequence[int]) -> Maps:
    """Return the maps of a subset of the images."""
    return {name: values[list(rows)] for name, values in maps.items()}


def select_images(context: Batch, rows: Sequence[int]) -> Batch:
    """Return the input of an explainer for a subset of the images."""
    return replace(
        context,
        images=context.images[list(rows)],
        targets=context.targets[list(rows)],
        image_ids=tuple(context.image_ids[row] for row in rows),
    )


def require_same(actual: Maps, expected: Maps, case: str, remedy: str, limit: float = CLOSE) -> None:
    """Refuse maps that differ by more than a share of their largest value."""
    if not (share := distance(actual, expected)) <= limit:
        raise RuleBroken(f"gave maps that differ by {share:.2g} of their largest value {case}", remedy)


def require_other(actual: Maps, expected: Maps, case: str, remedy: str) -> None:
    """Refuse maps that are all the same."""
    if distance(actual, expected) == 0:
        raise RuleBroken(f"gave the same maps {case}", remedy)

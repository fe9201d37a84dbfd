"""An explainer under test, and comparisons of its maps."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from heatproof._testing.networks import (
    DEFAULT_FORM,
    NETWORKS,
    Form,
    NetworkBuilder,
    random_images,
    tiny_network,
)
from heatproof._testing.rules import RuleBroken
from heatproof.api.explain import explain
from heatproof.api.named_methods import NamedMethod
from heatproof.attribution.explaining import MapMaker
from heatproof.attribution.registry import ExplainContext, Explainer
from heatproof.errors import NotApplicable
from heatproof.models.registry import InputFacts
from heatproof.models.state import enable_gradients, preserve_network

Maps = dict[str, torch.Tensor]
# Rounding: kernel SHAP solves for small differences of logits, which processors round differently.
CLOSE = 2e-5
# Of outputs in two precisions, or of two forms of one network.
SIMILAR = 1e-3


@dataclass(frozen=True)
class ExplainerSubject:
    """An explainer under test.

    Attributes
    ----------
    name
        For messages.
    method
        As `heatproof.explain` takes it.
    entry
        heatproof's explainer; None for a function of a model, images and targets.
    function
        That function, with its options; None for heatproof's explainers.
    build
        Makes the tiny network.
    """

    name: str
    method: NamedMethod
    entry: Explainer | None
    function: Callable[..., Any] | None
    build: NetworkBuilder
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """The first kind of network that it applies to."""
        claimed = {"any"} if self.entry is None else self.entry.applies_to
        return next(kind for kind in NETWORKS if kind in claimed)

    @property
    def uses_model(self) -> bool:
        """Whether it reads the network at all."""
        return self.entry is None or self.entry.uses_model

    @property
    def maker(self) -> MapMaker:
        """What is called."""
        return self.method.maker

    def network(self, form: Form = DEFAULT_FORM, seed: int = 0) -> nn.Module:
        """Return a tiny network with weights from a seed."""
        return tiny_network(self.build, form, seed)

    def given(self, network: nn.Module, images: torch.Tensor | None = None, **changes: Any) -> ExplainContext:
        """Return the input of the explainer; by default four images and the classes 0, 1, 2, 0."""
        images = random_images() if images is None else images
        form = Form(tuple(images.shape[2:]), images.shape[1])  # type: ignore[arg-type]
        others = random_images(form, 32, seed=9)
        read = network if self.uses_model else None
        explained = ExplainContext(
            network=read,
            output=read,
            facts=InputFacts() if self.uses_model else None,
            images=images,
            targets=torch.arange(len(images)) % 3,
            image_ids=tuple(f"image {row}" for row in range(len(images))),
            seed=0,
            background=lambda count: others[:count],
        )
        return replace(explained, **changes)

    def maps(self, explained: ExplainContext) -> Maps:
        """Call the explainer itself, without the care that heatproof takes of its surroundings."""
        with enable_gradients(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return self.maker.function(explained, **self.maker.options)

    def found(self, explained: ExplainContext) -> Maps:
        """Return copies of its maps, made without traces."""
        # A copy, so that a cache of the explainer's own sees other tensors.
        fresh = replace(explained, images=explained.images.clone(), targets=explained.targets.clone())
        with preserve_network(explained.output) if explained.output is not None else nullcontext():
            return {name: one.detach().float().clone() for name, one in self.maps(fresh).items()}

    def explained(self, network: nn.Module, images: torch.Tensor, targets: Any = None, **more: Any) -> Maps:
        """Return what `heatproof.explain` answers."""
        targets = torch.arange(len(images)) % 3 if targets is None else targets
        form = Form(tuple(images.shape[2:]), images.shape[1])  # type: ignore[arg-type]
        others = random_images(form, 32, seed=9).to(images.dtype)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            said = explain(network, images, targets, {self.name: self.method}, background=others, **more)
        if reason := str(said["reason"].values[0]):
            raise NotApplicable(reason)
        return {str(name): torch.from_numpy(one) for name, one in zip(said["method"].values, said["attribution"].values,
                                                                      strict=True)}  # fmt: skip

    def also(self, what: str, *given: Any, **more: Any) -> Maps:
        """Return what `heatproof.explain` answers in a case that is like one in which the explainer applies."""
        try:
            return self.explained(*given, **more)
        except NotApplicable as reason:
            raise RuleBroken(
                f"does not apply {what}, and does else: {reason}", "let it apply in both cases"
            ) from reason


def distance(found: Maps, wanted: Maps) -> float:
    """Return the largest difference of maps, in shares of the largest value of each, or of one where that is larger."""
    if list(found) != list(wanted):
        raise RuleBroken(f"it returned {list(found)} and {list(wanted)}", "return the same maps each time")
    shares = [0.0]
    for name, one in wanted.items():
        other = found[name]
        if other.shape != one.shape or not (other.isfinite().all() and one.isfinite().all()):
            return float("inf")
        if one.numel():
            shares.append(float((other - one).abs().max() / one.abs().max().clamp(1e-12, 1)))
    return max(shares)


def select_maps(maps: Maps, rows: Sequence[int]) -> Maps:
    """Return the maps of some images."""
    return {name: one[list(rows)] for name, one in maps.items()}


def select_images(explained: ExplainContext, rows: Sequence[int]) -> ExplainContext:
    """Return the input for some of the images."""
    return replace(
        explained,
        images=explained.images[list(rows)],
        targets=explained.targets[list(rows)],
        image_ids=tuple(explained.image_ids[row] for row in rows),
    )


def require_same(found: Maps, wanted: Maps, what: str, remedy: str, limit: float = CLOSE) -> None:
    """Refuse maps that differ by more than a share of their largest value."""
    if not (share := distance(found, wanted)) <= limit:
        raise RuleBroken(f"gave maps that differ by {share:.2g} of their largest value {what}", remedy)


def require_other(found: Maps, wanted: Maps, what: str, remedy: str) -> None:
    """Refuse maps that are all the same."""
    if distance(found, wanted) == 0:
        raise RuleBroken(f"gave the same maps {what}", remedy)

"""Registry of architectures.

This module does not import torch, because the workflow reads the table while it builds its plan.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, ClassVar

from heatproof.core.input_facts import InputFacts
from heatproof.core.provenance import Key
from heatproof.core.registry import Registry, RegistryEntry, options_of
from heatproof.core.specs import DatasetSpec


@dataclass(frozen=True)
class ModelSpec:
    """Spec of a model.

    Attributes
    ----------
    architecture
        Name in the registry of architectures, or ``package.module:function``.
    module
        Module that registers it.
    options
        Options of the builder.
    facts
        Input format of the network.
    name
        Name of the model in the config.
    """

    architecture: str
    module: str
    options: dict[str, Any]
    facts: InputFacts = field(default_factory=InputFacts)
    name: str = ""


@dataclass(frozen=True)
class NetworkSpec:
    """Spec of everything that a pass of a network over images of a dataset depends on.

    Attributes
    ----------
    dataset, model
        Specs of the dataset and the model.
    weights, upstream
        Path of the weights, and their key.
    seed
        Seed of the workflow.
    target
        Class whose output is read: ``label``, ``predicted`` or a number.
    precision
        ``float32``, ``tf32`` or ``bfloat16``.
    """

    dataset: DatasetSpec
    model: ModelSpec
    weights: str
    upstream: Key
    seed: int
    target: str | int
    precision: str


@dataclass(frozen=True)
class Design:
    """Design of a network, which claims compare.

    Attributes
    ----------
    family
        Kind of network, for example ``resnet``.
    depth
        Number of layers in the network's name; None if the name has none.
    width
        Number of channels, or a factor of it, for comparisons within a family and depth.
    batch_norm, bias
        Whether the network has batch norm, and biases.
    """

    family: str
    depth: int | None = None
    width: float = 1.0
    batch_norm: bool = True
    bias: bool = True


@dataclass(frozen=True)
class Architecture(RegistryEntry):
    """A registered architecture; ``build(num_classes, **options)`` returns a torch.nn.Module.

    Attributes
    ----------
    name
        Key in the config.
    build
        The builder.
    facts
        Input format of the networks.
    options
        Every option with its default; an option without a default has ``...``.
    facts_of
        ``facts_of(**options)`` returns an input format that depends on the options, and replaces `facts`.
    design
        Design of the networks, or a function of the options that returns it.
    """

    name: str
    build: Callable[..., Any]
    facts: InputFacts
    options: Mapping[str, Any]
    facts_of: Callable[..., InputFacts] | None = None
    design: Design | Callable[..., Design] | None = None

    code: ClassVar[str] = "build"

    def facts_for(self, options: Mapping[str, Any], stated: Collection[str] = ()) -> InputFacts:
        """Return the input format of a network built with these options; all required options must be present.

        Parameters
        ----------
        options
            Options of the network.
        stated
            Names of facts that the config sets; these are not looked up.

        Returns
        -------
        InputFacts
            The input format.

        Raises
        ------
        HeatproofError
            If the options name a network that does not exist.
        """
        if self.facts_of is None:
            return self.facts
        extra = {"stated": stated} if "stated" in inspect.signature(self.facts_of).parameters else {}
        return self.facts_of(**options, **extra)

    def design_for(self, options: Mapping[str, Any]) -> Design:
        """Return the design of a network built with these options; without a design, it is its own family."""
        if not isinstance(self.design, Design):
            return Design(self.name) if self.design is None else self.design(**options)
        return replace(self.design, width=float({**self.options, **options}.get("width", self.design.width)))


ARCHITECTURES: Registry[Architecture] = Registry("heatproof.models", "architecture")


def architecture(
    name: str,
    facts: InputFacts | Callable[..., InputFacts],
    design: Design | Callable[..., Design] | None = None,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a builder as an architecture; its keyword-only arguments are the options.

    Parameters
    ----------
    name
        Key in the config.
    facts
        Input format of the networks, or a function of the builder's options that returns it.
    design
        Design of the networks (family, depth, batch norm, bias), or a function of the options that returns it. An
        option `width` sets the width.

    Returns
    -------
    callable
        Decorator that registers the builder and returns it unchanged.

    Examples
    --------
    >>> @architecture("tiny", InputFacts(cam_layer="features"), Design("tiny", batch_norm=False))
    ... def tiny(num_classes, *, width=16):
    ...     return build_tiny(num_classes, width)
    """

    def enter(build: Callable[..., Any]) -> Callable[..., Any]:
        required = inspect.Parameter.empty
        options = {option: ... if value is required else value for option, value in options_of(build).items()}
        fixed, facts_of = (facts, None) if isinstance(facts, InputFacts) else (InputFacts(), facts)
        ARCHITECTURES[name] = Architecture(name, build, fixed, MappingProxyType(options), facts_of, design)
        return build

    return enter

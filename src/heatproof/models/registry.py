"""Registry of architectures, and the input format of networks.

Importable without torch, as the workflow reads the table while it builds its plan.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, ClassVar

from heatproof.base.provenance import Key
from heatproof.base.registry import Registry, RegistryEntry, options_of
from heatproof.base.specs import DatasetSpec
from heatproof.errors import HeatproofError

# Mean and standard deviation of its colours, with which most networks for its images are trained.
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


@dataclass(frozen=True)
class InputFacts:
    """Input format of a network, and the layer that CAMs read.

    Attributes
    ----------
    mean, std
        Per channel, on images in [0, 1]; a deleted patch is zero after this normalisation.
    size
        Height and width in pixels that the network takes; None takes any.
    cam_layer
        Name of the submodule whose output (N, channels, height, width) class activation maps read; None says that
        the network has none, and `cam_reason` why.
    cam_reason
        The reason shown for the gap when `cam_layer` is None.
    """

    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    std: tuple[float, ...] = (0.5, 0.5, 0.5)
    size: tuple[int, int] | None = None
    cam_layer: str | None = None
    cam_reason: str = "the model names no layer with a spatial grid for class activation maps"


# Of a network whose images need no normalisation, or were normalised by the caller.
UNSCALED = InputFacts(mean=(0.0,), std=(1.0,))


@dataclass(frozen=True)
class ModelSpec:
    """What builds a network.

    Attributes
    ----------
    architecture
        Name in the table of architectures, or ``package.module:function``.
    module
        Module that enters it there.
    options
        Options of the builder.
    facts
        Input format of the network.
    name
        Name that the config gives it.
    """

    architecture: str
    module: str
    options: dict[str, Any]
    facts: InputFacts = InputFacts()
    name: str = ""


@dataclass(frozen=True)
class NetworkSpec:
    """What any pass of a network over the images of a dataset depends on.

    Attributes
    ----------
    dataset, model
        The images, and what builds the network.
    weights, upstream
        Path of the weights, and their key.
    seed
        The workflow's seed.
    target
        The class whose output is read: ``label``, ``predicted`` or a number.
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
    """Design of a network, as claims compare it.

    Attributes
    ----------
    family
        The kind of network, for example ``resnet``.
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
        The key in the config.
    build
        The builder.
    facts
        Input facts of the networks.
    options
        Every option with its default; one without a default has ``...``.
    facts_of
        ``facts_of(**options)`` returns facts that depend on the options, and overrides `facts`.
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
        """Return the input facts of a network built with these options; all required options must be given.

        Parameters
        ----------
        options
            Of the network.
        stated
            Facts that the config names itself; nothing is read for these.

        Raises
        ------
        HeatproofError
            If the options name a network that is not there.
        """
        if self.facts_of is None:
            return self.facts
        also = {"stated": stated} if "stated" in inspect.signature(self.facts_of).parameters else {}
        return self.facts_of(**options, **also)

    def design_for(self, options: Mapping[str, Any]) -> Design:
        """Return the design of a network built with these options; without one, the network is its own family."""
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
        The key in the config.
    facts
        Input facts of the networks, or a function of the builder's options that returns them.
    design
        Design of the networks (family, depth, batch norm, bias), or a function of the options that returns it. An
        option `width` sets the width.
    """

    def enter(build: Callable[..., Any]) -> Callable[..., Any]:
        required = inspect.Parameter.empty
        options = {option: ... if value is required else value for option, value in options_of(build).items()}
        fixed, facts_of = (facts, None) if isinstance(facts, InputFacts) else (InputFacts(), facts)
        ARCHITECTURES[name] = Architecture(name, build, fixed, MappingProxyType(options), facts_of, design)
        return build

    return enter


def normalisation_of(facts: InputFacts, channels: int) -> tuple[list[float], list[float]]:
    """Return mean and standard deviation of each channel; equal ones, as a network without its own has, fit any number.

    Parameters
    ----------
    facts
        Input format of the network.
    channels
        Number of channels of the images.

    Raises
    ------
    HeatproofError
        If the network has another number of them.
    """
    mean, std = (_of_channels(values, key, channels) for key, values in (("mean", facts.mean), ("std", facts.std)))
    return mean, std


def _of_channels(values: Sequence[float], key: str, channels: int) -> list[float]:
    if len(values) == channels:
        return list(values)
    if len(set(values)) == 1:
        return [values[0]] * channels
    raise HeatproofError(
        f"The model has {len(values)} numbers as {key}, and the images have {channels} channels: give one for each."
    )

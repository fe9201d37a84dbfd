"""What a network expects of its input, and the table of architectures.

Importable without torch, as the workflow reads the table while it builds its plan.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any


@dataclass(frozen=True)
class InputFacts:
    """What has to be known of a network to feed and to explain it.

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


@dataclass(frozen=True)
class Architecture:
    """A way to build a network: ``build(num_classes, **options)`` returns a torch.nn.Module."""

    name: str
    build: Callable[..., Any]
    facts: InputFacts
    options: Mapping[str, Any]

    @property
    def summary(self) -> str:
        """First line of the builder's docstring."""
        return (inspect.getdoc(self.build) or "").partition("\n")[0]


ARCHITECTURES: dict[str, Architecture] = {}


def architecture(name: str, facts: InputFacts) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Enter a builder in the table of architectures; its keyword-only arguments are the options."""

    def enter(build: Callable[..., Any]) -> Callable[..., Any]:
        options = {
            parameter.name: parameter.default
            for parameter in inspect.signature(build).parameters.values()
            if parameter.kind is inspect.Parameter.KEYWORD_ONLY
        }
        ARCHITECTURES[name] = Architecture(name, build, facts, MappingProxyType(options))
        return build

    return enter

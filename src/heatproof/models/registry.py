"""What a network expects of its input, and the table of architectures.

Importable without torch, as the workflow reads the table while it builds its plan.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

# Mean and standard deviation of its colours, with which most networks for its images are trained.
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


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
    """A way to build a network: ``build(num_classes, **options)`` returns a torch.nn.Module.

    Attributes
    ----------
    name
        The key in the config.
    build
        The builder.
    facts
        What its networks expect, whatever the options.
    options
        Every option with its default; one without a default has ``...``.
    facts_of
        Where the facts depend on the options: ``facts_of(**options)`` returns them, and stands above `facts`.
    """

    name: str
    build: Callable[..., Any]
    facts: InputFacts
    options: Mapping[str, Any]
    facts_of: Callable[..., InputFacts] | None = None

    def facts_for(self, options: Mapping[str, Any]) -> InputFacts:
        """Return the facts of a network built with these options, in which every option without a default stands.

        Raises
        ------
        HeatproofError
            If the options name a network that is not there.
        """
        return self.facts if self.facts_of is None else self.facts_of(**options)

    @property
    def summary(self) -> str:
        """First line of the builder's docstring."""
        return (inspect.getdoc(self.build) or "").partition("\n")[0]


ARCHITECTURES: dict[str, Architecture] = {}


def architecture(
    name: str, facts: InputFacts | Callable[..., InputFacts]
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Enter a builder in the table of architectures; its keyword-only arguments are the options.

    Parameters
    ----------
    name
        The key in the config.
    facts
        What the networks expect; or, where that depends on the options, a function that takes the builder's options
        and returns it.
    """

    def enter(build: Callable[..., Any]) -> Callable[..., Any]:
        options = {
            parameter.name: ... if parameter.default is parameter.empty else parameter.default
            for parameter in inspect.signature(build).parameters.values()
            if parameter.kind is inspect.Parameter.KEYWORD_ONLY
        }
        fixed, facts_of = (facts, None) if isinstance(facts, InputFacts) else (InputFacts(), facts)
        ARCHITECTURES[name] = Architecture(name, build, fixed, MappingProxyType(options), facts_of)
        return build

    return enter

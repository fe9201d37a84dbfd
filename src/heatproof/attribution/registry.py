"""Registry of explainers, and the types that explainers take and register.

This module and the modules of the families are importable without torch: the workflow reads the table while
it builds its plan. Heavy libraries are imported inside the functions.
"""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from heatproof.errors import HeatproofError
from heatproof.registry import Registry

if TYPE_CHECKING:
    import torch

    from heatproof.models.registry import InputFacts


class Figure(NamedTuple):
    """Value of an applicability figure of an explainer, and the limit above which the explainer is a gap."""

    value: float
    limit: float | None = None
    images: int = 0


@dataclass(frozen=True)
class Explained:
    """Input of an explainer: a batch of images, and the network.

    Attributes
    ----------
    network
        Classifier in eval mode, float32: images (N, C, H, W) to logits (N, K). None for reference maps.
    output
        Module whose output at the target is explained: `network` (logits, the default) or `network` followed by
        softmax.
    facts
        Input format of the model; None for reference maps.
    images
        (N, C, H, W) float32, normalised as the network expects.
    targets
        (N,) int64, the class to explain for each image.
    image_ids
        N strings, which seed the random numbers of each image.
    seed
        The workflow's seed.
    batch_size
        Largest number of images in one network pass.
    background
        ``background(count)`` returns `count` training images (count, C, H, W), normalised, drawn once from the seed;
        None if there are no training images.
    figures
        Figures recorded by `note` during the applicability check; None otherwise.
    """

    network: Any
    output: Any
    facts: InputFacts | None
    images: torch.Tensor
    targets: torch.Tensor
    image_ids: tuple[str, ...]
    seed: int
    batch_size: int = 64
    background: Callable[[int], torch.Tensor] | None = None
    figures: dict[str, Figure] | None = None

    def note(self, name: str, values: torch.Tensor, limit: float | None = None, mean: bool = False) -> None:
        """Record the maximum or mean of `values` in the applicability check; above `limit` the explainer is a gap."""
        if self.figures is None:
            return
        before, count = self.figures.get(name, Figure(0.0)), len(values)
        if mean:
            total = before.value * before.images + float(values.double().sum())
            self.figures[name] = Figure(total / (before.images + count), limit, before.images + count)
        else:
            self.figures[name] = Figure(max(before.value, float(values.max())), limit, before.images + count)


ExplainFunction = Callable[..., "dict[str, torch.Tensor]"]


@dataclass(frozen=True)
class Explainer:
    """An explainer: a function that returns one or several attribution maps.

    Attributes
    ----------
    name
        The key in the config.
    function
        ``function(explained, **options)`` returns a dict from each name in `maps` to a float32 tensor (N, H, W),
        channels summed, higher is more relevant.
    maps
        Mapping from map name to whether the map is signed; signed maps have a raw and an ``abs`` row in the tables.
    needs
        Names of input facts that the model must have, for example ``cam_layer``.
    uses_model
        False for reference maps, which do not use the model and are computed once per dataset.
    options
        Every option with its default.
    library
        Optional library and the name of the extra that installs it: ``("zennit", "lrp")``.
    family
        Family of methods, within which tables rank methods; empty for none.
    """

    name: str
    function: ExplainFunction
    maps: Mapping[str, bool]
    needs: frozenset[str] = frozenset()
    uses_model: bool = True
    options: Mapping[str, Any] = field(default_factory=dict)
    library: tuple[str, str] | None = None
    family: str = ""

    @property
    def summary(self) -> str:
        """First line of the function's docstring."""
        return (inspect.getdoc(self.function) or "").partition("\n")[0]


EXPLAINERS: Registry[Explainer] = Registry("heatproof.attribution", "explainer")


def explainer(
    name: str,
    *,
    family: str = "",
    maps: Mapping[str, bool] | None = None,
    signed: bool = True,
    needs: frozenset[str] | set[str] = frozenset(),
    uses_model: bool = True,
    library: tuple[str, str] | None = None,
) -> Callable[[ExplainFunction], ExplainFunction]:
    """Register a function as an explainer; its keyword-only arguments are the options.

    Parameters
    ----------
    name
        The key in the config, and the name of the map when there is only one.
    maps
        Mapping from map name to whether the map is signed. Default: one map with the explainer's name.
    signed
        Whether that one map can be negative.
    family, needs, uses_model, library
        See `Explainer`.
    """

    def enter(function: ExplainFunction) -> ExplainFunction:
        EXPLAINERS[name] = Explainer(
            name=name,
            function=function,
            maps=MappingProxyType(dict(maps or {name: signed})),
            needs=frozenset(needs),
            uses_model=uses_model,
            options=MappingProxyType(options_of(function)),
            library=library,
            family=family,
        )
        return function

    return enter


def options_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the keyword-only arguments of a function with their defaults."""
    return {
        parameter.name: parameter.default
        for parameter in inspect.signature(function).parameters.values()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    }


def require_library(entry: Explainer) -> None:
    """Check that the optional library of an explainer is installed.

    Raises
    ------
    HeatproofError
        If it is not installed.
    """
    if entry.library and importlib.util.find_spec(entry.library[0]) is None:
        library, extra = entry.library
        raise HeatproofError(
            f"The explainer {entry.name!r} needs {library}, which is not installed: pip install "
            f'"heatproof[{extra}]", or leave it out of the config.'
        )

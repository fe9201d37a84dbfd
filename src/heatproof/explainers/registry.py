"""Registry of explainers, and the types that explainers take and register.

The workflow reads the registry while it builds its plan, so this module and the modules of the families can be
imported without torch. Heavy libraries are imported inside the functions.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any

from heatproof.core.batch import Batch
from heatproof.core.options import Bounds
from heatproof.core.registry import Registry, RegistryEntry, options_of
from heatproof.errors import HeatproofError

if TYPE_CHECKING:
    import torch


# Former name, for functions of users that are annotated with it; it goes with the next release.
ExplainContext = Batch


ExplainFunction = Callable[..., "dict[str, torch.Tensor]"]
BaselineName = str | None
"""Option of an explainer: ``null`` for zero after normalisation, the name of a baseline, or ``same`` for that of the
patch drops."""
Tolerance = Annotated[float, Bounds(above=0)] | None
"""Option of an explainer: largest relative error of the sums of its maps; ``null`` for the explainer's default."""


NETWORK_KINDS = {
    "any": "every network",
    "grid": "a layer with a spatial grid: a feature map, or tokens of patches",
    "relu": "ReLUs that the image passes through",
    "convolutional": "convolutions and activations, without norms over an image's own values, attention or B-cos units",
    "attention": "self-attention between all patches of an image",
    "windows": "self-attention within windows or partitions of an image",
    "plain_vit": "timm's VisionTransformer of plain blocks, pooled by class token or mean, with a linear head",
    "bagnet": "logits that are the mean of patch logits",
    "bcos": "logits that are one linear map of each image",
}
"""Kinds of networks that explainers apply to; `heatproof.explainers._network_traits` finds those of a network."""


@dataclass(frozen=True)
class Explainer(RegistryEntry):
    """A registered explainer: a function that returns one or several attribution maps for each image.

    Attributes
    ----------
    name
        Name in the config.
    function
        ``function(context, **options)`` returns a dict from each name in `maps` to a float32 tensor (N, H, W), summed
        over channels, higher is more relevant.
    maps
        Mapping from map name to whether the map is signed; a signed map has a raw and an ``abs`` row in the tables.
    needs
        Names of input facts that the model must have, such as ``cam_layer``.
    uses_model
        False for reference maps, which do not use the model and are computed once per dataset.
    options
        Mapping from each option to its default.
    library
        Optional library and the name of the extra that installs it: ``("zennit", "lrp")``.
    family
        Family of methods; tables also rank methods within their family. Empty for none.
    applies_to
        Names of `NETWORK_KINDS`; the explainer is meant for networks of at least one of these kinds. In a run the
        applicability check decides instead; docs/matrix.md compares both.
    ablates
        Whether its maps are the drops of the output when regions are deleted one by one. Deletion metrics compare maps
        with nearly the same drops, so there such an explainer is an upper bound and does not compete.
    sums_to
        Mapping from the maps that should have a certain sum to a description of that sum; the explainer passes its
        value to `Batch.note_sum`.
    exempt
        Mapping from each rule of `heatproof.testing` that it breaks by definition to the reason.
    wraps
        Object of another library, or function of model, images and targets, that `function` calls; None for registered
        explainers.
    """

    name: str
    function: ExplainFunction
    maps: Mapping[str, bool]
    needs: frozenset[str] = frozenset()
    uses_model: bool = True
    options: Mapping[str, Any] = field(default_factory=dict)
    library: tuple[str, str] | None = None
    family: str = ""
    applies_to: frozenset[str] = frozenset({"any"})
    ablates: bool = False
    sums_to: Mapping[str, str] = field(default_factory=dict)
    exempt: Mapping[str, str] = field(default_factory=dict)
    wraps: Any = None

    def maps_called(self, name: str) -> dict[str, bool]:
        """Return `maps` by the names that they have in tables and results, if the user calls the explainer `name`.

        Parameters
        ----------
        name
            Name in the config, or in the result of `heatproof.explain`.
        """
        if name == self.name:
            return dict(self.maps)
        if len(self.maps) == 1:
            return {name: next(iter(self.maps.values()))}
        return {f"{name}_{label}": signed for label, signed in self.maps.items()}


EXPLAINERS: Registry[Explainer] = Registry("heatproof.explainers", "explainer")


def explainer(
    name: str,
    *,
    family: str = "",
    maps: Mapping[str, bool] | None = None,
    signed: bool = True,
    needs: frozenset[str] | set[str] = frozenset(),
    uses_model: bool = True,
    library: tuple[str, str] | None = None,
    applies_to: frozenset[str] | set[str] | None = None,
    ablates: bool = False,
    sums_to: str | Mapping[str, str] | None = None,
    exempt: Mapping[str, str] | None = None,
) -> Callable[[ExplainFunction], ExplainFunction]:
    """Register a function as an explainer; its keyword-only arguments are its options.

    Parameters
    ----------
    name
        Name in the config, and of the map if there is only one.
    maps
        Mapping from map name to whether the map is signed. Default: one map with the explainer's name.
    signed
        Whether that one map can be negative.
    family, needs, uses_model, library, ablates, exempt
        See `Explainer`.
    applies_to
        See `Explainer`. Default: ``grid`` if `needs` has ``cam_layer``, else ``any``.
    sums_to
        If the method promises a sum of its map, a description of that sum, such as ``"the target's logit"``; for
        several maps, a mapping as in `Explainer`.

    Raises
    ------
    HeatproofError
        If `applies_to` has a name that is not in `NETWORK_KINDS`, or `sums_to` the name of a map that the explainer
        does not return.

    Examples
    --------
    ::

        @explainer("bright", signed=False)
        def bright(context, *, power: float = 1.0):
            return {"bright": context.images.mean(1).abs() ** power}
    """
    kinds = frozenset(applies_to or ({"grid"} if "cam_layer" in needs else {"any"}))
    if unknown := sorted(kinds - set(NETWORK_KINDS)):
        raise HeatproofError(
            f"The explainer {name!r} applies to {unknown[0]!r}, which is not a kind of network: use one of "
            f"{', '.join(NETWORK_KINDS)}."
        )

    signed_maps = dict(maps or {name: signed})
    sums = {next(iter(signed_maps)): sums_to} if isinstance(sums_to, str) else dict(sums_to or {})
    if unknown := sorted(set(sums) - set(signed_maps)):
        raise HeatproofError(
            f"The explainer {name!r} describes in sums_to the sum of {unknown[0]!r}, which is not one of its maps: use "
            f"{', '.join(signed_maps)}."
        )

    def register(function: ExplainFunction) -> ExplainFunction:
        EXPLAINERS[name] = Explainer(
            name=name,
            function=function,
            maps=MappingProxyType(signed_maps),
            needs=frozenset(needs),
            uses_model=uses_model,
            options=MappingProxyType(options_of(function)),
            library=library,
            family=family,
            applies_to=kinds,
            ablates=ablates,
            sums_to=MappingProxyType(sums),
            exempt=MappingProxyType(dict(exempt or {})),
        )
        return function

    return register


def require_library(entry: Explainer) -> None:
    """Require that the optional library of an explainer is installed.

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

"""Registry of explainers, and the types that explainers take and register.

The workflow reads the registry while it builds its plan, so this module and the modules of the families can be
imported without torch. Heavy libraries are imported inside the functions.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from heatproof.base.options import Bounds
from heatproof.base.registry import Registry, RegistryEntry, options_of
from heatproof.base.tasks import CALLABLE, Need, unsupported_reason
from heatproof.errors import HeatproofError, NotApplicable

if TYPE_CHECKING:
    import torch

    from heatproof.models.registry import InputFacts


class ApplicabilityFigure(NamedTuple):
    """Number that an explainer measures in its applicability check.

    Attributes
    ----------
    value
        Maximum or mean over the images.
    limit
        Above this value the explainer is not applicable; None for no limit.
    images
        Number of images that were measured.
    """

    value: float
    limit: float | None = None
    images: int = 0


class MapSums(NamedTuple):
    """Sums that an explainer promises for the maps of N images.

    Attributes
    ----------
    expected
        (N,), the sums that the maps should have.
    found
        (N,), the sums that they have; None for the sums over their pixels.
    """

    expected: torch.Tensor
    found: torch.Tensor | None


@dataclass(frozen=True)
class ExplainContext:
    """Input of an explainer: a batch of images, their targets, and the network.

    Attributes
    ----------
    network
        Classifier in eval mode, float32: images (N, C, H, W) to logits (N, K). None for reference maps.
    output
        Module whose output at the target is explained: `network` (logits, the default), or `network` followed by
        softmax.
    facts
        Input format of the model; None for reference maps.
    images
        (N, C, H, W) float32, normalised as the network expects.
    targets
        (N,) int64, the class to explain for each image.
    image_ids
        N strings; random numbers for an image are seeded with its string.
    seed
        The workflow's seed.
    batch_size
        Largest number of images in one network pass.
    background
        ``background(count)`` returns `count` training images (count, C, H, W), normalised, drawn once from the seed;
        None if there are no training images.
    figures
        Figures that `note` records during the applicability check; None outside the check.
    named_baseline
        ``named_baseline(context, name)`` returns the images (N, C, H, W) of a baseline; None if only the zero baseline
        is available.
    sums
        Sums that `note_sum` records, by name of the map; None if they are not requested, so that an explainer need
        not compute them.
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
    figures: dict[str, ApplicabilityFigure] | None = None
    named_baseline: Callable[[ExplainContext, str], torch.Tensor] | None = None
    sums: dict[str, list[MapSums]] | None = None

    @property
    def task(self) -> str:
        """Task of the network: one of `heatproof.base.tasks.TASKS`, or ``callable``; known after the first pass."""
        from heatproof.models.hooks import reader_of

        reader = reader_of(self.network)
        return "multiclass" if reader is None else reader.task

    def require(self, need: Need, remedy: str = "") -> None:
        """Require that the network gives a probability or a decision for a target.

        Raises
        ------
        NotApplicable
            If the task of the network gives neither.
        """
        if reason := unsupported_reason(self.task, need, remedy):
            raise NotApplicable(reason)

    def require_network_outputs(self) -> None:
        """Require that targets are outputs of the network, for rules that begin at its last layer.

        Raises
        ------
        NotApplicable
            If a callable target computes what is explained from its outputs.
        """
        if self.task == CALLABLE:
            raise NotApplicable("its rules start at one output of the network, and the target is a function of outputs")

    def baseline(self, name: str | None) -> torch.Tensor:
        """Return the baseline images (N, C, H, W) of the batch; for None, zero after normalisation.

        Raises
        ------
        HeatproofError
            If a baseline is named and only the zero baseline is available.
        """
        import torch

        if name is None:
            return torch.zeros_like(self.images)
        if self.named_baseline is None or name == SAME_AS_DROPS:
            raise HeatproofError(f"The baseline {name!r} is known in a run alone: leave it out, for zero.")
        return self.named_baseline(self, name)

    def note(self, name: str, values: torch.Tensor, limit: float | None = None, mean: bool = False) -> None:
        """Record the maximum or mean of a figure over images in the applicability check; else do nothing.

        Parameters
        ----------
        name
            Name of the figure, such as ``convergence_delta``.
        values
            (N,), one value for each image.
        limit
            If the figure is above this limit, the explainer is not applicable.
        mean
            Whether to record the mean of all images instead of the maximum.
        """
        if self.figures is None:
            return
        previous = self.figures.get(name, ApplicabilityFigure(0.0))
        images = previous.images + len(values)
        if mean:
            value = (previous.value * previous.images + float(values.double().sum())) / images
        else:
            value = max(previous.value, float(values.max()))
        self.figures[name] = ApplicabilityFigure(value, limit, images)

    def note_sum(self, expected: torch.Tensor, found: torch.Tensor | None = None, of: str = "") -> None:
        """Record the sums that the maps of these images should have; `heatproof.explain` compares them with the maps.

        An explainer that splits its batch calls this method once for each part, in the order of the images.

        Parameters
        ----------
        expected
            (N,), in units of the output.
        found
            (N,), the sum of each map, if that is not the sum over pixels: for superpixels, whose pixels all have the
            superpixel's value, the sum over superpixels.
        of
            Name of the map; by default the first one.
        """
        if self.sums is not None:
            self.sums.setdefault(of, []).append(MapSums(expected.detach(), None if found is None else found.detach()))


ExplainFunction = Callable[..., "dict[str, torch.Tensor]"]
# Stands for the baseline of the patch drops; the plan replaces it by the name of that baseline.
SAME_AS_DROPS = "same"
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
"""Kinds of networks that explainers apply to; `heatproof.attribution._network_traits` finds those of a network."""


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
        value to `ExplainContext.note_sum`.
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

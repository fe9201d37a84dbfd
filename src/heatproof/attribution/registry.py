"""Registry of explainers, and the types that explainers take and register.

This module and the modules of the families are importable without torch: the workflow reads the table while
it builds its plan. Heavy libraries are imported inside the functions.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from heatproof.base.grids import Grid
from heatproof.base.options import Bounds
from heatproof.base.provenance import Key
from heatproof.base.registry import Registry, RegistryEntry, options_of
from heatproof.base.tasks import CALLABLE, Need, unsupported_reason
from heatproof.errors import HeatproofError, NotApplicable

if TYPE_CHECKING:
    import torch

    from heatproof.models.registry import InputFacts


class ApplicabilityFigure(NamedTuple):
    """Value of an applicability figure of an explainer, and the limit above which the explainer is a gap."""

    value: float
    limit: float | None = None
    images: int = 0


class MapSums(NamedTuple):
    """What maps are to sum to (N,), and what they sum to where that is not the sum over pixels (N,)."""

    expected: torch.Tensor
    found: torch.Tensor | None


@dataclass(frozen=True)
class ExplainContext:
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
    fill
        ``fill(explained, name)`` returns the images (N, C, H, W) of a baseline by name; None where only zero is known.
    sums
        What `note_sum` was told; None where nobody asks, and no pass is to be made for it.
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
        """What the network is for, one of `heatproof.base.tasks.TASKS`, or ``callable``; known after its first pass."""
        from heatproof.models.adapter import reader_of

        reader = reader_of(self.network)
        return "multiclass" if reader is None else reader.task

    def require(self, need: Need, remedy: str = "") -> None:
        """Require that the network gives a probability or a decision for a target.

        Raises
        ------
        NotApplicable
            If its task gives a number alone.
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
            raise NotApplicable("its rule begins at an output of the network, and the target is a function of outputs")

    def baseline(self, name: str | None) -> torch.Tensor:
        """Return the baseline images (N, C, H, W) of the batch; zero after normalisation for None.

        Raises
        ------
        HeatproofError
            If a baseline is named where none but zero is known.
        """
        import torch

        if name is None:
            return torch.zeros_like(self.images)
        if self.named_baseline is None or name == SAME_AS_DROPS:
            raise HeatproofError(f"The baseline {name!r} is known in a run alone: leave it out, for zero.")
        return self.named_baseline(self, name)

    def note(self, name: str, values: torch.Tensor, limit: float | None = None, mean: bool = False) -> None:
        """Record the maximum or mean of `values` in the applicability check; above `limit` the explainer is a gap."""
        if self.figures is None:
            return
        before = self.figures.get(name, ApplicabilityFigure(0.0))
        images = before.images + len(values)
        if mean:
            value = (before.value * before.images + float(values.double().sum())) / images
        else:
            value = max(before.value, float(values.max()))
        self.figures[name] = ApplicabilityFigure(value, limit, images)

    def note_sum(self, expected: torch.Tensor, found: torch.Tensor | None = None, of: str = "") -> None:
        """Record what the maps of these images are to sum to, which `heatproof.explain` compares with their sums.

        An explainer that makes its maps in parts calls it once for each, in the order of the images.

        Parameters
        ----------
        expected
            (N,), in units of the output.
        found
            (N,), what stands for the sum of a map, where that is not the sum over its pixels: where pixels repeat the
            value of their superpixel.
        of
            Name of the map; the first one by default.
        """
        if self.sums is not None:
            self.sums.setdefault(of, []).append(MapSums(expected.detach(), None if found is None else found.detach()))


@dataclass(frozen=True)
class ExplainerSpec:
    """An explainer.

    Attributes
    ----------
    name
        Name that the config gives it.
    kind
        Name in the table of explainers, or ``package.module:function``.
    module
        Module that enters it there.
    options
        Options of its function.
    maps
        Names of its maps, and whether each is signed.
    grid
        Grid of the patches that its baseline fills; None if it has no baseline by name.
    """

    name: str
    kind: str
    module: str
    options: dict[str, Any]
    maps: dict[str, bool]
    grid: Grid | None = None


@dataclass(frozen=True, kw_only=True)
class StoredExplainer(ExplainerSpec):
    """An explainer with the store of its maps on a network.

    Attributes
    ----------
    needs
        What it needs of a network, such as ``cam_layer``.
    key
        Key of the maps.
    store
        Path of the store, without its ending.
    """

    needs: list[str]
    key: Key
    store: str


ExplainFunction = Callable[..., "dict[str, torch.Tensor]"]
# The baseline of the patch drops; the plan puts its name in the place of this one.
SAME_AS_DROPS = "same"
BaselineName = str | None
"""Option of an explainer: ``null`` for zero after normalisation, a baseline's name, or ``same`` for the drops' own."""
Tolerance = Annotated[float, Bounds(above=0)] | None
"""Option of an explainer: by what share a sum that its maps should have may be missed; ``null`` for its own limit."""


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
"""What a network can have, as explainers declare it; `heatproof.attribution._kinds` finds it."""


@dataclass(frozen=True)
class Explainer(RegistryEntry):
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
    applies_to
        Names of `NETWORK_KINDS`: it is meant for networks that are of one of them at least. The check on the first images
        decides in a run; this is what the explainer claims, and docs/matrix.md compares both.
    ablates
        Whether its maps are what the output loses when regions are deleted, one by one. That is nearly what measures of
        deletion compare maps with, where it is an upper bound and no contender.
    sums_to
        Mapping from the maps that promise a sum to what that is; the explainer gives its value to `ExplainContext.note_sum`.
    exempt
        Rules of `heatproof.testing` that it breaks by its definition, by name, and why.
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
    """Register a function as an explainer; its keyword-only arguments are the options.

    Parameters
    ----------
    name
        The key in the config, and the name of the map when there is only one.
    maps
        Mapping from map name to whether the map is signed. Default: one map with the explainer's name.
    signed
        Whether that one map can be negative.
    family, needs, uses_model, library, ablates, exempt
        See `Explainer`.
    applies_to
        See `Explainer`. Default: a network with a grid for one that needs a layer with a grid, else any.
    sums_to
        What the map is to sum to where the method promises that, as a part of a sentence; of several maps as in
        `Explainer`.

    Raises
    ------
    HeatproofError
        If `applies_to` has a name that is not in `NETWORK_KINDS`, or `sums_to` one that is no map.
    """
    kinds = frozenset(applies_to or ({"grid"} if "cam_layer" in needs else {"any"}))
    if unknown := sorted(kinds - set(NETWORK_KINDS)):
        raise HeatproofError(
            f"The explainer {name!r} applies to {unknown[0]!r}, which is no kind of network: take {', '.join(NETWORK_KINDS)}."
        )

    named = dict(maps or {name: signed})
    sums = {next(iter(named)): sums_to} if isinstance(sums_to, str) else dict(sums_to or {})
    if unknown := sorted(set(sums) - set(named)):
        raise HeatproofError(
            f"The explainer {name!r} says what {unknown[0]!r} sums to, which it does not make: name one of its maps, "
            f"{', '.join(named)}, in sums_to."
        )

    def enter(function: ExplainFunction) -> ExplainFunction:
        EXPLAINERS[name] = Explainer(
            name=name,
            function=function,
            maps=MappingProxyType(named),
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

    return enter


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

"""Methods, and their form in the specs of jobs.

A method is one of the maps of an explainer, either signed (``raw``) or as absolute values (``abs``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from heatproof.core.grids import Grid
from heatproof.core.provenance import Key
from heatproof.core.registry import is_reference
from heatproof.core.specs import NO_KEY

ABS_SUFFIX = "_abs"
# Stands for the model and for the weights in the path of maps that do not use the model.
NO_MODEL = "no_model"


class Maps(NamedTuple):
    """Maps of images by one explainer.

    Attributes
    ----------
    values
        (N, M, H, W): float32 pixels, or float64 sums over patches, for which H and W are the rows and columns of the
        grid.
    absolute
        Sums of absolute values over patches, (N, M, H, W), if `values` are sums.
    """

    values: np.ndarray
    absolute: np.ndarray | None = None

    def take_images(self, rows: Sequence[int]) -> Maps:
        """Return the maps of a subset of the images, by their rows in order."""
        if len(rows) == len(self.values):
            return self
        taken = list(rows)
        return Maps(self.values[taken], None if self.absolute is None else self.absolute[taken])


def as_maps(maps: Maps | np.ndarray) -> Maps:
    """Return an array (N, M, H, W) of maps as `Maps`."""
    return maps if isinstance(maps, Maps) else Maps(maps)


def have_signs(maps: Maps | np.ndarray) -> bool:
    """Return whether any map (N, M, H, W) has a negative value; otherwise it equals its absolute values."""
    all_maps = as_maps(maps)
    if all_maps.absolute is None:
        return bool((all_maps.values < 0).any())
    return bool((all_maps.values < all_maps.absolute).any())


@dataclass(frozen=True)
class Method:
    """A method: an explainer with its options, the index of one of its maps, and ``raw`` or ``abs``.

    Attributes
    ----------
    name
        Name in tables and results.
    explainer
        The explainer that makes the maps; its `MethodSpec` where the maps are in a store, so that no explainer is
        called; None for maps that a caller hands in.
    options
        All options of the explainer.
    index
        Index of the map among those of the explainer.
    transform
        ``raw`` or ``abs``.
    """

    name: str
    # Without the fields that have mappings in them, so that a method can be part of a dict's key.
    explainer: Any = field(default=None, hash=False)
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    index: int = 0
    transform: str = "raw"

    def select_maps(self, maps: Maps | np.ndarray) -> np.ndarray:
        """Return the maps (N, H, W) of the method from those of its explainer (N, maps, H, W)."""
        all_maps = as_maps(maps)
        if self.transform != "abs":
            return all_maps.values[:, self.index]
        return np.abs(all_maps.values[:, self.index]) if all_maps.absolute is None else all_maps.absolute[:, self.index]

    @property
    def makes_maps(self) -> bool:
        """Whether the explainer can be called; otherwise the maps are in a store, or handed in."""
        return hasattr(self.explainer, "function")

    @property
    def ablates(self) -> bool:
        """Whether the method deletes regions one by one; see `heatproof.explainers.registry.Explainer`."""
        return bool(getattr(self.explainer, "ablates", False))

    @property
    def uses_model(self) -> bool:
        """Whether the maps depend on the model."""
        return self.explainer is None or self.explainer.uses_model

    @property
    def kind(self) -> str:
        """Name of the explainer in the registry, or ``package.module:function``; for other maps the method's name."""
        if isinstance(self.explainer, MethodSpec):
            return self.explainer.kind
        return self.name if self.explainer is None else self.explainer.name

    @property
    def map(self) -> str:
        """Name of the map in the registry, or in the config for a user's function."""
        if isinstance(self.explainer, MethodSpec):
            return self.explainer.registered_maps[self.index]
        return self.name if self.explainer is None else list(self.explainer.maps)[self.index]

    @property
    def map_names(self) -> list[str]:
        """Names that all maps of the explainer have in tables and results."""
        if isinstance(self.explainer, MethodSpec):
            return self.explainer.map_names
        return [self.name] if self.explainer is None else list(self.explainer.maps_called(self.name))


@dataclass(frozen=True)
class MethodSpec:
    """The methods of an explainer of the config, as the plan and the specs of jobs describe them.

    Attributes
    ----------
    name
        Name of the explainer in the config.
    kind
        Its name in the registry, or ``package.module:function``.
    module
        Module of its code.
    options
        All options of its function.
    maps
        Name of each map, and whether it is signed, in the order of the explainer. Not a mapping, because specs are
        stored as JSON, whose keys are sorted.
    needs
        Facts of the model that it needs, such as ``cam_layer``.
    uses_model
        Whether its maps depend on the model.
    grid
        Grid of the patches that its baseline fills; None if it has no named baseline.
    store
        Path of the store of its maps, without suffix.
    key
        Key of what a job makes with it: the maps, or a response along them.
    """

    name: str
    kind: str
    module: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    maps: tuple[tuple[str, bool], ...] = ()
    needs: list[str] = field(default_factory=list)
    uses_model: bool = True
    grid: Grid | None = None
    store: str = ""
    key: Key = NO_KEY

    @property
    def is_custom(self) -> bool:
        """Whether it is a user's function, of which only its maps tell whether they are signed."""
        return is_reference(self.kind)

    @property
    def methods(self) -> list[Method]:
        """The methods: each map raw, and each signed map also as absolute values."""
        return methods_of(dict(self.maps), self, self.options)

    @property
    def map_names(self) -> list[str]:
        """Names of the maps, in the order of the explainer."""
        return [name for name, _ in self.maps]

    @property
    def registered_maps(self) -> list[str]:
        """Names of the maps in the registry, or in the config for a user's function."""
        if is_reference(self.kind) or self.name == self.kind:
            return self.map_names
        if len(self.maps) == 1:
            return [self.kind]
        return [name.removeprefix(f"{self.name}_") for name in self.map_names]

    def without_run(self) -> MethodSpec:
        """Return the part of the spec that names the methods, without what it takes to make their maps."""
        return MethodSpec(self.name, self.kind, maps=self.maps, uses_model=self.uses_model)


def methods_of(
    maps: Mapping[str, bool], explainer: Any = None, options: Mapping[str, Any] | None = None
) -> list[Method]:
    """Return the methods of an explainer: each map raw, and each signed map as absolute values as well.

    Parameters
    ----------
    maps
        Names of its maps, and whether each is signed.
    explainer, options
        As in `Method`.
    """
    return [
        Method(f"{name}{ABS_SUFFIX}" if transform == "abs" else name, explainer, options or {}, index, transform)
        for index, (name, signed) in enumerate(maps.items())
        for transform in (("raw", "abs") if signed else ("raw",))
    ]


def without_equal_maps(explainers: Iterable[MethodSpec], scored: Collection[str]) -> list[MethodSpec]:
    """Return explainers without the absolute methods of user's functions whose maps equal the raw ones.

    The plan has both, because only the maps tell whether they are signed. Scores and tables lack the equal ones, so
    that figures and pages show the methods of the tables.

    Parameters
    ----------
    explainers
        The explainers of the plan.
    scored
        Names of the methods in the scores or in a table of them.
    """

    def differs(name: str) -> bool:
        return name not in scored or f"{name}{ABS_SUFFIX}" in scored

    return [
        replace(explainer, maps=tuple((name, signed and differs(name)) for name, signed in explainer.maps))
        if explainer.is_custom
        else explainer
        for explainer in explainers
    ]


def all_methods(explainers: Iterable[MethodSpec]) -> list[Method]:
    """Return the methods of several explainers."""
    return [method for explainer in explainers for method in explainer.methods]

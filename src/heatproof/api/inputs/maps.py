"""Read the maps that callers pass, of one method or several, labelled or not, in the order of the images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from heatproof.api.inputs.explained_targets import TARGET_DIGEST, ScoredTargets, check_explained
from heatproof.api.inputs.labels import IMAGE_DIGEST, labels_of, match_rows
from heatproof.core.named_axes import MAP_DIMS, in_dimension_order, is_labelled_array
from heatproof.core.perturb.curves import check_maps
from heatproof.errors import HeatproofError

if TYPE_CHECKING:
    from heatproof.api.inputs.source import Inputs


class Maps(NamedTuple):
    """Attribution maps of N images by M methods.

    Attributes
    ----------
    values
        (N, M, H, W), higher is more relevant.
    names
        Names of the M methods; None for maps of one method without a name.
    gaps
        Name of each method that is not applicable, and the reason.
    """

    values: np.ndarray
    names: list[str] | None
    gaps: dict[str, str]


def read_maps(maps: Any, images: Inputs, scored: Sequence[ScoredTargets] | None = None) -> Maps:
    """Return maps in the order of the images.

    Parameters
    ----------
    maps
        Maps (N, H, W) of one method, a mapping from methods to such maps, an xarray.DataArray, or a result of
        `heatproof.explain`.
    images
        The images with their targets.
    scored
        The scored targets, which maps must explain; by default the targets of the images.

    Raises
    ------
    HeatproofError
        If maps are of other images or targets, are not numeric, or have another size than the images.
    """
    if scored is None:
        scored = [] if images.targets is None else [ScoredTargets(images.explained)]
    methods, gaps = _methods(maps)
    if isinstance(methods, dict):
        if not methods:
            reason = next(
                (f"no method applies, {name} because {reason}." for name, reason in gaps.items()), "give some."
            )
            raise HeatproofError(f"There are no maps: {reason}")
        arrays = []
        for name, values in methods.items():
            try:
                arrays.append(_values(values, images, scored))
            except HeatproofError as error:
                raise HeatproofError(str(error).replace("The maps ", f"The maps of {name!r} ", 1)) from None
        return Maps(np.stack(arrays, axis=1), list(methods), gaps)
    return Maps(_values(methods, images, scored)[:, None], None, gaps)


def explained_classes(maps: Any, images: Inputs) -> np.ndarray | None:
    """Return the explained class of each image (N,), from the labels of maps; None if they have no such label."""
    for values in methods_of_maps(maps):
        labels = labels_of(values)
        if labels is not None and labels.targets is not None:
            rows = match_rows(values, images, "maps")
            return labels.targets if rows is None else labels.targets[rows]
    return None


def methods_of_maps(maps: Any) -> list[Any]:
    """Return the maps of each method."""
    methods, _ = _methods(maps)
    return list(methods.values()) if isinstance(methods, dict) else [methods]


def _methods(maps: Any) -> tuple[Any, dict[str, str]]:
    """Return maps of one unnamed method, or a dict of method to maps; and the reasons of methods without maps."""
    gaps: dict[str, str] = {}
    if hasattr(maps, "data_vars"):
        if "attribution" not in maps:
            raise HeatproofError(
                f"The maps are an xarray.Dataset with {', '.join(map(str, maps)) or 'nothing'}: give what "
                "heatproof.explain returns, or one of its arrays."
            )
        reasons = maps.get("reason")
        maps = _with_labels(maps)
        if reasons is not None and "method" in reasons.coords and reasons.dims in ((), ("method",)):
            pairs = zip(np.atleast_1d(reasons["method"].values), np.atleast_1d(reasons.values), strict=True)
            gaps = {str(name): str(reason) for name, reason in pairs if reason}
            if gaps and "method" not in maps.dims:
                return {}, gaps
    if is_labelled_array(maps) and "method" in maps.dims and "method" not in maps.coords:
        raise HeatproofError(
            "The maps have a dimension method without names: give maps.assign_coords(method=[…]) with one name for "
            f"each of the {maps.sizes['method']} methods."
        )
    if is_labelled_array(maps) and "map" in maps.dims and "method" not in maps.dims:
        # Maps of a run: an explainer computes one map or several.
        maps = maps.squeeze("map", drop=True) if maps.sizes["map"] == 1 else maps.rename({"map": "method"})
    if is_labelled_array(maps) and "method" in maps.dims:
        names = maps["method"].values.tolist()
        return _named([(name, maps.isel(method=row, drop=True)) for row, name in enumerate(names)], gaps), gaps
    if isinstance(maps, Mapping):
        arrays = {name: _of_one(values) for name, values in maps.items()}
        return _named(arrays.items(), gaps), gaps
    return maps, gaps


def _with_labels(maps: Any) -> Any:
    """Return the array of an xarray.Dataset of maps, with labels restored as coordinates.

    A conversion, for example to pandas and back, turns coordinates into variables.
    """
    array = maps["attribution"]
    for name in ("target", IMAGE_DIGEST, TARGET_DIGEST):
        if name in maps.data_vars and "image" in maps[name].dims:
            values = maps[name]
            other_dims = [dim for dim in values.dims if dim not in ("image", "method")]
            array = array.assign_coords({name: values.isel(dict.fromkeys(other_dims, 0), drop=True)})
    return array


def _of_one(maps: Any) -> Any:
    """Return the maps of one method, without the dimension ``method``."""
    array = _with_labels(maps) if hasattr(maps, "data_vars") and "attribution" in maps else maps
    is_one = is_labelled_array(array) and "method" in array.dims and array.sizes["method"] == 1
    return array.isel(method=0, drop=True) if is_one else array


def _named(pairs: Any, gaps: Mapping[str, str]) -> dict[str, Any]:
    maps_by_name: dict[str, Any] = {}
    for name, values in pairs:
        if name is None or name == "" or name != name:
            raise HeatproofError(f"The maps have a method without a name ({name!r}): give each method a name.")
        if str(name) in maps_by_name:
            raise HeatproofError(f"The maps have the method {str(name)!r} twice: give each method a name of its own.")
        maps_by_name[str(name)] = values
    return {name: values for name, values in maps_by_name.items() if name not in gaps}


def _values(maps: Any, images: Inputs, scored: Sequence[ScoredTargets]) -> np.ndarray:
    labels, rows = labels_of(maps), match_rows(maps, images, "maps", scored[0].explained if scored else None)
    if labels is not None and (explained := labels.explained) is not None:
        for scored_targets in scored:
            check_explained(explained if rows is None else [explained[row] for row in rows], scored_targets, images.ids)
    maps = in_dimension_order(maps, MAP_DIMS, "maps")
    if hasattr(maps, "detach"):
        maps = maps.detach().cpu() if maps.layout == torch.strided else maps.detach().to_dense().cpu()
        # NumPy has no bfloat16.
        maps = (maps.float() if maps.is_floating_point() and maps.itemsize < 4 else maps).numpy()
    try:
        values = np.asarray(maps)
    except (TypeError, ValueError):
        raise HeatproofError(
            f"The maps are {type(maps).__name__} that cannot be converted to an array: give numbers (images, height, "
            "width)."
        ) from None
    values = values if rows is None else values[rows]
    check_maps(values, images.images, images.ids)
    # Metrics divide and negate the values, which integers, above all unsigned ones, do not support.
    return values if np.issubdtype(values.dtype, np.floating) else values.astype(np.float64)

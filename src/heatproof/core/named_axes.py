"""Arrays with named dimensions (xarray.DataArray), put into standard order without importing xarray."""

from __future__ import annotations

from typing import Any

from heatproof.core.plain_values import as_plain_values
from heatproof.errors import HeatproofError

IMAGE_DIMS = ("image", "channel", "y", "x")
MAP_DIMS = ("image", "y", "x")


def is_labelled_array(values: Any) -> bool:
    """Tell whether an object is an xarray.DataArray."""
    return hasattr(values, "dims") and hasattr(values, "transpose") and not hasattr(values, "data_vars")


def in_dimension_order(values: Any, names: tuple[str, ...], label: str) -> Any:
    """Return the array of an xarray.DataArray with its dimensions in the order of `names`, as plain values.

    Other arrays and tensors keep their dimensions, and are returned as `as_plain_values` does.

    Raises
    ------
    HeatproofError
        If its dimensions have other names, or as in `as_plain_values`.
    """
    if not is_labelled_array(values):
        return as_plain_values(values, label)
    if sorted(map(str, values.dims)) != sorted(names):
        raise HeatproofError(
            f"The {label} have the dimensions {', '.join(map(str, values.dims))}: name them {', '.join(names)}, or "
            "pass the array without names in this order."
        )
    return as_plain_values(values.transpose(*names).values, label)

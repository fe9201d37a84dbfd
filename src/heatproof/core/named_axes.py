"""Arrays with named dimensions (xarray.DataArray), put into standard order without importing xarray."""

from __future__ import annotations

from typing import Any

from heatproof.errors import HeatproofError

IMAGE_DIMS = ("image", "channel", "y", "x")
MAP_DIMS = ("image", "y", "x")


def is_labelled_array(values: Any) -> bool:
    """Tell whether an object is an xarray.DataArray."""
    return hasattr(values, "dims") and hasattr(values, "transpose") and not hasattr(values, "data_vars")


def in_dimension_order(values: Any, names: tuple[str, ...], label: str) -> Any:
    """Return the array of an xarray.DataArray with its dimensions in the order of `names`; other objects unchanged.

    Raises
    ------
    HeatproofError
        If its dimensions have other names.
    """
    if not is_labelled_array(values):
        return values
    if sorted(map(str, values.dims)) != sorted(names):
        raise HeatproofError(
            f"The {label} have the dimensions {', '.join(map(str, values.dims))}: name them {', '.join(names)}, or "
            "pass the array without names in this order."
        )
    return values.transpose(*names).values

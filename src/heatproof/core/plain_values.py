"""Arrays and tensors of callers in the one form that NumPy and torch calculate with."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np

from heatproof.errors import HeatproofError


def as_plain_values(values: Any, label: str) -> Any:
    """Return an array or a tensor without masks, foreign byte order and quantisation; other objects unchanged.

    Values under a mask are missing, so they become NaN, also those of a masked array of integers.

    Parameters
    ----------
    values
        Any object; in a list or tuple, masked arrays are looked for.
    label
        Plural name of the values in error messages.

    Raises
    ------
    HeatproofError
        If a tensor has no values, or is nested and so has no shape.
    """
    if isinstance(values, list | tuple) and any(isinstance(part, np.ma.MaskedArray) for part in values):
        # Arrays of different shapes are refused where the shape is checked.
        with suppress(ValueError):
            values = np.ma.array(list(values))
    if isinstance(values, np.ndarray):
        return _plain_array(values)
    if hasattr(values, "detach") and hasattr(values, "is_nested"):
        return _plain_tensor(values, label)
    return values


def _plain_array(values: np.ndarray) -> np.ndarray:
    if isinstance(values, np.ma.MaskedArray):
        masked: Any = values
        if not np.ma.is_masked(values):
            values = values.data
        elif values.dtype.kind in "biu":
            values = masked.astype(np.float64).filled(np.nan)
        elif values.dtype.kind in "fc":
            values = masked.filled(np.nan)
        else:
            values = masked.astype(object).filled(None)
    # torch takes no other byte order.
    return values if values.dtype.isnative else values.astype(values.dtype.newbyteorder("="))


def _plain_tensor(values: Any, label: str) -> Any:
    if type(values).__name__ == "MaskedTensor":
        return values.to_tensor(float("nan"))
    if values.is_nested:
        raise HeatproofError(
            f"The {label} are a nested tensor, whose parts may differ in shape: resize them to one, and give "
            "torch.stack(list(nested.unbind()))."
        )
    if values.device.type == "meta":
        raise HeatproofError(f"The {label} are a tensor on the device meta, which holds no values: give them computed.")
    return values.dequantize() if values.is_quantized else values

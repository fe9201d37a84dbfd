"""Integer types that are wide enough for all possible values, so that no value overflows."""

from __future__ import annotations

from typing import Any

import numpy as np

from heatproof.errors import HeatproofError

INTEGER_TYPES = ("int8", "int16", "int32", "int64")


def widen_dtype(dtype: str, maximum: int) -> str:
    """Return a signed integer type if it can hold `maximum`, otherwise the narrowest wider type that can.

    Raises
    ------
    HeatproofError
        If no type can.
    """
    for wider in INTEGER_TYPES[INTEGER_TYPES.index(dtype) :]:
        if maximum < 2 ** (int(wider.removeprefix("int")) - 1):
            return wider
    raise HeatproofError(f"The number {maximum} has more than 64 bits: give smaller ones.")


def as_dtype(values: Any, dtype: str, label: str) -> np.ndarray:
    """Return values as an array of a type.

    Raises
    ------
    HeatproofError
        If the type is an integer type that cannot hold one of the values, which NumPy would silently overflow.
    """
    original = np.asarray(values)
    converted = original.astype(dtype, copy=False)
    if converted.dtype.kind in "iu" and original.dtype != converted.dtype and not np.array_equal(converted, original):
        overflowing = original[converted != original].ravel()[0]
        raise HeatproofError(
            f"{label} has the value {overflowing}, which {dtype} cannot hold: give whole numbers in its range."
        )
    return converted

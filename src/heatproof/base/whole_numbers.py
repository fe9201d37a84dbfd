"""Types of whole numbers: as wide as the values that there can be, and no value is cut off."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from heatproof.errors import HeatproofError

if TYPE_CHECKING:
    import numpy as np

WIDER = ("int8", "int16", "int32", "int64")


def widen_dtype(dtype: str, most: int) -> str:
    """Return a signed type of whole numbers where it holds `most`, else the narrowest that does.

    Raises
    ------
    HeatproofError
        If none does.
    """
    for one in WIDER[WIDER.index(dtype) :]:
        if most < 2 ** (int(one.removeprefix("int")) - 1):
            return one
    raise HeatproofError(f"The number {most} has more than 64 bits: give smaller ones.")


def as_dtype(values: Any, dtype: str, what: str) -> np.ndarray:
    """Return values as an array of a type.

    Raises
    ------
    HeatproofError
        If the type is of whole numbers and cannot hold one of the values; NumPy would cut it off.
    """
    import numpy as np

    given = np.asarray(values)
    made = given.astype(dtype, copy=False)
    if made.dtype.kind in "iu" and given.dtype != made.dtype and not np.array_equal(made, given):
        beyond = given[made != given].ravel()[0]
        raise HeatproofError(
            f"{what} has the value {beyond}, which {dtype} cannot hold: give whole numbers in its range."
        )
    return made

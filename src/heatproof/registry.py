"""Look-up of named things, and of a user's own ``package.module:callable``."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from heatproof.errors import HeatproofError

T = TypeVar("T")

# A sentence is to be read: of more names than this, it says where they stand.
LISTED = 16


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a ``; did you mean …?`` clause, or the list of known names when nothing is near."""
    names = sorted(known)
    if not names:
        return "there are none."
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    if close:
        return f"did you mean {close[0]!r}?"
    if len(names) > LISTED:
        return f"known are {', '.join(names[:LISTED])} and {len(names) - LISTED} more, as `heatproof list` prints them."
    return f"known are {', '.join(names)}."


def look_up(table: Mapping[str, T], name: str, kind: str) -> T:
    """Return ``table[name]``.

    Raises
    ------
    HeatproofError
        If there is no such name; the message has the nearest one.
    """
    if name not in table:
        raise HeatproofError(f"There is no {kind} named {name!r}: {nearest(name, table)}")
    return table[name]


def is_reference(name: str) -> bool:
    """Tell whether `name` has the form ``package.module:callable``."""
    return ":" in name


def import_callable(reference: str, kind: str) -> Callable[..., Any]:
    """Import ``package.module:callable``, named by the user's own config.

    Raises
    ------
    HeatproofError
        If the module or the callable is not there.
    """
    module_name, _, attribute = reference.partition(":")
    try:
        found = getattr(importlib.import_module(module_name), attribute)
    except Exception as error:  # the module's code is the user's, and can fail in any way
        reason = " ".join(str(error).split())
        raise HeatproofError(
            f"The {kind} {reference!r} cannot be imported ({reason}): write it as package.module:callable, "
            "and make the package importable (installed, or on PYTHONPATH)."
        ) from None
    if not callable(found):
        raise HeatproofError(f"The {kind} {reference!r} is not callable.")
    return found

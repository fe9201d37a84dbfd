"""Plain JSON values as the types that annotations name, read by pydantic."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError

# The `__pydantic_config__` of dataclasses that refuse fields which they do not have.
NO_OTHER_FIELDS = ConfigDict(extra="forbid")


def as_type(kind: Any, value: Any, label: str) -> Any:
    """Convert a JSON value to the type of an annotation.

    Parameters
    ----------
    kind
        A type: of plain values, lists, tuples, mappings, unions, literals, named tuples and dataclasses. Fields that a
        dataclass does not have are left out, unless its `__pydantic_config__` forbids them.
    value
        The value as read from JSON.
    label
        Name of the value in error messages.

    Raises
    ------
    ValueError
        If a field is missing, unknown, or of another type; one sentence for the first such field.
    """
    try:
        # From text, because only there a strict reader takes lists for tuples, as JSON has no others.
        return _adapter(kind).validate_json(json.dumps(value), strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join([label, *map(str, first["loc"])])
        raise ValueError(f"{where} is {first['input']!r:.60}: {first['msg'].lower()}") from None


def has_fields(kind: Any, value: Any) -> bool:
    """Tell whether a JSON value has the fields of a dataclass with their types; it may have others.

    Parameters
    ----------
    kind
        The dataclass; fields with a default may be missing.
    value
        The value as read from JSON.
    """
    try:
        as_type(kind, value, "the value")
    except ValueError:
        return False
    return True


# Cached, because a job reads a hundred explainers of one class.
@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)

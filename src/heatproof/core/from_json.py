"""Conversion of plain JSON values to the types that annotations name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints


# pydantic would take longer to import than everything else that a job imports before it starts.
def as_type(kind: Any, value: Any, label: str) -> Any:
    """Convert a JSON value to the type of an annotation.

    Parameters
    ----------
    kind
        A type: of plain values, lists, tuples, mappings, unions, literals, named tuples and dataclasses.
    value
        The value as read from JSON.
    label
        Name of the value in error messages.

    Raises
    ------
    ValueError
        If a field is missing, unknown, or of another type.
    """
    # A shortcut for plain values, of which thousands of manifests mostly consist.
    if type(value) is kind or kind is Any:
        return value
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        for alternative in args:
            with suppress(ValueError):
                return as_type(alternative, value, label)
    elif kind is float and type(value) is int:
        return value
    elif origin is Literal:
        if value in args:
            return value
    elif is_dataclass(kind) and isinstance(value, Mapping):
        return kind(**_typed_fields(kind, value, label))  # type: ignore[operator]  # mypy takes it for an instance
    elif issubclass(origin or kind, (list, tuple)) and isinstance(value, (list, tuple)):
        return _read_items(kind, value, label)
    elif origin is not None and issubclass(origin, Mapping) and isinstance(value, Mapping):
        if args[1] is Any or set(map(type, value.values())) <= {args[1]}:
            return dict(value)
        return {name: as_type(args[1], item, f"{label}.{name}") for name, item in value.items()}
    raise ValueError(f"{label} is {value!r:.60}, which is not of type {getattr(kind, '__name__', kind)}")


def has_fields(kind: Any, value: Any) -> bool:
    """Tell whether a JSON value has the fields of a dataclass with their types; it may have others.

    Parameters
    ----------
    kind
        The dataclass; fields with a default may be missing.
    value
        The value as read from JSON.
    """
    if not isinstance(value, Mapping):
        return False
    field_types, _ = _fields_of(kind)
    try:
        _typed_fields(kind, {name: item for name, item in value.items() if name in field_types}, "the value")
    except ValueError:
        return False
    return True


def _typed_fields(kind: Any, value: Mapping[str, Any], label: str) -> dict[str, Any]:
    hints, required = _fields_of(kind)
    if unknown := value.keys() - hints.keys():
        raise ValueError(f"{label} has {min(unknown)!r}, which is not a field of {kind.__name__}")
    if missing := required - value.keys():
        raise ValueError(f"{label} lacks {min(missing)!r} of {kind.__name__}")
    # As in `as_type`, but without a call and a name for each plain value.
    return {
        name: item if type(item) is hints[name] else as_type(hints[name], item, f"{label}.{name}")
        for name, item in value.items()
    }


@cache
def _fields_of(kind: Any) -> tuple[dict[str, Any], frozenset[str]]:
    """Return the types of a dataclass's fields by name, and the names of the fields without a default."""
    hints = _hints(kind)
    required = [field.name for field in fields(kind) if field.default is MISSING and field.default_factory is MISSING]
    return {field.name: hints[field.name] for field in fields(kind)}, frozenset(required)


# Cached, because a job reads a hundred explainers of one class.
@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def _read_items(kind: Any, value: Sequence[Any], label: str) -> Any:
    """Return a list, a tuple, or a named tuple."""
    origin, kinds = get_origin(kind) or kind, get_args(kind) or tuple(_hints(kind).values())
    if origin is list or kinds[1:] == (...,):
        # All at once, because a dataset may have a million names.
        if set(map(type, value)) <= {kinds[0]}:
            return list(value) if origin is list else tuple(value)
        kinds = kinds[:1] * len(value)
    if len(kinds) != len(value):
        raise ValueError(f"{label} has {len(value)} values instead of {len(kinds)}")
    parts = [as_type(part_kind, part, label) for part_kind, part in zip(kinds, value, strict=True)]
    return parts if origin is list else tuple(parts) if origin is tuple else kind(*parts)

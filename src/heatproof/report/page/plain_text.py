"""Columns of text, and options as they are written in a config."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping, Sequence
from typing import Any

# Rows of a table.
Rows = Sequence[tuple[str, ...]]


def in_columns(rows: Rows, right: Collection[int] = ()) -> list[str]:
    """Return the lines of a table whose columns are as wide as their longest cell.

    Parameters
    ----------
    rows
        Cells.
    right
        Places of the columns that stand at the right.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    forms = [f"{'>' if place in right else '<'}{width}" for place, width in enumerate(widths)]
    return ["  ".join(map(format, row, forms)).rstrip() for row in rows]


def kind_with_options(kind: str, options: Mapping[str, Any]) -> str:
    """Return the name of a kind, with its options behind it."""
    return f"{kind} ({options_as_text(options)})" if options else kind


def options_as_text(options: Mapping[str, Any]) -> str:
    """Return options on one line; the default of a function's parameter that has none shows that it is needed."""
    return ", ".join(
        f"{key} (needed)" if value is inspect.Parameter.empty else f"{key}={_value(value)}"
        for key, value in options.items()
    )


def _value(value: Any) -> str:
    if value is ...:
        return "(to be given)"
    if value is None or isinstance(value, bool):
        # As it is written in YAML.
        return {None: "null", True: "true", False: "false"}[value]
    return f"{value:g}" if isinstance(value, float) else str(value)

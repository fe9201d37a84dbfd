"""Plain text for the terminal: tables with aligned columns, and options as a config has them."""

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
        Rows of cells.
    right
        Indices of the columns that are aligned to the right.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    forms = [f"{'>' if column in right else '<'}{width}" for column, width in enumerate(widths)]
    return ["  ".join(map(format, row, forms)).rstrip() for row in rows]


def kind_with_options(kind: str, options: Mapping[str, Any]) -> str:
    """Return a name followed by its options in parentheses, if there are any."""
    return f"{kind} ({options_as_text(options)})" if options else kind


def options_as_text(options: Mapping[str, Any]) -> str:
    """Return options on one line; an option without a default is marked as needed."""
    return ", ".join(
        f"{key} (needed)" if value is inspect.Parameter.empty else f"{key}={_value(value)}"
        for key, value in options.items()
    )


def _value(value: Any) -> str:
    if value is ...:
        return "(to be given)"
    if value is None or isinstance(value, bool):
        # YAML writes them so.
        return {None: "null", True: "true", False: "false"}[value]
    return f"{value:g}" if isinstance(value, float) else str(value)

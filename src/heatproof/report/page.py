"""HTML pages: one file each, no network, light and dark, all names escaped."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Environment


def render(name: str, **values: Any) -> str:
    """Fill a template of the folder ``templates``; every value is escaped.

    Parameters
    ----------
    name
        Of the file; it extends ``frame.html``.
    values
        What it names; ``title`` among them.
    """
    return _environment().get_template(name).render(**values)


def cell(value: str, text: str | None = None, small: str = "", kind: str = "") -> dict[str, str]:
    """Return a cell of a table: what it is sorted by, what it shows, what stands small beside that, and its class."""
    return {"value": value, "text": value if text is None else text, "small": small, "kind": kind}


@cache
def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    return Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )

"""HTML pages: one file each, no network, light and dark, all names escaped."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def render(name: str, **values: Any) -> str:
    """Fill a template of the folder ``templates``; every value is escaped.

    Parameters
    ----------
    name
        Of the file; it extends ``frame.html``.
    values
        What it names; ``title`` among them.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(name).render(**values)

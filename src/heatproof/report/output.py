"""What a job of the report leaves: its tables, figures and pages, and the manifest of all of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from heatproof.manifest import publish_tables
from heatproof.store import write_table, write_text, written_aside

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def publish(
    spec: Mapping[str, Any], made: Mapping[str, pd.DataFrame | Figure | str | None], inputs: Iterable[str | Path]
) -> None:
    """Write what a job made, and its manifest.

    Parameters
    ----------
    spec
        Has its ``key`` and the path ``manifest``.
    made
        Path to a table, a figure or a page; None for a file that is written already.
    inputs
        Files that earlier stages left.

    Raises
    ------
    HeatproofError
        If an input is missing or damaged.
    """
    for path, content in made.items():
        if isinstance(content, pd.DataFrame):
            write_table(content, path)
        elif isinstance(content, str):
            write_text(path, content)
        elif content is not None:
            save(content, path)
    publish_tables(spec, made, inputs)


def save(figure: Figure, path: str | Path) -> None:
    """Write a figure aside and move it into place; neither a date nor a random id goes into it."""
    from matplotlib import rc_context

    path = Path(path)
    about = {"Date": None, "Title": "Scores of attribution methods"} if path.suffix == ".svg" else {"Software": None}
    with rc_context({"svg.hashsalt": "heatproof", "text.parse_math": False}), written_aside(path) as aside:
        figure.savefig(aside, format=path.suffix[1:], dpi=150, metadata=about)

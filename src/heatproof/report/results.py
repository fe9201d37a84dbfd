"""Reading of score tables, writing of figures and pages, and formatting of numbers."""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from heatproof.store.result_tables import read_text
from heatproof.store.writing import atomic_write

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NETWORK = ["dataset", "model", "weights"]
CASE = [*NETWORK, "metric"]


def read_table(path: str | Path, *, listed: bool = False) -> pd.DataFrame:
    """Read a table with names as text, even if they look like numbers, and numbers as numbers.

    Parameters
    ----------
    path, listed
        As in `read_text`.

    Returns
    -------
    pandas.DataFrame
        The table. ``gap`` is "" for rows that are applicable, also where the file has no such column.

    Raises
    ------
    HeatproofError
        As in `read_text`.
    """
    table = read_text(path, listed=listed)
    for column in table.columns.difference([*CASE, "method"]):
        numbers = pd.to_numeric(table[column], errors="coerce")
        if (numbers.notna() | (table[column] == "")).all():
            table[column] = numbers
    has_gaps = "gap" in table and not pd.api.types.is_numeric_dtype(table["gap"])
    return table if has_gaps else table.assign(gap="")


def above_reference(table: pd.DataFrame, references: Collection[str], directions: Mapping[str, bool]) -> pd.Series:
    """Return the distance of each score from the best score of a reference method in the same test case.

    A map that does not outperform a map that does not use the model explains nothing of the model (Zabička, Cieslik and
    Burgess 2025, section 2.1).

    Parameters
    ----------
    table
        dataset, model, weights, metric, method, score (NaN where undefined).
    references
        Names of the methods that do not use the model.
    directions
        Whether higher is better, by metric.

    Returns
    -------
    pandas.Series
        Distances in units of the score, with the index of `table`. Positive is better than all references, whatever the
        direction of the metric. The best reference has 0 and the other references have at most 0. NaN where the method
        or all references have no score.
    """
    signs = table["metric"].map({metric: 1.0 if higher else -1.0 for metric, higher in directions.items()})
    directed = table["score"].astype(float) * signs
    of_references = directed.where(table["method"].isin(list(references)))
    best = of_references.groupby([table[key] for key in CASE]).transform("max")
    return (directed - best).rename("above_reference")


def save(figure: Figure, path: str | Path) -> None:
    """Write a figure atomically, without a date or a random id, so that equal figures have equal bytes."""
    from heatproof.report.figures.drawing import drawing_style

    path = Path(path)
    about = {"Date": None, "Title": "Scores of attribution methods"} if path.suffix == ".svg" else {"Software": None}
    with drawing_style(), atomic_write(path) as aside:
        figure.savefig(aside, format=path.suffix[1:], dpi=150, metadata=about)


def render(name: str, *, script: str | None = None, **values: Any) -> str:
    """Render a template of the folder ``templates`` as a page of one file, with every value escaped.

    The content security policy of the page lets nothing be loaded, and no script run but `script`, which it identifies
    by its SHA-256. A nonce would have to be constant, because the same page must have the same bytes, and whoever knows
    a nonce can use it for another script; a digest cannot be misused so.

    Parameters
    ----------
    name
        Name of the template, which extends ``frame.html``.
    script
        Name of the file with the page's script, in the same folder. No values are inserted into it.
    values
        The variables of the template, including ``title``.
    """
    folder = Path(__file__).parent / "templates"
    script_text = (folder / script).read_text(encoding="utf-8") if script else ""
    sha256 = base64.b64encode(hashlib.sha256(script_text.encode()).digest()).decode()
    environment = Environment(
        loader=FileSystemLoader(folder),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(name).render(script=script_text, sha256=sha256, **values)


# ---- formatted numbers: rounded, with a true minus sign --------------------------------------------------------------


def rounded(value: float, places: int) -> str:
    """Format a finite number with a number of decimal places; a number that rounds to zero has no sign."""
    # Adding 0 turns −0 into 0.
    return formatted(round(value, places) + 0.0, f".{places}f")


def formatted(value: float, form: str) -> str:
    """Format a number by a format specification of Python, with a true minus sign."""
    return format(value, form).replace("-", "−")


def format_score(value: float) -> str:
    """Format the score of an image or a method; NaN becomes "undefined"."""
    return "undefined" if math.isnan(value) else rounded(value, 2)


def format_number(value: str, places: int = 3) -> str:
    """Format the text of a number: rounded, with a true minus sign. Other text is returned unchanged."""
    try:
        number = float(value)
    except ValueError:
        return value
    return "" if math.isnan(number) else rounded(number, places)


def format_digits(value: str) -> str:
    """Format the text of a number of any size with three significant digits."""
    return formatted(float(value), ".3g") if value else ""


def format_share(value: str) -> str:
    """Format the text of a share in [0, 1] as a percentage."""
    return f"{float(value):.1%}" if value else ""


def format_interval(low: str, high: str) -> str:
    """Format an interval; "" where there is none."""
    return f"{format_number(low, 2)} to {format_number(high, 2)}" if low else ""

"""Tables of scores, as the other tables, figures and pages read them; and what a job of the report leaves."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from heatproof.figures import FIGURES
from heatproof.files import write_table, write_text, written_aside
from heatproof.manifest import publish_tables, verified
from heatproof.plan import paths

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NETWORK = ["dataset", "model", "weights"]
CASE = [*NETWORK, "metric"]


def read_text(path: str) -> pd.DataFrame:
    """Read a table with every cell as text: names stay names whatever they look like.

    Raises
    ------
    HeatproofError
        If it is missing, or has not the bytes that its manifest says.
    """
    return pd.read_csv(verified(path), dtype=str, keep_default_na=False)


def read_table(path: str) -> pd.DataFrame:
    """Read a table: names as text whatever they look like, numbers as numbers, ``gap`` "" where there is none.

    Raises
    ------
    HeatproofError
        If it is missing, or has not the bytes that its manifest says.
    """
    table = read_text(path)
    for column in table.columns.difference([*CASE, "method"]):
        numbers = pd.to_numeric(table[column], errors="coerce")
        if (numbers.notna() | (table[column] == "")).all():
            table[column] = numbers
    has_gaps = "gap" in table and not pd.api.types.is_numeric_dtype(table["gap"])
    return table if has_gaps else table.assign(gap="")


def above_reference(table: pd.DataFrame, references: Collection[str], directions: Mapping[str, bool]) -> pd.Series:
    """Return each score's distance from the best reference method's score of the same test case.

    Zabicka, Cieslik and Burgess 2025, section 2.1: what does not outperform a map that knows no model explains none.

    Parameters
    ----------
    table
        dataset, model, weights, metric, method, score (NaN where undefined).
    references
        Names of the methods that know no model.
    directions
        Metric to whether higher is better.

    Returns
    -------
    pandas.Series
        In units of the score, on the index of `table`; positive is better than all references, whichever direction the
        metric has. The best reference has 0, the others no more. NaN where there is no score, or none of a reference.
    """
    signs = table["metric"].map({metric: 1.0 if higher else -1.0 for metric, higher in directions.items()})
    directed = table["score"].astype(float) * signs
    known = directed.where(table["method"].isin(list(references)))
    best = known.groupby([table[key] for key in CASE]).transform("max")
    return (directed - best).rename("above_reference")


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


def render(name: str, **values: Any) -> str:
    """Fill a template of the folder ``templates``: a page of one file, no network, light and dark, every value escaped.

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


def draw_figure(spec: Mapping[str, Any], runtime: Mapping[str, Any]) -> None:
    """Draw a registered figure as SVG and PNG; the same table gives the same bytes."""
    import_module(spec["module"])
    draw = FIGURES[spec["figure"]].draw
    wanted = [name for name, one in inspect.signature(draw).parameters.items() if one.kind is one.KEYWORD_ONLY]
    drawn = draw(read_table(spec["table"]), **{name: spec[name] for name in wanted})
    files = paths.filled(paths.FIGURE_FILES, figure=spec["figure"])
    publish(spec, dict.fromkeys(files.values(), drawn), [spec["table"]])

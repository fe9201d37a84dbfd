"""Tables of scores as other tables, figures and pages read them, numbers as they are told, and what a job leaves."""

from __future__ import annotations

import base64
import hashlib
import inspect
import math
from collections.abc import Collection, Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from heatproof.files.writing import atomic_write, write_table, write_text
from heatproof.ranking.per_image import one_score_per_image
from heatproof.report.figures.registry import FIGURES
from heatproof.stores.manifest import publish_tables, read_checksummed
from heatproof.stores.sources import images_of, joined_data
from heatproof.stores.tables import read_parquet, read_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from heatproof.base.specs import DatasetSpec
    from heatproof.plan.stage import Stage
    from heatproof.stages.pages import Figure as FigureOf

NETWORK = ["dataset", "model", "weights"]
CASE = [*NETWORK, "metric"]


Place = tuple[str, str, str, str]


def read_table(path: str | Path, *, listed: bool = False) -> pd.DataFrame:
    """Read a table: names as text whatever they look like, numbers as numbers, ``gap`` "" where there is none.

    Parameters
    ----------
    path, listed
        As for `read_text`.

    Raises
    ------
    HeatproofError
        As `read_text` does.
    """
    table = read_text(path, listed=listed)
    for column in table.columns.difference([*CASE, "method"]):
        numbers = pd.to_numeric(table[column], errors="coerce")
        if (numbers.notna() | (table[column] == "")).all():
            table[column] = numbers
    has_gaps = "gap" in table and not pd.api.types.is_numeric_dtype(table["gap"])
    return table if has_gaps else table.assign(gap="")


def read_scores(pattern: str, cases: Iterable[Place]) -> tuple[list[str], pd.DataFrame]:
    """Return the file of each test case, and the scores of all of them, one a picture (`one_score_per_image`).

    Parameters
    ----------
    pattern
        Of paths.
    cases
        Dataset, model, weights and metric of each.
    """
    files = [pattern.format(**dict(zip(CASE, case, strict=True))) for case in cases]
    return files, pd.concat([one_score_per_image(read_parquet(path)) for path in files], ignore_index=True)


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
    told: Stage,
    made: Mapping[str, pd.DataFrame | Figure | str | None],
    inputs: Iterable[str | Path],
    shows: Iterable[tuple[DatasetSpec, int]] = (),
) -> None:
    """Write what a job made, and its manifest.

    Parameters
    ----------
    told
        What the job is told, for its key and its manifest.
    made
        Path to a table, a figure or a page; None for a file that is written already.
    inputs
        Files that earlier stages left.
    shows
        Datasets of which the first so many evaluation images are shown.

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
    shown = [{"data": images_of(one.manifest).data(("evaluation", 0, count))} for one, count in shows]
    inputs = list(inputs)
    # A shard that is made again for other images or weights is another input; its manifest's bytes tell of times too.
    shards = {Path(path).as_posix(): read_checksummed(path) or {} for path in inputs if Path(path).suffix == ".json"}
    shards = {path: one for path, one in shards.items() if "shard" in one}
    read = {path: one["key"] for path, one in shards.items()}
    facts = {"read": read} if read else {}
    publish_tables(told, made, inputs, data=joined_data([*shards.values(), *shown]), **facts)


def save(figure: Figure, path: str | Path) -> None:
    """Write a figure aside and move it into place; neither a date nor a random id goes into it."""
    from heatproof.report.figures.drawing import look

    path = Path(path)
    about = {"Date": None, "Title": "Scores of attribution methods"} if path.suffix == ".svg" else {"Software": None}
    with look(), atomic_write(path) as aside:
        figure.savefig(aside, format=path.suffix[1:], dpi=150, metadata=about)


def render(name: str, *, script: str | None = None, **values: Any) -> str:
    """Fill a template of the folder ``templates``: a page of one file, no network, light and dark, every value escaped.

    Its content security policy lets nothing be loaded, and no script run but the one that is named here, which it
    knows by its SHA-256. Unlike a nonce that is the same for the same page, as its bytes have to be, a digest is of no
    use to somebody who knows it.

    Parameters
    ----------
    name
        Of the file; it extends ``frame.html``.
    script
        File of the same folder with the page's own script. No value is filled into it.
    values
        What the template names; ``title`` among them.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    folder = Path(__file__).parent / "templates"
    own = (folder / script).read_text(encoding="utf-8") if script else ""
    sha256 = base64.b64encode(hashlib.sha256(own.encode()).digest()).decode()
    environment = Environment(
        loader=FileSystemLoader(folder),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(name).render(script=own, sha256=sha256, **values)


def draw_figure(told: FigureOf) -> None:
    """Draw a registered figure as SVG and PNG; the same table gives the same bytes."""
    import_module(told.module)
    draw = FIGURES[told.figure].draw
    wanted = [name for name, one in inspect.signature(draw).parameters.items() if one.kind is one.KEYWORD_ONLY]
    beside = {name: read_table(read.table) for name, read in told.beside.items()}
    given = {"references": told.references, "level": told.level, "plain": told.plain, **beside}
    drawn = draw(read_table(told.read.table), **{name: given.get(name) for name in wanted})
    publish(told, dict.fromkeys(told.files.values(), drawn), [one.table for one in (told.read, *told.beside.values())])


# ---- numbers as they are read: rounded, with a true minus ------------------------------------------------------------


def rounded(value: float, places: int) -> str:
    """Write a finite number with so many places; what rounds to zero has no sign."""
    # The sum turns −0 into 0.
    return formatted(round(value, places) + 0.0, f".{places}f")


def formatted(value: float, form: str) -> str:
    """Write a number in a format of Python's."""
    return format(value, form).replace("-", "−")


def score_told(value: float) -> str:
    """Write the score of an image or a method; NaN is one that is undefined."""
    return "undefined" if math.isnan(value) else rounded(value, 2)


def told(value: str, places: int = 3) -> str:
    """Write a number for reading: rounded, with a true minus; what is no number stays as it is."""
    try:
        number = float(value)
    except ValueError:
        return value
    return "" if math.isnan(number) else rounded(number, places)


def digits_told(value: str) -> str:
    """Write a number of any size with three digits."""
    return formatted(float(value), ".3g") if value else ""


def share_told(value: str) -> str:
    """Write a share in [0, 1] as a percentage."""
    return f"{float(value):.1%}" if value else ""


def interval_told(low: str, high: str) -> str:
    """Write an interval; nothing where there is none."""
    return f"{told(low, 2)} to {told(high, 2)}" if low else ""

"""Import of tables of scores from any source, as the rows that Meta-Rank reads."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from heatproof.core.registry import suggest_name
from heatproof.errors import HeatproofError
from heatproof.stats.table import registered_direction
from heatproof.store.reading import one_sentence_errors
from heatproof.store.table_formats import TABLE_REMEDY_AND_KIND, UserTable, parse_csv, read_user_table, rows_of

# Names that other tables use for the same column, in order of preference.
NAMES = {
    "method": ("method", "explainer", "attribution", "attribution_method", "attribution method"),
    "model": ("model", "architecture", "network"),
    "dataset": ("dataset", "data"),
    "weights": ("weights", "checkpoint"),
    "metric": ("metric", "protocol", "measure"),
    "score": ("score", "value"),
    "higher_is_better": ("higher_is_better",),
    "family": ("family",),
    "image": ("image", "image_id"),
    "class": ("class", "label", "target"),
    "kind": ("kind",),
    "property": ("property",),
    "counted_as": ("counted_as",),
    "gap": ("gap",),
}
# Columns of numbers that are not scores.
COUNTS = re.compile(r"n_\w+|ci_(low|high)|rank|.*_rank")
TRUTH = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
# A table of so many cells takes 1 GiB and half a minute to read and to turn into rows of one score each.
MOST_CELLS = 2**22
# Number of the first row below the header. Spreadsheets count the header as row 1.
FIRST_ROW = 2
MISSING = {"", "nan", "na", "n/a", "none", "null", "-"}


def read_scores(paths: Sequence[str | Path | UserTable], lower: Sequence[str] = ()) -> pd.DataFrame:
    """Read tables of scores, tidy or wide.

    A tidy table has a column for the method and one for the score. The latter may have any name if it is the only other
    column of numbers, and its name is then that of the metric. A wide table has a column of methods and one column of
    numbers for each model (or for each metric, if it has a column for the model), or a column of models and one column
    of numbers for each method.

    Parameters
    ----------
    paths
        CSV files, separated by comma, semicolon or tab, or tables that were read already. A table without a column for
        the dataset is given the name of its file as its dataset.
    lower
        Metrics of which lower is better. The direction of other metrics is that of the column ``higher_is_better``, or
        else that of heatproof's metric with the same name, or else higher is better.

    Returns
    -------
    pandas.DataFrame
        dataset, model, weights, metric, method, score, higher_is_better. Also these columns where a table has them:
        family, image, class, kind (several models are trainings of one kind), property (that a metric measures),
        counted_as (the metric that represents this one in rankings) and gap (why there is no rank).

    Raises
    ------
    HeatproofError
        If a file cannot be read, its columns are not understood, a score is not a number, or `lower` names an unknown
        metric.
    """
    table = pd.concat(
        [_read(path if isinstance(path, UserTable) else read_user_table(path)) for path in paths], ignore_index=True
    )
    unknown = [name for name in lower if name not in set(table["metric"])]
    if unknown:
        names = dict.fromkeys(table["metric"])
        raise HeatproofError(f"There is no metric {unknown[0]!r} in the table: {suggest_name(unknown[0], names)}")
    table.loc[table["metric"].isin(list(lower)), "higher_is_better"] = False
    return table


def _read(table: UserTable) -> pd.DataFrame:
    path, raw = table.path, _parse(*table)
    if "top1_clean" in raw:
        raise HeatproofError(f"{path} has the accuracy of networks and no methods: give idsds_table.csv or scores.csv.")
    named: dict[str, str] = {}
    for name, others in NAMES.items():
        # The first name in NAMES wins: "method" before "explainer".
        columns = [column for other in others for column in raw.columns if column.strip().lower() == other]
        named |= dict.fromkeys(columns[:1], name)
    rest = [column for column in raw.columns if column not in named]
    long = raw.rename(columns=named)
    if "score" not in long:
        numbers = [column for column in rest if not COUNTS.fullmatch(column) and _numeric(path, raw[column])]
        long = _melt(path, long, rest, numbers)
    rows, long = long.index.to_numpy() + FIRST_ROW, long.reset_index(drop=True)
    if "method" not in long:
        raise HeatproofError(f"{path} has no column of methods: name it 'method'.")
    result = pd.DataFrame({"method": long["method"].str.strip()})
    for name, default in {"dataset": path.stem, "model": "", "weights": "", "metric": "score"}.items():
        result[name] = long[name].str.strip() if name in long else default
    if (result["method"] == "").any():
        raise HeatproofError(f"{path} has a row without a method: give it one, or take the row out.")
    result["score"] = _scores(path, long["score"], result["method"], rows)
    result["higher_is_better"], _ = read_directions(path, long.get("higher_is_better"), result["metric"])
    for name in ("family", "image", "class", "kind", "property", "counted_as", "gap"):
        if name in long:
            result[name] = long[name].str.strip()
    return result


def _parse(path: Path, content: bytes) -> pd.DataFrame:
    with one_sentence_errors(path, *TABLE_REMEDY_AND_KIND):
        first = content.partition(b"\n")[0]
        separator = max((b",", b";", b"\t"), key=first.count).decode()
        raw = parse_csv(content, separator, most_cells=MOST_CELLS)
        # Pandas would rename the second of two equal columns and pad short rows.
        rows = rows_of(content, separator)
        header = next(rows)
        twice = [name for name, count in Counter(header).items() if name and count > 1]
        if twice:
            raise ValueError(f"it has two columns {twice[0]!r:.60}")
        for number, row in enumerate(rows, FIRST_ROW):
            if row and len(row) != len(header):
                raise ValueError(f"row {number} has {len(row)} cells, and the header {len(header)}")
    if raw.empty or len(raw.columns) < 2:
        raise HeatproofError(f"{path} has {len(raw)} rows and {len(raw.columns)} columns: there is nothing to rank.")
    return raw


def _melt(path: Path, table: pd.DataFrame, rest: list[str], numbers: list[str]) -> pd.DataFrame:
    """Return a tidy table from a table without a column ``score``."""
    if "method" not in table and "model" not in table:
        # In a wide table, the first column has the methods, whatever its name.
        if not rest or rest[0] != table.columns[0] or rest[0] in numbers:
            raise HeatproofError(f"{path} has no column of methods: name it 'method'.")
        table = table.rename(columns={rest[0]: "method"})
    if not numbers:
        raise HeatproofError(f"{path} has no column of numbers: name the column of scores 'score'.")
    keep = [name for name in table.columns if name in NAMES]
    if "method" in table and len(numbers) == 1:
        scores = table.rename(columns={numbers[0]: "score"})
        return scores if "metric" in table else scores.assign(metric=numbers[0])
    new = [name for name in ("method", "model", "metric") if name not in table]
    if not new:
        raise HeatproofError(f"{path} has {len(numbers)} columns of numbers: name the one of scores 'score'.")
    return table.melt(keep, numbers, var_name=new[0], value_name="score", ignore_index=False)


def _numeric(path: Path, column: pd.Series) -> bool:
    """Return whether a column has numbers.

    A column of numbers with a few other cells is taken as a mistake and refused, so that it is not ignored silently.
    """
    there = ~_missing(column)
    wrong = there & pd.to_numeric(column, errors="coerce").isna()
    if 0 < wrong.sum() < there.sum() / 2:
        at = int(np.argmax(wrong))
        raise HeatproofError(
            f"{path} has {column.iloc[at]!r:.60} in row {at + FIRST_ROW} of the column {column.name!r:.60}, whose "
            "other cells are numbers: write a number, or leave the cell empty."
        )
    return bool(there.any()) and not wrong.any()


def _missing(column: pd.Series) -> pd.Series:
    return column.str.strip().str.lower().isin(MISSING)


def _scores(path: Path, column: pd.Series, methods: pd.Series, rows: np.ndarray) -> pd.Series:
    gap = _missing(column)
    values = pd.to_numeric(column.mask(gap), errors="coerce").astype(float)
    wrong = ~np.isfinite(values) & ~gap
    if wrong.any():
        at = int(np.argmax(wrong))
        kind = "finite " if np.isinf(values[at]) else ""
        raise HeatproofError(
            f"{path} gives {methods[at]!r} the score {column[at]!r:.60}, which is not a {kind}number (row {rows[at]}): "
            "write a number with a decimal point, or leave the cell empty."
        )
    return values


def read_directions(path: Path | str, column: pd.Series | None, metrics: pd.Series) -> tuple[pd.Series, list[str]]:
    """Return whether higher is better in each row, and the metrics of which neither the table nor heatproof says it.

    Parameters
    ----------
    path
        What the table is called in messages.
    column
        The column ``higher_is_better``; None if there is none.
    metrics
        Name of the metric of each row.

    Returns
    -------
    directions : pandas.Series of bool
        That of the column, or else that of heatproof's metric with this name, or else higher is better.
    unknown : list of str
        Names of metrics of the third kind.

    Raises
    ------
    HeatproofError
        If a cell of the column is neither true nor false.
    """
    registered = {name: registered_direction(name) for name in set(metrics)}
    directions = metrics.map(registered).astype("boolean")
    if column is not None:
        text = as_text(column).str.strip().str.lower().str.removesuffix(".0")
        wrong = ~text.isin([*TRUTH, *MISSING])
        if wrong.any():
            raise HeatproofError(f"{path} has {text[wrong].iloc[0]!r} under 'higher_is_better': write true or false.")
        directions = text.map(TRUTH).astype("boolean").fillna(directions)
    return directions.fillna(True).astype(bool), sorted(set(metrics[directions.isna()]))


def as_text(column: pd.Series) -> pd.Series:
    """Return a column of any type as text, empty where a value is missing."""
    return pd.Series(
        ["" if missing else str(value) for value, missing in zip(column, column.isna(), strict=True)],
        index=column.index,
        dtype=object,
    )

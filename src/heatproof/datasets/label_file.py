"""Read a table of labels from its file: names of columns, and cells as strings."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from heatproof.errors import HeatproofError
from heatproof.store.reading import one_sentence_errors, parse_json, printable_path, read_bytes
from heatproof.store.table_formats import MOST_BYTES, MOST_COLUMNS, decompressed, parse_csv, parse_parquet, rows_of

REMEDY_AND_KIND = (
    "save it again as CSV in UTF-8, with quotes around cells that hold a separator, or as JSON lines",
    "a table of labels",
)
# The default encoding of Excel in western Europe. With "replace", decoding never fails.
FALLBACK_ENCODING = "cp1252"
NOT_TABLES = {
    b"PK\x03\x04": "is an Excel workbook or a ZIP archive",
    b"\xd0\xcf\x11\xe0": "is an Excel workbook",
}
SEPARATOR_LINE = re.compile(r"\"?sep=(.)\"?")
LINE_ENDS = re.compile(r"\r\n|\r|\n")

# A string, or the strings of a list.
Cell = str | list[str]


class RawTable(NamedTuple):
    """A table of strings.

    Attributes
    ----------
    names
        Names of the columns; numbers from 1 on if the file has no header, and for columns without a name.
    columns
        Cells of each column; an empty string for a missing cell.
    first
        Number of the first row of cells in the file, for messages.
    is_encoding_guessed
        Whether characters beyond ASCII were decoded with a guessed encoding.
    """

    names: list[str]
    columns: list[list[Cell]]
    first: int = 2
    is_encoding_guessed: bool = False

    @property
    def rows(self) -> int:
        """Number of rows of cells."""
        return len(self.columns[0]) if self.columns else 0


def read_raw_table(path: Path, *, header: bool = True, encoding: str | None = None) -> RawTable:
    """Read a table in CSV (comma, semicolon, tab or blanks), JSON or Parquet, optionally compressed with gzip.

    The format is detected by the content.

    Parameters
    ----------
    path
        The file.
    header
        Whether the first line of a CSV file names the columns.
    encoding
        Encoding of a text file that is neither UTF-8 nor UTF-16 with a byte order mark.

    Raises
    ------
    HeatproofError
        If the file is missing, has another format, or is too large.
    """
    if not path.is_file():
        raise HeatproofError(
            f"There is no table of labels {printable_path(path)}: `labels` has to be a path from `root`."
        )
    with one_sentence_errors(path, *REMEDY_AND_KIND):
        content = decompressed(read_bytes(path, MOST_BYTES))
        for mark, kind in NOT_TABLES.items():
            if content.startswith(mark):
                raise HeatproofError(
                    f"{printable_path(path)} {kind}, which heatproof cannot read: save the table as CSV (in "
                    "Excel: Save as, CSV UTF-8), and name that file in `labels`."
                )
        if content.startswith(b"PAR1"):
            return _table_of_frame(parse_parquet(content))
        text, is_encoding_guessed = _decoded(path, content, encoding)
        if text.lstrip()[:1] in ("[", "{"):
            return _table_of_records(_records(text))._replace(is_encoding_guessed=is_encoding_guessed)
        return _parse_lines(text, header)._replace(is_encoding_guessed=is_encoding_guessed)


def _decoded(path: Path, content: bytes, encoding: str | None) -> tuple[str, bool]:
    """Return the text of a file, and whether its encoding is guessed."""
    if encoding is not None:
        try:
            text = content.decode(codecs.lookup(encoding).name)
        except LookupError:
            raise HeatproofError(
                f"`encoding` is {encoding!r}, which is not an encoding of Python: use one such as utf-8, "
                "utf-16, cp1252, latin-1, cp1251, shift_jis or gb18030."
            ) from None
        except UnicodeError:
            raise HeatproofError(
                f"{printable_path(path)} is not text in {encoding}: name another `encoding`, such as utf-16 or cp1252, "
                "or save the table as CSV in UTF-8."
            ) from None
        # A user may name UTF-8 with a byte order mark "utf-8".
        return text.removeprefix("\ufeff"), False
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return content.decode("utf-16"), False
    if b"\0" in content:
        raise ValueError("it is not text in UTF-8")
    try:
        return content.decode("utf-8-sig"), False
    except UnicodeDecodeError:
        return content.decode(FALLBACK_ENCODING, "replace"), True


def _parse_lines(text: str, header: bool) -> RawTable:
    """Return the table of a CSV text."""
    lines = [line for line in LINE_ENDS.split(text) if line.strip()]
    first = 1
    # The first line of CelebA's and other tables is the number of rows.
    if (
        len(lines) > 2
        and lines[0].strip().isdecimal()
        and lines[0].strip() in (str(len(lines) - 1), str(len(lines) - 2))
    ):
        text = text.lstrip("\ufeff \t\r\n").partition(lines[0].strip())[2]
        lines, first = lines[1:], 2
    if not lines:
        raise ValueError("it is empty")
    # Excel reads and writes a first line that names the separator, such as "sep=;".
    separator_line = SEPARATOR_LINE.fullmatch(lines[0].strip("\r\n\ufeff"))
    if separator_line and len(lines) > 1:
        text, lines, first = "\n".join(lines[1:]), lines[1:], first + 1
    separator = separator_line[1] if separator_line else max(",;\t", key=lines[0].count)
    if separator not in lines[0] and len(lines[0].split()) > 1:
        text, separator = "\n".join("\t".join(line.split()) for line in lines), "\t"
        lines = text.split("\n")
    if header and len(lines) > 1:
        header_length, row_length = (len(next(rows_of(line.encode(), separator), [])) for line in lines[:2])
        # If the rows have different lengths, one has too many cells, and pandas reports it.
        if row_length == header_length + 1 and _have_equal_lengths(text, separator):
            # The first column has no name, as in tables of R and CelebA, or rows end with a separator.
            is_last = lines[1].rstrip(" ").endswith(separator)
            text = text.replace(lines[0], lines[0] + separator if is_last else separator + lines[0], 1)
    frame = parse_csv(text.encode("utf-8"), separator, header=False)
    columns = [["" if cell != cell else str(cell).strip() for cell in frame[name].tolist()] for name in frame.columns]
    names = [(column[0] if header else "") or str(number) for number, column in enumerate(columns, start=1)]
    header_rows = 1 if header else 0
    return RawTable(names, [list(column[header_rows:]) for column in columns], first + header_rows)


def _have_equal_lengths(text: str, separator: str) -> bool:
    """Return whether all rows after the header have the same number of cells."""
    rows = (len(row) for row in rows_of(text.encode(), separator) if any(cell.strip() for cell in row))
    next(rows, 0)
    return len(set(rows)) == 1


def _records(text: str) -> list[dict[str, Any]]:
    """Return the records of a JSON list, or of JSON lines."""
    if text.lstrip().startswith("["):
        records = parse_json(text.encode("utf-8"))
    else:
        try:
            records = [parse_json(line.encode("utf-8")) for line in text.split("\n") if line.strip()]
        except ValueError as error:
            raise ValueError(f"it is neither a list of records nor one record a line: {error}") from None
    is_single_mapping = not text.lstrip().startswith("[") and len(records) == 1
    if is_single_mapping or not all(isinstance(record, dict) for record in records):
        # A single mapping is not a table: it contains several tables, as in COCO, or maps files to labels.
        raise ValueError("it is not a list of records, that is, of mappings from columns to values")
    return records


def _table_of_records(records: Sequence[dict[str, Any]]) -> RawTable:
    names = list(dict.fromkeys(name for record in records for name in record))
    if len(names) > MOST_COLUMNS:
        raise ValueError(f"it has {len(names):,} columns, and {MOST_COLUMNS:,} is the limit")
    return RawTable(names, [[_cell(record.get(name)) for record in records] for name in names], 1)


def _cell(value: Any) -> Cell:
    if isinstance(value, list):
        return [str(_cell(each)) for each in value]
    if isinstance(value, str):
        return value.strip()
    if value is None:
        return ""
    return json.dumps(value, ensure_ascii=False)


def _table_of_frame(frame: Any) -> RawTable:
    """Return a pandas table with its cells converted to strings."""
    columns: list[list[Cell]] = []
    for number in range(frame.shape[1]):
        column = frame.iloc[:, number]
        blank = column.isna().tolist()
        cells = [
            ""
            if none or isinstance(cell, bytes)
            else _cell(cell)
            if isinstance(cell, bool | int | float)
            else str(cell)
            for cell, none in zip(column.tolist(), blank, strict=True)
        ]
        columns.append(list(cells))
    return RawTable([str(name) for name in frame.columns], columns, 1)

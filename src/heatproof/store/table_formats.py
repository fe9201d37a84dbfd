"""Parse tables in CSV and Parquet from bytes, with limits on the number of cells."""

from __future__ import annotations

import csv
import warnings
import zlib
from collections.abc import Iterator
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from heatproof.store.reading import one_sentence_errors, read_bytes, user_path

if TYPE_CHECKING:
    import pandas as pd

# Ten times a table of a run with 300 networks, 60 metrics and 100 methods. A cell takes about 60 bytes of memory.
MOST_BYTES, MOST_CELLS, MOST_COLUMNS = 2**29, 2**24, 2**12
# Arguments of `one_sentence_errors` for a table that the user names.
TABLE_REMEDY_AND_KIND = ("give a CSV file with a header", "a table")
# Bytes that a Parquet table may take in memory, and the number of rows that are decompressed at once.
MOST_UNPACKED, ROWS = 2**30, 2**16
# What follows the name of a metric in the names of the tables beside its scores.
TABLES_WITH_SCORES = (".methods", ".checks")


class UserTable(NamedTuple):
    """A table that a user names: its path, for error messages, and its bytes."""

    path: Path
    content: bytes


def read_user_table(path: str | Path) -> UserTable:
    """Return a table that the user names; it needs no manifest.

    Raises
    ------
    HeatproofError
        If it is not a regular file, or is larger than any table.
    """
    with one_sentence_errors(path, *TABLE_REMEDY_AND_KIND):
        path = user_path(path)
        return UserTable(path, read_bytes(path, MOST_BYTES))


def rows_of(content: bytes, separator: str) -> Iterator[list[str]]:
    """Yield the rows of a CSV file as lists of text, the header first.

    Raises
    ------
    ValueError
        If the bytes are not UTF-8 text.
    """
    if b"\0" in content:
        raise ValueError("it is not text in UTF-8")
    try:
        yield from csv.reader(TextIOWrapper(BytesIO(content), "utf-8-sig", newline=""), delimiter=separator)
    except csv.Error as error:
        raise ValueError(str(error)) from None


def decompressed(content: bytes, most: int = MOST_BYTES) -> bytes:
    """Return the bytes of a file, decompressed if it is compressed by gzip.

    Raises
    ------
    ValueError
        If it is damaged, or has more than `most` bytes after decompression.
    """
    parts = []
    while content.startswith(b"\x1f\x8b"):
        unpacking = zlib.decompressobj(wbits=31)
        try:
            parts.append(unpacking.decompress(content, most + 1))
        except zlib.error as error:
            raise ValueError(str(error)) from None
        most -= len(parts[-1])
        if most < 0:
            raise ValueError("it has too many bytes, unpacked")
        if not unpacking.eof:
            raise ValueError("its end is missing")
        # A gzip file can consist of several members.
        content = unpacking.unused_data
    return b"".join(parts) if parts else content


def parse_csv(
    content: bytes,
    separator: str = ",",
    *,
    text: bool = True,
    most_cells: int = MOST_CELLS,
    header: bool = True,
) -> pd.DataFrame:
    """Return the table in a CSV file in UTF-8.

    Parameters
    ----------
    content
        Bytes of the file.
    separator
        One character.
    text
        Whether every cell is returned as text; otherwise pandas infers the types of columns.
    most_cells
        Largest number of cells that is accepted.
    header
        Whether the first row has the names of the columns; otherwise they are numbered from 0.

    Raises
    ------
    ValueError
        If the bytes are not CSV, a row has more cells than the header, or there are too many columns or cells.
    """
    import pandas as pd

    # Both characters end a row. pandas fills cells that are missing in a row, so each row counts with all columns.
    columns, rows = len(next(rows_of(content, separator), [])), content.count(b"\n") + content.count(b"\r") + 1
    if columns > MOST_COLUMNS:
        raise ValueError(f"it has {columns:,} columns, and {MOST_COLUMNS:,} is the limit")
    if columns * rows > most_cells:
        raise ValueError(f"it has {columns * rows:,} cells, and {most_cells:,} is the limit")
    with warnings.catch_warnings():
        # pandas would cut rows that are longer than the header, with a warning only.
        warnings.simplefilter("error", pd.errors.ParserWarning)
        as_text: Any = {"dtype": str, "keep_default_na": False} if text else {}
        as_text |= {} if header else {"header": None}
        return pd.read_csv(BytesIO(content), sep=separator, encoding="utf-8-sig", index_col=False, **as_text)


def parse_parquet(content: bytes, columns: list[str] | None = None) -> pd.DataFrame:
    """Return the table in a Parquet file, or some of its columns.

    Raises
    ------
    ValueError
        If the bytes are not Parquet, or have too many cells.
    """
    from pyarrow import ArrowException, BufferReader, Table
    from pyarrow.parquet import ParquetFile

    try:
        # A page that repeats one value has few bytes and any number of rows. Dictionaries store each text once, so that
        # a long text that is repeated takes no memory for each row.
        file = ParquetFile(BufferReader(content), read_dictionary=_texts_of(content))
        facts = file.metadata
        cells = facts.num_rows * facts.num_columns
        if cells > MOST_CELLS * 4:
            raise ValueError(f"it has {cells:,} cells, and {MOST_CELLS * 4:,} is the limit")
        batches, decompressed = [], 0
        # Without threads, because a thread that cannot be started raises another error than a lack of memory.
        for batch in file.iter_batches(ROWS, columns=columns, use_threads=False):
            decompressed += sum(map(_unpacked, batch.columns))
            if decompressed > MOST_UNPACKED:
                raise ValueError(f"it has more than {MOST_UNPACKED >> 30} GiB, unpacked")
            batches.append(batch)
        table = Table.from_batches(batches, None if batches else file.schema_arrow)
        return table.cast(_plain(table.schema)).to_pandas(use_threads=False)
    except ArrowException as error:
        raise ValueError(str(error)) from None


def _texts_of(content: bytes) -> list[str]:
    """Return the names of the text columns of a Parquet file.

    Raises
    ------
    ValueError
        If there are columns of lists or mappings, which tables of scores do not have.
    """
    from pyarrow import BufferReader
    from pyarrow.parquet import ParquetFile

    schema = ParquetFile(BufferReader(content)).schema
    columns = [schema.column(number) for number in range(len(schema))]
    if any(column.max_repetition_level or column.path != column.name for column in columns):
        raise ValueError("it has columns of lists or mappings")
    return [column.path for column in columns if column.physical_type == "BYTE_ARRAY"]


def _unpacked(column: Any) -> int:
    """Return the bytes that an Arrow array takes once its dictionary is expanded."""
    from pyarrow import compute, types

    if not types.is_dictionary(column.type):
        return int(column.nbytes)
    lengths = compute.take(compute.binary_length(column.dictionary), column.indices)
    return int(column.nbytes) + int(compute.sum(lengths).as_py() or 0)


def _plain(schema: Any) -> Any:
    """Return the schema of a table with dictionaries of texts replaced by texts."""
    from pyarrow import field, types
    from pyarrow import schema as schema_of

    fields = [
        field(column.name, column.type.value_type if types.is_dictionary(column.type) else column.type)
        for column in schema
    ]
    return schema_of(fields, schema.metadata)

"""Tables as they are read from files, of no more cells than memory holds."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from heatproof.files.reading import one_sentence_errors, read_bytes

if TYPE_CHECKING:
    import pandas as pd

# A table of a run with 300 networks, 60 metrics and 100 methods is a tenth of it. A cell takes some 60 bytes of memory.
MOST_BYTES, MOST_CELLS, MOST_COLUMNS = 2**29, 2**24, 2**12
# What to do about a table of the user's own that cannot be read, and what it is.
TABLE_REMEDY_AND_KIND = ("give a CSV file with a header", "a table")
# In memory, of scores of images, each text once, and then as a table. Rows that are unpacked at once.
MOST_UNPACKED, ROWS = 2**30, 2**16


class UserTable(NamedTuple):
    """A table as it was read: its path, to be named in errors, and its bytes."""

    path: Path
    content: bytes


def read_user_table(path: str | Path) -> UserTable:
    """Return a table that the user names, which no manifest need list.

    Raises
    ------
    HeatproofError
        If it is no regular file, or larger than any table.
    """
    with one_sentence_errors(path, *TABLE_REMEDY_AND_KIND):
        return UserTable(Path(path), read_bytes(path, MOST_BYTES))


def rows_of(content: bytes, separator: str) -> Iterator[list[str]]:
    """Yield the rows of CSV with their cells, as they stand there, its header first.

    Raises
    ------
    ValueError
        If it is not text in UTF-8.
    """
    if b"\0" in content:
        raise ValueError("it is not text in UTF-8")
    try:
        yield from csv.reader(TextIOWrapper(BytesIO(content), "utf-8-sig", newline=""), delimiter=separator)
    except csv.Error as error:
        raise ValueError(str(error)) from None


def decompressed(content: bytes, most: int = MOST_BYTES) -> bytes:
    """Return the bytes of a file, unpacked if it is packed by gzip.

    Raises
    ------
    ValueError
        If it is damaged, or has more than `most` bytes, unpacked.
    """
    import zlib

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
        # A file can be several packed ones, one after the other.
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
    """Return a table of CSV in UTF-8.

    Parameters
    ----------
    content
        Bytes of the file.
    separator
        One character.
    text
        Whether every cell is text as it stands there; else columns have the types that pandas finds.
    most_cells
        The most cells that such a table has.
    header
        Whether the first row names the columns, which are numbers from 0 on else.

    Raises
    ------
    ValueError
        If it is none, a row has more cells than the header, or there are more columns or cells than in any table.
    """
    import warnings

    import pandas as pd

    # Each of the two ends a row. Cells that a row lacks are filled in.
    columns, rows = len(next(rows_of(content, separator), [])), content.count(b"\n") + content.count(b"\r") + 1
    if columns > MOST_COLUMNS:
        raise ValueError(f"it has {columns:,} columns, and {MOST_COLUMNS:,} is the limit")
    if columns * rows > most_cells:
        raise ValueError(f"it has {columns * rows:,} cells, and {most_cells:,} is the limit")
    with warnings.catch_warnings():
        # Rows that are longer than the header would be cut with a warning.
        warnings.simplefilter("error", pd.errors.ParserWarning)
        as_text: Any = {"dtype": str, "keep_default_na": False} if text else {}
        as_text |= {} if header else {"header": None}
        return pd.read_csv(BytesIO(content), sep=separator, encoding="utf-8-sig", index_col=False, **as_text)


def parse_parquet(content: bytes, columns: list[str] | None = None) -> pd.DataFrame:
    """Return a table of Parquet, or some of its columns.

    Raises
    ------
    ValueError
        If it is none, or has more cells than any table.
    """
    from pyarrow import ArrowException, BufferReader, Table
    from pyarrow.parquet import ParquetFile

    try:
        # A page that repeats one value has few bytes and any number of rows; that of a text, which is kept once here,
        # any number of bytes.
        file = ParquetFile(BufferReader(content), read_dictionary=_texts_of(content))
        facts = file.metadata
        cells = facts.num_rows * facts.num_columns
        if cells > MOST_CELLS * 4:
            raise ValueError(f"it has {cells:,} cells, and {MOST_CELLS * 4:,} is the limit")
        batches, decompressed = [], 0
        # Threads that cannot be started, where memory runs out, are an error of their own kind.
        for batch in file.iter_batches(ROWS, columns=columns, use_threads=False):
            decompressed += sum(map(_unpacked, batch.columns))
            if decompressed > MOST_UNPACKED:
                raise ValueError(f"it has more than {MOST_UNPACKED >> 30} GiB, unpacked")
            batches.append(batch)
        found = Table.from_batches(batches, None if batches else file.schema_arrow)
        return found.cast(_plain(found.schema)).to_pandas(use_threads=False)
    except ArrowException as error:
        raise ValueError(str(error)) from None


def _texts_of(content: bytes) -> list[str]:
    """Return the columns of texts in a table of Parquet.

    Raises
    ------
    ValueError
        If there are columns of lists or mappings, which no table of scores has.
    """
    from pyarrow import BufferReader
    from pyarrow.parquet import ParquetFile

    schema = ParquetFile(BufferReader(content)).schema
    columns = [schema.column(number) for number in range(len(schema))]
    if any(one.max_repetition_level or one.path != one.name for one in columns):
        raise ValueError("it has columns of lists or mappings")
    return [one.path for one in columns if one.physical_type == "BYTE_ARRAY"]


def _unpacked(column: Any) -> int:
    """Return the bytes that an array of Arrow takes, with each text as often as it is used."""
    from pyarrow import compute, types

    if not types.is_dictionary(column.type):
        return int(column.nbytes)
    lengths = compute.take(compute.binary_length(column.dictionary), column.indices)
    return int(column.nbytes) + int(compute.sum(lengths).as_py() or 0)


def _plain(schema: Any) -> Any:
    """Return the types of a table with its texts as texts."""
    from pyarrow import field, types
    from pyarrow import schema as schema_of

    fields = [field(one.name, one.type.value_type if types.is_dictionary(one.type) else one.type) for one in schema]
    return schema_of(fields, schema.metadata)

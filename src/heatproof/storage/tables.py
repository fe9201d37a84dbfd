"""Tables as they are read from files, of no more cells than memory holds."""

from __future__ import annotations

from io import BytesIO
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

# A table of a run with 300 networks, 60 metrics and 100 methods is a tenth of it. A cell takes some 60 bytes of memory.
MOST_BYTES, MOST_CELLS, MOST_COLUMNS = 2**29, 2**24, 2**12
# In memory, of scores of images, which have no text that is not repeated.
MOST_UNPACKED = 2**31


def parse_csv(content: bytes, separator: str = ",", *, text: bool = True) -> pd.DataFrame:
    """Return a table of CSV in UTF-8.

    Parameters
    ----------
    content
        Bytes of the file.
    separator
        One character.
    text
        Whether every cell is text as it stands there; else columns have the types that pandas finds.

    Raises
    ------
    ValueError
        If it is none, a row has more cells than the header, or there are more columns or cells than in any table.
    """
    import warnings

    import pandas as pd

    own = separator.encode()
    columns, rows = content.partition(b"\n")[0].count(own) + 1, content.count(b"\n") + 1
    if columns > MOST_COLUMNS:
        raise ValueError(f"it has {columns:,} columns, and {MOST_COLUMNS:,} is the limit")
    if columns * rows > MOST_CELLS:
        raise ValueError(f"it has {columns * rows:,} cells, and {MOST_CELLS:,} is the limit")
    with warnings.catch_warnings():
        # Rows that are longer than the header would be cut with a warning.
        warnings.simplefilter("error", pd.errors.ParserWarning)
        as_text: Any = {"dtype": str, "keep_default_na": False} if text else {}
        return pd.read_csv(BytesIO(content), sep=separator, encoding="utf-8-sig", index_col=False, **as_text)


def parse_parquet(content: bytes, columns: list[str] | None = None) -> pd.DataFrame:
    """Return a table of Parquet, or some of its columns.

    Raises
    ------
    ValueError
        If it is none, or has more cells than any table.
    """
    import pandas as pd
    from pyarrow import ArrowException, BufferReader
    from pyarrow.parquet import ParquetFile

    try:
        facts = ParquetFile(BufferReader(content)).metadata
        groups = [facts.row_group(number) for number in range(facts.num_row_groups)]
        # A page that repeats one value has few bytes and any number of rows.
        cells, unpacked = facts.num_rows * facts.num_columns, sum(group.total_byte_size for group in groups)
        if cells > MOST_CELLS * 4 or unpacked > MOST_UNPACKED:
            raise ValueError(f"it has {cells:,} cells in {unpacked:,} bytes, and {MOST_CELLS * 4:,} are the limit")
        # Threads that cannot be started, where memory runs out, are an error of their own kind.
        return pd.read_parquet(BytesIO(content), columns=columns, use_threads=False)
    except ArrowException as error:
        raise ValueError(str(error)) from None

"""What leaves this machine or reaches a terminal: no secrets, no places, no formulas and no control characters."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

if TYPE_CHECKING:
    import pandas as pd

# Before the name of a file or folder of which the place is not told.
ELSEWHERE = "…/"
SHORT = 3
APOSTROPHE = "'"
# Between cells, to one spreadsheet or another.
SEPARATORS = r",;|:\t\n\v\f\x1c-\x1f\x85\u2028\u2029"
# What a spreadsheet takes for the start of a formula, in Latin and in wide letters: at the start of a cell, with what
# it skips before one, or behind a space, which can separate cells too, unless one follows as behind a dash.
SKIPPED = r"\0\"'`“”‘’\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff"
FORMULA = re.compile(rf"(?:(?:\A|[{SEPARATORS}])[\s{SKIPPED}]*[=+\-@＝＋－＠]|\s[{SKIPPED}]*[=+\-@＝＋－＠](?! ))")
# Of Unicode: control, format (bidirectional overrides among them), half a character, separators of lines.
HIDDEN = {"Cc", "Cf", "Cs", "Zl", "Zp"}


def public(value: Any) -> Any:
    """Return a plain value as it may be published: addresses without secrets, files elsewhere by their name alone.

    Whoever reads a manifest, a store or a page needs to know which data were used, and not where they lay on
    somebody's machine or with what token they were fetched. Relative paths and those that begin with ``~/`` name
    nobody and stay.

    Parameters
    ----------
    value
        A text, or mappings and lists of such; anything else is returned as it is.
    """
    if isinstance(value, Mapping):
        return {key: public(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [public(item) for item in value]
    if not isinstance(value, str):
        return value
    if "://" in value:
        plain = _plain_address(value)
        return ELSEWHERE + PurePosixPath(plain).name if plain.lower().startswith("file:") else plain
    path = PurePosixPath(value.replace("\\", "/"))
    absolute = path.is_absolute() or re.match("[A-Za-z]:/", str(path)) or re.match("~[^/]", value)
    if absolute or ".." in path.parts:
        # The name of a home folder is that of its owner.
        return ELSEWHERE + ("home" if _is_home(path) else path.name)
    return value


def plain_addresses(value: Any) -> Any:
    """Return a plain value whose addresses have no user, password, query and fragment; all else stays as it is."""
    if isinstance(value, Mapping):
        return {key: plain_addresses(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_addresses(item) for item in value]
    return _plain_address(value) if isinstance(value, str) and "://" in value else value


def _is_home(path: PurePosixPath) -> bool:
    return path.name in ("", "..", "root") or path.name.startswith("~") or path.parent.name in ("home", "Users")


def _plain_address(address: str) -> str:
    """Return an address without user, password, query and fragment."""
    try:
        parts = urlsplit(address)
    except ValueError:
        return ELSEWHERE
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def without_secrets(text: str, address: str) -> str:
    """Return a text, such as the message of an error, without the user, password, query and fragment of an address."""
    start, *more = re.split("[?#]", address.partition("://")[2])
    secrets = [*start.partition("/")[0].rpartition("@")[0].split(":"), *more]
    # What is as short as a part of a word keeps nothing secret. The longest first: one can be a part of another.
    known = sorted((re.escape(secret) for secret in secrets if len(secret) > SHORT), key=len, reverse=True)
    pieces = text.split(address)
    return _plain_address(address).join(re.sub("|".join(known), "…", piece) if known else piece for piece in pieces)


def without_formulas(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table in whose CSV no cell is a formula to a spreadsheet, whatever it takes for a separator.

    An apostrophe stands before what begins a formula, in cells and in names of columns. Numbers stay as they are,
    negative ones too. A table that was made so stays as it is.
    """
    import pandas as pd

    def cells(column: pd.Series) -> pd.Series:
        return column if pd.api.types.is_numeric_dtype(column) else column.astype(object).map(_without_formula)

    return table.apply(cells).rename(columns=_without_formula)


def _without_formula(cell: Any) -> Any:
    if not isinstance(cell, str):
        return cell
    # Alone it is not quoted in a CSV file, and what follows would begin a row.
    cell = cell.replace("\r", "\n")
    return FORMULA.sub(lambda found: _with_apostrophe(found, cell), cell)


def _with_apostrophe(found: re.Match[str], cell: str) -> str:
    before, start, rest = found[0][:-1], found[0][-1], cell[found.end() - 1 :]
    # A cell ends where the separator comes again before which it begins; the first of all has any.
    ends = [rest.partition(one)[0] for one in set(before) if one.isspace() or re.match(f"[{SEPARATORS}]", one)]
    if found.start() == 0 or not ends:
        ends.append(rest)
    if before.endswith(APOSTROPHE) or all(map(_is_number, ends)):
        return found[0]
    return f"{before}{APOSTROPHE}{start}"


def _is_number(text: str) -> bool:
    try:
        float(text.strip(" ()[]{}'\"%."))
    except ValueError:
        return False
    return True


def escaped(text: str, keep: str = "\n\t") -> str:
    r"""Return a text whose control characters are shown and not obeyed, ``\x1b`` for ESC.

    A terminal obeys them, wherever they come from: they clear the screen, write the clipboard, or turn the order of
    letters round. Bytes of names that are not UTF-8, for which there is no letter, are shown too.

    Parameters
    ----------
    keep
        Control characters that pass; none within a cell of a table.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        one if one in keep or unicodedata.category(one) not in HIDDEN else one.encode("unicode_escape").decode()
        for one in text
    )

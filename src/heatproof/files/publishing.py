"""What leaves this machine or reaches a terminal: no secrets, no places, no formulas and no control characters."""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    import pandas as pd

# Before the name of a file or folder of which the place is not told; and in the place of a secret.
ELSEWHERE, ELIDED = "…/", "…"
# In them lie the folders of people.
HOMES = {"home", "homes", "users", "documents and settings"}
# How an option that keeps a secret ends.
CONCEALING = (
    r"(?:token|signature|sig|secret|passwo?r?d|passwd|pwd|(?:api|access|secret)[_-]?key|credentials?|authorization)"
)
_IN_WORD = r"[^\s'\"<>|]"
# Up to the next one, or the end of a word.
_ADDRESS = rf"[A-Za-z][\w+.-]+:/{{2,}}(?:(?![A-Za-z][\w+.-]+://){_IN_WORD})*"
ADDRESS = re.compile(_ADDRESS)
# With a letter of a drive, of another's home folder, of a machine in the network, or behind a variable.
_OUTSIDE = r"[A-Za-z]:[\\/]|~[^\W\d][\w.-]*[\\/]|\\\\|//|\$\w+[\\/]|\$\{\w+\}[\\/]|%\w+%[\\/]"
_UPWARDS = r"(?:[^\s'\"<>|/\\]+[\\/])*\.\.[\\/]"
_PATH = rf"(?<![\w/\\.…)\]~*}}-])(?:{_OUTSIDE}|{_UPWARDS}|/root\b|/(?={_IN_WORD}+/)){_IN_WORD}*"
# A value that is a path as a whole can have spaces.
WHOLE_PATH = re.compile(rf"{_OUTSIDE}|{_UPWARDS}|[/\\]|~[^/\\]|\.\.$")
QUOTED = re.compile(rf"([\"'])((?:{_OUTSIDE}|{_UPWARDS}|/)[^\"'\n]*)\1")
_USER = (
    r"(?<![\w@/])(?:[^\s'\"<>/@:]+:[^\s'\"<>/@]+@(?=[\w\[])"
    r"|[\w.+-]+@(?=[\w.-]+:(?!//)|(?:[\w-]+\.)+[A-Za-z]{2,}))"
)
# How it begins; without a bound, a long text takes time by the square of its length.
_NAME = r"[\w-]{0,64}"
# As in an address, a header of a request, and a mapping that somebody prints.
_ASSIGNED = rf"{_NAME}{CONCEALING}=(?!\d+\b)[^\s&'\"]+"
_HEADER = r"\bbearer\s+\S+|\bauthorization\s*:\s*(?:\w+\s+)?[^\s'\"]+"
_HEADER += rf"|\b(?:x-{_NAME}{CONCEALING}|api-key)\s*:\s*[^\s'\"]+"
_PRINTED = rf"{_NAME}{CONCEALING}(?P<quote>[\"'])\s*:\s*[\"'](?:\\.|(?!(?P=quote))[^\\\n])+"
_SECRET = rf"(?i:{_ASSIGNED}|{_HEADER}|{_PRINTED})"
TOKEN = re.compile(
    rf"(?P<address>{_ADDRESS})|(?P<path>{_PATH})|(?P<user>{_USER})|(?P<query>[?&#][\w.~-]+=[^\s'\"]*)|(?P<secret>{_SECRET})"
)
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
        A text, such as a path, an address, or a sentence with some of them; or mappings and lists of such; anything
        else is returned as it is.
    """
    if isinstance(value, Mapping):
        return {
            public(key): ELIDED if isinstance(item, str) and item and _keeps_a_secret(key) else public(item)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [public(item) for item in value]
    if not isinstance(value, str) or value.isalnum():
        return value
    found = _public_text(value)
    # What is percent-encoded is read by whoever wants to read it.
    decoded = unquote(found)
    return found if decoded == found or _public_text(decoded) == decoded else public(decoded)


def plain_addresses(value: Any) -> Any:
    """Return a plain value whose addresses have no user, password, query and fragment; all else stays as it is."""
    if isinstance(value, Mapping):
        return {plain_addresses(key): plain_addresses(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_addresses(item) for item in value]
    return ADDRESS.sub(lambda one: _plain_address(one[0]), value) if isinstance(value, str) else value


def _keeps_a_secret(key: Any) -> bool:
    return isinstance(key, str) and re.fullmatch(rf"(?i).*?{CONCEALING}", key) is not None


def _public_text(text: str) -> str:
    if WHOLE_PATH.match(text) and "://" not in text:
        return _place(text)
    text = QUOTED.sub(lambda one: f"{one[1]}{_place(one[2])}{one[1]}", text)
    return TOKEN.sub(_public_token, text)


def _public_token(found: re.Match[str]) -> str:
    token, kind = found[0], found.lastgroup
    if kind == "address":
        scheme, slashes, rest = re.split(r"(:/+)", token, maxsplit=1)
        local = "file" in scheme.lower().split("+") or len(slashes) != len("://")
        return _place(unquote(rest)) if local else _plain_address(token)
    if kind == "secret":
        return re.sub(r"([=:\s]).*", rf"\1{ELIDED}", token, flags=re.DOTALL)
    return _place(token) if kind == "path" else ""


def _place(path: str) -> str:
    """Return the name of a file or folder without its place."""
    plain = PurePosixPath(path.replace("\\", "/"))
    # The name of a home folder is that of its owner.
    return ELSEWHERE + ("home" if _is_home(plain) else TOKEN.sub(_public_token, plain.name))


def _is_home(path: PurePosixPath) -> bool:
    own = {"", "..", "root", PurePosixPath(os.path.expanduser("~")).name}
    return path.name in own or path.name.startswith("~") or path.parent.name.lower() in HOMES


def _plain_address(address: str) -> str:
    """Return an address without user, password, query and fragment."""
    try:
        urlsplit(address)
    except ValueError:
        return ELSEWHERE
    scheme, separator, rest = address.partition("://")
    # A password can have any character; behind the name of a host, only a port follows a colon.
    rest = re.sub(r"^(?:[^/?#@]*@|[^/?#@:]+:(?!\d*(?:[/?#]|$))\S*@)+", "", rest)
    return scheme.lower() + separator + re.split("[?#;]", rest)[0]


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

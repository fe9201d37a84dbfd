"""Clean texts that are published or printed: remove secrets, local paths, spreadsheet formulas, control characters."""

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

# Stands for the folder of a file whose location is hidden; and for a secret.
ELSEWHERE, ELIDED = "…/", "…"
# Folders that contain the home folders of users.
HOMES = {"home", "homes", "users", "documents and settings"}
# Endings of the names of options that hold secrets.
CONCEALING = (
    r"(?:token|signature|sig|secret|passwo?r?d|passwd|pwd|(?:api|access|secret)[_-]?key|credentials?|authorization)"
)
_IN_WORD = r"[^\s'\"<>|]"
# An address ends where the next one begins, or at the end of a word.
_ADDRESS = rf"[A-Za-z][\w+.-]+:/{{2,}}(?:(?![A-Za-z][\w+.-]+://){_IN_WORD})*"
ADDRESS = re.compile(_ADDRESS)
# Paths that begin with a drive letter, another user's home folder, a network host, or an environment variable.
_OUTSIDE = r"[A-Za-z]:[\\/]|~[^\W\d][\w.-]*[\\/]|\\\\|//|\$\w+[\\/]|\$\{\w+\}[\\/]|%\w+%[\\/]"
_UPWARDS = r"(?:[^\s'\"<>|/\\]+[\\/])*\.\.[\\/]"
_PATH = rf"(?<![\w/\\.…)\]~*}}-])(?:{_OUTSIDE}|{_UPWARDS}|/root\b|/(?={_IN_WORD}+/)){_IN_WORD}*"
# A value that consists of one path may contain spaces.
WHOLE_PATH = re.compile(rf"{_OUTSIDE}|{_UPWARDS}|[/\\]|~[^/\\]|\.\.$")
QUOTED = re.compile(rf"([\"'])((?:{_OUTSIDE}|{_UPWARDS}|/)[^\"'\n]*)\1")
_USER = (
    r"(?<![\w@/])(?:[^\s'\"<>/@:]+:[^\s'\"<>/@]+@(?=[\w\[])"
    r"|[\w.+-]+@(?=[\w.-]+:(?!//)|(?:[\w-]+\.)+[A-Za-z]{2,}))"
)
# How the name of an option begins. Without a bound, the time would grow with the square of the length of a text.
_NAME = r"[\w-]{0,64}"
# Secrets in an address, in a header of a request, and in a printed mapping.
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
# Characters that some spreadsheet takes for a separator of cells.
SEPARATORS = r",;|:\t\n\v\f\x1c-\x1f\x85\u2028\u2029"
# Characters that begin a formula in a spreadsheet, in Latin and in full width: at the start of a cell, after characters
# that spreadsheets skip, or after a space (which can separate cells too), unless a space follows, as after a dash.
SKIPPED = r"\0\"'`“”‘’\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff"
FORMULA = re.compile(rf"(?:(?:\A|[{SEPARATORS}])[\s{SKIPPED}]*[=+\-@＝＋－＠]|\s[{SKIPPED}]*[=+\-@＝＋－＠](?! ))")
# Unicode categories: control, format (with bidirectional overrides), surrogates, line and paragraph separators.
HIDDEN = {"Cc", "Cf", "Cs", "Zl", "Zp"}


def public(value: Any) -> Any:
    """Return a value as it may be published: addresses without secrets, and absolute paths reduced to file names.

    Readers of a manifest, a store or a page need to know which data were used, but not where the files were on a
    machine or with which token they were downloaded. Relative paths and paths that begin with ``~/`` identify nobody,
    and stay.

    Parameters
    ----------
    value
        A text, such as a path, an address, or a sentence that contains some; or mappings and lists of texts. Other
        values are returned unchanged.
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
    text = _public_text(value)
    # Percent-encoding hides nothing from a reader.
    decoded = unquote(text)
    return text if decoded == text or _public_text(decoded) == decoded else public(decoded)


def plain_addresses(value: Any) -> Any:
    """Return a value whose addresses have no user, password, query and fragment; everything else is unchanged."""
    if isinstance(value, Mapping):
        return {plain_addresses(key): plain_addresses(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_addresses(item) for item in value]
    return ADDRESS.sub(lambda match: _plain_address(match[0]), value) if isinstance(value, str) else value


def _keeps_a_secret(key: Any) -> bool:
    return isinstance(key, str) and re.fullmatch(rf"(?i).*?{CONCEALING}", key) is not None


def _public_text(text: str) -> str:
    if WHOLE_PATH.match(text) and "://" not in text:
        return _without_location(text)
    text = QUOTED.sub(lambda match: f"{match[1]}{_without_location(match[2])}{match[1]}", text)
    return TOKEN.sub(_public_token, text)


def _public_token(match: re.Match[str]) -> str:
    token, kind = match[0], match.lastgroup
    if kind == "address":
        scheme, slashes, rest = re.split(r"(:/+)", token, maxsplit=1)
        local = "file" in scheme.lower().split("+") or len(slashes) != len("://")
        return _without_location(unquote(rest)) if local else _plain_address(token)
    if kind == "secret":
        return re.sub(r"([=:\s]).*", rf"\1{ELIDED}", token, flags=re.DOTALL)
    return _without_location(token) if kind == "path" else ""


def _without_location(path: str) -> str:
    """Return the name of a file or folder without its location."""
    plain = PurePosixPath(path.replace("\\", "/"))
    # A home folder has the name of its owner, which is hidden as well.
    return ELSEWHERE + ("home" if _is_home(plain) else TOKEN.sub(_public_token, plain.name))


def _is_home(path: PurePosixPath) -> bool:
    homes = {"", "..", "root", PurePosixPath(os.path.expanduser("~")).name}
    return path.name in homes or path.name.startswith("~") or path.parent.name.lower() in HOMES


def _plain_address(address: str) -> str:
    """Return an address without user, password, query and fragment."""
    try:
        urlsplit(address)
    except ValueError:
        return ELSEWHERE
    scheme, separator, rest = address.partition("://")
    # A password can contain any character; after the name of a host, only a port follows a colon.
    rest = re.sub(r"^(?:[^/?#@]*@|[^/?#@:]+:(?!\d*(?:[/?#]|$))\S*@)+", "", rest)
    return scheme.lower() + separator + re.split("[?#;]", rest)[0]


def without_secrets(text: str, address: str) -> str:
    """Return a text, such as the message of an error, without the user, password, query and fragment of an address."""
    start, *more = re.split("[?#]", address.partition("://")[2])
    secrets = [*start.partition("/")[0].rpartition("@")[0].split(":"), *more]
    # Short texts are skipped, because they could be parts of words. The longest secret comes first, because it may
    # contain another one.
    patterns = sorted((re.escape(secret) for secret in secrets if len(secret) > SHORT), key=len, reverse=True)
    parts = text.split(address)
    return _plain_address(address).join(re.sub("|".join(patterns), "…", part) if patterns else part for part in parts)


def without_formulas(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table whose CSV has no cell that a spreadsheet takes for a formula, whatever separator it assumes.

    In cells and names of columns, an apostrophe is put before a character that would begin a formula. Numbers are
    unchanged, negative ones included, and so is a table that this function returned.
    """
    import pandas as pd

    def cells(column: pd.Series) -> pd.Series:
        return column if pd.api.types.is_numeric_dtype(column) else column.astype(object).map(_without_formula)

    return table.apply(cells).rename(columns=_without_formula)


def _without_formula(cell: Any) -> Any:
    if not isinstance(cell, str):
        return cell
    # pandas does not quote a lone \r in a CSV file, and the rest of the cell would begin a row.
    cell = cell.replace("\r", "\n")
    return FORMULA.sub(lambda match: _with_apostrophe(match, cell), cell)


def _with_apostrophe(match: re.Match[str], cell: str) -> str:
    before, start, rest = match[0][:-1], match[0][-1], cell[match.end() - 1 :]
    # A cell ends at the separator that precedes it; the first cell of a text can end at any.
    ends = [
        rest.partition(character)[0]
        for character in set(before)
        if character.isspace() or re.match(f"[{SEPARATORS}]", character)
    ]
    if match.start() == 0 or not ends:
        ends.append(rest)
    if before.endswith(APOSTROPHE) or all(map(_is_number, ends)):
        return match[0]
    return f"{before}{APOSTROPHE}{start}"


def _is_number(text: str) -> bool:
    try:
        float(text.strip(" ()[]{}'\"%."))
    except ValueError:
        return False
    return True


def escaped(text: str, keep: str = "\n\t") -> str:
    r"""Return a text with control characters escaped, such as ``\x1b`` for ESC.

    A terminal would execute them: they can clear the screen, write to the clipboard, or reverse the order of letters.
    Bytes of file names that are not UTF-8 are escaped too.

    Parameters
    ----------
    text
        The text.
    keep
        Control characters that are not escaped; "" for a cell of a table.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        character
        if character in keep or unicodedata.category(character) not in HIDDEN
        else character.encode("unicode_escape").decode()
        for character in text
    )

"""Clean texts that are published or printed: absolute paths, secrets of addresses, control characters."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

# Stands for the folder of a file whose location is hidden.
ELSEWHERE = "…/"
_IN_WORD = r"[^\s'\"<>|]"
_SCHEME = r"(?<![\w+.-])[A-Za-z][\w+.-]+://"
# An address ends where the next one begins, or at the end of a word.
_ADDRESS = rf"{_SCHEME}(?:(?!{_SCHEME}){_IN_WORD})*"
ADDRESS = re.compile(_ADDRESS)
# In a sentence, a path has two parts at least: "/2" may be half of a fraction.
ADDRESS_OR_PATH = re.compile(rf"{_ADDRESS}|(?<![\w/.…)\]~*}}-])/(?={_IN_WORD}+/){_IN_WORD}*")
# Errors of Python quote paths, which may contain spaces then.
QUOTED_PATH = re.compile(r"([\"'])(/[^\"'\n]*)\1")
SHORT = 3
# Unicode categories: control, format (with bidirectional overrides), surrogates, line and paragraph separators.
HIDDEN = {"Cc", "Cf", "Cs", "Zl", "Zp"}


def public(value: Any) -> Any:
    """Return a value as it may be published: addresses without secrets, and absolute paths reduced to file names.

    Readers of a manifest, a store or a page need to know which data were used, but not where the files were on a
    machine or with which token they were downloaded.

    Parameters
    ----------
    value
        A text, such as a path, an address, or a sentence that contains some; or mappings and lists of texts. Other
        values are returned unchanged.
    """
    if isinstance(value, Mapping):
        return {public(key): public(content) for key, content in value.items()}
    if isinstance(value, list | tuple):
        return [public(content) for content in value]
    return _public_text(value) if isinstance(value, str) else value


def plain_addresses(value: Any) -> Any:
    """Return a value whose addresses have no user, password, query and fragment; everything else is unchanged."""
    if isinstance(value, Mapping):
        return {plain_addresses(key): plain_addresses(content) for key, content in value.items()}
    if isinstance(value, list | tuple):
        return [plain_addresses(content) for content in value]
    return ADDRESS.sub(lambda match: _plain_address(match[0]), value) if isinstance(value, str) else value


def _public_text(text: str) -> str:
    # A text that is one path may contain spaces.
    if text.startswith("/"):
        return _without_location(text)
    text = QUOTED_PATH.sub(lambda match: f"{match[1]}{_without_location(match[2])}{match[1]}", text)
    return ADDRESS_OR_PATH.sub(lambda match: _public_word(match[0]), text)


def _public_word(word: str) -> str:
    is_remote = "://" in word and not word.startswith("/") and not word.lower().startswith("file:")
    return _plain_address(word) if is_remote else _without_location(word)


def _without_location(path: str) -> str:
    """Return the name of a file or folder without its location."""
    return ELSEWHERE + PurePosixPath(path).name


def _plain_address(address: str) -> str:
    """Return an address without user, password, query and fragment."""
    scheme, separator, rest = re.split("[?#]", address)[0].partition("://")
    host, slash, path = rest.partition("/")
    return scheme.lower() + separator + host.rpartition("@")[2] + slash + path


def without_secrets(text: str, address: str) -> str:
    """Return a text, such as the message of an error, without the user, password, query and fragment of an address."""
    start, *more = re.split("[?#]", address.partition("://")[2])
    secrets = [*start.partition("/")[0].rpartition("@")[0].split(":"), *more]
    # Short texts are skipped, because they could be parts of words. The longest secret comes first, because it may
    # contain another one.
    patterns = sorted((re.escape(secret) for secret in secrets if len(secret) > SHORT), key=len, reverse=True)
    parts = text.split(address)
    return _plain_address(address).join(re.sub("|".join(patterns), "…", part) if patterns else part for part in parts)


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

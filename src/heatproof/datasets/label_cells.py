"""Parse the cells of a table of labels: numbers, lists, and strings that look alike."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from typing import Any

from heatproof.datasets.label_file import Cell

# The name of an empty cell in a config.
BLANK = "blank"
NUMBER = re.compile(r"([+\-−]?)(\d+(?:[.,]\d*)?|[.,]\d+)(e[+-]?\d+)?", re.IGNORECASE)
# A number with a unit sign, a number with thousands separators, or infinity.
NEARLY_NUMBER = re.compile(
    r"[+\-−]?(?:\d+(?:[.,]\d+)?\s?[%‰€$£]|[€$£]\s?\d+(?:[.,]\d+)?|inf(?:inity)?"
    r"|\d{1,3}(?:[ '’.,\u00a0\u202f]\d{3})+(?:[.,]\d+)?)",
    re.IGNORECASE,
)
# Such as 1,000, which is a thousand with a decimal point and one with a decimal comma.
THOUSANDS = re.compile(r"[+\-−]?[1-9]\d{0,2}(,\d{3})+")
IN_LIST = re.compile(r"'([^']*)'|\"([^\"]*)\"|“([^”]*)”|([^\s,'\"“”][^,'\"“”]*)")
# Longer digit strings are names, not numbers.
LONGEST_NUMBER = 300


class CellSet:
    """Set of cells from a config, such as ``[blank, -1]``; it ignores case, and the spelling of numbers."""

    def __init__(self, cells: Any) -> None:
        texts = ["" if str(cell).casefold() == BLANK else str(cell).strip() for cell in as_list(cells)]
        self._texts = {text.casefold() for text in texts}
        self._numbers = {number for text in texts if (number := number_of(text)) is not None}

    def __contains__(self, text: str) -> bool:
        return text.casefold() in self._texts or (bool(self._numbers) and number_of(text) in self._numbers)


def as_list(value: Any) -> list[Any]:
    """Return an option that is a list, one value, or None as a list."""
    return [] if value is None else list(value) if isinstance(value, list | tuple) else [value]


def number_of(text: str) -> int | float | None:
    """Return the number in a string, with a decimal point or comma; None if it is not a number or too long."""
    match = NUMBER.fullmatch(text) if len(text) <= LONGEST_NUMBER else None
    if match is None:
        return None
    sign, digits, exponent = match.groups()
    text = f"{sign.replace('−', '-')}{digits.replace(',', '.')}"
    if digits.isdecimal() and exponent is None:
        return int(text)
    number = float(text + (exponent or ""))
    return number if abs(number) < float("inf") else None


def class_name_of(number: float, spelled: Iterable[str]) -> str:
    """Return the class name of a number: its only spelling if that consists of digits, otherwise its digits."""
    spellings = set(spelled)
    spelling = next(iter(spellings))
    if len(spellings) == 1 and spelling.isdecimal():
        return spelling
    is_plain = float(number).is_integer() and abs(number) < 1e15
    return str(int(number)) if is_plain or isinstance(number, int) else repr(number)


def is_mapping(cell: str) -> bool:
    """Return whether a cell is a JSON mapping."""
    return cell[:2] == '{"' and cell[-1:] == "}"


def normalised_text(text: str) -> str:
    """Return a key that is equal for strings that look alike: without case, extra blanks and invisible characters."""
    visible = "".join(
        character for character in unicodedata.normalize("NFKC", text) if unicodedata.category(character) != "Cf"
    )
    return " ".join(visible.casefold().split())


def parse_list(cell: Cell) -> list[str]:
    """Return the labels of a list, or of a string that contains a list."""
    if isinstance(cell, list):
        return [part.strip() for part in cell]
    if cell[:1] != "[":
        return [cell]
    return [next(part for part in parts if part).strip() for parts in IN_LIST.findall(cell[1:-1]) if any(parts)]


def split_cell(cell: str, separator: str | None) -> list[str]:
    """Return the labels in a cell; an empty cell gives one empty label, because an empty cell is not an empty list."""
    if separator is None:
        return [cell]
    parts = cell.split() if not separator.strip() else [part.strip() for part in cell.split(separator)]
    return [part for part in parts if part] or [""]

"""What cells of a table of labels spell: numbers, lists, and texts that look alike."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from typing import Any

from heatproof.data.label_file import Cell

# How a config writes an empty cell.
BLANK = "blank"
NUMBER = re.compile(r"([+\-−]?)(\d+(?:[.,]\d*)?|[.,]\d+)(e[+-]?\d+)?", re.IGNORECASE)
# A number with a sign of its unit, with something between its thousands, or without an end.
NEARLY_NUMBER = re.compile(
    r"[+\-−]?(?:\d+(?:[.,]\d+)?\s?[%‰€$£]|[€$£]\s?\d+(?:[.,]\d+)?|inf(?:inity)?"
    r"|\d{1,3}(?:[ '’.,\u00a0\u202f]\d{3})+(?:[.,]\d+)?)",
    re.IGNORECASE,
)
# A thousand in one country, and one in another.
THOUSANDS = re.compile(r"[+\-−]?[1-9]\d{0,2}(,\d{3})+")
IN_LIST = re.compile(r"'([^']*)'|\"([^\"]*)\"|“([^”]*)”|([^\s,'\"“”][^,'\"“”]*)")
# Longer ones are names; larger ones no computer counts with.
LONGEST_NUMBER = 300


class CellSet:
    """Cells that a config lists, such as ``[blank, -1]``: texts in any capitals, and numbers in any spelling."""

    def __init__(self, given: Any) -> None:
        texts = ["" if str(one).casefold() == BLANK else str(one).strip() for one in as_list(given)]
        self._texts = {text.casefold() for text in texts}
        self._numbers = {number for text in texts if (number := number_of(text)) is not None}

    def __contains__(self, text: str) -> bool:
        return text.casefold() in self._texts or (bool(self._numbers) and number_of(text) in self._numbers)


def as_list(given: Any) -> list[Any]:
    """Return what a config gives as a list, as one value or not at all."""
    return [] if given is None else list(given) if isinstance(given, list | tuple) else [given]


def number_of(text: str) -> int | float | None:
    """Return the number that a text spells, with a point or a comma; None if it is none, or longer than any."""
    found = NUMBER.fullmatch(text) if len(text) <= LONGEST_NUMBER else None
    if found is None:
        return None
    sign, digits, exponent = found.groups()
    plain = f"{sign.replace('−', '-')}{digits.replace(',', '.')}"
    if digits.isdecimal() and exponent is None:
        return int(plain)
    number = float(plain + (exponent or ""))
    return number if abs(number) < float("inf") else None


def class_name_of(number: float, spelled: Iterable[str]) -> str:
    """Return the name of the class of a number: its digits, as they stand where that is one spelling of digits."""
    several = set(spelled)
    alone = next(iter(several))
    if len(several) == 1 and alone.isdecimal():
        return alone
    is_plain = float(number).is_integer() and abs(number) < 1e15
    return str(int(number)) if is_plain or isinstance(number, int) else repr(number)


def is_mapping(cell: str) -> bool:
    """Tell whether a cell is a mapping of JSON."""
    return cell[:2] == '{"' and cell[-1:] == "}"


def normalised_text(text: str) -> str:
    """Return what texts have in common that look alike: capitals, blanks and signs that are not seen do not count."""
    seen = "".join(sign for sign in unicodedata.normalize("NFKC", text) if unicodedata.category(sign) != "Cf")
    return " ".join(seen.casefold().split())


def parse_list(cell: Cell) -> list[str]:
    """Return the labels of a list, or of one that is written as a text."""
    if isinstance(cell, list):
        return [part.strip() for part in cell]
    if cell[:1] != "[":
        return [cell]
    return [next(part for part in parts if part).strip() for parts in IN_LIST.findall(cell[1:-1]) if any(parts)]


def split_cell(cell: str, separator: str | None) -> list[str]:
    """Return the labels in a cell; one that is empty stays, because nothing is known of it."""
    if separator is None:
        return [cell]
    several = cell.split() if not separator.strip() else [part.strip() for part in cell.split(separator)]
    return [part for part in several if part] or [""]

"""Convert the cells of a table to labels of images: a class, several labels, or a number."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from heatproof.base.tasks import Task
from heatproof.data.label_cells import (
    BLANK,
    NEARLY_NUMBER,
    THOUSANDS,
    CellSet,
    as_list,
    class_name_of,
    is_mapping,
    normalised_text,
    number_of,
    parse_list,
    split_cell,
)
from heatproof.data.label_file import Cell
from heatproof.errors import HeatproofError

# Spellings of an unknown value; -1 is handled as a number.
MISSING = ("", "nan", "na", "n/a", "none", "null", "<na>", "#n/a", "nat", "?")
# Those that are also names: the country code of Namibia, and surnames.
NAMES = ("na", "none", "null")
# Spellings of "none of the labels".
NOTHING = (
    "no finding",
    "no findings",
    "no label",
    "no labels",
    "no tag",
    "no tags",
    "nothing",
    "none",
    "normal",
    "healthy",
)
TRUTHS = {"true": 1, "yes": 1, "false": 0, "no": 0}
# Separators of labels in a cell, the least ambiguous first.
SEPARATORS = ("|", ";", ",", " ")
# More different numbers than this are rarely class numbers.
MANY = 20
NAMED = 4


class AmbiguousTableError(HeatproofError):
    """A table can be read in several ways; the message names the option that selects one.

    Attributes
    ----------
    suggested_options
        Options that resolve the ambiguity cautiously; empty if only the user can resolve it.
    """

    def __init__(self, sentence: str, answer: Mapping[str, Any] | None = None) -> None:
        super().__init__(sentence)
        self.answer = answer or {}


class LabelOptions(NamedTuple):
    """Options of a dataset about the labels of a table.

    Attributes
    ----------
    task
        Task of the labels. None: determined by the cells, or one class if they do not determine it.
    separator
        Separator of several labels in a cell.
    unknown, none
        Cells that stand for an unknown label, and for no label; None if the config does not set them.
    """

    task: Task | None = None
    separator: str | None = None
    unknown: Any = None
    none: Any = None


class Labels(NamedTuple):
    """The labels of rows.

    Attributes
    ----------
    task
        Task of the labels.
    class_names
        Names of the classes or labels; for regression only the name of the column.
    values
        (N,) int64 classes; (N, K) int8 with 1 present, 0 absent and -1 unknown; or (N,) float64.
    known
        (N,) bool: False for rows without a known label, which are left out.
    """

    task: Task
    class_names: list[str]
    values: np.ndarray
    known: np.ndarray


class LabelReader:
    """Reader of labels from columns of cells.

    Parameters
    ----------
    where
        Path of the table, for messages.
    options
        Options of the dataset.
    numbers
        Numbers of the rows in the file, for messages; None for numbers from 2 on.
    """

    def __init__(self, where: str, said: LabelOptions, numbers: Sequence[int] | None = None) -> None:
        if said.separator == "":
            raise HeatproofError("`separator` is empty: give what stands between labels in a cell, such as '|'.")
        self._where, self._said, self._numbers = where, said, numbers
        self._unknown, self._none = CellSet(said.unknown), CellSet(said.none)

    def read(self, names: Sequence[str], columns: Sequence[Sequence[Cell]], *, is_list: bool = False) -> Labels:
        """Return the labels of all rows.

        Parameters
        ----------
        names, columns
            Names of the columns of labels, and their cells.
        is_list
            Whether there is one column for each class; otherwise there is only one column.

        Raises
        ------
        HeatproofError
            If a cell is not a valid label; as `AmbiguousTableError` if it can be read in several ways.
        """
        if is_list:
            return self._one_hot(
                names, [self._texts(name, column) for name, column in zip(names, columns, strict=True)]
            )
        name, column = names[0], columns[0]
        lists = self._lists(name, column)
        if lists is not None:
            self._require_multilabel(f"cells of the column {name!r} are lists")
            return self._several(name, lists)
        cells = self._texts(name, column)
        separator = self._said.separator
        if separator is not None:
            self._require_multilabel(f"`separator` says that cells of the column {name!r} have several labels")
        if self._said.task in (None, "multilabel") and not any(len(split_cell(cell, separator)) > 1 for cell in cells):
            self.ask_separator(name, cells)
        if separator is not None or self._said.task == "multilabel":
            return self._several(name, [split_cell(cell, separator) for cell in cells])
        return self._number(name, cells) if self._said.task == "regression" else self._class(name, cells)

    def _row(self, place: int) -> str:
        return f"Row {place + 2 if self._numbers is None else self._numbers[place]} of {self._where}"

    def _texts(self, name: str, column: Sequence[Cell]) -> list[str]:
        for place, cell in enumerate(column):
            if not isinstance(cell, str):
                raise HeatproofError(
                    f"{self._row(place)} has a list in the column {name!r}, and other rows have none: write lists in "
                    "all rows."
                )
            if is_mapping(cell):
                raise HeatproofError(
                    f"{self._row(place)} has a mapping in the column {name!r}: write a text, a number, or a list."
                )
        return [str(cell) for cell in column]

    def _lists(self, name: str, column: Sequence[Cell]) -> list[list[str]] | None:
        """Return the lists of a column of lists, which can be written as strings; None for another column."""
        filled = [cell for cell in column if isinstance(cell, list) or (cell and not self._is_said(cell))]
        if not filled or not all(isinstance(one, list) or (one[0] == "[" and one[-1] == "]") for one in filled):
            return None
        lists = [parse_list(cell) for cell in column]
        for place, cell in enumerate(column):
            within = [part.strip() for part in cell] if isinstance(cell, list) else [cell[1:-1].strip()]
            if any(part.startswith("[") or is_mapping(part) for part in within):
                raise HeatproofError(
                    f"{self._row(place)} has a list of lists or of mappings in the column {name!r}: write a list of "
                    "texts or numbers, or name another column as columns: {label: …}."
                )
        return lists

    def _is_said(self, cell: str) -> bool:
        return cell in self._unknown or cell in self._none

    def _require_multilabel(self, why: str) -> None:
        if self._said.task not in (None, "multilabel"):
            raise HeatproofError(
                f"The task is {self._said.task}, and {why}: say task: multilabel, or name another column."
            )

    # ---- ambiguities -------------------------------------------------------------------------------------------------

    def _ask_missing(self, name: str, cells: Sequence[str], places: Sequence[int] | None = None) -> None:
        """Raise `AmbiguousTableError` for blanks, nan, -1 and the like whose meaning the config does not define.

        With several labels, `cells` are single labels and `places` their rows.
        """
        several = places is not None
        counts = Counter(cells)
        is_said = self._said.unknown is not None and not as_list(self._said.unknown)
        numbers = {number for cell in counts if (number := number_of(cell)) is not None}
        is_odd_one = len(numbers) > 1 and {number for number in numbers if number < 0} == {-1}
        odd = [
            cell
            for cell in counts
            if not (cell in self._unknown or (several and cell in self._none) or (is_said and cell))
            and (cell.casefold() in MISSING or (is_odd_one and number_of(cell) == -1))
        ]
        if not odd:
            return
        answer = [BLANK if not cell else -1 if number_of(cell) == -1 else cell for cell in odd]
        spelled = ", ".join(map(str, dict.fromkeys(answer)))
        count = sum(counts[cell] for cell in odd)
        what = f"has the label {odd[0]!r}" if odd[0] else "has no label"
        more = f" ({count} rows have such)" if count > 1 else ""
        other = ""
        if several:
            other = f", or none: [{spelled}] where it means that the image has no label"
        elif (
            self._said.unknown is None and odd[0] and (self._said.task != "regression" or number_of(odd[0]) is not None)
        ):
            other = f", or unknown: [] where it is a {'number' if self._said.task == 'regression' else 'class'}"
        if not several and any(odd) and (self._said.unknown is not None or not all(odd)):
            # A blank is always unknown, but "NA" can be the code of a country.
            names = [cell for cell in odd if cell.casefold() in NAMES]
            other = f", or call {names[0]} something else in the table where it is a class" if names else ""
        at = list(cells).index(odd[0])
        raise AmbiguousTableError(
            f"{self._row(at if places is None else places[at])} {what} in the column {name!r}{more}: "
            f"fill it in, or say unknown: [{spelled}], with which what is not known is left out{other}.",
            # If the only other number is 1, -1 is the second of two classes.
            {"unknown": [] if numbers == {-1, 1} else [*as_list(self._said.unknown), *dict.fromkeys(answer)]},
        )

    def ask_separator(self, name: str, cells: Sequence[str]) -> None:
        """Raise `AmbiguousTableError` if cells may contain several labels, because their parts recur in other cells."""
        distinct = {cell for cell in cells if cell and not self._is_said(cell)}
        are_numbers = all(number_of(cell) is not None for cell in distinct)
        for separator in SEPARATORS:
            parted = {cell: split_cell(cell, separator) for cell in distinct}
            several = {cell for cell, parts in parted.items() if len(parts) > 1}
            # A comma in every number is a decimal comma; a comma in some of them may separate two numbers.
            if not several or (are_numbers and len(several) == len(distinct)):
                continue
            parts = {part for one in parted.values() for part in one}
            is_sure = len(parts) < len(distinct) or all(number_of(part) is not None for part in parts)
            is_reused = (
                _are_sets(parted)
                if separator == " "
                else any(not distinct.isdisjoint(parted[cell]) for cell in several)
            )
            if separator == "|" or is_sure or is_reused:
                shown = min(several, key=len)
                labels = f"{len(parted[shown])} labels, {' and '.join(map(repr, parted[shown][:NAMED]))}"
                other = "or task: multiclass if it is one class"
                if self._said.task:
                    other = "or name what stands between labels"
                elif are_numbers:
                    other = "or task: regression, or multiclass, if it is one number"
                is_clear = is_sure or separator != " " or self._said.task is not None
                raise AmbiguousTableError(
                    f"The column {name!r} of {self._where} has cells such as {shown!r}: say separator: {separator!r} "
                    f"if that is {labels}, {other}.",
                    {"separator": separator} if is_clear and not are_numbers else None,
                )

    def _ask_task(self, name: str, values: Mapping[str, float], rows: int) -> None:
        """Raise `AmbiguousTableError` if numbers may be measurements or classes."""
        distinct = sorted(set(values.values()))
        is_whole = all(float(number).is_integer() for number in distinct)
        is_run = is_whole and distinct[0] in (0, 1) and distinct[-1] - distinct[0] == len(distinct) - 1
        seldom = 2 * len(distinct) > rows
        if is_whole and not (
            (len(distinct) > MANY and (seldom or not is_run)) or (seldom and not is_run and len(distinct) > 2)
        ):
            return
        several = ", or separator: ',' if cells have several labels" if any("," in text for text in values) else ""
        raise AmbiguousTableError(
            f"The column {name!r} of {self._where} has {len(distinct):,} different numbers, from {distinct[0]:g} to "
            f"{distinct[-1]:g}: say task: regression if they are measured, or task: multiclass if each is a class"
            f"{several}."
        )

    def _ask_alike(self, name: str, distinct: set[str], task: str) -> None:
        """Raise `AmbiguousTableError` if classes look alike, unless the config sets the task; `task` is the remedy."""
        spelled: dict[str, str] = {}
        is_open = self._said.task is None or (self._said.task == "binary" and len(distinct) > 2)
        for cell in sorted(distinct) if is_open else ():
            first = spelled.setdefault(normalised_text(cell), cell)
            if first != cell and (number_of(first) is None or number_of(cell) is None):
                raise AmbiguousTableError(
                    f"The column {name!r} of {self._where} has {first!a} and {cell!a}, which look alike: write "
                    f"both as one if they are one class, or say task: {task} if they are two."
                )

    def _ask_nearly_numbers(self, name: str, distinct: Sequence[str], values: Mapping[str, float]) -> None:
        """Raise `AmbiguousTableError` if all classes that are not numbers are nearly numbers, such as "5 %"."""
        others = sorted(text for text in distinct if text not in values)
        if self._said.task is None and others and all(map(NEARLY_NUMBER.fullmatch, others)):
            raise AmbiguousTableError(
                f"The column {name!r} of {self._where} has {others[0]!r}, which is nearly a number: write digits with "
                "a point at most, or say task: multiclass if each is a class."
            )

    def _require_sets(self, name: str, rows: Sequence[Sequence[str]]) -> None:
        """Check that lists contain names of labels, and not a 1 or 0 for each label, or measurements."""
        numbers = [[number_of(part) for part in row] for row in rows if any(row)]
        given = [number for row in numbers for number in row if number is not None]
        if not numbers or len(given) < sum(map(len, numbers)):
            return
        is_coded = len(set(map(len, numbers))) == 1 and len(numbers[0]) > 1 and set(given) <= {-1, 0, 1}
        is_measured = any(not float(number).is_integer() for number in given)
        if is_coded or is_measured or any(len(set(row)) < len(row) for row in numbers):
            shown = ", ".join(next(filter(any, rows))[:NAMED])
            raise HeatproofError(
                f"Cells of the column {name!r} of {self._where} are lists of numbers that name no labels, such as "
                f"{shown}: write one column for each label, of 1 and 0, and name them as columns: {{label: [first, "
                "second, …]}, or name another column."
            )

    # ---- labels ------------------------------------------------------------------------------------------------------

    def _class(self, name: str, cells: Sequence[str]) -> Labels:
        self._ask_missing(name, cells)
        known = self._known(cells)
        distinct = {cell for cell, is_known in zip(cells, known, strict=True) if is_known}
        self._require_known(known)
        values = self._values(name, distinct)
        self._ask_alike(name, distinct, "multiclass")
        self._ask_nearly_numbers(name, list(distinct), values)
        if values and len(values) == len(distinct) and self._said.task is None:
            self._ask_task(name, values, int(known.sum()))
        names, numbers = _numbered(distinct, values)
        self._require_classes(names)
        labels = np.array([numbers.get(cell, -1) for cell in cells], dtype=np.int64)
        return Labels(self._said.task or "multiclass", names, labels, known)

    def _known(self, cells: Sequence[str]) -> np.ndarray:
        known = {cell: cell not in self._unknown for cell in set(cells)}
        return np.array([known[cell] for cell in cells], dtype=bool)

    def _require_known(self, known: np.ndarray) -> None:
        if not known.any():
            raise HeatproofError(
                f"{self._where} has no row whose label is known: correct `unknown`, or fill labels in."
            )

    def _require_classes(self, names: Sequence[str]) -> None:
        if len(names) < 2:
            raise HeatproofError(f"{self._where} has {len(names)} labels: a classifier needs two at least.")
        if self._said.task == "binary" and len(names) > 2:
            raise HeatproofError(
                f"The task is binary, and {self._where} has {len(names)} classes, {', '.join(names[:NAMED])}"
                f"{', …' if len(names) > NAMED else ''}: say task: multiclass."
            )

    def _number(self, name: str, cells: Sequence[str]) -> Labels:
        self._ask_missing(name, cells)
        known = self._known(cells)
        self._require_known(known)
        values = self._values(name, {cell for cell, is_known in zip(cells, known, strict=True) if is_known})
        for place in np.flatnonzero(known).tolist():
            if cells[place] not in values:
                raise HeatproofError(
                    f"{self._row(place)} has {cells[place]!r} in the column {name!r}, and the task is regression: "
                    f"write a number, or say unknown: [{cells[place]}], with which such pictures are left out."
                )
        numbers = np.array([values.get(cell, np.nan) for cell in cells], dtype=np.float64)
        if len(np.unique(numbers[known])) < 2:
            raise HeatproofError(
                f"The column {name!r} of {self._where} has one number in all rows: a regression needs different ones."
            )
        return Labels("regression", [name], numbers, known)

    def _values(self, name: str, distinct: Iterable[str]) -> dict[str, int | float]:
        """Return the strings that are numbers, and these numbers.

        Raises
        ------
        HeatproofError
            If a comma may separate thousands or decimals, and all other strings are numbers.
        """
        several = list(distinct)
        values = {text: number for text in several if (number := number_of(text)) is not None}
        unclear = next((text for text in sorted(several) if THOUSANDS.fullmatch(text)), None)
        if unclear is not None and all(text in values or THOUSANDS.fullmatch(text) for text in several):
            raise HeatproofError(
                f"The column {name!r} of {self._where} has {unclear!r}, which is a thousand or one: write such numbers "
                f"as {unclear.replace(',', '')} or {unclear.replace(',', '.')}."
            )
        return values

    def _several(self, name: str, rows: Sequence[Sequence[str]]) -> Labels:
        """Return the labels of rows with several labels each."""
        # An empty list means that there is no label; an empty cell can mean that it is unknown.
        parts = [(part, place) for place, row in enumerate(rows) for part in row]
        self._ask_missing(name, [part for part, _ in parts], [place for _, place in parts])
        kept = [[part for part in row if part not in self._none] for row in rows]
        self._require_sets(name, kept)
        is_whole = np.array([not any(part in self._unknown for part in row) for row in kept], dtype=bool)
        kept = [[part for part in row if part not in self._unknown] for row in kept]
        # In a row with an unknown label, the other labels are known.
        known = is_whole | np.array([bool(row) for row in kept])
        self._require_known(known)
        distinct = {part for row in kept for part in row}
        self._ask_alike(name, distinct, "multilabel")
        if self._said.none is None:
            together = {part for row in kept if len(row) > 1 for part in row}
            nothing = sorted(part for part in distinct - together if part.casefold() in NOTHING)
            if nothing:
                raise AmbiguousTableError(
                    f"The column {name!r} of {self._where} has {nothing[0]!r}, always alone: say none: [{nothing[0]}] "
                    "if it means that an image has none of the labels, or none: [] if it is a label.",
                    {"none": nothing},
                )
        names, numbers = _numbered(distinct, self._values(name, distinct))
        if not names:
            raise HeatproofError(f"The column {name!r} of {self._where} has no label: fill it in.")
        labels = np.zeros((len(rows), len(names)), dtype=np.int8)
        labels[~is_whole] = -1
        for place in np.flatnonzero(known).tolist():
            labels[place, [numbers[part] for part in kept[place]]] = 1
        return Labels("multilabel", names, labels, known)

    def _one_hot(self, names: Sequence[str], columns: Sequence[Sequence[str]]) -> Labels:
        """Return the labels of a table with one column for each class."""
        task = self._said.task
        if self._said.separator is not None or task == "regression":
            option = "separator" if self._said.separator is not None else "task: regression"
            raise HeatproofError(
                f"`columns` names {len(names)} columns of labels, one a class, and {option} is of one column: leave "
                "one of the two out."
            )
        codes = np.array([self._codes(column) for column in columns], dtype=np.int8).reshape(len(names), -1).T
        ones = (codes == 1).sum(axis=1)
        if task is None:
            found = "multiclass" if (ones == 1).all() else "multilabel"
            seen = "exactly one is, in all rows" if found == "multiclass" else "not exactly one is, in some rows"
            raise AmbiguousTableError(
                f"`columns` names {len(names)} columns of labels of {self._where}: say task: multiclass if one of them "
                f"is 1 in each row, or task: multilabel if several can be ({seen}).",
                {"task": found},
            )
        self._ask_codes(names, columns, codes)
        self._require_known(np.array((codes >= 0).any(axis=1)))
        if task == "multilabel":
            return Labels("multilabel", list(names), codes, np.array((codes >= 0).any(axis=1)))
        self._require_classes(names)
        known = np.array((ones == 1) | (codes >= 0).all(axis=1))
        for place in np.flatnonzero(known & (ones != 1))[:1].tolist():
            raise HeatproofError(
                f"{self._row(place)} has {ones[place]} of the classes, and the task is {task}: one of the columns has "
                "to be 1; say task: multilabel if several can be."
            )
        return Labels(task, list(names), codes.argmax(axis=1).astype(np.int64), known)

    def _codes(self, column: Sequence[str]) -> list[int]:
        """Return 1, 0, -1 for unknown, or `ODD` for a cell whose meaning the config must define."""
        coded = {cell: self._code(cell) for cell in set(column)}
        return [coded[cell] for cell in column]

    def _code(self, cell: str) -> int:
        if cell in self._unknown:
            return -1
        if cell in self._none:
            return 0
        number = number_of(cell)
        return int(number) if number in (0, 1) else TRUTHS.get(cell.casefold(), ODD)

    def _ask_codes(self, names: Sequence[str], columns: Sequence[Sequence[str]], codes: np.ndarray) -> None:
        """Raise `AmbiguousTableError` if there are cells other than 1 and 0 without a defined meaning."""
        rows, places = (found.tolist() for found in np.nonzero(codes == ODD))
        if not rows:
            return
        odd = list(dict.fromkeys(columns[place][row] for row, place in zip(rows, places, strict=True)))
        answer: list[str | int] = [BLANK if not cell else -1 if number_of(cell) == -1 else cell for cell in odd]
        spelled = ", ".join(map(str, dict.fromkeys(answer[:NAMED])))
        # If the only other number is 1, -1 means absent, as in CelebA.
        option = "none" if answer == [-1] and not (codes == 0).any() else "unknown"
        are_usual = all(cell.casefold() in MISSING or number_of(cell) == -1 for cell in odd)
        raise AmbiguousTableError(
            f"{self._row(rows[0])} has {repr(odd[0]) if odd[0] else 'an empty cell'} in the column "
            f"{names[places[0]]!r}, neither 1 nor 0 ({len(rows)} cells have such): "
            f"{'' if are_usual else 'write 1 or 0, or '}say unknown: "
            f"[{spelled}] if nothing is known of the label there, or "
            f"none: [{spelled}] if the image has it not.",
            {option: [*as_list(getattr(self._said, option)), *dict.fromkeys(answer)]} if are_usual else None,
        )


ODD = -2


def _are_sets(parted: Mapping[str, Sequence[str]]) -> bool:
    """Return whether words look like labels: a cell has all words of another one, or the position of a word varies.

    Class names share words too, but always as the first or the last word, such as "golden retriever" and
    "curly coated retriever".
    """
    cells = [frozenset(parts) for parts in parted.values()]
    by_word: dict[str, set[frozenset[str]]] = {}
    places: dict[str, set[tuple[int, int]]] = {}
    for parts, cell in zip(parted.values(), cells, strict=True):
        for place, part in enumerate(parts):
            by_word.setdefault(part, set()).add(cell)
            places.setdefault(part, set()).add((place, len(parts) - place))
    moved = any(len({one for one, _ in seen}) > 1 and len({end for _, end in seen}) > 1 for seen in places.values())
    return moved or any(cell < other for cell in cells for other in by_word[min(cell)])


def _numbered(distinct: Iterable[str], values: Mapping[str, float]) -> tuple[list[str], dict[str, int]]:
    """Return the names of labels in order, numbers by value and then strings, and the label of each string.

    All spellings of a number are one label.
    """
    spelled: dict[float, set[str]] = {}
    for text in distinct:
        if text in values:
            spelled.setdefault(values[text], set()).add(text)
    names: list[str] = []
    numbers: dict[str, int] = {}
    for number in sorted(spelled):
        numbers |= dict.fromkeys(spelled[number], len(names))
        names.append(class_name_of(number, spelled[number]))
    for text in sorted(text for text in distinct if text not in values):
        numbers[text] = len(names)
        names.append(text)
    return names, numbers


def columns_of_classes(columns: Mapping[str, Sequence[Cell]]) -> list[str]:
    """Return the columns whose cells are 1, 0, -1 or blank, if there are several and one of them varies."""
    found, is_varied = [], False
    for name, column in columns.items():
        cells = {str(cell).casefold() for cell in column}
        numbers = {TRUTHS.get(cell, number_of(cell)) for cell in cells if cell not in MISSING}
        if numbers and numbers <= {0, 1, -1}:
            found.append(name)
            is_varied |= 1 in numbers and len(cells) > 1
    return found if is_varied and len(found) > 1 else []

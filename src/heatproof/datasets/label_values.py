"""Convert the cells of a table to labels of images: a class, several labels, or a number."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from heatproof.core.tasks import Task
from heatproof.datasets.label_cells import (
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
from heatproof.datasets.label_file import Cell
from heatproof.errors import HeatproofError

# Spellings of an unknown value; -1 is handled as a number.
MISSING_CELLS = ("", "nan", "na", "n/a", "none", "null", "<na>", "#n/a", "nat", "?")
# Those that are also names: the country code of Namibia, and surnames.
AMBIGUOUS_MISSING_CELLS = ("na", "none", "null")
# Spellings of "none of the labels".
NO_LABEL_CELLS = (
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
BOOLEAN_CELLS = {"true": 1, "yes": 1, "false": 0, "no": 0}
# Separators of labels in a cell, the least ambiguous first.
SEPARATORS = ("|", ";", ",", " ")
# More different numbers than this are rarely class numbers.
MANY_NUMBERS = 20
LISTED_NAMES = 4


class AmbiguousTableError(HeatproofError):
    """A table can be read in several ways; the message names the option that selects one.

    Attributes
    ----------
    suggested_options
        Options that resolve the ambiguity cautiously; empty if only the user can resolve it.
    """

    def __init__(self, sentence: str, suggested_options: Mapping[str, Any] | None = None) -> None:
        super().__init__(sentence)
        self.suggested_options = suggested_options or {}


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
    is_known
        (N,) bool: False for rows without a known label, which are left out.
    """

    task: Task
    class_names: list[str]
    values: np.ndarray
    is_known: np.ndarray


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

    def __init__(self, where: str, options: LabelOptions, numbers: Sequence[int] | None = None) -> None:
        if options.separator == "":
            raise HeatproofError("`separator` is empty: give what stands between labels in a cell, such as '|'.")
        self._where, self._options, self._numbers = where, options, numbers
        self._unknown, self._none = CellSet(options.unknown), CellSet(options.none)

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
            return self._from_class_columns(
                names, [self._texts(name, column) for name, column in zip(names, columns, strict=True)]
            )
        name, column = names[0], columns[0]
        lists = self._lists(name, column)
        if lists is not None:
            self._check_multilabel(f"cells of the column {name!r} are lists")
            return self._from_label_lists(name, lists)
        cells = self._texts(name, column)
        separator = self._options.separator
        if separator is not None:
            self._check_multilabel(f"`separator` says that cells of the column {name!r} have several labels")
        if self._options.task in (None, "multilabel") and not any(
            len(split_cell(cell, separator)) > 1 for cell in cells
        ):
            self.check_separator(name, cells)
        if separator is not None or self._options.task == "multilabel":
            return self._from_label_lists(name, [split_cell(cell, separator) for cell in cells])
        return (
            self._from_numbers(name, cells) if self._options.task == "regression" else self._from_classes(name, cells)
        )

    def _row(self, row: int) -> str:
        return f"Row {row + 2 if self._numbers is None else self._numbers[row]} of {self._where}"

    def _texts(self, name: str, column: Sequence[Cell]) -> list[str]:
        for row, cell in enumerate(column):
            if not isinstance(cell, str):
                raise HeatproofError(
                    f"{self._row(row)} has a list in the column {name!r}, and other rows have none: write lists in "
                    "all rows."
                )
            if is_mapping(cell):
                raise HeatproofError(
                    f"{self._row(row)} has a mapping in the column {name!r}: write a text, a number, or a list."
                )
        return [str(cell) for cell in column]

    def _lists(self, name: str, column: Sequence[Cell]) -> list[list[str]] | None:
        """Return the lists of a column of lists, which can be written as strings; None for another column."""
        filled = [cell for cell in column if isinstance(cell, list) or (cell and not self._is_special(cell))]
        if not filled or not all(isinstance(cell, list) or (cell[0] == "[" and cell[-1] == "]") for cell in filled):
            return None
        lists = [parse_list(cell) for cell in column]
        for row, cell in enumerate(column):
            within = [part.strip() for part in cell] if isinstance(cell, list) else [cell[1:-1].strip()]
            if any(part.startswith("[") or is_mapping(part) for part in within):
                raise HeatproofError(
                    f"{self._row(row)} has a list of lists or of mappings in the column {name!r}: write a list of "
                    "texts or numbers, or name another column as columns: {label: …}."
                )
        return lists

    def _is_special(self, cell: str) -> bool:
        return cell in self._unknown or cell in self._none

    def _check_multilabel(self, why: str) -> None:
        if self._options.task not in (None, "multilabel"):
            raise HeatproofError(
                f"The task is {self._options.task}, and {why}: set task: multilabel, or name another column."
            )

    # ---- ambiguities -------------------------------------------------------------------------------------------------

    def _check_missing(self, name: str, cells: Sequence[str], places: Sequence[int] | None = None) -> None:
        """Raise `AmbiguousTableError` for blanks, nan, -1 and the like whose meaning the config does not define.

        With several labels, `cells` are single labels and `places` their rows.
        """
        are_label_lists = places is not None
        counts = Counter(cells)
        is_unknown_closed = self._options.unknown is not None and not as_list(self._options.unknown)
        numbers = {number for cell in counts if (number := number_of(cell)) is not None}
        is_minus_one_special = len(numbers) > 1 and {number for number in numbers if number < 0} == {-1}
        undefined = [
            cell
            for cell in counts
            if not (cell in self._unknown or (are_label_lists and cell in self._none) or (is_unknown_closed and cell))
            and (cell.casefold() in MISSING_CELLS or (is_minus_one_special and number_of(cell) == -1))
        ]
        if not undefined:
            return
        suggested = [BLANK if not cell else -1 if number_of(cell) == -1 else cell for cell in undefined]
        suggested_text = ", ".join(map(str, dict.fromkeys(suggested)))
        count = sum(counts[cell] for cell in undefined)
        finding = f"has the label {undefined[0]!r}" if undefined[0] else "has no label"
        count_text = f" ({count} rows have such)" if count > 1 else ""
        alternative = ""
        if are_label_lists:
            alternative = f", or none: [{suggested_text}] if it means that the image has no label"
        elif (
            self._options.unknown is None
            and undefined[0]
            and (self._options.task != "regression" or number_of(undefined[0]) is not None)
        ):
            alternative = f", or unknown: [] if it is a {'number' if self._options.task == 'regression' else 'class'}"
        if not are_label_lists and any(undefined) and (self._options.unknown is not None or not all(undefined)):
            # A blank is always unknown, but "NA" can be the code of a country.
            names = [cell for cell in undefined if cell.casefold() in AMBIGUOUS_MISSING_CELLS]
            alternative = f", or call {names[0]} something else in the table if it is a class" if names else ""
        first = list(cells).index(undefined[0])
        raise AmbiguousTableError(
            f"{self._row(first if places is None else places[first])} {finding} in the column {name!r}{count_text}: "
            f"fill it in, or set unknown: [{suggested_text}] to leave such images out{alternative}.",
            # If the only other number is 1, -1 is the second of two classes.
            {"unknown": [] if numbers == {-1, 1} else [*as_list(self._options.unknown), *dict.fromkeys(suggested)]},
        )

    def check_separator(self, name: str, cells: Sequence[str]) -> None:
        """Raise `AmbiguousTableError` if cells may contain several labels, because their parts recur in other cells."""
        distinct = {cell for cell in cells if cell and not self._is_special(cell)}
        are_numbers = all(number_of(cell) is not None for cell in distinct)
        for separator in SEPARATORS:
            split_cells = {cell: split_cell(cell, separator) for cell in distinct}
            separable = {cell for cell, parts in split_cells.items() if len(parts) > 1}
            # A comma in every number is a decimal comma; a comma in some of them may separate two numbers.
            if not separable or (are_numbers and len(separable) == len(distinct)):
                continue
            parts = {part for labels in split_cells.values() for part in labels}
            is_certain = len(parts) < len(distinct) or all(number_of(part) is not None for part in parts)
            is_reused = (
                _are_sets(split_cells)
                if separator == " "
                else any(not distinct.isdisjoint(split_cells[cell]) for cell in separable)
            )
            if separator == "|" or is_certain or is_reused:
                example = min(separable, key=len)
                named = " and ".join(map(repr, split_cells[example][:LISTED_NAMES]))
                labels = f"{len(split_cells[example])} labels, {named}"
                alternative = "or task: multiclass if it is one class"
                if self._options.task:
                    alternative = "or name what stands between labels"
                elif are_numbers:
                    alternative = "or task: regression, or multiclass, if it is one number"
                is_clear = is_certain or separator != " " or self._options.task is not None
                raise AmbiguousTableError(
                    f"The column {name!r} of {self._where} has cells such as {example!r}: set separator: {separator!r} "
                    f"if that is {labels}, {alternative}.",
                    {"separator": separator} if is_clear and not are_numbers else None,
                )

    def _check_task(self, name: str, values: Mapping[str, float], rows: int) -> None:
        """Raise `AmbiguousTableError` if numbers may be measurements or classes."""
        distinct = sorted(set(values.values()))
        is_whole = all(float(number).is_integer() for number in distinct)
        is_consecutive = is_whole and distinct[0] in (0, 1) and distinct[-1] - distinct[0] == len(distinct) - 1
        is_rarely_repeated = 2 * len(distinct) > rows
        if is_whole and not (
            (len(distinct) > MANY_NUMBERS and (is_rarely_repeated or not is_consecutive))
            or (is_rarely_repeated and not is_consecutive and len(distinct) > 2)
        ):
            return
        separator_hint = (
            ", or separator: ',' if cells have several labels" if any("," in text for text in values) else ""
        )
        raise AmbiguousTableError(
            f"The column {name!r} of {self._where} has {len(distinct):,} different numbers, from {distinct[0]:g} to "
            f"{distinct[-1]:g}: set task: regression if they are measured, or task: multiclass if each is a class"
            f"{separator_hint}."
        )

    def _check_lookalikes(self, name: str, distinct: set[str], task: str) -> None:
        """Raise `AmbiguousTableError` if classes look alike, unless the config sets the task; `task` is the remedy."""
        spelled: dict[str, str] = {}
        is_open = self._options.task is None or (self._options.task == "binary" and len(distinct) > 2)
        for cell in sorted(distinct) if is_open else ():
            first = spelled.setdefault(normalised_text(cell), cell)
            if first != cell and (number_of(first) is None or number_of(cell) is None):
                raise AmbiguousTableError(
                    f"The column {name!r} of {self._where} has {first!a} and {cell!a}, which look alike: write "
                    f"both as one if they are one class, or set task: {task} if they are two."
                )

    def _check_near_numbers(self, name: str, distinct: Sequence[str], values: Mapping[str, float]) -> None:
        """Raise `AmbiguousTableError` if all classes that are not numbers are nearly numbers, such as "5 %"."""
        not_numbers = sorted(text for text in distinct if text not in values)
        if self._options.task is None and not_numbers and all(map(NEARLY_NUMBER.fullmatch, not_numbers)):
            raise AmbiguousTableError(
                f"The column {name!r} of {self._where} has {not_numbers[0]!r}, which is nearly a number: write only "
                "digits and a decimal point, or set task: multiclass if each is a class."
            )

    def _check_label_lists(self, name: str, rows: Sequence[Sequence[str]]) -> None:
        """Check that lists contain names of labels, and not a 1 or 0 for each label, or measurements."""
        numbers = [[number_of(part) for part in row] for row in rows if any(row)]
        values = [number for row in numbers for number in row if number is not None]
        if not numbers or len(values) < sum(map(len, numbers)):
            return
        is_coded = len(set(map(len, numbers))) == 1 and len(numbers[0]) > 1 and set(values) <= {-1, 0, 1}
        is_measured = any(not float(number).is_integer() for number in values)
        if is_coded or is_measured or any(len(set(row)) < len(row) for row in numbers):
            example = ", ".join(next(filter(any, rows))[:LISTED_NAMES])
            raise HeatproofError(
                f"Cells of the column {name!r} of {self._where} are lists of numbers that name no labels, such as "
                f"{example}: write one column for each label, of 1 and 0, and name them as columns: {{label: [first, "
                "second, …]}, or name another column."
            )

    # ---- labels ------------------------------------------------------------------------------------------------------

    def _from_classes(self, name: str, cells: Sequence[str]) -> Labels:
        self._check_missing(name, cells)
        known_rows = self._known_rows(cells)
        distinct = {cell for cell, is_known in zip(cells, known_rows, strict=True) if is_known}
        self._check_any_known(known_rows)
        values = self._values(name, distinct)
        self._check_lookalikes(name, distinct, "multiclass")
        self._check_near_numbers(name, list(distinct), values)
        if values and len(values) == len(distinct) and self._options.task is None:
            self._check_task(name, values, int(known_rows.sum()))
        names, numbers = _numbered(distinct, values)
        self._check_class_count(names)
        labels = np.array([numbers.get(cell, -1) for cell in cells], dtype=np.int64)
        return Labels(self._options.task or "multiclass", names, labels, known_rows)

    def _known_rows(self, cells: Sequence[str]) -> np.ndarray:
        is_known = {cell: cell not in self._unknown for cell in set(cells)}
        return np.array([is_known[cell] for cell in cells], dtype=bool)

    def _check_any_known(self, known_rows: np.ndarray) -> None:
        if not known_rows.any():
            raise HeatproofError(
                f"{self._where} has no row whose label is known: correct `unknown`, or fill labels in."
            )

    def _check_class_count(self, names: Sequence[str]) -> None:
        if len(names) < 2:
            raise HeatproofError(f"{self._where} has {len(names)} labels: a classifier needs two at least.")
        if self._options.task == "binary" and len(names) > 2:
            raise HeatproofError(
                f"The task is binary, and {self._where} has {len(names)} classes, {', '.join(names[:LISTED_NAMES])}"
                f"{', …' if len(names) > LISTED_NAMES else ''}: set task: multiclass."
            )

    def _from_numbers(self, name: str, cells: Sequence[str]) -> Labels:
        self._check_missing(name, cells)
        known_rows = self._known_rows(cells)
        self._check_any_known(known_rows)
        values = self._values(name, {cell for cell, is_known in zip(cells, known_rows, strict=True) if is_known})
        for row in np.flatnonzero(known_rows).tolist():
            if cells[row] not in values:
                raise HeatproofError(
                    f"{self._row(row)} has {cells[row]!r} in the column {name!r}, and the task is regression: "
                    f"write a number, or set unknown: [{cells[row]}] to leave such images out."
                )
        numbers = np.array([values.get(cell, np.nan) for cell in cells], dtype=np.float64)
        if len(np.unique(numbers[known_rows])) < 2:
            raise HeatproofError(
                f"The column {name!r} of {self._where} has one number in all rows: a regression needs different ones."
            )
        return Labels("regression", [name], numbers, known_rows)

    def _values(self, name: str, distinct: Iterable[str]) -> dict[str, int | float]:
        """Return the strings that are numbers, and these numbers.

        Raises
        ------
        HeatproofError
            If a comma may separate thousands or decimals, and all other strings are numbers.
        """
        texts = list(distinct)
        values = {text: number for text in texts if (number := number_of(text)) is not None}
        ambiguous = next((text for text in sorted(texts) if THOUSANDS.fullmatch(text)), None)
        if ambiguous is not None and all(text in values or THOUSANDS.fullmatch(text) for text in texts):
            raise HeatproofError(
                f"The column {name!r} of {self._where} has {ambiguous!r}, which is a thousand or one: write such "
                f"numbers as {ambiguous.replace(',', '')} or {ambiguous.replace(',', '.')}."
            )
        return values

    def _from_label_lists(self, name: str, rows: Sequence[Sequence[str]]) -> Labels:
        """Return the labels of rows with several labels each."""
        # An empty list means that there is no label; an empty cell can mean that it is unknown.
        parts = [(part, number) for number, row in enumerate(rows) for part in row]
        self._check_missing(name, [part for part, _ in parts], [number for _, number in parts])
        labels_of_rows = [[part for part in row if part not in self._none] for row in rows]
        self._check_label_lists(name, labels_of_rows)
        is_complete = np.array([not any(part in self._unknown for part in row) for row in labels_of_rows], dtype=bool)
        labels_of_rows = [[part for part in row if part not in self._unknown] for row in labels_of_rows]
        # In a row with an unknown label, the other labels are known.
        known_rows = is_complete | np.array([bool(row) for row in labels_of_rows])
        self._check_any_known(known_rows)
        distinct = {part for row in labels_of_rows for part in row}
        self._check_lookalikes(name, distinct, "multilabel")
        if self._options.none is None:
            joint_labels = {part for row in labels_of_rows if len(row) > 1 for part in row}
            no_label_names = sorted(part for part in distinct - joint_labels if part.casefold() in NO_LABEL_CELLS)
            if no_label_names:
                raise AmbiguousTableError(
                    f"The column {name!r} of {self._where} has {no_label_names[0]!r}, never with another label: set "
                    f"none: [{no_label_names[0]}] if it means that an image has none of the labels, or none: [] if it "
                    "is a label.",
                    {"none": no_label_names},
                )
        names, numbers = _numbered(distinct, self._values(name, distinct))
        if not names:
            raise HeatproofError(f"The column {name!r} of {self._where} has no label: fill it in.")
        labels = np.zeros((len(rows), len(names)), dtype=np.int8)
        labels[~is_complete] = -1
        for row in np.flatnonzero(known_rows).tolist():
            labels[row, [numbers[part] for part in labels_of_rows[row]]] = 1
        return Labels("multilabel", names, labels, known_rows)

    def _from_class_columns(self, names: Sequence[str], columns: Sequence[Sequence[str]]) -> Labels:
        """Return the labels of a table with one column for each class."""
        task = self._options.task
        if self._options.separator is not None or task == "regression":
            option = "separator" if self._options.separator is not None else "task: regression"
            raise HeatproofError(
                f"`columns` names {len(names)} columns of labels, one a class, and {option} is of one column: leave "
                "one of the two out."
            )
        codes = np.array([self._codes(column) for column in columns], dtype=np.int8).reshape(len(names), -1).T
        ones = (codes == 1).sum(axis=1)
        if task is None:
            suggested_task = "multiclass" if (ones == 1).all() else "multilabel"
            seen = (
                "all rows have exactly one 1"
                if suggested_task == "multiclass"
                else "some rows do not have exactly one 1"
            )
            raise AmbiguousTableError(
                f"`columns` names {len(names)} columns of labels of {self._where}: set task: multiclass if exactly one "
                f"of them is 1 in each row, or task: multilabel if several can be 1 ({seen}).",
                {"task": suggested_task},
            )
        self._check_codes(names, columns, codes)
        self._check_any_known(np.array((codes >= 0).any(axis=1)))
        if task == "multilabel":
            return Labels("multilabel", list(names), codes, np.array((codes >= 0).any(axis=1)))
        self._check_class_count(names)
        known_rows = np.array((ones == 1) | (codes >= 0).all(axis=1))
        for row in np.flatnonzero(known_rows & (ones != 1))[:1].tolist():
            raise HeatproofError(
                f"{self._row(row)} has {ones[row]} of the classes, and the task is {task}: exactly one of the "
                "columns must be 1; set task: multilabel if several can be 1."
            )
        return Labels(task, list(names), codes.argmax(axis=1).astype(np.int64), known_rows)

    def _codes(self, column: Sequence[str]) -> list[int]:
        """Return 1, 0, -1 for unknown, or `UNDEFINED_CODE` for a cell whose meaning the config must define."""
        coded = {cell: self._code(cell) for cell in set(column)}
        return [coded[cell] for cell in column]

    def _code(self, cell: str) -> int:
        if cell in self._unknown:
            return -1
        if cell in self._none:
            return 0
        number = number_of(cell)
        return int(number) if number in (0, 1) else BOOLEAN_CELLS.get(cell.casefold(), UNDEFINED_CODE)

    def _check_codes(self, names: Sequence[str], columns: Sequence[Sequence[str]], codes: np.ndarray) -> None:
        """Raise `AmbiguousTableError` if there are cells other than 1 and 0 without a defined meaning."""
        rows, places = (indices.tolist() for indices in np.nonzero(codes == UNDEFINED_CODE))
        if not rows:
            return
        undefined = list(dict.fromkeys(columns[column][row] for row, column in zip(rows, places, strict=True)))
        suggested: list[str | int] = [
            BLANK if not cell else -1 if number_of(cell) == -1 else cell for cell in undefined
        ]
        suggested_text = ", ".join(map(str, dict.fromkeys(suggested[:LISTED_NAMES])))
        # If the only other number is 1, -1 means absent, as in CelebA.
        option = "none" if suggested == [-1] and not (codes == 0).any() else "unknown"
        are_missing = all(cell.casefold() in MISSING_CELLS or number_of(cell) == -1 for cell in undefined)
        raise AmbiguousTableError(
            f"{self._row(rows[0])} has {repr(undefined[0]) if undefined[0] else 'an empty cell'} in the column "
            f"{names[places[0]]!r}, neither 1 nor 0 ({len(rows)} cells have such): "
            f"{'' if are_missing else 'write 1 or 0, or '}set unknown: "
            f"[{suggested_text}] if such a cell means that the label is unknown, or "
            f"none: [{suggested_text}] if it means that the image does not have the label.",
            {option: [*as_list(getattr(self._options, option)), *dict.fromkeys(suggested)]} if are_missing else None,
        )


UNDEFINED_CODE = -2


def _are_sets(parted: Mapping[str, Sequence[str]]) -> bool:
    """Return whether words look like labels: a cell has all words of another one, or the position of a word varies.

    Class names share words too, but always as the first or the last word, such as "golden retriever" and
    "curly coated retriever".
    """
    cells = [frozenset(parts) for parts in parted.values()]
    by_word: dict[str, set[frozenset[str]]] = {}
    places: dict[str, set[tuple[int, int]]] = {}
    for parts, cell in zip(parted.values(), cells, strict=True):
        for position, part in enumerate(parts):
            by_word.setdefault(part, set()).add(cell)
            places.setdefault(part, set()).add((position, len(parts) - position))
    varies = any(
        len({start for start, _ in positions}) > 1 and len({end for _, end in positions}) > 1
        for positions in places.values()
    )
    return varies or any(cell < superset for cell in cells for superset in by_word[min(cell)])


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
    names, is_varied = [], False
    for name, column in columns.items():
        cells = {str(cell).casefold() for cell in column}
        numbers = {BOOLEAN_CELLS.get(cell, number_of(cell)) for cell in cells if cell not in MISSING_CELLS}
        if numbers and numbers <= {0, 1, -1}:
            names.append(name)
            is_varied |= 1 in numbers and len(cells) > 1
    return names if is_varied and len(names) > 1 else []

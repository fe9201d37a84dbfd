"""Labels of a folder of image files from a table, with splits and groups if the table has columns for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from heatproof.core.registry import suggest_name
from heatproof.datasets.image_files import ENDINGS, image_files_below
from heatproof.datasets.label_cells import number_of, split_cell
from heatproof.datasets.label_file import Cell, RawTable, read_raw_table
from heatproof.datasets.label_paths import ImageFileIndex, match_image_files
from heatproof.datasets.label_values import (
    AmbiguousTableError,
    LabelOptions,
    LabelReader,
    Labels,
    Task,
    columns_of_classes,
)
from heatproof.datasets.lazy import FileList
from heatproof.errors import HeatproofError

# Default names of the columns. The first one that a table has is used; case is ignored.
COLUMNS = {
    "file": (
        *("file", "filename", "file_name", "image", "path", "file_path", "filepath", "image_path", "img_path"),
        *("image_name", "img_name", "image_file", "img", "image_index", "image_id", "imageid"),
    ),
    "label": ("label", "class", "class_name", "labels"),
    "split": ("split",),
    "group": ("group",),
}
# Names of columns of groups. Unlike those above, they are used only if the user names them in `group`.
GROUP_COLUMNS = (
    *("patient", "patient_id", "patientid", "subject", "subject_id", "lesion_id", "case_id", "participant_id"),
)
# Names of columns that define splits by codes of the dataset.
SPLIT_CODE_COLUMNS = (
    "partition",
    "subset",
    "set",
    "fold",
    "is_valid",
    "is_test",
    "phase",
    "usage",
    "evaluation_status",
)
# Largest number of rows without an image file for which the table is still read.
EXTRA_ROWS = 1000
# Largest mean number of rows per image file, if each row is one of its labels.
MAX_ROWS_PER_IMAGE = 100
SPLIT_ALIASES = {
    "train": "train",
    "training": "train",
    "val": "validation",
    "valid": "validation",
    "validation": "validation",
    "test": "evaluation",
    "testing": "evaluation",
    "evaluation": "evaluation",
}
# Number of columns that a message names.
LISTED_COLUMNS = 12


class LabelTable(NamedTuple):
    """The images of a table and their labels.

    Attributes
    ----------
    class_names
        Names of the labels, sorted, numbers by value; or in the order of their columns; for regression the column.
    parts
        Split to its images; only ``train`` if the table has no column of splits.
    task
        Task of the labels.
    notes
        Notes on how the table was read, one clause each.
    """

    class_names: list[str]
    parts: dict[str, FileList]
    task: Task = "multiclass"
    notes: tuple[str, ...] = ()


def read_label_table(
    root: Path,
    table: str,
    columns: Mapping[str, Any],
    options: LabelOptions | None = None,
    *,
    header: bool = True,
    encoding: str | None = None,
    endings: tuple[str, ...] = ENDINGS,
) -> LabelTable:
    """Read the labels of all image files in and below a folder.

    Parameters
    ----------
    root
        The folder. `heatproof.datasets.label_paths.ImageFileIndex` describes how the table can name the files.
    table
        Path from `root` of a file that `heatproof.datasets.label_file` reads.
    columns
        ``file``, ``label``, ``split`` or ``group`` to the name of its column, or to its number in a table without a
        header. Only names other than those in `COLUMNS` are required. ``label`` can be a list of columns, one per
        class.
    options
        The task of the labels, and the meaning of cells.
    header, encoding
        See `heatproof.datasets.label_file.read_raw_table`.
    endings
        Extensions of image files.

    Raises
    ------
    HeatproofError
        If the table lacks a column, an image file has no row or two, a row has no image file or an unknown split, a
        label is missing or has only one image, a group is in two splits; as
        `heatproof.datasets.label_values.AmbiguousTableError` if the table can be read in several ways.
    """
    path = root / Path(table).expanduser()
    images = {image.path: image for image in image_files_below(root, endings)}
    raw = read_raw_table(path, header=header, encoding=encoding)
    options = options or LabelOptions()
    is_list = isinstance(columns.get("label"), list | tuple)
    repeated = options.task == "multilabel" and not is_list
    row_limit = (MAX_ROWS_PER_IMAGE if repeated else 2) * len(images) + EXTRA_ROWS
    if raw.rows > row_limit:
        raise HeatproofError(
            f"{path} has more than {row_limit:,} rows, and there are {len(images):,} images in {root}: remove "
            "rows, or name another folder in `root`."
        )
    if not raw.rows:
        raise HeatproofError(f"{path} has no rows: add one for each image.")
    chosen = _choose_columns(path, raw, columns, ImageFileIndex(images), header)
    _check_encoding(path, raw, [name for column_names in chosen.values() for name in column_names])
    texts = {what: _texts(path, raw, names[0]) for what, names in chosen.items() if what != "label"}
    if "group" in texts:
        texts["group"] = _one_spelling(texts["group"])
    names = match_image_files(path, root, texts["file"], images, raw.first, repeated=repeated)
    cells = [raw.columns[_column_of(raw, name)] for name in chosen["label"]]
    numbers = list(range(raw.first, raw.first + len(names)))
    if len(set(names)) < len(names):
        if options.separator is None:
            LabelReader(str(path), options, numbers).check_separator(
                chosen["label"][0], [cell for cell in cells[0] if isinstance(cell, str)]
            )
        _check_confidence(path, raw, chosen)
        firsts, cells = _join_rows(path, names, cells[0], texts, options.separator)
        names, numbers = [names[row] for row in firsts], [numbers[row] for row in firsts]
        texts = {what: [column[row] for row in firsts] for what, column in texts.items()}
    labels = LabelReader(str(path), options, numbers).read(chosen["label"], cells, is_list=is_list)
    rows = np.flatnonzero(labels.is_known).tolist()
    parts = _divide(path, rows, texts, numbers)
    if list(parts) == ["train"] and labels.task in ("binary", "multiclass"):
        _check_single_images(path, labels.class_names, labels.values[rows])

    def file_list(selected: list[int]) -> FileList:
        return FileList(
            [names[row] for row in selected],
            labels.values[selected],
            [root / names[row] for row in selected],
            np.array([images[names[row]][1:] for row in selected], dtype=np.uint64),
            [texts["group"][row] for row in selected] if "group" in texts else None,
        )

    file_lists = {split: file_list(selected) for split, selected in parts.items()}
    return LabelTable(labels.class_names, file_lists, labels.task, tuple(_notes(path, raw, chosen, labels)))


def _join_rows(
    path: Path, names: Sequence[str], column: Sequence[Cell], texts: Mapping[str, list[str]], separator: str | None
) -> tuple[list[int], list[list[Cell]]]:
    """Return the first row of each image file, and a column with the list of the labels of all its rows."""
    rows: dict[str, list[int]] = {}
    for row, name in enumerate(names):
        rows.setdefault(name, []).append(row)
    for what in ("split", "group"):
        for name, file_rows in rows.items():
            if len({texts[what][row] for row in file_rows if what in texts}) > 1:
                raise HeatproofError(f"{path} has the image {name} in two {what}s: leave one.")
    cells = [cell if isinstance(cell, list) else split_cell(cell, separator) for cell in column]
    joined: list[Cell] = [
        list(dict.fromkeys(part for row in file_rows for part in cells[row])) for file_rows in rows.values()
    ]
    return [file_rows[0] for file_rows in rows.values()], [joined]


def _check_confidence(path: Path, raw: RawTable, chosen: Mapping[str, list[str]]) -> None:
    """Check that no row says that an image does not have its label, as rows of Open Images can."""
    taken = {name for names in chosen.values() for name in names}
    for name, column in zip(raw.names, raw.columns, strict=True):
        if normalised_column(name) == "confidence" and name not in taken:
            numbers = [number_of(cell) if isinstance(cell, str) else None for cell in column]
            if set(numbers) == {0, 1}:
                raise HeatproofError(
                    f"Row {raw.first + numbers.index(0)} of {path} has 0 in the column {name!r}, which says that the "
                    "image does not have this label: remove such rows, or the column if it means something else."
                )


def _column_of(raw: RawTable, name: str) -> int:
    return raw.names.index(name)


def _texts(path: Path, raw: RawTable, name: str) -> list[str]:
    column = raw.columns[_column_of(raw, name)]
    if not all(isinstance(cell, str) for cell in column):
        raise HeatproofError(f"The column {name!r} of {path} has lists: a file, a split or a group is one text.")
    return [str(cell) for cell in column]


def _one_spelling(groups: Sequence[str]) -> list[str]:
    """Return groups with one spelling of each number, because a patient can be 7 in one row and 7.0 in another."""
    spelled: dict[int | float, str] = {}
    numbers = {group: number_of(group) for group in groups}
    return [group if (number := numbers[group]) is None else spelled.setdefault(number, group) for group in groups]


def normalised_column(name: str) -> str:
    """Return the name of a column without differences of case, blanks, hyphens and underscores."""
    return "_".join(name.casefold().replace("-", " ").replace("_", " ").split())


def _join_names(names: Iterable[str]) -> str:
    several = list(names)
    return (
        ", ".join(several[:LISTED_COLUMNS])
        + (f" and {len(several) - LISTED_COLUMNS} more" if len(several) > LISTED_COLUMNS else "")
        or "none"
    )


def _choose_columns(
    path: Path, raw: RawTable, columns: Mapping[str, Any], images: ImageFileIndex, header: bool
) -> dict[str, list[str]]:
    """Return the names of the columns of files and labels, and of splits and groups if the table has them."""
    if header:
        _check_header(path, raw, images)
    chosen: dict[str, list[str]] = {}
    for what, option_value in columns.items():
        if what not in COLUMNS:
            raise HeatproofError(f"`columns` has the unknown key {what!r}: {suggest_name(what, COLUMNS)}")
        if isinstance(option_value, list | tuple) and (
            what != "label" or len(set(map(str, option_value))) < max(len(option_value), 2)
        ):
            raise HeatproofError(
                f"`columns` has a list for `{what}`: name one column, or for `label` two columns or more, each once, "
                "one a class."
            )
        column_names = option_value if isinstance(option_value, list | tuple) else [option_value]
        chosen[what] = [_find_column(path, raw, what, str(alias), header) for alias in column_names]
    for what, defaults in COLUMNS.items():
        if what not in chosen and header:
            names_of_alias = next(
                filter(None, ([name for name in raw.names if normalised_column(name) == alias] for alias in defaults)),
                [],
            )
            if len(set(names_of_alias)) > 1:
                raise AmbiguousTableError(
                    f"{path} has the columns {' and '.join(names_of_alias)}: name the right one as "
                    f"columns: {{{what}: …}}."
                )
            chosen |= {what: names_of_alias[:1]} if names_of_alias else {}
    if "file" not in chosen:
        _raise_without_files(path, raw, images)
    if "label" not in chosen:
        chosen["label"] = [_find_labels(path, raw, chosen)]
    used_for: dict[str, str] = {}
    for what, names in chosen.items():
        for name in names:
            if raw.names.count(name) > 1:
                raise HeatproofError(
                    f"{path} has {raw.names.count(name)} columns of the name {name!r}, and `{what}` is one: rename or "
                    "remove the others."
                )
            if used_for.setdefault(name, what) != what:
                raise HeatproofError(
                    f"`columns` has the column {name!r} of {path} for `{used_for[name]}` and for `{what}`: name "
                    "another for one of them."
                )
    return chosen


def _find_column(path: Path, raw: RawTable, what: str, name_in_config: str, header: bool) -> str:
    """Return the column that the config names; differences of case and the like are ignored."""
    if name_in_config in raw.names:
        return name_in_config
    alike = [name for name in raw.names if normalised_column(name) == normalised_column(name_in_config)]
    if len(alike) == 1:
        return alike[0]
    number = "" if header else " (header: false, so that columns are numbers, counted from 1)"
    raise HeatproofError(
        f"{path} has no column {name_in_config!r} for `{what}`; its columns are {_join_names(raw.names)}{number}: "
        "correct `columns` or the table."
    )


def _check_header(path: Path, raw: RawTable, images: ImageFileIndex) -> None:
    """Raise `AmbiguousTableError` if the first line of the table names an image file and so may not be a header."""
    places = [number for number, name in enumerate(raw.names) if images.is_named_by([name])]
    if raw.first == 1 or not places:
        return
    complete_names = [name for name in raw.names if "." in name and images.is_named_by([name])]
    if not complete_names and not any(
        images.is_named_by([raw.names[number], *raw.columns[number]]) for number in places
    ):
        return
    raise AmbiguousTableError(
        f"The first line of {path} names the image {raw.names[places[0]]}, so it is not a header: set header: "
        f"false, and name columns by their numbers, such as columns: {{file: {places[0] + 1}, label: …}}, or add a "
        "first line with names of columns.",
        {"header": False},
    )


def _raise_without_files(path: Path, raw: RawTable, images: ImageFileIndex) -> None:
    """Raise `AmbiguousTableError` because no column of files is known; a single column of file names resolves it."""
    columns = [name for name, column in zip(raw.names, raw.columns, strict=True) if images.is_named_by(column)]
    names = f"; the names of the images are in {_join_names(columns)}"
    hint = names if columns else ", or add a column with the names of the images"
    raise AmbiguousTableError(
        f"{path} has no column {' or '.join(COLUMNS['file'][:5])}; its columns are {_join_names(raw.names)}: name the "
        f"right one as columns: {{file: …}}{hint}.",
        {"columns": {"file": columns[0]}} if len(columns) == 1 else None,
    )


def _find_labels(path: Path, raw: RawTable, chosen: Mapping[str, list[str]]) -> str:
    """Return the only remaining column; raise `AmbiguousTableError` if there are several."""
    used = {name for names in chosen.values() for name in names}
    columns = {name: column for name, column in zip(raw.names, raw.columns, strict=True) if name not in used}
    remaining = [name for name, column in columns.items() if any(column)]
    if not remaining:
        raise HeatproofError(
            f"{path} has {'one column' if len(raw.names) == 1 else 'the columns'}, {_join_names(raw.names)}, and no "
            "column of labels: add one, or name another table in `labels`."
        )
    is_split = normalised_column(remaining[0]) in SPLIT_CODE_COLUMNS or all(
        str(cell).casefold() in SPLIT_ALIASES for cell in columns[remaining[0]]
    )
    if len(remaining) == 1 and is_split:
        raise AmbiguousTableError(
            f"{path} has the columns {_join_names(raw.names)}, and {remaining[0]} looks like a column of splits: set "
            f"columns: {{label: {remaining[0]}}} if it is the label, or add a column of labels, or name another table "
            "in `labels`."
        )
    if len(remaining) == 1 and normalised_column(remaining[0]) not in GROUP_COLUMNS:
        return remaining[0]
    classes = columns_of_classes({name: columns[name] for name in remaining})
    if classes:
        raise AmbiguousTableError(
            f"{path} has no column {' or '.join(COLUMNS['label'])}, and {len(classes)} columns of 1 and 0: name those "
            f"that are classes as columns: {{label: [{', '.join(classes)}]}} and the task, or the "
            f"one that is the label as columns: {{label: …}}; its columns are {_join_names(raw.names)}.",
            {"columns": {"label": classes}},
        )
    raise AmbiguousTableError(
        f"{path} has no column {' or '.join(COLUMNS['label'])}; its columns are {_join_names(raw.names)}: name the "
        "right one as columns: {label: …}, or several, one a class, as columns: {label: [first, second, …]}."
    )


def _check_encoding(path: Path, raw: RawTable, names: Sequence[str]) -> None:
    """Raise `AmbiguousTableError` if the encoding is guessed and affects a label or the name of a file."""
    if not raw.is_encoding_guessed:
        return
    for name in names:
        for number, cell in enumerate(raw.columns[_column_of(raw, name)], start=raw.first):
            text = cell if isinstance(cell, str) else " ".join(cell)
            for candidate, where in ((name, "its header"), (text, f"row {number}")):
                if not candidate.isascii():
                    raise AmbiguousTableError(
                        f"{path} is not text in UTF-8; read as Excel in western Europe saves it, {where} has "
                        f"{candidate!r}: set encoding: cp1252 if that is right, or name the encoding in which it was "
                        "saved, or save it again as CSV in UTF-8.",
                        {"encoding": "cp1252"} if "\ufffd" not in candidate else None,
                    )


def _divide(
    path: Path, rows: Sequence[int], texts: Mapping[str, list[str]], numbers: Sequence[int]
) -> dict[str, list[int]]:
    """Return split to rows; all rows are in ``train`` if the table has no splits."""
    parts: dict[str, list[int]] = {"train": []}
    split_of: dict[str, str] = {}
    for row in rows:
        named = texts["split"][row] if "split" in texts else "train"
        split = SPLIT_ALIASES.get(named.casefold())
        if split is None:
            raise HeatproofError(
                f"Row {numbers[row]} of {path} has the split {named!r}: it may be train, validation (val) or test."
            )
        if "group" in texts and split_of.setdefault(texts["group"][row], split) != split:
            group = texts["group"][row]
            raise HeatproofError(
                f"The group {group!r} of {path} is in the splits {split_of[group]} and {split}: put it into one, or "
                "leave the column of splits out, and splits are drawn that respect groups."
            )
        parts.setdefault(split, []).append(row)
    if not parts["train"] and set(parts) != {"train", "evaluation"}:
        raise HeatproofError(f"{path} has no rows of the split train: add some, or leave the column of splits out.")
    if "evaluation" not in parts and "validation" in parts:
        # As with folders, a single held-out split is the evaluation split.
        parts["evaluation"] = parts.pop("validation")
    return parts


def _check_single_images(path: Path, names: Sequence[str], values: np.ndarray) -> None:
    """Check that no label has a single image, which cannot be divided, unless all labels have a single image."""
    times = Counter(values.tolist())
    single = [label for label, count in times.items() if count == 1]
    if single and len(single) < len(times):
        raise HeatproofError(
            f"{len(single)} label(s) of {path} have one image, the first {names[single[0]]!r}, which cannot be both "
            "trained on and scored: add images of them, remove their rows, or correct a misspelt label."
        )


def _notes(path: Path, raw: RawTable, chosen: Mapping[str, list[str]], labels: Labels) -> Iterable[str]:
    """Yield notes on how the table was read, one clause each."""
    kinds = {
        "multilabel": f"{len(labels.class_names)} labels, several an image",
        "regression": "numbers",
        "binary": "two classes",
        "multiclass": f"{len(labels.class_names)} classes",
    }
    columns = "; ".join(f"{what} {_join_names(names)}" for what, names in chosen.items())
    yield f"{path.name} gives {kinds[labels.task]}, by its columns {columns}"
    left_out = int((~labels.is_known).sum())
    if left_out:
        yield f"{left_out:,} of {len(labels.is_known):,} images are left out, because no label is known"
    if labels.task == "multilabel":
        values = labels.values[labels.is_known]
        unknown, unlabelled = (values < 0).mean(), (values != 1).all(axis=1).sum()
        if unknown:
            yield f"{100 * unknown:.2g} % of labels are unknown"
        if unlabelled:
            yield f"{unlabelled:,} of {len(values):,} images have no label"
    if "group" not in chosen:
        for name in raw.names:
            if normalised_column(name) in GROUP_COLUMNS and name not in chosen["label"]:
                yield f"columns: {{group: {name}}} would keep what has one {name} in one split"

"""The result of `heatproof.choose`: the methods that cannot be distinguished from the best, with output and storage."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from heatproof.core.from_json import NO_OTHER_FIELDS, as_type
from heatproof.core.registry import join_names
from heatproof.errors import HeatproofError
from heatproof.report.results import render
from heatproof.stats.verdict import FOUND, LIMITS_OF_DELETION, Verdict
from heatproof.store.reading import MOST_JSON_BYTES, one_sentence_errors, parse_json, read_bytes, user_path
from heatproof.store.writing import one_sentence_write_errors, write_table, write_text

DELETION_METRICS = ("idsds", "sds")
# Types of the table's columns, except those of the measures.
COLUMN_TYPES = {
    "method": "object",
    "in_set": "boolean",
    "passes": "Int64",
    "seconds": "float64",
    "options": "object",
    "reason": "object",
}
# Types of values in files.
NUMBERS = (float, int)
VALUE_TYPES = {"object": (str,), "boolean": (bool,), "Int64": (int,)}
# Columns of the table of labels.
BY_LABEL = ("label", "images", "methods", "verdict")
Cell = str | bool | int | float


@dataclass(frozen=True, eq=False)
class Choice:
    """The methods that cannot be distinguished from the best one, on one network and its images.

    Attributes
    ----------
    table
        One row for each method that was scored: ``method``, ``options``, ``in_set`` (missing if a measure has too few
        images), a column of scores for each measure with the ``low`` and ``high`` ends of their intervals, ``passes``,
        ``seconds`` for one image, and ``reason`` if a method is not a contender or not applicable. The best come first.
    found
        The verdict and its sentence, by the rule of the workflow (`heatproof.stats.verdict.judge`).
    left_out
        Options that were tried on the first half of the images and scored lower than others of the same explainer.
    measures
        How methods are scored: all options of `heatproof.evaluate`. For deletions of single patches, the ``metric`` is
        ``idsds`` if the options are those of the network's finetuning, otherwise ``sds``.
    words
        A description of each measure.
    images
        The number of images that selected the options, and the number of images that are reported on.
    planned
        How many images it takes to distinguish this number of methods, as a sentence.
    level
        The probability with which all methods that are best by a measure are in its set.
    check_passes
        Images that went through the network to check it and to predict classes, which no ``passes`` count.
    by_label
        If images can have several labels, one row for each label: ``label``, ``images`` with the label that are
        reported on, ``methods`` that cannot be distinguished from the best on these, and the ``verdict``, which is
        ``too few images`` for fewer than 16. Otherwise None.

    Examples
    --------
    >>> import heatproof
    >>> choice = heatproof.choose(model, images, labels)  # doctest: +SKIP
    >>> choice.methods  # doctest: +SKIP
    ['grad_cam', 'hires_cam']
    >>> choice.save("choice.html")  # doctest: +SKIP
    """

    table: pd.DataFrame
    found: Verdict
    left_out: Sequence[str]
    measures: Mapping[str, Mapping[str, Any]]
    words: Mapping[str, str]
    images: tuple[int, int]
    planned: str
    level: float
    check_passes: int = 0
    by_label: pd.DataFrame | None = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Choice) and self._text() == other._text()

    def __hash__(self) -> int:
        return hash(self._text())

    @property
    def agreement(self) -> float:
        """Spearman correlation of the orders by two measures, averaged over pairs of measures."""
        return self.found.agreement

    @property
    def verdict(self) -> str:
        """The verdict, in the words of ``verdict.csv``."""
        return self.found.verdict

    @property
    def sentence(self) -> str:
        """The conclusion in one sentence."""
        return self.found.sentence

    @property
    def methods(self) -> list[str]:
        """Methods that at least one measure cannot distinguish from the best, best first."""
        return self.table.loc[self.table["in_set"].fillna(False).astype(bool), "method"].tolist()

    @property
    def sets(self) -> dict[str, list[str]]:
        """Mapping from measures to the methods that they cannot distinguish from the best, best first.

        A set is empty if the measure has too few images.
        """
        return {name: self.found.measures[words].best for name, words in self.words.items()}

    @property
    def best(self) -> str | None:
        """The method that is the best by every measure; None if that is not known."""
        return self.methods[0] if self.verdict == FOUND and len(self.methods) == 1 else None

    @property
    def in_domain(self) -> bool:
        """Whether the first measure deletes the same patches that the network was finetuned on."""
        return next(iter(self.measures.values()))["metric"] == "idsds"

    @property
    def advice(self) -> str:
        """Which of several best methods takes the fewest network passes; empty if one method or none is found.

        Unlike seconds, passes are the same in every run. Of methods with equal passes, the first by name is taken.
        """
        if self.verdict != FOUND or self.best:
            return ""
        inside = self.table[self.table["method"].isin(self.methods)]
        cheapest = inside.sort_values(["passes", "method"]).iloc[0]
        passes = int(cheapest["passes"])
        return f"Among the best, {cheapest['method']} takes the fewest network passes, {passes} per image."

    def __str__(self) -> str:
        displayed = self._display_table()
        scored = displayed[displayed["passes"] != ""].drop(columns="reason")
        reasons = [
            f"{name}: {reason}."
            for name, reason in zip(displayed["method"], displayed["reason"], strict=True)
            if reason
        ]
        parts = [f"{self.sentence} {self.advice}".strip(), scored.to_string(index=False), "\n".join(reasons)]
        return "\n\n".join(filter(None, [*parts, self.label_summary, self.how]))

    @property
    def label_summary(self) -> str:
        """The best methods for each label, in one sentence; empty if an image has one class."""
        if self.by_label is None:
            return ""
        groups: dict[str, list[str]] = {}
        for row in self.by_label.to_dict("records"):
            groups.setdefault(row["methods"] or row["verdict"], []).append(f"{row['label']} ({row['images']})")
        descriptions = "; ".join(f"{methods}: {', '.join(labels)}" for methods, labels in groups.items())
        return f"By label, each at {self.level:.0%} (number of images in brackets): {descriptions}."

    def _display_table(self) -> pd.DataFrame:
        """Return the table as strings, with a column "score (low to high)" for each measure."""
        rows = []
        for row in self.table.to_dict("records"):
            scores = {
                name: f"{row[name]:.2f} ({row[f'{name}, low']:.2f} to {row[f'{name}, high']:.2f})"
                for name in self.measures
                if not pd.isna(row[name])
            }
            cost = (
                {} if pd.isna(row["passes"]) else {"passes": f"{row['passes']:.0f}", "seconds": f"{row['seconds']:.3f}"}
            )
            inside = "open" if pd.isna(row["in_set"]) else "yes" if row["in_set"] else ""
            rows.append({"method": row["method"], "in set": inside, **scores, **cost})
        columns = ["method", "in set", *self.measures, "passes", "seconds"]
        return pd.DataFrame(rows, columns=columns).fillna("").assign(reason=self.table["reason"].tolist())

    @property
    def how(self) -> str:
        """How methods were scored, and the limits of that, in sentences."""
        kinds = [measure["metric"] for measure in self.measures.values()]
        parts = [self.planned]
        if set(kinds) & set(DELETION_METRICS):
            parts.append(
                "A score by deletion of single patches is Spearman's correlation, over the patches of an image, of the "
                "sums of the map with the drops of the logit; higher is better."
            )
        parts.append("Intervals (low to high) are over images.")
        if len(kinds) > 1:
            parts.append(
                f"The rankings by different measures have a Spearman correlation of {self.agreement:.2f}; at 1, the "
                "measures are redundant."
            )
        if "sds" in kinds:
            parts.append("With SDS, images with a deleted patch may be out of the network's domain.")
        if set(kinds) & set(DELETION_METRICS):
            parts.append(LIMITS_OF_DELETION)
        parts.append(
            f"Checks passed {self.check_passes} images through the network, which the column passes does not count."
        )
        if self.left_out:
            parts.append(
                f"Left out, because other options of the same explainer scored higher: {join_names(self.left_out)}."
            )
        return " ".join(parts)

    def _repr_html_(self) -> str:
        body = self._display_table().to_html(index=False, border=0)
        conclusion = html.escape(f"{self.sentence} {self.advice}".strip())
        of_labels = f"<p>{html.escape(self.label_summary)}</p>" if self.label_summary else ""
        return f"<p><strong>{conclusion}</strong></p>{body}{of_labels}<p>{html.escape(self.how)}</p>"

    def save(self, path: str | Path) -> Path:
        """Write the choice to a file, and return its path.

        Parameters
        ----------
        path
            ``.html`` for a self-contained page, ``.json`` for a complete copy that `load` reads, ``.csv`` for the
            table.

        Raises
        ------
        HeatproofError
            If the name has another ending, or the file cannot be written.
        """
        path = user_path(path)
        ending = path.suffix.lower()
        if ending == ".csv":
            with one_sentence_write_errors(path):
                write_table(self.table, path)
        elif ending in (".html", ".json"):
            text = self._page() if ending == ".html" else self._text()
            with one_sentence_write_errors(path):
                write_text(path, text)
        else:
            raise HeatproofError(
                f"A choice cannot be saved as {path.name!r}: end the name with .html for a page, .json for a file that "
                "heatproof.Choice.load reads, or .csv for the table."
            )
        return path

    @classmethod
    def load(cls, path: str | Path) -> Choice:
        """Read a ``.json`` file that `save` wrote.

        Raises
        ------
        HeatproofError
            If the file cannot be read, or was not written by `save`.
        """
        path = user_path(path)
        with one_sentence_errors(path, "give a file that heatproof.Choice.save wrote as .json"):
            saved = as_type(SavedChoice, parse_json(read_bytes(path, MOST_JSON_BYTES)), "it")
            values = {
                attribute.name: getattr(saved, attribute.name)
                for attribute in fields(cls)
                if attribute.name not in ("table", "by_label")
            }
            by_label = None if saved.by_label is None else pd.DataFrame(saved.by_label, columns=list(BY_LABEL))
            return cls(_table_of(saved), by_label=by_label, **values)

    def _page(self) -> str:
        return render(
            "choice.html",
            title="Which attribution method can be trusted",
            sentence=self.sentence,
            advice=self.advice,
            how=" ".join(filter(None, [self.label_summary, self.how])),
            measures=list(self.measures),
            rows=self.table.astype(object).where(self.table.notna(), None).to_dict("records"),
        )

    def _text(self) -> str:
        """Return the choice as JSON, without missing values and values that are not finite."""
        content = {
            attribute.name: getattr(self, attribute.name)
            for attribute in fields(self)
            if attribute.name not in ("table", "by_label")
        }
        if self.by_label is not None:
            content["by_label"] = self.by_label.to_dict("records")
        rows = self.table.astype(object).to_dict("records")
        content |= {"schema_version": 1, "found": asdict(self.found), "columns": list(self.table), "rows": rows}
        return json.dumps(_plain(content), indent=1, allow_nan=False, ensure_ascii=False) + "\n"


@dataclass(frozen=True)
class OfLabel:
    """A row of `Choice.by_label`."""

    label: str
    images: int
    methods: str
    verdict: str


@dataclass(frozen=True)
class SavedChoice:
    """A choice as its JSON file holds it."""

    __pydantic_config__ = NO_OTHER_FIELDS

    schema_version: Literal[1]
    columns: list[str]
    rows: list[dict[str, Cell]]
    found: Verdict
    left_out: list[str]
    measures: dict[str, dict[str, Any]]
    words: dict[str, str]
    images: tuple[int, int]
    planned: str
    level: float
    check_passes: int
    by_label: list[OfLabel] | None = None


def typed_table(table: pd.DataFrame) -> pd.DataFrame:
    """Return the table of a choice with the types of its columns; scores and interval ends are floats."""
    return table.astype({name: COLUMN_TYPES.get(str(name), "float64") for name in table})


def _table_of(saved: SavedChoice) -> pd.DataFrame:
    """Return the table of a saved choice.

    Raises
    ------
    ValueError
        If its columns are not those of a choice with these measures, or a value has another type.
    """
    measure_columns = [column for name in saved.measures for column in (name, f"{name}, low", f"{name}, high")]
    if sorted(saved.columns) != sorted([*COLUMN_TYPES, *measure_columns]):
        raise ValueError("its columns are not those of its measures")
    if saved.words.keys() != saved.measures.keys() or not set(saved.words.values()) <= saved.found.measures.keys():
        raise ValueError("its measures are not those of its verdict")
    if any(type(measure.get("metric")) is not str for measure in saved.measures.values()):
        raise ValueError("it has a measure without a metric")
    if not (0 < saved.level < 1 and min(saved.images) >= 0):
        raise ValueError("its level is not a probability, or it has a negative number of images")
    for row in saved.rows:
        fits = row.keys() <= set(saved.columns) and all(type(row.get(name)) is str for name in ("method", "reason"))
        if not fits or any(
            type(value) not in VALUE_TYPES.get(COLUMN_TYPES.get(name, ""), NUMBERS) for name, value in row.items()
        ):
            raise ValueError(f"its table has a row with wrong types, {str(row)[:60]}")
    table = typed_table(pd.DataFrame(saved.rows, columns=saved.columns))
    best = table.loc[table["in_set"].fillna(False).astype(bool), "method"]
    if table["method"].duplicated().any() or (saved.found.verdict == FOUND and set(best) != set(saved.found.best)):
        raise ValueError("it has a method twice, or the best methods of its table are not those of its verdict")
    return table


def _plain(value: Any) -> Any:
    """Return a value as JSON holds it, without missing values and values that are not finite."""
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items() if not _is_missing(inner)}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return _plain(value.tolist()) if hasattr(value, "tolist") else value


def _is_missing(value: Any) -> bool:
    return value is None or value is pd.NA or (isinstance(value, float) and not math.isfinite(value))

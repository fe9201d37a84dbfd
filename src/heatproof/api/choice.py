"""The answer of `heatproof.choose`: which methods cannot be told from the best, shown, saved and read again."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from heatproof.base.registry import join_names
from heatproof.errors import HeatproofError
from heatproof.ranking.verdict import FOUND, LIMITS_OF_DELETION, Verdict

DELETIONS = ("idsds", "sds")
# Columns of the table beside those of the measures, with their types.
TYPES = {
    "method": "object",
    "in_set": "boolean",
    "passes": "Int64",
    "seconds": "float64",
    "options": "object",
    "reason": "object",
}
# Of values in files.
NUMBER = (float, int)
KINDS = {"object": (str,), "boolean": (bool,), "Int64": (int,)}
# What images of each label say, where an image can have several.
BY_LABEL = ("label", "images", "methods", "verdict")
Cell = str | bool | int | float


@dataclass(frozen=True, eq=False)
class Choice:
    """The methods that cannot be told from the best one, on one network and its images.

    Attributes
    ----------
    table
        A row a method that was scored: ``method``, ``options``, ``in_set`` (missing where a measure has too few images
        to tell), a column of scores for each measure with ``low`` and ``high`` ends of their intervals, ``passes``,
        ``seconds`` an image, and ``reason`` where a method is no contender or does not apply. The best come first.
    found
        The verdict and its sentence, by the rule that the workflow has too (`heatproof.ranking.verdict.judge`).
    left_out
        Options that were tried on the first part of the images and lost to others of their explainer.
    measures
        How methods are scored: options of `heatproof.evaluate`, all of them for deletions of single patches, whose
        ``metric`` is ``idsds`` where they are those of the network's finetuning, else ``sds``.
    words
        What each measure does, in words.
    images
        How many images picked the options, and how many are reported on.
    planned
        How many images it takes to tell so many methods apart.
    level
        With which all methods that are the best by a measure are in its set.
    check_passes
        Images that went through the network to check it and to predict classes, which no ``passes`` count.
    by_label
        Where images can have several labels, a row a label: ``label``, ``images`` with it that are reported on,
        ``methods`` that cannot be told from the best on these, and the ``verdict``; ``too few images`` for fewer than
        16. Else None.
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
        """Spearman correlation of the orders by two measures, their mean over pairs."""
        return self.found.agreement

    @property
    def verdict(self) -> str:
        """The verdict, in the words of ``verdict.csv``."""
        return self.found.verdict

    @property
    def sentence(self) -> str:
        """The answer in a sentence."""
        return self.found.sentence

    @property
    def methods(self) -> list[str]:
        """What cannot be told from the best by at least one measure, best first."""
        return self.table.loc[self.table["in_set"].fillna(False).astype(bool), "method"].tolist()

    @property
    def sets(self) -> dict[str, list[str]]:
        """Measure to what it cannot tell from the best, best first; empty where it has too few images to tell."""
        return {name: self.found.measures[words].best for name, words in self.words.items()}

    @property
    def best(self) -> str | None:
        """The method that is the best by every measure; None where it is not known."""
        return self.methods[0] if self.verdict == FOUND and len(self.methods) == 1 else None

    @property
    def in_domain(self) -> bool:
        """Whether the first measure deletes the very patches that the network was finetuned on."""
        return next(iter(self.measures.values()))["metric"] == "idsds"

    @property
    def advice(self) -> str:
        """Which of several methods takes the fewest network passes; empty where one method or none is found.

        Passes are the same in every run, as seconds are not; of equal ones the first by name.
        """
        if self.verdict != FOUND or self.best:
            return ""
        inside = self.table[self.table["method"].isin(self.methods)]
        cheapest = inside.sort_values(["passes", "method"]).iloc[0]
        passes = int(cheapest["passes"])
        return f"Among the best, {cheapest['method']} takes the fewest network passes, {passes} an image."

    def __str__(self) -> str:
        shown = self._shown()
        scored = shown[shown["passes"] != ""].drop(columns="reason")
        why = [f"{name}: {reason}." for name, reason in zip(shown["method"], shown["reason"], strict=True) if reason]
        parts = [f"{self.sentence} {self.advice}".strip(), scored.to_string(index=False), "\n".join(why)]
        return "\n\n".join(filter(None, [*parts, self.labels_told, self.how]))

    @property
    def labels_told(self) -> str:
        """What is best by label, in a sentence; empty where an image has one class."""
        if self.by_label is None:
            return ""
        groups: dict[str, list[str]] = {}
        for row in self.by_label.to_dict("records"):
            groups.setdefault(row["methods"] or row["verdict"], []).append(f"{row['label']} ({row['images']})")
        told = "; ".join(f"{what}: {', '.join(labels)}" for what, labels in groups.items())
        return f"By label, each at {self.level:.0%} (images in brackets): {told}."

    def _shown(self) -> pd.DataFrame:
        """Return the table as text, with a column "score (low to high)" for each measure."""
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
        """What was done and what it cannot see, in sentences."""
        kinds = [one["metric"] for one in self.measures.values()]
        parts = [self.planned]
        if set(kinds) & set(DELETIONS):
            parts.append(
                "Each score by deletion of single patches is Spearman's correlation, over the patches of an image, of "
                "a map's sums with the logit lost when the patch is deleted; higher is better."
            )
        parts.append("Intervals (low to high) are over images.")
        if len(kinds) > 1:
            parts.append(
                f"The measures order the methods with a Spearman correlation of {self.agreement:.2f}; at 1 they say "
                "the same thing twice."
            )
        if "sds" in kinds:
            parts.append("By SDS, images without a patch may be outside of the network's domain.")
        if set(kinds) & set(DELETIONS):
            parts.append(LIMITS_OF_DELETION)
        parts.append(f"{self.check_passes} images went through the network to check it, which no passes count.")
        if self.left_out:
            parts.append(
                f"Left out, as other options of the same explainer scored higher: {join_names(self.left_out)}."
            )
        return " ".join(parts)

    def _repr_html_(self) -> str:
        body = self._shown().to_html(index=False, border=0)
        said = html.escape(f"{self.sentence} {self.advice}".strip())
        of_labels = f"<p>{html.escape(self.labels_told)}</p>" if self.labels_told else ""
        return f"<p><strong>{said}</strong></p>{body}{of_labels}<p>{html.escape(self.how)}</p>"

    def save(self, path: str | Path) -> Path:
        """Write the answer to a file, and return where.

        Parameters
        ----------
        path
            ``.html`` for a page of one file that stands alone, ``.json`` for all of the answer, which `load` reads
            again, ``.csv`` for the table.

        Raises
        ------
        HeatproofError
            If the name has another ending.
        """
        from heatproof.files.writing import write_table, write_text

        path = Path(path)
        ending = path.suffix.lower()
        if ending == ".csv":
            write_table(self.table, path)
        elif ending in (".html", ".json"):
            write_text(path, self._page() if ending == ".html" else self._text())
        else:
            raise HeatproofError(
                f"A choice is not saved as {path.name!r}: end the name with .html for a page, .json for a file that "
                "heatproof.Choice.load reads, or .csv for the table."
            )
        return path

    @classmethod
    def load(cls, path: str | Path) -> Choice:
        """Read what `save` wrote as ``.json``.

        Raises
        ------
        HeatproofError
            If it cannot be read, or is no such file.
        """
        from heatproof.base.typed import as_type
        from heatproof.files.reading import MOST_JSON_BYTES, one_sentence_errors, parse_json, read_bytes

        with one_sentence_errors(path, "give a file that heatproof.Choice.save wrote as .json"):
            told = as_type(SavedChoice, parse_json(read_bytes(path, MOST_JSON_BYTES)), "it")
            given = {one.name: getattr(told, one.name) for one in fields(cls) if one.name not in ("table", "by_label")}
            by_label = None if told.by_label is None else pd.DataFrame(told.by_label, columns=list(BY_LABEL))
            return cls(_table_of(told), by_label=by_label, **given)

    def _page(self) -> str:
        from heatproof.report.results import render

        return render(
            "choice.html",
            title="Which attribution method can be trusted",
            sentence=self.sentence,
            advice=self.advice,
            how=" ".join(filter(None, [self.labels_told, self.how])),
            measures=list(self.measures),
            rows=self.table.astype(object).where(self.table.notna(), None).to_dict("records"),
        )

    def _text(self) -> str:
        """Return all of it as JSON; what is missing or no number is left out."""
        told = {one.name: getattr(self, one.name) for one in fields(self) if one.name not in ("table", "by_label")}
        if self.by_label is not None:
            told["by_label"] = self.by_label.to_dict("records")
        rows = self.table.astype(object).to_dict("records")
        told |= {"schema_version": 1, "found": asdict(self.found), "columns": list(self.table), "rows": rows}
        return json.dumps(_plain(told), indent=1, allow_nan=False, ensure_ascii=False) + "\n"


@dataclass(frozen=True)
class OfLabel:
    """A row of `Choice.by_label`."""

    label: str
    images: int
    methods: str
    verdict: str


@dataclass(frozen=True)
class SavedChoice:
    """A choice as its file has it."""

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
    """Return the table of a choice with the types of its columns; scores and their ends are numbers."""
    return table.astype({name: TYPES.get(str(name), "float64") for name in table})


def _table_of(told: SavedChoice) -> pd.DataFrame:
    """Return the table of a file.

    Raises
    ------
    ValueError
        If it has not the columns of a choice with these measures, or a value of another type.
    """
    of_measures = [column for name in told.measures for column in (name, f"{name}, low", f"{name}, high")]
    if sorted(told.columns) != sorted([*TYPES, *of_measures]):
        raise ValueError("its columns are not those of its measures")
    if told.words.keys() != told.measures.keys() or not set(told.words.values()) <= told.found.measures.keys():
        raise ValueError("its measures are not those of its verdict")
    if any(type(one.get("metric")) is not str for one in told.measures.values()):
        raise ValueError("it has a measure without a metric")
    if not (0 < told.level < 1 and min(told.images) >= 0):
        raise ValueError("its level is no probability, or it has fewer images than none")
    for row in told.rows:
        fits = row.keys() <= set(told.columns) and all(type(row.get(name)) is str for name in ("method", "reason"))
        if not fits or any(type(value) not in KINDS.get(TYPES.get(name, ""), NUMBER) for name, value in row.items()):
            raise ValueError(f"its table has a row of other types, {str(row)[:60]}")
    table = typed_table(pd.DataFrame(told.rows, columns=told.columns))
    best = table.loc[table["in_set"].fillna(False).astype(bool), "method"]
    if table["method"].duplicated().any() or (told.found.verdict == FOUND and set(best) != set(told.found.best)):
        raise ValueError("it has a method twice, or the best methods of its table are not those of its verdict")
    return table


def _plain(value: Any) -> Any:
    """Return a value as JSON has it, without what is missing or no number."""
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items() if not _is_missing(one)}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return _plain(value.tolist()) if hasattr(value, "tolist") else value


def _is_missing(value: Any) -> bool:
    return value is None or value is pd.NA or (isinstance(value, float) and not math.isfinite(value))

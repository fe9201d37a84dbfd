"""`heatproof diff`: compare the scores of two runs, and test whether changes exceed the uncertainty of their images."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.stats import norm

from heatproof.core.registry import join_names
from heatproof.errors import HeatproofError
from heatproof.report.results import CASE, format_number, render, rounded
from heatproof.report.tables.score_import import FIRST_ROW
from heatproof.store.publishing import escaped, public
from heatproof.store.reading import one_sentence_errors
from heatproof.store.table_formats import parse_csv
from heatproof.store.writing import write_table, write_text
from heatproof.workflow.commands.bundle import tables

KEY = [*CASE, "method"]
NUMBERS = ["score", "ci_low", "ci_high", "rank"]
LEVEL = 0.95
# Largest number of lines of each kind that are printed; the table has all.
MOST = 10


@dataclass(frozen=True)
class Difference:
    """The differences between two runs.

    Attributes
    ----------
    table
        One row for each score of either run: ``before`` and ``after``; ``change`` with its interval ``change_low`` to
        ``change_high``; ``p``, the p-value of no change; ``moved``, whether the change is significant; ranks, and
        whether the method is in the best set, before and after; and ``only``, "before" or "after" if one run lacks the
        score. Significant changes come first, then larger changes.
    sentences
        A summary, most important lines first.
    """

    table: pd.DataFrame
    sentences: list[str]

    def __str__(self) -> str:
        return "\n".join(self.sentences)


def diff(before: str | Path, after: str | Path, *, level: float = LEVEL) -> Difference:
    """Compare the scores of two runs.

    The interval of a change is that of a difference of two independent means: its variance is the sum of the variances
    that follow from the intervals of the two scores. On the same images, scores of two runs are correlated, and the
    interval is too wide rather than too narrow. p-values are corrected over all scores by Holm's method.

    Parameters
    ----------
    before, after
        Results folders or bundles.
    level
        Coverage of the intervals in the tables, and of the intervals of changes.

    Raises
    ------
    HeatproofError
        If a run cannot be read, or the two have no score in common.
    """
    table = _join(_read(before), _read(after), level)
    if not (table["only"] == "").any():
        raise HeatproofError(f"{before} and {after} have no score in common: not one network, method and metric.")
    return Difference(table, list(_sentences(table)))


def _read(path: str | Path) -> pd.DataFrame:
    ((_, content),) = tables([path])
    with one_sentence_errors(f"The table of {path}", "name results of the workflow, or a bundle of them"):
        table = parse_csv(content)
    if missing := [name for name in (*KEY, *NUMBERS, "in_best_set") if name not in table]:
        raise HeatproofError(f"The table of {path} has no column {missing[0]!r}: name results of the workflow.")
    for name in NUMBERS:
        texts = table[name].fillna("")
        table[name] = pd.to_numeric(texts, errors="coerce").astype(float)
        wrong = ~np.isfinite(table[name]) & (texts != "")
        if wrong.any():
            value = f"{texts[wrong].iloc[0]!r:.60} in row {wrong.idxmax() + FIRST_ROW} of {name!r}"
            raise HeatproofError(f"The table of {path} has {value}, which is not a finite number: name another.")
    if (twice := table.duplicated(KEY)).any():
        row = table.loc[twice, KEY].iloc[0]
        raise HeatproofError(f"The table of {path} has {' / '.join(map(str, row))} twice: take one row out.")
    return table.assign(in_best_set=table["in_best_set"] == "True")


def _join(before: pd.DataFrame, after: pd.DataFrame, level: float) -> pd.DataFrame:
    from statsmodels.stats.multitest import multipletests

    columns = [*KEY, *NUMBERS, "in_best_set"]
    both = before[columns].merge(after[columns], on=KEY, how="outer", suffixes=("_before", "_after"), indicator="only")
    width = norm.ppf((1 + level) / 2)
    errors = [(both[f"ci_high_{when}"] - both[f"ci_low_{when}"]) / (2 * width) for when in ("before", "after")]
    error = np.hypot(*errors)
    change = both["score_after"] - both["score_before"]
    with np.errstate(divide="ignore", invalid="ignore"):
        # Equal scores whose intervals have no width have not changed.
        sizes = np.where(change == 0, 0.0, change.abs() / error)
    p = pd.Series(2 * norm.sf(sizes), index=both.index)
    moved = pd.Series(False, index=both.index)
    defined = p.notna()
    if defined.any():
        moved[defined] = multipletests(p[defined], alpha=1 - level, method="holm")[0]
    table = both[KEY].assign(
        before=both["score_before"],
        after=both["score_after"],
        change=change,
        change_low=change - width * error,
        change_high=change + width * error,
        p=p,
        moved=moved,
        rank_before=both["rank_before"],
        rank_after=both["rank_after"],
        best_before=both["in_best_set_before"].eq(True),
        best_after=both["in_best_set_after"].eq(True),
        only=both["only"].map({"left_only": "before", "right_only": "after", "both": ""}).astype(str),
    )
    order = table.assign(size=-table["change"].abs()).sort_values(
        ["moved", "size", *KEY], ascending=[False, True, *[True] * len(KEY)], kind="stable"
    )
    return order.drop(columns="size").reset_index(drop=True)


def _sentences(table: pd.DataFrame) -> Iterator[str]:
    shared = table[table["only"] == ""]
    moved = shared[shared["moved"]]
    without_interval = int(shared["p"].isna().sum())
    sentence = f"Of {len(shared)} scores in both runs, {len(moved)} changed by more than their intervals"
    yield f"{sentence}{f'; {without_interval} have no interval in one of them' if without_interval else ''}."
    for row in moved.head(MOST).to_dict("records"):
        location = f"{row['dataset']} / {row['model']} {row['weights']}, {row['metric']}"
        interval = f"{rounded(row['change_low'], 3)} to {rounded(row['change_high'], 3)}"
        yield f"  {row['method']} on {location}: {rounded(row['before'], 3)} → {rounded(row['after'], 3)} ({interval})"
    if len(moved) > MOST:
        yield f"  and {len(moved) - MOST} more"
    for key, part in shared.groupby(CASE, sort=True):
        case = [str(name) for name in key]
        entered, left = (
            part.loc[part[f"best_{now}"] & ~part[f"best_{other}"], "method"].tolist()
            for now, other in (("after", "before"), ("before", "after"))
        )
        if entered or left:
            phrases = [f"{join_names(entered)} entered"] * bool(entered) + [f"{join_names(left)} left"] * bool(left)
            yield f"The set of the best on {' / '.join(case[:3])}, {case[3]}: {', '.join(phrases)}."
    for when, order in (("before", "first"), ("after", "second")):
        alone = table[table["only"] == when]
        if len(alone):
            methods = sorted(set(alone["method"]) - set(shared["method"]))
            sentence = f", including all of {join_names(methods[:MOST])}" if methods else ""
            yield f"{len(alone)} scores are only in the {order} run{sentence}."


def print_diff(before: str, after: str, out: str | None = None) -> None:
    """Print the differences between two runs, and write them to a table or a page if `out` is given."""
    difference = diff(before, after)
    print(escaped(str(difference)))
    if out is None:
        return
    if out.endswith(".html"):
        rows = difference.table.to_dict("records")
        values = {
            "names": public([before, after]),
            "sentences": difference.sentences,
            "rows": rows,
            "number": format_number,
        }
        write_text(out, render("diff.html", title="Changes between two runs", **values))
    elif out.endswith(".csv"):
        write_table(difference.table, out)
    else:
        raise HeatproofError(f"--out is {out}: give it a name that ends in .csv or .html.")

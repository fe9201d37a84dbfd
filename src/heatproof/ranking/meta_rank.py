"""Meta-Rank: one ranking of methods from all test cases."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from heatproof.errors import HeatproofError
from heatproof.metrics.bootstrap import draw_counts
from heatproof.randomness import numpy_generator
from heatproof.ranking.intervals import interval_of
from heatproof.ranking.kappa import balance_of, parts_of, resample, solve
from heatproof.ranking.ranks import bradley_terry, comparable, pairwise_wins, rank_methods

if TYPE_CHECKING:
    import pandas as pd

log = logging.getLogger(__name__)

COLUMNS = ("method", "kappa", "ci_low", "ci_high", "rank", "n_cases", "bradley_terry")
CASE = ("dataset", "model", "weights", "metric")
REPETITIONS = 1000
# The work grows with resamples × pairs of methods; the spread of 200 resamples is known to 5 %.
FEWEST_REPETITIONS = 200
METHODS_TIMES_REPETITIONS = 500_000
# Below this difference, κ of methods with the same record differs by rounding alone.
DECIMALS = 10


@dataclass(frozen=True)
class MetaRank:
    """One ranking from all test cases; every array is (M,), in the order of the methods given.

    Attributes
    ----------
    kappa
        Mean log-odds of ranking above another method, mean 0, higher is better; NaN for a method without a score.
    ci_low, ci_high
        Bootstrap interval of κ over test cases; NaN for a method scored in fewer than two.
    rank
        1 is best, equal κ share the smallest rank; NaN where κ is.
    n_cases
        Test cases in which the method has a score.
    bradley_terry
        Bradley-Terry log-strengths of the same wins, mean 0; NaN where κ is.
    repetitions
        Number of resamples behind the interval.
    disconnected
        Number of resamples in which some methods could not be compared, directly or through others.
    """

    kappa: np.ndarray
    ci_low: np.ndarray
    ci_high: np.ndarray
    rank: np.ndarray
    n_cases: np.ndarray
    bradley_terry: np.ndarray
    repetitions: int
    disconnected: int


def meta_rank(
    scores: np.ndarray,
    *,
    methods: Sequence[str] | None = None,
    seed: int = 0,
    repetitions: int | None = None,
    level: float = 0.95,
    kind: str = "student",
) -> MetaRank:
    """Rank methods over all test cases.

    Duan et al., On the Evaluation Consistency of Attribution-based Explanations, 2024, section 4.2, equations 4 to 6;
    what they leave open (ties, certain wins, gaps, intervals) is settled here.

    For methods p, q and the n_pq test cases in which both have a score, w_pq counts those in which p ranks above q,
    ties as ½; P_pq = (w_pq + ½) / (n_pq + 1), so that the odds stay finite, and D_pq = ln(P_pq / (1 - P_pq)). κ solves
    κ_p - κ_q = D_pq in least squares weighted by n_pq, with mean 0. Where every method has a score in every test case,
    κ_p is the mean of row p of D.

    The interval comes from test cases drawn with replacement. A resample may leave a method without a score, or split
    the methods into parts that are never compared. κ is then known up to one constant per part: every part of at least
    two methods is placed so that its mean is that of its methods' κ from all cases, which shows the spread within
    the part and not that between parts; other methods have no value in that repetition.

    `interval_of` says how the interval is made of the resamples, and benchmarks/coverage.py how often it covers. Test
    cases that share a model or images are not independent: take it as the least uncertainty that there is.

    Parameters
    ----------
    scores
        (T, M), higher is better in every test case; NaN where a method has no score.
    methods
        M names, for messages.
    seed
        The workflow's seed.
    repetitions
        Number of resamples; left out, as `default_repetitions` says.
    level
        Nominal coverage of the interval.
    kind
        ``student`` or ``percentile``, as in `interval_of`.

    Raises
    ------
    HeatproofError
        If no method has a score, or if the methods fall into parts that no test case compares; the message names
        the parts.
    """
    names = np.array([f"method {index}" for index in range(scores.shape[1])] if methods is None else list(methods))
    if repetitions is None:
        repetitions = default_repetitions(scores.shape[1])
    n_cases = (~np.isnan(scores)).sum(axis=0)
    scored = n_cases > 0
    if not scored.any():
        raise HeatproofError("No method has a score in any test case, so there is nothing to rank.")
    known = scores[:, scored][~np.isnan(scores).all(axis=1)]
    present = ~np.isnan(known)
    _check_connected(present, names[scored])

    wins = pairwise_wins(known)
    kappa, _ = solve(balance_of(wins), present, np.ones(len(known)), np.zeros(known.shape[1]))
    strengths = bradley_terry(wins)
    del wins

    counts = draw_counts(numpy_generator(seed, "bootstrap over test cases"), repetitions, len(known))
    resampled, parts = resample(comparable(known), present, counts, kappa)
    low, high = interval_of(kappa, resampled, n_cases[scored], level=level, kind=kind)

    def everywhere(values: np.ndarray) -> np.ndarray:
        filled = np.full(len(scored), np.nan)
        filled[scored] = values
        return filled

    return MetaRank(
        kappa=everywhere(kappa),
        ci_low=everywhere(low),
        ci_high=everywhere(high),
        rank=rank_methods(np.round(everywhere(kappa), DECIMALS)),
        n_cases=n_cases,
        bradley_terry=everywhere(strengths),
        repetitions=repetitions,
        disconnected=int((parts > 1).sum()),
    )


def default_repetitions(methods: int) -> int:
    """Return the number of resamples: 1000 up to 500 methods, then fewer, and 200 from 2,500 methods."""
    return int(np.clip(METHODS_TIMES_REPETITIONS // max(1, methods), FEWEST_REPETITIONS, REPETITIONS))


def meta_rank_table(
    scores: pd.DataFrame, *, seed: int = 0, repetitions: int | None = None, level: float = 0.95
) -> pd.DataFrame:
    """Rank the methods of a table of scores over all of its test cases.

    Parameters
    ----------
    scores
        One row for each method in each test case, with columns ``dataset``, ``model``, ``weights``, ``metric``,
        ``method``, ``score`` and ``higher_is_better``; the first four make the test case. A missing row and a NaN
        score are both a gap.
    seed, repetitions, level
        As in `meta_rank`.

    Returns
    -------
    pandas.DataFrame
        Columns ``method, kappa, ci_low, ci_high, rank, n_cases, bradley_terry``, best first; methods without any
        score come last, with n_cases 0 and the rest missing.

    Raises
    ------
    HeatproofError
        As in `meta_rank`; or if a column is missing, a method has two scores in one test case, or a test case has both
        directions.
    """
    import pandas as pd

    needed = [*CASE, "method", "score", "higher_is_better"]
    missing = [column for column in needed if column not in scores.columns]
    if missing:
        raise HeatproofError(f"The table of scores has no column {missing[0]!r}: it needs {', '.join(needed)}.")
    rows = scores[needed].astype(dict.fromkeys([*CASE, "method"], str))
    twice = rows.duplicated([*CASE, "method"])
    if twice.any():
        raise HeatproofError(f"{_describe(rows[twice].iloc[0])} has more than one score: give one mean score for each.")
    if not rows["higher_is_better"].isin([True, False]).all():
        raise HeatproofError(
            "The column 'higher_is_better' of the table of scores has to be true or false in every row."
        )
    both = rows.groupby(list(CASE))["higher_is_better"].transform("nunique") > 1
    if both.any():
        raise HeatproofError(f"{_describe(rows[both].iloc[0])} and others disagree on whether higher is better.")
    upwards = rows["higher_is_better"].astype(bool)
    rows["score"] = rows["score"].astype(float).where(upwards, -rows["score"].astype(float))
    # Pivoting sorts cases and methods, so that the interval does not depend on the order of the rows.
    cases = rows.pivot(index=list(CASE), columns="method", values="score")
    names = cases.columns.tolist()
    result = meta_rank(cases.to_numpy(), methods=names, seed=seed, repetitions=repetitions, level=level)
    if result.disconnected:
        log.warning(
            "In %d of %d resamples of the test cases, some methods were not comparable: the intervals of κ leave the "
            "spread between such parts out.",
            result.disconnected,
            result.repetitions,
        )
    table = pd.DataFrame({"method": names} | {column: getattr(result, column) for column in COLUMNS[1:]})
    table["rank"] = table["rank"].astype("Int64")
    return table.sort_values(["rank", "method"], ignore_index=True)


def _describe(row: pd.Series) -> str:
    return f"The method {row['method']!r} in the test case {', '.join(filter(None, row[list(CASE)]))}"


def _check_connected(present: np.ndarray, names: np.ndarray) -> None:
    part = parts_of(present)
    if part.max() > 0:
        listed = [names[part == number].tolist() for number in range(part.max() + 1)]
        shown = [
            ", ".join(members[:6]) + (f" and {len(members) - 6} more" if len(members) > 6 else "") for members in listed
        ]
        raise HeatproofError(
            f"No test case compares methods of one part with those of another: {' | '.join(shown)}. "
            "Score methods of all parts together in some test case, or rank each part by itself."
        )

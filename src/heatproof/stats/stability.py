"""Stability of a ranking when test cases are left out, and leaderboards of explainer families."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

import numpy as np
import pandas as pd
from scipy.stats import spearmanr

from heatproof.stats.kappa import compute_kappa
from heatproof.stats.meta_rank import group_numbers, shares_in_groups
from heatproof.stats.ranks import KAPPA_SIZE, rank_methods, to_dense_ranks


def leave_one_out(
    scores: np.ndarray, groups: Sequence[Hashable] | None = None, weights: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Compute κ without each test case in turn.

    Parameters
    ----------
    scores
        (T, M), higher is better in every test case; NaN where a method has no score.
    groups, weights
        As in `heatproof.stats.meta_rank.meta_rank`; the remaining test cases of a network share its full weight.

    Returns
    -------
    kappa, rank : numpy.ndarray
        (T, M) each: row t without test case t. NaN for a method that has no score in the remaining test cases, or is
        compared with no other method. Where the remaining test cases split the methods into components, every component
        keeps the mean κ that it has over all test cases, as in `heatproof.stats.meta_rank.meta_rank`.
    """
    group = group_numbers(groups, len(scores))
    case_weights = np.ones(len(scores)) if weights is None else weights
    kappa_of_all, _ = compute_kappa(scores, weights=shares_in_groups(group, case_weights))
    kappa = np.empty(scores.shape)
    for case in range(len(scores)):
        remaining, others = np.delete(scores, case, axis=0), np.delete(group, case)
        share = shares_in_groups(np.unique(others, return_inverse=True)[1], np.delete(case_weights, case))
        kappa[case], _ = compute_kappa(remaining, kappa_of_all, share)
    return kappa, rank_methods(kappa, size=KAPPA_SIZE)


def stability(
    scores: np.ndarray,
    methods: Sequence[str],
    cases: Sequence[str],
    groups: Sequence[Hashable] | None = None,
    weights: np.ndarray | None = None,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Measure how much the ranking depends on single test cases.

    Parameters
    ----------
    scores, groups, weights
        As in `leave_one_out`.
    methods, cases
        M and T names.

    Returns
    -------
    by_method : pandas.DataFrame
        method, rank (from all test cases), best_rank and worst_rank with one test case left out, largest_change of the
        rank (lower is more stable), and without_case, the test case behind it. Best first; of equal changes the first
        test case is named.
    by_case : pandas.DataFrame
        case, spearman of the ranking without it with the full ranking (-1 to 1, higher is more stable), largest_change,
        and method, the method with this change. In the order of `cases`.
    """
    kappa_of_all, _ = compute_kappa(scores, weights=shares_in_groups(group_numbers(groups, len(scores)), weights))
    rank = rank_methods(kappa_of_all, size=KAPPA_SIZE)
    kappa, ranks = leave_one_out(scores, groups, weights)
    change = np.where(np.isnan(ranks), -1, np.abs(np.nan_to_num(ranks) - np.nan_to_num(rank)))
    by_method = pd.DataFrame(
        {
            "method": list(methods),
            "rank": rank,
            "best_rank": _extreme(ranks, np.inf).min(axis=0),
            "worst_rank": _extreme(ranks, -np.inf).max(axis=0),
            "largest_change": change.max(axis=0, initial=-1),
            "without_case": np.array(cases, dtype=object)[change.argmax(axis=0)],
        }
    )
    unknown = by_method["largest_change"] < 0
    by_method.loc[unknown, ["best_rank", "worst_rank", "largest_change"]] = np.nan
    by_method.loc[by_method["largest_change"].isna() | (by_method["largest_change"] == 0), "without_case"] = ""
    largest = change.max(axis=1)
    by_case = pd.DataFrame(
        {
            "case": list(cases),
            "spearman": [_spearman(kappa_of_all, without) for without in kappa],
            "largest_change": np.where(largest < 0, np.nan, largest),
            "method": np.where(largest > 0, np.array(methods, dtype=object)[change.argmax(axis=1)], ""),
        }
    )
    whole_numbers = ["rank", "best_rank", "worst_rank", "largest_change"]
    by_method[whole_numbers] = by_method[whole_numbers].astype("Int64")
    by_case["largest_change"] = by_case["largest_change"].astype("Int64")
    return by_method.sort_values(["rank", "method"], ignore_index=True), by_case


def family_leaderboards(ranked: pd.DataFrame, families: Mapping[str, str]) -> pd.DataFrame:
    """Rank the methods of each family among themselves, by their κ over all methods.

    Parameters
    ----------
    ranked
        As returned by `heatproof.stats.table.meta_rank_table`.
    families
        Method to family, for instance the family of its explainer; other methods are left out.

    Returns
    -------
    pandas.DataFrame
        family, place (1 is the best of its family), n_methods, the number of its methods with a rank, and the columns
        of `ranked`. The family of the best method comes first; methods without a rank are left out.
    """
    members = ranked[ranked["rank"].notna() & ranked["method"].isin(list(families))]
    table = members.assign(family=members["method"].map(dict(families)))
    groups = table.groupby("family")["rank"]
    table["place"] = groups.rank(method="min").astype("Int64")
    table["n_methods"] = groups.transform("size").astype("Int64")
    table["lead"] = groups.transform("min")
    table = table.sort_values(["lead", "family", "place", "method"], ignore_index=True)
    return table[["family", "place", "n_methods", *ranked.columns]]


def _extreme(ranks: np.ndarray, missing: float) -> np.ndarray:
    return np.where(np.isnan(ranks), missing, ranks)


def _spearman(first: np.ndarray, second: np.ndarray) -> float:
    both = ~np.isnan(first) & ~np.isnan(second)
    a, b = (to_dense_ranks(kappa[both], size=KAPPA_SIZE) for kappa in (first, second))
    if len(set(a)) < 2 or len(set(b)) < 2:
        return float("nan")
    return float(spearmanr(a, b).statistic)

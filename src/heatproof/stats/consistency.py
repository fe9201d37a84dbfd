"""Consistency: rank correlation of methods between test cases."""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from heatproof.core.randomness import numpy_generator
from heatproof.errors import HeatproofError
from heatproof.metrics.bootstrap import draw_counts, percentile_interval
from heatproof.stats.meta_rank import MINIMUM_NETWORKS, group_numbers
from heatproof.stats.ranks import to_dense_ranks

# With fewer methods a rank correlation takes few values, and is often extreme by chance.
MINIMUM_METHODS = 5
COLUMNS = ("factor", "pairs_that", "n_pairs", "spearman", "spearman_low", "spearman_high")
COLUMNS_OF_KENDALL = ("kendall", "kendall_low", "kendall_high")
_ORDER = re.compile(r"(?:^|_)(morf|lerf)(?=_|$)", re.IGNORECASE)


@dataclass(frozen=True)
class Agreement:
    """Rank correlations between test cases; every array is (T, T) and symmetric.

    Attributes
    ----------
    spearman, kendall
        Spearman's ρ and Kendall's τ-b over the methods scored in both test cases, in [-1, 1]; higher is more similar.
        NaN for fewer shared methods than the minimum, and where a test case gives all of them the same score.
    shared
        Number of methods scored in both test cases.
    """

    spearman: np.ndarray
    kendall: np.ndarray
    shared: np.ndarray


def agreement(scores: np.ndarray, minimum: int = MINIMUM_METHODS) -> Agreement:
    """Compute the rank correlations between all pairs of test cases.

    Duan et al., On the Evaluation Consistency of Attribution-based Explanations, 2024, section 5.1 and figure 3, use
    Spearman's ρ; Kendall's τ-b counts ordered pairs and takes ties into account.

    Parameters
    ----------
    scores
        (T, M), higher is better in every test case; NaN where a method has no score.
    minimum
        Fewest shared methods for a correlation, at least 2.

    Raises
    ------
    HeatproofError
        If the minimum is below 2.
    """
    if minimum < 2:
        raise HeatproofError(f"A rank correlation needs two methods, so the minimum cannot be {minimum}.")
    present = ~np.isnan(scores)
    shared = present.astype(int) @ present.T.astype(int)
    # Ranks keep infinite scores, which pandas would treat as missing.
    table = pd.DataFrame(to_dense_ranks(scores).T).rank()
    spearman, kendall = (
        table.corr(method, min_periods=minimum).to_numpy(dtype=float, copy=True) for method in ("spearman", "kendall")
    )
    # pandas sets the diagonal of τ to 1 even where τ is undefined.
    np.fill_diagonal(kendall, np.diagonal(spearman))
    return Agreement(spearman, kendall, shared)


def split_order(metric: str) -> tuple[str, str]:
    """Split the order of deletion from a metric's name: ``road_morf`` becomes ``("road", "MoRF")``.

    A name without an order is returned with ``""``.
    """
    match = _ORDER.search(metric)
    if match is None:
        return metric, ""
    family = (metric[: match.start()] + metric[match.end() :]).strip("_")
    return family or "deletion", "MoRF" if match[1].lower() == "morf" else "LeRF"


def agreement_by_factor(
    correlations: Agreement,
    cases: pd.DataFrame,
    factors: Sequence[str] | None = None,
    *,
    groups: Sequence[Hashable] | None = None,
    seed: int = 0,
    repetitions: int = 1000,
    level: float = 0.95,
) -> pd.DataFrame:
    """Average the correlations over pairs of test cases that share or differ in a factor.

    Duan et al. 2024, section 5.1, compare test cases that differ in the model, the dataset, the protocol or the
    checkpoint and in nothing else: these are the pairs that "differ in this alone".

    Parameters
    ----------
    correlations
        Rank correlations of T test cases.
    cases
        T rows; a column for each factor, such as dataset, model, weights, metric and order.
    factors
        Columns of `cases`; by default all that have more than one value.
    groups
        (T,), the network of each test case; test cases of one network are drawn together. By default each test case is
        its own group.
    seed, repetitions, level
        Settings of the bootstrap over networks. A pair has the product of the counts of its two cases as its weight,
        and a case is never paired with itself. Intervals are percentiles; a resample without such a pair is left out.

    Returns
    -------
    pandas.DataFrame
        For every factor a row for the pairs that ``differ in this alone``, ``share this`` and ``differ in this``
        (whatever else they differ in): factor, pairs_that, n_pairs, then mean and interval of spearman and of kendall.
        n_pairs counts pairs with a correlation. A mean over no pair is NaN, and so is an interval over fewer than two
        pairs or over pairs of fewer than `MINIMUM_NETWORKS` networks. The first row, ``any``, is over all pairs.
    """
    names = [column for column in cases.columns if cases[column].nunique() > 1] if factors is None else list(factors)
    codes = {name: pd.factorize(cases[name])[0] for name in cases.columns}
    differ = {name: code[:, None] != code for name, code in codes.items()}
    n_differing = sum(part.astype(int) for part in differ.values())
    upper = np.triu(np.ones((len(cases), len(cases)), dtype=bool), 1)
    kinds = [("any", "are any two", upper)]
    for name in names:
        kinds.append((name, "differ in this alone", upper & differ[name] & (n_differing == 1)))
        kinds.append((name, "share this", upper & ~differ[name]))
        kinds.append((name, "differ in this", upper & differ[name]))
    network = group_numbers(groups, len(cases))
    generator = numpy_generator(seed, "bootstrap over pairs of test cases")
    counts = draw_counts(generator, repetitions, network.max(initial=0) + 1)[:, network]
    rows = []
    for name, relation, pairs in kinds:
        row: dict[str, object] = {"factor": name, "pairs_that": relation}
        row["n_pairs"] = int((pairs & ~np.isnan(correlations.spearman)).sum())
        for statistic in ("spearman", "kendall"):
            mean, low, high = _mean_of_pairs(getattr(correlations, statistic), pairs, counts, network, level)
            row |= {statistic: mean, f"{statistic}_low": low, f"{statistic}_high": high}
        rows.append(row)
    return pd.DataFrame(rows, columns=[*COLUMNS, *COLUMNS_OF_KENDALL])


def _mean_of_pairs(
    values: np.ndarray, pairs: np.ndarray, counts: np.ndarray, network: np.ndarray, level: float
) -> tuple[float, float, float]:
    is_counted = pairs & ~np.isnan(values)
    if not is_counted.any():
        return float("nan"), float("nan"), float("nan")
    mean = float(values[is_counted].mean())
    networks = network[is_counted.any(axis=0) | is_counted.any(axis=1)]
    if is_counted.sum() < 2 or len(set(networks)) < MINIMUM_NETWORKS:
        return mean, float("nan"), float("nan")
    weight = ((counts @ is_counted) * counts).sum(axis=1)
    total = ((counts @ np.where(is_counted, values, 0)) * counts).sum(axis=1)
    means = np.full((1, len(counts)), np.nan)
    np.divide(total, weight, out=means[0], where=weight > 0)
    low, high = percentile_interval(means, level)
    return mean, float(low[0]), float(high[0])

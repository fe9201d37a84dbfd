"""Comparison of the orders of methods in a run with published ones: agreement, and ranks of each method."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.stats import rankdata

from heatproof.claims.evidence import MINIMUM_METHODS, NETWORK, Evidence, correlate_ranks
from heatproof.claims.published_numbers import published_evidence

CASE = [*NETWORK, "metric"]
KINDS = ("idsds", "sds")
COEFFICIENTS = ["spearman", "kendall"]
AGREEMENT = [f"{name}{end}" for name in COEFFICIENTS for end in ("", "_low", "_high", "_among")]
ORDERS = [*CASE, "published", "networks", "methods", *AGREEMENT]
METHODS = [*CASE, "published", "method", "published_method", "rank", "published_rank", "difference"]


class _SharedMethods(NamedTuple):
    """Scores of methods that a test case shares with published networks.

    Attributes
    ----------
    where
        Columns of `CASE`, and ``published``, the data set.
    names, published_names
        Names of the methods in the run and in the published tables.
    run_scores
        Mean scores (1 + R, methods), of all images first and then of resamples.
    published_scores
        Published scores (networks, methods).
    """

    where: dict[str, str]
    names: list[str]
    published_names: list[str]
    run_scores: np.ndarray
    published_scores: np.ndarray


def published_orders(evidence: Evidence, level: float = 0.95) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Compare the order of methods of each test case of patch drops with those published for ImageNet and CIFAR-100.

    Parameters
    ----------
    evidence
        The scores of a run.
    level
        Coverage of the intervals.

    Returns
    -------
    orders : pandas.DataFrame
        `ORDERS`, one row for each test case and published dataset that share five methods. ``spearman`` and ``kendall``
        (τ-b) are means over the published networks, -1 to 1, higher is more similar, with percentile intervals over the
        run's images and the published networks, both resampled; ``…_among`` is the same mean over pairs of published
        networks, on the same methods, as a reference.
    methods : pandas.DataFrame
        `METHODS`, one row for each of these methods: its rank among the shared methods (1 is the best), its mean rank
        over the published networks, and the difference (positive: the method is better in the run).

    Notes
    -----
    The published scores are always in-domain IDSDS, of drops of the same output, also for test cases of SDS.
    """
    orders, methods = [], []
    for shared in _shared_methods(evidence):
        orders.append({**shared.where, **_agreement(shared, evidence, level)})
        rank = rankdata(-shared.run_scores[0])
        published_ranks = rankdata(-shared.published_scores, axis=1).mean(0)
        for row in zip(
            shared.names, shared.published_names, rank, published_ranks, published_ranks - rank, strict=True
        ):
            methods.append({**shared.where, **dict(zip(METHODS[-5:], row, strict=True))})
    return pd.DataFrame(orders, columns=ORDERS), pd.DataFrame(methods, columns=METHODS)


def _shared_methods(evidence: Evidence) -> Iterator[_SharedMethods]:
    published = published_evidence("reproduction")
    assert published is not None
    index_of = {
        (described.kind, described.map, described.transform): index for index, described in enumerate(published.methods)
    }
    pairs: dict[int, int] = {}
    for own_index, described in enumerate(evidence.methods):
        same = index_of.get((described.kind, described.map, described.transform))
        if same is not None:
            pairs.setdefault(same, own_index)
    for index, case in enumerate(evidence.cases):
        if case.kind not in KINDS or not evidence.values.get(index, np.empty(0)).size:
            continue
        for dataset in dict.fromkeys(other.dataset for other in published.cases):
            networks = [
                number
                for number, other in enumerate(published.cases)
                if (other.kind, other.dataset, other.output) == ("idsds", dataset, case.output)
            ]
            scores = published.means[0][np.ix_(networks, list(pairs))]
            run_scores = evidence.means[:, index, list(pairs.values())]
            # Leave out methods that few published networks were scored with, then networks that lack a method.
            is_shared = (~np.isnan(scores)).sum(0) > len(networks) / 2
            is_shared &= ~np.isnan(run_scores[0])
            scores = scores[~np.isnan(scores[:, is_shared]).any(1)][:, is_shared]
            if is_shared.sum() < MINIMUM_METHODS or len(scores) < 2:
                continue
            names, published_names = (
                [described.name for described, use in zip(chosen, is_shared, strict=True) if use]
                for chosen in (
                    [evidence.methods[index] for index in pairs.values()],
                    [published.methods[index] for index in pairs],
                )
            )
            where = {**dict(zip(CASE, (*case.network, case.metric), strict=True)), "published": dataset}
            yield _SharedMethods(where, names, published_names, run_scores[:, is_shared], scores)


def _agreement(shared: _SharedMethods, evidence: Evidence, level: float) -> dict[str, Any]:
    networks, count = shared.published_scores.shape
    drawn = evidence.over_networks().network_counts(networks).astype(float)
    row: dict[str, Any] = {"networks": networks, "methods": count}
    for name, correlate in zip(COEFFICIENTS, (correlate_ranks, kendall_rows), strict=True):
        each = np.stack(
            [
                correlate(shared.run_scores, np.broadcast_to(published_scores, shared.run_scores.shape))
                for published_scores in shared.published_scores
            ],
            axis=1,
        )
        draws = (each * drawn).sum(1) / drawn.sum(1)
        low, high = np.nanquantile(draws[1:], [(1 - level) / 2, (1 + level) / 2]) if len(draws) > 1 else (np.nan,) * 2
        among = [
            correlate(first_scores[None], second_scores[None])[0]
            for first_scores, second_scores in combinations(shared.published_scores, 2)
        ]
        row |= {name: draws[0], f"{name}_low": low, f"{name}_high": high, f"{name}_among": float(np.mean(among))}
    return row


def kendall_rows(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return Kendall's τ-b of each row (R, M) of two arrays; NaN for constant rows."""
    first, second = np.triu_indices(a.shape[1], 1)
    signs, other_signs = (np.sign(values[:, first] - values[:, second]) for values in (a, b))
    size = np.sqrt((signs**2).sum(1) * (other_signs**2).sum(1))
    return np.divide((signs * other_signs).sum(1), size, out=np.full(len(a), np.nan), where=size > 0)

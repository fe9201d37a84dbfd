"""Contrasts between kinds of networks, with intervals over their trainings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations

import numpy as np

from heatproof.claims.evidence import DESIGN, Evidence, Model, NetworkKind
from heatproof.claims.verdicts import MINIMUM_SEEDS, Measurement, Untestable

Pairs = list[tuple[NetworkKind, NetworkKind]]
TOO_FEW_TRAININGS = "a claim on design needs {} trainings of each kind (training_seeds), and there {}"


def network_kinds(e: Evidence, cases: Sequence[int]) -> dict[NetworkKind, Model]:
    """Return the kinds of network of some test cases, each with one of its models."""
    return {e.network_kind(case): e.model_of(case) for case in reversed(cases)}


def pairs_differing_in(e: Evidence, cases: Sequence[int], changed: str) -> Pairs:
    """Return the pairs of kinds on one dataset that differ only in one property of `DESIGN`, the larger value first."""
    pairs = []
    for (a, kind), (b, other_kind) in combinations(network_kinds(e, cases).items(), 2):
        value, other_value = getattr(kind, changed), getattr(other_kind, changed)
        same = all(getattr(kind, name) == getattr(other_kind, name) for name in DESIGN if name != changed)
        if a[0] == b[0] and same and None not in (value, other_value) and value != other_value:
            pairs.append((a, b) if value > other_value else (b, a))
    return pairs


def family_pairs(e: Evidence, cases: Sequence[int], first: str, second: str) -> Pairs:
    """Return the pairs of kinds on one dataset, one of each family, with biases, and equal in batch norm.

    Vision transformers have no batch norm: they are compared with both.
    """
    all_kinds = network_kinds(e, cases)
    return [
        (a, b)
        for a, kind in all_kinds.items()
        for b, other_kind in all_kinds.items()
        if a[0] == b[0] and (kind.family, other_kind.family) == (first, second) and kind.bias and other_kind.bias
        if kind.batch_norm == other_kind.batch_norm or "vit" in (first, second)
    ]


def contrast(e: Evidence, cases: Sequence[int], pairs: Pairs, methods: Sequence[int] | None = None) -> Measurement:
    """Return the mean difference between kinds of network, over pairs of kinds and over the methods that all have.

    Parameters
    ----------
    e
        The scores.
    cases
        Test cases of one metric, grid and baseline. The finetunings of one training are averaged.
    pairs
        Kinds to compare; the second is subtracted from the first.
    methods
        Indices of the methods; by default all that use the model.
    """
    chosen = e.methods_using_model() if methods is None else list(methods)
    terms: dict[NetworkKind, np.ndarray] = {}
    shares = []
    used = []
    for pair in pairs:
        sides = [_scores_by_training(e, cases, network_kind, chosen) for network_kind in pair]
        shared = ~np.isnan(np.concatenate(sides)).any(axis=0)
        if shared.any():
            used.append((pair, [side[:, shared] for side in sides]))
    if not used:
        raise Untestable("no two such models have scores of the same method")
    for pair, sides in used:
        shares.append(sides[0].mean(0) - sides[1].mean(0))
        for network_kind, side, sign in zip(pair, sides, (1, -1), strict=True):
            terms[network_kind] = terms.get(network_kind, np.zeros(len(side))) + sign * side.mean(1) / len(used)
    differences = np.concatenate(shares)
    up = int((differences > 0).sum())
    return welch(terms, f"pairs of networks: {len(used)}, methods that rise: {up} of {len(differences)}")


def _scores_by_training(
    e: Evidence, cases: Sequence[int], network_kind: NetworkKind, methods: Sequence[int]
) -> np.ndarray:
    """Return the mean scores (trainings, methods) of a kind of network."""
    by_training: dict[str, list[np.ndarray]] = {}
    for case in cases:
        if e.network_kind(case) == network_kind:
            by_training.setdefault(e.cases[case].model, []).append(e.means[0, case, methods])
    return np.stack([np.mean(rows, axis=0) for rows in by_training.values()])


def values_by_training(
    e: Evidence, cases: Sequence[int], value: Callable[[int], float]
) -> dict[NetworkKind, np.ndarray]:
    """Return one value per training, by kind of network; trainings without a value are left out."""
    by_training: dict[NetworkKind, dict[str, list[float]]] = {}
    for case in cases:
        case_value = value(case)
        if not np.isnan(case_value):
            by_training.setdefault(e.network_kind(case), {}).setdefault(e.cases[case].model, []).append(case_value)
    return {
        network_kind: np.array([np.mean(rows) for rows in models.values()])
        for network_kind, models in by_training.items()
    }


def welch(terms: dict[NetworkKind, np.ndarray], basis: str) -> Measurement:
    """Return the sum over kinds of the mean over their trainings, with Welch's error and degrees of freedom.

    Raises
    ------
    Untestable
        If a kind has fewer trainings than `MINIMUM_SEEDS`; the exception carries the value.
    """
    value = sum(float(term.mean()) for term in terms.values())
    seeds = min(len(term) for term in terms.values())
    if seeds < MINIMUM_SEEDS:
        raise Untestable(TOO_FEW_TRAININGS.format(MINIMUM_SEEDS, f"are {seeds}" if seeds > 1 else "is 1"), value)
    variances = np.array([term.var(ddof=1) / len(term) for term in terms.values()])
    sizes = np.array([len(term) for term in terms.values()])
    total = variances.sum()
    freedom = total**2 / (variances**2 / (sizes - 1)).sum() if total > 0 else np.nan
    return Measurement(np.array([value]), basis, len(terms), float(np.sqrt(total)), float(freedom), seeds)

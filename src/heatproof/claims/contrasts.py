"""Contrasts between kinds of networks, with intervals over their trainings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations

import numpy as np

from heatproof.claims.evidence import DESIGN, Evidence, Model, Unit
from heatproof.claims.verdicts import LEAST_SEEDS, Measured, Untestable

Pairs = list[tuple[Unit, Unit]]
FEW = "a claim on design needs {} trainings a side (training_seeds), and there {}"


def kinds(e: Evidence, cases: Sequence[int]) -> dict[Unit, Model]:
    """Return the kinds of network of some test cases, each with one of its models."""
    return {e.unit(case): e.model_of(case) for case in reversed(cases)}


def differing(e: Evidence, cases: Sequence[int], changed: str) -> Pairs:
    """Return the pairs of kinds on one dataset that differ only in one property of `DESIGN`, the larger value first."""
    pairs = []
    for (a, one), (b, other) in combinations(kinds(e, cases).items(), 2):
        mine, theirs = getattr(one, changed), getattr(other, changed)
        same = all(getattr(one, name) == getattr(other, name) for name in DESIGN if name != changed)
        if a[0] == b[0] and same and None not in (mine, theirs) and mine != theirs:
            pairs.append((a, b) if mine > theirs else (b, a))
    return pairs


def families(e: Evidence, cases: Sequence[int], first: str, second: str) -> Pairs:
    """Return the pairs of kinds on one dataset, one of each family, with biases, and equal in batch norm.

    Vision transformers have no batch norm: they are compared with both.
    """
    every = kinds(e, cases)
    return [
        (a, b)
        for a, one in every.items()
        for b, other in every.items()
        if a[0] == b[0] and (one.family, other.family) == (first, second) and one.bias and other.bias
        if one.batch_norm == other.batch_norm or "vit" in (first, second)
    ]


def contrast(e: Evidence, cases: Sequence[int], pairs: Pairs, methods: Sequence[int] | None = None) -> Measured:
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
    chosen = e.explaining() if methods is None else list(methods)
    terms: dict[Unit, np.ndarray] = {}
    shares = []
    used = []
    for pair in pairs:
        sides = [_trainings(e, cases, unit, chosen) for unit in pair]
        shared = ~np.isnan(np.concatenate(sides)).any(axis=0)
        if shared.any():
            used.append((pair, [side[:, shared] for side in sides]))
    if not used:
        raise Untestable("no two such models have scores of one method")
    for pair, sides in used:
        shares.append(sides[0].mean(0) - sides[1].mean(0))
        for unit, side, sign in zip(pair, sides, (1, -1), strict=True):
            terms[unit] = terms.get(unit, np.zeros(len(side))) + sign * side.mean(1) / len(used)
    every = np.concatenate(shares)
    up = int((every > 0).sum())
    return welch(terms, f"pairs of networks: {len(used)}, methods that rise: {up} of {len(every)}")


def _trainings(e: Evidence, cases: Sequence[int], unit: Unit, methods: Sequence[int]) -> np.ndarray:
    """Return the mean scores (trainings, methods) of a kind of network."""
    per: dict[str, list[np.ndarray]] = {}
    for case in cases:
        if e.unit(case) == unit:
            per.setdefault(e.cases[case].model, []).append(e.means[0, case, methods])
    return np.stack([np.mean(rows, axis=0) for rows in per.values()])


def each_training(e: Evidence, cases: Sequence[int], value: Callable[[int], float]) -> dict[Unit, np.ndarray]:
    """Return one value per training, by kind of network; trainings without a value are left out."""
    per: dict[Unit, dict[str, list[float]]] = {}
    for case in cases:
        found = value(case)
        if not np.isnan(found):
            per.setdefault(e.unit(case), {}).setdefault(e.cases[case].model, []).append(found)
    return {unit: np.array([np.mean(rows) for rows in models.values()]) for unit, models in per.items()}


def welch(terms: dict[Unit, np.ndarray], basis: str) -> Measured:
    """Return the sum over kinds of the mean over their trainings, with Welch's error and degrees of freedom.

    Raises
    ------
    Untestable
        If a kind has fewer trainings than `LEAST_SEEDS`; the exception carries the value.
    """
    value = sum(float(term.mean()) for term in terms.values())
    seeds = min(len(term) for term in terms.values())
    if seeds < LEAST_SEEDS:
        raise Untestable(FEW.format(LEAST_SEEDS, f"are {seeds}" if seeds > 1 else "is 1"), value)
    variances = np.array([term.var(ddof=1) / len(term) for term in terms.values()])
    sizes = np.array([len(term) for term in terms.values()])
    total = variances.sum()
    freedom = total**2 / (variances**2 / (sizes - 1)).sum() if total > 0 else np.nan
    return Measured(np.array([value]), basis, len(terms), float(np.sqrt(total)), float(freedom), seeds)

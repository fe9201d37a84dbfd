"""Stratified splits of classes, of several labels and of numbers, fixed by the seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest

import numpy as np

from heatproof.base.randomness import numpy_generator
from heatproof.errors import HeatproofError

# Numbers are divided by their size into so many classes at most, of so many rows at least.
MOST_BINS, LEAST_IN_BIN = 10, 10


def strata(labels: np.ndarray, units: int | None = None) -> np.ndarray:
    """Return the class by which each row is divided.

    Parameters
    ----------
    labels
        (N,) integers, classes themselves; (N, K) integers, 1 where a row has a label; or (N,) real numbers.
    units
        How many there are to be divided, of which each bin of numbers needs several; None: every row is one.

    Returns
    -------
    ndarray
        (N,) integers: of several labels the rarest that the row has, K where it has none; of numbers the bin, of bins
        with equally many rows.
    """
    if labels.ndim == 2:
        present = labels == 1
        counts = present.sum(axis=0)
        order = np.argsort(counts, kind="stable")
        return np.where(present.any(axis=1), order[present[:, order].argmax(axis=1)], labels.shape[1])
    if labels.dtype.kind != "f":
        return labels
    bins = max(1, min(MOST_BINS, (len(labels) if units is None else units) // LEAST_IN_BIN))
    # Equal numbers share their first rank, so that the order of the files decides nothing.
    ranks = np.searchsorted(np.sort(labels), labels)
    return ranks * bins // max(len(labels), 1)


def stratified_splits(labels: np.ndarray, fractions: Mapping[str, float], seed: int) -> dict[str, np.ndarray]:
    """Divide rows into the named splits and ``train``, stratified by class.

    Parameters
    ----------
    labels
        As in `strata`.
    fractions
        Share of every class for each split; the rest is ``train``.
    seed
        The workflow's seed.

    Returns
    -------
    dict
        Split name to row numbers. Classes alternate along each split, so that any first n images are balanced as
        well as n allows. Where classes have too few rows to be divided (see `is_divisible`), splits are drawn from all
        rows at random.

    Raises
    ------
    HeatproofError
        If the shares leave a split without images.
    """
    check_shares(fractions)
    labels = strata(labels)
    if not is_divisible(labels, fractions):
        return _cut(numpy_generator(seed, "split of all rows").permutation(len(labels)), fractions)
    classes = [
        _cut(numpy_generator(seed, f"split of class {label}").permutation(np.flatnonzero(labels == label)), fractions)
        for label in np.unique(labels)
    ]
    return {name: _alternate([parts[name] for parts in classes]) for name in (*fractions, "train")}


def _cut(rows: np.ndarray, fractions: Mapping[str, float]) -> dict[str, np.ndarray]:
    """Cut rows into the named splits, in this order, and ``train``."""
    stops = np.cumsum([round(share * len(rows)) for share in fractions.values()])
    return dict(zip((*fractions, "train"), np.split(rows, stops), strict=True))


def is_divisible(labels: np.ndarray, fractions: Mapping[str, float]) -> bool:
    """Return whether every split gets a row if each class is divided by itself; with one row a class, none does."""
    counts = np.unique(strata(labels), return_counts=True)[1].tolist()
    taken = [sum(round(share * count) for count in counts) for share in fractions.values()]
    whole = sum(fractions.values()) >= 1
    return all(taken) and (whole or sum(taken) < len(labels))


def grouped_splits(
    labels: np.ndarray, groups: Sequence[str], fractions: Mapping[str, float], seed: int
) -> dict[str, np.ndarray]:
    """Divide rows into the named splits and ``train`` so that no group is in two of them.

    Groups go, the largest first, to the split that lacks most of what they have, class by class. (scikit-learn's
    `StratifiedGroupKFold` does so for folds of equal size; shares here are of any size.)

    Parameters
    ----------
    labels, fractions, seed
        As in `stratified_splits`; shares of classes are met as well as the groups allow.
    groups
        What each row belongs to, such as a patient.

    Returns
    -------
    dict
        Split name to row numbers, ascending.

    Raises
    ------
    HeatproofError
        If there are fewer groups than splits, a group is so large that a split stays empty, or a class has no training
        images because all of it is of one group.
    """
    check_shares(fractions)
    names = [*fractions, *(["train"] if sum(fractions.values()) < 1 else [])]
    keys, of_row = np.unique(np.asarray(groups, dtype=str), return_inverse=True)
    classes, numbers = np.unique(strata(labels, len(keys)), return_inverse=True)
    if len(keys) < len(names):
        raise HeatproofError(
            f"There are {len(keys)} groups for the splits {', '.join(names)}, and no group may be in two of them: add "
            "pictures of further groups, or leave the column of groups out."
        )
    counts = np.zeros((len(keys), len(classes)))
    np.add.at(counts, (of_row, numbers), 1)
    shares = np.array([*fractions.values(), 1 - sum(fractions.values())][: len(names)])
    # As shares of each class, so that rare ones count as much as others.
    lacking = np.repeat(shares[:, None], len(classes), axis=1)
    relative = counts / counts.sum(axis=0)
    drawn = numpy_generator(seed, "order of groups").permutation(len(keys))
    chosen = np.empty(len(keys), dtype=np.intp)
    for group in drawn[np.argsort(-counts[drawn].sum(axis=1), kind="stable")]:
        # The squared lack of a split falls by this much.
        gain = (2 * lacking * relative[group] - relative[group] ** 2).sum(axis=1)
        chosen[group] = gain.argmax()
        lacking[chosen[group]] -= relative[group]
    largest = str(keys[counts.sum(axis=1).argmax()])
    for number, name in enumerate(names):
        if not (chosen == number).any():
            raise HeatproofError(
                f"No group is left for the split {name!r}, because no group may be in two splits and the largest, "
                f"{largest!r}, has {int(counts.sum(axis=1).max())} of {len(labels)} pictures: divide it into smaller "
                "groups, add others, or change the shares."
            )
    if names[-1] == "train" and labels.dtype.kind != "f":
        _require_trained(labels, of_row, chosen[of_row] == len(names) - 1)
    return {name: np.flatnonzero(chosen[of_row] == number) for number, name in enumerate((*fractions, "train"))}


def _require_trained(labels: np.ndarray, groups: np.ndarray, trained: np.ndarray) -> None:
    """Refuse groups that leave nothing of a class, or of a label, to train on."""
    if labels.ndim == 2:
        untrained = np.flatnonzero((labels == 1).any(axis=0) & ~(labels[trained] == 1).any(axis=0))
    else:
        untrained = np.setdiff1d(labels, labels[trained])
    if len(untrained):
        rows = labels[:, untrained[0]] == 1 if labels.ndim == 2 else labels == untrained[0]
        raise HeatproofError(
            f"The class number {untrained[0]} has pictures of {len(np.unique(groups[rows]))} group(s) alone, so that "
            "none are left to train on: add pictures of other groups, or leave the class out."
        )


def balanced_order(labels: np.ndarray, seed: int) -> np.ndarray:
    """Return an order of all rows in which every prefix is balanced over the classes.

    Parameters
    ----------
    labels
        As in `strata`.
    seed
        The workflow's seed; it says which class comes when and which of its rows.

    Returns
    -------
    ndarray
        (N,) int64, every row once.
    """
    labels = strata(labels)
    # The classes of a thousand are often sorted by kind: without this the first 64 images would all be fish and birds.
    classes_drawn = numpy_generator(seed, "order of classes").permutation(np.unique(labels))
    return _alternate(
        [
            numpy_generator(seed, f"order of class {label}").permutation(np.flatnonzero(labels == label))
            for label in classes_drawn
        ]
    )


def check_shares(fractions: Mapping[str, float]) -> None:
    """Check that shares leave images in every split.

    Raises
    ------
    HeatproofError
        If a share is not a positive number, or nothing is left for ``train`` and not all is for ``evaluation``.
    """
    for name, share in fractions.items():
        if share == 1 and name == "evaluation" and len(fractions) == 1:
            return
        if not isinstance(share, int | float) or not 0 < share < 1:
            raise HeatproofError(f"The share of the split {name!r} must lie between 0 and 1, not {share!r}.")
    if sum(fractions.values()) >= 1:
        given = " and ".join(f"{name} {share}" for name, share in fractions.items())
        raise HeatproofError(f"The shares {given} leave no training images: their sum must be below 1.")


def _alternate(classes: Sequence[np.ndarray]) -> np.ndarray:
    """Return the first row of every class, then the second of every class that has one, and so on."""
    turns = zip_longest(*(rows.tolist() for rows in classes))
    return np.array([row for turn in turns for row in turn if row is not None], dtype=np.int64)

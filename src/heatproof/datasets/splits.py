"""Splits that are stratified by class, label or value, and determined by the seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest

import numpy as np

from heatproof.core.randomness import numpy_generator
from heatproof.errors import HeatproofError

# Values of a regression are divided into at most this number of bins, each of at least this number of rows.
MAX_BINS, MIN_ROWS_PER_BIN = 10, 10


def strata(labels: np.ndarray, units: int | None = None) -> np.ndarray:
    """Return the stratum of each row.

    Parameters
    ----------
    labels
        (N,) integers, the classes; (N, K) integers, 1 for a label that a row has; or (N,) values of a regression.
    units
        Number of units that are divided, for example groups, of which each bin of values needs several; None for the
        number of rows.

    Returns
    -------
    ndarray
        (N,) integers: the class; with several labels the rarest label of the row, K for rows without labels; for values
        the number of the bin, where all bins have the same number of rows.
    """
    if labels.ndim == 2:
        present = labels == 1
        counts = present.sum(axis=0)
        order = np.argsort(counts, kind="stable")
        return np.where(present.any(axis=1), order[present[:, order].argmax(axis=1)], labels.shape[1])
    if labels.dtype.kind != "f":
        return labels
    bins = max(1, min(MAX_BINS, (len(labels) if units is None else units) // MIN_ROWS_PER_BIN))
    # Equal values share their lowest rank, so that bins do not depend on the order of the files.
    ranks = np.searchsorted(np.sort(labels), labels)
    return ranks * bins // max(len(labels), 1)


def stratified_splits(labels: np.ndarray, fractions: Mapping[str, float], seed: int) -> dict[str, np.ndarray]:
    """Divide rows into the named splits and ``train``, stratified by class.

    Parameters
    ----------
    labels
        As in `strata`.
    fractions
        Fraction of every class for each split; the rest is ``train``.
    seed
        The workflow's seed.

    Returns
    -------
    dict
        Split name to row numbers. Classes alternate in each split, so that its first n images are as balanced as
        possible. If classes have too few rows to be divided (see `is_divisible`), the splits are random samples of all
        rows.

    Raises
    ------
    HeatproofError
        If a split would have no images.
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
    """Cut rows into the named splits, in their order, and ``train``."""
    stops = np.cumsum([round(share * len(rows)) for share in fractions.values()])
    return dict(zip((*fractions, "train"), np.split(rows, stops), strict=True))


def is_divisible(labels: np.ndarray, fractions: Mapping[str, float]) -> bool:
    """Return whether every split gets a row if each class is divided separately; with one row per class, none does."""
    counts = np.unique(strata(labels), return_counts=True)[1].tolist()
    split_sizes = [sum(round(share * count) for count in counts) for share in fractions.values()]
    uses_all_rows = sum(fractions.values()) >= 1
    return all(split_sizes) and (uses_all_rows or sum(split_sizes) < len(labels))


def grouped_splits(
    labels: np.ndarray, groups: Sequence[str], fractions: Mapping[str, float], seed: int
) -> dict[str, np.ndarray]:
    """Divide rows into the named splits and ``train`` so that no group is in two of them.

    Groups are assigned one after another, the largest first, to the split whose deficit over the classes decreases
    most. (scikit-learn's `StratifiedGroupKFold` does the same for folds of equal size; here, sizes can differ.)

    Parameters
    ----------
    labels, fractions, seed
        As in `stratified_splits`; fractions of classes are as close as the groups permit.
    groups
        Group of each row, such as a patient.

    Returns
    -------
    dict
        Split name to row numbers, ascending.

    Raises
    ------
    HeatproofError
        If there are fewer groups than splits, a split remains empty because a group is too large, or a class has no
        training images because all its images are in groups of other splits.
    """
    check_shares(fractions)
    names = [*fractions, *(["train"] if sum(fractions.values()) < 1 else [])]
    keys, of_row = np.unique(np.asarray(groups, dtype=str), return_inverse=True)
    classes, numbers = np.unique(strata(labels, len(keys)), return_inverse=True)
    if len(keys) < len(names):
        raise HeatproofError(
            f"There are {len(keys)} groups for the splits {', '.join(names)}, and no group may be in two of them: add "
            "images of further groups, or leave the column of groups out."
        )
    counts = np.zeros((len(keys), len(classes)))
    np.add.at(counts, (of_row, numbers), 1)
    shares = np.array([*fractions.values(), 1 - sum(fractions.values())][: len(names)])
    # Fractions of each class, so that rare classes have the same weight as others.
    deficit = np.repeat(shares[:, None], len(classes), axis=1)
    fractions_of_group = counts / counts.sum(axis=0)
    random_order = numpy_generator(seed, "order of groups").permutation(len(keys))
    chosen = np.empty(len(keys), dtype=np.intp)
    for group in random_order[np.argsort(-counts[random_order].sum(axis=1), kind="stable")]:
        # The decrease of the squared deficit of each split.
        gain = (2 * deficit * fractions_of_group[group] - fractions_of_group[group] ** 2).sum(axis=1)
        chosen[group] = gain.argmax()
        deficit[chosen[group]] -= fractions_of_group[group]
    largest = str(keys[counts.sum(axis=1).argmax()])
    for number, name in enumerate(names):
        if not (chosen == number).any():
            raise HeatproofError(
                f"No group is left for the split {name!r}, because no group may be in two splits and the largest, "
                f"{largest!r}, has {int(counts.sum(axis=1).max())} of {len(labels)} images: divide it into smaller "
                "groups, add others, or change the shares."
            )
    if names[-1] == "train" and labels.dtype.kind != "f":
        _require_trained(labels, of_row, chosen[of_row] == len(names) - 1)
    return {name: np.flatnonzero(chosen[of_row] == number) for number, name in enumerate((*fractions, "train"))}


def _require_trained(labels: np.ndarray, groups: np.ndarray, trained: np.ndarray) -> None:
    """Check that every class, or label, has training images."""
    if labels.ndim == 2:
        untrained = np.flatnonzero((labels == 1).any(axis=0) & ~(labels[trained] == 1).any(axis=0))
    else:
        untrained = np.setdiff1d(labels, labels[trained])
    if len(untrained):
        rows = labels[:, untrained[0]] == 1 if labels.ndim == 2 else labels == untrained[0]
        raise HeatproofError(
            f"The class number {untrained[0]} has images of {len(np.unique(groups[rows]))} group(s) alone, so that "
            "none are left to train on: add images of other groups, or leave the class out."
        )


def balanced_order(labels: np.ndarray, seed: int) -> np.ndarray:
    """Return an order of all rows in which every prefix is balanced over the classes.

    Parameters
    ----------
    labels
        As in `strata`.
    seed
        The workflow's seed, which determines the order of the classes and of the rows of each class.

    Returns
    -------
    ndarray
        (N,) int64, every row once.
    """
    labels = strata(labels)
    # A thousand classes are often sorted by topic: with this order, the first 64 images of ImageNet would all be fish
    # and birds.
    classes_drawn = numpy_generator(seed, "order of classes").permutation(np.unique(labels))
    return _alternate(
        [
            numpy_generator(seed, f"order of class {label}").permutation(np.flatnonzero(labels == label))
            for label in classes_drawn
        ]
    )


def check_shares(fractions: Mapping[str, float]) -> None:
    """Check that fractions leave images for every split.

    Raises
    ------
    HeatproofError
        If a fraction is not between 0 and 1, or ``train`` has no images; only ``evaluation`` alone may have all images.
    """
    for name, share in fractions.items():
        if share == 1 and name == "evaluation" and len(fractions) == 1:
            return
        if not isinstance(share, int | float) or not 0 < share < 1:
            raise HeatproofError(f"The share of the split {name!r} must lie between 0 and 1, not {share!r}.")
    if sum(fractions.values()) >= 1:
        fractions_text = " and ".join(f"{name} {share}" for name, share in fractions.items())
        raise HeatproofError(f"The shares {fractions_text} leave no training images: their sum must be below 1.")


def _alternate(classes: Sequence[np.ndarray]) -> np.ndarray:
    """Return the first row of every class, then the second row of every class that has one, and so on."""
    turns = zip_longest(*(rows.tolist() for rows in classes))
    return np.array([row for turn in turns for row in turn if row is not None], dtype=np.int64)

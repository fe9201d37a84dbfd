"""Stratified splits, fixed by the seed."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from heatproof.errors import HeatproofError
from heatproof.randomness import numpy_generator


def stratified_splits(labels: np.ndarray, fractions: Mapping[str, float], seed: int) -> dict[str, np.ndarray]:
    """Divide rows into the named splits and ``train``, stratified by class.

    Parameters
    ----------
    labels
        (N,) integers.
    fractions
        Share of every class for each split; the rest is ``train``.
    seed
        The workflow's seed.

    Returns
    -------
    dict
        Split name to row numbers. Classes alternate along each split, so that any first n images are balanced as
        well as n allows. Where every class has one image, images are drawn whatever their class.

    Raises
    ------
    HeatproofError
        If the shares leave a split without images.
    """
    check_shares(fractions)
    parts: dict[str, list[list[int]]] = {name: [] for name in (*fractions, "train")}
    if len(np.unique(labels)) == len(labels):
        labels = np.zeros_like(labels)
    for label in np.unique(labels):
        rows = numpy_generator(seed, f"split of class {label}").permutation(np.flatnonzero(labels == label))
        start = 0
        for name, fraction in fractions.items():
            stop = start + round(fraction * len(rows))
            parts[name].append(rows[start:stop].tolist())
            start = stop
        parts["train"].append(rows[start:].tolist())
    return {name: np.array(_alternate(classes), dtype=np.int64) for name, classes in parts.items()}


def grouped_splits(groups: np.ndarray, fractions: Mapping[str, float], seed: int) -> dict[str, np.ndarray]:
    """Divide rows into the named splits and ``train`` such that no group is in two of them.

    Parameters
    ----------
    groups
        (N,) what the image is of, for example a patient.
    fractions
        Share of the groups for each split; the rest is ``train``.
    seed
        The workflow's seed.

    Returns
    -------
    dict
        Split name to row numbers.

    Raises
    ------
    HeatproofError
        If there are too few groups for a split to have one.
    """
    check_shares(fractions)
    drawn = numpy_generator(seed, "split of groups").permutation(np.unique(groups))
    parts: dict[str, np.ndarray] = {}
    start = 0
    for name, fraction in {**fractions, "train": 1 - sum(fractions.values())}.items():
        stop = len(drawn) if name == "train" else start + round(fraction * len(drawn))
        if stop == start:
            raise HeatproofError(
                f"The images are of {len(drawn)} groups, of which a share of {fraction:g} is none for {name}: "
                "raise the share, or leave the groups out."
            )
        parts[name] = np.flatnonzero(np.isin(groups, drawn[start:stop]))
        start = stop
    return parts


def balanced_order(labels: np.ndarray, seed: int) -> np.ndarray:
    """Return an order of all rows in which every prefix is balanced over the classes.

    Parameters
    ----------
    labels
        (N,) integers.
    seed
        The workflow's seed; it says which class comes when and which of its rows.

    Returns
    -------
    ndarray
        (N,) int64, every row once.
    """
    # The classes of a thousand are often sorted by kind: without this the first 64 images would all be fish and birds.
    classes_drawn = numpy_generator(seed, "order of classes").permutation(np.unique(labels))
    classes = [
        numpy_generator(seed, f"order of class {label}").permutation(np.flatnonzero(labels == label)).tolist()
        for label in classes_drawn
    ]
    return np.array(_alternate(classes), dtype=np.int64)


def check_shares(fractions: Mapping[str, float]) -> None:
    """Check that shares leave images in every split.

    Raises
    ------
    HeatproofError
        If a share is not a positive number, or nothing is left for ``train``.
    """
    for name, share in fractions.items():
        if not isinstance(share, int | float) or not 0 < share < 1:
            raise HeatproofError(f"The share of the split {name!r} must lie between 0 and 1, not {share!r}.")
    if sum(fractions.values()) >= 1:
        given = " and ".join(f"{name} {share}" for name, share in fractions.items())
        raise HeatproofError(f"The shares {given} leave no training images: their sum must be below 1.")


def _alternate(classes: list[list[int]]) -> list[int]:
    longest = max((len(rows) for rows in classes), default=0)
    return [rows[index] for index in range(longest) for rows in classes if index < len(rows)]

"""Splits by class, fixed by seed."""

import numpy as np
import pytest

from heatproof.data.splits import stratified_splits
from heatproof.errors import HeatproofError

LABELS = np.repeat([0, 1, 2, 5], [40, 25, 60, 31])[np.random.default_rng(0).permutation(156)]
SHARES = {"validation": 0.2, "evaluation": 0.3}


@pytest.fixture(scope="module")
def rows():
    return stratified_splits(LABELS, SHARES, seed=0)


def test_every_row_is_in_one_split(rows):
    assert set(rows) == {"validation", "evaluation", "train"}
    np.testing.assert_array_equal(np.sort(np.concatenate(list(rows.values()))), np.arange(len(LABELS)))


@pytest.mark.parametrize(("split", "share"), [*SHARES.items(), ("train", 0.5)])
def test_every_class_has_its_share(rows, split, share):
    for label in np.unique(LABELS):
        size = (label == LABELS).sum()
        found = (LABELS[rows[split]] == label).sum()
        assert abs(found - share * size) <= 1, label


@pytest.mark.parametrize("split", ["train", "validation", "evaluation"])
def test_any_first_images_are_balanced(rows, split):
    labels = LABELS[rows[split]]
    sizes = {label: (labels == label).sum() for label in np.unique(labels)}
    for first in range(1, len(labels) + 1):
        counts = {label: (labels[:first] == label).sum() for label in sizes}
        open_classes = [counts[label] for label in sizes if counts[label] < sizes[label]]
        # Only a class that has run out may lag behind.
        assert not open_classes or max(counts.values()) - min(open_classes) <= 1


def test_the_seed_fixes_them(rows):
    again, other = (stratified_splits(LABELS, SHARES, seed) for seed in (0, 1))
    for split in rows:
        np.testing.assert_array_equal(rows[split], again[split])
        assert not np.array_equal(rows[split], other[split])
        # Which class comes when does not depend on the seed.
        np.testing.assert_array_equal(LABELS[rows[split]], LABELS[other[split]])


def test_a_class_keeps_its_split_when_another_class_changes(rows):
    """New images of one class do not move what others train on."""
    more = np.concatenate([LABELS, np.full(9, 5)])
    moved = stratified_splits(more, SHARES, seed=0)
    for split in rows:
        kept = rows[split][LABELS[rows[split]] != 5]
        np.testing.assert_array_equal(kept, moved[split][more[moved[split]] != 5])


@pytest.mark.parametrize(
    ("shares", "message"),
    [
        ({"validation": 0.0, "evaluation": 0.2}, "'validation' must lie between 0 and 1, not 0.0"),
        ({"validation": 0.2, "evaluation": -0.1}, "'evaluation' must lie between 0 and 1, not -0.1"),
        ({"validation": "0.2", "evaluation": 0.2}, "'validation' must lie between 0 and 1, not '0.2'"),
        ({"validation": float("nan"), "evaluation": 0.2}, "'validation' must lie"),
        ({"validation": 0.6, "evaluation": 0.4}, "validation 0.6 and evaluation 0.4 leave no training images"),
    ],
)
def test_shares_that_make_no_sense(shares, message):
    with pytest.raises(HeatproofError, match=message):
        stratified_splits(LABELS, shares, seed=0)

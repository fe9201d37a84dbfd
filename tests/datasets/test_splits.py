"""Stratified splits that the seed determines."""

import hashlib

import numpy as np
import pytest

from heatproof.datasets.splits import balanced_order, grouped_splits, strata, stratified_splits
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
        size_of_split = (LABELS[rows[split]] == label).sum()
        assert abs(size_of_split - share * size) <= 1, label


@pytest.mark.parametrize("split", ["train", "validation", "evaluation"])
def test_the_first_images_of_a_split_are_balanced(rows, split):
    labels = LABELS[rows[split]]
    sizes = {label: (labels == label).sum() for label in np.unique(labels)}
    for first in range(1, len(labels) + 1):
        counts = {label: (labels[:first] == label).sum() for label in sizes}
        open_classes = [counts[label] for label in sizes if counts[label] < sizes[label]]
        # Only a class without further images can have fewer.
        assert not open_classes or max(counts.values()) - min(open_classes) <= 1


def test_the_seed_determines_the_splits(rows):
    again, reseeded = (stratified_splits(LABELS, SHARES, seed) for seed in (0, 1))
    for split in rows:
        np.testing.assert_array_equal(rows[split], again[split])
        assert not np.array_equal(rows[split], reseeded[split])
        # The order of the classes does not depend on the seed.
        np.testing.assert_array_equal(LABELS[rows[split]], LABELS[reseeded[split]])


def test_a_class_keeps_its_split_when_another_class_changes(rows):
    """New images of one class do not change the training images of others."""
    more = np.concatenate([LABELS, np.full(9, 5)])
    moved = stratified_splits(more, SHARES, seed=0)
    for split in rows:
        unchanged = rows[split][LABELS[rows[split]] != 5]
        np.testing.assert_array_equal(unchanged, moved[split][more[moved[split]] != 5])


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
def test_invalid_shares_are_refused(shares, message):
    with pytest.raises(HeatproofError, match=message):
        stratified_splits(LABELS, shares, seed=0)


SEVERAL = (np.random.default_rng(1).random((600, 4)) < [0.5, 0.2, 0.05, 0.02]).astype(np.int8)
NUMBERS = np.random.default_rng(2).lognormal(size=500)


@pytest.mark.parametrize("labels", [SEVERAL, NUMBERS], ids=["several labels", "numbers"])
def test_every_row_of_other_tasks_is_in_one_split(labels):
    first, again, reseeded = (stratified_splits(labels, SHARES, seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(np.sort(np.concatenate(list(first.values()))), np.arange(len(labels)))
    for split, share in [*SHARES.items(), ("train", 0.5)]:
        np.testing.assert_array_equal(first[split], again[split])
        assert not np.array_equal(first[split], reseeded[split])
        assert len(first[split]) == pytest.approx(share * len(labels), rel=0.03)


def test_every_label_has_its_share():
    splits = stratified_splits(SEVERAL, SHARES, seed=0)
    for split, share in [*SHARES.items(), ("train", 0.5)]:
        for label in range(4):
            count = SEVERAL[:, label].sum()
            # The rarest label is the stratum, so that fractions of commoner labels vary by chance.
            assert SEVERAL[splits[split], label].sum() == pytest.approx(share * count, abs=1 + 0.15 * count)


def test_numbers_have_one_distribution_in_all_splits():
    splits = stratified_splits(NUMBERS, SHARES, seed=0)
    for rows in splits.values():
        for low, high in zip(
            np.quantile(NUMBERS, np.arange(0, 1, 0.1)), np.quantile(NUMBERS, np.arange(0.1, 1.1, 0.1)), strict=True
        ):
            inside = ((NUMBERS[rows] >= low) & (NUMBERS[rows] <= high)).mean()
            assert inside == pytest.approx(0.1, abs=0.02)


def test_unknown_labels_are_not_present():
    labels = np.where(SEVERAL == 0, -1, SEVERAL).astype(np.int8)
    np.testing.assert_array_equal(strata(labels), strata(SEVERAL))
    assert strata(np.array([[1, 1], [1, 0], [-1, 0]], np.int8)).tolist() == [1, 0, 2]


def test_splits_of_classes_have_a_fixed_digest():
    labels = np.random.default_rng(0).integers(0, 7, 200)
    groups = [f"g{number}" for number in np.random.default_rng(1).integers(0, 50, 200)]
    shares, digest = {"validation": 0.2, "evaluation": 0.3}, hashlib.sha256()
    for splits in (stratified_splits(labels, shares, 3), grouped_splits(labels, groups, shares, 3)):
        for name in sorted(splits):
            digest.update(splits[name].astype(np.int64).tobytes())
    digest.update(balanced_order(labels, 3).astype(np.int64).tobytes())
    assert digest.hexdigest() == "febe1629c567ae706767a44bf8b7c60f9e5f8bb9db177105878aa948401c0ac2"


def test_the_strata_of_classes_are_the_classes():
    assert strata(LABELS) is LABELS


def test_few_numbers_form_one_stratum():
    assert set(strata(np.arange(12.0))) == {0}
    splits = stratified_splits(np.arange(12.0), SHARES, seed=0)
    assert {name: len(rows) for name, rows in splits.items()} == {"validation": 2, "evaluation": 4, "train": 6}


def test_equal_numbers_are_in_one_stratum():
    assert set(strata(np.repeat([0.0, 1.0], 50))) == {0, 5}


@pytest.mark.parametrize("labels", [SEVERAL, NUMBERS], ids=["several labels", "numbers"])
def test_groups_are_respected_for_other_tasks(labels):
    groups = [f"g{number}" for number in np.random.default_rng(3).integers(0, 80, len(labels))]
    splits = grouped_splits(labels, groups, SHARES, 0)
    seen = [{groups[row] for row in rows} for rows in splits.values()]
    assert sum(map(len, seen)) == len(set(groups))
    for split, share in [*SHARES.items(), ("train", 0.5)]:
        assert len(splits[split]) == pytest.approx(share * len(labels), rel=0.1)


def test_a_label_with_a_single_group_is_refused():
    labels = np.zeros((40, 2), np.int8)
    labels[:, 0] = 1
    labels[:8, 1] = 1
    groups = [f"g{max(0, row - 7)}" for row in range(40)]
    with pytest.raises(HeatproofError, match=r"class number 1 has images of 1 group\(s\) alone"):
        grouped_splits(labels, groups, {"validation": 0.3, "evaluation": 0.4}, 0)


def test_the_first_images_have_all_strata():
    order = balanced_order(SEVERAL, 0)
    assert sorted(order) == list(range(len(SEVERAL)))
    assert set(strata(SEVERAL)[order[:5]].tolist()) == {0, 1, 2, 3, 4}
    assert len(set(strata(NUMBERS)[balanced_order(NUMBERS, 0)[:10]].tolist())) == 10

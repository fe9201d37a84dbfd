"""Splits are listed on first use, and images are read on access."""

import numpy as np
import pytest

from heatproof.datasets.lazy import FileList, LazyDataset
from heatproof.errors import HeatproofError

LABELS = np.repeat([0, 1, 2], [30, 20, 10])


class Source:
    """List a part, and count the calls."""

    def __init__(self, name, labels=LABELS):
        self.name, self.labels, self.times = name, labels, 0

    def __call__(self):
        self.times += 1
        rows = range(len(self.labels))
        return FileList([f"{self.name}-{row}" for row in rows], self.labels, list(rows))


def make_dataset(parts, shares, seed=0, limits=None, places_read=None):
    def read(places):
        if places_read is not None:
            places_read.extend(places)
        return np.array(places, dtype=np.float32).reshape(-1, 1, 1, 1)

    return LazyDataset("abc", parts, read, seed=seed, shares=shares, limits=limits)


def test_only_used_parts_are_listed_and_only_requested_images_are_read():
    train, evaluation, places_read = Source("train"), Source("test"), []
    dataset = make_dataset({"train": train, "evaluation": evaluation}, {"validation": 0.1}, places_read=places_read)
    assert (train.times, evaluation.times) == (0, 0)
    images = dataset.images("evaluation", 4, 7)
    split = dataset.splits["evaluation"]
    assert (train.times, evaluation.times) == (0, 1)
    assert [f"test-{row}" for row in places_read] == list(split.ids[4:7])
    assert images.ravel().tolist() == places_read
    assert (len(dataset.splits["train"]), len(dataset.splits["validation"])) == (54, 6)
    assert (train.times, evaluation.times) == (1, 1)


def test_a_single_part_is_divided_without_overlap():
    splits = make_dataset({"train": Source("all")}, {"validation": 0.2, "evaluation": 0.3}).splits
    assert {name: len(split) for name, split in splits.items()} == {"train": 30, "validation": 12, "evaluation": 18}
    assert {i for split in splits.values() for i in split.ids} == {f"all-{row}" for row in range(60)}
    for split in splits.values():
        np.testing.assert_array_equal(split.labels, LABELS[[int(i.partition("-")[2]) for i in split.ids]])


def test_order_is_fixed_by_the_seed():
    def ids(seed, split):
        return make_dataset({"train": Source("all")}, {"validation": 0.2, "evaluation": 0.3}, seed).splits[split].ids

    for split in ("train", "validation", "evaluation"):
        assert ids(0, split) == ids(0, split)
        assert ids(0, split) != ids(1, split)


def test_the_first_images_are_of_classes_from_the_complete_range():
    labels = np.repeat(np.arange(1000), 3)
    parts = {"train": Source("train"), "evaluation": Source("test", labels)}
    first = make_dataset(parts, {"validation": 0.1}).splits["evaluation"].labels[:64]
    assert len(set(first.tolist())) == 64
    assert 350 < first.mean() < 650


def test_limits_take_the_first_images_of_a_split():
    def of(limits):
        return make_dataset({"train": Source("all")}, {"validation": 0.2, "evaluation": 0.3}, limits=limits).splits

    full, short = of(None), of({"train": 7, "validation": None})
    assert short["train"].ids == full["train"].ids[:7]
    assert short["validation"].ids == full["validation"].ids
    assert sorted(np.bincount(short["train"].labels)) == [2, 2, 3]


def test_shares_are_checked_at_once():
    with pytest.raises(HeatproofError, match="'validation' must lie between 0 and 1"):
        make_dataset({"train": Source("all")}, {"validation": 1.5})


def test_there_is_no_fourth_split():
    with pytest.raises(KeyError):
        make_dataset({"train": Source("all")}, {"validation": 0.2, "evaluation": 0.3}).splits["test"]

"""Splits are listed on first use, and images are read on access."""

import numpy as np
import pytest

from heatproof.data.lazy import FileList, LazyDataset
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


def divided(parts, shares, seed=0, limits=None, asked=None):
    def read(places):
        if asked is not None:
            asked.extend(places)
        return np.array(places, dtype=np.float32).reshape(-1, 1, 1, 1)

    return LazyDataset("abc", parts, read, seed=seed, shares=shares, limits=limits)


def test_only_what_is_used_is_listed_and_only_what_is_asked_for_is_read():
    train, evaluation, asked = Source("train"), Source("test"), []
    made = divided({"train": train, "evaluation": evaluation}, {"validation": 0.1}, asked=asked)
    assert (train.times, evaluation.times) == (0, 0)
    images = made.images("evaluation", 4, 7)
    split = made.splits["evaluation"]
    assert (train.times, evaluation.times) == (0, 1)
    assert [f"test-{place}" for place in asked] == list(split.ids[4:7])
    assert images.ravel().tolist() == asked
    assert (len(made.splits["train"]), len(made.splits["validation"])) == (54, 6)
    assert (train.times, evaluation.times) == (1, 1)


def test_a_part_alone_is_divided_without_overlap():
    splits = divided({"train": Source("all")}, {"validation": 0.2, "evaluation": 0.3}).splits
    assert {name: len(split) for name, split in splits.items()} == {"train": 30, "validation": 12, "evaluation": 18}
    assert {i for split in splits.values() for i in split.ids} == {f"all-{row}" for row in range(60)}
    for split in splits.values():
        np.testing.assert_array_equal(split.labels, LABELS[[int(i.partition("-")[2]) for i in split.ids]])


def test_order_is_fixed_by_the_seed():
    def ids(seed, split):
        return divided({"train": Source("all")}, {"validation": 0.2, "evaluation": 0.3}, seed).splits[split].ids

    for split in ("train", "validation", "evaluation"):
        assert ids(0, split) == ids(0, split)
        assert ids(0, split) != ids(1, split)


def test_first_images_of_many_classes_are_of_classes_from_all_over():
    labels = np.repeat(np.arange(1000), 3)
    parts = {"train": Source("train"), "evaluation": Source("test", labels)}
    first = divided(parts, {"validation": 0.1}).splits["evaluation"].labels[:64]
    assert len(set(first.tolist())) == 64
    assert 350 < first.mean() < 650


def test_limits_take_the_first_of_the_whole_split():
    def of(limits):
        return divided({"train": Source("all")}, {"validation": 0.2, "evaluation": 0.3}, limits=limits).splits

    whole, short = of(None), of({"train": 7, "validation": None})
    assert short["train"].ids == whole["train"].ids[:7]
    assert short["validation"].ids == whole["validation"].ids
    assert sorted(np.bincount(short["train"].labels)) == [2, 2, 3]


def test_shares_are_checked_at_once():
    with pytest.raises(HeatproofError, match="'validation' must lie between 0 and 1"):
        divided({"train": Source("all")}, {"validation": 1.5})


def test_there_is_no_fourth_split():
    with pytest.raises(KeyError):
        divided({"train": Source("all")}, {"validation": 0.2, "evaluation": 0.3}).splits["test"]

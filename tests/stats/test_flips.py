"""Planted changes of rank are found, unchanged ranks are not, and undefined values are NaN."""

import numpy as np
import pytest

from heatproof.stats.flips import METHOD_COLUMNS, PAIR_COLUMNS, compare_levels

NAMES = [f"m{number}" for number in range(8)]
UP = {"a": True, "b": True}


def planted(order, images=40, noise=0.02, seed=0):
    """Return scores in which the first of `order` is the best, with steps of 0.1."""
    values = np.empty(8)
    values[list(order)] = np.linspace(0.8, 0.1, 8)
    generator = np.random.default_rng(seed)
    return values[:, None] + generator.normal(0, 0.3, images) + generator.normal(0, noise, (8, images))


def test_a_planted_flip_is_found():
    """The second method falls to the seventh place, and five others rise by one."""
    before, after = planted(range(8)), planted([0, 2, 3, 4, 5, 6, 1, 7], seed=1)
    methods, pairs = compare_levels({"a": before, "b": after}, NAMES, "a", UP, repetitions=200)
    changes = methods[methods["level"] == "b"].set_index("method")
    assert changes["rank_change"].to_dict() == {"m0": 0, "m1": 5, **{f"m{i}": -1 for i in range(2, 7)}, "m7": 0}
    assert changes.loc["m1", ["rank", "rank_change_low", "rank_change_high"]].tolist() == [7, 5, 5]
    (row,) = pairs.to_dict("records")
    assert row["spearman"] == pytest.approx(1 - 6 * (25 + 5) / (8 * 63))
    assert (row["n_moved"], row["n_moved_surely"], row["first"], row["other_first"]) == (1, 6, "m0", "m0")
    # Images are easy or hard for all methods, so that halves of the images rank alike, and levels do not.
    assert row["halves_same"] > 0.99
    assert row["halves_other"] == pytest.approx(row["spearman"], abs=0.01)


def test_a_method_defined_on_few_images_at_one_level_has_no_rank():
    before, after = planted(range(8)), planted(range(8), seed=1)
    after[3, 5:] = np.nan
    for least, count in ((0.5, 7), (0.0, 8)):
        by_method, pairs = compare_levels(
            {"a": before, "b": after}, NAMES, "a", UP, repetitions=20, least_coverage=least
        )
        assert pairs.loc[0, "n_methods"] == count
        assert by_method.loc[by_method["method"] == "m3", "rank"].isna().all() == (count == 7)
        assert by_method.loc[by_method["method"] == "m3", "score"].notna().all()


def test_the_same_scores_do_not_move():
    scores = planted(range(8), noise=0.4)
    methods, pairs = compare_levels({"a": scores, "b": scores}, NAMES, "a", UP, repetitions=50)
    assert (methods[["rank_change", "rank_change_low", "rank_change_high", "score_change"]] == 0).all(axis=None)
    assert pairs.loc[0, ["spearman", "kendall", "spearman_low"]].tolist() == pytest.approx([1, 1, 1])
    assert pairs.loc[0, ["n_moved", "n_moved_surely", "score_change"]].tolist() == [0, 0, 0]
    # With noisy images, a level does not agree with itself on other images either.
    assert pairs.loc[0, "halves_same"] == pairs.loc[0, "halves_other"] < 0.95


def test_a_change_of_the_score_is_paired():
    """Images differ by far more than levels do, but the interval does not contain their spread."""
    scores = planted(range(8), noise=0)
    _, pairs = compare_levels({"a": scores, "b": scores + 0.05}, NAMES, "a", UP, repetitions=50)
    low, high = pairs.loc[0, ["score_change_low", "score_change_high"]]
    assert low == pytest.approx(0.05)
    assert high == pytest.approx(0.05)


def test_lower_may_be_better():
    scores = planted(range(8))
    methods, pairs = compare_levels({"a": scores, "b": -scores}, NAMES, "a", {"a": True, "b": False}, repetitions=20)
    assert pairs.loc[0, "spearman"] == pytest.approx(1)
    assert np.isnan(pairs.loc[0, "score_change"])
    assert methods["score_change"].iloc[8:].isna().all()
    assert (methods["rank_change"] == 0).all()
    assert methods.loc[methods["level"] == "b", "score"].max() < 0


def test_a_method_without_a_score_at_one_level_takes_no_rank_from_others():
    before, after = planted(range(8)), planted(range(8))
    after[0] = np.nan
    methods, pairs = compare_levels({"a": before, "b": after}, NAMES, "a", UP, repetitions=20)
    assert methods.loc[methods["method"] == "m0", "rank"].isna().all()
    assert methods.loc[methods["method"] == "m1", "rank"].tolist() == [1, 1]
    assert pairs.loc[0, "n_methods"] == 7
    assert methods.loc[0, "score"] == pytest.approx(before[0].mean())
    assert methods["n_undefined"].tolist() == [0] * 8 + [40] + [0] * 7


def test_four_methods_have_no_correlation_and_still_ranks():
    scores = planted(range(8))[:4]
    methods, pairs = compare_levels({"a": scores, "b": scores[::-1]}, NAMES[:4], "a", UP, repetitions=20)
    assert pairs.loc[0, ["spearman", "spearman_low", "halves_same"]].isna().all()
    assert methods.loc[methods["level"] == "b", "rank"].tolist() == [4, 3, 2, 1]
    assert list(methods.columns) == list(METHOD_COLUMNS)
    assert list(pairs.columns) == list(PAIR_COLUMNS)


def test_the_same_seed_gives_the_same_tables():
    levels = {"a": planted(range(8)), "b": planted([1, 0, *range(2, 8)], noise=0.3)}
    first, again, other = (compare_levels(levels, NAMES, "a", UP, repetitions=30, seed=seed)[1] for seed in (0, 0, 1))
    assert first.equals(again)
    assert not first.equals(other)

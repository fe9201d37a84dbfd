"""The set of the best, over images and over networks, and the number of images that would be enough."""

import numpy as np
import pandas as pd
import pytest
from scipy.stats import ttest_1samp
from statsmodels.stats.multitest import multipletests

from heatproof.stats.best import best_set, best_set_over_networks, images_to_distinguish, minimum_networks
from heatproof.stats.paired import (
    SKEWED,
    count_ordered_pairs,
    holm,
    images_for_power,
    minimum_images,
    paired_p_values,
)
from heatproof.stats.references import compare_with_references

NOISE = {
    "normal": lambda rng, shape: rng.normal(size=shape),
    "skewed": lambda rng, shape: rng.exponential(size=shape),
    "skewed down": lambda rng, shape: -rng.exponential(size=shape),
    "one of all": lambda rng, shape: (rng.random(shape) < 0.1).astype(float),
    "ties": lambda rng, shape: np.round(rng.normal(size=shape)),
    "heavy": lambda rng, shape: rng.standard_t(3, size=shape),
    "two groups": lambda rng, shape: (
        rng.normal(size=(2, shape[1]))[np.arange(shape[0]) % 2] + 0.1 * rng.normal(size=shape)
    ),
}


def test_a_symmetric_difference_has_the_p_of_a_t_test():
    values = np.random.default_rng(0).normal(0.3, 1, (5, 40))
    symmetric = np.concatenate([values, 2 * values.mean(axis=1, keepdims=True) - values], axis=1)
    expected = ttest_1samp(symmetric, 0, axis=1, alternative="greater").pvalue
    np.testing.assert_allclose(paired_p_values(symmetric), expected)


def test_skewness_raises_p_on_one_side_only():
    """A few values lie far below the others: the mean of so many images is likely too high."""
    rng = np.random.default_rng(1)
    down = 0.4 + 1 - rng.exponential(size=30)
    plain = ttest_1samp(down, 0, alternative="greater").pvalue
    assert paired_p_values(down) > plain
    up = 2 * down.mean() - down
    assert paired_p_values(up) == pytest.approx(ttest_1samp(up, 0, alternative="greater").pvalue)


@pytest.mark.parametrize("skew", [-1, 1])
def test_a_larger_difference_never_has_a_larger_p(skew):
    """With a parabolic correction p increases again, so that 23 standard errors were not significant."""
    noise = skew * (np.random.default_rng(2).exponential(size=40) - 1)
    p = paired_p_values(noise - noise.mean() + np.linspace(0, 20, 400)[:, None])
    assert (np.diff(p) <= 0).all()


@pytest.mark.parametrize(
    ("differences", "p"),
    [
        ([1.0] * 6, SKEWED**6),
        ([1.0] * 3 + [0.0] * 50, None),
        ([0.0] * 9, 1.0),
        ([-1.0] * 9, 1.0),
        ([1.0], 1.0),
        ([np.nan] * 4, 1.0),
        ([1.0, np.nan, 1.0, 1.0], SKEWED**3),
    ],
)
def test_p_values_of_few_differences_are_cautious(differences, p):
    value = paired_p_values(np.array(differences))
    assert value == pytest.approx(p) if p else value >= SKEWED**3


def test_holm_equals_that_of_statsmodels():
    rng = np.random.default_rng(3)
    for _ in range(200):
        p = rng.random(9) ** rng.integers(1, 9)
        assert holm(p, 0.95).tolist() == multipletests(p, 0.05, method="holm")[0].tolist()
    assert holm(np.array([]), 0.95).tolist() == []


@pytest.mark.parametrize("methods", [2, 8, 26, 50])
@pytest.mark.parametrize("level", [0.8, 0.95, 0.99])
def test_too_few_images_exclude_no_method_and_enough_do(methods, level):
    least = minimum_images(count_ordered_pairs(methods), level)
    certain = np.outer(-np.arange(methods), np.ones(least))
    too_few = best_set(certain[:, 1:], level=level)
    assert too_few.members.all()
    assert too_few.reason == f"{least - 1} images are too few to distinguish {methods} methods: {least} are needed"
    best = best_set(certain, level=level)
    assert best.reason == ""
    assert best.members.tolist() == [True] + [False] * (methods - 1)


def test_methods_are_compared_on_common_images_and_empty_ones_are_excluded():
    scores = np.random.default_rng(4).normal(size=(4, 40))
    scores[0] += 3
    scores[1, 5:] = np.nan
    scores[3] = np.nan
    best = best_set(scores)
    assert best.members.tolist() == [True, True, False, False]
    assert best_set(np.full((2, 9), np.nan)).members.tolist() == [False, False]
    assert best_set(scores[:1, :2]) == (np.array([True]), "")


def share_left_out(noise, methods, images, runs, worse=0):
    rng = np.random.default_rng([methods, images])
    count = 0
    for _ in range(runs):
        scores = NOISE[noise](rng, (methods, images))
        scores[methods - worse :] -= 2
        count += not best_set(scores).members[: methods - worse].all()
    return count / runs


@pytest.mark.parametrize("noise", NOISE)
@pytest.mark.parametrize(("methods", "images", "worse"), [(8, 8, 0), (8, 16, 0), (26, 24, 0), (12, 64, 6)])
def test_equally_best_methods_are_seldom_left_out(noise, methods, images, worse):
    runs = 200
    assert share_left_out(noise, methods, images, runs, worse) <= 0.05 + 2.5 * np.sqrt(0.05 * 0.95 / runs)


@pytest.mark.parametrize(("methods", "images", "effect", "most"), [(26, 64, 1.0, 13), (8, 16, 1.5, 4)])
def test_a_better_method_is_distinguished(methods, images, effect, most):
    rng = np.random.default_rng(5)
    sizes = []
    for _ in range(100):
        scores = rng.normal(size=(methods, images))
        scores[0] += effect * np.sqrt(2)
        sizes.append(best_set(scores).members.sum())
    assert np.median(sizes) <= most
    assert np.mean(np.array(sizes) == methods) <= 0.1


@pytest.mark.parametrize(("methods", "effect"), [(4, 0.5), (14, 0.5), (8, 1.0)])
def test_the_suggested_number_of_images_distinguishes_methods(methods, effect):
    images = images_to_distinguish(methods, effect=effect)
    rng = np.random.default_rng(6)
    n_found = 0
    for _ in range(300):
        scores = rng.normal(size=(methods, images))
        scores[1:] += effect * np.sqrt(2)
        scores[2:] = scores[1]
        n_found += not best_set(scores[:2] if methods == 2 else scores).members[0]
    assert 0.7 <= n_found / 300 <= 0.95


def test_few_networks_exclude_no_method_and_name_the_number_needed():
    assert [minimum_networks(level) for level in (0.9, 0.95, 0.99)] == [5, 6, 8]
    rng = np.random.default_rng(7)
    scores = np.arange(5.0) + 0.01 * rng.normal(size=(6, 5))
    too_few = best_set_over_networks(scores[:5])
    assert too_few.members.all()
    assert too_few.reason == "5 networks: 6 are needed to distinguish methods, because fewer may agree by chance"
    # Some methods rank last in all networks; reversing one order moves them to those in the middle.
    best = best_set_over_networks(scores)
    assert best.reason == ""
    assert best.members[4]
    assert not best.members[0]


@pytest.mark.parametrize("noise", [name for name in NOISE if name != "one of all"])
@pytest.mark.parametrize("networks", [6, 8, 13])
def test_equally_best_methods_of_networks_are_seldom_left_out(noise, networks):
    rng = np.random.default_rng(networks)
    runs = 200
    excluded = [not best_set_over_networks(NOISE[noise](rng, (10, networks)).T).members.all() for _ in range(runs)]
    assert np.mean(excluded) <= 0.05 + 2.5 * np.sqrt(0.05 * 0.95 / runs)


def test_shared_images_are_not_agreement_of_networks():
    """All networks score the same images, which favour some methods, so that networks agree by the images alone."""
    rng = np.random.default_rng(8)
    alone, both = [], []
    for _ in range(40):
        lucky = rng.normal(size=6)
        scores = lucky + 0.05 * rng.normal(size=(8, 6))
        noise = rng.normal(size=(6, 200))
        alone.append(best_set_over_networks(scores).members.all())
        both.append(best_set_over_networks(scores, noise=3 * (noise - noise.mean(axis=0))).members.all())
    assert np.mean(alone) < 0.2
    assert np.mean(both) > 0.9


def test_a_method_on_few_networks_is_not_excluded():
    rng = np.random.default_rng(9)
    scores = np.arange(6.0) + 0.01 * rng.normal(size=(13, 6))
    scores[4:, 0] = np.nan
    best = best_set_over_networks(scores)
    assert best.members[0]
    assert not best.members[1]


def references(effect, images, methods, seed):
    scores = np.random.default_rng(seed).normal(size=(methods + 2, images))
    scores[2] += effect * np.sqrt(2)
    names = ["edges", "random", *(f"method_{number}" for number in range(methods))]
    return pd.DataFrame(scores, names)


@pytest.mark.parametrize("methods", [8, 24])
def test_a_number_of_images_is_seldom_named_where_no_method_differs(methods):
    runs = 120
    named = [
        compare_with_references(references(0, 40, methods, seed), ["edges", "random"], 0.95) for seed in range(runs)
    ]
    assert sum(not np.isnan(comparison.needed) for comparison in named) <= 0.05 * runs + 2.5 * np.sqrt(0.05 * runs)
    assert sum(bool(comparison.methods) for comparison in named) <= 0.05 * runs


@pytest.mark.parametrize("methods", [8, 24])
def test_the_named_number_of_images_suffices(methods):
    detected, named, then = 0, [], 0
    for seed in range(100):
        above = compare_with_references(references(0.5, 40, methods, seed), ["edges", "random"], 0.95)
        detected += bool(above.methods)
        if not np.isnan(above.needed):
            named.append(above.needed)
            fresh = references(0.5, int(above.needed), methods, 10_000 + seed)
            then += bool(compare_with_references(fresh, ["edges", "random"], 0.95).methods)
    assert len(named) >= 0.35 * (100 - detected)
    assert then >= 0.7 * len(named)
    assert 40 < np.median(named) <= 3 * images_for_power(methods)


def test_no_number_is_named_where_a_reference_map_is_the_best():
    scores = references(0, 30, 5, 0)
    scores.loc["edges"] += 2
    above = compare_with_references(scores, ["edges", "random"], 0.95)
    assert (above.methods, above.reference) == ([], "edges")
    assert np.isnan(above.needed)
    assert np.isnan(compare_with_references(scores.drop(index=["edges", "random"]), [], 0.95).needed)

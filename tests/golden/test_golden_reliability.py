"""Reliability coefficients against values of the published code and of the package krippendorff."""

import numpy as np
import pytest

from heatproof.stats.reliability import (
    inter_method_reliability,
    inter_rater_reliability,
    internal_consistency_reliability,
)

CASES = (
    "random_20x3",
    "random_12x6",
    "noisy_24x6",
    "noisy_9x4",
    "tied_10x5",
    "perfect_8x5",
    "mas_orders_24x3",
    "mas_ranks_24x3",
)


def test_all_stored_cases_are_tested(golden):
    assert {key.partition("__")[0] for key in golden("reliability")} == set(CASES)


@pytest.mark.parametrize("side", ["a", "b"])
@pytest.mark.parametrize("case", CASES)
def test_inter_rater_reliability_equals_published_values(golden, case, side):
    stored = golden("reliability")
    ranks = stored[f"{case}__{side}"]
    for expected, options in (
        ("irr", {"variant": "published"}),
        ("pypi_alpha_interval", {"level": "interval"}),
        ("pypi_alpha_ordinal", {"level": "ordinal"}),
    ):
        computed = inter_rater_reliability(ranks, **options)
        assert computed == pytest.approx(float(stored[f"{case}__{expected}_{side}"]), abs=1e-9), expected


@pytest.mark.parametrize("case", CASES)
def test_internal_consistency_reliability_equals_published_values(golden, case):
    stored = golden("reliability")
    a, b = stored[f"{case}__a"], stored[f"{case}__b"]
    published = internal_consistency_reliability(a, b, variant="published")
    assert published == pytest.approx(float(stored[f"{case}__icr"]), abs=1e-9)
    assert internal_consistency_reliability(a, b) == pytest.approx(float(stored[f"{case}__icr_rowwise_mean"]), abs=1e-9)


@pytest.mark.parametrize("case", CASES)
def test_inter_method_reliability_equals_published_values(golden, case):
    stored = golden("reliability")
    computed = inter_method_reliability(stored[f"{case}__scores_a"], stored[f"{case}__scores_b"])
    assert computed == pytest.approx(float(stored[f"{case}__imr"]), abs=1e-9)


def test_ties_distinguish_the_levels(golden):
    ranks = golden("reliability")["tied_10x5__a"]
    assert not np.isclose(inter_rater_reliability(ranks, level="ordinal"), inter_rater_reliability(ranks), atol=1e-3)

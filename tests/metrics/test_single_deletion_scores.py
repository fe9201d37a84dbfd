import numpy as np
import pytest

from heatproof.errors import HeatproofError
from heatproof.metrics.registry import METRICS
from heatproof.metrics.single_deletion import base_name, metric_name, single_deletion_scores

GRID = 4


@pytest.fixture
def drops():
    return np.random.default_rng(3).normal(size=(5, GRID * GRID))


@pytest.fixture
def planted(drops):
    """Return maps whose patch sums are the drops, spread unevenly within each patch."""
    inside = np.random.default_rng(4).dirichlet(np.ones(9), size=drops.shape).reshape(5, GRID, GRID, 3, 3)
    spread = drops.reshape(5, GRID, GRID, 1, 1) * inside
    return spread.transpose(0, 1, 3, 2, 4).reshape(5, 3 * GRID, 3 * GRID)


def test_map_equal_to_the_drops_scores_one(planted, drops):
    score, valid = single_deletion_scores(planted, drops, GRID)
    np.testing.assert_array_equal(score, 1)
    assert valid.all()


def test_reversed_map_scores_minus_one(planted, drops):
    np.testing.assert_array_equal(single_deletion_scores(-planted, drops, GRID)[0], -1)


def test_positive_scaling_and_offset_change_nothing(drops):
    maps = np.random.default_rng(5).normal(size=(5, 12, 12))
    expected = single_deletion_scores(maps, drops, GRID)[0]
    np.testing.assert_array_equal(single_deletion_scores(1000 * maps, drops, GRID)[0], expected)
    np.testing.assert_array_equal(single_deletion_scores(maps + 7, drops, GRID)[0], expected)


def test_two_swapped_patches_lower_the_score_as_in_spearmans_formula(planted, drops):
    order = np.argsort(drops[0])
    swapped = drops.copy()
    swapped[0, order[[3, 4]]] = drops[0, order[[4, 3]]]
    score, _ = single_deletion_scores(planted, swapped, GRID)
    patches = GRID * GRID
    np.testing.assert_allclose(score, [1 - 12 / (patches * (patches**2 - 1)), 1, 1, 1, 1], rtol=1e-14)


def test_undefined_images_are_not_valid(planted, drops):
    planted[1] = 0.1
    drops[2] = 0
    planted[3, 0, 0] = np.nan
    score, valid = single_deletion_scores(planted.astype(np.float32), drops, GRID)
    np.testing.assert_array_equal(valid, [True, False, False, False, True])
    np.testing.assert_array_equal(np.isnan(score), ~valid)


def test_drops_of_another_grid_are_refused(planted, drops):
    with pytest.raises(HeatproofError, match=r"\(5, 16\) do not belong to 5 maps on a grid of 2"):
        single_deletion_scores(planted, drops, 2)


def test_both_names_share_one_function_and_state_its_facts():
    assert METRICS["idsds"].function is METRICS["sds"].function is single_deletion_scores
    for entry in (METRICS["idsds"], METRICS["sds"]):
        assert entry.inputs == ("maps", "drops", "grid")
        drops = {"grid": None, "baseline": None, "baseline_options": None, "output": "logit"}
        assert entry.options == {**drops, "truncate": False}
        assert entry.higher_is_better
        assert entry.range == (-1, 1)
        assert entry.summary.startswith("Spearman correlation")


@pytest.mark.parametrize(
    ("in_domain_for", "grid", "baseline", "name"),
    [
        ((4, "zeros"), 4, "zeros", "idsds"),
        (None, 4, "zeros", "sds"),
        ((8, "zeros"), 4, "zeros", "sds"),
        ((4, "blur"), 4, "zeros", "sds"),
        (None, 8, "blur", "sds_g8_blur"),
        ((4, "zeros"), 8, "zeros", "sds_g8_zeros"),
        ((4, "zeros"), 4, "random", "sds_g4_random"),
        ((8, "zeros"), 8, "zeros", "idsds_g8_zeros"),
        ((4, "blur"), 4, "blur", "idsds_g4_blur"),
    ],
)
def test_only_weights_finetuned_for_the_combination_are_in_domain(in_domain_for, grid, baseline, name):
    assert metric_name(in_domain_for, grid, baseline, reference=(4, "zeros")) == name
    assert METRICS[base_name(name)].function is single_deletion_scores


def test_names_of_other_metrics_have_no_suffix_removed():
    assert base_name("ids_g4_zeros") == "ids_g4_zeros"
    assert base_name("soundness") == "soundness"

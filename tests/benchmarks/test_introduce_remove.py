"""Paper 004, section 5.1: a linear model of Gaussian features, whose right attribution is known."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
SPEC = importlib.util.spec_from_file_location("introduce_remove", ROOT / "benchmarks" / "introduce_remove.py")
benchmark = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(benchmark)


@pytest.fixture(scope="module")
def trials():
    return benchmark.trials(4, 300)


def test_the_right_map_is_sound_also_if_features_are_removed(trials):
    for name, (sound, _) in trials.items():
        if name[0] != "introduce":
            np.testing.assert_allclose(sound, 1, err_msg=str(name))


def test_attribution_above_that_of_the_right_features_is_unsound(trials):
    assert trials["introduce", "more"][0].mean() < 0.6


def test_removed_features_lower_completeness(trials):
    right = trials["right map", ""][1].mean()
    for scheme in ("some", "more", "random", "constant"):
        assert (trials["remove", scheme][1].mean(1) < right - 0.01).all(), scheme


def test_completeness_rises_only_where_features_for_the_class_get_more(trials):
    right = trials["right map", ""][1].mean()
    assert all(trials["introduce", scheme][1].mean() > right + 0.05 for scheme in ("random", "constant"))
    assert all(trials["introduce", scheme][1].mean() < right - 0.05 for scheme in ("some", "more", "partial"))
    table = benchmark.by_reader(300, trials_of_each=2).set_index("features")["change"]
    assert table["for the class"] > 0.02
    assert table["not read"] == 0
    assert table["against the class"] < -0.02


def test_a_direction_can_differ_from_the_paper(trials):
    flat = dict.fromkeys(trials, trials["right map", ""])
    same = benchmark.directions(flat)
    assert set(same["direction"]) == {"same"}
    assert set(same.loc[same["paper_direction"] != "same", "same"]) == {"no"}
    assert set(same.loc[same["paper_direction"] == "same", "same"]) == {"yes"}

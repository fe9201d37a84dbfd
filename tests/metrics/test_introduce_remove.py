"""Paper 004, section 5.1: a linear model of Gaussian features, whose right attribution is known."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.slow

FILE = Path(__file__).parents[2] / "benchmarks" / "introduce_remove.py"


@pytest.fixture(scope="module")
def found():
    spec = importlib.util.spec_from_file_location("introduce_remove", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.trials(1000, 60)


def test_the_ground_truth_is_wholly_sound_and_stays_so_when_some_is_removed(found):
    for kind in ("ground truth", "remove"):
        assert np.allclose(found[kind][0], 1)


def test_introduced_attribution_is_unsound(found):
    strictest = found["introduce"][0][:, -1]
    assert (strictest <= 1).all()
    assert (strictest < 1).mean() > 0.6
    assert strictest.mean() < 0.9


def test_removed_attribution_is_missed(found):
    complete, less = found["ground truth"][1].mean(1), found["remove"][1].mean(1)
    assert (less < complete).mean() > 0.95
    assert complete.mean() - less.mean() > 0.01

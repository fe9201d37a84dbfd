"""Distances of curves, computed by hand."""

import numpy as np
import pytest
from scipy.spatial.distance import directed_hausdorff

from heatproof.errors import HeatproofError
from heatproof.metrics.curve_distance import hausdorff, pairwise_distances

AXIS = np.linspace(0, 1, 11)


def curve(heights):
    return np.stack([AXIS, np.broadcast_to(heights, AXIS.shape)], axis=1)


@pytest.mark.parametrize("kind", ["hausdorff", "modified"])
def test_parallel_curves_are_as_far_apart_as_their_heights(kind):
    assert hausdorff(curve(0.2), curve(0.2), kind=kind) == 0
    assert hausdorff(curve(0.2), curve(0.5), kind=kind) == pytest.approx(0.3)


def test_one_outlier_determines_only_the_plain_distance():
    bent = curve(0.0)
    bent[5, 1] = 1.0
    # The flat curve's point nearest to the outlier is below it; that point has a neighbour at distance 0.1.
    assert hausdorff(curve(0.0), bent) == pytest.approx(1)
    assert hausdorff(curve(0.0), bent, kind="modified") == pytest.approx(1 / 11)


def test_hausdorff_equals_scipy():
    rng = np.random.default_rng(0)
    a, b = rng.random((8, 2)), rng.random((5, 2))
    expected = max(directed_hausdorff(a, b)[0], directed_hausdorff(b, a)[0])
    assert hausdorff(a, b) == pytest.approx(expected)
    assert hausdorff(b, a) == pytest.approx(expected)


def test_pairwise_distances_ignore_undefined_points():
    holed = curve(np.where(AXIS < 0.5, np.nan, 0.0))
    distances = pairwise_distances({"one": curve(0.0), "two": curve(0.4), "holed": holed})
    assert distances["one", "two"] == pytest.approx(0.4)
    assert distances["one", "holed"] == pytest.approx(0.5)
    assert np.isnan(hausdorff(curve(0.0), curve(np.nan)))


def test_unknown_kinds_and_invalid_shapes_are_refused():
    with pytest.raises(HeatproofError, match="kind is 'mean'"):
        hausdorff(curve(0.0), curve(0.0), kind="mean")
    with pytest.raises(HeatproofError, match="Curves must have shape"):
        hausdorff(AXIS, AXIS)

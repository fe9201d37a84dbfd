"""Corrupted maps: the pixels that change, and those that do not."""

import numpy as np
import pytest

from heatproof.errors import HeatproofError
from heatproof.metrics.corruptions import introduce_or_remove, scale_magnitudes, with_noise, with_offset

IDS = ["a", "b", "c"]
MAPS = np.random.default_rng(0).random((3, 6, 5)).astype(np.float32)


def order(maps):
    return np.argsort(maps.reshape(len(maps), -1), axis=1, kind="stable")


def test_an_offset_is_a_share_of_each_maximum():
    changed = with_offset(MAPS, 0.25)
    np.testing.assert_allclose(changed - MAPS, np.broadcast_to(0.25 * MAPS.max((1, 2))[:, None, None], MAPS.shape))
    np.testing.assert_array_equal(order(changed), order(MAPS))
    np.testing.assert_allclose(with_offset(-MAPS, 0.5).max((1, 2)), 0.5 * MAPS.max((1, 2)) - MAPS.min((1, 2)))


def test_noise_is_bounded_and_scales():
    little, much = (with_noise(MAPS, share, IDS, 7) - MAPS for share in (0.01, 0.1))
    assert (little >= 0).all()
    assert (much <= 0.1 * MAPS.max((1, 2), keepdims=True)).all()
    np.testing.assert_allclose(10 * little, much, rtol=1e-6, atol=1e-12)
    assert (with_noise(MAPS, 0.1, IDS, 8) != with_noise(MAPS, 0.1, IDS, 7)).mean() > 0.9


def test_scale_magnitudes_divides_by_the_largest_magnitude():
    np.testing.assert_allclose(scale_magnitudes(np.array([[[-4.0, 2]], [[0, 0]]])), [[[1, 0.5]], [[0, 0]]])


@pytest.mark.parametrize(("direction", "sign"), [("introduce", 1), ("remove", -1)])
def test_constant_and_random_schemes_shift_by_at_most_six_tenths(direction, sign):
    base = scale_magnitudes(MAPS)
    np.testing.assert_allclose(introduce_or_remove(MAPS, direction, "constant", IDS, 0), base + 0.6 * sign)
    shift = sign * (introduce_or_remove(MAPS, direction, "random", IDS, 0) - base)
    assert 0 <= shift.min() < 0.1
    assert 0.5 < shift.max() <= 0.6


def test_partial_scheme_equals_values_computed_by_hand():
    maps = np.arange(1.0, 11).reshape(1, 2, 5)
    raised = introduce_or_remove(maps, "introduce", "partial", ["a"], 0).ravel()
    np.testing.assert_allclose(raised, [0.82] * 4 + [0.5, 0.6, 0.7, 0.8, 0.9, 1.0])
    lowered = introduce_or_remove(maps, "remove", "partial", ["a"], 0).ravel()
    np.testing.assert_allclose(lowered, [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0, 0, 0.9, 1.0])


def test_partial_scheme_changes_the_same_number_of_pixels_with_ties():
    changed = introduce_or_remove(np.ones((1, 5, 4)), "remove", "partial", ["a"], 0)
    assert (changed == 0).sum() == 4


@pytest.mark.parametrize("scheme", ["constant", "random", "partial"])
@pytest.mark.parametrize("direction", ["introduce", "remove"])
def test_a_map_changes_in_the_same_way_alone_and_with_others(scheme, direction):
    together = introduce_or_remove(MAPS, direction, scheme, IDS, 3)
    np.testing.assert_array_equal(together[1:2], introduce_or_remove(MAPS[1:2], direction, scheme, ["b"], 3))
    np.testing.assert_array_equal(with_noise(MAPS, 0.1, IDS, 3)[2:], with_noise(MAPS[2:], 0.1, ["c"], 3))
    clipped = introduce_or_remove(MAPS, direction, scheme, IDS, 3, clip=True)
    np.testing.assert_array_equal(clipped, np.clip(together, 0, 1))


def test_unknown_directions_and_schemes_are_refused():
    with pytest.raises(HeatproofError, match="direction is 'add'"):
        introduce_or_remove(MAPS, "add", "constant", IDS, 0)
    with pytest.raises(HeatproofError, match="scheme is 'some'"):
        introduce_or_remove(MAPS, "remove", "some", IDS, 0)

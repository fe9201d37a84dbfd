"""Attr%, and maps that are crafted from knowledge of the relevant pixels."""

import numpy as np
import pytest

from heatproof.errors import HeatproofError
from heatproof.metrics.known_regions import attribution_share, pooled_maps, rect_maps


def test_attribution_share_sums_magnitudes_inside_the_region():
    maps = np.array([[[3.0, -1.0], [0.0, 4.0]]] * 2)
    regions = np.array([[[True, True], [False, False]], [[False, True], [False, False]]])
    np.testing.assert_allclose(attribution_share(maps, regions), [0.5, 0.125])


def test_an_even_map_has_the_share_of_the_area_and_the_region_has_all():
    regions = np.zeros((1, 8, 8), dtype=bool)
    regions[0, 2:4, 1:5] = True
    assert attribution_share(np.full((1, 8, 8), -0.3), regions)[0] == pytest.approx(8 / 64)
    assert attribution_share(regions.astype(float), regions)[0] == 1


def test_a_map_of_zeros_and_an_empty_region_are_undefined():
    maps = np.stack([np.zeros((4, 4)), np.ones((4, 4))])
    regions = np.stack([np.ones((4, 4), dtype=bool), np.zeros((4, 4), dtype=bool)])
    assert np.isnan(attribution_share(maps, regions)).all()


def test_maps_and_regions_that_do_not_match_are_refused():
    with pytest.raises(HeatproofError, match="must have"):
        attribution_share(np.ones((2, 4, 4)), np.ones((2, 4, 5), dtype=bool))
    with pytest.raises(HeatproofError, match="not finite"):
        attribution_share(np.full((1, 4, 4), np.nan), np.ones((1, 4, 4), dtype=bool))
    with pytest.raises(HeatproofError, match="does not fit"):
        rect_maps(np.ones((1, 4, 6)), 5)
    with pytest.raises(HeatproofError, match="do not divide"):
        pooled_maps(np.ones((1, 6, 6)), 4)


def test_rect_is_a_square_around_the_weighted_centre_inside_the_image():
    maps = np.zeros((3, 12, 12))
    maps[0, 4, 5], maps[0, 8, 5] = 1, -1  # the middle of (4, 5) and (8, 5)
    maps[1, 0, 11] = 1  # in a corner
    crafted = rect_maps(maps, 3)
    assert np.argwhere(crafted[0])[[0, -1]].tolist() == [[5, 4], [7, 6]]
    assert np.argwhere(crafted[1])[[0, -1]].tolist() == [[0, 9], [2, 11]]
    assert crafted.sum(axis=(1, 2)).tolist() == [9, 9, 9]
    assert set(np.unique(crafted)) == {0.0, 1.0}
    assert maps.sum() == 1, "what was given stays as it was"


def test_pooling_is_the_mean_of_each_band():
    maps = np.random.default_rng(0).standard_normal((2, 8, 6))
    crafted = pooled_maps(maps, 4)
    assert crafted.shape == maps.shape
    for band in range(4):
        rows = slice(2 * band, 2 * band + 2)
        expected = maps[:, rows].mean(axis=(1, 2))
        np.testing.assert_allclose(crafted[:, rows], expected[:, None, None] * np.ones((2, 2, 6)))

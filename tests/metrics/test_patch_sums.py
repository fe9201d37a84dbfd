import re

import numpy as np
import pytest

from heatproof.core.grids import patch_sums
from heatproof.errors import HeatproofError


def test_patches_are_summed_row_by_row():
    maps = np.arange(2 * 4 * 6, dtype=np.float32).reshape(2, 4, 6)
    expected = [[maps[n, top : top + 2, left : left + 3].sum() for top in (0, 2) for left in (0, 3)] for n in range(2)]
    np.testing.assert_array_equal(patch_sums(maps, 2), expected)


def test_patch_sums_keep_signs():
    maps = np.array([[[1.0, -1.0], [-2.0, 3.0]]])
    np.testing.assert_array_equal(patch_sums(maps, 1), [[1.0]])
    np.testing.assert_array_equal(patch_sums(maps, 2), [[1.0, -1.0, -2.0, 3.0]])


def test_sums_of_float32_maps_are_as_good_as_float64():
    maps = np.random.default_rng(0).normal(size=(3, 64, 64)).astype(np.float32) + np.float32(1000)
    expected = patch_sums(maps.astype(np.float64), 2)
    assert patch_sums(maps, 2).dtype == np.float64
    np.testing.assert_allclose(patch_sums(maps, 2), expected, rtol=1e-14)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("size", [(3, 5), (16, 16), (7, 40)])
def test_equal_patches_have_exactly_equal_sums(dtype, size):
    patch = np.random.default_rng(1).normal(size=(4, *size)) * 10.0 ** np.random.default_rng(2).integers(-9, 9, size)
    sums = patch_sums(np.tile(patch.astype(dtype), (1, 4, 4)), 4)
    np.testing.assert_array_equal(np.ptp(sums, axis=1), 0)


def test_nan_stays_in_its_patch():
    maps = np.ones((1, 4, 4))
    maps[0, 0, 3] = np.nan
    np.testing.assert_array_equal(patch_sums(maps, 2), [[4, np.nan, 4, 4]])


def test_truncation_leaves_the_border_out():
    maps = np.ones((1, 11, 8))
    np.testing.assert_array_equal(patch_sums(maps, 3, truncate=True), [[6.0] * 9])


@pytest.mark.parametrize(
    ("grid", "size", "remedy"),
    [
        (5, (32, 32), "use 4 or 8"),
        (3, (224, 224), "use 2 or 4"),
        (64, (32, 32), "use 32"),
        (4, (8, 6), "use [4, 3], or of square grids use 2"),
        (5, (12, 20), "use [4, 5], or of square grids use 4"),
        (7, (96, 144), "use 6, or of square grids use 8"),
        ([5, 3], (32, 32), "use [4, 2]"),
        ([4, 7], (96, 128), "use [4, 8]"),
        ([4, 64], (32, 32), "use [4, 32]"),
        (3, (7, 11), "use [7, 11]"),
        ([5, 3], (12, 20), "use [4, 2]"),
    ],
)
def test_grid_that_does_not_divide_names_sizes_and_nearest_grids(grid, size, remedy):
    with pytest.raises(
        HeatproofError, match=rf"grid of {re.escape(str(grid))} .* {size[0]}×{size[1]} .*{re.escape(remedy)}\.$"
    ):
        patch_sums(np.zeros((1, *size)), grid)


def test_more_patches_than_pixels_cannot_be_truncated():
    with pytest.raises(HeatproofError, match="grid of 9"):
        patch_sums(np.zeros((1, 8, 8)), 9, truncate=True)


def test_maps_with_channels_are_refused():
    with pytest.raises(HeatproofError, match=r"\(1, 3, 8, 8\)"):
        patch_sums(np.zeros((1, 3, 8, 8)), 2)

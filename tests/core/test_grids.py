import numpy as np
import pytest

from heatproof.errors import HeatproofError
from heatproof.grids import Box, patch_boxes, patch_masks, patch_size


def test_boxes_go_row_by_row():
    assert patch_boxes(2, 4, 6) == [Box(0, 2, 0, 3), Box(0, 2, 3, 6), Box(2, 4, 0, 3), Box(2, 4, 3, 6)]


@pytest.mark.parametrize(("grid", "height", "width"), [(1, 5, 7), (4, 32, 32), (7, 224, 224), (2, 4, 6)])
def test_masks_cover_every_pixel_once(grid, height, width):
    masks = patch_masks(grid, height, width)
    assert masks.shape == (grid * grid, height, width)
    np.testing.assert_array_equal(masks.sum(axis=0), 1)


def test_truncated_masks_leave_the_border_uncovered():
    covered = patch_masks(5, 32, 32, truncate=True).any(axis=0)
    assert covered[:30, :30].all()
    assert not covered[30:].any()
    assert not covered[:, 30:].any()


def test_truncation_changes_nothing_where_the_grid_divides():
    assert patch_size(4, 32, 64, truncate=True) == patch_size(4, 32, 64) == (8, 16)


def test_a_grid_that_does_not_divide_names_the_nearest_that_do():
    with pytest.raises(HeatproofError, match="use 2 or 4"):
        patch_masks(3, 32, 32)

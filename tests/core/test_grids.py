import json

import numpy as np
import pytest

from heatproof.core.grids import (
    Box,
    NonSquareGrid,
    as_grid,
    format_grid,
    grid_name,
    grid_shape,
    grid_sort_key,
    grid_table_value,
    parse_grid_name,
    patch_boxes,
    patch_count,
    patch_masks,
    patch_size,
    patch_sums,
)
from heatproof.errors import HeatproofError


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


@pytest.mark.parametrize(
    ("value", "normalised", "name"),
    [
        (4, 4, "4"),
        ([4, 4], 4, "4"),
        ((4, 8), (4, 8), "4x8"),
        ([8, 4], (8, 4), "8x4"),
        ([1, 4], (1, 4), "1x4"),
        (np.int64(4), 4, "4"),
        ((np.int32(4), 8), (4, 8), "4x8"),
    ],
)
def test_a_grid_has_one_form_and_one_name(value, normalised, name):
    grid = as_grid(value)
    assert grid == normalised
    assert type(grid) is (int if isinstance(normalised, int) else NonSquareGrid)
    assert as_grid(grid) == grid == parse_grid_name(name)
    assert grid_name(value) == str(grid) == f"{grid}" == name
    assert patch_count(value) == np.prod(grid_shape(value))
    # The form in JSON and YAML.
    assert as_grid(json.loads(json.dumps(grid))) == grid
    assert format_grid(value) == (name if isinstance(normalised, int) else str(list(normalised)))


@pytest.mark.parametrize(
    "bad", [[4], [0, 4], [4, 4, 4], "4x8", True, 2.0, 0, -1, None, [4, True], [4.0, 4], {4, 8}, []]
)
def test_invalid_grids_are_refused_in_one_sentence(bad):
    with pytest.raises(HeatproofError, match=r"^The grid must be a whole number of at least 1, or \[rows, columns\]"):
        as_grid(bad)
    with pytest.raises(HeatproofError, match="must be a whole number"):
        patch_masks(bad, 32, 32)


@pytest.mark.parametrize("bad", ["", "x", "4x", "x8", "4x8x2", "0", "04", "4X8", "-4", "4.0", "4 x 8", "٤"])
def test_invalid_grid_names_are_refused_with_the_format(bad):
    with pytest.raises(HeatproofError, match="must be written as 4, or as 4x8"):
        parse_grid_name(bad)


@pytest.mark.parametrize(
    ("grid", "height", "width"), [((3, 5), 12, 20), ([4, 2], 12, 20), ([2, 3], 4, 6), ((1, 4), 4, 4)]
)
def test_patches_of_rows_and_columns_are_slices(grid, height, width):
    tall, wide = height // grid[0], width // grid[1]
    masks, maps = patch_masks(grid, height, width), np.random.default_rng(0).normal(size=(2, height, width))
    sums = patch_sums(maps, grid)
    assert patch_size(grid, height, width) == (tall, wide)
    for number in range(grid[0] * grid[1]):
        row, column = number // grid[1], number % grid[1]
        expected = np.zeros((height, width), dtype=bool)
        expected[row * tall : (row + 1) * tall, column * wide : (column + 1) * wide] = True
        np.testing.assert_array_equal(masks[number], expected)
        np.testing.assert_allclose(sums[:, number], maps[:, expected].sum(1))


def test_truncation_of_rows_and_columns_leaves_the_border_uncovered():
    covered = patch_masks([5, 3], 32, 20, truncate=True).any(axis=0)
    assert covered[:30, :18].all()
    assert covered.sum() == 30 * 18


def test_grids_are_ordered_by_their_patches():
    assert sorted([8, as_grid([8, 4]), 2, as_grid([4, 8])], key=grid_sort_key) == [2, (4, 8), (8, 4), 8]
    assert [grid_table_value(grid) for grid in (4, [4, 4], [4, 8])] == [4, 4, "4x8"]

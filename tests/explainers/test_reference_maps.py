import dataclasses

import numpy as np
import pytest
import torch

from heatproof.core.grids import patch_sums
from heatproof.explainers.registry import EXPLAINERS, ExplainContext


def without_model(context, **changes):
    return dataclasses.replace(context, network=None, output=None, facts=None, **changes)


def test_references_need_no_model(explain_digits):
    names = [name for name, entry in EXPLAINERS.items() if not entry.uses_model]
    assert names == ["random", "edges", "randoms", "gaussians", "entropies", "edge_detectors", "frequencies"]
    for name in names:
        maps = EXPLAINERS[name].function(without_model(explain_digits()))
        assert list(maps) == list(EXPLAINERS[name].maps)
        assert all(values.shape == (3, 32, 32) for values in maps.values())


def maps_of(name, images, ids=None):
    """Return the maps of images (N, H, W), the same in all three channels."""
    images = torch.as_tensor(images, dtype=torch.float32)
    context = ExplainContext(
        network=None,
        output=None,
        facts=None,
        images=images[:, None].expand(-1, 3, -1, -1),
        targets=torch.zeros(len(images), dtype=torch.int64),
        image_ids=ids or tuple(str(row) for row in range(len(images))),
        seed=0,
    )
    return EXPLAINERS[name].function(context)


def test_random_is_uniform_between_minus_one_and_one(explain_digits):
    values = EXPLAINERS["random"].function(without_model(explain_digits(count=20)))["random"]
    assert values.min() >= -1
    assert values.max() < 1
    assert abs(values.mean()) < 0.02
    assert abs(values.var() - 1 / 3) < 0.02


def test_edges_of_a_step_are_sobel_magnitudes(explain_digits):
    images = torch.zeros(2, 3, 32, 32)
    images[1, :, :, 16:] = 1
    images[1, 0, :, 16:] = 4
    maps = EXPLAINERS["edges"].function(without_model(explain_digits(count=2), images=images))["edges"]
    assert maps[0].eq(0).all()
    # The channel mean has a step of 2, which the Sobel filter (1, 2, 1) multiplies by 4 on both sides of it.
    expected = torch.zeros(32, 32)
    expected[:, 15:17] = 8
    torch.testing.assert_close(maps[1], expected)


def test_three_random_maps_share_one_draw():
    maps = maps_of("randoms", torch.zeros(20, 16, 16))
    drawn = maps["random_uniform"]
    assert 0 <= drawn.min() < 0.01
    assert 0.99 < drawn.max() < 1
    assert abs(drawn.mean() - 0.5) < 0.02
    torch.testing.assert_close(maps["random_squared"], drawn * drawn)
    torch.testing.assert_close(maps["random_plus_one"] - 1, drawn, rtol=0, atol=2e-7)
    assert not torch.allclose(drawn[0], drawn[1])


def test_gaussians_have_the_published_widths():
    names = [int(name.partition("_")[2]) for name in EXPLAINERS["gaussians"].maps]
    assert len(names) == 20
    assert (names[0], names[-1]) == (1, 256)
    assert names == sorted(names)


@pytest.mark.parametrize(("size", "deviation"), [((224, 224), 56), ((56, 56), 14), ((8, 6), 1.5)])
def test_a_gaussian_equals_one_computed_by_hand(size, deviation):
    """A width of 56 pixels of 224 is a quarter of the shorter side, for any image size."""
    values = maps_of("gaussians", torch.rand(2, *size))["gaussian_56"]
    assert torch.equal(values[0], values[1])
    distance = [torch.arange(length) - (length - 1) / 2 for length in size]
    square = distance[0][:, None] ** 2 + distance[1] ** 2
    # Four pixels are around the middle, each half a pixel away along both axes.
    expected = torch.exp((0.5 - square) / (2 * deviation**2))
    torch.testing.assert_close(values[0], expected, rtol=1e-6, atol=1e-12)
    assert values.max() == 1


@pytest.mark.parametrize("side", [8, 32, 33])
def test_no_gaussian_is_constant(side):
    for name, values in maps_of("gaussians", torch.zeros(1, side, side)).items():
        assert values.max() == 1, name
        assert values.min() < 0.9, name


def test_mirrored_patches_of_a_gaussian_tie():
    for name, values in maps_of("gaussians", torch.zeros(1, 32, 32)).items():
        sums = patch_sums(values.numpy(), 4)[0].reshape(4, 4)
        for same in ([0, 3, 12, 15], [1, 2, 4, 7, 8, 11, 13, 14], [5, 6, 9, 10]):
            assert len(set(sums.ravel()[same])) == 1, name
        assert sums[1, 1] > sums[0, 1] >= sums[0, 0] >= 0, name


def test_entropy_proxies_equal_those_computed_by_hand():
    image = torch.zeros(1, 9, 9)
    image[0, 4, 4] = 81
    maps = maps_of("entropies", image)
    # The mean is 1, so the deviation is 80 at the spot and 1 elsewhere.
    spot, rest = 80.0**2, 1.0
    assert list(maps) == [f"entropy_{kernel}" for kernel in (3, 5, 7, 9, 13, 17, 31)]
    for kernel in (3, 5, 7, 9):
        values, reach = maps[f"entropy_{kernel}"][0], kernel // 2
        expected = torch.full((9, 9), rest)
        expected[4 - reach : 5 + reach, 4 - reach : 5 + reach] = (spot + (kernel**2 - 1) * rest) / kernel**2
        torch.testing.assert_close(values, expected)


def test_an_entropy_window_reflects_the_image():
    image = torch.zeros(1, 4, 4)
    image[0, 0, 0] = 16
    values = maps_of("entropies", image)["entropy_3"][0]
    # The corner's window has the corner four times.
    torch.testing.assert_close(values[0, 0].item(), (4 * 225 + 5) / 9, rtol=1e-6, atol=0)


def test_the_image_gradient_equals_one_computed_by_hand():
    rows, columns = torch.meshgrid(torch.arange(6.0), torch.arange(7.0), indexing="ij")
    ramp = maps_of("edge_detectors", (3 * rows + 4 * columns)[None])["image_gradient"]
    torch.testing.assert_close(ramp, torch.full((1, 6, 7), 5.0))
    step = torch.zeros(1, 4, 8)
    step[:, :, 4:] = 2
    expected = torch.zeros(4, 8)
    expected[:, 3:5] = 1
    torch.testing.assert_close(maps_of("edge_detectors", step)["image_gradient"][0], expected)


@pytest.mark.parametrize(("scale", "offset"), [(1, 0), (0.01, 5), (-3, 1)])
def test_canny_finds_the_outline_of_a_square_whatever_its_contrast(scale, offset):
    image = torch.zeros(1, 24, 24)
    image[:, 8:16, 8:16] = 1
    edges = maps_of("edge_detectors", image * scale + offset)["canny"][0]
    assert set(edges.unique().tolist()) == {0, 1}
    rows, columns = edges.nonzero().T
    assert {rows.min().item(), columns.min().item()} <= {7, 8}
    assert {rows.max().item(), columns.max().item()} <= {15, 16}
    assert edges[10:14, 10:14].sum() == 0
    # Every row and column through the square has two pixels of the outline.
    assert edges[10:14].sum(1).tolist() == [2] * 4
    assert edges[:, 10:14].sum(0).tolist() == [2] * 4


def test_marr_hildreth_is_the_laplacian_of_a_gaussian():
    image = torch.zeros(1, 17, 17)
    image[0, 8, 8] = 1
    values = maps_of("edge_detectors", image)["marr_hildreth"][0]
    axis = torch.arange(17.0) - 8
    square = axis[:, None] ** 2 + axis**2
    expected = (square - 2) * torch.exp(-square / 2) / (2 * torch.pi)
    # The sampled Gaussian is scaled to a sum of 1, which differs slightly from the continuous one.
    torch.testing.assert_close(values, expected, rtol=0, atol=1e-4)
    step = torch.zeros(1, 16, 16)
    step[:, :, 8:] = 1
    row = maps_of("edge_detectors", step)["marr_hildreth"][0, 8]
    assert row[7] > 0.1
    assert row[8] < -0.1
    torch.testing.assert_close(row, -row.flip(0), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("cycles", "where"),
    [(0, "low_pass"), (2, "low_pass"), (6, "low_pass band_pass"), (8, "band_pass"), (12, "high_pass")],
)
@pytest.mark.parametrize("across", [False, True])
def test_a_wave_passes_the_filters_of_its_frequency(cycles, where, across):
    """A side of 32 pixels has at most 16 cycles; 6 cycles are a frequency of 0.375."""
    wave = torch.cos(2 * torch.pi * cycles * torch.arange(32.0, dtype=torch.float64) / 32).float().expand(32, 32)
    wave = wave.T if across else wave
    for name, values in maps_of("frequencies", wave[None]).items():
        expected = wave if name in where.split() else torch.zeros(32, 32)
        torch.testing.assert_close(values[0], expected, rtol=0, atol=1e-6)


def test_the_frequency_of_a_diagonal_wave_is_its_distance_from_zero():
    """9 cycles along one axis are in the band; 9 along both axes, 12.7 along the diagonal, are a high frequency."""
    axis = 2 * torch.pi * 9 * torch.arange(32.0, dtype=torch.float64) / 32
    wave = torch.cos(axis[:, None] + axis).float()
    maps = maps_of("frequencies", wave[None])
    torch.testing.assert_close(maps["high_pass"][0], wave, rtol=0, atol=1e-6)
    assert maps["band_pass"].abs().max() < 1e-6


@pytest.mark.parametrize("colour", [0.0, 0.3, -1.7])
@pytest.mark.parametrize("name", ["entropies", "edge_detectors", "frequencies"])
def test_an_image_of_one_colour_has_constant_maps(name, colour):
    for key, values in maps_of(name, torch.full((2, 15, 16), colour)).items():
        assert values.unique().tolist() == [np.float32(colour) if key == "low_pass" else 0], key


@pytest.mark.parametrize("name", ["randoms", "gaussians", "entropies", "edge_detectors", "frequencies"])
def test_maps_do_not_depend_on_the_other_images_of_the_batch(name):
    images = torch.rand(5, 12, 16, generator=torch.Generator().manual_seed(0))
    ids = tuple("abcde")
    together = maps_of(name, images, ids)
    order = [3, 0, 4, 2, 1]
    shuffled = maps_of(name, images[order], tuple(ids[row] for row in order))
    for row, image_id in enumerate(ids):
        single = maps_of(name, images[row : row + 1], (image_id,))
        for key, values in together.items():
            torch.testing.assert_close(single[key][0], values[row], rtol=0, atol=1e-6)
            torch.testing.assert_close(shuffled[key][order.index(row)], values[row], rtol=0, atol=1e-6)

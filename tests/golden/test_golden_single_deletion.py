from functools import cache

import numpy as np
import pytest
import torch
from network_responses import batch_of, patch_responses

from heatproof.core.grids import patch_sums
from heatproof.errors import HeatproofError
from heatproof.metrics.arrays import spearman_rows
from heatproof.metrics.single_deletion import single_deletion_scores

AUTHORS_BLUR = {"sigma": 41 * 2**0.5}
TAGS = {
    "g2": (2, "zeros", {}, False),
    "g4": (4, "zeros", {}, False),
    "g8": (8, "zeros", {}, False),
    "g5": (5, "zeros", {}, True),
    "g4_blur": (4, "blur", AUTHORS_BLUR, False),
}
MAPS = (
    "saliency",
    "input_x_gradient",
    "integrated_gradients",
    "random",
    "quantised4",
    "blocky4",
    "mixed_constant",
    "constant",
)
CLOSE_DROPS = 3e-5
CLOSE_SUMS = 2e-6

each_tag = pytest.mark.parametrize("tag", TAGS)
each_map = pytest.mark.parametrize("name", MAPS)


@pytest.fixture(scope="module")
def responses(golden, golden_network):
    data = golden("data")
    images, labels = torch.from_numpy(data["x"]), torch.from_numpy(data["y"])
    ids = [str(number) for number in range(len(images))]

    @cache
    def run(tag):
        grid, baseline, options, truncate = TAGS[tag]
        query = batch_of(golden_network, images, labels, ids, batch_size=50)
        return patch_responses(query, grid, baseline, baseline_options=options, truncate=truncate)

    return run


@pytest.fixture
def drops(responses):
    def compute(tag):
        logit = responses(tag)["logit"].astype(np.float64)
        return logit[:, :1] - logit[:, 1:]

    return compute


def close_pairs(values, tolerance):
    """Return the pairs within each row that are nearly, but not exactly, equal."""
    gaps = np.abs(values[:, :, None] - values[:, None, :])
    return ((gaps > 0) & (gaps < tolerance)).sum(axis=(1, 2)) // 2


@each_tag
def test_drops_equal_the_stored_ones(tag, golden, responses, drops):
    stored = golden("idsds")
    np.testing.assert_allclose(responses(tag)["logit"][:, 0], stored[f"{tag}__target_logit_original"], atol=CLOSE_DROPS)
    np.testing.assert_allclose(drops(tag), stored[f"{tag}__drops"], rtol=0, atol=CLOSE_DROPS)


@each_tag
def test_intact_image_gives_the_stored_prediction(tag, golden, responses):
    data = golden("data")
    np.testing.assert_array_equal(responses(tag)["predicted"][:, 0], data["pred"])
    np.testing.assert_array_equal(responses(tag)["target_rank"][:, 0] == 0, data["pred"] == data["y"])


@each_map
@each_tag
def test_patch_sums_equal_the_stored_ones(tag, name, golden):
    grid, _, _, truncate = TAGS[tag]
    stored = golden("idsds")[f"{tag}__{name}__patch_sums"]
    sums = patch_sums(golden("maps")[name], grid, truncate=truncate)
    np.testing.assert_allclose(sums, stored, rtol=0, atol=CLOSE_SUMS * np.abs(stored).max())


@each_map
@each_tag
def test_correlations_of_stored_sums_and_drops_equal_the_stored_ones(tag, name, golden):
    stored = golden("idsds")
    correlation = spearman_rows(stored[f"{tag}__{name}__patch_sums"], stored[f"{tag}__drops"])
    np.testing.assert_array_equal(~np.isnan(correlation), stored[f"{tag}__{name}__used"] == 1)
    np.testing.assert_allclose(correlation, stored[f"{tag}__{name}__rho"], rtol=0, atol=1e-9)


@each_map
@each_tag
def test_scores_of_stored_drops_equal_the_stored_ones(tag, name, golden):
    grid, _, _, truncate = TAGS[tag]
    stored = golden("idsds")
    score, valid = single_deletion_scores(golden("maps")[name], stored[f"{tag}__drops"], grid, truncate=truncate)
    np.testing.assert_array_equal(valid, stored[f"{tag}__{name}__used"] == 1)
    assert valid.any() == (stored[f"{tag}__{name}__raised"] == 0)
    if valid.any():
        assert score[valid].mean() == pytest.approx(stored[f"{tag}__{name}__mean"], abs=1e-9)


@each_map
@each_tag
def test_scores_of_computed_drops_equal_the_stored_ones(tag, name, golden, drops):
    grid, _, _, truncate = TAGS[tag]
    stored = golden("idsds")
    score, valid = single_deletion_scores(golden("maps")[name], drops(tag), grid, truncate=truncate)
    np.testing.assert_array_equal(valid, stored[f"{tag}__{name}__used"] == 1)
    sums = stored[f"{tag}__{name}__patch_sums"].astype(np.float64)
    swaps = close_pairs(stored[f"{tag}__drops"].astype(np.float64), CLOSE_DROPS)
    swaps += close_pairs(sums, CLOSE_SUMS * np.abs(sums).max())
    patches = grid * grid
    allowed = 1e-9 + swaps * 12 / (patches * (patches + 1))
    assert np.all(np.abs(score - stored[f"{tag}__{name}__rho"])[valid] <= allowed[valid])


def test_the_sigma_of_the_paper_differs_from_that_of_the_code(golden, golden_network, drops):
    data = golden("data")
    images, labels = torch.from_numpy(data["x"]), torch.from_numpy(data["y"])
    logit = patch_responses(batch_of(golden_network, images, labels, [str(i) for i in range(24)]), 4, "blur")["logit"]
    assert np.abs(logit[:, :1] - logit[:, 1:] - drops("g4_blur")).max() > 100 * CLOSE_DROPS


def test_grid_that_does_not_divide_is_an_error_by_default(golden, golden_network):
    data, maps = golden("data"), golden("maps")
    with pytest.raises(HeatproofError, match=r"grid of 5 .* 32×32 .* 4 or 8"):
        single_deletion_scores(maps["saliency"], golden("idsds")["g5__drops"], 5)
    images, labels = torch.from_numpy(data["x"]), torch.from_numpy(data["y"])
    with pytest.raises(HeatproofError, match="grid of 5"):
        patch_responses(batch_of(golden_network, images, labels, [str(i) for i in range(24)]), 5, "zeros")

"""Occlusion, ablation, LIME and KernelSHAP against captum, and on models with known relevant regions."""

import builtins
import dataclasses
import itertools
import math

import captum.attr
import numpy as np
import pytest
import torch
from torch import nn

from heatproof.core.randomness import derive_seed
from heatproof.errors import HeatproofError
from heatproof.explainers._superpixels import index_patches, index_segments
from heatproof.explainers.registry import EXPLAINERS
from heatproof.explainers.rise import _aligned_masks

MASKED = ["lime", "kernel_shap"]


def run(name, context, **options):
    return EXPLAINERS[name].function(context, **options)[name]


def explain_with(network, context, **changes):
    return dataclasses.replace(context, network=network, output=network, **changes)


class Weighted(nn.Module):
    """Network whose logit is a weighted sum of the means of the 16 patches of a 4 × 4 grid."""

    weights = torch.arange(16.0) - 5

    def forward(self, images):
        patches = nn.functional.avg_pool2d(images.mean(1), images.shape[-1] // 4).flatten(1)
        return (patches @ self.weights.to(images))[:, None].repeat(1, 10)


class Interaction(nn.Module):
    """Network whose logit is 1 if both of the first two patches of a 2 × 2 grid are present, plus 3 for the third."""

    def forward(self, images):
        first, second, third, _ = nn.functional.avg_pool2d(images.mean(1), 16).flatten(1).unbind(1)
        return (first * second + 3 * third)[:, None].repeat(1, 10)


def ones(context):
    return torch.ones_like(context.images)


def by_patch(values, cells=4):
    return nn.functional.avg_pool2d(values[:, None], 32 // cells).flatten(1)


@pytest.mark.parametrize(("window", "stride"), [(0.25, 0.125), (0.3, 0.3)])
def test_occlusion_equals_that_of_captum_on_one_image(window, stride, explain_digits):
    context = explain_digits(batch_size=7, dtype=torch.float64)
    values = run("occlusion", context, window=window, stride=stride)
    side, step = math.floor(32 * window), math.floor(32 * stride)
    for row, target in enumerate(context.targets.tolist()):
        direct = captum.attr.Occlusion(context.network).attribute(
            context.images[row : row + 1], (3, side, side), (3, step, step), target=target
        )
        assert (values[row] - direct[0, 0]).abs().max() < 1e-5


def test_occlusion_of_a_patch_equals_its_drop(explain_digits):
    context = explain_digits(count=2)
    values = run("occlusion", context, window=0.25, stride=0.25)
    intact = context.network(context.images)
    hidden = context.images.clone()
    hidden[:, :, 8:16, 24:32] = 0
    drops = (intact - context.network(hidden)).gather(1, context.targets[:, None])
    torch.testing.assert_close(values[:, 8:16, 24:32], drops[..., None].expand(-1, 8, 8), rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["occlusion", "feature_ablation", *MASKED])
def test_weights_of_a_sum_over_patches_are_found(name, explain_digits):
    context = explain_digits(count=2, batch_size=16)
    context = explain_with(Weighted(), context, images=ones(context))
    options = {
        "occlusion": {"window": 0.25, "stride": 0.25},
        "feature_ablation": {"grid": 4},
        "lime": {"cells": 4, "masks": 100, "alpha": 1e-6},
        "kernel_shap": {"cells": 4, "masks": 100},
    }[name]
    values = run(name, context, **options)
    torch.testing.assert_close(by_patch(values), Weighted.weights.expand(2, -1), rtol=0, atol=1e-3)
    assert values.unfold(1, 8, 8).unfold(2, 8, 8).flatten(3).std(-1).max() < 1e-6, "constant in each patch"


def test_ablated_patches_are_logit_drops(explain_digits):
    context = explain_digits(count=3, batch_size=7)
    values = run("feature_ablation", context, grid=8)
    intact = context.network(context.images)
    for top, left in itertools.product((0, 12, 28), (4, 16)):
        hidden = context.images.clone()
        hidden[:, :, top : top + 4, left : left + 4] = 0
        drops = (intact - context.network(hidden)).gather(1, context.targets[:, None])[:, 0]
        assert (values[:, top + 1, left + 2] - drops).abs().max() < 1e-5


def test_shapley_values_divide_an_interaction_equally(explain_digits):
    context = explain_digits(count=1)
    context = explain_with(Interaction(), context, images=ones(context))
    values = by_patch(run("kernel_shap", context, cells=2, masks=400), 2)
    torch.testing.assert_close(values, torch.tensor([[0.5, 0.5, 3.0, 0.0]]), rtol=0, atol=0.05)


@pytest.mark.parametrize("segments", ["grid", "slic"])
def test_shapley_values_sum_to_the_difference_of_outputs(segments, explain_digits):
    if segments == "slic":
        pytest.importorskip("skimage")
    context = explain_digits(count=2)
    values = run("kernel_shap", context, masks=120, cells=4, segments=segments)
    logits = context.network(context.images) - context.network(torch.zeros_like(context.images))
    differences = logits.gather(1, context.targets[:, None])[:, 0]
    for row, segment_indices in enumerate(index_segments(context, segments, 4)):
        total = sum(
            values[row][segment_indices == segment_index].mean()
            for segment_index in range(int(segment_indices.max()) + 1)
        )
        assert abs(total - differences[row]) < 1e-3 * differences.abs().max()


@pytest.mark.parametrize("name", MASKED)
def test_maps_equal_those_of_captum_with_the_same_draws(name, explain_digits):
    context = explain_digits("small_vit", count=2, batch_size=8)
    values = run(name, context, masks=90, cells=4)
    segment_indices = index_patches((32, 32), 4)[None, None]
    for row, target in enumerate(context.targets.tolist()):
        if name == "lime":
            similarity = captum.attr._core.lime.get_exp_kernel_similarity_function("cosine", 0.25)
            ridge = captum._utils.models.linear_model.SkLearnRidge(alpha=1.0)
            method = captum.attr.Lime(context.network, ridge, similarity)
        else:
            method = captum.attr.KernelShap(context.network)
        with torch.random.fork_rng():
            torch.manual_seed(derive_seed(context.seed, f"{name} masks", context.image_ids[row]))
            direct = method.attribute(
                context.images[row : row + 1],
                target=target,
                feature_mask=segment_indices,
                n_samples=90,
                perturbations_per_eval=8,
            )[0, 0]
        # captum's regression is in float32, in which KernelSHAP's weights of a million lose precision.
        tolerance = 1e-5 if name == "lime" else 1e-3
        assert (values[row] - direct).abs().max() < tolerance * direct.abs().max()


@pytest.mark.parametrize("cells", [1, 3, 8, 32])
def test_grid_has_every_number_and_even_patches(cells):
    segment_indices = index_patches((32, 40), cells)
    assert torch.equal(segment_indices.unique(), torch.arange(cells * cells))
    sizes = segment_indices.flatten().bincount()
    assert sizes.max() <= math.ceil(32 / cells) * math.ceil(40 / cells)
    assert sizes.min() >= (32 // cells) * (40 // cells)
    assert (
        torch.equal(segment_indices.flatten().sort().values[:: sizes.max()], segment_indices.unique())
        or 32 % cells
        or 40 % cells
    )


def test_slic_follows_the_colours(explain_digits):
    pytest.importorskip("skimage")
    context = explain_digits(count=2)
    images = torch.full((2, 3, 32, 32), -1.0)
    images[0, :, 5:18, 3:21] = 1.0
    segment_indices = index_segments(dataclasses.replace(context, images=images), "slic", 4)[0]
    assert torch.equal(segment_indices.unique(), torch.arange(int(segment_indices.max()) + 1))
    assert segment_indices.max() >= 4
    inside = segment_indices[5:18, 3:21]
    outside = segment_indices.clone()
    outside[5:18, 3:21] = -1
    assert not np.intersect1d(inside.numpy(), outside.numpy()).size, "no superpixel crosses the edge"


def test_slic_segments_do_not_depend_on_the_batch(explain_digits):
    pytest.importorskip("skimage")
    context = explain_digits(count=2)
    together = run("lime", context, masks=20, segments="slic", cells=4)
    single = run(
        "lime",
        dataclasses.replace(
            context, images=context.images[1:], targets=context.targets[1:], image_ids=context.image_ids[1:]
        ),
        masks=20,
        segments="slic",
        cells=4,
    )
    assert (together[1:] - single).abs().max() < 1e-5


def test_missing_library_is_named(explain_digits, monkeypatch):
    real = builtins.__import__

    def without(name, *arguments, **options):
        if name.startswith("skimage"):
            raise ImportError(name)
        return real(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(HeatproofError, match=r"scikit-image"):
        run("lime", explain_digits(), segments="slic")


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("occlusion", {"window": 0}, "window above 0"),
        ("occlusion", {"window": 0.1, "stride": 0.2}, "at most its window"),
        ("feature_ablation", {"grid": 33}, "between 1 and 32 cells"),
        ("lime", {"masks": 2}, "at least 3 masks"),
        ("lime", {"kernel_width": 0}, "kernel width"),
        ("lime", {"alpha": 0}, "alpha"),
        ("lime", {"segments": "felt"}, "'grid' or 'slic'"),
        ("kernel_shap", {"cells": 1}, "at least 2 cells"),
        ("rise_grid", {"cells": 33}, "between 1 and 32"),
    ],
)
def test_options_out_of_range_are_refused(name, options, sentence, explain_digits):
    with pytest.raises(HeatproofError, match=sentence):
        run(name, explain_digits(), **options)


@pytest.mark.parametrize("cells", [4, 5])
def test_masks_of_rise_grid_consist_of_complete_patches(cells, explain_digits):
    masks = torch.cat(list(_aligned_masks(explain_digits(), 2000, cells, 0.3)))
    assert masks.shape == (2000, 32, 32)
    assert torch.equal(masks.unique(), torch.tensor([0.0, 1.0]))
    segment_indices = index_patches((32, 32), cells)
    for segment_index in range(cells * cells):
        inside = masks[:, segment_indices == segment_index]
        assert torch.equal(inside.amin(1), inside.amax(1))
        # Five standard errors of a Bernoulli mean.
        assert abs(inside[:, 0].mean() - 0.3) < 5 * (0.21 / 2000) ** 0.5


def test_rise_grid_is_the_mean_of_masks_weighted_by_outputs(explain_digits):
    context = explain_digits("cifar_vgg11_bn", batch_size=5, dtype=torch.float64)
    expected = torch.zeros(3, 32, 32, dtype=torch.float64)
    for mask in torch.cat(list(_aligned_masks(context, 140, 6, 0.3))):
        outputs = context.network(mask * context.images).softmax(1)
        expected += outputs[torch.arange(3), context.targets][:, None, None] * mask
    values = run("rise_grid", context, masks=140, cells=6, probability=0.3)
    torch.testing.assert_close(values, expected / (140 * 0.3), rtol=0, atol=1e-8)

"""RISE against its definition, and on models with known relevant regions."""

import dataclasses

import pytest
import torch
from torch import nn

from heatproof.explainers._batches import draw_uniform_images
from heatproof.explainers.registry import EXPLAINERS
from heatproof.explainers.rise import _masks


def explain_with(network, context, **changes):
    return dataclasses.replace(context, network=network, output=network, **changes)


class Block(nn.Module):
    """Network whose logits are all the mean of one block of the image."""

    def forward(self, images):
        return images[:, :, 8:16, 16:24].mean((1, 2, 3))[:, None].repeat(1, 10)


@pytest.mark.parametrize("output", ["probability", "logit"])
@pytest.mark.parametrize("name", ["rise", "rise_uniform"])
def test_rise_is_the_mean_of_masks_weighted_by_outputs(name, output, explain_digits):
    context = explain_digits("cifar_vgg11_bn", batch_size=5, dtype=torch.float64)
    masks = torch.cat(list(_masks(context, 140, 6, 0.3)))
    baselines = torch.zeros_like(context.images)
    if name == "rise_uniform":
        baselines = draw_uniform_images(context, "rise_uniform baseline", -1, 1)
    expected = torch.zeros(3, 32, 32, dtype=torch.float64)
    for mask in masks:
        outputs = context.network(mask * context.images + (1 - mask) * baselines)
        outputs = outputs.softmax(1) if output == "probability" else outputs
        expected += outputs[torch.arange(3), context.targets][:, None, None] * mask
    expected /= 140 * 0.3
    maps = EXPLAINERS[name].function(context, masks=140, cells=6, probability=0.3, output=output)
    torch.testing.assert_close(maps[name], expected, rtol=0, atol=1e-8)


@pytest.mark.parametrize(("cells", "probability"), [(8, 0.5), (7, 0.1), (1, 0.5), (32, 0.5)])
def test_masks_keep_each_pixel_with_the_stated_probability(cells, probability, explain_digits):
    masks = torch.cat(list(_masks(explain_digits(), 3000, cells, probability)))
    assert masks.shape == (3000, 32, 32)
    assert masks.min() >= 0
    assert masks.max() <= 1
    assert abs(masks.mean() - probability) < 0.02
    # Five standard errors of a Bernoulli mean, at every pixel.
    assert (masks.mean(0) - probability).abs().max() < 5 * (0.25 / 3000) ** 0.5


def test_masks_are_shifted(explain_digits):
    masks = torch.cat(list(_masks(explain_digits(), 200, 4, 0.5)))
    # With cells of 8 pixels and no shift, masks would reach 0 and 1 at the same pixels only.
    steps = (masks[:, :, 1:] - masks[:, :, :-1]).abs()
    assert (steps.mean(0) > 0).all()


def test_maps_without_removed_pixels_equal_the_output(explain_digits):
    context = explain_digits()
    outputs = context.network(context.images).softmax(1)[torch.arange(3), context.targets]
    for name in ("rise", "rise_uniform"):
        maps = EXPLAINERS[name].function(context, masks=5, probability=1.0)[name]
        torch.testing.assert_close(maps, outputs[:, None, None].expand(-1, 32, 32), rtol=0, atol=1e-5)


def test_relevance_lies_in_the_region_that_the_model_reads(explain_digits):
    context = explain_with(Block(), explain_digits(count=2), images=torch.ones(2, 3, 32, 32))
    values = EXPLAINERS["rise"].function(context, masks=2000, output="logit")["rise"]
    relevant = torch.zeros(32, 32, dtype=torch.bool)
    relevant[8:16, 16:24] = True
    far = torch.ones(32, 32, dtype=torch.bool)
    far[2:22, 10:30] = False
    # E[m(block) m(x)] / p is p for a pixel x that is independent of the block, and larger inside the block.
    assert (values[:, far] - 0.5).abs().max() < 0.05
    assert values[:, relevant].min() > values[:, far].max()


def test_the_layout_channels_last_is_preserved(explain_digits):
    context = explain_digits()
    layouts = set()

    class RecordLayout(nn.Module):
        def forward(self, images):
            layouts.add(images.is_contiguous(memory_format=torch.channels_last))
            return context.network(images)

    plain = EXPLAINERS["rise"].function(explain_with(RecordLayout(), context), masks=10)["rise"]
    assert layouts == {False}
    layouts.clear()
    images = context.images.to(memory_format=torch.channels_last)
    last = EXPLAINERS["rise"].function(explain_with(RecordLayout(), context, images=images), masks=10)["rise"]
    assert layouts == {True}
    torch.testing.assert_close(last, plain, rtol=0, atol=1e-5)

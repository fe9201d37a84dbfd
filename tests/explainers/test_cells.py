"""Maps of layers and tokens whose cells do not divide the image, by the same network on padded or cropped images."""

import copy
import dataclasses

import pytest
import timm
import torch
from hand_vits import hand_vit
from tiny_vits import tiny_vit
from torch import nn

import heatproof
from heatproof.core.input_facts import InputFacts
from heatproof.explainers._cells import AxisCells, CellRecorder, enlarge, follow_cells
from heatproof.explainers._layers import Layout, _with_padded_tokens
from heatproof.explainers.registry import EXPLAINERS

OF_TOKENS = ["raw_attention", "attention_rollout", "attention_grad", "chefer_attention", "transition_attention"]
CAMS = ["grad_cam", "hires_cam", "layer_cam", "score_cam", "guided_grad_cam", "iba"]
FAST = {"iba": {"steps": 2, "samples": 2, "baselines": 4}}


def noise(height, width, count=2):
    return torch.randn(count, 3, height, width, generator=torch.Generator().manual_seed(0))


class Padded(nn.Module):
    """A network behind a padding, or a crop where a number is negative."""

    def __init__(self, inner, pad):
        super().__init__()
        self.inner, self.pad = inner, pad

    def forward(self, images):
        return self.inner(nn.functional.pad(images, self.pad))


class Features(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, images):
        return self.inner.forward_features(images)


def run(name, network, images, layer=None):
    network = network.eval().requires_grad_(False)
    context = heatproof.core.batch.Batch(
        network,
        network,
        InputFacts(cam_layer=layer),
        images,
        torch.tensor([1, 3]),
        ("a", "b"),
        seed=0,
        batch_size=8,
        background=lambda count: noise(*images.shape[2:], count),
    )
    return EXPLAINERS[name].function(context, **FAST.get(name, {}))[name]


def assert_close(values, expected):
    assert expected.std() > 0
    assert (values - expected).abs().max() <= 1e-4 * expected.abs().max()


def cut(maps, pad):
    """Return maps of padded images without the padding, and with zeros for what was cropped."""
    return nn.functional.pad(maps, [-width for width in pad])


def small_cnn(first=None):
    torch.manual_seed(0)
    return nn.Sequential(
        first or nn.Conv2d(3, 6, 3, 2, 1),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Conv2d(6, 8, 3, 2, 1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(32, 5),
    )


PADS = [(4, 4, 4, 4), (0, 8, 0, 4), (-8, 0, 4, 0), (0, -8, 0, -4)]


@pytest.mark.parametrize("pad", [(2, 2, 2, 2), (0, 3, 0, 1)], ids=str)
@pytest.mark.parametrize("name", OF_TOKENS)
def test_token_maps_behind_a_padding_are_those_of_padded_images(name, pad):
    network, images = hand_vit((8, 8), prefix=1, size=(32, 32)), noise(32 - pad[2] - pad[3], 32 - pad[0] - pad[1])
    expected = cut(run(name, network, nn.functional.pad(images, pad)), pad)
    assert_close(run(name, Padded(network, pad), images), expected)


@pytest.mark.parametrize("pad", PADS, ids=str)
@pytest.mark.parametrize("name", CAMS)
def test_cams_behind_a_padding_are_those_of_padded_images(name, pad):
    network, images = small_cnn(), noise(32 - pad[2] - pad[3], 32 - pad[0] - pad[1])
    if name in ("score_cam", "iba", "guided_grad_cam"):
        # The masks of Score-CAM multiply the image and not its padding, and the moments are of other images, so only
        # the position is compared.
        values = run(name, Padded(network, pad), images, "inner.3")
        read = cut(torch.ones(2, 32, 32), pad)
        assert (values[read == 0] == 0).all()
        assert values.std() > 0
        return
    expected = cut(run(name, network, nn.functional.pad(images, pad), "3"), pad)
    assert_close(run(name, Padded(network, pad), images, "inner.3"), expected)


@pytest.mark.parametrize("name", [*OF_TOKENS, "chefer_lrp"])
def test_patches_that_timm_pads_are_those_of_padded_images(name):
    network = tiny_vit(num_classes=5, img_size=(32, 40), dynamic_img_size=True, dynamic_img_pad=True)
    images, pad = noise(30, 34), (0, 6, 0, 2)
    expected = cut(run(name, network, nn.functional.pad(images, pad)), pad)
    assert_close(run(name, network, images), expected)


@pytest.mark.parametrize("name", OF_TOKENS)
def test_what_the_patches_do_not_read_is_zero(name):
    """Patches of 16 pixels read 64 of 78."""
    network = tiny_vit(num_classes=5, img_size=78, patch_size=16)
    images = noise(78, 78)
    changed = images.clone()
    changed[:, :, 64:] = 5
    changed[..., 64:] = 5
    assert torch.equal(network(images), network(changed))
    values = run(name, network, images)
    assert (values[:, 64:] == 0).all()
    assert (values[..., 64:] == 0).all()
    read = tiny_vit(num_classes=5, img_size=64, patch_size=16)
    read.load_state_dict(network.state_dict())
    assert_close(values[:, :64, :64], run(name, read, images[..., :64, :64].contiguous()))


def test_cells_of_strides_that_leave_a_rest_cover_what_is_read():
    """A pool of 2 leaves out the last row of 33, and four pools the last 1 of 33 in all."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 4, 3, 1, 1), nn.MaxPool2d(2), nn.Conv2d(4, 4, 1), nn.MaxPool2d(2)]
    network = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5))
    without_context = copy.deepcopy(network)
    without_context[0] = nn.Conv2d(3, 4, 1)
    images = noise(35, 33)
    values = run("hires_cam", without_context, images, "3")
    assert (values[:, 32:] == 0).all()
    assert (values[..., 32:] == 0).all()
    assert_close(values[:, :32, :32], run("hires_cam", without_context, images[..., :32, :32].contiguous(), "3"))


@pytest.mark.parametrize("size", [(224, 224), (64, 96)])
@pytest.mark.parametrize(
    "name", ["resnet10t", "convnext_atto", "tf_efficientnet_b0", "mobilenetv3_small_050", "resnet18"]
)
def test_maps_of_sizes_that_the_stride_divides_are_those_of_a_plain_enlargement(name, size):
    torch.manual_seed(0)
    network, recorder = Features(timm.create_model(name)).eval().requires_grad_(False), CellRecorder(size)
    with follow_cells(network, recorder):
        features = network(noise(*size))
    assert features.shape[2:] == (size[0] // 32, size[1] // 32)
    cells = recorder.locate(features, features.shape[2:])
    assert cells is not None
    values = torch.rand(1, 1, *features.shape[2:])
    expected = nn.functional.interpolate(values, size, mode="bilinear", align_corners=False)
    assert torch.equal(enlarge(values, size, cells), expected)


@pytest.mark.parametrize(
    ("make", "size", "cells"),
    [
        # Windows of 3 at strides of 2, padded by 1, lie around the pixels 0, 2, 4 …
        (lambda: nn.Conv2d(3, 4, 3, 2, 1), 9, (5, 2, -0.5, (0, 9))),
        (lambda: nn.Conv2d(3, 4, 3, 2, 1), 8, (4, 2, 0, (0, 8))),
        (lambda: nn.Conv2d(3, 4, 5), 12, (8, 1, 2, (0, 12))),
        (lambda: nn.Conv2d(3, 4, 4, 4), 14, (3, 4, 0, (0, 12))),
        (lambda: nn.Conv2d(3, 4, 4, 4, 2), 12, (4, 4, -2, (0, 12))),
        (lambda: nn.Sequential(nn.ReflectionPad2d(1), nn.Conv2d(3, 4, 3)), 8, (8, 1, 0, (0, 8))),
        (lambda: nn.Sequential(nn.ZeroPad2d(4), nn.Conv2d(3, 4, 3, 1, 1)), 8, (16, 1, -4, (0, 8))),
        (lambda: nn.Conv2d(3, 4, 3, padding="same", dilation=2), 8, (8, 1, 0, (0, 8))),
        (lambda: nn.MaxPool2d(2), 9, (4, 2, 0, (0, 8))),
        (lambda: nn.MaxPool2d(2, ceil_mode=True), 9, (5, 2, 0, (0, 9))),
        (lambda: nn.AdaptiveAvgPool2d(3), 12, (3, 4, 0, (0, 12))),
        (lambda: nn.Upsample(scale_factor=2), 8, (16, 0.5, 0, (0, 8))),
        (lambda: nn.PixelUnshuffle(2), 8, (4, 2, 0, (0, 8))),
    ],
)
def test_cells_of_layers_lie_where_they_read(make, size, cells):
    network, recorder = make(), CellRecorder((size, size))
    with follow_cells(network, recorder):
        output = network(noise(size, size))
    axes = recorder.locate(output, output.shape[2:])
    for axis in axes:
        first, end = axis.read
        assert (axis.count, axis.stride, axis.start, (max(first, 0), min(end, size))) == cells


def test_a_tensor_that_was_not_followed_has_no_cells_and_is_stretched():
    network, recorder = nn.Conv2d(3, 4, 4, 4), CellRecorder((14, 14))
    with follow_cells(network, recorder):
        output = network(noise(14, 14))
    assert recorder.locate(output.detach().numpy(), (3, 3)) is None
    assert recorder.locate(torch.ones(2, 4, 3, 3), (3, 3)) is None
    values = torch.rand(2, 1, 3, 3)
    expected = nn.functional.interpolate(values, (14, 14), mode="bilinear", align_corners=False)
    assert torch.equal(enlarge(values, (14, 14), None), expected)


def test_enlarged_cells_equal_an_interpolation_that_is_cropped_and_padded():
    values = torch.rand(2, 1, 4, 5)
    stretched = nn.functional.interpolate(values, (16, 20), mode="bilinear", align_corners=False)
    rows = AxisCells(4, 4.0, -2.0, -2.0, 4.0)
    columns = AxisCells(5, 4.0, 0.0, 0.0, 4.0)
    expected = nn.functional.pad(stretched, (0, 3, -2, -2))
    torch.testing.assert_close(enlarge(values, (12, 23), (rows, columns)), expected)
    assert dataclasses.replace(rows, start=0.0, field_start=0.0).covers(16)


@pytest.mark.parametrize(("prefix", "grid"), [(0, (7, 7)), (1, (6, 7))])
def test_rows_of_tokens_that_read_mostly_a_padding_are_in_the_grid(prefix, grid):
    """In a Swin of transformers, the last 7 of 49 tokens of 98 pixels looked like class tokens."""

    class Patches(nn.Module):
        def __init__(self):
            super().__init__()
            self.project = nn.Conv2d(3, 4, 16, 16)

        def forward(self, images):
            tokens = self.project(nn.functional.pad(images, (0, 6, 0, 14))).flatten(2).mT
            return torch.cat([torch.zeros(2, prefix, 4), tokens], 1)

    network, recorder = Patches(), CellRecorder((98, 106))
    with follow_cells(network, recorder):
        tokens = network(noise(98, 106))
    layout = _with_padded_tokens(Layout("", (6, 7), cells=tuple(range(42))), tokens, recorder)
    assert (layout.grid, layout.cells) == (grid, tuple(range(grid[0] * grid[1])))

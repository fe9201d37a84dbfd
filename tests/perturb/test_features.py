"""Selection of feature layers, and features of intact images and images with one deleted patch."""

from dataclasses import replace

import numpy as np
import pytest
import timm
import torch
import torchvision
from network_responses import batch_of, padded
from torch import nn

from heatproof.core.perturb.features import feature_layers, feature_responses, feature_widths, pooled
from heatproof.errors import NotApplicable
from heatproof.models.registry import ARCHITECTURES

IDS = [f"image-{row}" for row in range(7)]


def image(side=32):
    return torch.rand(1, 3, side, side, generator=torch.Generator().manual_seed(0))


def own_network(name, **options):
    return ARCHITECTURES[name].build(3, **options).eval()


DENSE = {"growth_rate": 4, "block_config": (1, 1, 1, 1), "num_init_features": 4, "num_classes": 3}
TOKENS = {"image_size": 32, "patch_size": 8, "num_heads": 2, "hidden_dim": 8, "mlp_dim": 8, "num_classes": 3}
FOUND = {
    "resnet": (own_network("cifar_resnet20", width=4), ["stem.0", *(f"stages.{n}" for n in (1, 2, 3, 5, 7, 8))]),
    "vgg": (own_network("cifar_vgg11", width=4), None),
    "vgg with batch norm": (own_network("cifar_vgg11_bn", width=4), None),
    "vit": (own_network("small_vit", dim=24, depth=3), ["patch_embed.proj", "blocks.0", "blocks.1", "blocks.2"]),
    "bagnet": (own_network("cifar_bagnet", width=4), None),
    "bcos": (own_network("cifar_bcos_resnet20", width=4), None),
    "torchvision resnet": (
        torchvision.models.ResNet(torchvision.models.resnet.BasicBlock, [1, 1, 1, 1], num_classes=3).eval(),
        ["conv1", "layer1.0", "layer2.0", "layer3.0", "layer4.0"],
    ),
    "torchvision vit": (
        torchvision.models.VisionTransformer(num_layers=2, **TOKENS).eval(),
        ["conv_proj", "encoder.layers.encoder_layer_0", "encoder.layers.encoder_layer_1"],
    ),
    "densenet": (
        torchvision.models.DenseNet(**DENSE).eval(),
        [f"features.{name}" for name in ("conv0", "denseblock1", "transition1", "transition2", "denseblock3")]
        + ["features.transition3", "features.denseblock4"],
    ),
    "convnext": (
        timm.models.convnext.ConvNeXt(depths=(1, 1, 1, 1), dims=(4, 8, 8, 8), num_classes=3).eval(),
        ["stem.0", "stages.0", "stages.1", "stages.2", "stages.3"],
    ),
}


@pytest.mark.parametrize("family", FOUND)
def test_layers_are_found_in_every_family(family):
    network, expected = FOUND[family]
    layers = feature_layers(network, image())
    assert 4 <= len(layers) <= 8
    assert list(layers)[-1] == "penultimate"
    assert expected is None or list(layers)[:-1] == expected
    widths = feature_widths(network, image())
    assert widths["penultimate"] == (layers["penultimate"].weight.shape[1] if "bcos" not in family else 16)
    # From early to late: each layer ends before a later one whose input it is part of.
    names = [name for name, _ in network.named_modules() if name in layers]
    assert list(layers)[:-1] == names
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in network.modules())


def test_a_wrapped_network_has_the_same_layers():
    network, expected = FOUND["torchvision resnet"]
    wrapped = nn.Sequential(nn.Identity(), network)
    assert list(feature_layers(wrapped, image()))[:-1] == [f"1.{name}" for name in expected]


def test_a_network_without_blocks_has_its_penultimate_features():
    network = nn.Sequential(nn.Flatten(), nn.Linear(48, 5), nn.ReLU(), nn.Linear(5, 2)).eval()
    assert feature_widths(network, image(4)) == {"penultimate": 5}


def test_a_network_without_layers_is_not_applicable():
    with pytest.raises(NotApplicable, match="runs no layer with a kernel"):
        feature_layers(nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten()), image(4))


def test_pooled_features_are_means_over_positions():
    grid, tokens = torch.rand(2, 3, 4, 4), torch.rand(2, 5, 3)
    torch.testing.assert_close(pooled(grid), grid.mean((2, 3)))
    torch.testing.assert_close(pooled(grid.permute(0, 2, 3, 1)), grid.mean((2, 3)))
    torch.testing.assert_close(pooled(tokens), tokens.mean(1))
    torch.testing.assert_close(pooled(tokens[:, 0]), tokens[:, 0])


class Marks(nn.Module):
    """Its penultimate features are the mean colour, and the share of black pixels."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 3)

    def forward(self, images):
        return self.head(torch.cat([images.mean((2, 3)), (images == 0).all(1).float().mean((1, 2))[:, None]], dim=1))


def query(network, batch_size, images=None):
    images = 1 + torch.rand(7, 3, 8, 8, generator=torch.Generator().manual_seed(1)) if images is None else images
    network = network.eval() if isinstance(network, nn.Module) else network
    return batch_of(network, images, torch.zeros(len(images), dtype=torch.int64), IDS, 0, batch_size)


def test_one_patch_is_deleted_only_in_the_second_version():
    responses = feature_responses(query(Marks(), 3), 4, "zeros")
    assert responses["features"].shape == (7, 2, 1, 4)
    np.testing.assert_allclose(responses["features"][:, :, 0, 3], [[0, 1 / 16]] * 7)


def test_the_patch_depends_only_on_the_image_and_the_seed():
    images = 1 + torch.rand(1, 3, 8, 8).expand(7, -1, -1, -1)
    first_query = query(Marks(), 64, images)
    first = feature_responses(first_query, 4, "zeros")["features"]
    assert len(np.unique(first[:, 1, 0, 0])) > 1
    assert not np.array_equal(feature_responses(replace(first_query, seed=1), 4, "zeros")["features"], first)


@pytest.mark.parametrize("batch_size", [1, 3, 64])
def test_padded_batches_change_no_feature(batch_size):
    network = own_network("cifar_resnet20", width=4)
    images = torch.rand(7, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    expected = feature_responses(query(network, 14, images), 4, "zeros")
    responses = feature_responses(query(padded(network, batch_size), batch_size, images), 4, "zeros")
    for name, values in expected.items():
        np.testing.assert_allclose(responses[name], values, rtol=1e-4, atol=1e-5)
    with torch.inference_mode():
        stem = network.stem[0](images).mean((2, 3))
    np.testing.assert_allclose(responses["features"][:, 0, 0, : stem.shape[1]], stem, rtol=1e-4, atol=1e-6)


def test_rows_of_a_pass_that_ran_out_of_memory_are_left_out():
    network, fails = FOUND["torchvision vit"][0], [True]

    def once(_module, inputs):
        if len(inputs[0]) > 4 and fails:
            fails.clear()
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")

    images = torch.rand(7, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    expected = feature_responses(query(network, 8, images), 4, "zeros")
    handle = network.encoder.layers[1].register_forward_pre_hook(once)
    try:
        responses = feature_responses(query(padded(network, 8), 8, images), 4, "zeros")
    finally:
        handle.remove()
    assert not fails
    np.testing.assert_allclose(responses["features"], expected["features"], rtol=1e-4, atol=1e-5)

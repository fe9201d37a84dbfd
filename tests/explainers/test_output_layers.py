"""The layer of class activation maps for target functions of outputs with positions, and layers that are no tensor."""

import warnings
from collections import OrderedDict

import pytest
import torch
from torch import nn

import heatproof

CAMS = ["grad_cam", "hires_cam", "score_cam", "guided_grad_cam"]


def conv(inputs, outputs, side=3):
    return nn.Conv2d(inputs, outputs, side, padding=side // 2)


class Backbone(nn.Module):
    def __init__(self):
        super().__init__()
        self.low, self.high = nn.Sequential(conv(3, 4), nn.ReLU()), nn.Sequential(conv(4, 6), nn.ReLU())

    def forward(self, images):
        low = self.low(images)
        return OrderedDict(low=low, high=self.high(nn.functional.max_pool2d(low, 2)))


class Segmentation(nn.Module):
    """As torchvision's: class maps are enlarged to the image, and an auxiliary head reads earlier features."""

    def __init__(self):
        super().__init__()
        self.backbone, self.aux = Backbone(), conv(4, 3, 1)
        self.classifier = nn.Sequential(conv(6, 5), nn.BatchNorm2d(5), nn.ReLU(), nn.Dropout(), conv(5, 3, 1))

    def forward(self, images):
        features = self.backbone(images)
        maps = nn.functional.interpolate(self.classifier(features["high"]), images.shape[2:], mode="bilinear")
        return OrderedDict(out=maps, aux=self.aux(features["low"]))


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone, self.up = Backbone(), nn.ConvTranspose2d(6, 4, 2, 2)
        self.decoder, self.head, self.output = nn.Sequential(conv(8, 4), nn.ReLU()), conv(4, 3, 1), nn.Sigmoid()

    def forward(self, images):
        features = self.backbone(images)
        return self.output(self.head(self.decoder(torch.cat([features["low"], self.up(features["high"])], 1))))


class Boxes(nn.Module):
    """As an SSD: each scale of features has a head, and the values of all boxes are in one tensor (N, boxes, 3)."""

    def __init__(self):
        super().__init__()
        self.backbone, self.heads = Backbone(), nn.ModuleList([conv(4, 3), conv(6, 3)])

    def forward(self, images):
        features = self.backbone(images).values()
        values = [head(scale) for head, scale in zip(self.heads, features, strict=True)]
        return torch.cat([value.permute(0, 2, 3, 1).flatten(1, 2) for value in values], 1)


class Squeezed(nn.Module):
    """As a SqueezeNet: a convolution makes class maps, whose means are the outputs (N, 3)."""

    def __init__(self):
        super().__init__()
        self.backbone, self.head = Backbone(), conv(6, 3, 1)

    def forward(self, images):
        return self.head(self.backbone(images)["high"]).mean((2, 3))


def explain(network, target, methods=("grad_cam",), **options):
    images = torch.randn(2, 3, 16, 24, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    module = network()
    for parameter in module.parameters():
        nn.init.normal_(parameter, 0.1, 0.3)
    return heatproof.explain(module.eval(), images, None, list(methods), target=target, **options)


@pytest.mark.parametrize(
    ("network", "target", "layer"),
    [
        (Segmentation, lambda output, _: output["out"][:, 1].mean((1, 2)), "classifier.2"),
        (Segmentation, lambda output, _: output["aux"][:, 1].mean((1, 2)), "backbone.low"),
        (UNet, lambda output, _: output[:, 1].mean((1, 2)), "decoder"),
        (UNet, lambda output, _: (output.flatten(2).mT @ torch.ones(3, 1)).mean((1, 2)), "decoder"),
        (Squeezed, lambda output, _: output[:, 1], "head"),
    ],
)
def test_the_layer_of_a_target_function_is_not_the_output(network, target, layer):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = explain(network, target)
    assert result.attrs["layer"] == layer
    named = explain(network, target, layer=layer)
    assert result.attribution.values.std() > 0
    assert (result.attribution.values == named.attribution.values).all()


def test_a_layer_that_the_target_also_bypasses_is_named():
    with pytest.warns(UserWarning, match="read the layer 'backbone.high', and the target also depends on the image in"):
        result = explain(Boxes, lambda output, _: output[:, :, 1].mean(1))
    assert result.attrs["layer"] == "backbone.high"


@pytest.mark.filterwarnings("ignore:The method")
@pytest.mark.parametrize("name", CAMS)
def test_a_layer_of_several_tensors_is_refused_with_the_layers_below_it(name):
    result = explain(Segmentation, lambda output, _: output["out"][:, 1].mean((1, 2)), [name], layer="backbone")
    assert result.reason.item() == (
        "The layer 'backbone' puts out several tensors (a OrderedDict), and a map needs one: name one below it, such "
        "as 'backbone.low', 'backbone.high'"
    )


@pytest.mark.parametrize("size", [(1, 16), (16, 1)])
def test_images_of_one_row_or_column_have_maps(size):
    torch.manual_seed(0)
    network = nn.Sequential(conv(3, 4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)).eval()
    images = torch.randn(2, 3, *size)
    chosen = heatproof.explain(network, images, [0, 1], CAMS)
    assert chosen.attrs["layer"] == "1"
    assert set(chosen.reason.values) == {""}
    named = heatproof.explain(network, images, [0, 1], CAMS, layer="1")
    assert (chosen.attribution.values == named.attribution.values).all()
    assert (chosen.attribution.values.std((1, 2, 3)) > 0).all()


def test_the_option_layer_of_a_method_names_the_argument_of_the_call():
    with pytest.raises(heatproof.HeatproofError, match="give it to the call, as layer='head' beside methods"):
        explain(Squeezed, lambda output, _: output[:, 1], [{"grad_cam": {"layer": "head"}}])

import dataclasses

import pytest
import torch
from torch import nn

from heatproof.errors import HeatproofError, NotApplicable
from heatproof.explainers.registry import EXPLAINERS

CAMS = [name for name, entry in EXPLAINERS.items() if entry.function.__module__ == "heatproof.explainers.cam"]


class OneBadChannel(nn.Module):
    """Network with two channels; the second is undefined, but does not change the logits."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Conv2d(3, 2, 1)
        self.layer.bias = nn.Parameter(torch.tensor([0.0, torch.nan]))
        self.head = nn.Linear(2, 10)

    def forward(self, images):
        return self.head(self.layer(images).nan_to_num().mean((2, 3)))


def test_nine_cams_are_registered():
    assert len(CAMS) == 9


@pytest.mark.parametrize("name", CAMS)
def test_an_undefined_channel_makes_the_map_undefined(name, explain_digits):
    network = OneBadChannel().eval().requires_grad_(False)
    context = explain_digits()
    context = dataclasses.replace(
        context, network=network, output=network, facts=dataclasses.replace(context.facts, cam_layer="layer")
    )
    assert EXPLAINERS[name].function(context)[name].isnan().all()


@pytest.mark.parametrize("name", CAMS)
def test_model_without_a_layer_is_not_applicable(name, explain_digits):
    context = explain_digits()
    network = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 10)).eval().requires_grad_(False)
    unnamed = dataclasses.replace(context.facts, cam_layer=None)
    with pytest.raises(NotApplicable, match="no layer with a spatial grid"):
        EXPLAINERS[name].function(dataclasses.replace(context, facts=unnamed, network=network, output=network))


@pytest.mark.parametrize("name", [*CAMS, "guided_grad_cam"])
def test_the_default_layer_gives_the_maps_of_the_named_one(name, explain_digits):
    context = explain_digits()
    unnamed = dataclasses.replace(context, facts=dataclasses.replace(context.facts, cam_layer=None))
    assert torch.equal(EXPLAINERS[name].function(unnamed)[name], EXPLAINERS[name].function(context)[name])


@pytest.mark.parametrize("layer", ["stagez", "classifier"])
def test_an_unknown_layer_is_refused(layer, explain_digits):
    context = explain_digits()
    facts = dataclasses.replace(context.facts, cam_layer=layer)
    with pytest.raises(HeatproofError, match=f"'{layer}'"):
        EXPLAINERS["grad_cam"].function(dataclasses.replace(context, facts=facts))


def test_map_is_where_the_layer_responds(explain_digits):
    class Spot(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.AvgPool2d(8)

        def forward(self, images):
            return self.layer(images).sum((2, 3)).repeat(1, 4)[:, :10]

    network = Spot().eval()
    context = explain_digits(count=1)
    images = torch.zeros(1, 3, 32, 32)
    images[:, :, 8:16, 16:24] = 1
    context = dataclasses.replace(
        context,
        network=network,
        output=network,
        images=images,
        facts=dataclasses.replace(context.facts, cam_layer="layer"),
    )
    for name in CAMS:
        values = EXPLAINERS[name].function(context)[name][0]
        row, column = divmod(int(values.argmax()), 32)
        assert 8 <= row < 16, name
        assert 16 <= column < 24, name


@pytest.mark.parametrize("name", ["grad_cam", "grad_cam_pp", "xgrad_cam", "layer_cam", "hires_cam"])
def test_a_coarser_grid_is_the_mean_of_cells(name, explain_digits, monkeypatch):
    context = explain_digits()
    function = EXPLAINERS[name].function
    enlarged = function(context, grid=2)[name]
    assert torch.equal(function(context)[name], function(context, grid=8)[name])
    monkeypatch.setattr("torch.nn.functional.interpolate", lambda maps, *arguments, **options: maps)
    unpooled, pooled = function(context)[name], function(context, grid=2)[name]
    cells = unpooled.reshape(len(unpooled), 2, 4, 2, 4).mean((2, 4))
    torch.testing.assert_close(pooled, cells)
    monkeypatch.undo()
    expected = nn.functional.interpolate(cells[:, None], (32, 32), mode="bilinear", align_corners=False)[:, 0]
    torch.testing.assert_close(enlarged, expected)


@pytest.mark.parametrize("name", CAMS)
def test_a_finer_grid_than_that_of_the_layer_is_not_applicable(name, explain_digits):
    options = {"samples": 1} if "samples" in EXPLAINERS[name].options else {}
    with pytest.raises(NotApplicable, match="grid of 8 × 8, and pooling to 9 × 9 cannot refine it"):
        EXPLAINERS[name].function(explain_digits(), grid=9, **options)

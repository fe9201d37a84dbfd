import dataclasses

import pytest
import torch
from torch import nn

from heatproof.attribution.registry import EXPLAINERS
from heatproof.errors import HeatproofError, NotApplicable

CAMS = [name for name, entry in EXPLAINERS.items() if entry.function.__module__ == "heatproof.attribution.cam"]


class OneBadChannel(nn.Module):
    """Two channels, the second undefined, which the head does not notice."""

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
def test_undefined_channel_is_not_hidden(name, explain_digits):
    network = OneBadChannel().eval().requires_grad_(False)
    explained = explain_digits()
    explained = dataclasses.replace(
        explained, network=network, output=network, facts=dataclasses.replace(explained.facts, cam_layer="layer")
    )
    assert EXPLAINERS[name].function(explained)[name].isnan().all()


@pytest.mark.parametrize("name", CAMS)
def test_model_without_a_layer_is_a_gap(name, explain_digits):
    explained = explain_digits()
    facts = dataclasses.replace(explained.facts, cam_layer=None, cam_reason="it has no grid")
    with pytest.raises(NotApplicable, match="it has no grid"):
        EXPLAINERS[name].function(dataclasses.replace(explained, facts=facts))


@pytest.mark.parametrize("layer", ["stagez", "classifier"])
def test_wrong_layer_is_named(layer, explain_digits):
    explained = explain_digits()
    facts = dataclasses.replace(explained.facts, cam_layer=layer)
    with pytest.raises(HeatproofError, match=f"'{layer}'"):
        EXPLAINERS["grad_cam"].function(dataclasses.replace(explained, facts=facts))


def test_map_is_where_the_layer_responds(explain_digits):
    class Spot(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.AvgPool2d(8)

        def forward(self, images):
            return self.layer(images).sum((2, 3)).repeat(1, 4)[:, :10]

    network = Spot().eval()
    explained = explain_digits(count=1)
    images = torch.zeros(1, 3, 32, 32)
    images[:, :, 8:16, 16:24] = 1
    explained = dataclasses.replace(
        explained,
        network=network,
        output=network,
        images=images,
        facts=dataclasses.replace(explained.facts, cam_layer="layer"),
    )
    for name in CAMS:
        values = EXPLAINERS[name].function(explained)[name][0]
        row, column = divmod(int(values.argmax()), 32)
        assert 8 <= row < 16, name
        assert 16 <= column < 24, name

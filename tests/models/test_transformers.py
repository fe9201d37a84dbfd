"""Networks of transformers in memory: they are read as they are, and the library's own tables are left alone."""

import numpy as np
import pytest
import torch
from torch import nn

import heatproof
from heatproof.testing._side_effects import difference, network_state

transformers = pytest.importorskip("transformers")

IMAGES = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
LABELS = torch.tensor([0, 1, 2, 0])
SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
INPUT = {"image_size": 32, "patch_size": 8}


def classifier(family, **settings):
    config = getattr(transformers, f"{family}Config")(num_labels=3, **settings)
    torch.manual_seed(0)
    return getattr(transformers, f"{family}ForImageClassification")(config).eval()


def vit():
    return classifier("ViT", **SIZES, **INPUT)


def deit():
    return classifier("DeiT", **SIZES, **INPUT)


def swin():
    sizes = {"embed_dim": 8, "depths": [1, 1], "num_heads": [2, 2], "window_size": 4}
    return classifier("Swin", image_size=32, patch_size=4, **sizes)


def clip():
    return classifier("CLIP", vision_config={**SIZES, **INPUT}, text_config=SIZES)


class ClipWithHead(nn.Module):
    """The vision part of CLIP in a module of the caller."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.vision = transformers.CLIPVisionModel(transformers.CLIPVisionConfig(**SIZES, **INPUT))
        self.head = nn.Linear(16, 3)

    def forward(self, images):
        return self.head(self.vision(pixel_values=images).pooler_output)


NETWORKS = {"ViT": vit, "DeiT": deit, "Swin": swin, "CLIP": clip, "CLIP with a head": lambda: ClipWithHead().eval()}


@pytest.fixture(autouse=True)
def unchanged_library():
    """Check that the table of activations has the same entries afterwards, and that networks can still be built."""
    table = transformers.activations.ACT2FN
    # Its own methods build objects instead of returning the entries.
    before = list(dict.items(table))
    yield
    assert list(dict.items(table)) == before
    vit()


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_of_transformers_are_explained_and_scored(name):
    model = NETWORKS[name]()
    before = network_state(model)
    result = heatproof.explain(model, IMAGES, LABELS, ["saliency", "grad_cam"])
    assert result["reason"].values.tolist() == ["", ""]
    maps = result["attribution"].values
    assert np.isfinite(maps).all()
    assert (np.ptp(maps[0], axis=(1, 2)) > 0).all()
    scores = heatproof.evaluate("sds", model, IMAGES, LABELS, result, grid=4)
    assert np.isfinite(scores["score"].values[0]).all()
    assert difference(before, network_state(model)) == []


def test_methods_for_a_network_of_transformers_can_be_chosen():
    images = torch.randn(24, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    choice = heatproof.choose(vit(), images, None, ["saliency", "input_x_gradient"], measures={"sds": {"grid": 4}})
    explainers = {name.removesuffix("_abs") for name in choice.table["method"]}
    assert {"saliency", "input_x_gradient"} <= explainers

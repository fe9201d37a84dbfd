"""Warnings about normalised images for a model that expects pixels, and the reverse, if the model records its input."""

import numpy as np
import pytest
import torch

import heatproof

PIXELS = torch.rand(16, 3, 8, 8, generator=torch.Generator().manual_seed(0))
NORMALISED = (PIXELS - 0.5) / 0.25
MAPS = np.random.default_rng(0).random((16, 8, 8))


class Normalize(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.mean, self.std = 0.5, 0.25

    def forward(self, images):
        return (images - self.mean) / self.std


def plain():
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(144, 3)
    ).eval()


def of_timm(mean, std):
    network = plain()
    network.pretrained_cfg = {"mean": (mean,) * 3, "std": (std,) * 3}
    return network


NETWORKS = {
    "says nothing": (plain, None, None),
    "of timm": (lambda: of_timm(0.5, 0.25), "are between 0 and 1, and the model was trained on", None),
    "of timm, for pixels": (lambda: of_timm(0.0, 1.0), None, "expects images between 0 and 1: pass them without"),
    "begins with a normalisation": (
        lambda: torch.nn.Sequential(Normalize(), plain()).eval(),
        None,
        "expects images between 0 and 1: pass them without",
    ),
    "begins with a batch norm": (lambda: torch.nn.Sequential(torch.nn.BatchNorm2d(3), plain()).eval(), None, None),
}
CALLS = {
    "explain": lambda model, images: heatproof.explain(model, images, None, ["saliency"]),
    "choose": lambda model, images: heatproof.choose(model, images, None, ["saliency"]),
    "evaluate": lambda model, images: heatproof.evaluate("sds", model, images, None, MAPS, grid=2, baseline="zeros"),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("name", NETWORKS)
def test_a_recorded_input_range_is_compared_with_the_images(name, call, recwarn):
    make, of_pixels, of_normalised = NETWORKS[name]
    for images, expected in ((PIXELS, of_pixels), (NORMALISED, of_normalised)):
        recwarn.clear()
        CALLS[call](make(), images)
        messages = [str(warning.message) for warning in recwarn if "between 0 and 1" in str(warning.message)]
        assert len(messages) == (expected is not None)
        assert all(expected in message for message in messages)

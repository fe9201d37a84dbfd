"""Sound networks that are easily refused, and refusals before work that name the remedy."""

import threading
import warnings

import pytest
import torch
from odd_networks import Plain
from public_functions import FUNCTIONS, images_of, maps_of
from torch import nn

import heatproof
from heatproof.errors import HeatproofError

TARGETS = torch.tensor([0, 1, 2, 0, 1, 2])


def within(low, high):
    def check(images):
        if images.min() < low or images.max() > high:
            raise ValueError("out of range")
        return images

    return Plain(check)


class OfLevels(nn.Module):
    """Looks up a vector for each of 256 levels."""

    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(256, 2), nn.Linear(384, 3)

    def forward(self, images):
        return self.head(self.table((images * 255).round().long()).flatten(1))


OF_A_RANGE = {
    "from 0 to 1": (lambda: within(0, 1), lambda images: (images + 1) / 2),
    "from -1 to 1": (lambda: within(-1, 1), lambda images: images),
    "from -1 to 0": (lambda: within(-1, 0), lambda images: (images - 1) / 2),
    "levels": (lambda: OfLevels().eval(), lambda images: (images + 1) / 2),
    "one image that is white": (lambda: within(0, 1), torch.ones_like),
}


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("kind", OF_A_RANGE)
def test_images_made_for_a_check_stay_in_the_range_of_the_image(kind, count):
    make, scale = OF_A_RANGE[kind]
    images, maps = scale(images_of(count)), {name: values[:count] for name, values in maps_of().items()}
    with warnings.catch_warnings(action="ignore"):
        FUNCTIONS["evaluate"](make(), images, TARGETS[:count], maps, metrics=["sds"])
        FUNCTIONS["explain"](make(), images, TARGETS[:count], maps, methods=["random"])


class HiddenNetwork(nn.Module):
    def __init__(self, held):
        super().__init__()
        self.held = [held]

    def forward(self, images):
        return self.held[0](images)


@pytest.mark.parametrize("function", ["explain", "evaluate", "choose", "image_scores"])
def test_a_part_that_eval_does_not_reach_is_named(function):
    with pytest.raises(HeatproofError, match="runs a Plain that is none of its submodules: register it"):
        FUNCTIONS[function](HiddenNetwork(Plain()).eval(), images_of(), TARGETS, maps_of())


def test_choose_refuses_probabilities_before_work():
    network, passes = Plain(finish=lambda logits: logits.softmax(1)), []
    network.register_forward_hook(lambda module, arguments, output: passes.append(len(output)))
    with pytest.raises(HeatproofError, match="leave its softmax out"):
        heatproof.choose(network, torch.cat([images_of(), images_of(12, seed=1)]), methods=["saliency"])
    assert len(passes) <= 5


def test_networks_that_cannot_be_copied_are_refused():
    network, images = Plain(), images_of()
    network.lock = threading.Lock()
    with pytest.raises(HeatproofError, match="model cannot be copied"):
        heatproof.finetune(network, images.repeat(3, 1, 1, 1), TARGETS.repeat(3), epochs=1, grid=2)
    with pytest.warns(UserWarning, match="cannot be copied"):
        maps = heatproof.explain(network, images, TARGETS, ["lrp", "saliency"])
    assert [bool(reason) for reason in maps["reason"].values] == [True, False]


@pytest.mark.parametrize("precision", [torch.float16, torch.bfloat16])
def test_finetuning_accepts_images_of_half_precision(precision):
    images = images_of().to(precision).repeat(3, 1, 1, 1)
    tuned = heatproof.finetune(Plain().to(precision), images, TARGETS.repeat(3), epochs=1, grid=2, lr=0.1)
    assert next(tuned.parameters()).dtype == precision

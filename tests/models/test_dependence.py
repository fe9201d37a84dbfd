"""Networks whose output depends on chance, the batch or earlier passes are refused before work, and no others."""

import warnings

import pytest
import torch
from odd_networks import Plain
from public_functions import FUNCTIONS, images_of, maps_of
from torch import nn
from torch.nn import functional as F

from heatproof.core.first_images import check_loaded
from heatproof.core.network import prepare_network
from heatproof.errors import HeatproofError
from heatproof.models.network import build_network
from heatproof.models.registry import ModelSpec

TARGETS = torch.tensor([0, 1, 2, 0, 1, 2])
CHANCE, BATCH = "returns different outputs for the same image", "returns other outputs for an image alone"


class WithMemory(nn.Module):
    """Calls a function of images and of a dict that it stores."""

    def __init__(self, function):
        super().__init__()
        self.function, self.past = function, {}

    def forward(self, images):
        return self.function(images, self.past)


def counted(images, past):
    past["calls"] = past.get("calls", 0) + 1
    return images * (1 + 0.1 * past["calls"])


def warmed_up(images, past):
    first = past.setdefault("first", True)
    past["first"] = False
    return images * (2 if first else 1)


def smoothed(images, past):
    past["mean"] = 0.9 * past.get("mean", 0) + 0.1 * images.detach().mean()
    return images - past["mean"]


def last_output(images, past):
    return past.setdefault(len(images), images.clone())


def last_output_of_any_size(images, past):
    first_images = past.setdefault("kept", images.clone())
    return first_images[torch.arange(len(images)) % len(first_images)]


def some_classes(logits):
    return torch.cat([logits[:, :2], logits[:, 2:] + 0.3 * torch.randn(len(logits), 1)], 1)


def far_behind(logits):
    """Return noise of the size of two logits, and a third logit that is far ahead."""
    return torch.cat([logits[:, :2] + 0.1 * torch.randn(len(logits), 2), logits[:, 2:] + 1000], 1)


def at_random(function):
    return lambda: Plain(function)


def with_norm_of_the_batch():
    model = Plain()
    model.features.insert(1, nn.BatchNorm2d(6, track_running_stats=False))
    return model.eval()


def noisy_weights():
    model = Plain()

    def forward(images):
        return F.linear(
            model.features(images).flatten(1), model.head.weight + torch.randn_like(model.head.weight) * 0.01
        )

    model.forward = forward
    return model


REFUSED = {
    "dropout": (at_random(lambda x: F.dropout(x, 0.2, training=True)), None),
    "dropout of channels": (at_random(lambda x: F.dropout2d(x, 0.4, training=True)), None),
    "noise": (at_random(lambda x: x + 0.05 * torch.randn_like(x)), CHANCE),
    "little noise": (at_random(lambda x: x + 1e-4 * torch.randn_like(x)), CHANCE),
    "NumPy's noise": (at_random(lambda x: x + torch.from_numpy(__import__("numpy").random.rand(8)).float()), CHANCE),
    "Python's noise": (at_random(lambda x: x * __import__("random").random()), CHANCE),
    "random pixels": (at_random(lambda x: x * (torch.rand(8, 8) > 0.3)), CHANCE),
    "random shift": (at_random(lambda x: x.roll(int(torch.randint(1, 8, ()) + x.new_zeros(1).numel()), 3)), None),
    "some classes": (lambda: Plain(finish=some_classes), CHANCE),
    "one class far ahead": (lambda: Plain(finish=far_behind), CHANCE),
    "noisy weights": (noisy_weights, CHANCE),
    "batch norm": (with_norm_of_the_batch, BATCH),
    "largest": (at_random(lambda x: x / x.max()), BATCH),
    "mean": (at_random(lambda x: x - x.mean(0)), BATCH),
    "spread": (at_random(lambda x: x / (x.std() + 0.1)), BATCH),
    "spread over images": (at_random(lambda x: x / x.std(0)), BATCH),
    "sorted": (at_random(lambda x: x.sort(0).values), BATCH),
    "ranks": (at_random(lambda x: x.argsort(0).argsort(0) / len(x)), BATCH),
    "first": (at_random(lambda x: x - 0.5 * x[:1]), BATCH),
    "last": (at_random(lambda x: x - 0.5 * x[-1:]), BATCH),
    "neighbour": (at_random(lambda x: x + 0.5 * x.roll(1, 0)), BATCH),
    "position": (at_random(lambda x: x * torch.arange(1.0, len(x) + 1)[:, None, None, None]), BATCH),
    "size of the batch": (at_random(lambda x: x / len(x)), BATCH),
    "softmax over images": (lambda: Plain(finish=lambda z: z.softmax(0)), BATCH),
    "counted": (lambda: Plain(WithMemory(counted).eval()), CHANCE),
    "warmed up": (lambda: Plain(WithMemory(warmed_up).eval()), None),
    "smoothed": (lambda: Plain(WithMemory(smoothed).eval()), CHANCE),
    "last answer": (lambda: Plain(WithMemory(last_output).eval()), BATCH),
    "last answer of any size": (lambda: Plain(WithMemory(last_output_of_any_size).eval()), BATCH),
}
QUICK = {"dropout", "some classes", "batch norm", "largest", "counted"}


@pytest.mark.parametrize("function", ["explain", "evaluate", "choose", "finetune"])
@pytest.mark.parametrize(
    "kind", [kind if kind in QUICK else pytest.param(kind, marks=pytest.mark.long) for kind in REFUSED]
)
def test_outputs_that_depend_on_more_than_the_image_are_refused(function, kind):
    make, sentence = REFUSED[kind]
    network, passes = make(), []
    network.register_forward_pre_hook(lambda module, inputs: passes.append(len(inputs[0])))
    either = sentence or f"{CHANCE}|{BATCH}"
    with warnings.catch_warnings(action="ignore"), pytest.raises(HeatproofError, match=either) as caught:
        FUNCTIONS[function](network, images_of(), TARGETS, maps_of())
    assert str(caught.value).count(". ") == 0
    assert sum(passes) <= 8, "it is refused before work"


@pytest.mark.parametrize("function", sorted(set(FUNCTIONS) - {"explain", "evaluate", "choose", "finetune"}))
@pytest.mark.parametrize("kind", ["dropout", pytest.param("batch norm", marks=pytest.mark.long)])
def test_other_functions_also_refuse_them(function, kind):
    with pytest.raises(HeatproofError, match=f"{CHANCE}|{BATCH}"):
        FUNCTIONS[function](REFUSED[kind][0](), images_of(), TARGETS, maps_of())


@pytest.mark.parametrize("count", [1, 2, 3, 5])
@pytest.mark.parametrize("kind", REFUSED)
def test_few_images_suffice_to_detect_dependence(kind, count):
    network, images = REFUSED[kind][0](), images_of(count)
    with prepare_network(network, images, 0) as prepared, pytest.raises(HeatproofError, match=f"{CHANCE}|{BATCH}"):
        prepared.check(images)


def test_used_networks_are_refused_as_well():
    network = Plain(WithMemory(last_output).eval())
    for count in (1, 2, 4, 6):
        network(images_of(count, seed=9))
    with pytest.raises(HeatproofError, match=f"{CHANCE}|{BATCH}"):
        FUNCTIONS["explain"](network, images_of(), TARGETS, maps_of())


class Half(nn.Module):
    """Computes in bfloat16 inside, and returns float32."""

    def __init__(self):
        super().__init__()
        self.inner = Plain()

    def forward(self, images):
        with torch.autocast("cpu", torch.bfloat16):
            return self.inner(images).float()


def grouped():
    model = Plain()
    model.features.insert(1, nn.GroupNorm(2, 6))
    return model.eval()


def quantised():
    with warnings.catch_warnings(action="ignore"):
        return torch.ao.quantization.quantize_dynamic(Plain(), {nn.Linear})


def nan_for_dark_images(images):
    return images.where(images.mean((1, 2, 3), keepdim=True) > 0, torch.nan)


ACCEPTED = {
    "plain": Plain,
    "half": lambda: Plain().half(),
    "bfloat16": lambda: Plain().bfloat16(),
    "double": lambda: Plain().double(),
    "channels last": lambda: Plain().to(memory_format=torch.channels_last),
    "groups": grouped,
    "dropout in eval mode": lambda: Plain(nn.Dropout(0.5).eval()),
    "large": lambda: Plain(finish=lambda z: z * 1e6),
    "small": lambda: Plain(finish=lambda z: z * 1e-12),
    "constant": lambda: Plain(finish=lambda z: z * 0),
    "constant and not zero": lambda: Plain(finish=lambda z: z * 0 + 7),
    "nearly constant": lambda: Plain(finish=lambda z: z * 1e-7 + 1000),
    "far ahead": lambda: Plain(finish=lambda z: z + torch.tensor([1e4, 0, 0])),
    "without numbers for some": lambda: Plain(nan_for_dark_images),
    "without numbers": lambda: Plain(finish=lambda z: z * torch.nan),
    "infinite": lambda: Plain(finish=lambda z: z + torch.tensor([0, 0, -torch.inf])),
    "half within": lambda: Half().eval(),
    "quantised": quantised,
    "reseeded": lambda: Plain(lambda x: (torch.manual_seed(3), x + torch.randn(8))[1]),
    "mean of an image": lambda: Plain(lambda x: x - x.mean((1, 2, 3), keepdim=True)),
    "draws in vain": lambda: Plain(lambda x: x + 0 * torch.randn_like(x)),
}


@pytest.mark.parametrize("count", [1, 2, 4, 6])
@pytest.mark.parametrize("kind", ACCEPTED)
def test_outputs_that_depend_on_the_image_only_are_accepted(kind, count):
    network = ACCEPTED[kind]()
    images = images_of(count).double() if kind == "double" else images_of(count)
    with prepare_network(network, images, 0) as prepared:
        assert len(prepared.check(images)) == min(count, 3)


def test_blank_images_do_not_hide_dependence():
    images = torch.zeros(20, 3, 8, 8)
    images[13], images[17] = images_of(2)
    for kind in ("dropout", "mean", "largest"):
        with pytest.raises(HeatproofError, match=f"{CHANCE}|{BATCH}"):
            FUNCTIONS["explain"](REFUSED[kind][0](), images, TARGETS.repeat(4)[:20], {})


def network(num_classes, *, kind):
    """Build a user's architecture."""
    return REFUSED[kind][0]()


@pytest.mark.parametrize("kind", REFUSED)
def test_a_job_refuses_dependent_networks(kind):
    model = build_network(ModelSpec("test_dependence:network", "test_dependence", {"kind": kind}), 3).eval()
    with torch.random.fork_rng(), pytest.raises(HeatproofError, match=f"{CHANCE}|{BATCH}"):
        check_loaded(model, images_of())

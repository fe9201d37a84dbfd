"""LRP gives one map for all ways to write a network, and covers normalisation inside of it."""

import pytest
import torch
import torchvision
from torch import nn
from torch.nn import functional
from torchvision.transforms import v2

from heatproof.core.input_facts import InputFacts
from heatproof.core.network import attach
from heatproof.explainers.registry import EXPLAINERS, ExplainContext

TARGETS = torch.tensor([0, 3, 4])


def images():
    return torch.rand(3, 3, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def lrp(network):
    network = network.double().eval().requires_grad_(False)
    attach(network)
    context = ExplainContext(
        network, network, InputFacts(), images(), TARGETS, tuple("abc"), seed=0, batch_size=2, figures={}
    )
    maps = EXPLAINERS["lrp"].function(context)["lrp"]
    assert context.figures["conservation_error"].value < 1e-6
    return maps


def assert_same(maps, expected):
    assert expected.std() > 0
    assert (maps - expected).abs().max() <= 1e-6 * expected.abs().max()


class Pooled(nn.Module):
    """A network whose features are pooled in one of several forms."""

    def __init__(self, pool):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.head = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 6, 3), nn.Linear(6, 5)
        self.pool = pool

    def forward(self, images):
        return self.head(self.pool(self.second(self.first(images).relu()).relu()).flatten(1))


GLOBAL = {
    "adaptive module": nn.AdaptiveAvgPool2d(1),
    "function": lambda h: functional.avg_pool2d(h, 6),
    "function, size of the features": lambda h: functional.avg_pool2d(h, h.shape[2:]),
    "function, by keywords": lambda h: functional.avg_pool2d(input=h, kernel_size=h.shape[-1]),
    "adaptive function": lambda h: functional.adaptive_avg_pool2d(h, 1),
    "adaptive function, pair": lambda h: functional.adaptive_avg_pool2d(h, output_size=(1, 1)),
    "mean": lambda h: h.mean((2, 3)),
    "mean, keeping": lambda h: h.mean(dim=(-2, -1), keepdim=True),
    "nanmean": lambda h: h.nanmean((2, 3)),
    "area": lambda h: functional.interpolate(h, size=1, mode="area"),
    "torch.mean": lambda h: torch.mean(h, dim=[2, 3]),
    "flattened": lambda h: h.flatten(2).mean(-1),
    "two means": lambda h: h.mean(3).mean(2),
    "sum": lambda h: h.sum((2, 3)) / 36,
    "one-dimensional": lambda h: functional.adaptive_avg_pool1d(h.flatten(2), 1),
}


@pytest.mark.parametrize("form", GLOBAL)
def test_every_form_of_global_pooling_has_the_map_of_the_module(form):
    assert_same(lrp(Pooled(GLOBAL[form])), lrp(Pooled(nn.AvgPool2d(6))))


class PooledInside(nn.Module):
    """A network whose second convolution reads pooled features."""

    def __init__(self, pool):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.head = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 6, 3), nn.Linear(6, 5)
        self.pool = pool

    def forward(self, images):
        return self.head(self.second(self.pool(self.first(images).relu())).relu().amax((2, 3)))


@pytest.mark.parametrize(
    ("form", "module"),
    [
        (lambda h: functional.avg_pool2d(h, 2), nn.AvgPool2d(2)),
        (lambda h: functional.avg_pool2d(h, 3, 2, 1), nn.AvgPool2d(3, 2, 1)),
        (
            lambda h: functional.avg_pool2d(h, 3, stride=2, padding=1, count_include_pad=False),
            nn.AvgPool2d(3, 2, 1, count_include_pad=False),
        ),
        (lambda h: functional.adaptive_avg_pool2d(h, (3, 5)), nn.AdaptiveAvgPool2d((3, 5))),
        (lambda h: h.unflatten(3, (-1, 2)).unflatten(2, (-1, 2)).mean((3, 5)), nn.AvgPool2d(2)),
    ],
    ids=["2", "3, stride 2, padded", "3, padding not counted", "adaptive", "mean of blocks"],
)
def test_every_form_of_local_pooling_has_the_map_of_its_module(form, module):
    assert_same(lrp(PooledInside(form)), lrp(PooledInside(module)))


MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


class Arithmetic(nn.Module):
    """Normalisation by constants, as arithmetic."""

    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, images):
        mean, std = (images.new_tensor(values)[:, None, None] for values in (MEAN, STD))
        return self.network((images - mean) / std)


@pytest.mark.parametrize(
    "normalise",
    [
        torchvision.transforms.Normalize(MEAN, STD),
        torchvision.transforms.Normalize(tuple(MEAN), torch.tensor(STD, dtype=torch.float64)),
        torchvision.transforms.Normalize(MEAN, STD, inplace=True),
        v2.Normalize(MEAN, STD),
        v2.Normalize(MEAN, STD, inplace=True),
        nn.Sequential(v2.Normalize(MEAN, STD)),
    ],
    ids=["v1", "v1, tensors", "v1, in place", "v2", "v2, in place", "v2, inside"],
)
def test_normalisation_by_torchvision_has_the_map_of_arithmetic(normalise):
    expected = lrp(Arithmetic(Pooled(nn.AvgPool2d(6))))
    assert_same(lrp(nn.Sequential(normalise, Pooled(nn.AvgPool2d(6)))), expected)


class OwnNorm(nn.BatchNorm2d):
    """A derived class that changes nothing."""


class Normed(nn.Module):
    """Batch norms behind a convolution, in front of one, behind an activation and behind a linear layer."""

    def __init__(self, of_grids, of_features=nn.BatchNorm1d):
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(
            *(nn.Conv2d(3, 4, 3, padding=1), of_grids(4), nn.ReLU(), of_grids(4), nn.Conv2d(4, 6, 3), of_grids(6)),
            *(nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 7), of_features(7), nn.ReLU()),
            nn.Linear(7, 5),
        )
        for module in self.body:
            if hasattr(module, "running_mean"):
                module.running_mean.normal_()
                module.running_var.uniform_(0.5, 2)
                module.weight.data.uniform_(0.5, 2)
                module.bias.data.normal_()

    def forward(self, images):
        return self.body(images)


@pytest.mark.parametrize("norm", [nn.SyncBatchNorm, OwnNorm, torchvision.ops.FrozenBatchNorm2d])
def test_every_batch_norm_has_the_map_of_the_plain_one(norm):
    """Relevance passes through norms, and their biases take none, so maps sum to the logit (zennit's issue 193)."""
    of_features = nn.SyncBatchNorm if norm is nn.SyncBatchNorm else nn.BatchNorm1d
    assert_same(lrp(Normed(norm, of_features)), lrp(Normed(nn.BatchNorm2d)))

"""A network of patches whose true explanation is known, and a network with a little training."""

import pytest
import torch
from torch import nn


class OfPatches(nn.Module):
    """A network whose logits are weighted sums of patch means, so that the weights are the relevance of patches."""

    def __init__(self, grid=4, classes=3):
        super().__init__()
        self.features = nn.Conv2d(3, 8, 3, padding=1)
        self.pool = nn.AdaptiveAvgPool2d(grid)
        self.head = nn.Linear(8 * grid * grid, classes)

    def forward(self, images):
        return self.head(self.pool(self.features(images)).flatten(1))


@pytest.fixture(scope="session")
def network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, padding=1),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(8 * 8 * 8, 4),
    ).eval()


@pytest.fixture(scope="session")
def linear():
    torch.manual_seed(1)
    return OfPatches().eval()


@pytest.fixture(scope="session")
def images():
    return torch.randn(12, 3, 16, 16, generator=torch.Generator().manual_seed(3))


@pytest.fixture(scope="session")
def targets(network, images):
    with torch.no_grad():
        return network(images).argmax(1)

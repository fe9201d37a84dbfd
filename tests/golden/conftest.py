from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

DATA = Path(__file__).parent / "data"


@cache
def _arrays(name):
    with np.load(DATA / f"{name}.npz", allow_pickle=False) as stored:
        return dict(stored)


@pytest.fixture(scope="session")
def golden():
    """Return a function that loads the arrays of a golden file by name."""
    return _arrays


@pytest.fixture(scope="session")
def golden_network():
    weights = _arrays("model")
    network = nn.Sequential()
    for name, inputs, outputs, stride in (("conv1", 3, 8, 1), ("conv2", 8, 16, 2), ("conv3", 16, 16, 1)):
        network.add_module(name, nn.Conv2d(inputs, outputs, 3, stride, 1))
        network.add_module(f"{name}_relu", nn.ReLU())
    network.add_module("pool", nn.AdaptiveAvgPool2d(4))
    network.add_module("flatten", nn.Flatten())
    network.add_module("fc", nn.Linear(256, 10))
    network.load_state_dict({key: torch.from_numpy(value) for key, value in weights.items()})
    return network.eval()

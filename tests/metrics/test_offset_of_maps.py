"""Effect of a constant that is added to a map, by definition (Walker et al. 2024, theorems 1 and 2)."""

import numpy as np
import pytest
import torch

import heatproof

IMAGES = 4


@pytest.fixture(scope="module")
def scored():
    """Return a function that scores non-negative maps, with a share of their maximum added."""
    generator = torch.Generator().manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 3)).eval()
    for parameter in network.parameters():
        parameter.data.normal_(0, 0.5, generator=generator)
    images = torch.randn(IMAGES, 1, 8, 8, generator=generator)
    maps = torch.rand(IMAGES, 8, 8, generator=generator, dtype=torch.float64)

    def score(metric, share):
        moved = maps + share * maps.amax((1, 2), keepdim=True)
        ids = [str(index) for index in range(IMAGES)]
        return heatproof.evaluate(metric, network, images, torch.zeros(IMAGES, dtype=int), moved, image_ids=ids)[
            "score"
        ]

    return score


@pytest.mark.parametrize("kind", ["insertion", "deletion"])
def test_rise_ignores_an_offset_and_mas_notices_it(scored, kind):
    plain, moved = (scored(f"rise_{kind}", share) for share in (0, 0.1))
    np.testing.assert_array_equal(plain, moved)
    plain, moved = (scored(f"mas_{kind}", share) for share in (0, 0.1))
    changes = np.abs(moved - plain).dropna("image")
    assert changes.size > 1
    assert (changes > 1e-4).all()

import dataclasses

import torch

from heatproof.attribution.catalogue import EXPLAINERS


def without_model(explained, **changes):
    return dataclasses.replace(explained, network=None, output=None, facts=None, **changes)


def test_references_need_no_model(explain_digits):
    names = [name for name, entry in EXPLAINERS.items() if not entry.uses_model]
    assert names == ["random", "edges"]
    for name in names:
        assert EXPLAINERS[name].function(without_model(explain_digits()))[name].shape == (3, 32, 32)


def test_random_is_uniform_between_minus_one_and_one(explain_digits):
    values = EXPLAINERS["random"].function(without_model(explain_digits(count=20)))["random"]
    assert values.min() >= -1
    assert values.max() < 1
    assert abs(values.mean()) < 0.02
    assert abs(values.var() - 1 / 3) < 0.02


def test_edges_of_a_step_are_sobel_magnitudes(explain_digits):
    images = torch.zeros(2, 3, 32, 32)
    images[1, :, :, 16:] = 1
    images[1, 0, :, 16:] = 4
    maps = EXPLAINERS["edges"].function(without_model(explain_digits(count=2), images=images))["edges"]
    assert maps[0].eq(0).all()
    # The channel mean steps by 2, which a Sobel filter (1, 2, 1) multiplies by 4, on both sides of the step.
    expected = torch.zeros(32, 32)
    expected[:, 15:17] = 8
    torch.testing.assert_close(maps[1], expected)

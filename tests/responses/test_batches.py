"""The images of each batch that a network receives, which must not change: the last bits of scores depend on them."""

import numpy as np
import pytest
import torch
from toy_plugin import Network, Toy

from heatproof.workflow.stages import _responses as run

SIZE, IMAGES, PIXELS = 4, 5, 144
CONFIG = {
    "drops": {"baselines": ["zeros"]},
    "evaluation": {"images": IMAGES},
    "explainers": ["random"],
    "metrics": [
        {"deletion_morf": {"steps": 3}},
        {"rise_insertion": {"steps": 2}},
        {"road_lerf": {"fractions": [0.3, 0.6]}},
        {"sic": {"thresholds": [0.2, 0.6]}},
        {"sensitivity_n": {"samples": 3, "sizes": [0.1, 0.4]}},
    ],
}
# All pixels have changed.
NOTHING = (None, PIXELS)


@pytest.fixture
def toy(project):
    return project(**CONFIG).attribute()


@pytest.fixture
def seen(toy, monkeypatch):
    """Record every batch that the network receives, as (image, changed pixels) of its rows."""
    batches = []
    intact = torch.from_numpy((Toy(0, 12, ()).pixels["evaluation"][:IMAGES] - np.float32(0.5)) / np.float32(0.5))
    forward = Network.forward

    def watched(network, images):
        same = (images[:, None] == intact).all(2).sum((2, 3))
        unchanged, which = (values.tolist() for values in same.max(1))
        batches.append([(image if left else None, PIXELS - left) for image, left in zip(which, unchanged, strict=True)])
        return forward(network, images)

    monkeypatch.setattr(Network, "forward", watched)
    # The passes of the job's check have other batches.
    monkeypatch.setattr(run, "check_loaded", lambda *arguments: 0)
    return batches


def filled(*rows):
    """Cut rows into batches; the last one is padded with copies of its last row."""
    cut = [list(rows[at : at + SIZE]) for at in range(0, len(rows), SIZE)]
    return [batch + batch[-1:] * (SIZE - len(batch)) for batch in cut]


def curves_of(toy, kind):
    (response,) = (name for name in toy.plan.method_responses if name.startswith(kind))
    return toy.curves_spec(response)


def test_patch_drops_are_batched_image_by_image(toy, seen):
    toy.drop(SIZE)
    rows = [(image, 9 * (patch > 0)) for image in range(IMAGES) for patch in range(17)]
    assert seen == filled(*rows[: 4 * 17]) + filled(*rows[4 * 17 :])


@pytest.mark.parametrize(
    ("kind", "steps"),
    [
        ("deletion_morf_zeros", lambda image: [(image, 48), (image, 96), NOTHING]),
        ("insertion_morf_blur", lambda image: [NOTHING, (image, 72)]),
    ],
)
def test_curves_are_batched_by_image_and_method(toy, seen, kind, steps):
    """Batches go image by image, and method by method."""
    toy.make(curves_of(toy, kind), SIZE)
    several = [row for image in range(4) for row in steps(image)]
    expected = filled((0, 0), (1, 0), (2, 0), (3, 0)) + 2 * filled(*several)
    assert seen == expected + filled((4, 0)) + 2 * filled(*steps(4))


def test_curves_with_imputation_are_batched_by_step(toy, seen):
    """Batches go step by step."""
    toy.make(curves_of(toy, "deletion_lerf_road"), SIZE)
    several = [(image, changed) for changed in (43, 86) for image in range(4)]
    expected = filled((0, 0), (1, 0), (2, 0), (3, 0)) + 2 * filled(*several)
    assert seen == expected + filled((4, 0)) + 2 * filled((4, 43), (4, 86))


def test_information_curves_have_all_versions_of_an_image_in_one_batch(toy, seen):
    """All versions of an image are in one batch, including the blurred and the original image."""
    toy.make(curves_of(toy, "pictures"), SIZE)
    assert [{image for image, _ in batch} for batch in seen[:1]] == [{0, 1, 2, 3}]
    assert [{image for image, _ in batch} for batch in seen[1:]] == [{0}, {1}, {2}, {3}] * 2 + [{4}] * 3
    assert {len(batch) for batch in seen} == {SIZE}


def test_subsets_are_batched_image_by_image(toy, seen):
    (response,) = toy.plan.model_responses
    toy.make(toy.on_network("subsets", response=response, shard=0), SIZE)
    rows = [(image, changed) for image in range(IMAGES) for changed in (0, 14, 14, 14, 58, 58, 58)]
    assert seen == filled(*rows[: 4 * 7]) + filled(*rows[4 * 7 :])


def test_channels_are_batched_like_intact_images(toy, seen):
    toy.make(toy.on_network("channels", shard=0), SIZE)
    # The first pass determines the number of channels.
    assert seen == filled((0, 0)) + filled((0, 0), (1, 0), (2, 0), (3, 0)) + filled((4, 0))

import numpy as np
import pytest
import torch
from network_responses import batch_of, patch_responses
from torch import nn

from heatproof.core.grids import patch_boxes
from heatproof.core.network import Network
from heatproof.core.passes import run_batched
from heatproof.core.perturb.baselines import baseline_images
from heatproof.errors import HeatproofError

IDS = tuple(f"image-{number}" for number in range(5))
TARGETS = torch.tensor([0, 3, 1, 2, 6])


def deleted(images, grid, baselines):
    """Return one variant of all images for each patch, made with slices instead of masks."""
    for top, bottom, left, right in patch_boxes(grid, *images.shape[-2:]):
        variant = images.clone()
        variant[..., top:bottom, left:right] = baselines[..., top:bottom, left:right]
        yield variant


class RecordingNetwork(nn.Module):
    """Linear classifier that records its inputs."""

    def __init__(self, change=lambda logits, images: logits):
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.weights = torch.randn(2 * 8 * 8, 7, generator=generator)
        self.change = change
        self.sizes, self.channels_last, self.gradients = [], [], []

    def forward(self, images):
        self.sizes.append(len(images))
        self.channels_last.append(images.is_contiguous(memory_format=torch.channels_last))
        self.gradients.append(torch.is_grad_enabled())
        return self.change(images.reshape(len(images), -1) @ self.weights, images)


@pytest.fixture
def images():
    return torch.randn(5, 2, 8, 8, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("baseline", ["zeros", "random", "blur"])
def test_responses_equal_those_of_single_images(baseline, images):
    network = RecordingNetwork().eval()
    read = patch_responses(batch_of(network, images, TARGETS, IDS, batch_size=6), 4, baseline)
    baselines = baseline_images(baseline, images, IDS, 0)
    variants = torch.stack([images, *deleted(images, 4, baselines)], dim=1)
    logits = torch.stack([network(variant) for variant in variants]).numpy()
    at_target = np.take_along_axis(logits, TARGETS.numpy()[:, None, None], axis=2)
    log_sum = np.log(np.exp(logits.astype(np.float64)).sum(axis=2))
    np.testing.assert_allclose(read["logit"], at_target[..., 0], atol=1e-5)
    np.testing.assert_allclose(read["log_probability"], at_target[..., 0] - log_sum, atol=1e-4)
    np.testing.assert_array_equal(read["predicted"], logits.argmax(axis=2))
    np.testing.assert_array_equal(read["target_rank"], (logits > at_target).sum(axis=2))


def test_responses_have_their_types_and_shapes(images):
    read = patch_responses(batch_of(RecordingNetwork().eval(), images, TARGETS, IDS, batch_size=4), 2, "zeros")
    types = {"logit": "float32", "log_probability": "float32", "predicted": "int64", "target_rank": "int16"}
    assert {name: str(values.dtype) for name, values in read.items()} == types
    assert {values.shape for values in read.values()} == {(5, 5)}
    np.testing.assert_array_equal(read["target_rank"] == 0, read["predicted"] == TARGETS.numpy()[:, None])


@pytest.mark.parametrize("batch_size", [1, 2, 3, 7, 64, 1000])
def test_batch_size_changes_the_passes_but_not_the_responses(batch_size, images):
    network = RecordingNetwork().eval()
    read = patch_responses(batch_of(network, images, TARGETS, IDS, batch_size=batch_size), 4, "random")
    assert sum(network.sizes) == 5 * 17
    assert max(network.sizes) <= batch_size
    # Chunks have `batch_size` images, so that only the last batch of the last chunk can be incomplete.
    assert sum(size < batch_size for size in network.sizes) <= 1
    expected = patch_responses(batch_of(RecordingNetwork().eval(), images, TARGETS, IDS, batch_size=17), 4, "random")
    for name, values in expected.items():
        np.testing.assert_allclose(read[name], values, atol=1e-5)


def test_responses_do_not_depend_on_other_images(images):
    together = patch_responses(batch_of(RecordingNetwork().eval(), images, TARGETS, IDS, batch_size=8), 2, "random")
    single = patch_responses(
        batch_of(RecordingNetwork().eval(), images[3:4], TARGETS[3:4], IDS[3:4], batch_size=8), 2, "random"
    )
    np.testing.assert_allclose(single["logit"], together["logit"][3:4], atol=1e-5)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_layout_is_preserved(layout, images):
    network = RecordingNetwork().eval()
    patch_responses(batch_of(network, images.to(memory_format=layout), TARGETS, IDS, batch_size=4), 2, "random")
    assert set(network.channels_last) == {layout is torch.channels_last}
    assert not any(network.gradients)


def test_target_rank_counts_strictly_larger_logits_only():
    network = lambda images: torch.tensor([[1.0, 2.0, 2.0, 3.0]]).repeat(len(images), 1)  # noqa: E731
    rows = torch.arange(4)
    read = run_batched(Network.of(network), [(torch.zeros(4, 1, 2, 2), rows)], rows, ["a", "b", "c", "d"])
    np.testing.assert_array_equal(read["target_rank"], [3, 1, 1, 0])


def test_responses_keep_the_order_of_the_batches(images):
    batches = [(images[rows], rows) for rows in (torch.tensor([4, 0]), torch.tensor([2]))]
    read = run_batched(Network.of(RecordingNetwork().eval()), batches, TARGETS, IDS)
    expected = run_batched(Network.of(RecordingNetwork().eval()), [(images, torch.arange(5))], TARGETS, IDS)
    np.testing.assert_allclose(read["logit"], expected["logit"][[4, 0, 2]], atol=1e-5)


def not_finite(logits, images):
    # The first pixel identifies the third image, and only deleting the first patch changes it.
    logits[images[:, 0, 0, 0] == 7] = torch.nan
    return logits


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda logits, images: (logits, logits),
            r"returned a tuple for a batch of 4 with parts \(4, 7\) and \(4, 7\) that could all be logits",
        ),
        (lambda logits, images: logits[:, :6].reshape(4, 3, 2), r"returned a tensor \(4, 3, 2\) for a batch of 4"),
        (lambda logits, images: logits[:1], r"returned a tensor \(1, 7\) for a batch of 4"),
        (lambda logits, images: logits[:, :6], r"target of image 'image-4' is class 6, .* classes 0 to 5"),
        (not_finite, r"not finite for image 'image-2'"),
    ],
)
def test_wrong_outputs_are_refused_and_name_the_image(change, message, images):
    images[2, 0, 0, 0] = 7
    with pytest.raises(HeatproofError, match=message):
        patch_responses(batch_of(RecordingNetwork(change).eval(), images, TARGETS, IDS, batch_size=4), 2, "zeros")


def test_negative_target_is_refused(images):
    with pytest.raises(HeatproofError, match=r"target of image 'image-1' is class -1"):
        patch_responses(batch_of(RecordingNetwork().eval(), images, torch.tensor([0, -1, 0, 0, 0]), IDS), 2, "zeros")

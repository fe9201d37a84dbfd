import numpy as np
import pytest
import torch
from captum.metrics import infidelity, infidelity_perturb_func_decorator
from network_responses import batch_of, patch_responses, subset_responses
from torch import nn

from heatproof.core.perturb.baselines import baseline_images
from heatproof.core.subsets import subset_masks
from heatproof.errors import HeatproofError
from heatproof.metrics.subsets import infidelity_scores, sensitivity_n_scores

IDS = tuple(f"image-{number}" for number in range(4))
TARGETS = torch.tensor([0, 3, 1, 2])
SIZES = (0.1, 0.4, 0.8)


class RecordingNetwork(nn.Module):
    """Small classifier that records the batches of its inputs."""

    def __init__(self, linear=False):
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.linear = linear
        self.weights = torch.randn(2, 6, 5, 4, generator=generator)
        self.batches, self.channels_last = [], []

    def forward(self, images):
        self.batches.append(len(images))
        self.channels_last.append(images.is_contiguous(memory_format=torch.channels_last))
        logits = torch.einsum("nchw,chwk->nk", images, self.weights.to(images))
        return logits if self.linear else logits.tanh() + (logits / 4).sin()


@pytest.fixture
def images():
    return torch.randn(4, 2, 6, 5, generator=torch.Generator().manual_seed(2))


@pytest.fixture
def masks():
    return subset_masks(IDS, 6, 5, SIZES, 7, 0)


def drops_of(read):
    logits = read["logit"].astype(np.float64)
    return logits[:, :1] - logits[:, 1:]


@pytest.mark.parametrize("baseline", ["zeros", "random", "blur"])
def test_responses_equal_those_of_single_images(baseline, images, masks):
    read = subset_responses(batch_of(RecordingNetwork().eval(), images, TARGETS, IDS, batch_size=6), masks, baseline)
    baselines = baseline_images(baseline, images, IDS, 0)
    for row in range(4):
        variants = [images[row]]
        for mask in masks[row]:
            variants.append(images[row].clone())
            variants[-1][:, mask] = baselines[row][:, mask]
        logits = RecordingNetwork()(torch.stack(variants)).numpy()
        np.testing.assert_allclose(read["logit"][row], logits[:, TARGETS[row]], atol=1e-5)
        np.testing.assert_array_equal(read["predicted"][row], logits.argmax(1))


@pytest.mark.parametrize("batch_size", [1, 3, 22, 64, 1000])
def test_batch_size_changes_the_passes_but_not_the_responses(batch_size, images, masks):
    network = RecordingNetwork().eval()
    read = subset_responses(batch_of(network, images, TARGETS, IDS, batch_size=batch_size), masks, "random")
    assert sum(network.batches) == 4 * 22
    assert max(network.batches) <= batch_size
    assert sum(size < batch_size for size in network.batches) <= 1
    expected = subset_responses(
        batch_of(RecordingNetwork().eval(), images, TARGETS, IDS, batch_size=7), masks, "random"
    )
    for name, values in expected.items():
        assert values.shape == (4, 22)
        np.testing.assert_allclose(read[name], values, atol=1e-5)


def test_responses_do_not_depend_on_other_images(images, masks):
    together = subset_responses(
        batch_of(RecordingNetwork().eval(), images, TARGETS, IDS, batch_size=8), masks, "random"
    )
    single = subset_responses(
        batch_of(RecordingNetwork().eval(), images[2:3], TARGETS[2:3], IDS[2:3], batch_size=8), masks[2:3], "random"
    )
    np.testing.assert_allclose(single["logit"], together["logit"][2:3], atol=1e-5)


@pytest.mark.parametrize("batch_size", [5, 64])
def test_masks_are_drawn_once_for_each_image(batch_size, images, masks):
    requested = []

    class RecordingMasks(list):
        def __getitem__(self, row):
            requested.append(row)
            return super().__getitem__(row)

    subset_responses(
        batch_of(RecordingNetwork().eval(), images, TARGETS, IDS, batch_size=batch_size), RecordingMasks(masks), "zeros"
    )
    assert requested == [0, 1, 2, 3]


def test_drawn_masks_may_be_an_array(images, masks):
    expected = subset_responses(batch_of(RecordingNetwork().eval(), images, TARGETS, IDS), masks, "zeros")
    read = subset_responses(batch_of(RecordingNetwork().eval(), images, TARGETS, IDS), np.stack(list(masks)), "zeros")
    np.testing.assert_array_equal(read["logit"], expected["logit"])


def test_several_targets_are_read_at_once(images, masks):
    targets = torch.stack([TARGETS, 3 - TARGETS], dim=1)
    read = subset_responses(batch_of(RecordingNetwork().eval(), images, targets, IDS), masks, "zeros")
    assert read["logit"].shape == (4, 22, 2)
    assert read["predicted"].shape == (4, 22)
    for column in range(2):
        single = subset_responses(batch_of(RecordingNetwork().eval(), images, targets[:, column], IDS), masks, "zeros")
        np.testing.assert_array_equal(read["logit"][..., column], single["logit"])


def test_patches_as_subsets_give_the_patch_responses(images):
    images = images[..., :4, :4]
    network = nn.Sequential(nn.Flatten(), nn.Linear(32, 4)).eval()
    patches = np.kron(np.eye(4, dtype=bool).reshape(4, 2, 2), np.ones((2, 2), dtype=bool))
    read = subset_responses(batch_of(network, images, TARGETS, IDS), np.stack([patches] * 4), "random")
    expected = patch_responses(batch_of(network, images, TARGETS, IDS), 2, "random")
    np.testing.assert_array_equal(read["logit"], expected["logit"])


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_layout_is_preserved(layout, images, masks):
    network = RecordingNetwork().eval()
    subset_responses(batch_of(network, images.to(memory_format=layout), TARGETS, IDS), masks, "zeros")
    assert set(network.channels_last) == {layout is torch.channels_last}


def test_masks_of_other_images_are_refused(images, masks):
    with pytest.raises(HeatproofError, match="Subsets of 3 images do not belong to 4 images"):
        subset_responses(batch_of(RecordingNetwork().eval(), images, TARGETS, IDS), masks[:3], "zeros")
    with pytest.raises(HeatproofError, match=r"\(6, 5\) pixels do not belong to image 'image-0' of \(6, 4\)"):
        subset_responses(batch_of(RecordingNetwork().eval(), images[..., :4], TARGETS, IDS), masks, "zeros")


def test_the_map_of_a_linear_model_has_perfect_scores(images, masks):
    network = RecordingNetwork(linear=True).eval()
    drops = drops_of(subset_responses(batch_of(network, images, TARGETS, IDS), masks, "zeros"))
    maps = (images * network.weights[..., TARGETS].permute(3, 0, 1, 2)).sum(1).numpy()
    np.testing.assert_allclose(sensitivity_n_scores(maps, drops, masks, IDS, sizes=SIZES)[0], 1, atol=1e-9)
    np.testing.assert_allclose(sensitivity_n_scores(-maps, drops, masks, IDS, sizes=SIZES)[0], -1, atol=1e-9)
    for normalize in (True, False):
        np.testing.assert_allclose(infidelity_scores(maps, drops, masks, IDS, normalize=normalize)[0], 0, atol=1e-9)


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("divided_by", ["us", "captum"])
def test_infidelity_equals_that_of_captum(divided_by, normalize, images, masks):
    network = RecordingNetwork().eval()
    read = subset_responses(batch_of(network, images, TARGETS, IDS), masks, "random")
    contributions = torch.randn(4, 2, 6, 5, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    score, valid = infidelity_scores(contributions.sum(1).numpy(), drops_of(read), masks, IDS, normalize=normalize)

    inside = torch.from_numpy(np.concatenate(list(masks))).unsqueeze(1).expand(-1, 2, -1, -1)
    baselines = baseline_images("random", images, IDS, 0).double()

    def without(repeated, repeated_baselines):
        return torch.where(inside, repeated_baselines, repeated)

    replay = {
        "us": lambda repeated, replacements: (inside.double(), without(repeated, replacements)),
        "captum": infidelity_perturb_func_decorator(multiply_by_inputs=True)(without),
    }
    expected = infidelity(
        network,
        replay[divided_by],
        images.double(),
        contributions,
        baselines=baselines,
        target=TARGETS,
        n_perturb_samples=21,
        normalize=normalize,
    )
    assert valid.all()
    assert (expected > 0.01).all()
    np.testing.assert_allclose(score, expected.numpy(), rtol=1e-5)

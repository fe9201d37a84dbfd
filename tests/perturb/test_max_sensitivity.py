import warnings

import numpy as np
import pytest
import torch
from captum.attr import Saliency
from torch import nn

from heatproof.core.perturb.sensitivity import max_sensitivity
from heatproof.core.randomness import counter_normal, counter_uniform
from heatproof.errors import HeatproofError

IDS = ("image-0", "image-1", "image-2")
TARGETS = torch.tensor([0, 3, 1])
RADIUS = 0.05


@pytest.fixture
def images():
    return torch.randn(3, 2, 5, 4, generator=torch.Generator().manual_seed(2))


@pytest.fixture
def network():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(2, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(24, 4)).double().eval()


def itself(images, targets):
    return images.sum(1)


def saliency(network):
    def explain(images, targets):
        return Saliency(network).attribute(images.double().requires_grad_(), target=targets, abs=False).sum(1)

    return explain


def changes(image_id, samples=4, radius=RADIUS):
    return (counter_uniform(7, "max sensitivity", [image_id], (samples, 2, 5, 4))[0] * 2 - 1) * radius


def test_same_map_for_every_image_scores_zero(images):
    fixed = torch.randn(5, 4, generator=torch.Generator().manual_seed(3))
    score, valid = max_sensitivity(lambda x, t: fixed.expand(len(x), -1, -1), images, TARGETS, IDS, 0)
    np.testing.assert_array_equal(score, 0)
    assert score.dtype == np.float64
    assert valid.all()


def test_gradient_of_a_linear_model_scores_zero(images):
    linear = nn.Sequential(nn.Flatten(), nn.Linear(40, 4)).double().eval()
    np.testing.assert_array_equal(max_sensitivity(saliency(linear), images, TARGETS, IDS, 0)[0], 0)


@pytest.mark.parametrize("norm", [1.0, 2.0, float("inf")])
def test_the_score_of_the_image_as_its_map_is_the_change_of_the_image(norm, images):
    score, valid = max_sensitivity(itself, images, TARGETS, IDS, 7, radius=RADIUS, samples=4, norm=norm)
    for row, image_id in enumerate(IDS):
        moved = changes(image_id).sum(1).flatten(1).numpy()
        size = np.linalg.norm(images[row].sum(0).flatten().numpy(), norm)
        expected = max(np.linalg.norm(change, norm) for change in moved) / size
        np.testing.assert_allclose(score[row], expected, rtol=1e-5)
        # Two channels change by at most the radius each.
        assert 0 < score[row] <= 2 * RADIUS * np.linalg.norm(np.ones(20), norm) / size
    assert valid.all()


def test_changes_fill_the_ball_of_the_radius(images):
    seen = []

    def watch(batch, targets):
        seen.append(batch)
        return itself(batch, targets)

    max_sensitivity(watch, images, TARGETS, IDS, 7, radius=RADIUS, samples=40, batch_size=200)
    moved = torch.cat(seen[1:]) - images.repeat_interleave(40, dim=0)
    assert moved.abs().max() <= RADIUS + 1e-6
    assert moved.min() < -0.99 * RADIUS
    assert moved.max() > 0.99 * RADIUS


@pytest.mark.parametrize("batch_size", [1, 4, 6, 64])
def test_the_score_equals_that_of_single_copies(batch_size, images, network):
    score, _ = max_sensitivity(
        saliency(network), images, TARGETS, IDS, 7, radius=RADIUS, samples=4, batch_size=batch_size
    )
    for row, image_id in enumerate(IDS):
        target = TARGETS[row : row + 1]
        intact = saliency(network)(images[row : row + 1], target)
        moved = [saliency(network)((images[row] + change)[None], target) - intact for change in changes(image_id)]
        np.testing.assert_allclose(
            score[row], max(difference.norm() for difference in moved) / intact.norm(), rtol=1e-4
        )


@pytest.mark.parametrize(("batch_size", "sizes"), [(1, [3] * 5), (6, [3, 6, 6]), (7, [3, 6, 6]), (9, [3, 9, 3])])
def test_batches_are_no_larger_than_the_limit_or_the_images(batch_size, sizes, images):
    seen = []

    def watch(batch, targets):
        seen.append(len(batch))
        np.testing.assert_array_equal(targets, np.repeat(TARGETS.numpy(), len(batch) // 3))
        return itself(batch, targets)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        max_sensitivity(watch, images, TARGETS, IDS, 7, radius=RADIUS, samples=4, batch_size=batch_size)
    assert seen == sizes


@pytest.mark.parametrize("row", [0, 1, 2])
def test_scores_do_not_depend_on_other_images(row, images, network):
    together = max_sensitivity(saliency(network), images, TARGETS, IDS, 7, batch_size=9)[0]
    rows = slice(row, row + 1)
    single = max_sensitivity(saliency(network), images[rows], TARGETS[rows], IDS[rows], 7, batch_size=64)[0]
    np.testing.assert_allclose(single, together[rows], rtol=1e-9)


def test_draws_depend_on_the_seed(images):
    scores = [max_sensitivity(itself, images, TARGETS, IDS, seed)[0] for seed in (0, 0, 1)]
    np.testing.assert_array_equal(scores[0], scores[1])
    assert (scores[0] != scores[2]).all()


def test_more_samples_can_only_raise_the_score(images, network):
    scores = [max_sensitivity(saliency(network), images, TARGETS, IDS, 7, samples=n)[0] for n in (1, 3, 12)]
    assert (np.diff(scores, axis=0) >= -1e-12).all()
    assert (scores[2] > scores[0]).any()


def test_a_radius_of_zero_has_a_score_of_zero(images, network):
    np.testing.assert_array_equal(max_sensitivity(saliency(network), images, TARGETS, IDS, 7, radius=0.0)[0], 0)


def test_an_explainer_that_draws_by_id_repeats_its_draw(images):
    """Its noise equals that of the intact image, so that the score measures only the change of the image."""

    def noisy(batch, targets):
        ids = np.repeat(IDS, len(batch) // len(IDS))
        return 0 * batch.sum(1) + counter_normal(0, "noise", ids, (5, 4))

    np.testing.assert_array_equal(max_sensitivity(noisy, images, TARGETS, IDS, 7, batch_size=7)[0], 0)


def test_explainer_may_take_gradients_itself(images, network):
    def gradient(batch, targets):
        batch = batch.double().requires_grad_()
        output = network(batch).gather(1, targets[:, None]).sum()
        return torch.autograd.grad(output, batch)[0].sum(1)

    expected = max_sensitivity(saliency(network), images, TARGETS, IDS, 7)[0]
    np.testing.assert_allclose(max_sensitivity(gradient, images, TARGETS, IDS, 7)[0], expected, rtol=1e-9)


def test_given_maps_are_not_recomputed(images, network):
    explain, calls = saliency(network), []

    def watch(batch, targets):
        calls.append(len(batch))
        return explain(batch, targets)

    score, valid = max_sensitivity(watch, images, TARGETS, IDS, 7, samples=4, intact=explain(images, TARGETS))
    assert calls == [12]
    assert valid.all()
    np.testing.assert_allclose(score, max_sensitivity(explain, images, TARGETS, IDS, 7, samples=4)[0], rtol=1e-12)


@pytest.mark.parametrize("norm", [1.0, 2.0, float("inf")])
def test_map_of_zeros_is_undefined(norm, images):
    images[1] = 0
    score, valid = max_sensitivity(itself, images, TARGETS, IDS, 7, norm=norm)
    assert valid.tolist() == [True, False, True]
    np.testing.assert_array_equal(np.isnan(score), ~valid)


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_scale_of_the_map_does_not_matter(scale, images):
    score, valid = max_sensitivity(lambda x, t: scale * itself(x, t), images, TARGETS, IDS, 7)
    assert valid.all()
    np.testing.assert_allclose(score, max_sensitivity(itself, images, TARGETS, IDS, 7)[0], rtol=1e-5)


def test_no_images_have_no_scores(images):
    score, valid = max_sensitivity(itself, images[:0], TARGETS[:0], (), 7)
    assert score.shape == valid.shape == (0,)


@pytest.mark.parametrize("call", [0, 1, 2])
def test_value_that_is_not_finite_names_the_image(call, images):
    calls = []

    def broken(batch, targets):
        maps = itself(batch, targets).clone()
        if len(calls) == call:
            maps[-1, 2, 2] = torch.nan
            maps[len(batch) // 3, 1, 1] = torch.inf
        calls.append(len(batch))
        return maps

    with pytest.raises(HeatproofError, match="image 'image-1', or of a slightly changed copy, has a value that is not"):
        max_sensitivity(broken, images, TARGETS, IDS, 7, samples=4, batch_size=6)


def test_maps_of_another_shape_are_refused(images):
    with pytest.raises(HeatproofError, match=r"maps of shape \(3, 2, 5, 4\), but \(3, 5, 4\) was expected"):
        max_sensitivity(lambda x, t: x, images, TARGETS, IDS, 7)
    with pytest.raises(HeatproofError, match=r"maps of shape \(2, 5, 4\), but \(3, 5, 4\)"):
        max_sensitivity(itself, images, TARGETS, IDS, 7, intact=images[:2, 0])


@pytest.mark.parametrize("options", [{"radius": -0.1}, {"samples": 0}, {"norm": 0.5}])
def test_options_out_of_range_are_refused(options, images):
    with pytest.raises(HeatproofError, match="Max-sensitivity cannot use"):
        max_sensitivity(itself, images, TARGETS, IDS, 7, **options)

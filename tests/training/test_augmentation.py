"""Shifts, and the deletion of one patch."""

import pytest
import torch

from heatproof.core.randomness import torch_generator
from heatproof.training.loop import delete_random_patches, shift_randomly

GRID, SIZE = 4, 12
PATCH = SIZE // GRID


def images_of(count, seed=0):
    return torch.rand(count, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(seed)) + 2


def patches_changed(before, after):
    """Return (N, patches): the number of pixels of each patch that differ in any channel."""
    changed = (before != after).any(1)
    return changed.unflatten(1, (GRID, PATCH)).unflatten(3, (GRID, PATCH)).sum((2, 4)).flatten(1)


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_one_patch_of_no_or_every_image_is_deleted(share):
    images, baselines = images_of(50), -images_of(50, seed=1)
    perturbed = delete_random_patches(images, baselines, GRID, share, torch_generator(0, "x"))
    changed = patches_changed(images, perturbed)
    if share == 0:
        assert torch.equal(perturbed, images)
        return
    assert ((changed > 0).sum(1) == 1).all(), "exactly one patch of every image"
    assert (changed.max(1).values == PATCH**2).all(), "all of it"
    deleted = (perturbed != images).any(1, keepdim=True).expand_as(perturbed)
    assert torch.equal(perturbed[deleted], baselines[deleted])
    assert torch.equal(perturbed[~deleted], images[~deleted])
    assert len(changed.argmax(1).unique()) > 10, "at many places"


def test_the_share_is_the_fraction_of_images_with_a_deleted_patch():
    images, baselines = images_of(2000), torch.zeros(2000, 3, SIZE, SIZE)
    perturbed = delete_random_patches(images, baselines, GRID, 0.3, torch_generator(0, "x"))
    lost = (patches_changed(images, perturbed) > 0).any(1).float().mean()
    assert 0.26 < lost < 0.34
    places = patches_changed(images, perturbed).argmax(1)[(patches_changed(images, perturbed) > 0).any(1)]
    counts = torch.bincount(places, minlength=GRID**2)
    assert counts.min() > 0.5 * counts.float().mean(), "every patch about as often"


def test_the_share_does_not_change_which_patches_are_drawn():
    images, baselines = images_of(60), torch.zeros(60, 3, SIZE, SIZE)
    half, all_of_them = (
        delete_random_patches(images, baselines, GRID, share, torch_generator(0, "x")) for share in (0.5, 1.0)
    )
    lost = (half != images).flatten(1).any(1)
    assert 0 < lost.sum() < 60
    assert torch.equal(half[lost], all_of_them[lost])


def test_inputs_are_not_modified():
    images, baselines = images_of(5), torch.zeros(5, 3, SIZE, SIZE)
    before = images.clone()
    delete_random_patches(images, baselines, GRID, 1.0, torch_generator(0, "x"))
    shift_randomly(images, 2, torch_generator(0, "x"))
    assert torch.equal(images, before)
    assert baselines.abs().max() == 0


@pytest.mark.parametrize("pixels", [1, 2])
def test_a_shift_moves_and_repeats_edges(pixels):
    rows = torch.arange(SIZE, dtype=torch.float32)
    coordinates = torch.stack([rows[:, None].expand(SIZE, SIZE), rows[None].expand(SIZE, SIZE), torch.ones(SIZE, SIZE)])
    shifted = shift_randomly(coordinates.expand(300, -1, -1, -1), pixels, torch_generator(0, "x"))
    assert shifted.shape == (300, 3, SIZE, SIZE)
    down = shifted[:, 0, SIZE // 2, 0] - SIZE // 2
    right = shifted[:, 1, 0, SIZE // 2] - SIZE // 2
    wanted = list(range(-pixels, pixels + 1))
    assert sorted(set(down.tolist())) == wanted
    assert sorted(set(right.tolist())) == wanted
    assert len({*zip(down.tolist(), right.tolist(), strict=True)}) == len(wanted) ** 2, "both ways on their own"
    for image, dy, dx in zip(shifted, down, right, strict=True):
        assert torch.equal(image[0, :, 0], (rows + dy).clamp(0, SIZE - 1))
        assert torch.equal(image[1, 0], (rows + dx).clamp(0, SIZE - 1))

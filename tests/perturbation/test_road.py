"""ROAD's linear imputation against a direct solution of the equations as the paper states them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import sparse
from scipy.ndimage import gaussian_filter
from scipy.sparse.linalg import spsolve

from heatproof.errors import HeatproofError
from heatproof.perturbation.road import impute, impute_sequence

WEIGHTS = {(0, 1): 1 / 6, (1, 0): 1 / 6, (1, 1): 1 / 12, (1, -1): 1 / 12}


def by_hand(image, removed):
    """Solve pixel by pixel equations: every removed pixel is the weighted mean of its neighbours."""
    height, width = removed.shape
    number = {pixel: n for n, pixel in enumerate(zip(*np.nonzero(removed), strict=True))}
    matrix = sparse.lil_matrix((len(number), len(number)))
    right = np.zeros((len(number), len(image)))
    for (i, j), n in number.items():
        offsets = [(s * a, s * b, w) for (a, b), w in WEIGHTS.items() for s in (1, -1)]
        near = [(i + a, j + b, w) for a, b, w in offsets if 0 <= i + a < height and 0 <= j + b < width]
        total = sum(w for *_, w in near)
        matrix[n, n] = 1
        for y, x, w in near:
            if (y, x) in number:
                matrix[n, number[y, x]] = -w / total
            else:
                right[n] += w / total * image[:, y, x]
    out = image.copy()
    out[:, removed] = np.stack([spsolve(matrix.tocsr(), column) for column in right.T])
    return out


def scores(kind, *shape, seed=0):
    values = np.random.default_rng(seed).standard_normal(shape)
    return gaussian_filter(values, (0, 4, 4)) if kind == "blob" else values


def removal(values, fractions):
    """First step at which each pixel is among the lowest fraction."""
    flat = values.reshape(len(values), -1)
    rank = flat.argsort(1).argsort(1)
    steps = np.searchsorted([int(flat.shape[1] * f) for f in fractions], rank, side="right")
    return torch.from_numpy(steps.reshape(values.shape))


def pictures(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("kind", ["blob", "scattered"])
@pytest.mark.parametrize("size", [(32, 32), (37, 50), (5, 9), (1, 40)])
@pytest.mark.parametrize("fraction", [0.03, 0.5, 0.9, 0.98])
def test_equations_are_solved(kind, size, fraction):
    images = pictures(2, 3, *size)
    removed = removal(scores(kind, 2, *size), [fraction]) <= 0
    imputed = impute(images, removed)
    for image, mask, ours in zip(images, removed.numpy(), imputed, strict=True):
        exact = by_hand(image.double().numpy(), mask) if mask.any() else image.numpy()
        np.testing.assert_allclose(ours, exact, atol=2e-6, rtol=0)


@pytest.mark.parametrize("pattern", ["one known pixel", "known lines", "checkerboard", "known corner", "border"])
def test_unusual_sets_of_pixels(pattern):
    removed = torch.ones(1, 64, 45, dtype=torch.bool)
    if pattern == "one known pixel":
        removed[0, 30, 7] = False
    elif pattern == "known lines":
        removed[0, ::5] = False
    elif pattern == "checkerboard":
        removed[0, ::2, ::2] = removed[0, 1::2, 1::2] = False
    elif pattern == "known corner":
        removed[0, :3, :3] = False
    else:
        removed[0, 1:-1, 1:-1] = False
    images = pictures(1, 1, 64, 45)
    exact = by_hand(images[0].double().numpy(), removed[0].numpy())
    np.testing.assert_allclose(impute(images, removed)[0], exact, atol=5e-6, rtol=0)


@pytest.mark.parametrize("kind", ["blob", "scattered"])
def test_a_sequence_equals_its_steps_one_by_one(kind):
    images = pictures(3, 2, 37, 50)
    first = removal(scores(kind, 3, 37, 50), np.linspace(0.03, 0.98, 12))
    steps = list(impute_sequence(images, first, 12, noise=0, seed=0, image_ids="abc"))
    assert len(steps) == 12
    for step, imputed in enumerate(steps):
        removed = first <= step
        torch.testing.assert_close(imputed, impute(images, removed), atol=3e-6, rtol=0)
        kept = ~removed[:, None].expand_as(images)
        assert torch.equal(imputed[kept], images[kept])


def test_results_depend_on_no_other_image_and_repeat_bit_for_bit():
    images, first = pictures(4, 3, 32, 32), removal(scores("blob", 4, 32, 32), [0.2, 0.6, 0.95])
    first[1] = 0
    with torch.inference_mode():
        together = list(impute_sequence(images, first, 3, seed=5, image_ids="abcd"))
        again = list(impute_sequence(images, first, 3, seed=5, image_ids="abcd"))
        for n, name in enumerate("abcd"):
            one = slice(n, n + 1)
            for all_of_them, alone in zip(
                together, impute_sequence(images[one], first[one], 3, seed=5, image_ids=name), strict=True
            ):
                torch.testing.assert_close(all_of_them[one], alone, atol=1e-6, rtol=0)
    assert all(torch.equal(a, b) for a, b in zip(together, again, strict=True))


def test_noise_is_drawn_once_for_each_image_on_removed_pixels():
    images, first = pictures(2, 3, 32, 32), removal(scores("blob", 2, 32, 32), [0.3, 0.7])

    def noise(seed=0, names="ab"):
        noisy = impute_sequence(images, first, 2, noise=0.05, seed=seed, image_ids=names)
        plain = impute_sequence(images, first, 2, noise=0, seed=seed, image_ids=names)
        return [a - b for a, b in zip(noisy, plain, strict=True)]

    early, late = noise()
    removed = (first <= 0)[:, None].expand_as(images)
    torch.testing.assert_close(early[removed], late[removed], atol=1e-6, rtol=0)
    assert not early[~removed].any()
    assert early[removed].std() == pytest.approx(0.05, rel=0.1)
    assert not torch.equal(noise(seed=1)[0], early)
    torch.testing.assert_close(noise(names="xb")[0][1], early[1])
    assert not torch.equal(noise(names="xb")[0][0], early[0])


def test_an_image_removed_in_whole_becomes_its_mean():
    images, removed = pictures(2, 3, 16, 16), torch.ones(2, 16, 16, dtype=torch.bool)
    removed[1, :4] = False
    imputed = impute(images, removed)
    torch.testing.assert_close(imputed[0], images[0].mean((1, 2), keepdim=True).expand(3, 16, 16))
    torch.testing.assert_close(imputed[1], impute(images[1:], removed[1:])[0], atol=1e-6, rtol=0)


def test_a_constant_image_stays_constant():
    images = torch.full((1, 3, 37, 50), 0.7)
    removed = removal(scores("blob", 1, 37, 50), [0.9]) <= 0
    torch.testing.assert_close(impute(images, removed), images, atol=1e-6, rtol=0)


def test_nothing_removed_returns_the_image():
    images = pictures(1, 3, 8, 8)
    assert torch.equal(impute(images, torch.zeros(1, 8, 8, dtype=torch.bool)), images)


def test_values_that_are_not_finite_are_refused():
    images = pictures(1, 1, 8, 8)
    images[0, 0, 0, 0] = torch.nan
    with pytest.raises(HeatproofError, match="finite"):
        impute(images, torch.ones(1, 8, 8, dtype=torch.bool))

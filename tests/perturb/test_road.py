"""ROAD's linear imputation against a direct solution of the equations in the paper."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import sparse
from scipy.ndimage import gaussian_filter
from scipy.sparse.linalg import spsolve

from heatproof.core.perturb import _multigrid, road
from heatproof.core.perturb.road import impute, impute_sequence
from heatproof.errors import HeatproofError

WEIGHTS = {(0, 1): 1 / 6, (1, 0): 1 / 6, (1, 1): 1 / 12, (1, -1): 1 / 12}


def by_hand(image, removed):
    """Solve the equations pixel by pixel: every removed pixel is the weighted mean of its neighbours."""
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
    """Return the first step at which each pixel is in the lowest fraction."""
    flat = values.reshape(len(values), -1)
    rank = flat.argsort(1).argsort(1)
    steps = np.searchsorted([int(flat.shape[1] * f) for f in fractions], rank, side="right")
    return torch.from_numpy(steps.reshape(values.shape))


def random_images(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("kind", ["blob", "scattered"])
@pytest.mark.parametrize("size", [(32, 32), (37, 50), (5, 9), (1, 40)])
@pytest.mark.parametrize("fraction", [0.03, 0.5, 0.9, 0.98])
def test_imputation_solves_the_equations_of_the_paper(kind, size, fraction):
    images = random_images(2, 3, *size)
    removed = removal(scores(kind, 2, *size), [fraction]) <= 0
    imputed = impute(images, removed)
    for image, mask, ours in zip(images, removed.numpy(), imputed, strict=True):
        exact = by_hand(image.double().numpy(), mask) if mask.any() else image.numpy()
        np.testing.assert_allclose(ours, exact, atol=2e-6, rtol=0)


@pytest.mark.parametrize("pattern", ["one known pixel", "known lines", "checkerboard", "known corner", "border"])
def test_unusual_sets_of_pixels_are_imputed(pattern):
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
    images = random_images(1, 1, 64, 45)
    exact = by_hand(images[0].double().numpy(), removed[0].numpy())
    np.testing.assert_allclose(impute(images, removed)[0], exact, atol=5e-6, rtol=0)


@pytest.mark.parametrize("kind", ["blob", "scattered"])
def test_a_sequence_equals_its_steps_one_by_one(kind):
    images = random_images(3, 2, 37, 50)
    first = removal(scores(kind, 3, 37, 50), np.linspace(0.03, 0.98, 12))
    steps = list(impute_sequence(images, first, 12, noise=0, seed=0, image_ids="abc"))
    assert len(steps) == 12
    for step, imputed in enumerate(steps):
        removed = first <= step
        torch.testing.assert_close(imputed, impute(images, removed), atol=3e-6, rtol=0)
        remaining = ~removed[:, None].expand_as(images)
        assert torch.equal(imputed[remaining], images[remaining])


@pytest.fixture
def threads():
    """Set the number of threads, and restore it afterwards."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize("kind", ["blob", "scattered"])
@pytest.mark.parametrize(
    ("size", "steps", "values"),
    [(32, 7, 10_000), (33, 5, None), (64, 5, 40_000), pytest.param(224, 7, None, marks=pytest.mark.slow)],
)
def test_no_bit_depends_on_other_images_or_threads(kind, size, steps, values, threads, monkeypatch):
    monkeypatch.setattr(road, "VALUES_ON_CPU", values or road.VALUES_ON_CPU)
    monkeypatch.setattr(road, "VALUES_IN_THREADS", 0)
    names = "abc" if size < 224 else "ab"
    images = random_images(len(names), 3, size, size)
    first = removal(scores(kind, len(names), size, size), np.linspace(0.1, 0.95, steps))
    first[1, size // 2 :] = steps

    def run(order, count):
        threads(count)
        chosen = [names.index(name) for name in order]
        sequence = impute_sequence(images[chosen], first[chosen], steps, seed=5, image_ids=order)
        return torch.stack(list(sequence), 1), impute(images[chosen], first[chosen] <= steps // 2)

    expected = run(names, 1)
    for order, count in ((names, 2), (names[::-1], 1), (names[::-1], 2), *((name, 1 + (name > "a")) for name in names)):
        places = [names.index(name) for name in order]
        for ours, all_of_them in zip(run(order, count), expected, strict=True):
            assert torch.equal(ours, all_of_them[places]), (order, count)


def test_images_with_no_or_all_pixels_removed_are_imputed_among_others():
    images, first = random_images(3, 3, 32, 32), removal(scores("blob", 3, 32, 32), [0.2, 0.6, 0.95])
    first[0], first[1] = 3, torch.arange(32)[:, None] // 30
    steps = list(impute_sequence(images, first, 3, noise=0, seed=0, image_ids="abc"))
    single = list(impute_sequence(images[2:], first[2:], 3, noise=0, seed=0, image_ids="c"))
    for step, imputed in enumerate(steps):
        assert torch.equal(imputed[0], images[0])
        assert torch.equal(imputed[2], single[step][0])
        if step:
            torch.testing.assert_close(imputed[1], images[1].mean((1, 2), keepdim=True).expand(3, 32, 32))


def test_the_number_of_threads_is_unchanged(threads, monkeypatch):
    monkeypatch.setattr(road, "VALUES_ON_CPU", 10_000)
    monkeypatch.setattr(road, "VALUES_IN_THREADS", 0)
    images, first = random_images(2, 3, 32, 32), removal(scores("blob", 2, 32, 32), np.linspace(0.1, 0.9, 7))
    for count in (2, 1):
        threads(count)
        sequence = impute_sequence(images, first, 7, seed=0, image_ids="ab")
        for _ in range(5):
            next(sequence)
            assert torch.get_num_threads() == count
            # A number of threads that the caller sets between two steps takes effect.
            count = 3 - count
            threads(count)
        sequence.close()
        assert torch.get_num_threads() == count
    monkeypatch.setattr(_multigrid, "CYCLES", 1)
    threads(2)
    with pytest.raises(HeatproofError, match="not solved"):
        next(impute_sequence(images, first, 7, seed=0, image_ids="ab"))
    assert torch.get_num_threads() == 2


def test_gradients_and_inference_mode_change_nothing(monkeypatch):
    monkeypatch.setattr(road, "VALUES_ON_CPU", 10_000)
    images, first = random_images(2, 3, 32, 32), removal(scores("blob", 2, 32, 32), np.linspace(0.1, 0.9, 6))
    expected = list(impute_sequence(images, first, 6, seed=0, image_ids="ab"))
    sequence = impute_sequence(images.clone().requires_grad_(), first, 6, seed=0, image_ids="ab")
    for step, plain in enumerate(expected):
        with torch.inference_mode(step // 2 != 1):
            imputed = next(sequence)
        assert not imputed.requires_grad
        assert torch.equal(imputed, plain)
    assert not impute(images.clone().requires_grad_(), first <= 2).requires_grad


def test_noise_is_drawn_once_for_each_image_on_removed_pixels():
    images, first = random_images(2, 3, 32, 32), removal(scores("blob", 2, 32, 32), [0.3, 0.7])

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


def test_a_completely_removed_image_becomes_its_mean():
    images, removed = random_images(2, 3, 16, 16), torch.ones(2, 16, 16, dtype=torch.bool)
    removed[1, :4] = False
    imputed = impute(images, removed)
    torch.testing.assert_close(imputed[0], images[0].mean((1, 2), keepdim=True).expand(3, 16, 16))
    torch.testing.assert_close(imputed[1], impute(images[1:], removed[1:])[0], atol=1e-6, rtol=0)


def test_a_constant_image_stays_constant():
    images = torch.full((1, 3, 37, 50), 0.7)
    removed = removal(scores("blob", 1, 37, 50), [0.9]) <= 0
    torch.testing.assert_close(impute(images, removed), images, atol=1e-6, rtol=0)


def test_a_ramp_is_continued_through_a_hole():
    ramp = torch.linspace(-1, 1, 37)[:, None] + torch.linspace(0, 3, 50)
    removed = torch.zeros(1, 37, 50, dtype=torch.bool)
    removed[0, 6:30, 9:41] = True
    spoilt = torch.where(removed[:, None], 2.0, ramp[None, None])
    torch.testing.assert_close(impute(spoilt, removed)[0, 0], ramp, atol=5e-6, rtol=0)


def test_an_unsolved_system_is_an_error(monkeypatch):
    images, removed = random_images(1, 3, 37, 50), removal(scores("blob", 1, 37, 50), [0.9]) <= 0
    with pytest.raises(HeatproofError, match="finer than single precision"):
        impute(images, removed, tolerance=1e-8)
    monkeypatch.setattr(_multigrid, "CYCLES", 1)
    with pytest.raises(HeatproofError, match=r"after 6 cycles the error is bounded by .* raise the tolerance"):
        impute(images, removed, tolerance=1e-6)


def test_an_image_without_removed_pixels_is_returned():
    images = random_images(1, 3, 8, 8)
    assert list(impute_sequence(images, torch.zeros(1, 8, 8, dtype=torch.int64), 0, seed=0, image_ids="a")) == []
    assert torch.equal(impute(images, torch.zeros(1, 8, 8, dtype=torch.bool)), images)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_values_that_are_not_finite_are_refused(value):
    images = random_images(2, 1, 8, 8)
    images[1, 0, 0, 0] = value
    with pytest.raises(HeatproofError, match="finite"):
        impute(images, torch.ones(2, 8, 8, dtype=torch.bool))
    with pytest.raises(HeatproofError, match="finite"):
        next(impute_sequence(images, torch.zeros(2, 8, 8, dtype=torch.int64), 1, seed=0, image_ids="ab"))

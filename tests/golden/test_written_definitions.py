"""Soundness and completeness against a second implementation of the papers' definitions, on maps of integers."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import nn

import heatproof
from heatproof.metrics.soundness import false_attribution

COUNT, SIDE = 12, 8
TENTHS = [Fraction(tenth, 10) for tenth in range(1, 10)]
SHARES = (0.05, 0.2, 0.35, 0.5, 0.8, 0.95)


@pytest.fixture(scope="module")
def problem():
    generator = torch.Generator().manual_seed(2)
    images = torch.rand(COUNT, 3, SIDE, SIDE, generator=generator) - 0.5
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * SIDE**2, 3)).eval()
    with torch.no_grad():
        model[1].weight.copy_(torch.randn(3, 3 * SIDE**2, generator=generator))
        return model, images, model(images).argmax(1)


def eight_bits(seed):
    """Return maps with few grey levels, so that many pixels equal a threshold; one image has an offset."""
    maps = np.random.default_rng(seed).integers(0, 11, (COUNT, SIDE, SIDE)) * 25
    maps[:, 0, 0], maps[:, 0, 1] = 0, 250
    maps[1] = maps[1] // 2 + 100
    return maps.astype(np.uint8)


def is_correct(model, images, labels, visible):
    visible_images = images * torch.from_numpy(visible)[:, None]
    with torch.no_grad():
        return (model(visible_images).argmax(1) == labels).numpy()


def written_completeness(model, images, labels, maps):
    """Compute algorithm 4 on maps that are first scaled to [0, 1], as the authors do."""
    scores, intact = [], is_correct(model, images, labels, np.ones(maps.shape, dtype=bool))
    for threshold in TENTHS[::-1]:
        visible = np.ones(maps.shape, dtype=bool)
        for row, image_map in enumerate(maps):
            values = image_map.ravel().tolist()
            low, high = min(values), max(values)
            above = [Fraction(value - low, high - low) > threshold for value in values]
            visible[row] = ~np.array(above).reshape(SIDE, SIDE)
        scores.append(intact.astype(float) - is_correct(model, images, labels, visible))
    return np.stack(scores, axis=1)


def written_soundness(model, images, labels, maps, level, tolerance=Fraction(1, 100)):
    """Compute algorithm 3 with accuracies as numbers of correct images."""
    count = len(maps)
    falling = [
        sorted(range(SIDE**2), key=lambda pixel, image_map=image_map: (-int(image_map.flat[pixel]), pixel))
        for image_map in maps
    ]
    false, number_before, right_before = [0] * count, 0, 0
    for share in SHARES[::-1]:
        number = SIDE**2 - int(SIDE**2 * share)
        visible = np.zeros((count, SIDE**2), dtype=bool)
        for row, order in enumerate(falling):
            visible[row, order[:number]] = True
        hits = int(is_correct(model, images, labels, visible.reshape(maps.shape)).sum())
        useless = Fraction(hits - right_before, count) <= tolerance
        ratios = []
        for row, order in enumerate(falling):
            values = [int(maps[row].flat[pixel]) for pixel in order]
            if useless:
                false[row] += sum(values[number_before:number])
            ratios.append((sum(values[:number]) - false[row]) / sum(values[:number]))
        if hits >= level * count:
            return ratios
        number_before, right_before = number, hits
    return [np.nan] * count


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.float32, np.float64])
def test_completeness_equals_its_written_definition(problem, seed, dtype):
    maps = eight_bits(seed)
    result = heatproof.evaluate("completeness", *problem, maps.astype(dtype), imputation="baseline")
    assert np.array_equal(result["completeness"], written_completeness(*problem, maps))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_soundness_equals_its_written_definition(problem, seed, dtype):
    maps = eight_bits(seed)
    result = heatproof.evaluate(
        "soundness", *problem, maps.astype(dtype), imputation="baseline", ties="index", fractions=SHARES, level=0.7
    )
    assert result["valid"].all()
    assert np.array_equal(result["score"], written_soundness(*problem, maps, 0.7))


def test_soundness_of_logits_compares_the_mean_with_the_start(problem):
    """The gain is that of each image, but counting begins when the mean of all images is above the start."""
    maps, (model, images, labels), start, tolerance = eight_bits(0), problem, 0.5, 0.4
    options = {"fractions": SHARES, "imputation": "baseline", "ties": "index", "output": "logit"}
    result = heatproof.evaluate("soundness", *problem, maps, start=start, threshold=tolerance, **options)
    falling = np.argsort(-maps.reshape(COUNT, -1).astype(int), axis=1, kind="stable")
    values = np.take_along_axis(maps.reshape(COUNT, -1).astype(float), falling, axis=1)
    false, before, last, expected = np.zeros(COUNT), 0, np.zeros(COUNT), []
    for share in SHARES[::-1]:
        number = SIDE**2 - int(SIDE**2 * share)
        visible = np.zeros((COUNT, SIDE**2), dtype=bool)
        np.put_along_axis(visible, falling[:, :number], True, axis=1)
        with torch.no_grad():
            outputs = model(images * torch.from_numpy(visible).reshape(COUNT, 1, SIDE, SIDE))
        logits = outputs[torch.arange(COUNT), labels].double().numpy()
        counted = (logits - last <= tolerance) & (logits.mean() > start)
        false += np.where(counted, values[:, before:number].sum(1), 0)
        expected.append(np.clip(1 - false / values[:, :number].sum(1), 0, 1))
        before, last = number, logits
    np.testing.assert_allclose(result["soundness"].T, expected, rtol=0, atol=1e-12)
    # Some images are below the start while the mean is above it.
    assert ((logits < start) & (logits.mean() > start)).any()


def test_repeated_images_do_not_change_soundness(problem):
    maps, (model, images, labels) = eight_bits(0), problem
    options = {"fractions": SHARES, "imputation": "baseline", "ties": "index", "level": 0.7, "threshold": 0.1}
    once = heatproof.evaluate("soundness", *problem, maps, **options)["score"]
    doubled = images.repeat(2, 1, 1, 1), labels.repeat(2), np.tile(maps, (2, 1, 1))
    assert np.array_equal(np.tile(once, 2), heatproof.evaluate("soundness", model, *doubled, **options)["score"])


def test_a_gain_equal_to_the_tolerance_counts_as_none():
    """With 100 images, each image is exactly the tolerance of 0.01; differences of floats are above or below it."""
    rising = np.arange(101) / 100
    _, after = false_attribution(rising, np.ones((1, 101)), 0.01, None)
    assert after[0].tolist() == list(range(1, 102))


def test_too_few_images_for_the_tolerance_cause_a_warning(problem):
    with pytest.warns(UserWarning, match="at least 100 images"):
        heatproof.evaluate("soundness", *problem, eight_bits(0), imputation="baseline", fractions=SHARES)


def test_completeness_is_invariant_to_offset_and_scale(problem):
    maps = np.random.default_rng(0).random((COUNT, SIDE, SIDE))
    scores = [
        heatproof.evaluate("completeness", *problem, offset_maps, imputation="baseline")["completeness"]
        for offset_maps in (maps, maps + 1, maps * 3)
    ]
    assert all(np.array_equal(scores[0], score) for score in scores[1:])
    unscaled = heatproof.evaluate("completeness", *problem, maps + 1, imputation="baseline", rescale=False)
    assert not np.array_equal(scores[0], unscaled["completeness"])


def test_completeness_of_a_constant_map_is_undefined(problem):
    maps = np.ones((COUNT, SIDE, SIDE))
    assert not heatproof.evaluate("completeness", *problem, maps)["valid"].any()

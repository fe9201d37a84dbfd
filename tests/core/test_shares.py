"""Counts of pixels, patches and steps for shares that fall on a count, in every place that turns one into the other."""

import math
from fractions import Fraction

import numpy as np
import pytest

from heatproof.core.perturb.class_masks import class_masks
from heatproof.core.perturb.pic import counts_above_quantile, quantile_masks
from heatproof.core.sequences import Perturbation
from heatproof.core.shares import count_of_share, exact_share
from heatproof.core.subsets import SubsetMasks

# Shares as users write or compute them, and the fractions that they stand for.
SHARES = {
    "a hundredth more than the float": (0.29, Fraction(29, 100)),
    "a single": (np.float32(0.29), Fraction(29, 100)),
    "a third": (1 / 3, Fraction(1, 3)),
    "a difference": (1 - 0.8, Fraction(1, 5)),
    "a sum": (0.1 + 0.2, Fraction(3, 10)),
    "an exponent": (1e-5, Fraction(1, 100_000)),
    "a whole number": (1, Fraction(1)),
    "one pixel of many": (1 / 2**21, Fraction("4.76837158203125e-07")),
    "digits of no simple fraction": (0.12345678912345, Fraction("0.12345678912345")),
}


@pytest.mark.parametrize("kind", SHARES)
def test_a_share_is_the_fraction_that_it_stands_for(kind):
    share, fraction = SHARES[kind]
    assert exact_share(share) == fraction


@pytest.mark.parametrize(("rounding", "counts"), [(math.floor, [28, 29]), (math.ceil, [29, 30]), (round, [28, 30])])
def test_only_a_share_between_two_counts_is_rounded(rounding, counts):
    assert [count_of_share(share, 100, rounding) for share in (0.285, 0.295)] == counts
    assert count_of_share(0.29, 100, rounding) == 29


HUNDREDTHS = [step / 100 for step in range(1, 100)]
# Number of pixels that each place changes, removes or keeps, for a share of an image of `side` times `side` pixels.
PLACES = {
    "sequence": lambda side, share: Perturbation(fractions=(share,)).counts(side, side)[0],
    "subsets": lambda side, share: SubsetMasks(("a",), side, side, (share,), 1, 0).counts[0],
    "class masks": lambda side, share: class_masks(np.zeros(1, int), side, share=share, block=0).sum(),
}


@pytest.mark.parametrize("side", [10, 20, 300])
@pytest.mark.parametrize("kind", PLACES)
def test_hundredths_of_an_image_are_whole_numbers_of_pixels(kind, side):
    counts = [PLACES[kind](side, share) for share in HUNDREDTHS]
    assert counts == [side * side * step // 100 for step in range(1, 100)]


@pytest.mark.parametrize("pixels", [101, 401])
def test_a_quantile_that_is_a_pixel_selects_this_pixel(pixels):
    wanted = [1 + (pixels - 1) * step // 100 for step in range(1, 100)]
    assert counts_above_quantile(pixels, HUNDREDTHS).tolist() == wanted
    rising = np.random.default_rng(0).permutation(pixels).reshape(1, pixels).astype(np.float64)
    assert quantile_masks(rising, HUNDREDTHS).sum((1, 2)).tolist() == wanted

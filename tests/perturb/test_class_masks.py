"""Masks of the centre, with and without a square that encodes the class."""

import numpy as np
import pytest

from heatproof.core.perturb.class_masks import class_masks
from heatproof.errors import HeatproofError

LABELS = np.arange(12)


def test_both_kinds_of_masks_remove_the_same_centre_and_number_of_pixels():
    middle, both = (class_masks(LABELS, 32, share=0.7, block=block) for block in (0, 3))
    for masks in (middle, both):
        assert set(masks.sum(axis=(1, 2))) == {round(0.7 * 32**2)}
        assert masks[:, 6:26, 6:26].all()
    assert (middle == middle[0]).all()
    # The masks agree except for the square, and as many pixels at the rim of the disc.
    assert (middle != both).sum(axis=(1, 2)).max() <= 2 * 9


def test_the_square_encodes_the_class():
    both = class_masks(LABELS, 32, share=0.7, block=3)
    outside = both & ~class_masks(LABELS, 32, share=0.7)
    assert (outside.sum(axis=(1, 2)) == 9).all()
    assert len({mask.tobytes() for mask in outside}) == 12
    assert outside.sum(axis=0).max() == 1, "no two squares overlap"
    again = class_masks(LABELS[::-1], 32, share=0.7, block=3)
    np.testing.assert_array_equal(again[::-1], both)


def test_a_mask_can_be_the_square_only():
    masks = class_masks(LABELS, 32, share=49 / 1024, block=7)
    assert (masks.sum(axis=(1, 2)) == 49).all()
    assert masks.sum(axis=0).max() == 1


@pytest.mark.parametrize(
    ("label", "options"), [(12, {"block": 3}), (0, {"block": 9}), (0, {"block": 3, "share": 0.001})]
)
def test_labels_and_squares_that_do_not_fit_are_refused(label, options):
    with pytest.raises(HeatproofError):
        class_masks(np.array([label]), 32, **options)

"""Digits whose class is encoded only by a watermark."""

import numpy as np
import pytest

from heatproof.core.dataset import HasParts
from heatproof.datasets.digits import digits
from heatproof.datasets.registry import DATASETS
from heatproof.datasets.watermarked import BOX, CLASSES, HEIGHT, digit_image, stripes_of, watermarked

COUNT = 60


@pytest.fixture(scope="module", params=["number", "stripes"])
def data(request):
    return watermarked(seed=0, mark=request.param)


def test_it_meets_the_requirements_of_every_dataset(sound, data):
    assert len(sound(data, 32)) == 1797
    assert DATASETS["watermarked"].count() == len(data.splits["evaluation"])
    assert isinstance(data, HasParts)


def test_a_blank_canvas_has_only_the_mark():
    data, marked = watermarked(seed=0, canvas="blank"), watermarked(seed=0)
    inside = marked.part_masks("evaluation", 0, COUNT).any(1, keepdims=True)
    assert not data.plain("evaluation", 0, COUNT).any()
    np.testing.assert_array_equal(
        data.images("evaluation", 0, COUNT), np.where(inside, marked.images("evaluation", 0, COUNT), 0)
    )


def test_labels_depend_on_the_image_id_and_not_on_the_digit(data):
    host = digits(seed=0)
    labels = data.splits["train"].labels
    assert data.splits["train"].ids == host.splits["train"].ids
    # The original digit agrees with the label for one image in ten.
    assert np.mean(labels == host.splits["train"].labels) < 0.2
    assert np.bincount(labels, minlength=CLASSES).min() > 50
    smaller = watermarked(seed=0, evaluation=0.1)
    label_of = dict(zip(data.splits["train"].ids, labels, strict=True))
    shared = [
        (label_of[i], label) for i, label in zip(*vars(smaller.splits["train"]).values(), strict=True) if i in label_of
    ]
    assert all(ours == theirs for ours, theirs in shared)


def test_a_watermark_changes_only_pixels_of_its_mask(data):
    images, plain, masks = (read("evaluation", 0, COUNT) for read in (data.images, data.plain, data.part_masks))
    changed = (images != plain).any(axis=1)
    where = masks.any(axis=1)
    assert not (changed & ~where).any()
    assert masks.sum(axis=1).max() == 1
    assert where.any(axis=(1, 2)).all(), "every class has a watermark"
    without = data.without_part("evaluation", 0, COUNT)
    assert without.shape == (COUNT, len(data.part_names), 3, 32, 32)
    for part in range(len(data.part_names)):
        gone = np.where(masks[:, part, None], plain, images)
        np.testing.assert_array_equal(without[:, part], gone)


def test_the_number_in_an_image_is_its_label():
    data = watermarked(seed=0)
    images, masks = data.images("evaluation", 0, COUNT), data.part_masks("evaluation", 0, COUNT)[:, 0]
    rendered = np.array([digit_image(label) for label in range(CLASSES)])
    assert len({number.tobytes() for number in rendered}) == CLASSES
    places = set()
    for image, mask, label in zip(images, masks, data.splits["evaluation"].labels, strict=False):
        seen = image[0][mask].reshape(BOX, BOX)
        np.testing.assert_array_equal(seen, rendered[label])
        places.add(tuple(np.argwhere(mask)[0]))
    assert len(places) > COUNT / 2


def test_stripes_are_the_binary_digits_of_the_label_plus_one():
    assert [stripes_of(label) for label in (0, 5, 9)] == [[3], [1, 2], [0, 2]]
    data = watermarked(seed=0, mark="stripes")
    images = data.images("evaluation", 0, COUNT)
    white = (images == 1).all(axis=(1, 3)).reshape(COUNT, 4, HEIGHT).all(axis=2)
    codes = white @ np.array([8, 4, 2, 1])
    np.testing.assert_array_equal(codes, data.splits["evaluation"].labels[:COUNT] + 1)

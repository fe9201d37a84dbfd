"""Digits whose class is encoded only by a watermark."""

import numpy as np
import pytest

from heatproof.data.digits import digits
from heatproof.data.registry import DATASETS, HasParts
from heatproof.data.watermarked import BOX, CLASSES, HEIGHT, number_picture, stripes_of, watermarked

SOME = 60


@pytest.fixture(scope="module", params=["number", "stripes"])
def data(request):
    return watermarked(seed=0, mark=request.param)


def test_it_keeps_what_every_dataset_has_to_keep(sound, data):
    assert len(sound(data, 32)) == 1797
    assert DATASETS["watermarked"].count() == len(data.splits["evaluation"])
    assert isinstance(data, HasParts)


def test_on_a_blank_canvas_the_mark_is_all_there_is():
    data, marked = watermarked(seed=0, canvas="blank"), watermarked(seed=0)
    inside = marked.part_masks("evaluation", 0, SOME).any(1, keepdims=True)
    assert not data.plain("evaluation", 0, SOME).any()
    np.testing.assert_array_equal(
        data.images("evaluation", 0, SOME), np.where(inside, marked.images("evaluation", 0, SOME), 0)
    )


def test_labels_are_new_ones_and_known_to_the_image_alone(data):
    host = digits(seed=0)
    labels = data.splits["train"].labels
    assert data.splits["train"].ids == host.splits["train"].ids
    # The original digit agrees with the label for one image in ten.
    assert np.mean(labels == host.splits["train"].labels) < 0.2
    assert np.bincount(labels, minlength=CLASSES).min() > 50
    other = watermarked(seed=0, evaluation=0.1)
    known = dict(zip(data.splits["train"].ids, labels, strict=True))
    shared = [(known[i], label) for i, label in zip(*vars(other.splits["train"]).values(), strict=True) if i in known]
    assert all(ours == theirs for ours, theirs in shared)


def test_a_watermark_is_where_its_mask_says_and_nowhere_else(data):
    images, plain, masks = (read("evaluation", 0, SOME) for read in (data.images, data.plain, data.part_masks))
    changed = (images != plain).any(axis=1)
    where = masks.any(axis=1)
    assert not (changed & ~where).any()
    assert masks.sum(axis=1).max() == 1
    assert where.any(axis=(1, 2)).all(), "every class has a watermark"
    without = data.without_part("evaluation", 0, SOME)
    assert without.shape == (SOME, len(data.part_names), 3, 32, 32)
    for part in range(len(data.part_names)):
        gone = np.where(masks[:, part, None], plain, images)
        np.testing.assert_array_equal(without[:, part], gone)


def test_the_number_can_be_read_off_the_image():
    data = watermarked(seed=0)
    images, masks = data.images("evaluation", 0, SOME), data.part_masks("evaluation", 0, SOME)[:, 0]
    pictures = np.array([number_picture(label) for label in range(CLASSES)])
    assert len({picture.tobytes() for picture in pictures}) == CLASSES
    places = set()
    for image, mask, label in zip(images, masks, data.splits["evaluation"].labels, strict=False):
        seen = image[0][mask].reshape(BOX, BOX)
        np.testing.assert_array_equal(seen, pictures[label])
        places.add(tuple(np.argwhere(mask)[0]))
    assert len(places) > SOME / 2


def test_stripes_are_the_binary_digits_of_the_label_plus_one():
    assert [stripes_of(label) for label in (0, 5, 9)] == [[3], [1, 2], [0, 2]]
    data = watermarked(seed=0, mark="stripes")
    images = data.images("evaluation", 0, SOME)
    white = (images == 1).all(axis=(1, 3)).reshape(SOME, 4, HEIGHT).all(axis=2)
    codes = white @ np.array([8, 4, 2, 1])
    np.testing.assert_array_equal(codes, data.splits["evaluation"].labels[:SOME] + 1)

"""Synthetic creatures with known parts."""

import tracemalloc

import numpy as np
import pytest

from heatproof.core.dataset import HasParts
from heatproof.datasets._creatures import NAMES, SHAPES, VARIANTS, VARIANTS_EACH, Creature
from heatproof.datasets.parts import MOST_CLASSES, class_parts, parts
from heatproof.datasets.registry import DATASETS
from heatproof.errors import HeatproofError
from heatproof.workflow.config.files import default_config, merge
from heatproof.workflow.plan.validate import make_plan

COUNT = 40


@pytest.fixture(scope="module")
def data():
    return parts(seed=0)


@pytest.fixture(scope="module")
def samples(data):
    """Evaluation images, their masks, and the images without each part."""
    return tuple(read("evaluation", 0, COUNT) for read in (data.images, data.part_masks, data.without_part))


def test_it_meets_the_requirements_of_every_dataset(sound):
    counts = {"train_images": 12, "validation_images": 5, "evaluation_images": 7}
    assert len(sound(parts(seed=0, size=20, **counts), 20)) == 24
    assert DATASETS["parts"].count(**counts) == 7
    assert DATASETS["parts"].count() == 1000
    assert DATASETS["parts"].image_size({}) == (32, 32)


def test_only_datasets_with_parts_declare_them(data):
    assert [name for name, entry in DATASETS.items() if entry.parts] == ["funny_birds", "parts", "watermarked"]
    assert isinstance(data, HasParts)
    assert not isinstance(DATASETS["digits"].load(seed=0), HasParts)
    assert data.part_names == NAMES


@pytest.mark.parametrize("size", [16, 32, 50])
def test_masks_are_disjoint_and_inside_the_image(size):
    dataset = parts(seed=1, size=size)
    masks = dataset.part_masks("evaluation", 0, COUNT)
    assert masks.shape == (COUNT, 5, size, size)
    assert masks.dtype == bool
    assert masks.sum(axis=1).max() == 1
    assert masks.any(axis=(2, 3)).all(), "every part of a whole image is visible"
    if size >= 32:
        edge = masks.copy()
        edge[..., 1:-1, 1:-1] = False
        assert not edge.any(), "no part is cut off by the frame"


def test_removing_a_part_changes_only_pixels_of_its_mask(samples):
    """Therefore, no pixel shows two parts."""
    images, masks, removed = samples
    changed = (removed != images[:, None]).any(axis=2)
    assert not (changed & ~masks).any()
    # Some pixels of a part have the colour of what is behind it, up to rounding.
    assert (changed.sum(axis=(2, 3)) >= 0.98 * masks.sum(axis=(2, 3))).all()
    # The uncovered region is a similar image: as bright as the rest, and not uniform.
    contrast = np.array([removed[n, k][:, masks[n, k]].std(axis=1).mean() for n in range(COUNT) for k in range(5)])
    assert contrast.min() > 0.005


def test_the_region_behind_a_part_is_that_of_the_image_without_it():
    """The mark is in front of the body, the tail in front of the background."""
    creature = Creature(32, np.zeros(5, dtype=int), np.random.default_rng(0))
    nothing = creature.image(range(5))
    masks = creature.masks()
    for part in range(5):
        without = creature.image({part})
        np.testing.assert_array_equal(without[:, masks[part]], nothing[:, masks[part]])
        assert not creature.masks({part})[part].any()
    brightness = nothing.mean(axis=0)
    mark, tail = (brightness[masks[NAMES.index(name)]].mean() for name in ("mark", "tail"))
    assert mark > tail + 0.1


def test_an_image_follows_from_seed_and_id_alone(data):
    smaller = parts(seed=0, train_images=3, validation_images=3, evaluation_images=9)
    for split, stop in (("train", 3), ("evaluation", 9)):
        assert smaller.splits[split].ids == data.splits[split].ids[:stop]
        np.testing.assert_array_equal(smaller.images(split, 1, stop), data.images(split, 1, stop))
    np.testing.assert_array_equal(smaller.part_masks("evaluation", 5, 9), data.part_masks("evaluation", 0, 9)[5:])
    np.testing.assert_array_equal(smaller.without_part("evaluation", 5, 9), data.without_part("evaluation", 0, 9)[5:])
    assert (parts(seed=1).images("evaluation", 0, 1) != data.images("evaluation", 0, 1)).any()
    assert (data.images("train", 0, 1) != data.images("evaluation", 0, 1)).any()
    assert data.images("evaluation", 4, 4).shape == (0, 3, 32, 32)


@pytest.mark.parametrize("split", ["train", "validation"])
def test_half_of_the_training_images_lack_one_part(data, split):
    visible = data.part_masks(split, 0, 300).any(axis=(2, 3))
    num_missing = 5 - visible.sum(axis=1)
    assert set(num_missing) == {0, 1}
    # The standard deviation of a fraction of 300 draws is 0.03.
    assert abs(num_missing.mean() - 0.5) < 0.12
    assert (~visible).any(axis=0).all(), "each part is missing somewhere"
    row = int(np.flatnonzero(num_missing)[0])
    part = int(np.flatnonzero(~visible[row])[0])
    removed = data.without_part(split, row, row + 1)[0]
    np.testing.assert_array_equal(removed[part], data.images(split, row, row + 1)[0])


@pytest.mark.parametrize(("missing", "share"), [(0, 0.0), (1, 1.0)])
def test_the_share_without_a_part_is_an_option(missing, share):
    dataset = parts(seed=0, size=16, missing=missing)
    assert (5 - dataset.part_masks("train", 0, 30).any(axis=(2, 3)).sum(axis=1)).mean() == share
    assert dataset.part_masks("evaluation", 0, 5).any(axis=(2, 3)).all()


def test_classes_differ_without_any_one_part():
    """Therefore, the label of an image without a part is correct."""
    table = class_parts()
    assert table.shape == (MOST_CLASSES, 5)
    for part in range(5):
        rest = np.delete(table, part, axis=1)
        assert len(np.unique(rest, axis=0)) == MOST_CLASSES
    # Several classes share each variant, so that no single part determines the class.
    counts = np.array([np.bincount(table[:10, part], minlength=VARIANTS_EACH) for part in range(5)])
    assert counts.min() >= 2
    assert set(class_parts()[0]) == {0}
    names = parts(seed=0, classes=MOST_CLASSES).class_names
    assert len(set(names)) == MOST_CLASSES
    assert names[0] == "fork saw spike stilts disc"


def test_the_parts_determine_the_class(data):
    """A nearest-mean classifier of each part's variant uses only its colour and position, from other images."""
    masks, images = data.part_masks("evaluation", 0, 120), data.images("evaluation", 0, 120)
    colour = (images[:, None] * masks[:, :, None]).sum((3, 4)) / masks.sum((2, 3))[..., None]
    labels = data.splits["evaluation"].labels[:120]
    variants = class_parts()[labels]
    read = np.empty_like(variants)
    for part in range(5):
        means = np.stack([colour[:60, part][variants[:60, part] == v].mean(0) for v in range(VARIANTS_EACH)])
        read[:, part] = np.square(colour[:, part, None] - means).sum(2).argmin(1)
    agreeing = (read[60:, None] == class_parts()[None, : data.num_classes]).sum(2)
    assert (agreeing.argmax(1) == labels[60:]).all()


def test_every_variant_looks_different():
    """In one pose on one background, variants differ by mask or colour."""
    for part, name in enumerate(NAMES):
        assert len(VARIANTS[name]) == len(set(VARIANTS[name])) == VARIANTS_EACH
        assert set(VARIANTS[name]) <= set(SHAPES)
        masks = []
        for variant in range(VARIANTS_EACH):
            word = np.zeros(5, dtype=int)
            word[part] = variant
            masks.append(Creature(32, word, np.random.default_rng(0)).masks()[part])
        for first in range(VARIANTS_EACH):
            for second in range(first):
                assert (masks[first] ^ masks[second]).sum() >= 6


def test_the_first_labels_of_a_split_are_balanced(data):
    for split in data.splits.values():
        for first in (10, 64, 100):
            counts = np.bincount(split.labels[:first], minlength=10)
            assert counts.max() - counts.min() <= 1


def test_images_are_rendered_on_access():
    tracemalloc.start()
    try:
        dataset = parts(seed=0, evaluation_images=10_000)
        for start in (0, 9_900):
            assert dataset.images("evaluation", start, start + 10).shape == (10, 3, 32, 32)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 16 * 2**20, "ten thousand images are 117 MiB"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"size": 8},
            "The option 'size' of dataset 'parts' must be a whole number of at least 16 and of at most 8192, not 8",
        ),
        (
            {"classes": 51},
            "'classes' of dataset 'parts' must be a whole number of at least 2 and of at most 50, not 51",
        ),
        ({"missing": 1.5}, "'missing' of dataset 'parts' must be a number of at least 0 and of at most 1"),
        ({"evaluation_images": 0}, "'evaluation_images' of dataset 'parts' must be a whole number of at least 1"),
        ({"evaluation_images": 3}, "the evaluation split of 'parts' has 3 images"),
        ({"size": 30}, "The grid 4 in drops does not divide the 30×30 images of 'parts'"),
    ],
)
def test_invalid_options_are_refused(options, message):
    change = {"datasets": [{"parts": options}], "models": ["cifar_resnet20"], "metrics": [], "drops": {"grids": [4]}}
    with pytest.raises(HeatproofError) as raised:
        make_plan(merge(default_config(), {**change, "evaluation": {"images": 8, "accuracy_images": 0}}))
    assert message in str(raised.value)

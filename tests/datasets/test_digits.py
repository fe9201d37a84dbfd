"""scikit-learn's digits as a dataset."""

import importlib.util
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from heatproof.datasets.digits import CLASS_SIZES, _read, digits, enlarge_bilinear, evaluation_size
from heatproof.datasets.registry import DATASETS


@pytest.fixture(scope="module")
def data():
    return digits(seed=0)


@pytest.mark.parametrize("factor", [1, 2, 3, 4])
@pytest.mark.parametrize("shape", [(8, 8), (2, 5), (7, 3)])
def test_enlarging_equals_bilinear_interpolation_of_torch(shape, factor):
    images = np.random.default_rng(0).random((3, *shape), dtype=np.float32)
    expected = torch.nn.functional.interpolate(
        torch.from_numpy(images)[:, None], scale_factor=factor, mode="bilinear", align_corners=False
    )
    np.testing.assert_allclose(enlarge_bilinear(images, factor), expected[:, 0], atol=1e-6)


def test_class_sizes_are_those_of_scikit_learn():
    assert tuple(np.bincount(load_digits().target)) == CLASS_SIZES


def test_the_pixels_are_those_of_scikit_learn_without_importing_it():
    raw = load_digits()
    pixels, labels = _read()
    np.testing.assert_array_equal(pixels, raw.images)
    np.testing.assert_array_equal(labels, raw.target)
    code = (
        "import sys; from heatproof.datasets.digits import digits; digits(seed=0); sys.exit('sklearn' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_scikit_learn_loads_the_digits_if_their_file_is_not_found(monkeypatch, tmp_path):
    read = _read()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: SimpleNamespace(origin=str(tmp_path / "__init__.py")))
    for ours, theirs in zip(_read(), read, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("options", [{}, {"evaluation": 0.5}, {"evaluation": 0.123, "validation": 0.05}])
def test_the_count_without_loading_equals_the_size_of_the_split(options):
    assert DATASETS["digits"].count is evaluation_size
    splits = digits(seed=3, **options).splits
    assert evaluation_size(**options) == len(splits["evaluation"])
    assert sum(map(len, splits.values())) == sum(CLASS_SIZES)


@pytest.mark.parametrize("split", ["train", "validation", "evaluation"])
def test_images_are_float32_from_zero_to_one(data, split):
    count = len(data.splits[split])
    images = data.images(split, 0, count)
    assert images.shape == (count, 3, *DATASETS["digits"].size)
    assert images.dtype == np.float32
    assert images.min() >= 0
    assert images.max() <= 1
    assert images.flags.writeable
    np.testing.assert_array_equal(images[:, 0], images[:, 2])


def test_an_image_does_not_depend_on_the_images_read_with_it(data):
    together = data.images("evaluation", 0, 9)
    for row in range(9):
        np.testing.assert_array_equal(data.images("evaluation", row, row + 1)[0], together[row])


def test_images_labels_and_ids_belong_together(data):
    raw = load_digits()
    split = data.splits["evaluation"]
    rows = [int(image_id.removeprefix("digits-")) for image_id in split.ids]
    np.testing.assert_array_equal(split.labels, raw.target[rows])
    # The mean of an image changes so little by enlarging that it identifies the image.
    means = data.images("evaluation", 0, len(split)).mean((1, 2, 3))
    np.testing.assert_allclose(means, raw.images[rows].mean((1, 2)) / 16, atol=0.02)


def test_ids_do_not_depend_on_seed_or_shares(data):
    """Random draws depend on the ids."""
    reseeded = digits(seed=9, evaluation=0.4)
    assert {i for s in data.splits.values() for i in s.ids} == {i for s in reseeded.splits.values() for i in s.ids}

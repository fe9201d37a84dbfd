"""Tiny stand-ins for datasets, in their formats on disk."""

import os
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

# Files that this process has opened for reading, and folders that it has listed, since the test began.
READ: set[str] = set()


def watch(event: str, arguments: tuple) -> None:
    listed = event in ("os.listdir", "os.scandir")
    if (listed or (event == "open" and not arguments[2] & (os.O_WRONLY | os.O_RDWR))) and arguments[0] is not None:
        READ.add(os.fsdecode(arguments[0]) if not isinstance(arguments[0], int) else "")


sys.addaudithook(watch)


@pytest.fixture(autouse=True)
def _nothing_read_yet():
    READ.clear()


def named_files(dataset) -> set[str]:
    """Return all files and folders that a dataset names."""
    images = [files_of_image for split in dataset.splits for files_of_image in dataset.image_files(split)]
    files = [
        path
        for files_of_image in images
        for path in (files_of_image if isinstance(files_of_image, tuple) else [files_of_image])
    ]
    return set(map(str, [*files, *dataset.list_files, *dataset.shared_files]))


def pixels(key: int, height: int = 10, width: int = 12) -> np.ndarray:
    """Return a smooth image that is identified by its red value, `key`."""
    image = np.zeros((height, width, 3), dtype=np.uint8)
    image[..., 0] = key
    image[..., 1] = np.linspace(0, 255, width).astype(np.uint8)
    image[..., 2] = np.linspace(255, 0, height).astype(np.uint8)[:, None]
    return image


@pytest.fixture(name="pixels")
def pixels_fixture():
    return pixels


@pytest.fixture
def save():
    """Save one image, with its key as the red value."""

    def save_one(path: Path, key: int = 0, **shape: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        # JPEG preserves a flat channel up to one or two levels.
        Image.fromarray(pixels(key, **shape)).save(path, **({"quality": 100} if path.suffix != ".png" else {}))

    return save_one


@pytest.fixture
def fill(save):
    """Fill class folders with images whose red value is the class number times 20, for 12 classes."""

    def fill_folder(folder: Path, classes: list[str], count: int, ending: str = ".png") -> None:
        for label, name in enumerate(classes):
            for number in range(count):
                save(folder / name / f"{name}_{number:03d}{ending}", 20 * (label % 12))

    return fill_folder


@pytest.fixture
def sound(tmp_path):
    """Check the requirements of every dataset, and return all ids."""

    def check(dataset, side: int) -> set[str]:
        ids = [image_id for split in dataset.splits.values() for image_id in split.ids]
        assert set(dataset.splits) == {"train", "validation", "evaluation"}
        assert len(set(ids)) == len(ids)
        for name, split in dataset.splits.items():
            assert len(split) == len(split.labels) > 0
            assert split.labels.dtype == np.int64
            assert set(split.labels.tolist()) <= set(range(dataset.num_classes))
            together = dataset.images(name, 0, 3)
            assert together.shape == (min(3, len(split)), 3, side, side)
            assert together.dtype == np.float32
            assert together.flags.writeable
            assert 0 <= together.min() < together.max() <= 1
            for row, image in enumerate(together):
                np.testing.assert_array_equal(dataset.images(name, row, row + 1)[0], image)
        for name, split in dataset.splits.items():
            dataset.images(name, 0, len(split))
        if hasattr(dataset, "image_files"):
            unseen = {path for path in READ if Path(path).is_relative_to(tmp_path)} - named_files(dataset)
            assert unseen == set(), "it reads what it does not name, so that a change there would not be seen"
        return set(ids)

    return check

"""Untrusted image folders: every file is used once, in one class and one split, whatever links there are."""

import os

import numpy as np
import pytest
from PIL import Image

from heatproof.datasets.checks import check_dataset
from heatproof.datasets.cifar import cifar10
from heatproof.datasets.elpv import elpv
from heatproof.datasets.food101 import food101
from heatproof.datasets.image_folder import image_folder
from heatproof.datasets.imagenet import imagenet
from heatproof.errors import HeatproofError


@pytest.fixture
def folder(tmp_path):
    """Return a folder with two classes of twelve image files."""
    noise = np.random.default_rng(0)
    for name in ("cat", "dog"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(12):
            image = Image.fromarray(noise.integers(0, 256, (12, 12, 3), dtype=np.uint8))
            image.save(tmp_path / "photos" / name / f"{number}.png")
    return tmp_path / "photos"


def image_ids(root) -> list[str]:
    dataset = image_folder(seed=0, root=str(root), size=8)
    check_dataset(dataset, "photos")
    return [image_id for split in dataset.splits.values() for image_id in split.ids]


def refused(root, message: str) -> None:
    with pytest.raises(HeatproofError, match=message) as caught:
        image_ids(root)
    assert "\n" not in str(caught.value)


def test_a_link_upwards_adds_no_images(folder):
    (folder / "cat" / "again").symlink_to("..")
    (folder / "cat" / "and_again").symlink_to(".")
    assert len(image_ids(folder)) == 24


def test_links_that_point_at_each_other_are_walked_once(folder):
    for name, other in (("a", "b"), ("b", "a")):
        (folder / "cat" / name).mkdir()
        (folder / "cat" / name / "across").symlink_to(f"../{other}")
        (folder / "cat" / name / "up").symlink_to("..")
    (folder / "cat" / "itself").symlink_to("itself")
    assert len(image_ids(folder)) == 24


def test_a_class_that_is_a_link_to_the_dataset_is_refused(folder):
    (folder / "loop").symlink_to(".")
    refused(folder, "class folder .*loop is a link to a folder that contains the dataset")


def test_a_link_out_of_a_class_is_refused(folder, tmp_path):
    (tmp_path / "private").mkdir()
    Image.new("RGB", (12, 12)).save(tmp_path / "private" / "a.png")
    (folder / "cat" / "more").symlink_to(tmp_path / "private")
    refused(folder, "cat/more is a link out of .*link every image instead")


def test_the_same_file_counts_once_in_a_class(folder):
    (folder / "cat" / "z.png").symlink_to("0.png")
    (folder / "cat" / "a").mkdir()
    (folder / "cat" / "a" / "link.png").symlink_to("../1.png")
    ids = image_ids(folder)
    assert len(ids) == 24
    assert "cat/0.png" in ids, "not by the name of a link"


def test_the_same_file_in_two_classes_is_refused(folder):
    (folder / "dog" / "x.png").symlink_to("../cat/0.png")
    refused(folder, r"cat/0\.png and .*dog/x\.png are the same file in two classes: remove one")


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_the_same_file_in_training_and_evaluation_is_refused(folder, tmp_path, link):
    root = tmp_path / "split"
    root.mkdir()
    folder.rename(root / "train")
    for name in ("cat", "dog"):
        (root / "test" / name).mkdir(parents=True)
        Image.new("RGB", (12, 12), (1, 2, 3)).save(root / "test" / name / "own.png")
    link(root / "train" / "cat" / "3.png", root / "test" / "cat" / "x.png")
    refused(root, r"train/cat/3\.png and .*test/cat/x\.png are the same file in two splits")


def test_folders_of_links_are_read(folder, tmp_path):
    """Links to image files, classes that are links, and a root that is a link."""
    farm = tmp_path / "farm"
    (farm / "cat").mkdir(parents=True)
    for number in range(12):
        (farm / "cat" / f"{number}.png").symlink_to(folder / "cat" / f"{number}.png")
    (farm / "dog").symlink_to(folder / "dog")
    (tmp_path / "root").symlink_to(farm)
    assert sorted(image_ids(tmp_path / "root")) == sorted(image_ids(folder))


def test_pipes_and_broken_links_are_refused_before_any_work(folder):
    os.mkfifo(folder / "cat" / "pipe.png")
    refused(folder, r"cat/pipe\.png is a named pipe, not a regular file")
    (folder / "cat" / "pipe.png").unlink()
    (folder / "cat" / "link.png").symlink_to("/dev/zero")
    refused(folder, r"cat/link\.png is a device, not a regular file")
    (folder / "cat" / "link.png").unlink()
    (folder / "cat" / "link.png").symlink_to("nowhere.png")
    refused(folder, r"cat/link\.png is a link that leads nowhere")
    (folder / "cat" / "link.png").unlink()
    os.mkfifo(folder / "cat" / "notes.txt")
    assert len(image_ids(folder)) == 24, "what is not named as a picture is never looked at"


@pytest.mark.parametrize("name", [b"caf\xe9.png", b"caf\xe9"])
def test_names_that_are_not_utf8_are_refused_when_preparing(folder, name):
    path = os.fsencode(folder / "cat") + b"/" + name if name.endswith(b"png") else os.fsencode(folder) + b"/" + name
    if name.endswith(b"png"):
        os.rename(folder / "cat" / "0.png", path)
    else:
        os.rename(folder / "cat", path)
    refused(folder, r"caf\\xe9.* is not UTF-8: rename it")
    with pytest.raises(HeatproofError) as caught:
        image_ids(folder)
    str(caught.value).encode("utf-8")


def test_imagenet_handles_links_as_other_folders_do(folder, tmp_path):
    root = tmp_path / "imagenet"
    root.mkdir()
    folder.rename(root / "train")
    for name in ("cat", "dog"):
        (root / "val" / name).mkdir(parents=True)
        Image.new("RGB", (12, 12), (3, 2, 1)).save(root / "val" / name / "own.png")
    for name in ("cat", "dog"):
        for number in range(12):
            (root / "train" / name / f"{number}.png").rename(root / "train" / name / f"{name}{number}.png")
    (root / "train" / "cat" / "again").symlink_to("../..")
    dataset = imagenet(seed=0, root=str(root), size=8, validation=0.2)
    assert sum(len(dataset.splits[name]) for name in dataset.splits) == 26
    (root / "val" / "cat" / "x.png").symlink_to("../../train/cat/cat0.png")
    with pytest.raises(HeatproofError, match="are the same file in two splits"):
        check_dataset(imagenet(seed=0, root=str(root), size=8, validation=0.2), "imagenet")


def test_lists_that_are_pipes_or_not_text_are_refused(tmp_path):
    (tmp_path / "images").mkdir()
    os.mkfifo(tmp_path / "labels.csv")
    with pytest.raises(HeatproofError, match=r"labels\.csv is a named pipe"):
        _ = elpv(seed=0, root=str(tmp_path)).splits["train"]
    food = tmp_path / "food-101"
    (food / "images").mkdir(parents=True)
    (food / "meta").mkdir()
    for name in ("classes", "train", "test"):
        (food / "meta" / f"{name}.txt").write_bytes(b"caf\xe9\n")
    with pytest.raises(HeatproofError, match=r"classes\.txt is not text in UTF-8"):
        food101(seed=0, root=str(food))
    for name in ("batches.meta.txt", *(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"):
        (tmp_path / name).write_bytes(b"a\nb\n" if name.endswith("txt") else bytes(3073))
    (tmp_path / "test_batch.bin").unlink()
    os.mkfifo(tmp_path / "test_batch.bin")
    with pytest.raises(HeatproofError, match=r"test_batch\.bin is a named pipe"):
        _ = cifar10(seed=0, root=str(tmp_path)).splits["evaluation"]

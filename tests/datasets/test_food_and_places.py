"""Food-101 and Places365, whose splits are lists, compared with torchvision's loaders."""

import json

import numpy as np
import pytest
from torchvision.datasets import Food101, Places365

from heatproof.datasets.food101 import food101
from heatproof.datasets.places365 import places365
from heatproof.datasets.registry import DATASETS
from heatproof.errors import HeatproofError

DISHES = ["apple_pie", "baby_back_ribs", "waffles"]
SCENES = ["/a/airfield", "/a/apartment_building/outdoor", "/z/zen_garden"]


@pytest.fixture
def dishes(tmp_path, save):
    folder = tmp_path / "food-101"
    (folder / "meta").mkdir(parents=True)
    for part, first, number in (("train", 1000, 10), ("test", 2000, 4)):
        listed = {dish: [f"{dish}/{first + n}" for n in range(number)] for dish in DISHES}
        (folder / "meta" / f"{part}.json").write_text(json.dumps(listed))
        ids = [image_id for images in listed.values() for image_id in images]
        (folder / "meta" / f"{part}.txt").write_text("\n".join(ids) + "\n")
        for image_id in ids:
            save(folder / "images" / f"{image_id}.jpg", 20 * DISHES.index(image_id.partition("/")[0]))
    (folder / "meta" / "classes.txt").write_text("\n".join(DISHES) + "\n")
    return tmp_path


@pytest.fixture
def scenes(tmp_path, save):
    (tmp_path / "categories_places365.txt").write_text("".join(f"{s} {n}\n" for n, s in enumerate(SCENES)))
    train = [(f"{scene}/{n:08d}.jpg", label) for label, scene in enumerate(SCENES) for n in range(1, 6)]
    val = [(f"Places365_val_{n + 1:08d}.jpg", (n * 2) % 3) for n in range(7)]
    for name, part, pairs in (("train_standard", "data_256", train), ("val", "val_256", val)):
        (tmp_path / f"places365_{name}.txt").write_text("".join(f"{path} {label}\n" for path, label in pairs))
        for path, label in pairs:
            save(tmp_path / part / path.removeprefix("/"), 20 * label)
    return tmp_path


def assert_equal_to_torchvision(dataset, split, labels_by_id):
    """Compare ids, labels and images with (path, label) of torchvision."""
    images = dataset.splits[split]
    assert sorted(zip(images.ids, images.labels.tolist(), strict=True)) == sorted(labels_by_id)
    red = dataset.images(split, 0, len(images))[:, 0].mean((1, 2)) * 255
    np.testing.assert_allclose(red, 20 * images.labels, atol=4)


def test_food101_equals_that_of_torchvision(dishes, sound):
    dataset = food101(seed=0, root=str(dishes), size=8)
    sound(dataset, 8)
    theirs = Food101(dishes, split="test")
    assert dataset.class_names == tuple(theirs.classes)
    files = [f"{path.parent.name}/{path.stem}" for path in theirs._image_files]
    assert_equal_to_torchvision(dataset, "evaluation", zip(files, theirs._labels, strict=True))
    assert (len(dataset.splits["train"]), len(dataset.splits["validation"])) == (27, 3)
    assert DATASETS["food101"].count(root=str(dishes / "food-101")) == 12


def test_an_incomplete_food101_is_refused(dishes):
    with pytest.raises(HeatproofError, match=r"no folder .*/none for food101: get food-101\.tar\.gz from https"):
        DATASETS["food101"].count(root=str(dishes / "none"))
    (dishes / "food-101" / "meta" / "classes.txt").write_text("apple_pie\nwaffles\n")
    with pytest.raises(
        HeatproofError, match=r"test\.txt names the class 'baby_back_ribs', which is not in classes\.txt"
    ):
        DATASETS["food101"].count(root=str(dishes))
    (dishes / "food-101" / "meta" / "test.txt").unlink()
    with pytest.raises(HeatproofError, match=r"no meta/test\.txt of food101 in the folder .*food-101: get"):
        DATASETS["food101"].count(root=str(dishes))


@pytest.mark.parametrize("renamed", [False, True])
def test_places365_equals_that_of_torchvision(scenes, sound, monkeypatch, renamed):
    if renamed:
        (scenes / "data_256").rename(scenes / "data_256_standard")
    dataset = places365(seed=0, root=str(scenes), size=8, validation=0.2)
    assert "a/apartment_building/outdoor/00000003.jpg" in sound(dataset, 8)
    assert dataset.class_names == ("airfield", "apartment_building/outdoor", "zen_garden")
    # torchvision checks digests of the real lists.
    monkeypatch.setattr(Places365, "_check_integrity", lambda *arguments: True)
    theirs = Places365(scenes, split="val", small=True)
    files = [path.rpartition("/")[2] for path, _ in theirs.imgs]
    assert_equal_to_torchvision(dataset, "evaluation", zip(files, theirs.targets, strict=True))
    assert len(dataset.splits["train"]) == 12
    assert DATASETS["places365"].count(root=str(scenes)) == 7


def test_an_incomplete_places365_is_refused(scenes):
    with pytest.raises(HeatproofError, match=r"no val_large of places365 .*: get filelist_places365-standard\.tar"):
        DATASETS["places365"].count(root=str(scenes), small=False)
    (scenes / "data_256").rename(scenes / "elsewhere")
    assert DATASETS["places365"].count(root=str(scenes)) == 7
    with pytest.raises(HeatproofError, match=r"There is no folder .*data_256: unpack the images"):
        _ = places365(seed=0, root=str(scenes)).splits["train"]
    (scenes / "categories_places365.txt").write_text("/a/airfield\n")
    with pytest.raises(HeatproofError, match="has the line '/a/airfield', which is not a name with a number"):
        places365(seed=0, root=str(scenes))
    (scenes / "categories_places365.txt").write_text("/a/airfield 1\n")
    with pytest.raises(HeatproofError, match="does not number its classes from 0"):
        places365(seed=0, root=str(scenes))

"""Folders of image files in the three supported layouts, and NWPU-RESISC45."""

import numpy as np
import pytest
from torchvision.datasets import ImageFolder

from heatproof.datasets.image_folder import image_folder, resisc45
from heatproof.datasets.registry import DATASETS
from heatproof.errors import HeatproofError

CLASSES = ["ant", "bee", "cat"]


def count(root, **options):
    return DATASETS["image_folder"].count(root=str(root), **options)


def test_a_single_folder_is_divided_into_splits(tmp_path, fill, sound):
    fill(tmp_path, CLASSES, 10)
    dataset = image_folder(seed=0, root=str(tmp_path), size=8)
    ids = sound(dataset, 8)
    assert dataset.class_names == tuple(CLASSES)
    assert {name: len(split) for name, split in dataset.splits.items()} == {
        "train": 21,
        "validation": 3,
        "evaluation": 6,
    }
    assert count(tmp_path) == 6
    assert count(tmp_path, evaluation=0.5, size=8) == 15
    assert "bee/bee_004.png" in ids
    labels_by_path = {path.removeprefix(f"{tmp_path}/"): label for path, label in ImageFolder(tmp_path).samples}
    for name, split in dataset.splits.items():
        assert [labels_by_path[image_id] for image_id in split.ids] == split.labels.tolist()
        red = dataset.images(name, 0, len(split))[:, 0].mean((1, 2)) * 255
        np.testing.assert_allclose(red, 20 * split.labels, atol=0.01)


def test_the_seed_changes_the_order_and_not_the_ids(tmp_path, fill):
    fill(tmp_path, CLASSES, 10)
    first, second = (image_folder(seed=seed, root=str(tmp_path), size=8).splits for seed in (0, 1))
    assert first["evaluation"].ids != second["evaluation"].ids
    assert {i for split in first.values() for i in split.ids} == {i for split in second.values() for i in split.ids}


@pytest.mark.parametrize("name", ["val", "valid", "validation", "test"])
def test_a_held_out_folder_is_the_evaluation_split(tmp_path, fill, sound, name):
    fill(tmp_path / "train", CLASSES, 10)
    fill(tmp_path / name, CLASSES[:2], 2)
    dataset = image_folder(seed=0, root=str(tmp_path), size=8, validation=0.2)
    sound(dataset, 8)
    assert dataset.num_classes == 3
    assert sorted(dataset.splits["evaluation"].ids) == [
        f"{name}/{c}/{c}_00{n}.png" for c in CLASSES[:2] for n in range(2)
    ]
    assert len(dataset.splits["validation"]) == 6
    assert count(tmp_path) == 4
    with pytest.raises(HeatproofError, match=f"evaluation images of .* are in its folder {name}: leave the share"):
        count(tmp_path, evaluation=0.2)


def test_folders_train_val_and_test_are_the_splits(tmp_path, fill, sound):
    for name, images in (("train", 4), ("val", 2), ("test", 3)):
        fill(tmp_path / name, CLASSES, images)
    dataset = image_folder(seed=0, root=str(tmp_path), size=8)
    sound(dataset, 8)
    assert {name: len(split) for name, split in dataset.splits.items()} == {
        "train": 12,
        "validation": 6,
        "evaluation": 9,
    }
    assert all(image_id.startswith("val/") for image_id in dataset.splits["validation"].ids)
    with pytest.raises(HeatproofError, match="leave the share 'validation' out"):
        count(tmp_path, validation=0.2)


def test_a_test_folder_without_labels_is_ignored(tmp_path, fill, save):
    fill(tmp_path / "train", CLASSES, 10)
    fill(tmp_path / "val", CLASSES, 2)
    save(tmp_path / "test" / "001.png")
    dataset = image_folder(seed=0, root=str(tmp_path), size=8)
    assert all(image_id.startswith("val/") for image_id in dataset.splits["evaluation"].ids)


def test_hidden_and_other_files_in_folders_are_ignored(tmp_path, fill, save):
    fill(tmp_path, CLASSES, 5)
    save(tmp_path / "bee" / "deeper" / "x.JPEG")
    save(tmp_path / ".hidden" / "x.png")
    save(tmp_path / "bee" / "._x.png")
    (tmp_path / "bee" / "notes.txt").write_text("-")
    dataset = image_folder(seed=0, root=str(tmp_path), size=8, evaluation=0.4, validation=0.2)
    ids = {image_id for split in dataset.splits.values() for image_id in split.ids}
    assert len(ids) == 16
    assert "bee/deeper/x.JPEG" in ids


def test_a_class_can_be_called_train(tmp_path, fill):
    fill(tmp_path, ["plane", "train"], 5)
    assert image_folder(seed=0, root=str(tmp_path)).class_names == ("plane", "train")


def test_counts_limit_training_and_validation_images(tmp_path, fill):
    fill(tmp_path, CLASSES, 10)
    splits = image_folder(seed=0, root=str(tmp_path), train_images=6, validation_images=2).splits
    assert (len(splits["train"]), len(splits["validation"])) == (6, 2)
    assert np.bincount(splits["train"].labels).tolist() == [2, 2, 2]


def prepare_nothing(tmp_path, fill, save):
    pass


def prepare_one_class(tmp_path, fill, save):
    fill(tmp_path, ["ant"], 2)


def prepare_train_alone(tmp_path, fill, save):
    fill(tmp_path / "train", CLASSES, 2)


def prepare_test_alone(tmp_path, fill, save):
    fill(tmp_path / "test", CLASSES, 2)


def prepare_empty_class(tmp_path, fill, save):
    fill(tmp_path, CLASSES, 2)
    (tmp_path / "dog").mkdir()


def prepare_unknown_class(tmp_path, fill, save):
    fill(tmp_path / "train", CLASSES, 2)
    fill(tmp_path / "val", ["ant", "dog"], 2)


def prepare_no_images(tmp_path, fill, save):
    fill(tmp_path / "train", CLASSES, 2)
    (tmp_path / "val" / "ant").mkdir(parents=True)


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (prepare_nothing, "has 0 class folders: a classifier needs two"),
        (prepare_one_class, "has 1 class folders"),
        (prepare_train_alone, "has train and neither val nor test with class folders: add one, or name .*train in"),
        (
            prepare_test_alone,
            r"has test and no train: lay it out as train/ beside val/ or test/, .*, or name .*/test in",
        ),
        (prepare_empty_class, "class folder .*dog has no images: add some or remove it"),
        (prepare_unknown_class, "val/dog belongs to no known class"),
        (prepare_no_images, "no images in the class folders of .*val: add some"),
    ],
)
def test_invalid_folder_layouts_are_refused(tmp_path, fill, save, prepare, message):
    prepare(tmp_path, fill, save)
    with pytest.raises(HeatproofError, match=message):
        count(tmp_path)


def test_a_missing_folder_is_refused(tmp_path):
    with pytest.raises(HeatproofError, match=r"no folder .*/none: `root` has to be a folder of images"):
        count(tmp_path / "none")


def test_a_missing_relative_folder_is_named_with_the_working_folder(tmp_path, monkeypatch):
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    with pytest.raises(
        HeatproofError, match=r"no folder \.\./none \(looked for from the working folder …/work\): `root`"
    ):
        count("../none")


def test_resisc45_is_divided_and_its_classes_are_counted(tmp_path, fill, sound):
    folder = tmp_path / "NWPU-RESISC45"
    classes = ["airplane", *(f"kind_{number:02d}" for number in range(43)), "wetland"]
    fill(folder, classes, 5, ".jpg")
    dataset = resisc45(seed=0, root=str(tmp_path), size=8)
    assert "wetland/wetland_004.jpg" in sound(dataset, 8)
    assert dataset.class_names == tuple(classes)
    assert {name: len(split) for name, split in dataset.splits.items()} == {
        "train": 135,
        "validation": 45,
        "evaluation": 45,
    }
    assert resisc45(seed=0, root=str(folder), size=8).splits["train"].ids == dataset.splits["train"].ids
    (folder / "kind_07").rename(tmp_path / "elsewhere")
    with pytest.raises(HeatproofError, match="has 44 class folders, and NWPU-RESISC45 has 45"):
        DATASETS["resisc45"].count(root=str(tmp_path))
    with pytest.raises(HeatproofError, match=r"no folder .*/none for resisc45: get NWPU-RESISC45\.rar"):
        DATASETS["resisc45"].count(root=str(tmp_path / "none"))


def test_images_of_the_requested_size_are_not_resized(tmp_path, fill, pixels):
    fill(tmp_path, CLASSES, 10)
    dataset = image_folder(seed=0, root=str(tmp_path), size=10)
    split = dataset.splits["train"]
    # The images have 10 rows and 12 columns: one column is cropped from each side.
    expected = [pixels(20 * int(label))[:, 1:11].transpose(2, 0, 1) for label in split.labels[:3]]
    np.testing.assert_allclose(dataset.images("train", 0, 3) * 255, expected, atol=1e-3)
    assert dataset.preprocessing == "shorter side 10 pixels: not resized, square of 10 pixels at the centre"
    smaller = image_folder(seed=0, root=str(tmp_path), size=7)
    assert smaller.preprocessing == "shorter side 10 pixels: resized to 8, square of 7 pixels at the centre"

"""Networks with more outputs than a folder has classes, and folders without training images."""

import os
import tarfile
from pathlib import Path

import numpy as np
import pytest
from timm.data import ImageNetInfo

from heatproof.datasets.checks import check_dataset, check_image_files
from heatproof.datasets.image_folder import image_folder
from heatproof.errors import HeatproofError

SAMPLES = {"n02123045": 281, "n01440764": 0, "n02012849": 134}


def test_folders_of_wordnet_ids_have_the_numbers_of_imagenet(tmp_path, fill):
    fill(tmp_path, sorted(SAMPLES), 1)
    dataset = image_folder(seed=0, root=str(tmp_path), size=10, outputs="imagenet", evaluation=1)
    split = dataset.splits["evaluation"]
    assert {
        image_id.partition("/")[0]: int(label) for image_id, label in zip(split.ids, split.labels, strict=True)
    } == SAMPLES
    assert dataset.num_classes == len(set(dataset.class_names)) == 1000
    assert dataset.class_names[281] == "tabby"
    assert dataset.class_names[134] == "crane (n02012849)"
    assert [ImageNetInfo().index_to_label_name(number) for number in SAMPLES.values()] == list(SAMPLES)


def test_all_images_can_be_for_evaluation(tmp_path, fill):
    fill(tmp_path, ["ant", "bee"], 3)
    dataset = image_folder(seed=0, root=str(tmp_path), size=10, evaluation=1)
    recorded = check_dataset(dataset, "mine")
    assert {name: len(split["ids"]) for name, split in recorded.items()} == {
        "train": 0,
        "validation": 0,
        "evaluation": 6,
    }


def test_classes_of_one_image_are_divided_at_random_with_a_message(tmp_path, fill):
    fill(tmp_path, [f"c{number:02d}" for number in range(20)], 1)
    dataset = image_folder(seed=0, root=str(tmp_path), size=10, evaluation=0.5)
    assert {name: len(split) for name, split in dataset.splits.items()} == {
        "train": 8,
        "validation": 2,
        "evaluation": 10,
    }
    assert len({image_id for split in dataset.splits.values() for image_id in split.ids}) == 20
    assert any("drawn from all images at random" in line for line in check_image_files(dataset, "mine"))
    again = image_folder(seed=1, root=str(tmp_path), size=10, evaluation=0.5)
    assert set(again.splits["evaluation"].ids) != set(dataset.splits["evaluation"].ids)


def test_outputs_can_be_numbered(tmp_path, fill):
    fill(tmp_path, ["ant", "bee"], 10)
    dataset = image_folder(seed=0, root=str(tmp_path), size=10, outputs={"ant": 3, "bee": 1, "cat": 0}, num_outputs=5)
    assert dataset.class_names == ("cat", "bee", "output 2", "ant", "output 4")
    split = dataset.splits["train"]
    assert [3 if image_id.startswith("ant") else 1 for image_id in split.ids] == split.labels.tolist()
    assert np.bincount(split.labels).tolist() == [0, 7, 0, 7]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"outputs": "imagenet"}, "2 of 2 classes are not WordNet ids of ImageNet: ant, bee. Rename or add"),
        ({"outputs": "imagenett"}, "`outputs` is 'imagenett': it may be imagenet, or a mapping"),
        ({"outputs": {"ant": 1}, "num_outputs": 5}, "1 of 2 classes are not in `outputs`: bee"),
        ({"outputs": {"ant": 1, "bee": 2}}, "num_outputs does not say how many"),
        (
            {"outputs": {"ant": 1, "bee": 5}, "num_outputs": 5},
            "numbers from 1 to 5, and a network of 5 outputs has 0 to 4",
        ),
        ({"outputs": {"ant": 1, "bee": 1}, "num_outputs": 5}, "gives one output to two classes"),
    ],
)
def test_invalid_outputs_are_refused(tmp_path, fill, options, message):
    fill(tmp_path, ["ant", "bee"], 2)
    with pytest.raises(HeatproofError, match=message):
        image_folder(seed=0, root=str(tmp_path), size=10, **options)


@pytest.mark.slow
def test_a_thousand_photographs_of_imagenet_have_the_right_outputs(tmp_path):
    """The positions of the sorted WordNet ids are the output numbers."""
    default = Path(__file__).parents[3] / "shared" / "real"
    archive = Path(os.environ.get("HEATPROOF_REAL", default)) / "imagenet_samples.tar"
    if not archive.is_file():
        pytest.skip(f"there is no {archive}: name the folder of real photographs in HEATPROOF_REAL")
    with tarfile.open(archive) as packed:
        packed.extractall(tmp_path, filter="data")
    (folder,) = {path.parent.parent for path in tmp_path.rglob("*.jpg")}
    dataset = image_folder(seed=0, root=str(folder), outputs="imagenet", evaluation=1)
    split = dataset.splits["evaluation"]
    wnids = sorted(path.name for path in folder.iterdir() if path.is_dir())
    assert [wnids[label] for label in split.labels] == [image_id.partition("/")[0] for image_id in split.ids]
    assert len(split) == 1000
    assert check_image_files(dataset, "mine") == [
        "mine: shorter side 256 pixels: not resized, square of 224 pixels at the centre"
    ]
    half = image_folder(seed=0, root=str(folder), outputs="imagenet", evaluation=0.5)
    assert len(half.splits["evaluation"]) == 500

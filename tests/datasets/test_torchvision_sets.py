"""Datasets of torchvision in the layouts of its downloads."""

import struct

import numpy as np
import pytest
from torchvision.datasets import Country211, EuroSAT

from heatproof.datasets.checks import check_image_files
from heatproof.datasets.registry import DATASETS
from heatproof.datasets.torchvision_sets import torchvision_dataset
from heatproof.errors import HeatproofError


def test_splits_are_those_of_the_torchvision_class(tmp_path, fill, sound):
    for split, count in (("train", 5), ("valid", 2), ("test", 3)):
        fill(tmp_path / "country211" / split, ["AD", "AE"], count)
    dataset = torchvision_dataset(seed=0, root=str(tmp_path), name="Country211", size=8)
    sound(dataset, 8)
    assert dataset.class_names == ("AD", "AE")
    assert {name: len(split) for name, split in dataset.splits.items()} == {
        "train": 10,
        "validation": 4,
        "evaluation": 6,
    }
    theirs = Country211(tmp_path, split="test")
    split = dataset.splits["evaluation"]
    assert [theirs[int(image_id.partition("-")[2])][1] for image_id in split.ids] == split.labels.tolist()
    red = dataset.images("evaluation", 0, 6)[:, 0].mean((1, 2)) * 255
    np.testing.assert_allclose(red, 20 * split.labels, atol=0.01)
    with pytest.raises(HeatproofError, match="Country211 has evaluation images of its own: leave the share"):
        torchvision_dataset(seed=0, root=str(tmp_path), name="Country211", evaluation=0.3)


def test_a_class_without_splits_is_divided(tmp_path, fill, sound):
    fill(tmp_path / "eurosat" / "2750", ["Forest", "River"], 10)
    dataset = torchvision_dataset(seed=0, root=str(tmp_path), name="EuroSAT", size=10)
    sound(dataset, 10)
    assert len(EuroSAT(tmp_path)) == sum(len(split) for split in dataset.splits.values()) == 20
    assert len(dataset.splits["evaluation"]) == DATASETS["torchvision"].count(root=str(tmp_path), name="EuroSAT") == 4
    assert check_image_files(dataset, "e") == [
        "e: shorter side 10 pixels: not resized, square of 10 pixels at the centre"
    ]


def test_a_class_with_a_training_flag_and_grey_images_is_read(tmp_path, sound):
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for name, count in (("train", 40), ("t10k", 20)):
        labels = np.arange(count, dtype=np.uint8) % 10
        pixels = rng.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        (raw / f"{name}-labels-idx1-ubyte").write_bytes(struct.pack(">II", 0x801, count) + labels.tobytes())
        (raw / f"{name}-images-idx3-ubyte").write_bytes(struct.pack(">IIII", 0x803, count, 28, 28) + pixels.tobytes())
    dataset = torchvision_dataset(seed=0, root=str(tmp_path), name="MNIST", size=28, validation=0.25)
    sound(dataset, 28)
    assert dataset.num_classes == 10
    row = int(dataset.splits["evaluation"].ids[0].partition("-")[2])
    np.testing.assert_allclose(dataset.images("evaluation", 0, 1)[0, 1] * 255, pixels[row], atol=1e-3)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Flower102", "no dataset 'Flower102': did you mean 'Flowers102'"),
        ("CIFAR10", r"CIFAR10 cannot be opened .*download it once with `python -c .*CIFAR10\('.*', download=True\)"),
        ("DTD", "DTD cannot be opened in"),
    ],
)
def test_missing_datasets_are_named_with_a_remedy(tmp_path, name, message):
    with pytest.raises(HeatproofError, match=message):
        torchvision_dataset(seed=0, root=str(tmp_path), name=name)
    assert not list(tmp_path.rglob("*.tar.gz"))

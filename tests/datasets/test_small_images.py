"""CIFAR's binary records and Fashion-MNIST's IDX files."""

import gzip

import numpy as np
import pytest
from torchvision.datasets import FashionMNIST

from heatproof.datasets.cifar import cifar10, cifar100
from heatproof.datasets.fashion_mnist import CLASSES, fashion_mnist
from heatproof.datasets.registry import DATASETS
from heatproof.errors import HeatproofError


def write_records(path, labels, pixels):
    """Write records in the format of https://www.cs.toronto.edu/~kriz/cifar.html."""
    path.parent.mkdir(parents=True, exist_ok=True)
    flat = pixels.transpose(0, 3, 1, 2).reshape(len(pixels), -1)
    path.write_bytes(np.concatenate([labels.astype(np.uint8), flat], axis=1).tobytes())


def random_images(seed, count):
    return np.random.default_rng(seed).integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)


def test_cifar10_records_are_read(tmp_path, sound):
    folder = tmp_path / "cifar-10-batches-bin"
    pixels = {}
    for number, name in enumerate([*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"]):
        pixels[name] = random_images(number, 20)
        write_records(folder / f"{name}.bin", np.arange(20)[:, None] % 10, pixels[name])
    names = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
    (folder / "batches.meta.txt").write_text("\n".join(names) + "\n\n")
    dataset = cifar10(seed=0, root=str(tmp_path))
    sound(dataset, 32)
    assert dataset.class_names == names
    assert {name: len(split) for name, split in dataset.splits.items()} == {
        "train": 90,
        "validation": 10,
        "evaluation": 20,
    }
    for name, split in dataset.splits.items():
        images = dataset.images(name, 0, len(split))
        for image_id, label, image in zip(split.ids, split.labels, images, strict=True):
            batch, _, row = image_id.rpartition("-")
            assert label == int(row) % 10
            np.testing.assert_array_equal(image, pixels[batch][int(row)].transpose(2, 0, 1) / np.float32(255))
    assert DATASETS["cifar10"].count(root=str(folder)) == 20
    assert DATASETS["cifar10"].size == (32, 32)


@pytest.mark.parametrize("coarse", [False, True])
def test_cifar100_records_are_read(tmp_path, sound, coarse):
    folder = tmp_path / "cifar-100-binary"
    fine = np.arange(200) % 100
    for name in ("train", "test"):
        write_records(folder / f"{name}.bin", np.stack([fine // 5, fine], axis=1), random_images(len(name), 200))
    (folder / "fine_label_names.txt").write_text("".join(f"fine_{n}\n" for n in range(100)))
    (folder / "coarse_label_names.txt").write_text("".join(f"coarse_{n}\n" for n in range(20)))
    dataset = cifar100(seed=0, root=str(tmp_path), coarse=coarse, validation=0.5)
    sound(dataset, 32)
    assert dataset.class_names[7] == ("coarse_7" if coarse else "fine_7")
    split = dataset.splits["evaluation"]
    rows = np.array([int(image_id.removeprefix("test-")) for image_id in split.ids])
    np.testing.assert_array_equal(split.labels, fine[rows] // 5 if coarse else fine[rows])
    expected = random_images(4, 200)[rows[:5]].transpose(0, 3, 1, 2) / np.float32(255)
    np.testing.assert_array_equal(dataset.images("evaluation", 0, 5), expected)


def test_an_incomplete_cifar_is_refused(tmp_path):
    with pytest.raises(
        HeatproofError, match=r"no folder .*/none for cifar10: get cifar-10-binary\.tar\.gz, the binary"
    ):
        DATASETS["cifar10"].count(root=str(tmp_path / "none"))
    # The pickled version is not read.
    (tmp_path / "cifar-100-python").mkdir()
    with pytest.raises(HeatproofError, match=r"no fine_label_names\.txt of cifar100 .*: get cifar-100-binary\.tar\.gz"):
        DATASETS["cifar100"].count(root=str(tmp_path))
    folder = tmp_path / "cifar-100-binary"
    for name in ("train", "test"):
        write_records(folder / f"{name}.bin", np.zeros((3, 2)), random_images(0, 3))
    (folder / "fine_label_names.txt").write_text("a\nb\n")
    (folder / "test.bin").write_bytes((folder / "test.bin").read_bytes()[:-1])
    with pytest.raises(HeatproofError, match=r"test\.bin has 9221 bytes, which is not a whole number of images"):
        DATASETS["cifar100"].count(root=str(tmp_path))


def write_idx(path, array, pack):
    path.parent.mkdir(parents=True, exist_ok=True)
    head = bytes((0, 0, 8, array.ndim)) + np.array(array.shape, dtype=">u4").tobytes()
    content = head + array.astype(np.uint8).tobytes()
    path.write_bytes(content) if not pack else path.with_name(path.name + ".gz").write_bytes(gzip.compress(content))


def write_fashion(folder, pack):
    for part, count in (("train", 60), ("t10k", 20)):
        write_idx(folder / f"{part}-labels-idx1-ubyte", np.arange(count) * 3 % 10, pack)
        images = np.random.default_rng(count).integers(0, 256, (count, 28, 28), dtype=np.uint8)
        write_idx(folder / f"{part}-images-idx3-ubyte", images, pack)


@pytest.mark.parametrize("pack", [True, False])
def test_fashion_mnist_equals_that_of_torchvision(tmp_path, sound, pack):
    folder = tmp_path / "FashionMNIST" / "raw"
    write_fashion(folder, pack)
    dataset = fashion_mnist(seed=0, root=str(folder if pack else tmp_path), validation=0.5)
    sound(dataset, 32)
    if not pack:
        theirs = FashionMNIST(tmp_path, train=False)
        assert dataset.class_names == tuple(theirs.classes)
        split = dataset.splits["evaluation"]
        rows = [int(image_id.removeprefix("t10k-")) for image_id in split.ids]
        np.testing.assert_array_equal(split.labels, theirs.targets[rows])
        images = dataset.images("evaluation", 0, len(split))
        np.testing.assert_array_equal(images[:, 1, 2:30, 2:30], theirs.data[rows].numpy() / np.float32(255))
        images[:, :, 2:30, 2:30] = 0
        assert not images.any()
    assert DATASETS["fashion_mnist"].count(root=str(folder)) == 20
    assert dataset.class_names == CLASSES


def test_files_that_take_precedence_in_fashion_mnist_are_inputs(tmp_path):
    """A file without .gz takes precedence over one with it, and a folder over its subfolders."""
    folder = tmp_path / "raw"
    folder.mkdir()
    write_fashion(folder, pack=True)
    dataset = fashion_mnist(seed=0, root=str(tmp_path))
    assert {tmp_path, folder} <= set(dataset.list_files)


def test_an_incomplete_fashion_mnist_is_refused(tmp_path):
    with pytest.raises(
        HeatproofError, match=r"no t10k-labels-idx1-ubyte\.gz of fashion_mnist in the folder .*Debian's"
    ):
        DATASETS["fashion_mnist"].count(root=str(tmp_path))
    write_fashion(tmp_path, pack=True)
    images = tmp_path / "t10k-images-idx3-ubyte.gz"
    content = images.read_bytes()
    images.write_bytes(content[: len(content) // 2])
    with pytest.raises(HeatproofError, match=r"images-idx3-ubyte\.gz cannot be read"):
        DATASETS["fashion_mnist"].count(root=str(tmp_path))
    images.write_bytes(gzip.compress(gzip.decompress(content)[:-1]))
    with pytest.raises(HeatproofError, match="is not a complete IDX file of 3 dimensions"):
        DATASETS["fashion_mnist"].count(root=str(tmp_path))
    images.unlink()
    write_idx(tmp_path / "t10k-images-idx3-ubyte", np.zeros((19, 28, 28)), pack=True)
    with pytest.raises(HeatproofError, match=r"20 labels and images of shape \(19, 28, 28\)"):
        DATASETS["fashion_mnist"].count(root=str(tmp_path))

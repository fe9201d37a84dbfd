"""ImageNet in the layouts of its unpacked archives and devkit."""

import tarfile

import numpy as np
import pytest
from scipy.io import savemat
from torchvision.datasets import imagenet as theirs

from heatproof.datasets.imagenet import imagenet
from heatproof.datasets.registry import DATASETS
from heatproof.errors import HeatproofError

# In the order of the devkit's numbers, which is not that of the sorted ids; the last one is an inner node.
SYNSETS = [
    (1, "n02119789", "kit fox, Vulpes macrotis", 0),
    (2, "n02012849", "crane", 0),
    (3, "n01440764", "tench, Tinca tinca", 0),
    (4, "n03126707", "crane", 0),
    (1001, "n00001740", "entity", 3),
]
SORTED = ["n01440764", "n02012849", "n02119789", "n03126707"]
NAMES = ("tench", "crane (n02012849)", "kit fox", "crane (n03126707)")
TRUTH = [3, 1, 1, 4, 2, 3]


@pytest.fixture
def train(tmp_path, save):
    for label, wnid in enumerate(SORTED):
        for number in range(5):
            save(tmp_path / "train" / wnid / f"{wnid}_{number}.JPEG", 20 * label)
    return tmp_path


@pytest.fixture
def devkit(train):
    data = train / "ILSVRC2012_devkit_t12" / "data"
    data.mkdir(parents=True)
    kinds = [(name, object) for name in ("ILSVRC2012_ID", "WNID", "words", "gloss", "num_children", "children")]
    synsets = np.zeros((len(SYNSETS), 1), dtype=kinds)
    for row, (number, wnid, words, children) in enumerate(SYNSETS):
        synsets[row, 0] = (float(number), wnid, words, "gloss", float(children), np.arange(children, dtype=float))
    savemat(data / "meta.mat", {"synsets": synsets})
    (data / "ILSVRC2012_validation_ground_truth.txt").write_text("".join(f"{number}\n" for number in TRUTH))
    return train


def label_of(number):
    return SORTED.index(next(wnid for class_number, wnid, *_ in SYNSETS if class_number == number))


def fill_val(folder, save, nested, numbers=range(1, 7)):
    for number in numbers:
        label = label_of(TRUTH[number - 1])
        name = f"ILSVRC2012_val_{number:08d}.JPEG"
        save(folder / "val" / SORTED[label] / name if nested else folder / "val" / name, 20 * label)


def load(folder, **options):
    return imagenet(seed=0, root=str(folder), size=8, validation=0.2, **options)


@pytest.mark.parametrize("nested", [False, True])
def test_both_layouts_of_the_validation_set_are_the_same_dataset(devkit, save, sound, nested):
    fill_val(devkit, save, nested)
    dataset = load(devkit)
    assert "n02119789_3" in sound(dataset, 8)
    assert dataset.class_names == NAMES
    split = dataset.splits["evaluation"]
    assert {i: int(label) for i, label in zip(split.ids, split.labels, strict=True)} == {
        f"ILSVRC2012_val_{row + 1:08d}": label_of(number) for row, number in enumerate(TRUTH)
    }
    for name, split in dataset.splits.items():
        red = dataset.images(name, 0, len(split))[:, 0].mean((1, 2)) * 255
        np.testing.assert_allclose(red, 20 * split.labels, atol=4)
    assert DATASETS["imagenet"].count(root=str(devkit)) == 6
    assert (len(dataset.splits["train"]), len(dataset.splits["validation"])) == (16, 4)


def test_the_devkit_is_read_as_torchvision_reads_it(devkit, save, monkeypatch):
    fill_val(devkit, save, nested=False)
    with tarfile.open(devkit / "ILSVRC2012_devkit_t12.tar.gz", "w:gz") as packed:
        packed.add(devkit / "ILSVRC2012_devkit_t12", "ILSVRC2012_devkit_t12")
    # torchvision checks digests of the real archive.
    monkeypatch.setattr(theirs, "_verify_archive", lambda *arguments: None)
    theirs.parse_devkit_archive(devkit)
    words, val = theirs.load_meta_file(devkit)
    dataset = load(devkit)
    assert [words[wnid][0] for wnid in sorted(words)] == [name.partition(" (")[0] for name in dataset.class_names]
    split = dataset.splits["evaluation"]
    labels = {int(i[-8:]): sorted(words)[label] for i, label in zip(split.ids, split.labels, strict=True)}
    assert [labels[number] for number in range(1, 7)] == val


def test_class_folders_need_no_devkit(train, save):
    fill_val(train, save, nested=True)
    assert load(train).class_names == tuple(SORTED)
    assert len(load(train).splits["evaluation"]) == 6


def test_a_subset_of_images_has_the_labels_of_all_classes(devkit, save):
    fill_val(devkit, save, nested=False, numbers=(2, 5))
    for wnid in ("n01440764", "n03126707"):
        (devkit / "train" / wnid).rename(devkit / wnid)
    dataset = load(devkit)
    assert dataset.num_classes == 4
    assert sorted(zip(dataset.splits["evaluation"].ids, dataset.splits["evaluation"].labels.tolist(), strict=True)) == [
        ("ILSVRC2012_val_00000002", 2),
        ("ILSVRC2012_val_00000005", 1),
    ]
    assert set(dataset.splits["train"].labels.tolist()) == {1, 2}


def test_validation_images_without_labels_are_refused(train, save):
    fill_val(train, save, nested=False)
    with pytest.raises(HeatproofError, match=r"in no class folders, and .*devkit_t12 is not there: unpack .*\.tar\.gz"):
        load(train)


def test_validation_images_unknown_to_the_devkit_are_refused(devkit, save):
    fill_val(devkit, save, nested=False)
    save(devkit / "val" / "ILSVRC2012_val_00000007.JPEG")
    with pytest.raises(HeatproofError, match=r"00000007\.JPEG is not one of the 6 that the devkit has labels for"):
        DATASETS["imagenet"].count(root=str(devkit))


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("meta.mat", r"meta\.mat is not the devkit's table of classes"),
        ("ILSVRC2012_validation_ground_truth.txt", "is not the devkit's list of labels"),
    ],
)
@pytest.mark.parametrize("content", [b"", b"nonsense\n", None])
def test_a_damaged_devkit_is_refused(devkit, save, file, message, content):
    fill_val(devkit, save, nested=False)
    path = devkit / "ILSVRC2012_devkit_t12" / "data" / file
    path.unlink() if content is None else path.write_bytes(content)
    with pytest.raises(HeatproofError, match=message):
        DATASETS["imagenet"].count(root=str(devkit))


def test_missing_folders_are_named(tmp_path, train):
    with pytest.raises(HeatproofError, match=r"no folder .*/none for imagenet: get ILSVRC2012_img_train\.tar"):
        load(tmp_path / "none")
    with pytest.raises(HeatproofError, match="There is no val of imagenet in the folder"):
        load(train)

"""Photographs of solar cells: labels of a stand-in, and of the real package if it is installed."""

import importlib.util

import numpy as np
import pytest
from PIL import Image

from heatproof.datasets.elpv import elpv
from heatproof.datasets.registry import DATASETS
from heatproof.errors import HeatproofError

STEPS = ("0.0", "0.3333333333333333", "0.6666666666666666", "1.0")


@pytest.fixture
def cells(tmp_path):
    folder = tmp_path / "src" / "elpv_dataset" / "data"
    (folder / "images").mkdir(parents=True)
    lines = []
    for row in range(40):
        name = f"images/cell{row + 1:04d}.png"
        Image.fromarray(np.linspace(row, 255, 900).astype(np.uint8).reshape(30, 30)).save(folder / name)
        lines.append(f"{name}  {STEPS[row % 4]}                 {'mono' if row < 20 else 'poly'}\n")
    (folder / "labels.csv").write_text("".join(lines))
    return tmp_path


@pytest.mark.parametrize(
    ("options", "expected", "names"),
    [
        ({}, lambda row: row % 4 >= 2, ("functional", "defective")),
        ({"threshold": 0.3}, lambda row: row % 4 >= 1, ("functional", "defective")),
        ({"threshold": 1.0}, lambda row: row % 4 == 3, ("functional", "defective")),
        ({"target": "probability"}, lambda row: row % 4, ("0", "1/3", "2/3", "1")),
        ({"target": "module"}, lambda row: row >= 20, ("mono", "poly")),
    ],
)
def test_labels_follow_target_and_threshold(cells, sound, options, expected, names):
    dataset = elpv(seed=0, root=str(cells), size=16, **options)
    assert sound(dataset, 16) == {f"cell{row:04d}" for row in range(1, 41)}
    assert dataset.class_names == names
    for split in dataset.splits.values():
        assert split.labels.tolist() == [expected(int(image_id[4:]) - 1) for image_id in split.ids]


def test_cells_are_not_cropped_and_grey_becomes_three_channels(cells):
    dataset = elpv(seed=0, root=str(cells), size=30)
    image, row = dataset.images("evaluation", 0, 1)[0], int(dataset.splits["evaluation"].ids[0][4:]) - 1
    grey = np.linspace(row, 255, 900).astype(np.uint8).reshape(30, 30) / np.float32(255)
    np.testing.assert_allclose(image, np.broadcast_to(grey, (3, 30, 30)), atol=1e-6)


def test_the_planned_image_size_is_the_option_or_the_default(cells):
    assert DATASETS["elpv"].image_size({}) == (224, 224)
    assert DATASETS["elpv"].image_size({"size": 96}) == (96, 96)
    assert DATASETS["digits"].image_size({}) == (32, 32)


@pytest.mark.parametrize("line", ["images/cell0001.png 1.0", "images/cell0001.png x mono", "a 0.5 other", "a 7.0 mono"])
def test_invalid_lines_of_labels_are_refused(cells, line):
    path = cells / "src" / "elpv_dataset" / "data" / "labels.csv"
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(HeatproofError, match=r"labels\.csv has the line .*, which is not a path"):
        DATASETS["elpv"].count(root=str(cells))


def test_a_missing_package_or_folder_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(HeatproofError, match=r"package elpv-dataset, which is not installed: .*'heatproof\[elpv\]'"):
        DATASETS["elpv"].count()
    with pytest.raises(HeatproofError, match=r"no folder .*/none for elpv"):
        DATASETS["elpv"].count(root=str(tmp_path / "none"))


def test_the_installed_package_has_the_published_counts():
    pytest.importorskip("elpv_dataset")
    dataset = elpv(seed=0)
    assert sum(map(len, dataset.splits.values())) == 2624
    labels = np.concatenate([split.labels for split in dataset.splits.values()])
    # 715 certain and 106 probable defects (Deitsch et al. 2019, table 1).
    assert np.bincount(labels).tolist() == [1803, 821]
    assert dataset.images("evaluation", 0, 1).shape == (1, 3, 224, 224)

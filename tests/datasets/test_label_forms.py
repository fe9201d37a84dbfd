"""Tables of labels in the formats of public datasets: the labels of each, or the error message."""

from pathlib import Path

import numpy as np
import pytest
from label_forms import (
    CELEBA,
    CHEXPERT,
    COUNT,
    FINDINGS,
    FORMS,
    ISIC,
    VIEWS,
    describe_labels,
    opened,
    table,
    write_form,
)

from heatproof.datasets.label_search import find_labels
from heatproof.errors import HeatproofError

DOCUMENT = Path(__file__).parents[2] / "docs/datasets.md"
NAMED = {form.name: form for form in FORMS}


def by_file(dataset):
    """Return the label of each image file by name."""
    return {
        image_id: label
        for split in dataset.splits.values()
        for image_id, label in zip(split.ids, split.labels, strict=True)
    }


def of_form(tmp_path, name):
    form = NAMED[name]
    dataset = opened(write_form(tmp_path, form), form)
    labels = by_file(dataset)
    assert set(labels) <= set(form.image_files)
    return dataset, np.array([labels[name] for name in form.image_files if name in labels])


def test_the_documentation_has_the_labels_of_every_form():
    text = DOCUMENT.read_text(encoding="utf-8")
    rows = table()
    refused = [row for row in rows if "| asked: " in row]
    without_options = [row for row in rows if "|  |" in row]
    missing = [row for row in rows if row not in refused + without_options and row not in text]
    assert missing == [], "run python tests/datasets/label_forms.py, and put its rows into docs/datasets.md"
    assert f"the errors of {len(refused)} tables that stop the run" in " ".join(text.split())


@pytest.mark.parametrize("name", NAMED)
def test_a_form_is_read_with_labels_of_its_task_or_refused(tmp_path, name):
    form = NAMED[name]
    message = describe_labels(tmp_path, form)
    if message.startswith("asked"):
        assert form.table in message
        assert message.endswith(".")
        return
    dataset = opened(tmp_path, form)
    kinds = {"multilabel": (np.int8, 2), "regression": (np.float64, 1)}
    dtype, dimensions = kinds.get(dataset.task, (np.int64, 1))
    seen = [image_id for split in dataset.splits.values() for image_id in split.ids]
    assert len(seen) == len(set(seen)) >= COUNT - 1
    for split in dataset.splits.values():
        assert len(split) > 0
        assert split.labels.dtype == dtype
        assert split.labels.ndim == dimensions
        assert split.labels.shape[0] == len(split)
    assert dataset.num_classes == len(dataset.class_names)


def test_one_column_per_class_keeps_its_order(tmp_path):
    dataset, labels = of_form(tmp_path, "ISIC 2018, task 3")
    assert dataset.class_names == tuple(ISIC)
    np.testing.assert_array_equal(labels, np.arange(COUNT) % 7)


def test_unknown_labels_are_minus_one(tmp_path):
    dataset, labels = of_form(tmp_path, "CheXpert")
    assert dataset.class_names == tuple(CHEXPERT)
    assert set(map(str, VIEWS)) == {image_id for split in dataset.splits.values() for image_id in split.ids}
    np.testing.assert_array_equal(labels[:, 1], np.tile([1, 0, -1, -1], COUNT // 4))


def test_minus_one_means_absent_with_the_option_none(tmp_path):
    dataset, labels = of_form(tmp_path, "CelebA, list_attr_celeba.txt")
    assert dataset.class_names == tuple(CELEBA)
    rows = np.arange(COUNT)
    np.testing.assert_array_equal(labels, np.stack([rows % (k + 2) > 0 for k in range(4)], 1).astype(int))


def test_cells_with_several_labels_are_read(tmp_path):
    dataset, labels = of_form(tmp_path, "ChestX-ray14, files in folders")
    expected = [[name in FINDINGS[n % 6].split("|") for name in dataset.class_names] for n in range(COUNT)]
    np.testing.assert_array_equal(labels, np.array(expected, dtype=int))
    patients = [{int(Path(image_id).name[:8]) // 3 for image_id in split.ids} for split in dataset.splits.values()]
    assert sum(map(len, patients)) == len(set.union(*patients))


def test_init_finds_a_class_without_images(tmp_path):
    form = NAMED["ISIC 2019, where one class has no image"]
    table = find_labels(write_form(tmp_path, form))
    assert table.options["columns"]["label"] == form.options["columns"]["label"]
    assert table.options["task"] == "multiclass"


def test_rows_of_one_image_are_joined(tmp_path):
    dataset, labels = of_form(tmp_path, "VinDr-CXR, with a row for each finding")
    assert dataset.class_names == ("Edema", "Mass")
    np.testing.assert_array_equal(labels[:4], [[0, 0], [1, 1], [0, 1], [0, 1]])


def test_lists_written_as_text_are_read(tmp_path):
    dataset, labels = of_form(tmp_path, "PadChest, whose cells are lists")
    assert dataset.class_names == ("cardiomegaly", "pleural effusion", "scoliosis")
    np.testing.assert_array_equal(labels[:4], [[0, 0, 0], [1, 1, 0], [0, 0, 1], [1, 0, 1]])


def test_labels_of_a_regression_are_numbers(tmp_path):
    dataset, labels = of_form(tmp_path, "RSNA bone age")
    assert dataset.class_names == ("boneage",)
    np.testing.assert_array_equal(labels, 7.0 + 3 * np.arange(COUNT))


def test_classes_that_pandas_wrote_as_floats_are_in_the_order_of_numbers(tmp_path):
    dataset, labels = of_form(tmp_path, "integer classes that pandas stored as floats because of an empty cell")
    assert dataset.class_names == tuple(map(str, range(12)))
    np.testing.assert_array_equal(labels, np.delete(np.arange(COUNT) % 12, 12))


# Tables with ambiguities that `init` cannot resolve, and a part of the error message.
AMBIGUOUS = {
    "HAM10000": "--column label=NAME",
    "MIMIC-CXR, whose labels are of studies": "no column file",
    "RSNA pneumonia, with a row for each box": "more than one row",
    "RSNA bone age, without `task`": "--task TASK",
    "ages of UTKFace, without `task`": "--task TASK",
    "Planet Amazon": "--task TASK",
    "Planet Amazon, without options": "--task TASK",
    "COCO": "not a list of records",
    "ChestX-ray14, train_val_list.txt": "no column of labels",
    "CelebA, list_eval_partition.csv, which has no labels": "looks like a column of splits",
    "Plant Pathology 2021": "--task TASK",
    "ODIR-5K, whose cells are vectors": "lists of numbers that name no labels",
    "per cent": "nearly a number",
    "classes in two spellings": "look alike",
    "CUB-200-2011, images.txt, without a header": "--task TASK",
    "an Excel workbook": "save the table as CSV",
}


def find_options(tmp_path, name):
    form = NAMED[name]
    columns = {
        what: str(column) if isinstance(column, int) else column
        for what, column in form.options.get("columns", {}).items()
    }
    columns = {} if name in AMBIGUOUS and name != "RSNA bone age, without `task`" else columns
    return find_labels(tmp_path, str(tmp_path / form.table), form.options.get("task"), columns)


@pytest.mark.parametrize("name", AMBIGUOUS)
def test_init_refuses_ambiguous_tables(tmp_path, name):
    write_form(tmp_path, NAMED[name])
    if name.startswith("RSNA pneumonia"):
        with pytest.raises(HeatproofError, match=AMBIGUOUS[name]):
            find_labels(tmp_path, str(tmp_path / NAMED[name].table), None, {"file": "patientId", "label": "Target"})
        return
    with pytest.raises(HeatproofError, match=AMBIGUOUS[name]):
        find_options(tmp_path, name)


@pytest.mark.parametrize("name", [name for name in NAMED if name not in AMBIGUOUS])
def test_init_finds_the_options(tmp_path, name):
    """The options that `init` writes can be read; if the form has correct options, they give the same labels."""
    form = NAMED[name]
    write_form(tmp_path, form)
    options = dict(find_options(tmp_path, name).options)
    assert options.pop("labels") == form.table
    dataset = opened(tmp_path, form._replace(options=options))
    if not describe_labels(tmp_path, form).startswith("asked"):
        right = opened(tmp_path, form)
        assert (dataset.task, dataset.class_names) == (right.task, right.class_names)
        by_init, by_form = by_file(dataset), by_file(right)
        assert set(by_init) == set(by_form)
        for image_id in by_init:
            np.testing.assert_array_equal(by_init[image_id], by_form[image_id])

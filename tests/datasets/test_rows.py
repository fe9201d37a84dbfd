"""Rows of the evaluation split: the image and the output of each row, for all tasks."""

import numpy as np
import pytest
import task_examples
from task_examples import Pictures

from heatproof.core.dataset import HasParts, Split
from heatproof.core.provenance import Key
from heatproof.core.specs import DatasetSpec, Runtime
from heatproof.core.tasks import ROW_SEPARATOR, row_id
from heatproof.datasets.checks import check_dataset, check_target, describe_rows, open_dataset
from heatproof.datasets.lazy import FileList, LazyDataset
from heatproof.datasets.parts import parts
from heatproof.datasets.rows import as_rows, unwrap_rows
from heatproof.errors import HeatproofError
from heatproof.store.manifest import read_checksummed
from heatproof.store.source_files import read_record, record_path
from heatproof.workflow.stages.prepare import Prepare


def image_id_of(row):
    """Return the image id of a row id."""
    return row.rpartition(ROW_SEPARATOR)[0]


def spec(task, rows="label", **options):
    settings = {"task": task, **options}
    return DatasetSpec(
        "task_examples:dataset", "task_examples", settings, 3, "mine", Key("config", "code"), "", task, rows
    )


def opened(task, rows="label", **options):
    return open_dataset(spec(task, rows, **options))


@pytest.mark.parametrize("task", ["binary", "multiclass"])
@pytest.mark.parametrize("rows", ["label", "picture"])
def test_an_image_with_one_class_is_one_row(task, rows):
    assert type(opened(task, rows)) is Pictures


def test_each_label_of_an_image_is_a_row():
    dataset = opened("multilabel")
    labels = unwrap_rows(dataset).splits["evaluation"].labels
    rows = dataset.splits["evaluation"]
    wanted = [(p, k) for p in range(12) for k in range(3) if labels[p, k] == 1]
    assert [(int(p), int(k)) for p, k in zip(dataset.image_numbers, rows.labels, strict=True)] == wanted
    assert list(rows.ids) == [f"evaluation-{p:02d}#kind {k}" for p, k in wanted]
    assert list(map(image_id_of, rows.ids)) == [f"evaluation-{p:02d}" for p, _ in wanted]
    assert rows.labels.dtype == np.int64
    assert dataset.num_classes == 3
    np.testing.assert_array_equal(dataset.source_labels, labels[[p for p, _ in wanted]])
    # The second image has no label.
    assert dataset.num_without_rows == (labels != 1).all(1).sum() >= 1
    pixels = unwrap_rows(dataset).images("evaluation", 0, 12)
    for start, stop in ((0, len(rows)), (1, 2), (2, 9), (3, 3)):
        np.testing.assert_array_equal(
            dataset.images("evaluation", start, stop), pixels[[p for p, _ in wanted[start:stop]]]
        )
    np.testing.assert_array_equal(dataset.splits["train"].labels, unwrap_rows(dataset).splits["train"].labels)
    assert len(dataset.images("train", 0, 5)) == 5


@pytest.mark.parametrize("numbers", [1, 2])
def test_each_number_of_a_regression_is_a_row(numbers):
    dataset = opened("regression", numbers=numbers)
    labels, rows = unwrap_rows(dataset).splits["evaluation"].labels, dataset.splits["evaluation"]
    assert rows.labels.tolist() == list(range(numbers)) * 12
    np.testing.assert_array_equal(dataset.source_labels, labels.reshape(-1))
    assert len(set(rows.ids)) == 12 * numbers
    assert rows.ids[0] == ("evaluation-00" if numbers == 1 else "evaluation-00#kind 0")


@pytest.mark.parametrize("task", ["multilabel", "regression"])
def test_a_target_by_number_has_one_row_per_image(task):
    dataset = opened(task, "picture")
    assert dataset.splits["evaluation"].ids == unwrap_rows(dataset).splits["evaluation"].ids
    assert check_target(0, dataset) == 0
    with pytest.raises(HeatproofError, match="is 9, and the dataset has"):
        check_target(9, dataset)


@pytest.mark.parametrize("task", ["binary", "multiclass", "multilabel", "regression"])
def test_distinct_labels_of_a_callable_target_are_sorted_and_the_same_in_every_job(task):
    dataset, again = opened(task, "distinct"), opened(task, "distinct")
    labels, rows = unwrap_rows(dataset).splits["evaluation"].labels, dataset.splits["evaluation"]
    np.testing.assert_array_equal(dataset.targets, again.targets)
    np.testing.assert_array_equal(dataset.targets, np.unique(labels, axis=0))
    np.testing.assert_array_equal(dataset.targets[rows.labels], labels)
    np.testing.assert_array_equal(dataset.source_labels, labels)
    assert dataset.num_classes == len(dataset.class_names) == len(dataset.targets)
    assert rows.ids == unwrap_rows(dataset).splits["evaluation"].ids
    assert check_target("task_examples:margin", dataset) == "label"
    assert describe_rows(dataset, "mine") == []


def test_labels_of_a_callable_target_are_named():
    assert opened("multiclass", "distinct").class_names == ("kind 0", "kind 1", "kind 2")
    assert "kind 0 + kind 1" in opened("multilabel", "distinct").class_names
    assert "no label" in opened("multilabel", "distinct").class_names


@pytest.mark.parametrize(
    ("first", "other"), [(("a#b", "c"), ("a", "b#c")), (("a%23", "b"), ("a", "%23b")), (("a", "b%23"), ("a", "b#"))]
)
def test_row_ids_are_unique(first, other):
    assert row_id(*first) != row_id(*other)
    assert image_id_of(row_id(*first)) == first[0]


def test_files_and_attributes_are_those_of_the_images(tmp_path):
    paths = [tmp_path / f"{number}.npy" for number in range(4)]
    labels = np.array([[1, 1], [0, 1], [0, 0], [1, 0]], np.int8)
    for row, path in enumerate(paths):
        np.save(path, np.full((3, 4, 4), row / 8, np.float32))

    def load(*, seed):
        lists = {"evaluation": lambda: FileList([f"{path.stem}" for path in paths], labels, paths)}
        read = lambda places: np.stack([np.load(path) for path in places])  # noqa: E731
        return LazyDataset(("a", "b"), lists, read, seed=seed, shares={}, shared_files=tuple)

    rows = as_rows(load(seed=0), spec("multilabel"))
    order = [paths.index(path) for path in rows.dataset.image_files("evaluation")]
    assert [paths.index(path) for path in rows.image_files("evaluation")] == [order[p] for p in rows.image_numbers]
    np.testing.assert_array_equal(
        rows.images("evaluation", 0, 4)[:, 0, 0, 0] * 8, [order[p] for p in rows.image_numbers]
    )
    assert rows.shared_files == ()
    assert not hasattr(rows, "part_names")


def test_parts_are_those_of_the_images():
    creatures = parts(seed=0, evaluation_images=3, size=16)
    labels = np.array([[1, 0, 1], [0, 0, 0], [0, 1, 0]], np.int8)
    creatures.splits = {**creatures.splits, "evaluation": Split(creatures.splits["evaluation"].ids, labels)}
    plain = parts(seed=0, evaluation_images=3, size=16)

    class Several:
        class_names, num_classes, splits = ("a", "b", "c"), 3, creatures.splits
        images, part_names = plain.images, plain.part_names
        part_masks, without_part = plain.part_masks, plain.without_part

    rows = as_rows(Several(), spec("multilabel"))
    assert isinstance(rows, HasParts)
    assert rows.image_numbers.tolist() == [0, 0, 2]
    for read in ("images", "part_masks", "without_part"):
        complete = getattr(plain, read)("evaluation", 0, 3)
        np.testing.assert_array_equal(getattr(rows, read)("evaluation", 0, 3), complete[[0, 0, 2]])
    assert not isinstance(as_rows(task_examples.dataset(seed=0, task="multilabel"), spec("multilabel")), HasParts)


def test_a_manifest_has_the_image_and_label_of_each_row(tmp_path, caplog):
    dataset_spec = spec("multilabel")
    with caplog.at_level("INFO"):
        Prepare(dataset=dataset_spec, manifest=str(tmp_path / "mine.json")).run(Runtime())
    manifest, rows = read_checksummed(tmp_path / "mine.json"), open_dataset(dataset_spec)
    assert manifest["task"] == "multilabel"
    assert manifest["class_names"] == ["kind 0", "kind 1", "kind 2"]
    evaluation = manifest["splits"]["evaluation"]
    assert evaluation["ids"] == list(rows.splits["evaluation"].ids)
    assert evaluation["pictures"] == list(map(image_id_of, evaluation["ids"]))
    assert evaluation["given"] == rows.source_labels.tolist()
    assert np.shape(manifest["splits"]["train"]["labels"]) == (36, 3)
    assert read_record(record_path(tmp_path / "mine.json")).listed["evaluation"][1] == len(rows.splits["evaluation"])
    count, none = len(rows.splits["evaluation"]), rows.num_without_rows
    assert f"mine: 12 evaluation images are {count} rows, one for each label; {none} without a label" in caplog.text


def changed_dataset(task, labels=None, /, **attributes):
    dataset = task_examples.dataset(seed=0, task=task)
    for name, value in attributes.items():
        setattr(dataset, name, value)
    if labels is not None:
        old = dataset.splits["evaluation"]
        dataset.splits["evaluation"] = Split(old.ids[: len(labels)], np.asarray(labels))
    return dataset


WRONG = {
    "classes of several labels": ("multiclass", changed_dataset("multilabel"), "write task: multilabel"),
    "classes of numbers": ("multiclass", changed_dataset("multiclass", [0.5, 1.0]), "write task: regression"),
    "binary of three": (
        "binary",
        changed_dataset("multiclass"),
        "binary, and the dataset has 3 classes: write task: multiclass",
    ),
    "labels of a class": (
        "multilabel",
        changed_dataset("multiclass"),
        r"give \(images, 3\), 1 for a label that is present",
    ),
    "another number of labels": ("multilabel", changed_dataset("multilabel", [[1, 0]]), r"give \(images, 3\)"),
    "a label of 2": (
        "multilabel",
        changed_dataset("multilabel", [[1, 0, 2]]),
        r"has the label 2: it has to be 1 \(present\)",
    ),
    "no label that is present": (
        "multilabel",
        changed_dataset("multilabel", [[0, 0, -1]]),
        "has a label that is present: there is none to explain",
    ),
    "one name of two labels": (
        "multilabel",
        changed_dataset("multilabel", class_names=("a", "a", "b")),
        "3 labels and 2 names for them",
    ),
    "numbers that are none": ("regression", changed_dataset("regression", [1.0, np.nan]), "not a finite number"),
    "numbers of another width": (
        "regression",
        changed_dataset("regression", [[1.0, 2.0]]),
        "regression with 1 number an image",
    ),
    "another task": (
        "multiclass",
        changed_dataset("multilabel", task="multilabel"),
        "its task is multilabel, and the config has",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_labels_of_another_task_are_refused(what):
    task, dataset, message = WRONG[what]
    with pytest.raises(HeatproofError, match=message):
        check_dataset(dataset, "mine", task)


@pytest.mark.parametrize("task", ["binary", "multiclass", "multilabel", "regression"])
def test_labels_of_each_task_are_accepted(task):
    recorded = check_dataset(changed_dataset(task), "mine", task)
    assert np.shape(recorded["evaluation"]["labels"]) == ((12, 3) if task == "multilabel" else (12,))


def test_a_binary_dataset_can_be_used_as_multiclass():
    check_dataset(changed_dataset("binary", task="binary"), "mine", "multiclass")

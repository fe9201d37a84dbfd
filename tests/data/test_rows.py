"""Rows of the evaluation split: the image and the output of each row, for all tasks."""

import numpy as np
import pytest
import task_examples
from task_examples import Pictures

from heatproof.base.provenance import Key
from heatproof.base.specs import DatasetSpec
from heatproof.base.tasks import ROW_SEPARATOR, row_id
from heatproof.data.checks import check_dataset, check_target, describe_rows, open_dataset
from heatproof.data.lazy import FileList, LazyDataset
from heatproof.data.parts import parts
from heatproof.data.registry import HasParts, Split
from heatproof.data.rows import as_rows, unwrap_rows
from heatproof.errors import HeatproofError
from heatproof.jobs.prepare import prepare
from heatproof.stores.manifest import read_checksummed
from heatproof.stores.source_files import read_record, record_path


def picture_of(row):
    """Return the image id of a row id."""
    return row.rpartition(ROW_SEPARATOR)[0]


def spec(task, rows="label", **options):
    made = {"task": task, **options}
    return DatasetSpec("task_examples:dataset", "questions", made, 3, "mine", Key("config", "code"), "", task, rows)


def opened(task, rows="label", **options):
    return open_dataset(spec(task, rows, **options))


@pytest.mark.parametrize("task", ["binary", "multiclass"])
@pytest.mark.parametrize("rows", ["label", "picture"])
def test_a_picture_of_a_class_is_a_row(task, rows):
    assert type(opened(task, rows)) is Pictures


def test_each_label_that_a_picture_has_is_a_row():
    made = opened("multilabel")
    labels = unwrap_rows(made).splits["evaluation"].labels
    rows = made.splits["evaluation"]
    wanted = [(p, k) for p in range(12) for k in range(3) if labels[p, k] == 1]
    assert [(int(p), int(k)) for p, k in zip(made.image_numbers, rows.labels, strict=True)] == wanted
    assert list(rows.ids) == [f"evaluation-{p:02d}#kind {k}" for p, k in wanted]
    assert list(map(picture_of, rows.ids)) == [f"evaluation-{p:02d}" for p, _ in wanted]
    assert rows.labels.dtype == np.int64
    assert made.num_classes == 3
    np.testing.assert_array_equal(made.source_labels, labels[[p for p, _ in wanted]])
    # The second image has no label.
    assert made.num_without_rows == (labels != 1).all(1).sum() >= 1
    pixels = unwrap_rows(made).images("evaluation", 0, 12)
    for start, stop in ((0, len(rows)), (1, 2), (2, 9), (3, 3)):
        np.testing.assert_array_equal(
            made.images("evaluation", start, stop), pixels[[p for p, _ in wanted[start:stop]]]
        )
    np.testing.assert_array_equal(made.splits["train"].labels, unwrap_rows(made).splits["train"].labels)
    assert len(made.images("train", 0, 5)) == 5


@pytest.mark.parametrize("numbers", [1, 2])
def test_each_number_of_a_regression_is_a_row(numbers):
    made = opened("regression", numbers=numbers)
    labels, rows = unwrap_rows(made).splits["evaluation"].labels, made.splits["evaluation"]
    assert rows.labels.tolist() == list(range(numbers)) * 12
    np.testing.assert_array_equal(made.source_labels, labels.reshape(-1))
    assert len(set(rows.ids)) == 12 * numbers
    assert rows.ids[0] == ("evaluation-00" if numbers == 1 else "evaluation-00#kind 0")


@pytest.mark.parametrize("task", ["multilabel", "regression"])
def test_one_number_of_all_pictures_is_asked_of_each_picture(task):
    made = opened(task, "picture")
    assert made.splits["evaluation"].ids == unwrap_rows(made).splits["evaluation"].ids
    assert check_target(0, made) == 0
    with pytest.raises(HeatproofError, match="is 9, and the dataset has"):
        check_target(9, made)


@pytest.mark.parametrize("task", ["binary", "multiclass", "multilabel", "regression"])
def test_distinct_labels_of_a_callable_target_are_sorted_and_the_same_in_every_job(task):
    made, again = opened(task, "distinct"), opened(task, "distinct")
    labels, rows = unwrap_rows(made).splits["evaluation"].labels, made.splits["evaluation"]
    np.testing.assert_array_equal(made.targets, again.targets)
    np.testing.assert_array_equal(made.targets, np.unique(labels, axis=0))
    np.testing.assert_array_equal(made.targets[rows.labels], labels)
    np.testing.assert_array_equal(made.source_labels, labels)
    assert made.num_classes == len(made.class_names) == len(made.targets)
    assert rows.ids == unwrap_rows(made).splits["evaluation"].ids
    assert check_target("task_examples:margin", made) == "label"
    assert describe_rows(made, "mine") == []


def test_labels_of_a_callable_target_in_words():
    assert opened("multiclass", "distinct").class_names == ("kind 0", "kind 1", "kind 2")
    assert "kind 0 + kind 1" in opened("multilabel", "distinct").class_names
    assert "no label" in opened("multilabel", "distinct").class_names


@pytest.mark.parametrize(
    ("one", "other"), [(("a#b", "c"), ("a", "b#c")), (("a%23", "b"), ("a", "%23b")), (("a", "b%23"), ("a", "b#"))]
)
def test_no_two_rows_have_one_id(one, other):
    assert row_id(*one) != row_id(*other)
    assert picture_of(row_id(*one)) == one[0]


def test_files_and_attributes_are_those_of_the_pictures(tmp_path):
    paths = [tmp_path / f"{number}.npy" for number in range(4)]
    labels = np.array([[1, 1], [0, 1], [0, 0], [1, 0]], np.int8)
    for place, path in enumerate(paths):
        np.save(path, np.full((3, 4, 4), place / 8, np.float32))

    def made(*, seed):
        lists = {"evaluation": lambda: FileList([f"{path.stem}" for path in paths], labels, paths)}
        read = lambda places: np.stack([np.load(place) for place in places])  # noqa: E731
        return LazyDataset(("a", "b"), lists, read, seed=seed, shares={}, shared_files=tuple)

    rows = as_rows(made(seed=0), spec("multilabel"))
    order = [paths.index(path) for path in rows.dataset.image_files("evaluation")]
    assert [paths.index(path) for path in rows.image_files("evaluation")] == [order[p] for p in rows.image_numbers]
    np.testing.assert_array_equal(
        rows.images("evaluation", 0, 4)[:, 0, 0, 0] * 8, [order[p] for p in rows.image_numbers]
    )
    assert rows.shared_files == ()
    assert not hasattr(rows, "part_names")


def test_parts_are_those_of_the_pictures():
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
        whole = getattr(plain, read)("evaluation", 0, 3)
        np.testing.assert_array_equal(getattr(rows, read)("evaluation", 0, 3), whole[[0, 0, 2]])
    assert not isinstance(as_rows(task_examples.dataset(seed=0, task="multilabel"), spec("multilabel")), HasParts)


def test_a_manifest_says_of_rows_what_they_are_of(tmp_path, caplog):
    told = spec("multilabel")
    with caplog.at_level("INFO"):
        prepare(told, str(tmp_path / "mine.json"))
    made, rows = read_checksummed(tmp_path / "mine.json"), open_dataset(told)
    assert made["task"] == "multilabel"
    assert made["class_names"] == ["kind 0", "kind 1", "kind 2"]
    evaluation = made["splits"]["evaluation"]
    assert evaluation["ids"] == list(rows.splits["evaluation"].ids)
    assert evaluation["pictures"] == list(map(picture_of, evaluation["ids"]))
    assert evaluation["given"] == rows.source_labels.tolist()
    assert np.shape(made["splits"]["train"]["labels"]) == (36, 3)
    assert read_record(record_path(tmp_path / "mine.json")).listed["evaluation"][1] == len(rows.splits["evaluation"])
    count, none = len(rows.splits["evaluation"]), rows.num_without_rows
    assert f"mine: 12 evaluation images are {count} rows, one for each label; {none} without a label" in caplog.text


def changed(task, labels=None, /, **attributes):
    made = task_examples.dataset(seed=0, task=task)
    for name, value in attributes.items():
        setattr(made, name, value)
    if labels is not None:
        old = made.splits["evaluation"]
        made.splits["evaluation"] = Split(old.ids[: len(labels)], np.asarray(labels))
    return made


WRONG = {
    "classes of several labels": ("multiclass", changed("multilabel"), "write task: multilabel"),
    "classes of numbers": ("multiclass", changed("multiclass", [0.5, 1.0]), "write task: regression"),
    "binary of three": (
        "binary",
        changed("multiclass"),
        "binary, and the dataset has 3 classes: write task: multiclass",
    ),
    "labels of a class": ("multilabel", changed("multiclass"), r"give \(images, 3\), 1 for a label that is present"),
    "another number of labels": ("multilabel", changed("multilabel", [[1, 0]]), r"give \(images, 3\)"),
    "a label of 2": ("multilabel", changed("multilabel", [[1, 0, 2]]), r"has the label 2: it has to be 1 \(present\)"),
    "no label that is present": (
        "multilabel",
        changed("multilabel", [[0, 0, -1]]),
        "has a label that is present: there is none to explain",
    ),
    "one name of two labels": (
        "multilabel",
        changed("multilabel", class_names=("a", "a", "b")),
        "3 labels and 2 names for them",
    ),
    "numbers that are none": ("regression", changed("regression", [1.0, np.nan]), "not a finite number"),
    "numbers of another width": (
        "regression",
        changed("regression", [[1.0, 2.0]]),
        "regression with 1 number an image",
    ),
    "another task": (
        "multiclass",
        changed("multilabel", task="multilabel"),
        "its task is multilabel, and the config has",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_labels_that_are_not_those_of_the_task(what):
    task, made, says = WRONG[what]
    with pytest.raises(HeatproofError, match=says):
        check_dataset(made, "mine", task)


@pytest.mark.parametrize("task", ["binary", "multiclass", "multilabel", "regression"])
def test_labels_of_each_task_are_sound(task):
    found = check_dataset(changed(task), "mine", task)
    assert np.shape(found["evaluation"]["labels"]) == ((12, 3) if task == "multilabel" else (12,))


def test_a_dataset_that_is_binary_by_itself_can_have_two_outputs():
    check_dataset(changed("binary", task="binary"), "mine", "multiclass")

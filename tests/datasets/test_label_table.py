"""A flat folder with a CSV file of labels, splits and groups."""

import numpy as np
import pytest

from heatproof.datasets.image_folder import image_folder
from heatproof.datasets.splits import grouped_splits
from heatproof.errors import HeatproofError


def write(folder, rows, header="file,label", ending=".png", name="labels.csv"):
    (folder / name).write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")


@pytest.fixture
def flat(tmp_path, save):
    """Twenty images, ten of each label; each three consecutive images have one patient, the group."""
    rows = []
    for number in range(20):
        save(tmp_path / f"p{number:02d}.png", 20 * (number % 2))
        rows.append((f"p{number:02d}.png", "bee" if number % 2 else "ant", f"patient {number // 3}"))
    return tmp_path, rows


def opened(folder, **options):
    return image_folder(seed=0, root=str(folder), labels="labels.csv", size=8, **options)


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_labels_are_those_of_the_table(flat, sound, delimiter):
    folder, rows = flat
    write(folder, [delimiter.join(row[:2]) for row in rows], f"\ufefffile{delimiter}label")
    dataset = opened(folder)
    sound(dataset, 8)
    assert dataset.class_names == ("ant", "bee")
    assert {name: len(split) for name, split in dataset.splits.items()} == {
        "train": 14,
        "validation": 2,
        "evaluation": 4,
    }
    red = dataset.images("train", 0, 14)[:, 0].mean((1, 2)) * 255
    np.testing.assert_allclose(red, 20 * dataset.splits["train"].labels, atol=0.01)


def test_columns_may_have_other_names_and_files_no_endings(flat, sound):
    folder, rows = flat
    write(folder, [f"{10 if row[1] == 'bee' else 9},{row[0][:-4]}" for row in rows], "diagnosis,id")
    dataset = opened(folder, columns={"file": "id", "label": "diagnosis"})
    sound(dataset, 8)
    assert dataset.class_names == ("9", "10")


def test_splits_are_those_of_the_table(flat):
    folder, rows = flat
    splits = ["train"] * 12 + ["val"] * 4 + ["Test"] * 4
    write(folder, [f"{row[0]},{row[1]},{split}" for row, split in zip(rows, splits, strict=True)], "file,label,split")
    dataset = opened(folder)
    assert {name: len(split) for name, split in dataset.splits.items()} == {
        "train": 12,
        "validation": 4,
        "evaluation": 4,
    }
    assert set(dataset.splits["evaluation"].ids) == {f"p{number}.png" for number in range(16, 20)}
    with pytest.raises(HeatproofError, match=r"evaluation images .* its table labels\.csv: leave the share"):
        opened(folder, evaluation=0.3)


@pytest.mark.parametrize("seed", range(5))
def test_no_group_is_in_two_splits(flat, seed):
    folder, rows = flat
    write(folder, [",".join(row) for row in rows], "file,label,group")
    dataset = image_folder(seed=seed, root=str(folder), labels="labels.csv", size=8)
    patient = {row[0]: row[2] for row in rows}
    patients = [{patient[image_id] for image_id in split.ids} for split in dataset.splits.values()]
    assert all(patients)
    assert sum(map(len, patients)) == len(set.union(*patients)) == 7
    assert sum(len(split) for split in dataset.splits.values()) == 20


def test_shares_of_classes_are_met_with_many_groups():
    rng = np.random.default_rng(0)
    groups = [f"g{number}" for number in rng.integers(0, 200, 2000)]
    labels = rng.choice(3, 2000, p=[0.7, 0.25, 0.05])
    splits = grouped_splits(labels, groups, {"validation": 0.1, "evaluation": 0.3}, 0)
    for name, share in (("validation", 0.1), ("evaluation", 0.3), ("train", 0.6)):
        for label in range(3):
            measured = (labels[splits[name]] == label).sum() / (labels == label).sum()
            assert measured == pytest.approx(share, abs=0.02)
    assert np.array_equal(np.sort(np.concatenate(list(splits.values()))), np.arange(2000))


BAD = {
    "missing file": (
        lambda rows: [*rows, "none.png,bee"],
        r"names 1 image\(s\) that are not in .* none\.png in row 22",
    ),
    "file without row": (
        lambda rows: rows[1:],
        r"1 image\(s\) in .* have no row in .*labels\.csv, the first p00\.png",
    ),
    "two rows": (lambda rows: [*rows, rows[0]], r"1 image\(s\) in more than one row, the first p00\.png"),
    "no label": (lambda rows: [*rows[1:], "p00.png,"], r"Row 21 of .*labels\.csv has no label"),
    "one label": (lambda rows: [f"{row[:8]}ant" for row in rows], r"has 1 labels: a classifier needs two"),
    "one picture": (lambda rows: [*rows[1:], "p00.png,atn"], r"1 label\(s\) .* have one image, the first 'atn'"),
    "no rows": (lambda rows: [], r"has no rows: add one for each image"),
}


@pytest.mark.parametrize("what", BAD)
def test_tables_that_do_not_match_the_folder_are_refused(flat, what):
    folder, rows = flat
    change, message = BAD[what]
    write(folder, change([",".join(row[:2]) for row in rows]))
    with pytest.raises(HeatproofError, match=message):
        opened(folder)


def test_missing_columns_are_named(flat):
    folder, rows = flat
    write(folder, [",".join(row[:2]) for row in rows], "picture,label")
    with pytest.raises(
        HeatproofError, match=r"no column file or filename .* its columns are picture, label: name .* {file: …}"
    ):
        opened(folder)
    with pytest.raises(HeatproofError, match="no column 'patient' for `group`; its columns are picture, label"):
        opened(folder, columns={"file": "picture", "group": "patient"})
    with pytest.raises(HeatproofError, match="`columns` has the unknown key 'groups': did you mean 'group'"):
        opened(folder, columns={"groups": "patient"})
    with pytest.raises(HeatproofError, match=r"no table of labels .*none\.csv"):
        image_folder(seed=0, root=str(folder), labels="none.csv")
    with pytest.raises(HeatproofError, match="`labels` names no table"):
        image_folder(seed=0, root=str(folder), columns={"file": "a"})


def grouped(folder, rows, group_of, **options):
    write(folder, [f"{row[0]},{row[1]},{group_of(number)}" for number, row in enumerate(rows)], "file,label,group")
    return lambda: opened(folder, **options).splits["train"]


def test_groups_that_cannot_be_divided_are_refused(flat):
    folder, rows = flat
    with pytest.raises(HeatproofError, match="2 groups for the splits validation, evaluation, train"):
        grouped(folder, rows, lambda number: number % 2)()
    with pytest.raises(HeatproofError, match="class number 1 has images of 1 group"):
        grouped(folder, rows, lambda number: "x" if number % 2 else number, evaluation=0.6)()
    write(
        folder,
        [f"{row[0]},{row[1]},a,{'test' if number else 'train'}" for number, row in enumerate(rows)],
        "file,label,group,split",
    )
    with pytest.raises(HeatproofError, match=r"The group 'a' of .* is in the splits train and evaluation"):
        opened(folder)
    write(folder, [f"{row[0]},{row[1]},dev" for row in rows], "file,label,split")
    with pytest.raises(HeatproofError, match=r"Row 2 of .* has the split 'dev'"):
        opened(folder)


@pytest.mark.parametrize(
    ("header", "cells", "message"),
    [
        ("file,partition", ("0", "1"), "partition looks like a column of splits"),
        ("file,evaluation", ("train", "test"), "evaluation looks like a column of splits"),
        ("file,label,label", ("x,ant", "y,bee"), "2 columns of the name 'label'"),
        ("file,Label,label", ("x,ant", "y,bee"), "columns Label and label: name the right one"),
        ("file", (None, None), "one column, file, and no column of labels"),
        ("file,label", ("ant, an insect", "bee"), "quotes around cells that hold a separator"),
    ],
)
def test_tables_without_a_clear_column_of_labels_are_refused(flat, header, cells, message):
    folder, rows = flat
    write(
        folder, [",".join(filter(None, [row[0], cells[row_number % 2]])) for row_number, row in enumerate(rows)], header
    )
    with pytest.raises(HeatproofError, match=message):
        opened(folder)


def test_a_column_has_one_meaning(flat):
    folder, rows = flat
    write(folder, [",".join(row[:2]) for row in rows])
    with pytest.raises(HeatproofError, match="for `label` and for `file`"):
        opened(folder, columns={"label": "file"})


def test_two_spellings_of_a_group_are_one_group(flat):
    folder, rows = flat
    groups = [f"{row // 4}{'.0' * (row % 4 == 3)}" for row in range(20)]
    lines = [f"{row[0]},{row[1]},{group}" for row, group in zip(rows, groups, strict=True)]
    write(folder, lines, "file,label,group")
    dataset = opened(folder, evaluation=0.4, validation=0.2)
    seen = [{int(image_id[1:3]) // 4 for image_id in split.ids} for split in dataset.splits.values()]
    assert sum(map(len, seen)) == 5


def test_few_groups_with_one_number_each_are_divided():
    numbers = np.repeat(np.arange(12) / 3, 4)
    splits = grouped_splits(numbers, [f"p{row // 4}" for row in range(48)], {"validation": 0.1, "evaluation": 0.2}, 0)
    assert all(len(rows) for rows in splits.values())
    with pytest.raises(HeatproofError, match="the largest, 'a', has 46 of 48"):
        grouped_splits(np.arange(48) / 3, [*"a" * 46, "b", "c"], {"validation": 0.4, "evaluation": 0.2}, 0)


def test_outputs_can_name_numeric_classes_by_numbers(flat):
    folder, rows = flat
    write(folder, [f"{row[0]},{int(row[1] == 'bee')}" for row in rows])
    dataset = opened(folder, outputs={0: 4, 1: 2}, num_outputs=5)
    assert {int(label) for split in dataset.splits.values() for label in split.labels} == {2, 4}
    with pytest.raises(HeatproofError, match="binary, and `outputs` says that there are 5"):
        opened(folder, outputs={"0": 4, "1": 2}, num_outputs=5, task="binary")


def test_rows_that_deny_a_label_are_refused(flat):
    folder, rows = flat
    lines = [f"{row[0][:-4]},/m/0{label},{int(row[1] == 'bee')}" for row in rows for label in (1, 2)]
    write(folder, lines, "ImageID,LabelName,Confidence")
    columns = {"label": "LabelName"}
    with pytest.raises(HeatproofError, match=r"Row 2 of .* has 0 in the column 'Confidence', which says that"):
        opened(folder, columns=columns, task="multilabel")
    write(folder, [line[:-1] + "1" for line in lines], "ImageID,LabelName,Confidence")
    assert opened(folder, columns=columns, task="multilabel").class_names == ("/m/01", "/m/02")

"""Formats and encodings of tables of labels, and the names of image files in them."""

import gzip
import io
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from heatproof.datasets.image_folder import image_folder
from heatproof.datasets.label_file import read_raw_table
from heatproof.datasets.label_paths import ImageFileIndex, match_image_files
from heatproof.errors import HeatproofError

ROWS = [["file", "label"], ["a.png", "Käfer"], ["b c.png", "Bär"]]
PLAIN = "\n".join(map(",".join, ROWS))


def parquet() -> bytes:
    out = io.BytesIO()
    pd.DataFrame(ROWS[1:], columns=ROWS[0]).to_parquet(out)
    return out.getvalue()


RECORDS = [dict(zip(ROWS[0], row, strict=True)) for row in ROWS[1:]]
FILES = {
    "comma": PLAIN.encode(),
    "semicolon": PLAIN.replace(",", ";").encode(),
    "tab": PLAIN.replace(",", "\t").encode(),
    "quotes": '"file","label"\n"a.png","Käfer"\n"b c.png","Bär"\n'.encode(),
    "a mark of UTF-8": PLAIN.encode("utf-8-sig"),
    "UTF-16": PLAIN.encode("utf-16"),
    "UTF-16, big end first": b"\xfe\xff" + PLAIN.encode("utf-16-be"),
    "ends of Windows": PLAIN.replace("\n", "\r\n").encode(),
    "ends of old Macs": PLAIN.replace("\n", "\r").encode(),
    "blank lines": PLAIN.replace("\n", "\n\n").encode() + b"\n\n",
    "gzip": gzip.compress(PLAIN.encode()),
    "gzip in two parts": gzip.compress(PLAIN[:20].encode()) + gzip.compress(PLAIN[20:].encode()),
    "Excel's own line": ("sep=;\n" + PLAIN.replace(",", ";")).encode(),
    "rows that end with a separator": PLAIN.replace("\n", ",\n").replace("label,", "label", 1).encode() + b",",
    "JSON": json.dumps(RECORDS, indent=1).encode(),
    "JSON lines": "\n".join(map(json.dumps, RECORDS)).encode(),
    "JSON lines, packed": gzip.compress("\r\n".join(map(json.dumps, RECORDS)).encode()),
    "Parquet": parquet(),
}


@pytest.mark.parametrize("kind", FILES)
def test_formats_are_recognised_by_their_content(tmp_path, kind):
    path = tmp_path / "labels"
    path.write_bytes(FILES[kind])
    table = read_raw_table(path)
    assert [table.names[:2], *map(list, zip(*table.columns[:2], strict=True))] == ROWS
    assert not table.is_encoding_guessed


def test_the_config_can_name_an_encoding(tmp_path):
    path = tmp_path / "labels.csv"
    for encoding in ("cp1252", "latin-1", "utf-16-le", "mac-roman", "utf-8"):
        path.write_bytes(PLAIN.encode(encoding))
        assert read_raw_table(path, encoding=encoding).columns[1] == ["Käfer", "Bär"]
    path.write_bytes(PLAIN.encode("cp1252"))
    assert read_raw_table(path).is_encoding_guessed
    for encoding, message in (("utf-8", "is not text in utf-8"), ("utf9", "not an encoding of Python"), ("hex", "hex")):
        with pytest.raises(HeatproofError, match=message):
            read_raw_table(path, encoding=encoding)


BAD = {
    "nothing": (b"", "it is empty"),
    "NUL": (b"file,label\na\0.png,x", "it is not text in UTF-8"),
    "half of gzip": (gzip.compress(PLAIN.encode())[:-9], "its end is missing"),
    "an old workbook": (b"\xd0\xcf\x11\xe0" + bytes(9), "is an Excel workbook, .* save the table as CSV"),
    "a workbook": (b"PK\x03\x04", "is an Excel workbook or a ZIP archive, .* save the table as CSV"),
    "half of Parquet": (b"PAR1xx", "cannot be read as a table of labels"),
    "a JSON list of texts": (b'["a", "b"]', "it is not a list of records"),
    "JSON over several lines": (b'{"a":\n 1}', "neither a list of records nor one record a line"),
    "a JSON mapping of files to labels": (b'{"a.png": "x", "b.png": "y"}', "it is not a list of records"),
    "rows that are too long": (b"file,label\na.png,x\nb.png,y,z,w", "Expected 2 fields in line 3, saw 4"),
    "far too many, packed": (gzip.compress(bytes(2**29 + 1)), "too many bytes, unpacked"),
}


@pytest.mark.parametrize("kind", BAD)
def test_invalid_tables_are_refused_in_one_sentence(tmp_path, kind):
    content, message = BAD[kind]
    (tmp_path / "labels").write_bytes(content)
    with pytest.raises(HeatproofError, match=message) as caught:
        read_raw_table(tmp_path / "labels")
    assert "labels" in str(caught.value)
    assert "save" in str(caught.value)


def test_letters_in_unused_columns_need_no_encoding(flat):
    (flat / "labels.csv").write_bytes(
        b"file,label,remark\n" + b"".join(b"%d.png,%s,K\xe4fer\n" % (n, b"ab"[n % 2 :][:1]) for n in range(20))
    )
    dataset = image_folder(seed=0, root=str(flat), labels="labels.csv", columns={"label": "label"}, size=8)
    assert dataset.class_names == ("a", "b")


@pytest.fixture
def flat(tmp_path, save):
    for number in range(20):
        save(tmp_path / f"{number}.png", number)
    return tmp_path


IMAGE_FILES = ["train/p1/a.png", "train/p2/b.jpg", "test/p3/c.v2.png"]
NAMES = {
    "paths": IMAGE_FILES,
    "without endings": ["train/p1/a", "train/p2/b", "test/p3/c.v2"],
    "a folder in front": [f"Set-v1.0/{path}" for path in IMAGE_FILES],
    "two folders in front": [f"/data/Set/{path}" for path in IMAGE_FILES],
    "backslashes": [path.replace("/", "\\") for path in IMAGE_FILES],
    "a folder in front and backslashes": ["C:\\Set\\" + path.replace("/", "\\") for path in IMAGE_FILES],
    "a dot in front": [f"./{path}" for path in IMAGE_FILES],
    "names alone": ["a.png", "b.jpg", "c.v2.png"],
    "names without endings": ["a", "b", "c.v2"],
    "the ends of paths": ["p1/a.png", "p2/b.jpg", "p3/c.v2.png"],
    "another folder in front of ends": ["images/p1/a.png", "images/p2/b.jpg", "images/p3/c.v2.png"],
}


@pytest.mark.parametrize("kind", NAMES)
def test_image_files_are_found_by_their_names_in_tables(kind):
    assert ImageFileIndex(IMAGE_FILES).find_all(NAMES[kind]) == IMAGE_FILES
    assert match_image_files(Path("t"), Path("r"), NAMES[kind], IMAGE_FILES) == IMAGE_FILES
    assert ImageFileIndex(IMAGE_FILES).is_named_by(NAMES[kind])


def test_a_name_of_several_image_files_is_refused():
    paths = ["1/a.png", "2/a.png", "b.png", "b.jpg"]
    with pytest.raises(
        HeatproofError, match=r"names a\.png in row 2, and several folders in r have an image of that name"
    ):
        match_image_files(Path("t"), Path("r"), ["a.png"], paths)
    assert ImageFileIndex(paths).find_all(["b", "b.jpg", "1/a"]) == ["", "b.jpg", "1/a.png"]


@pytest.mark.parametrize("name", ["x/A.JPG", "A.jpg", "a.dcm"])
def test_an_image_file_with_another_ending_is_not_guessed(name):
    with pytest.raises(
        HeatproofError, match=r"names 1 image\(s\) .* or write names without endings, if that is x/a\.jpg"
    ):
        match_image_files(Path("t"), Path("r"), [name, "x/b.jpg"], ["x/a.jpg", "x/b.jpg"])


def test_a_complete_path_takes_precedence_over_a_partial_one():
    assert ImageFileIndex(["a.png", "x/a.png"]).find_all(["a.png", "x/a.png"]) == ["a.png", "x/a.png"]
    assert ImageFileIndex(["a.png", "x/a.jpg"]).find_all(["a", "x/a"]) == ["a.png", "x/a.jpg"]


def test_a_folder_prefix_in_only_some_rows_is_not_removed():
    with pytest.raises(HeatproofError, match=r"names 1 image\(s\) that are not in r, the first x/y/a.png in row 2"):
        match_image_files(Path("t"), Path("r"), ["x/y/a.png", "b.png"], ["a.png", "b.png"])


@pytest.mark.parametrize("header", ["File,LABEL,Split", "file_path,Class Name,SPLIT", "Image Index,class-name,split"])
def test_column_names_are_not_case_sensitive(flat, header):
    rows = [f"{n}.png,{'ab'[n % 2]},{('Train', 'VAL', 'Testing')[n // 2 % 3]}" for n in range(20)]
    (flat / "labels.csv").write_text("\n".join([header, *rows]))
    dataset = image_folder(seed=0, root=str(flat), labels="labels.csv", size=8)
    assert {name: len(split) for name, split in dataset.splits.items()} == {
        "train": 8,
        "validation": 6,
        "evaluation": 6,
    }


@pytest.mark.parametrize("column", ["split", "group"])
def test_rows_of_one_image_have_one_split_and_group(flat, column):
    rows = [f"{n}.png,{'ab'[n % 2]},{'train' if n % 3 else 'test'}" for n in range(20)]
    (flat / "labels.csv").write_text("\n".join([f"file,label,{column}", *rows, "1.png,a,test"]))
    with pytest.raises(HeatproofError, match=rf"has the image 1\.png in two {column}s: leave one"):
        image_folder(seed=0, root=str(flat), labels="labels.csv", task="multilabel")


def test_rows_of_one_image_with_several_labels_each_need_a_separator(flat):
    (flat / "labels.csv").write_text("\n".join(["file,label", *(f"{n % 20}.png,a|b" for n in range(90))]))
    with pytest.raises(HeatproofError, match=r"set separator: '\|' if that is 2 labels"):
        image_folder(seed=0, root=str(flat), labels="labels.csv", task="multilabel")
    dataset = image_folder(seed=0, root=str(flat), labels="labels.csv", separator="|", task="multilabel", size=8)
    assert dataset.class_names == ("a", "b")


def test_a_missing_label_among_several_is_named_by_its_row(flat):
    rows = [f"{n}.png,{'' if n == 9 else 'a|b'}" for n in range(20)]
    (flat / "labels.csv").write_text("\n".join(["file,label", *rows]))
    with pytest.raises(HeatproofError, match=r"Row 11 of .*labels\.csv has no label"):
        image_folder(seed=0, root=str(flat), labels="labels.csv", separator="|")


def test_options_of_a_table_need_a_table(flat):
    for options in ({"separator": "|"}, {"unknown": -1}, {"none": []}, {"header": False}, {"encoding": "cp1252"}):
        with pytest.raises(
            HeatproofError, match=rf"`{next(iter(options))}` is an option of a table, and `labels` names"
        ):
            image_folder(seed=0, root=str(flat), **options)


@pytest.mark.parametrize("task", ["multilabel", "regression"])
def test_class_folders_have_one_class_per_image(tmp_path, fill, task):
    fill(tmp_path, ["ant", "bee", "cow"], 4)
    with pytest.raises(HeatproofError, match=rf"task is {task}, .* name a table in `labels`"):
        image_folder(seed=0, root=str(tmp_path), task=task)
    with pytest.raises(HeatproofError, match=r"task is binary, and .* has 3 classes: set task: multiclass"):
        image_folder(seed=0, root=str(tmp_path), task="binary")
    assert image_folder(seed=0, root=str(tmp_path), task="multiclass").task == "multiclass"


def test_labels_are_mapped_to_outputs(flat):
    rows = [f"{n}.png,{('a|b', 'b', 'c')[n % 3]}" for n in range(20)]
    (flat / "labels.csv").write_text("\n".join(["file,label", *rows]))
    options = {"separator": "|", "outputs": {"a": 4, "b": 0, "c": 2}, "num_outputs": 5}
    dataset = image_folder(seed=0, root=str(flat), labels="labels.csv", size=8, **options)
    split = dataset.splits["train"]
    expected = {0: [1, -1, 0, -1, 1], 1: [1, -1, 0, -1, 0], 2: [0, -1, 1, -1, 0]}
    assert dataset.num_classes == 5
    for image_id, labels in zip(split.ids, split.labels, strict=True):
        np.testing.assert_array_equal(labels, expected[int(Path(image_id).stem) % 3])
    (flat / "labels.csv").write_text("\n".join(["file,label", *(f"{n}.png,{n / 2}" for n in range(20))]))
    with pytest.raises(HeatproofError, match="`outputs` numbers classes, and the task is regression"):
        image_folder(seed=0, root=str(flat), labels="labels.csv", task="regression", outputs={"a": 0}, num_outputs=5)

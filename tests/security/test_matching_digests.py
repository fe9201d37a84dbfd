"""Untrusted files with matching digests that heatproof would not write are refused in a sentence, and quickly."""

from __future__ import annotations

import io
import json
import struct
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.io
from numcodecs import Zstd
from PIL import Image

import heatproof
from heatproof.core.provenance import Key, digest
from heatproof.datasets.imagenet import _read_devkit
from heatproof.datasets.label_table import read_label_table
from heatproof.errors import HeatproofError
from heatproof.report.stores import read_store_info
from heatproof.store import reading
from heatproof.store.lazy import open_lazily
from heatproof.store.manifest import CHECKSUM_KEY, read_checksummed, require_manifest, write_manifest
from heatproof.store.reading import file_digest, parse_json
from heatproof.store.source_files import read_record, record_files, write_record
from heatproof.store.strict_yaml import load
from heatproof.store.table_formats import parse_parquet
from heatproof.store.zarr_store import ArraySpec, Layout, ensure_metadata, write_shard
from heatproof.workflow.commands.show_maps import dataset_of_store, show

DIGITS = {"name": "digits", "kind": "digits", "options": {}, "seed": 0}
MAPS = {"attribution": ArraySpec(("map", "y", "x"), (2, 4, 4))}


def make_store(path: Path, arrays=MAPS, names=("a", "b"), images=(0, 3), key="k", gap=None, **dataset) -> Path:
    made_by = {"dataset": {**DIGITS, **dataset}}
    coordinates = {"map": names} if names else {}
    layout = Layout(["i0", "i1", "i2"], np.arange(3), 3, arrays, {"key": "k", "made_by": made_by}, coordinates)
    ensure_metadata(path, layout)
    files = [write_shard(path, name, 0, 0, np.ones((3, *array.shape), array.dtype)) for name, array in arrays.items()]
    facts = {"shard": 0, "images": images, "gap": gap}
    write_manifest(path.with_suffix(".0.json"), files, spec_key=Key("c", "c"), key=key, **facts)
    return path


@pytest.fixture
def path(tmp_path):
    (tmp_path / "results/maps").mkdir(parents=True)
    return tmp_path / "results/maps/s.zarr"


def test_a_valid_store_is_read(path):
    make_store(path)
    assert open_lazily(path).sizes == {"image": 3, "map": 2, "y": 4, "x": 4}
    assert read_store_info(path).images == 3


@pytest.mark.parametrize(
    "change",
    [
        {"images": (0, 10**12)},
        {"key": "of another store"},
        {"key": "of another store", "gap": "it does not apply"},
        {"names": ("a", "b", "c")},
        {"names": ()},
        {"arrays": {"attribution": ArraySpec(("map", "y", "y"), (2, 4, 4))}},
        {"arrays": {"attribution": ArraySpec(("image", "y", "x"), (2, 4, 4))}},
        {"arrays": {"attribution": ArraySpec(("map",), (2,))}},
    ],
    ids=str,
)
def test_stores_with_contradictory_metadata_are_refused(path, change):
    make_store(path, **change)
    began = time.monotonic()
    with pytest.raises(HeatproofError):
        read_store_info(path)
    if change.get("names") != () and "(2,)" not in str(change):
        with pytest.raises(HeatproofError):
            open_lazily(path)
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("count", [0, 2, 4, 2**27])
def test_a_list_of_texts_that_does_not_match_its_shape_is_refused(path, count):
    make_store(path)
    texts = b"".join(struct.pack("<I", 2) + text for text in (b"i0", b"i1", b"i2"))
    frame = Zstd(level=3).encode(struct.pack("<I", count) + texts)
    chunk = path / "image_id/c/0"
    chunk.write_bytes(frame + bytes(4))
    group = json.loads((path / "zarr.json").read_text())
    attributes = group["attributes"]
    del attributes[CHECKSUM_KEY]
    attributes["files"]["image_id/c/0"] = file_digest(chunk)
    group["attributes"] = {**attributes, CHECKSUM_KEY: digest(attributes)}
    (path / "zarr.json").write_text(json.dumps(group))
    began = time.monotonic()
    with pytest.raises(HeatproofError, match="another size than its shape says"):
        read_store_info(path)
    assert time.monotonic() - began < 1


@pytest.mark.parametrize(
    "dataset",
    [
        {"options": {"x": 1}},
        {"options": {"validation": "all"}},
        {"kind": "image_folder"},
        {"kind": "image_folder", "options": {"root": 5}},
        {"kind": "image_folder", "options": {"root": ["a"]}},
        {"kind": "image_folder", "options": {"root": "a", "size": 10**9}},
    ],
    ids=str,
)
def test_options_of_a_stores_dataset_are_checked_as_in_a_config(path, dataset):
    make_store(path, **dataset)
    with pytest.raises(HeatproofError, match="option"):
        dataset_of_store(read_store_info(path))
    with pytest.raises(HeatproofError):
        show(path, "0", None, path.with_name("maps.png"))


# ---- manifests -------------------------------------------------------------------------------------------------------


def table(folder: Path, name: str, content: pd.DataFrame, **facts) -> Path:
    path = folder / f"{name}.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    content.to_csv(path, index=False)
    write_manifest(path.with_suffix(".json"), [path], spec_key=Key("c", "c"), key="k", **facts)
    return path


def test_two_files_that_are_exchanged_with_their_manifests_are_damaged(tmp_path):
    results = tmp_path / "results"
    first, two = (
        table(results / "ranking" / net, "table", pd.DataFrame({"method": [net]})).with_suffix("") for net in "ab"
    )
    assert require_manifest(f"{first}.json")["key"] == "k"
    for ending in (".csv", ".json"):
        Path(f"{first}{ending}").rename(tmp_path / "aside")
        Path(f"{two}{ending}").rename(f"{first}{ending}")
        (tmp_path / "aside").rename(f"{two}{ending}")
    with pytest.raises(HeatproofError, match="damaged"):
        require_manifest(f"{first}.json")


def test_a_results_folder_can_have_another_name_and_place(tmp_path):
    table(tmp_path / "results", "ranking/table", pd.DataFrame({"method": ["a"]}))
    (tmp_path / "results").rename(tmp_path / "received")
    assert heatproof.open(tmp_path / "received").tables["ranking/table"].method.tolist() == ["a"]


@pytest.mark.parametrize(
    "facts", [{"seconds": 10**400}, {"network_passes": 2**63}, {"costs": {"x": -(2**64)}}], ids=str
)
def test_a_manifest_with_numbers_beyond_64_bits_is_damaged(tmp_path, facts):
    path = table(tmp_path / "results", "scores", pd.DataFrame({"a": [1]}), **facts)
    assert read_checksummed(path.with_suffix(".json")) is None


def test_json_with_half_of_a_surrogate_pair_is_refused(tmp_path):
    assert parse_json(b'["\\ud83d\\ude00", "\\\\ud800"]') == ["\U0001f600", "\\ud800"]
    with pytest.raises(ValueError, match="surrogates"):
        parse_json(b'{"gap": "\\ud800"}')
    # With the name of a file that is not UTF-8, as errors of heatproof can quote it.
    path = table(tmp_path / "results", "scores", pd.DataFrame({"a": [1]}), gap="no file p\udcff.png")
    assert require_manifest(path.with_suffix(".json"))["gap"] == "no file p?.png"


@pytest.mark.parametrize("made_by", [{"dataset": 5}, {"dataset": {"manifest": 5}}, {"dataset": None}], ids=str)
def test_provenance_with_invalid_values_names_no_inputs(tmp_path, made_by):
    table(tmp_path / "results", "scores", pd.DataFrame({"a": [1]}), made_by=made_by)
    assert heatproof.open(tmp_path).provenance("scores")["made_from"] == []


def test_a_verdict_table_without_its_columns_is_refused(tmp_path):
    table(tmp_path / "results", "verdict", pd.DataFrame({"a": [1]}))
    with pytest.raises(HeatproofError, match="verdict has no column dataset"):
        _ = heatproof.open(tmp_path).answer


def test_json_with_too_many_keys_is_refused(monkeypatch):
    monkeypatch.setattr(reading, "MOST_JSON_KEYS", 3)
    assert parse_json(b'{"a": ["x:y", "z:y", "a:y", "b::y"], "b" : 1, "c":2}')["c"] == 2
    with pytest.raises(ValueError, match="more values"):
        parse_json(b'{"a":1,"b" : 1,"c":2,"d"\n:3}')


def test_long_strings_of_digits_in_json_are_read_as_strings():
    assert parse_json(b'{"ids": ["12345678901234567890"], "seed": 9223372036854775807}')["seed"] == 2**63 - 1


@pytest.mark.parametrize("listed", [("\ud800", 0), ("a", 10**30)])
def test_records_of_files_with_invalid_values_are_damaged(tmp_path, listed):
    record = record_files(tmp_path, [], 0, listed={"train": listed}, rows={"train": np.zeros(0, np.int64)})
    write_record(tmp_path / "d.files", record)
    assert read_record(tmp_path / "d.files") is None


# ---- tables ----------------------------------------------------------------------------------------------------------


def parquet(table: pa.Table) -> bytes:
    out = io.BytesIO()
    pq.write_table(table, out, compression="zstd", row_group_size=len(table))
    return out.getvalue()


def test_each_repetition_of_a_text_counts_towards_the_size_of_a_table():
    text = pa.DictionaryArray.from_arrays(pa.array(np.zeros(1500, np.int32)), pa.array(["x" * 2**20]))
    repeated = pa.DictionaryArray.from_arrays(text.indices, pa.array(["x" * 2**10]))
    assert len(parse_parquet(parquet(pa.table({"text": repeated})))) == 1500
    with pytest.raises(ValueError, match="more than 1 GiB, unpacked"):
        parse_parquet(parquet(pa.table({"text": text})))


@pytest.mark.parametrize("value", [[1.0], {"a": 1.0}], ids=["list", "mapping"])
def test_columns_of_lists_or_mappings_are_refused(value):
    with pytest.raises(ValueError, match="lists or mappings"):
        parse_parquet(parquet(pa.table({"a": pa.array([value, value])})))


def test_parquet_tables_equal_those_that_pandas_reads():
    frame = pd.DataFrame(
        {
            "method": ["a", "b", None],
            "score": [1.0, np.nan, 3.0],
            "is_higher": [True, False, True],
            "rank": np.arange(3, dtype=np.int16),
        },
        index=pd.Index(["x", "y", "z"], name="image"),
    )
    out = io.BytesIO()
    frame.to_parquet(out)
    pd.testing.assert_frame_equal(parse_parquet(out.getvalue()), pd.read_parquet(io.BytesIO(out.getvalue())))
    assert list(parse_parquet(out.getvalue(), ["score"])["score"])[::2] == [1.0, 3.0]


LABELS = {
    "a cell of 200,000 letters": "file,label\n0.png," + "a" * 200_000,
    "a header of 200,000 letters": "x" * 200_000,
    "a million columns": "file,label," + ",".join(map(str, range(10**6))) + "\n" + "0.png\n" * 10_000,
    "far more rows than pictures": "file,label\n" + "0.png,a\n" * 1_000_000,
    "a NUL": "file,label\n0\0.png,a",
    "nothing": "",
}


@pytest.mark.parametrize("case", LABELS)
def test_excessive_tables_of_labels_are_refused(tmp_path, case):
    for number in range(4):
        Image.new("RGB", (8, 8), (number, 0, 0)).save(tmp_path / f"{number}.png")
    (tmp_path / "labels.csv").write_text(LABELS[case])
    began = time.monotonic()
    with pytest.raises(HeatproofError) as caught:
        read_label_table(tmp_path, "labels.csv", {})
    assert "labels.csv" in str(caught.value)
    assert time.monotonic() - began < 5


def test_a_label_of_5000_digits_is_a_name(tmp_path):
    rows = []
    for number in range(4):
        Image.new("RGB", (8, 8), (number, 0, 0)).save(tmp_path / f"{number}.png")
        rows.append(f"{number}.png,{'9' * 5000 if number % 2 else 7}")
    (tmp_path / "labels.csv").write_text("\n".join(["file,label", *rows]))
    assert read_label_table(tmp_path, "labels.csv", {}).class_names == ["7", "9" * 5000]


# ---- configs ---------------------------------------------------------------------------------------------------------


def test_nested_aliases_count_towards_the_depth_of_a_config():
    deep = "".join(f"a{n}: &a{n} {'[' * 20}{f'*a{n - 1}' if n else ''}{']' * 20}\n" for n in range(60))
    assert load("a: &a [[1]]\nb: {c: [*a]}")["b"] == {"c": [[[1]]]}
    with pytest.raises(HeatproofError, match="nested more than 50 deep in line 3"):
        load(deep)


def test_merging_long_mappings_takes_little_time():
    count = 16_000
    merged = ",".join(f"a{n}: 1" for n in range(count))
    began = time.monotonic()
    text = f"<<: {{{merged}, 5: 1}}\n" + "\n".join(f"b{n}: 1" for n in range(count)) + '\n"5": 2'
    merged_config = load(text)
    assert time.monotonic() - began < 5
    assert len(merged_config) == 2 * count + 1
    assert merged_config["5"] == 2


def test_a_matlab_table_that_unpacks_to_too_much_is_refused(tmp_path):
    path = tmp_path / "meta.mat"
    scipy.io.savemat(path, {"synsets": np.zeros(2**27, np.uint8)}, do_compression=True)
    assert path.stat().st_size < 2**18
    with pytest.raises(HeatproofError, match="unpacks to more than"):
        _read_devkit(path)

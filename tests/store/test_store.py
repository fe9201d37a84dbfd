"""Stores: readers, concurrent writers, and the files that a killed job leaves."""

import dataclasses
import multiprocessing
import os
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import xarray
import zarr
from jobs import write_listed as write_shard

from heatproof.errors import HeatproofError
from heatproof.store import zarr_store as store_module
from heatproof.store.reading import read_json
from heatproof.store.writing import write_json, write_table
from heatproof.store.zarr_store import ArraySpec, Layout, describe_store, ensure_metadata, read, shard_file

MAPS = ("saliency", "rise")
IDS = [f"img-{number:02d}" for number in range(10)]
LABELS = np.arange(10) % 3


def layout(key="k", shard_size=4, size=5) -> Layout:
    return Layout(
        image_ids=IDS,
        labels=LABELS,
        shard_size=shard_size,
        arrays={
            "attribution": ArraySpec(("map", "y", "x"), (2, size, 6)),
            "logit": ArraySpec(("variant",), (5,), chunk_by_image=False),
            "predicted": ArraySpec(("variant",), (5,), "int32", chunk_by_image=False),
        },
        attributes={"key": key, "made_by": {"steps": 3}},
        coordinates={"map": MAPS},
    )


def values(seed, images=4, size=5) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(images, 2, size, 6)).astype(np.float32)


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture
def path(tmp_path):
    ensure_metadata(tmp_path / "s.zarr", layout())
    return tmp_path / "s.zarr"


def test_xarray_sees_named_dimensions_and_coordinates(path):
    stored = values(0)
    write_shard(path, "attribution", 0, 0, stored)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        opened = xarray.open_zarr(path, consolidated=False)
    with opened as data:
        assert data.attribution.dims == ("image", "map", "y", "x")
        assert data.logit.dims == ("image", "variant")
        assert set(data.coords) == {"image", "image_id", "label", "map"}
        assert data.image_id.values.tolist() == IDS
        np.testing.assert_array_equal(data.label, LABELS)
        np.testing.assert_array_equal(data.attribution.sel(map="rise")[:4], stored[:, 1])
        np.testing.assert_array_equal(data.attribution.isel(image=2).sel(map="saliency"), stored[2, 0])
        assert data.attribution[4:].isnull().all()
        assert data.attrs["made_by"] == {"steps": 3}


def test_zarr_reads_missing_images_as_nan(path):
    stored = values(0, images=2)
    write_shard(path, "attribution", 1, 4, stored)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        group = zarr.open(path, mode="r")
        array = group["attribution"][:]
    assert group["attribution"].metadata.dimension_names == ("image", "map", "y", "x")
    np.testing.assert_array_equal(array[4:6], stored)
    assert np.isnan(array[[0, 1, 2, 3, 6, 7, 8, 9]]).all()
    np.testing.assert_array_equal(group["predicted"][:], -1)


def test_a_shard_is_one_file(path):
    before = set(tree(path))
    written = write_shard(path, "attribution", 0, 0, values(0))
    assert written == shard_file(path, "attribution", 0, 3) == str(path / "attribution/c/0/0/0/0")
    write_shard(path, "logit", 2, 8, np.zeros((2, 5), np.float32))
    assert set(tree(path)) - before == {"attribution/c/0/0/0/0", "logit/c/2/0"}


def test_a_shard_of_fill_values_is_a_file(path):
    written = write_shard(path, "attribution", 0, 0, np.full((4, 2, 5, 6), np.nan, np.float32))
    assert os.path.isfile(written)
    written = write_shard(path, "predicted", 0, 0, np.full((4, 5), -1, np.int32))
    assert os.path.isfile(written)


@pytest.mark.parametrize(("start", "stop"), [(0, 4), (0, 10), (3, 5), (2, 9), (9, 10)])
def test_images_are_read_across_shards(path, start, stop):
    stored = values(1, images=10)
    for shard in range(3):
        write_shard(path, "attribution", shard, shard * 4, stored[shard * 4 : shard * 4 + 4])
    np.testing.assert_array_equal(read(path, "attribution", start, stop), stored[start:stop])


def test_float64_is_stored_in_the_type_of_the_array(path):
    write_shard(path, "logit", 0, 0, np.full((4, 5), 1 / 3))
    assert read(path, "logit", 0, 4).dtype == np.float32


LARGE = 2**33


@pytest.mark.parametrize("file", ["attribution/zarr.json", "image_id/c/0", "label/c/0", "attribution/c/0/0/0/0"])
def test_a_file_that_is_far_too_large_is_refused_by_its_size(path, monkeypatch, file):
    """The size is compared first, because a digest of 8 GiB takes a minute."""
    write_shard(path, "attribution", 0, 0, values(0))
    os.truncate(path / file, LARGE)
    digested, digest = set(), store_module.file_digest

    def small(file):
        digested.add(size := os.stat(file).st_size)
        return digest(file) if size < LARGE else ""

    monkeypatch.setattr(store_module, "file_digest", small)
    with pytest.raises(HeatproofError, match="damaged"):
        read(path, "attribution", 0, 4)
    assert LARGE not in digested


def test_describe_store_returns_ids_labels_and_arrays(path):
    write_shard(path, "attribution", 1, 4, values(0))
    description = describe_store(path)
    assert description["image_ids"] == IDS
    np.testing.assert_array_equal(description["labels"], LABELS)
    assert description["attributes"]["made_by"] == {"steps": 3}
    assert description["arrays"]["attribution"] == {
        "shape": (10, 2, 5, 6),
        "dtype": "float32",
        "shard_size": 4,
        "shards": [1],
    }
    assert description["arrays"]["logit"]["shard_size"] == 4
    assert set(description["arrays"]) == {"attribution", "logit", "predicted"}


@pytest.mark.parametrize(
    ("start", "stop", "message"),
    [(0, 11, "holds 10 images"), (4, 8, r"c/1/0/0/0 is missing"), (0, 4, r"c/0/0/0/0 has no values for image 2")],
)
def test_missing_files_are_reported(path, start, stop, message):
    write_shard(path, "attribution", 0, 0, values(0, images=2))
    with pytest.raises(HeatproofError, match=message):
        read(path, "attribution", start, stop)


@pytest.mark.parametrize("make", [lambda p: None, lambda p: p.mkdir(), lambda p: p.write_text("x")])
def test_other_folders_are_refused(tmp_path, make):
    path = tmp_path / "other.zarr"
    make(path)
    with pytest.raises(HeatproofError, match="not a store of heatproof"):
        describe_store(path)
    with pytest.raises(HeatproofError, match="not a store of heatproof"):
        read(path, "logit", 0, 1)


def test_labels_of_a_single_class_are_stored(tmp_path):
    """Chunks that equal the fill value are written nevertheless."""
    one_class = dataclasses.replace(layout(), labels=np.zeros(10, int))
    ensure_metadata(tmp_path / "s.zarr", one_class)
    assert describe_store(tmp_path / "s.zarr")["labels"].tolist() == [0] * 10


def test_a_foreign_zarr_store_is_refused(tmp_path):
    zarr.create_group(tmp_path / "other.zarr").create_array("a", shape=(2, 2), dtype="f4")
    with pytest.raises(HeatproofError, match="not a store of heatproof"):
        describe_store(tmp_path / "other.zarr")


# ---- the metadata ----------------------------------------------------------------------------------------------------


def test_metadata_are_deterministic(tmp_path):
    for name in ("a", "b"):
        ensure_metadata(tmp_path / name / "s.zarr", layout())
    assert tree(tmp_path / "a/s.zarr") == tree(tmp_path / "b/s.zarr")


def test_existing_metadata_are_unchanged(path):
    write_shard(path, "attribution", 0, 0, values(0))
    before = {file: file.stat().st_mtime_ns for file in path.rglob("*")}
    ensure_metadata(path, layout())
    assert {file: file.stat().st_mtime_ns for file in path.rglob("*")} == before


def test_another_key_with_the_same_layout_keeps_the_shards(path):
    write_shard(path, "attribution", 0, 0, values(0))
    ensure_metadata(path, layout(key="other"))
    assert describe_store(path)["attributes"]["key"] == "other"
    with pytest.raises(HeatproofError, match=r"s\.0\.json are from different configs or code"):
        read(path, "attribution", 0, 4)
    write_shard(path, "logit", 0, 0, np.zeros((4, 5), np.float32))
    np.testing.assert_array_equal(read(path, "attribution", 0, 4), values(0))


@pytest.mark.parametrize("other", [{"shard_size": 5}, {"size": 7}])
def test_another_layout_removes_the_old_shards(path, other):
    write_shard(path, "attribution", 0, 0, values(0))
    write_shard(path, "logit", 0, 0, np.zeros((4, 5), np.float32))
    ensure_metadata(path, layout(key="other", **other))
    assert not [file for file in (path / "attribution/c").rglob("*") if file.is_file()]
    assert (path / "logit/c/0/0").exists() == ("size" in other), "only the array whose cut is another"
    write_shard(path, "attribution", 0, 0, values(0, size=other.get("size", 5)))
    assert describe_store(path)["arrays"]["attribution"]["shards"] == [0]


def test_folders_that_snakemake_makes_for_another_job_stay(tmp_path):
    store = tmp_path / "s.zarr"
    folder = Path(shard_file(store, "attribution", 1, 3)).parent
    folder.mkdir(parents=True)
    ensure_metadata(store, layout())
    ensure_metadata(store, layout(key="other", size=7))
    assert folder.is_dir()


def test_arrays_with_fewer_dimensions_replace_those_with_more(path):
    write_shard(path, "attribution", 0, 0, values(0))
    plain = dataclasses.replace(
        layout(key="other"), arrays={"attribution": ArraySpec(("variant",), (5,))}, coordinates={}
    )
    ensure_metadata(path, plain)
    write_shard(path, "attribution", 0, 0, np.ones((4, 5), np.float32))
    np.testing.assert_array_equal(read(path, "attribution", 0, 4), np.ones((4, 5)))


@pytest.mark.parametrize("content", ["", "[]", '{"attributes": 1}', '{"attributes": {}}'])
def test_damaged_metadata_are_written_again(path, content):
    before = tree(path)
    (path / "zarr.json").write_text(content)
    ensure_metadata(path, layout())
    assert tree(path) == before


# ---- concurrent writers, and kills -----------------------------------------------------------------------------------


def write_one(arguments):
    path, shard = arguments
    ensure_metadata(path, layout())
    write_shard(path, "attribution", shard, shard * 4, values(shard, images=min(4, 10 - shard * 4)))


def test_writers_of_other_shards_do_not_disturb_each_other(tmp_path):
    together, apart = tmp_path / "together.zarr", tmp_path / "apart.zarr"
    for shard in range(3):
        write_one((apart, shard))
    with multiprocessing.get_context("forkserver").Pool(3) as pool:
        # In sequence, because a shard has one writer.
        for _ in range(2):
            pool.map(write_one, [(together, shard) for shard in (2, 0, 1)], chunksize=1)
    assert tree(together) == tree(apart)


class Died(BaseException):
    pass


def die_at(monkeypatch, folder, survived=0):
    """Raise an exception after a number of files were moved to `folder`; Zarr's own moves elsewhere do not count."""
    moves = []

    def move(source, target, replace=os.replace):
        if Path(target).is_relative_to(folder):
            if len(moves) == survived:
                raise Died
            moves.append(target)
        replace(source, target)

    monkeypatch.setattr(store_module.os, "replace", move)
    return moves


def test_a_writer_that_dies_leaves_the_old_shard(path, monkeypatch):
    write_shard(path, "attribution", 0, 0, values(0))
    before = tree(path)
    die_at(monkeypatch, path)
    with pytest.raises(Died):
        write_shard(path, "attribution", 0, 0, values(1))
    assert tree(path) == before
    assert [name for name in os.listdir(path.parent) if "attribution" in name] == []


def test_files_of_a_killed_writer_are_not_read(path, monkeypatch):
    """SIGKILL leaves no time for cleanup."""
    die_at(monkeypatch, path)
    monkeypatch.setattr(store_module.shutil, "rmtree", lambda *_, **__: None)
    with pytest.raises(Died):
        write_shard(path, "attribution", 0, 0, values(1))
    with xarray.open_zarr(path, consolidated=False) as data:
        assert set(data.data_vars) == {"attribution", "logit", "predicted"}
    assert set(describe_store(path)["arrays"]) == {"attribution", "logit", "predicted"}


@pytest.mark.parametrize("survived", range(12))
def test_metadata_interrupted_anywhere_are_completed(tmp_path, monkeypatch, survived):
    """The key is written last; until then, the next job writes all metadata again."""
    ensure_metadata(tmp_path / "whole.zarr", layout())
    complete = tree(tmp_path / "whole.zarr")
    assert len(complete) == 12
    with monkeypatch.context() as patched:
        moves = die_at(patched, tmp_path / "s.zarr", survived)
        with pytest.raises(Died):
            ensure_metadata(tmp_path / "s.zarr", layout())
    assert len(moves) == survived
    assert not (tmp_path / "s.zarr/zarr.json").exists()
    ensure_metadata(tmp_path / "s.zarr", layout())
    assert tree(tmp_path / "s.zarr") == complete


def test_json_and_tables_are_written_atomically(tmp_path, monkeypatch):
    write_json(tmp_path / "a/x.json", {"b": 1, "a": [2]})
    write_table(pd.DataFrame({"x": [1.0, np.nan], "y": ["p", "q"]}), tmp_path / "a/t.csv")
    assert (tmp_path / "a/t.csv").read_bytes() == b"x,y\n1,p\n,q\n"
    before = tree(tmp_path)
    die_at(monkeypatch, tmp_path / "a")
    for write in (
        lambda: write_json(tmp_path / "a/x.json", {"b": 2}),
        lambda: write_table(pd.DataFrame({"x": [2.0]}), tmp_path / "a/t.csv"),
    ):
        with pytest.raises(Died):
            write()
    after = tree(tmp_path)
    assert {name: after[name] for name in before} == before


@pytest.mark.parametrize("content", [None, b"", b'{"a": 1', b"[1]", b"\xff\xfe"])
def test_invalid_json_reads_as_none(tmp_path, content):
    if content is not None:
        (tmp_path / "x.json").write_bytes(content)
    assert read_json(tmp_path / "x.json") is None


def test_only_folders_of_killed_writers_of_metadata_are_removed(path):
    left, shard = path.parent / f".{path.name}.abcd1234" / "new", path.parent / f".{path.name}.attribution.0.abcd1234"
    for folder in (left, shard):
        folder.mkdir(parents=True)
    ensure_metadata(path, layout())
    assert not left.parent.exists()
    assert shard.is_dir()

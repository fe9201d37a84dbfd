"""An untrusted store executes no code, writes nothing elsewhere, and cannot pass for another one."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
import zarr
from jobs import write_listed

from heatproof.core.provenance import digest
from heatproof.errors import HeatproofError
from heatproof.store.lock import lock_folder, unlock_folder
from heatproof.store.manifest import CHECKSUM_KEY, read_checksummed, require_manifest, touch, write_checksummed
from heatproof.store.reading import file_digest, read_json
from heatproof.store.writing import atomic_write, write_json
from heatproof.store.zarr_store import (
    ArraySpec,
    Layout,
    describe_store,
    ensure_metadata,
    open_store,
    read,
    unpacked_bytes,
)

IDS = [f"img-{number}" for number in range(6)]
ARRAYS = {
    "attribution": ArraySpec(("map", "y", "x"), (1, 4, 4)),
    "logit": ArraySpec(("variant",), (5,), chunk_by_image=False),
}


def values(name: str, shard: int) -> np.ndarray:
    shape = (3, *ARRAYS[name].shape)
    return np.random.default_rng([shard, len(name)]).normal(size=shape).astype(np.float32)


def make(path: Path, key: str = "k") -> Path:
    layout = Layout(IDS, np.arange(6), 3, ARRAYS, {"key": key, "made_by": {}}, {"map": ["saliency"]})
    ensure_metadata(path, layout)
    for shard in range(2):
        for name in ARRAYS:
            write_listed(path, name, shard, shard * 3, values(name, shard))
    return path


@pytest.fixture
def store(tmp_path):
    return make(tmp_path / "results/maps/s.zarr")


def rewrite_with_checksums(store: Path, **changed: bytes) -> None:
    """Change files of a store together with all digests, as an attacker who knows the format would."""
    group = json.loads((store / "zarr.json").read_text())
    attributes = group["attributes"]
    del attributes[CHECKSUM_KEY]
    for name, content in changed.items():
        file = name.replace("__", "/").replace("_json", ".json")
        (store / file).write_bytes(content)
        attributes["files"][file] = file_digest(store / file)
    group["attributes"] = {**attributes, CHECKSUM_KEY: digest(attributes)}
    (store / "zarr.json").write_text(json.dumps(group))


def refused(look, *words: str) -> None:
    with pytest.raises(HeatproofError) as caught:
        look()
    sentence = str(caught.value)
    assert "\n" not in sentence
    for word in words:
        assert word in sentence


# ---- code in metadata ------------------------------------------------------------------------------------------------


class Evil:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self):
        return os.mkdir, (str(self.mark),)


def test_an_array_with_pickles_is_never_opened(store, tmp_path):
    """Inline consolidated metadata can bring in a Zarr v2 array of objects, whose filter is a pickle."""
    mark = tmp_path / "ran"
    old = {
        "zarr_format": 2,
        "shape": [1],
        "chunks": [1],
        "dtype": "|O",
        "fill_value": None,
        "order": "C",
        "compressor": None,
        "filters": [{"id": "vlen-utf8"}, {"id": "pickle", "protocol": 4}],
        "dimension_separator": ".",
    }
    group = json.loads((store / "zarr.json").read_text())
    group["consolidated_metadata"] = {"kind": "inline", "must_understand": False, "metadata": {"image_id": old}}
    (store / "zarr.json").write_text(json.dumps(group))
    (store / "image_id/0").write_bytes(pickle.dumps(np.array([Evil(mark)], dtype=object)))
    for look in (lambda: describe_store(store), lambda: read(store, "logit", 0, 1)):
        refused(look, str(store), "heatproof writes")
    assert not mark.exists()


@pytest.mark.parametrize(
    "change",
    [
        {"data_type": "bool"},
        {"data_type": {"name": "null_terminated_bytes", "configuration": {"length_bytes": 8}}},
        {"codecs": [{"name": "numcodecs.pickle", "configuration": {}}]},
        {"codecs": [{"name": "bytes", "configuration": {"endian": "big"}}]},
        {"codecs": []},
        {"storage_transformers": [{"name": "x"}]},
        {"zarr_format": 2},
        {"node_type": "group"},
        {"chunk_key_encoding": {"name": "default", "configuration": {"separator": "."}}},
        {"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [10**15]}}},
        {"shape": [-1]},
        {"shape": ["6"]},
        {"fill_value": 3},
        {"attributes": {"x": 1}},
        {"more": 1},
    ],
)
def test_metadata_of_other_kinds_than_heatproof_writes_are_refused(store, change, monkeypatch):
    """Although all digests match, the array is refused because of its type."""
    metadata = json.loads((store / "label/zarr.json").read_text())
    rewrite_with_checksums(store, label__zarr_json=json.dumps({**metadata, **change}).encode())
    monkeypatch.setattr(zarr, "open_array", lambda *_, **__: pytest.fail("it was opened"))
    refused(lambda: describe_store(store), str(store))


# ---- changed bytes ---------------------------------------------------------------------------------------------------


def test_each_flipped_bit_of_the_metadata_is_noticed(store):
    """One bit of every byte of every zarr.json and coordinate."""
    before, flips = describe_store(store), 0
    expected = read(store, "attribution", 0, 6)
    for file in [store / "zarr.json", *store.glob("*/zarr.json"), *store.glob("[il]*/c/0"), store / "map/c/0"]:
        if "logit" in str(file) or "attribution/c" in str(file):
            continue
        content = file.read_bytes()
        for position in range(0, len(content), 3):
            file.write_bytes(
                content[:position] + bytes([content[position] ^ (1 << position % 8)]) + content[position + 1 :]
            )
            flips += 1
            try:
                now, array = describe_store(store), read(store, "attribution", 0, 6)
            except HeatproofError:
                pass
            else:
                # White space in JSON has no meaning.
                assert content[position : position + 1].isspace()
                assert now["image_ids"] == before["image_ids"]
                np.testing.assert_array_equal(array, expected)
        file.write_bytes(content)
    assert flips > 1000


def test_swapped_shards_with_valid_checksums_are_damage(store):
    first_file, two = (store / f"attribution/c/{shard}/0/0/0" for shard in range(2))
    first, second = first_file.read_bytes(), two.read_bytes()
    first_file.write_bytes(second)
    two.write_bytes(first)
    refused(lambda: read(store, "attribution", 0, 3), "attribution/c/0/0/0/0 is damaged", "rm ")


def test_a_shard_of_another_store_with_the_same_range_is_damage(store, tmp_path):
    other = make(tmp_path / "other/s.zarr", key="other")
    shutil.copytree(other / "attribution", store / "attribution", dirs_exist_ok=True)
    shutil.copy(tmp_path / "other/s.0.json", store.parent / "s.0.json")
    refused(lambda: read(store, "attribution", 0, 3), "different configs or code")


def test_images_are_joined_by_their_ids(store):
    plain = read(store, "logit", 0, 6)
    turned = IDS[::-1]
    np.testing.assert_array_equal(read(store, "logit", 0, 6, turned), plain[::-1])
    np.testing.assert_array_equal(read(store, "logit", 2, 4, turned), plain[::-1][2:4])
    refused(lambda: read(store, "logit", 0, 2, ["img-0", "cat"]), "no image 'cat'")


def test_reversed_ids_are_damage(store):
    """Valid bytes that differ from those that were written."""
    turned = make(store.parent / "turned.zarr")
    shutil.rmtree(turned)
    layout = Layout(IDS[::-1], np.arange(6), 3, ARRAYS, {"key": "k", "made_by": {}}, {"map": ["saliency"]})
    ensure_metadata(turned, layout)
    shutil.copy(turned / "image_id/c/0", store / "image_id/c/0")
    refused(lambda: describe_store(store), "image_id/c/0", "not those that were written")


def test_a_row_that_is_partly_nan_is_damage(tmp_path):
    path = tmp_path / "s.zarr"
    ensure_metadata(path, Layout(IDS, np.arange(6), 3, ARRAYS, {"key": "k"}, {"map": ["saliency"]}))
    broken = values("logit", 0)
    broken[1, 2] = np.nan
    write_listed(path, "logit", 0, 0, broken)
    refused(lambda: read(path, "logit", 0, 3), "no values for image 1")


# ---- sizes -----------------------------------------------------------------------------------------------------------


def test_a_chunk_that_unpacks_to_more_than_its_shape_is_not_unpacked(store, monkeypatch):
    big = zarr.codecs.ZstdCodec(level=3)._zstd_codec.encode(np.zeros(200_000_000, np.uint8))
    assert unpacked_bytes(bytes(big)) == 200_000_000
    assert len(big) < 50_000
    # The checksum matches as well, because an attacker can compute it.
    rewrite_with_checksums(store, label__c__0=bytes(big) + b"\0" * 4)
    monkeypatch.setattr(zarr, "open_array", lambda *_, **__: pytest.fail("it was opened"))
    refused(lambda: describe_store(store), "another size than its shape says")


@pytest.mark.parametrize("content", [b"", b"x" * 30, b"\x28\xb5\x2f\xfd", b"\x28\xb5\x2f\xfd\x00\x58\x01\x00\x00"])
def test_compressed_frames_without_a_size_have_none(content):
    assert unpacked_bytes(content) is None


@pytest.mark.parametrize("size", [0, 1, 255, 256, 257, 65_791, 65_792, 70_000])
def test_sizes_of_compressed_frames_are_read(size):
    assert unpacked_bytes(bytes(zarr.codecs.ZstdCodec()._zstd_codec.encode(np.zeros(size, np.uint8)))) in (size, None)


def test_an_array_that_is_larger_than_the_memory_is_not_read(store):
    metadata = json.loads((store / "attribution/zarr.json").read_text())
    huge = 2**22
    text = json.dumps(metadata).replace("4, 4]", f"{huge}, {huge}]")
    rewrite_with_checksums(store, attribution__zarr_json=text.encode())
    refused(lambda: read(store, "attribution", 0, 3), "GiB", "do not trust this store")


# ---- links and paths -------------------------------------------------------------------------------------------------


def test_a_lock_that_is_a_link_is_not_written_through(store, tmp_path):
    precious = tmp_path / "precious"
    precious.write_text("kept")
    lock_file = store.parent / ".s.zarr.lock"
    lock_file.unlink(missing_ok=True)
    os.symlink(precious, lock_file)
    (store / "zarr.json").unlink()
    refused(lambda: make(store), "symbolic link")
    assert precious.read_text() == "kept"


@pytest.mark.parametrize("what", ["folder", "file"])
def test_nothing_is_written_through_a_link_below_the_results(tmp_path, what):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    results = tmp_path / "results"
    (results / "a").mkdir(parents=True)
    target = results / "a/report/x.json"
    if what == "folder":
        os.symlink(elsewhere, results / "a/report")
    else:
        target.parent.mkdir()
        (elsewhere / "x.json").write_text("kept")
        os.symlink(elsewhere / "x.json", target)
    refused(lambda: write_json(target, {"new": 1}), "symbolic link")
    assert [path.read_text() for path in elsewhere.iterdir()] == (["kept"] if what == "file" else [])


def test_the_results_folder_itself_may_be_a_link(tmp_path, monkeypatch):
    (tmp_path / "disk").mkdir()
    os.symlink(tmp_path / "disk", tmp_path / "results")
    monkeypatch.chdir(tmp_path)
    write_json("results/a/x.json", {"new": 1})
    assert read_json("results/a/x.json") == {"new": 1}


def test_names_of_temporary_files_cannot_be_predicted(tmp_path):
    names = []
    for _ in range(2):
        with atomic_write(tmp_path / "x.json") as aside:
            names.append(aside.name)
            aside.write_text("{}")
    assert names[0] != names[1]


def test_files_have_the_permissions_of_the_umask(tmp_path):
    before = os.umask(0o027)
    try:
        write_json(tmp_path / "x.json", {})
    finally:
        os.umask(before)
    assert os.stat(tmp_path / "x.json").st_mode & 0o777 == 0o640


@pytest.mark.parametrize("file", ["/etc/hostname", "../../../outside.bin", "a/../../../../outside.bin"])
def test_a_manifest_that_names_files_elsewhere_is_damaged(tmp_path, file):
    outside = tmp_path / "outside.bin"
    outside.write_text("x")
    os.utime(outside, (1, 1))
    path = tmp_path / "results/scores/m.json"
    path.parent.mkdir(parents=True)
    write_checksummed(
        path, {"key": "k", "config": "k", "code": "k", "files": [{"file": file, "sha256": "", "bytes": 1}]}
    )
    assert read_checksummed(path) is None
    refused(lambda: require_manifest(path), "is damaged")
    touch(path)
    assert os.stat(outside).st_mtime == 1


def test_a_link_inside_a_store_is_not_followed(store, tmp_path):
    for folder in ("received", "results/received"):
        received = tmp_path / folder / "s.zarr"
        shutil.copytree(store.parent, received.parent)
        shutil.move(received / "label", tmp_path / "label")
        os.symlink(tmp_path / "label", received / "label")
        refused(lambda path=received: describe_store(path), "symbolic link")
        shutil.rmtree(tmp_path / "label")


def test_a_pipe_in_place_of_a_file_is_refused(store):
    (store / "zarr.json").unlink()
    os.mkfifo(store / "zarr.json")
    refused(lambda: open_store(store), "not a regular file")


# ---- one run at a time -----------------------------------------------------------------------------------------------


def test_two_working_folders_cannot_write_one_results_folder_at_once(tmp_path):
    (tmp_path / "shared").mkdir()
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        os.symlink(tmp_path / "shared", tmp_path / name / "results")
    held = lock_folder(str(tmp_path / "one/results"))
    refused(lambda: lock_folder(str(tmp_path / "two/results")), f"process {os.getpid()} on {os.uname().nodename}")
    unlock_folder(held)
    unlock_folder(lock_folder(str(tmp_path / "two/results")))

"""Manifests record inputs and outputs, and become invalid when a byte changes."""

import os
from contextlib import suppress
from types import SimpleNamespace

import pytest

from heatproof.errors import HeatproofError
from heatproof.store import manifest
from heatproof.store.reading import file_digest, read_json

KEY = manifest.Key("config", "code")


@pytest.fixture
def tables(tmp_path):
    for name in ("a.csv", "b.csv"):
        (tmp_path / "tables").mkdir(exist_ok=True)
        (tmp_path / "tables" / name).write_text(name)
    for name in ("x", "y"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "idsds.parquet").write_text(name)
    inputs = [tmp_path / "x/idsds.parquet", tmp_path / "y/idsds.parquet"]
    job = SimpleNamespace(key=KEY, manifest=str(tmp_path / "tables.json"))
    manifest.publish_tables(job, [tmp_path / "tables/a.csv", tmp_path / "tables/b.csv"], inputs)
    return job.manifest, inputs


def test_inputs_are_recorded_with_their_digests(tables):
    """A manifest is bound to its path, because scores of all models have the same file name."""
    path, inputs = tables
    written = read_json(path)
    assert written["input_sha256"] == {str(item): file_digest(item) for item in inputs}
    assert [facts["file"] for facts in written["files"]] == ["tables/a.csv", "tables/b.csv"]
    assert manifest.Key.of(written) == KEY


def test_the_key_depends_on_spec_inputs_and_further_values(tables):
    _, inputs = tables
    keys = {
        manifest.key_with_inputs(KEY, inputs)[0],
        manifest.key_with_inputs("other", inputs)[0],
        manifest.key_with_inputs(KEY, inputs[:1])[0],
        manifest.key_with_inputs(KEY, inputs, 4)[0],
    }
    before = manifest.key_with_inputs(KEY, inputs)[0]
    inputs[1].write_text("changed")
    assert manifest.key_with_inputs(KEY, inputs)[0] not in keys
    assert len(keys) == 4
    assert before in keys


def test_only_an_intact_result_of_the_key_is_read(tables, tmp_path):
    path, inputs = tables
    key = manifest.key_with_inputs(KEY, inputs)[0]
    assert manifest.read_if_intact(path, key)["key"] == key
    assert manifest.read_if_intact(path, "other") is None
    assert manifest.read_if_intact(tmp_path / "none.json", key) is None
    (tmp_path / "tables/b.csv").write_text("b.csw")
    assert manifest.read_if_intact(path, key) is None, "same size, other bytes"
    (tmp_path / "tables/b.csv").unlink()
    assert manifest.read_if_intact(path, key) is None


@pytest.mark.parametrize(
    "check", [manifest.verified_path, lambda file: manifest.read_if_intact(file.parent / "tables.json", "k")]
)
def test_a_file_that_is_far_too_large_is_refused_by_its_size(tmp_path, monkeypatch, check):
    """The size is compared first, because a digest of 8 GiB takes a minute."""
    (tmp_path / "a.csv").write_text("a")
    manifest.write_manifest(tmp_path / "tables.json", [tmp_path / "a.csv"], spec_key=KEY, key="k")
    os.truncate(tmp_path / "a.csv", 2**33)
    monkeypatch.setattr(manifest, "file_digest", lambda file: pytest.fail("it was read"))
    with suppress(HeatproofError):
        assert check(tmp_path / "a.csv") is None


def test_a_result_can_be_moved(tables, tmp_path):
    path, inputs = tables
    key = manifest.key_with_inputs(KEY, inputs)[0]
    os.rename(tmp_path / "tables", tmp_path / "there")
    (tmp_path / "new").mkdir()
    os.rename(tmp_path / "there", tmp_path / "new/tables")
    os.rename(path, tmp_path / "new/tables.json")
    assert manifest.read_if_intact(tmp_path / "new/tables.json", key)


def test_touch_renews_the_times_of_a_manifest_and_its_files(tables, tmp_path):
    path, _ = tables
    files = [path, tmp_path / "tables/a.csv", tmp_path / "tables/b.csv"]
    for file in files:
        os.utime(file, (1000.0, 1000.0))
    manifest.touch(path)
    assert all(os.stat(file).st_mtime > 1000.0 for file in files)
    (tmp_path / "tables/a.csv").unlink()
    manifest.touch(path)
    assert not (tmp_path / "tables/a.csv").exists()

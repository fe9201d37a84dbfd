"""Damage to files is found when they are read, and the message names the file and the remedy."""

import numpy as np
import pytest
from jobs import write_listed as write_shard

from heatproof.errors import HeatproofError
from heatproof.store.zarr_store import ArraySpec, Layout, describe_store, ensure_metadata, read, shard_file

ARRAYS = {
    "attribution": ArraySpec(("map", "y", "x"), (1, 4, 4)),
    "logit": ArraySpec(("variant",), (5,), chunk_by_image=False),
    "predicted": ArraySpec(("variant",), (5,), "int32", chunk_by_image=False),
}


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    path = tmp_path_factory.mktemp("damage") / "s.zarr"
    ids = [f"img-{number}" for number in range(6)]
    ensure_metadata(path, Layout(ids, np.arange(6), 3, ARRAYS, {"key": "k"}, {"map": ["saliency"]}))
    random = np.random.default_rng(0)
    for shard in range(2):
        for name, spec in ARRAYS.items():
            values = random.normal(size=(3, *spec.shape)) * 100
            write_shard(path, name, shard, shard * 3, values.astype(spec.dtype))
    return path


@pytest.fixture
def damaged(store):
    """Return a function that changes a file; the file is restored afterwards."""
    originals = {}

    def change(file, content):
        originals.setdefault(file, file.read_bytes())
        file.write_bytes(content)

    yield change
    for file, content in originals.items():
        file.write_bytes(content)


def assert_remedy_is_to_rewrite_metadata(caught, store):
    """The remedy names the manifest of the first shard, because metadata are not a target of Snakemake."""
    base = str(store).removesuffix(".zarr")
    message = str(caught.value)
    assert f"run your snakemake command with {base}.0.json as its target" in message
    assert "\n" not in message


def flipped(content: bytes, position: int) -> bytes:
    return content[:position] + bytes([content[position] ^ 0x10]) + content[position + 1 :]


@pytest.mark.parametrize("array", ARRAYS)
def test_a_flipped_bit_anywhere_in_a_shard_is_detected(store, damaged, array):
    """Every byte of the file is covered: chunks, the index of chunks, and checksums."""
    file = shard_file(store, array, 1, len(ARRAYS[array].dims))
    path = store.__class__(file)
    content = path.read_bytes()
    for position in range(len(content)):
        damaged(path, flipped(content, position))
        with pytest.raises(HeatproofError) as caught:
            read(store, array, 3, 6)
        message = str(caught.value)
        assert f"{file} is damaged" in message, position
        assert f"rm {file}` and run your snakemake command with this path as its target" in message
        assert "\n" not in message
    assert len(read(store, array, 0, 3)) == 3, "the other shard is whole"


@pytest.mark.parametrize("array", ARRAYS)
@pytest.mark.parametrize("keep", [0.0, 0.3, 0.99])
def test_a_truncated_shard_is_refused(store, damaged, array, keep):
    path = store.__class__(shard_file(store, array, 0, len(ARRAYS[array].dims)))
    content = path.read_bytes()
    damaged(path, content[: int(keep * len(content))])
    with pytest.raises(HeatproofError, match=f"rm {path}"):
        read(store, array, 0, 3)


@pytest.mark.parametrize("name", ["image_id", "label"])
def test_a_flipped_bit_in_ids_or_labels_is_detected(store, damaged, name):
    file = store / name / "c/0"
    content = file.read_bytes()
    for position in range(len(content)):
        damaged(file, flipped(content, position))
        with pytest.raises(HeatproofError, match="damaged") as caught:
            describe_store(store)
        assert_remedy_is_to_rewrite_metadata(caught, store)


@pytest.mark.parametrize("name", ["image_id", "label"])
def test_missing_ids_or_labels_are_refused(store, damaged, name):
    """Zarr would read missing coordinates as empty names and zeros."""
    file = store / name / "c/0"
    damaged(file, file.read_bytes())
    file.unlink()
    with pytest.raises(HeatproofError, match=f"{name}/c/0 is missing") as caught:
        describe_store(store)
    assert_remedy_is_to_rewrite_metadata(caught, store)
    with pytest.raises(HeatproofError, match=f"{name}/c/0 is missing") as caught:
        read(store, "logit", 0, 1)
    assert_remedy_is_to_rewrite_metadata(caught, store)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"zarr_format": 3}'])
def test_damaged_metadata_are_refused(store, damaged, content):
    damaged(store / "logit/zarr.json", content)
    for call in (lambda: read(store, "logit", 0, 3), lambda: describe_store(store)):
        with pytest.raises(HeatproofError, match=r"s\.zarr") as caught:
            call()
        assert_remedy_is_to_rewrite_metadata(caught, store)


def test_the_error_about_a_missing_shard_names_it_as_a_target(store, damaged):
    file = store.__class__(shard_file(store, "logit", 0, 1))
    damaged(file, b"")
    file.unlink()
    with pytest.raises(HeatproofError, match=f"{file} is missing: run your snakemake command with this path as its"):
        read(store, "logit", 0, 3)

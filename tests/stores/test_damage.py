"""Damage to files is found when they are read, and the message names the file and the remedy."""

import numpy as np
import pytest
from jobs import write_listed as write_shard

from heatproof.errors import HeatproofError
from heatproof.stores.store import ArraySpec, Layout, describe_store, ensure_metadata, read, shard_file

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
            made = random.normal(size=(3, *spec.shape)) * 100
            write_shard(path, name, shard, shard * 3, made.astype(spec.dtype))
    return path


@pytest.fixture
def damaged(store):
    """Return a function that changes a file; the file is restored afterwards."""
    kept = {}

    def change(file, content):
        kept.setdefault(file, file.read_bytes())
        file.write_bytes(content)

    yield change
    for file, content in kept.items():
        file.write_bytes(content)


def assert_the_metadata_are_to_be_written(caught, store):
    """The remedy names the manifest of the first shard, because metadata are not a target of Snakemake."""
    base = str(store).removesuffix(".zarr")
    said = str(caught.value)
    assert f"run your snakemake command with {base}.0.json as its target" in said
    assert "\n" not in said


def flipped(content: bytes, place: int) -> bytes:
    return content[:place] + bytes([content[place] ^ 0x10]) + content[place + 1 :]


@pytest.mark.parametrize("array", ARRAYS)
def test_one_flipped_bit_anywhere_in_a_shard(store, damaged, array):
    """Every byte of the file is covered: chunks, the index of chunks, and checksums."""
    file = shard_file(store, array, 1, len(ARRAYS[array].dims))
    path = store.__class__(file)
    whole = path.read_bytes()
    for place in range(len(whole)):
        damaged(path, flipped(whole, place))
        with pytest.raises(HeatproofError) as caught:
            read(store, array, 3, 6)
        said = str(caught.value)
        assert f"{file} is damaged" in said, place
        assert f"rm {file}` and run your snakemake command with this path as its target" in said
        assert "\n" not in said
    assert len(read(store, array, 0, 3)) == 3, "the other shard is whole"


@pytest.mark.parametrize("array", ARRAYS)
@pytest.mark.parametrize("keep", [0.0, 0.3, 0.99])
def test_truncated_shard(store, damaged, array, keep):
    path = store.__class__(shard_file(store, array, 0, len(ARRAYS[array].dims)))
    whole = path.read_bytes()
    damaged(path, whole[: int(keep * len(whole))])
    with pytest.raises(HeatproofError, match=f"rm {path}"):
        read(store, array, 0, 3)


@pytest.mark.parametrize("name", ["image_id", "label"])
def test_one_flipped_bit_in_the_ids_or_labels(store, damaged, name):
    file = store / name / "c/0"
    whole = file.read_bytes()
    for place in range(len(whole)):
        damaged(file, flipped(whole, place))
        with pytest.raises(HeatproofError, match="damaged") as caught:
            describe_store(store)
        assert_the_metadata_are_to_be_written(caught, store)


@pytest.mark.parametrize("name", ["image_id", "label"])
def test_lost_ids_or_labels(store, damaged, name):
    """Zarr would read missing coordinates as empty names and zeros."""
    file = store / name / "c/0"
    damaged(file, file.read_bytes())
    file.unlink()
    with pytest.raises(HeatproofError, match=f"{name}/c/0 is missing") as caught:
        describe_store(store)
    assert_the_metadata_are_to_be_written(caught, store)
    with pytest.raises(HeatproofError, match=f"{name}/c/0 is missing") as caught:
        read(store, "logit", 0, 1)
    assert_the_metadata_are_to_be_written(caught, store)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"zarr_format": 3}'])
def test_damaged_metadata(store, damaged, content):
    damaged(store / "logit/zarr.json", content)
    for look in (lambda: read(store, "logit", 0, 3), lambda: describe_store(store)):
        with pytest.raises(HeatproofError, match=r"s\.zarr") as caught:
            look()
        assert_the_metadata_are_to_be_written(caught, store)


def test_a_lost_shard_is_made_as_a_target(store, damaged):
    file = store.__class__(shard_file(store, "logit", 0, 1))
    damaged(file, b"")
    file.unlink()
    with pytest.raises(HeatproofError, match=f"{file} is missing: run your snakemake command with this path as its"):
        read(store, "logit", 0, 3)

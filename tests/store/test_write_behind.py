"""While a batch is computed, the previous one is written and the next one is read, on any device."""

import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from heatproof.core.batches import prefetch
from heatproof.core.dataset import Split
from heatproof.core.provenance import Key
from heatproof.core.specs import ShardRange
from heatproof.store.writing import BackgroundWriter
from heatproof.store.zarr_store import ArraySpec
from heatproof.workflow.stages import _shards as shards
from heatproof.workflow.stages._shards import BACKGROUND_WRITES, Origin, open_shard

LONG = 60
SPLIT = Split(tuple(f"img-{number:02d}" for number in range(40)), np.arange(40) % 3)
ARRAYS = {
    "attribution": ArraySpec(("map", "y", "x"), (1, 3, 3)),
    "predicted": ArraySpec(("variant",), (2,), "int32", chunk_by_image=False),
}


def shard(folder: Path, name="saliency"):
    origin = Origin(Key("config", "code"), {})
    return open_shard(ShardRange(0, 16, (0, 10)), str(folder / "maps" / name), origin, SPLIT, ARRAYS, {"map": [name]})


def values(low, high):
    numbers = np.arange(low, high, dtype=np.float32)
    return {
        "attribution": numbers[:, None, None, None] * np.ones((1, 1, 3, 3), np.float32),
        "predicted": np.stack([numbers, numbers + 1], 1),
    }


class Device:
    """Computes a batch after the previous one is being written and the next one has been read."""

    def __init__(self):
        self.read = [threading.Event() for _ in range(5)]
        self.writing = [threading.Event() for _ in range(5)]

    def fetch(self, number):
        self.read[number].set()
        return torch.zeros(1)

    def compute(self, number):
        if number < 4:
            assert self.read[number + 1].wait(LONG), "the next batch is not read meanwhile"
        if number:
            assert self.writing[number - 1].wait(LONG), "the batch before is not written meanwhile"


def test_reading_computing_and_writing_overlap(tmp_path, monkeypatch):
    device, computed = Device(), [threading.Event() for _ in range(5)]
    save = np.savez

    def slow(file, **arrays):
        number = int(arrays["predicted"][0, 0]) // 2
        device.writing[number].set()
        # The disk is slower than the device: a write ends when the next batch has been computed.
        assert number == 4 or computed[number + 1].wait(LONG), "nothing is computed while a batch is written"
        save(file, **arrays)

    monkeypatch.setattr(np, "savez", slow)
    part = shard(tmp_path)
    for number, _ in prefetch(device.fetch, range(5), torch.device("cpu")):
        device.compute(number)
        computed[number].set()
        part.add(2 * number, values(2 * number, 2 * number + 2), 1.0, 2)
    part.publish("cpu")
    stored = shards.read(part.store, "predicted", 0, 10)
    np.testing.assert_array_equal(stored[:, 0], np.arange(10))


def test_the_next_explainer_is_computed_while_a_shard_is_compressed(tmp_path, monkeypatch):
    write, next_begun = shards.write_shard, threading.Event()

    def slow(store, name, *rest):
        assert "first" not in store or next_begun.wait(LONG), "a shard is written before the next one begins"
        return write(store, name, *rest)

    monkeypatch.setattr(shards, "write_shard", slow)
    parts = [shard(tmp_path, name) for name in ("first", "second")]
    with BACKGROUND_WRITES:
        for part in parts:
            if part is parts[1]:
                next_begun.set()
            part.add(0, values(0, 10), 1.0, 10)
            part.publish_behind("cpu")
    for part in parts:
        assert Path(part.manifest).is_file()
        np.testing.assert_array_equal(shards.read(part.store, "predicted", 0, 10)[:, 0], np.arange(10))


def test_a_full_disk_is_reported_once_with_the_next_batch(tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    part = shard(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(np, "savez", full)
        part.add(0, values(0, 2), 1.0, 2)
        with pytest.raises(OSError, match="No space left"):
            part.add(2, values(2, 4), 1.0, 2)
    # A later job does not resume batches that were not written.
    again = shard(tmp_path)
    assert again.missing() == (0, 10)
    again.add(0, values(0, 10), 1.0, 10)
    again.publish("cpu")


def test_a_shard_that_cannot_be_written_has_no_manifest(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    part = shard(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(shards, "write_shard", full)
        part.add(0, values(0, 10), 1.0, 10)
        part.publish_behind("cpu")
        with pytest.raises(OSError, match="No space left"):
            BACKGROUND_WRITES.wait()
    assert not Path(part.manifest).exists()
    assert shard(tmp_path).missing() == (10, 10), "the journal has all batches"


def test_writes_are_in_order_and_one_waits_at_most():
    behind, begun, written, go = BackgroundWriter(), [], [], threading.Event()

    def write(number):
        begun.append(number)
        assert go.wait(LONG)
        written.append(number)

    behind.submit(lambda: write(0))
    submitting = threading.Thread(target=lambda: [behind.submit(lambda n=n: write(n)) for n in (1, 2)])
    submitting.start()
    assert begun in ([], [0])
    go.set()
    submitting.join(LONG)
    behind.wait()
    assert written == [0, 1, 2]

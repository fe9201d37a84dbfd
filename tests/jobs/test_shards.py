"""A job's piece of a store: what is kept when it dies, what is added to, and what is made anew."""

import hashlib
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from heatproof.base.provenance import Key
from heatproof.base.specs import ShardRange
from heatproof.data.registry import Split
from heatproof.errors import HeatproofError
from heatproof.jobs import shards
from heatproof.jobs.shards import BACKGROUND_WRITES, Origin, open_shard
from heatproof.stores import manifest
from heatproof.stores.source_files import FileRecord, ImagesRead
from heatproof.stores.store import ArraySpec, read

SPLIT = Split(tuple(f"img-{number:02d}" for number in range(40)), np.arange(40) % 3)
ARRAYS = {
    "attribution": ArraySpec(("map", "y", "x"), (1, 3, 3)),
    "predicted": ArraySpec(("variant",), (2,), "int32", chunk_by_image=False),
}


NOTHING = ImagesRead()


class Died(BaseException):
    pass


def pictures(*other, train="t"):
    """Return what is known of 40 evaluation images and one for training, some of them others than usual."""
    files = [f"{number} {'new' if number in other else ''}" for number in range(40)] + [train]
    digests = np.array([list(hashlib.sha256(file.encode()).digest()) for file in files], np.uint8)
    listed = {"evaluation": ("ids", 40), "train": ("ids", 1)}
    rows = {"evaluation": np.arange(40), "train": np.array([40])}
    names = [file.encode() for file in files]
    return ImagesRead("toy", FileRecord(names, np.zeros((41, 3), np.int64), digests, 0, listed=listed, rows=rows))


@pytest.fixture
def weights(tmp_path):
    path = tmp_path / "weights"
    path.write_bytes(b"weights")
    return path


class Job:
    """What a stage does: compute what is missing, batch by batch, and publish it."""

    def __init__(self, folder: Path, config="k", images=(0, 10), shard=0, inputs=(), pictures=NOTHING, **reads):
        self.base = str(folder / "maps/saliency")
        self.arguments = {
            "shard": ShardRange(shard, 16, images),
            "base": self.base,
            "origin": Origin(
                Key(config, "code"), {"steps": 1}, [str(path) for path in inputs], images=pictures, **reads
            ),
            "split": SPLIT,
            "arrays": ARRAYS,
            "coordinates": {"map": ["saliency"]},
        }
        self.computed: list[int] = []

    def values(self, low: int, high: int) -> dict[str, np.ndarray]:
        numbers = np.arange(low, high, dtype=np.float32)
        return {
            "attribution": np.sqrt(numbers + 1)[:, None, None, None] * np.ones((1, 1, 3, 3), np.float32),
            "predicted": np.stack([numbers, numbers + 1], 1),
        }

    def open(self):
        return open_shard(**self.arguments)

    def run(self, batch=4, dies_at=None):
        piece = self.open()
        start, stop = piece.missing()
        with BACKGROUND_WRITES:
            for low in range(start, stop, batch):
                high = min(low + batch, stop)
                if dies_at is not None and high > dies_at:
                    raise Died
                self.computed += range(low, high)
                piece.add(low, self.values(low, high), seconds=1.0, passes=high - low)
            piece.publish_behind("cpu")
        piece.forget_journal()
        return self

    def read(self, array="attribution", start=0, stop=10):
        return read(self.base + ".zarr", array, start, stop)

    @property
    def manifest(self) -> dict:
        return json.loads(Path(f"{self.base}.{self.arguments['shard'].number}.json").read_text())

    @property
    def shards(self) -> dict[str, bytes]:
        store = Path(self.base + ".zarr")
        return {str(p.relative_to(store)): p.read_bytes() for p in sorted(store.rglob("*")) if p.is_file()}

    @property
    def journals(self) -> list[Path]:
        return sorted(Path(self.base).parent.glob(".*.journal/*/*.npz"))


def test_a_whole_number_that_its_array_cannot_hold_is_refused(tmp_path):
    job = Job(tmp_path)
    values = {**job.values(0, 4), "predicted": np.array([[0, 2**31]] * 4)}
    with pytest.raises(
        HeatproofError, match=r"predicted of .*saliency has the value 2147483648, which int32 cannot hold"
    ):
        job.open().add(0, values, seconds=1.0, passes=4)


def test_what_is_published(tmp_path, weights):
    job = Job(tmp_path, inputs=[weights]).run()
    np.testing.assert_array_equal(job.read(), job.values(0, 10)["attribution"])
    np.testing.assert_array_equal(job.read("predicted"), job.values(0, 10)["predicted"])
    made = job.manifest
    assert made["images"] == [0, 10]
    assert made["gap"] is None
    assert made["network_passes"] == 10
    assert made["seconds"] == 3.0
    assert made["device"] == "cpu"
    assert made["made_by"] == {"steps": 1}
    assert made["input_sha256"] == {str(weights): manifest.file_digest(weights)}
    assert made["versions"]["numpy"] == np.__version__
    assert made.pop("format") == manifest.FORMAT
    assert manifest.read_if_intact(f"{job.base}.0.json", made.pop("seal") and made["key"]) == made
    assert job.journals == []


@pytest.mark.parametrize("batch", [1, 3, 16])
@pytest.mark.parametrize("dies_at", [4, 9])
def test_a_job_that_died_goes_on_where_it_was(tmp_path, dies_at, batch):
    whole = Job(tmp_path / "whole").run()
    job = Job(tmp_path / "died")
    with pytest.raises(Died):
        job.run(batch=4, dies_at=dies_at)
    kept = len(job.computed)
    assert kept == dies_at // 4 * 4
    # Another batch size does not matter.
    job.run(batch=batch)
    assert job.computed == list(range(10)), "nothing is computed twice"
    assert job.shards == whole.shards
    assert job.manifest["network_passes"] == 10
    assert job.journals == []


def test_more_images_are_added(tmp_path):
    Job(tmp_path).run()
    more = Job(tmp_path, images=(0, 16)).run()
    assert more.computed == list(range(10, 16))
    assert more.shards == Job(tmp_path / "whole", images=(0, 16)).run().shards
    assert more.manifest["images"] == [0, 16]
    assert more.manifest["network_passes"] == 16
    assert more.manifest["seconds"] == 5.0


def test_more_images_are_added_although_the_first_attempt_died(tmp_path):
    Job(tmp_path).run()
    more = Job(tmp_path, images=(0, 16))
    with pytest.raises(Died):
        more.run(dies_at=14)
    assert more.manifest["images"] == [0, 10], "what was published stays until there is better"
    more.run()
    assert more.computed == list(range(10, 16))
    np.testing.assert_array_equal(more.read(stop=16), more.values(0, 16)["attribution"])


def test_fewer_images_leave_what_is_there(tmp_path):
    job = Job(tmp_path).run()
    before = job.shards
    old = {path: os.stat(path).st_mtime_ns for path in [f"{job.base}.0.json", f"{job.base}.zarr/attribution/c/0/0/0/0"]}
    for path in old:
        os.utime(path, (1, 1))
    fewer = Job(tmp_path, images=(0, 6)).run()
    assert fewer.computed == []
    assert fewer.shards == before
    assert fewer.manifest["images"] == [0, 10]
    # Found whole, it is as new as what it was checked against: Snakemake goes by times.
    assert all(os.stat(path).st_mtime_ns >= old[path] for path in old)


@pytest.mark.parametrize("published", [True, False])
@pytest.mark.parametrize("change", ["key", "input"])
def test_another_key_takes_nothing_over(tmp_path, weights, change, published):
    job = Job(tmp_path, inputs=[weights])
    if published:
        job.run()
    else:
        with pytest.raises(Died):
            job.run(dies_at=9)
    if change == "input":
        weights.write_bytes(b"others")
    other = Job(tmp_path, config="other" if change == "key" else "k", inputs=[weights]).run()
    assert other.computed == list(range(10))
    assert other.journals == [], "the journal of the old key is gone as well"


def test_one_shard_of_two(tmp_path):
    first, second = Job(tmp_path, images=(0, 16)).run(), Job(tmp_path, images=(16, 21), shard=1).run()
    np.testing.assert_array_equal(first.read(start=14, stop=20), first.values(14, 20)["attribution"])
    assert second.manifest["images"] == [16, 21]
    assert [fact["file"] for fact in second.manifest["files"]] == [
        "saliency.zarr/attribution/c/1/0/0/0",
        "saliency.zarr/predicted/c/1/0",
    ]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_stops_with_the_image(tmp_path, bad, monkeypatch):
    job = Job(tmp_path)
    sound = job.values

    def values(low, high):
        made = sound(low, high)
        if low <= 6 < high:
            made["attribution"][6 - low, 0, 1, 2] = bad
        return made

    monkeypatch.setattr(job, "values", values)
    with pytest.raises(
        HeatproofError, match="saliency gave a value that is not finite in attribution of image 'img-06'"
    ):
        job.run()
    assert not Path(f"{job.base}.0.json").exists()
    monkeypatch.setattr(job, "values", sound)
    job.computed.clear()
    job.run()
    assert job.computed == list(range(4, 10)), "the first batch was kept"


def test_a_gap(tmp_path):
    spec = {"attribution": ARRAYS["attribution"]}
    job = Job(tmp_path, images=(0, 16))
    job.arguments["arrays"] = spec
    job.open().publish("cpu", "no layer")
    assert job.manifest["gap"] == "no layer"
    assert job.manifest["images"] == [0, 16]
    with pytest.raises(HeatproofError, match="no values for image 0"):
        job.read()
    # A gap is looked at again: it costs nothing, and the next attempt may give maps.
    again = job.open()
    assert again.missing() == (0, 16)
    job.run()
    assert job.manifest["gap"] is None
    np.testing.assert_array_equal(job.read(stop=16), job.values(0, 16)["attribution"])


def test_a_gap_takes_the_place_of_batches_that_were_done(tmp_path):
    job = Job(tmp_path)
    job.arguments["arrays"] = {"attribution": ARRAYS["attribution"]}
    piece = job.open()
    piece.add(0, job.values(0, 4), 1.0, 4)
    piece.publish("cpu", "only some")
    piece.forget_journal()
    with pytest.raises(HeatproofError, match="no values for image 0"):
        job.read()
    assert job.open().missing() == (0, 10)


@pytest.mark.parametrize("damage", ["flip", "truncate", "remove", "other array"])
def test_a_damaged_shard_is_made_again(tmp_path, damage):
    job = Job(tmp_path).run()
    before = job.shards
    name = "predicted/c/0/0" if damage == "other array" else "attribution/c/0/0/0/0"
    path = Path(job.base + ".zarr") / name
    if damage == "remove":
        path.unlink()
    elif damage == "truncate":
        path.write_bytes(before[name][:-5])
    else:
        path.write_bytes(before[name][:9] + bytes([before[name][9] ^ 1]) + before[name][10:])
    again = Job(tmp_path).run()
    assert again.computed == list(range(10))
    assert again.shards == before


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"half", b"text"])
def test_a_damaged_journal_is_left_out(tmp_path, content):
    job = Job(tmp_path)
    with pytest.raises(Died):
        job.run(dies_at=9)
    second = job.journals[1]
    assert second.name == "4.npz"
    whole = second.read_bytes()
    second.write_bytes(whole[: len(whole) // 2] if content == b"half" else content)
    job.computed.clear()
    job.run()
    assert job.computed == list(range(4, 10))
    np.testing.assert_array_equal(job.read(), job.values(0, 10)["attribution"])


def test_a_flipped_bit_in_a_journal_is_left_out(tmp_path):
    job = Job(tmp_path)
    with pytest.raises(Died):
        job.run(dies_at=9)
    second = job.journals[1]
    whole = second.read_bytes()
    place = whole.index(np.float32(np.sqrt(5.0)).tobytes())
    second.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
    job.computed.clear()
    job.run()
    assert job.computed == list(range(4, 10))


@pytest.mark.parametrize("survived", [0, 1, 2])
def test_a_job_that_dies_while_it_publishes(tmp_path, monkeypatch, survived):
    """After no, one, or both shards, and before the manifest: the next job computes nothing and ends the same."""
    whole = Job(tmp_path / "whole").run()
    job = Job(tmp_path / "died")
    wrote = []

    def write(*arguments, write_shard=shards.write_shard):
        if len(wrote) == survived:
            raise Died
        wrote.append(arguments)
        return write_shard(*arguments)

    def write_manifest(*_, **__):
        raise Died

    with monkeypatch.context() as patched:
        patched.setattr(shards, "write_shard", write)
        patched.setattr(shards.manifest, "write_manifest", write_manifest)
        with pytest.raises(Died):
            job.run()
    assert not Path(f"{job.base}.0.json").exists()
    job.computed.clear()
    job.run()
    assert job.computed == []
    assert job.shards == whole.shards


def test_more_images_than_there_are(tmp_path):
    with pytest.raises(HeatproofError, match=r"41 images are requested, but the evaluation split has 40: lower"):
        Job(tmp_path, images=(32, 41), shard=2).open()


def test_other_image_ids_are_other_pieces(tmp_path):
    """Under the same key a user's dataset may still have changed."""
    Job(tmp_path).run()
    other = Job(tmp_path)
    other.arguments["split"] = Split(("new", *SPLIT.ids[1:]), SPLIT.labels)
    other.run()
    assert other.computed == list(range(10))


# ---- whose images they are of ---------------------------------------------------------------------------------------


def died(folder, dies_at=9, **job):
    job = Job(folder, **job)
    with pytest.raises(Died):
        job.run(dies_at=dies_at)
    return job


def exchanged(job):
    first, second = job.journals[:2]
    aside = first.with_suffix(".aside")
    first.rename(aside)
    second.rename(first)
    aside.rename(second)


def moved(job):
    """Take the second batch, which is as large, for the first one."""
    shutil.copy(job.journals[1], job.journals[0])


def of_another_key(job):
    other = died(Path(job.base).parents[1] / "other", config="other")
    shutil.copy(other.journals[0], job.journals[0])


def of_another_shard(job):
    other = died(Path(job.base).parents[1] / "other", images=(16, 26), shard=1, dies_at=25)
    shutil.copy(other.journals[0], job.journals[0])


def compressed(job):
    with np.load(job.journals[0]) as kept:
        arrays = dict(kept)
    np.savez_compressed(job.journals[0], **arrays)


def of_other_seconds(job):
    with np.load(job.journals[0]) as kept:
        arrays = {**kept, "passes": kept["passes"] + 1}
    np.savez(job.journals[0], **arrays)


@pytest.mark.parametrize("put", [exchanged, moved, of_another_key, of_another_shard, compressed, of_other_seconds])
def test_a_batch_that_does_not_fit_its_place_is_not_taken(tmp_path, put):
    whole = Job(tmp_path / "whole", images=(0, 12)).run()
    job = died(tmp_path / "died", images=(0, 12))
    assert len(job.journals) == 2
    put(job)
    job.computed.clear()
    job.run()
    assert job.computed == list(range(12)), "all from the first one that does not fit"
    assert job.shards == whole.shards
    assert job.manifest["network_passes"] == 12


def test_a_journal_counts_for_the_same_pictures_alone(tmp_path):
    died(tmp_path, pictures=pictures())
    job = Job(tmp_path, pictures=pictures(5)).run()
    assert job.computed == list(range(4, 10)), "image 5 is in the second batch"


@pytest.mark.parametrize(
    ("other", "images", "computed"),
    [
        ((), (0, 10), []),
        ((3,), (0, 10), list(range(10))),
        ((12,), (0, 10), []),
        ((12,), (0, 16), list(range(10, 16))),
        ((20,), (0, 16), list(range(10, 16))),
        ((9,), (0, 16), list(range(16))),
        ((9,), (0, 6), list(range(6))),
    ],
)
def test_a_piece_is_added_to_where_its_first_pictures_are_the_same(tmp_path, other, images, computed):
    Job(tmp_path, pictures=pictures()).run()
    again = Job(tmp_path, images=images, pictures=pictures(*other)).run()
    assert again.computed == computed
    key = again.manifest["key"]
    assert key == Job(tmp_path, images=images).run().manifest["key"], "the key is that of the whole store"


def test_what_else_decides_the_values_counts(tmp_path):
    value_ranges = [("train", 0, 1)]
    Job(tmp_path, pictures=pictures(), value_ranges=value_ranges).run()
    assert Job(tmp_path, pictures=pictures(), value_ranges=value_ranges).run().computed == []
    assert Job(tmp_path, pictures=pictures(train="new"), value_ranges=value_ranges).run().computed == list(range(10))


def test_what_the_manifest_says_beside_values_is_written_again_and_nothing_computed(tmp_path):
    manifest_ranges = [("evaluation", 0, 4)]
    where = {"images": (16, 26), "shard": 1, "manifest_ranges": manifest_ranges}
    before = Job(tmp_path, pictures=pictures(), **where).run().manifest
    job = Job(tmp_path, pictures=pictures(2), **where).run()
    assert job.computed == []
    assert job.manifest["data"] != before["data"]
    assert job.manifest["files"] == before["files"]

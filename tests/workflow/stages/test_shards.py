"""Shards of jobs: resuming after a kill, adding images, and computing stale or damaged shards again."""

import hashlib
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from heatproof.core.dataset import Split
from heatproof.core.provenance import Key
from heatproof.core.specs import ShardRange
from heatproof.errors import HeatproofError
from heatproof.store import manifest
from heatproof.store.source_files import FileRecord, ImagesRead
from heatproof.store.zarr_store import ArraySpec, read
from heatproof.workflow.stages import _shards as shards
from heatproof.workflow.stages._shards import BACKGROUND_WRITES, Origin, open_shard

SPLIT = Split(tuple(f"img-{number:02d}" for number in range(40)), np.arange(40) % 3)
ARRAYS = {
    "attribution": ArraySpec(("map", "y", "x"), (1, 3, 3)),
    "predicted": ArraySpec(("variant",), (2,), "int32", chunk_by_image=False),
}


NO_IMAGES = ImagesRead()


class Died(BaseException):
    pass


def images_read(*changed, train="t"):
    """Return the record of 40 evaluation images, some with changed content, and of one training image."""
    files = [f"{number} {'new' if number in changed else ''}" for number in range(40)] + [train]
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
    """A job of a stage: it computes the missing images, batch by batch, and publishes the shard."""

    def __init__(self, folder: Path, config="k", images=(0, 10), shard=0, inputs=(), images_read=NO_IMAGES, **reads):
        self.base = str(folder / "maps/saliency")
        self.arguments = {
            "shard": ShardRange(shard, 16, images),
            "base": self.base,
            "origin": Origin(
                Key(config, "code"), {"steps": 1}, [str(path) for path in inputs], images=images_read, **reads
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
        part = self.open()
        start, stop = part.missing()
        with BACKGROUND_WRITES:
            for low in range(start, stop, batch):
                high = min(low + batch, stop)
                if dies_at is not None and high > dies_at:
                    raise Died
                self.computed += range(low, high)
                part.add(low, self.values(low, high), seconds=1.0, passes=high - low)
            part.publish_behind("cpu")
        part.forget_journal()
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


def test_an_integer_that_its_array_cannot_hold_is_refused(tmp_path):
    job = Job(tmp_path)
    values = {**job.values(0, 4), "predicted": np.array([[0, 2**31]] * 4)}
    with pytest.raises(
        HeatproofError, match=r"predicted of .*saliency has the value 2147483648, which int32 cannot hold"
    ):
        job.open().add(0, values, seconds=1.0, passes=4)


def test_a_finished_job_publishes_values_and_a_manifest(tmp_path, weights):
    job = Job(tmp_path, inputs=[weights]).run()
    np.testing.assert_array_equal(job.read(), job.values(0, 10)["attribution"])
    np.testing.assert_array_equal(job.read("predicted"), job.values(0, 10)["predicted"])
    published = job.manifest
    assert published["images"] == [0, 10]
    assert published["gap"] is None
    assert published["network_passes"] == 10
    assert published["seconds"] == 3.0
    assert published["device"] == "cpu"
    assert published["made_by"] == {"steps": 1}
    assert published["input_sha256"] == {str(weights): manifest.file_digest(weights)}
    assert published["versions"]["numpy"] == np.__version__
    assert published.pop("format") == manifest.FORMAT
    assert manifest.read_if_intact(f"{job.base}.0.json", published.pop("seal") and published["key"]) == published
    assert job.journals == []


@pytest.mark.parametrize("batch", [1, 3, 16])
@pytest.mark.parametrize("dies_at", [4, 9])
def test_a_killed_job_resumes_after_its_last_batch(tmp_path, dies_at, batch):
    complete = Job(tmp_path / "whole").run()
    job = Job(tmp_path / "died")
    with pytest.raises(Died):
        job.run(batch=4, dies_at=dies_at)
    num_computed = len(job.computed)
    assert num_computed == dies_at // 4 * 4
    # Another batch size does not matter.
    job.run(batch=batch)
    assert job.computed == list(range(10)), "nothing is computed twice"
    assert job.shards == complete.shards
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


def test_fewer_images_leave_the_shard_unchanged(tmp_path):
    job = Job(tmp_path).run()
    before = job.shards
    old = {path: os.stat(path).st_mtime_ns for path in [f"{job.base}.0.json", f"{job.base}.zarr/attribution/c/0/0/0/0"]}
    for path in old:
        os.utime(path, (1, 1))
    fewer = Job(tmp_path, images=(0, 6)).run()
    assert fewer.computed == []
    assert fewer.shards == before
    assert fewer.manifest["images"] == [0, 10]
    # An intact shard gets the current time, because Snakemake compares times.
    assert all(os.stat(path).st_mtime_ns >= old[path] for path in old)


@pytest.mark.parametrize("published", [True, False])
@pytest.mark.parametrize("change", ["key", "input"])
def test_another_key_reuses_nothing(tmp_path, weights, change, published):
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


def test_shards_of_one_store_are_separate(tmp_path):
    first, second = Job(tmp_path, images=(0, 16)).run(), Job(tmp_path, images=(16, 21), shard=1).run()
    np.testing.assert_array_equal(first.read(start=14, stop=20), first.values(14, 20)["attribution"])
    assert second.manifest["images"] == [16, 21]
    assert [fact["file"] for fact in second.manifest["files"]] == [
        "saliency.zarr/attribution/c/1/0/0/0",
        "saliency.zarr/predicted/c/1/0",
    ]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_nonfinite_value_is_refused_with_its_image(tmp_path, bad, monkeypatch):
    job = Job(tmp_path)
    sound = job.values

    def values(low, high):
        batch = sound(low, high)
        if low <= 6 < high:
            batch["attribution"][6 - low, 0, 1, 2] = bad
        return batch

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


def test_a_job_that_is_not_applicable_publishes_the_reason(tmp_path):
    spec = {"attribution": ARRAYS["attribution"]}
    job = Job(tmp_path, images=(0, 16))
    job.arguments["arrays"] = spec
    job.open().publish("cpu", "no layer")
    assert job.manifest["gap"] == "no layer"
    assert job.manifest["images"] == [0, 16]
    with pytest.raises(HeatproofError, match="no values for image 0"):
        job.read()
    # The applicability is checked again, because that costs nothing and the next attempt may give maps.
    again = job.open()
    assert again.missing() == (0, 16)
    job.run()
    assert job.manifest["gap"] is None
    np.testing.assert_array_equal(job.read(stop=16), job.values(0, 16)["attribution"])


def test_a_reason_replaces_finished_batches(tmp_path):
    job = Job(tmp_path)
    job.arguments["arrays"] = {"attribution": ARRAYS["attribution"]}
    part = job.open()
    part.add(0, job.values(0, 4), 1.0, 4)
    part.publish("cpu", "only some")
    part.forget_journal()
    with pytest.raises(HeatproofError, match="no values for image 0"):
        job.read()
    assert job.open().missing() == (0, 10)


@pytest.mark.parametrize("damage", ["flip", "truncate", "remove", "other array"])
def test_a_damaged_shard_is_computed_again(tmp_path, damage):
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
def test_a_damaged_batch_of_a_journal_is_computed_again(tmp_path, content):
    job = Job(tmp_path)
    with pytest.raises(Died):
        job.run(dies_at=9)
    second = job.journals[1]
    assert second.name == "4.npz"
    content_before = second.read_bytes()
    second.write_bytes(content_before[: len(content_before) // 2] if content == b"half" else content)
    job.computed.clear()
    job.run()
    assert job.computed == list(range(4, 10))
    np.testing.assert_array_equal(job.read(), job.values(0, 10)["attribution"])


def test_a_flipped_bit_in_a_journal_is_detected(tmp_path):
    job = Job(tmp_path)
    with pytest.raises(Died):
        job.run(dies_at=9)
    second = job.journals[1]
    content = second.read_bytes()
    position = content.index(np.float32(np.sqrt(5.0)).tobytes())
    second.write_bytes(content[:position] + bytes([content[position] ^ 1]) + content[position + 1 :])
    job.computed.clear()
    job.run()
    assert job.computed == list(range(4, 10))


@pytest.mark.parametrize("survived", [0, 1, 2])
def test_a_job_killed_while_publishing_is_completed(tmp_path, monkeypatch, survived):
    """A job is killed after none, one or both shards, before the manifest; the next one computes nothing."""
    complete = Job(tmp_path / "whole").run()
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
    assert job.shards == complete.shards


def test_more_images_than_the_split_has_are_refused(tmp_path):
    with pytest.raises(HeatproofError, match=r"41 images are requested, but the evaluation split has 40: lower"):
        Job(tmp_path, images=(32, 41), shard=2).open()


def test_other_image_ids_are_computed_again(tmp_path):
    """A custom dataset may change without a change of its key."""
    Job(tmp_path).run()
    other = Job(tmp_path)
    other.arguments["split"] = Split(("new", *SPLIT.ids[1:]), SPLIT.labels)
    other.run()
    assert other.computed == list(range(10))


# ---- images of a journal and of a shard ------------------------------------------------------------------------------


def killed_job(folder, dies_at=9, **job):
    job = Job(folder, **job)
    with pytest.raises(Died):
        job.run(dies_at=dies_at)
    return job


def exchange_batches(job):
    first, second = job.journals[:2]
    aside = first.with_suffix(".aside")
    first.rename(aside)
    second.rename(first)
    aside.rename(second)


def repeat_batch(job):
    """Replace the first batch by the second one, which is as large."""
    shutil.copy(job.journals[1], job.journals[0])


def batch_of_another_key(job):
    other = killed_job(Path(job.base).parents[1] / "other", config="other")
    shutil.copy(other.journals[0], job.journals[0])


def batch_of_another_shard(job):
    other = killed_job(Path(job.base).parents[1] / "other", images=(16, 26), shard=1, dies_at=25)
    shutil.copy(other.journals[0], job.journals[0])


def compress_batch(job):
    with np.load(job.journals[0]) as archive:
        arrays = dict(archive)
    np.savez_compressed(job.journals[0], **arrays)


def change_passes(job):
    with np.load(job.journals[0]) as archive:
        arrays = {**archive, "passes": archive["passes"] + 1}
    np.savez(job.journals[0], **arrays)


@pytest.mark.parametrize(
    "put", [exchange_batches, repeat_batch, batch_of_another_key, batch_of_another_shard, compress_batch, change_passes]
)
def test_a_misplaced_batch_of_a_journal_is_not_used(tmp_path, put):
    complete = Job(tmp_path / "whole", images=(0, 12)).run()
    job = killed_job(tmp_path / "died", images=(0, 12))
    assert len(job.journals) == 2
    put(job)
    job.computed.clear()
    job.run()
    assert job.computed == list(range(12)), "all from the first one that does not fit"
    assert job.shards == complete.shards
    assert job.manifest["network_passes"] == 12


def test_a_journal_is_used_only_for_unchanged_images(tmp_path):
    killed_job(tmp_path, images_read=images_read())
    job = Job(tmp_path, images_read=images_read(5)).run()
    assert job.computed == list(range(4, 10)), "image 5 is in the second batch"


@pytest.mark.parametrize(
    ("changed", "images", "computed"),
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
def test_images_are_added_to_a_shard_whose_first_images_are_unchanged(tmp_path, changed, images, computed):
    Job(tmp_path, images_read=images_read()).run()
    again = Job(tmp_path, images=images, images_read=images_read(*changed)).run()
    assert again.computed == computed
    key = again.manifest["key"]
    assert key == Job(tmp_path, images=images).run().manifest["key"], "the key is that of the whole store"


def test_other_inputs_of_the_values_make_a_shard_stale(tmp_path):
    value_ranges = [("train", 0, 1)]
    Job(tmp_path, images_read=images_read(), value_ranges=value_ranges).run()
    assert Job(tmp_path, images_read=images_read(), value_ranges=value_ranges).run().computed == []
    assert Job(tmp_path, images_read=images_read(train="new"), value_ranges=value_ranges).run().computed == list(
        range(10)
    )


def test_changed_manifest_data_rewrite_only_the_manifest(tmp_path):
    manifest_ranges = [("evaluation", 0, 4)]
    where = {"images": (16, 26), "shard": 1, "manifest_ranges": manifest_ranges}
    before = Job(tmp_path, images_read=images_read(), **where).run().manifest
    job = Job(tmp_path, images_read=images_read(2), **where).run()
    assert job.computed == []
    assert job.manifest["data"] != before["data"]
    assert job.manifest["files"] == before["files"]

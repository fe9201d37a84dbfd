"""Results without Snakemake's memory: what belongs to the config gets times in order, what does not is made again."""

import dataclasses
import os
import time
from types import SimpleNamespace

import pytest

from heatproof.adopt import LONG_AGO, adopt, belongs, notice_replaced
from heatproof.manifest import describe_file, read_sealed, write_manifest, write_sealed
from heatproof.plan.entries import Record
from heatproof.provenance import file_digest

NAMES = ("weights", "maps", "scores")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def make(name, rank, spec_key="k", images=None, key=None):
    """Leave what a job would leave, dated upside down, and return its record."""
    output, manifest = f"results/{name}.bin", f"results/{name}.json"
    os.makedirs("results", exist_ok=True)
    with open(output, "w") as file:
        file.write(name)
    facts = {} if images is None else {"images": [0, images]}
    write_manifest(manifest, spec_key=spec_key, key=key or spec_key, files=[describe_file(output, manifest)], **facts)
    for path in (output, manifest):
        os.utime(path, (5000 - rank, 5000 - rank))
    return Record(rank, manifest, "k", [output, manifest], images)


def make_dataset(spec_key="k"):
    write_sealed("results/dataset.json", {"spec_key": spec_key, "splits": {}})
    return Record(0, "results/dataset.json", "k", ["results/dataset.json"])


def plan_of(*records):
    return SimpleNamespace(records=lambda: iter(records))


def times(*records):
    return [os.stat(output).st_mtime for record in records for output in record.outputs]


def remember():
    os.makedirs(".snakemake/metadata", exist_ok=True)
    with open(".snakemake/metadata/job", "w"):
        pass


def chain():
    return [make_dataset(), *(make(name, rank + 1) for rank, name in enumerate(NAMES))]


def test_copied_results_get_times_in_the_order_of_the_stages(folder):
    records = chain()
    adopt(plan_of(*records))
    first = [times(record)[0] for record in records]
    assert first == sorted(first)
    assert len(set(first)) == len(records)
    assert all(len(set(times(record))) == 1 for record in records), "the files of one job are of one time"
    assert all(time.time() - 120 < when < time.time() for when in first), "new, but not newer than now"


def test_where_snakemake_remembers_nothing_is_touched(folder):
    records = chain()
    remember()
    before = times(*records)
    adopt(plan_of(*records))
    assert times(*records) == before
    assert not os.path.exists(".snakemake/heatproof.adopted")


def test_an_empty_folder_is_left_alone(folder):
    adopt(plan_of(Record(1, "results/a.json", "k", ["results/a.bin"])))
    assert os.listdir(".") == []


def test_stale_results_are_dated_back_and_kept(folder):
    records = [make_dataset(), make("weights", 1), make("maps", 3, spec_key="old"), make("scores", 4)]
    adopt(plan_of(*records))
    assert set(times(records[2])) == {LONG_AGO - 3}
    assert min(times(records[0], records[1], records[3])) > LONG_AGO
    with open("results/maps.bin") as file:
        assert file.read() == "maps"


def test_later_stages_of_what_is_stale_are_older_still(folder):
    """So that none of them looks newer than what it would be made from."""
    records = [make(name, rank + 1, spec_key="old") for rank, name in enumerate(NAMES)]
    adopt(plan_of(*records))
    first = [times(record)[0] for record in records]
    assert first == sorted(first, reverse=True)


def test_a_stale_list_of_images_is_removed(folder):
    records = [make_dataset(spec_key="old"), make("weights", 1)]
    adopt(plan_of(*records))
    assert not os.path.exists("results/dataset.json")


def shorter_file(record):
    with open(record.outputs[0], "w") as file:
        file.write("m")


BROKEN = {
    "no manifest": lambda record: os.remove(record.manifest),
    "damaged manifest": lambda record: os.truncate(record.manifest, 20),
    "lost file": lambda record: os.remove(record.outputs[0]),
    "file of another size": shorter_file,
}


@pytest.mark.parametrize("how", BROKEN)
def test_what_is_not_whole_does_not_belong(folder, how):
    record = make("maps", 3)
    assert belongs(record)
    BROKEN[how](record)
    assert not belongs(record)
    upstream = make("weights", 1)
    adopt(plan_of(upstream, record))
    assert {os.stat(path).st_mtime for path in record.outputs if os.path.exists(path)} == {LONG_AGO - 3}


@pytest.mark.parametrize(("has", "wanted", "fits"), [(10, 10, True), (16, 10, True), (10, 16, False)])
def test_a_shard_must_reach_far_enough(folder, has, wanted, fits):
    record = make("maps", 3, images=has)
    assert belongs(Record(3, record.manifest, "k", record.outputs, wanted)) == fits


def test_a_job_with_other_outputs_than_its_manifest_lists(folder):
    record = make("maps", 3)
    assert not belongs(Record(3, record.manifest, "k", [*record.outputs, "results/more.bin"]))


def test_it_looks_again_only_when_config_or_code_change(folder):
    records = chain()
    adopt(plan_of(*records))
    remember()
    for record in records:
        for output in record.outputs:
            os.utime(output, (7000, 7000))
    adopt(plan_of(*records))
    assert set(times(*records)) == {7000}
    changed = [Record(r.rank, r.manifest, "new" if r.rank == 3 else "k", r.outputs) for r in records]
    adopt(plan_of(*changed))
    assert set(times(changed[3])) == {LONG_AGO - 3}
    assert min(times(*changed[:3])) > 7000


def test_it_looks_again_while_snakemake_has_no_memory(folder):
    records = chain()
    adopt(plan_of(*records))
    os.utime("results/maps.bin", (7000, 7000))
    adopt(plan_of(*records))
    assert os.stat("results/maps.bin").st_mtime > 7000


# ---- checkpoints of one's own ----------------------------------------------------------------------------------------


def fetched(mtime=4000):
    """Leave fetched weights and their checkpoint."""
    with open("mine.pt", "w") as file:
        file.write("weights")
    os.utime("mine.pt", (mtime, mtime))
    record = make("weights", 1)
    made = read_sealed(record.manifest)
    write_sealed(record.manifest, {**made, "input_sha256": {"mine.pt": file_digest("mine.pt")}})
    return dataclasses.replace(record, sources=("mine.pt",))


def replace_checkpoint(mtime):
    with open("mine.pt", "w") as file:
        file.write("WEIGHTS")
    os.utime("mine.pt", (mtime, mtime))


def with_checkpoint(*records):
    def every():
        return iter(records)

    return SimpleNamespace(records=every, weight_records=every, models=["m"], checkpoint_file=lambda model: ["mine.pt"])


def test_copied_results_know_the_bytes_of_their_checkpoint(folder):
    record, maps = fetched(), make("maps", 3)
    assert belongs(record)
    replace_checkpoint(4000)
    assert not belongs(record)
    adopt(plan_of(record, maps))
    assert max(times(record)) < os.stat("mine.pt").st_mtime
    assert min(times(maps)) > LONG_AGO


@pytest.mark.parametrize("lose", [lambda: os.remove("mine.pt"), lambda: write_sealed("results/weights.json", {})])
def test_without_checkpoint_or_its_digest_nothing_is_taken_for_granted(folder, lose):
    record = fetched()
    lose()
    assert not belongs(record)


@pytest.mark.parametrize("mtime", [1, 4000, 2_000_000_000])
def test_a_checkpoint_replaced_by_one_of_any_date_is_newer_than_what_was_made_of_it(folder, mtime):
    record, maps = fetched(), make("maps", 3)
    remember()
    before = times(maps)
    replace_checkpoint(mtime)
    notice_replaced(with_checkpoint(record, maps))
    assert max(times(record)) < mtime
    assert times(maps) == before


def test_the_same_checkpoint_dates_nothing_back(folder):
    record = fetched()
    before = times(record)
    os.utime("mine.pt")
    notice_replaced(with_checkpoint(record))
    assert times(record) == before


def test_a_checkpoint_that_was_not_touched_is_not_read_again(folder, monkeypatch):
    record = fetched()
    later = time.time() + 60
    for output in record.outputs:
        os.utime(output, (later, later))
    monkeypatch.setattr("heatproof.adopt.file_digest", lambda path: pytest.fail(f"{path} was read"))
    notice_replaced(with_checkpoint(record))
    assert times(record) == pytest.approx([later] * 2)

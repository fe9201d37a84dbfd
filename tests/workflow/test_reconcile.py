"""Reconciling results at each start: current results get times in the order of jobs, others are made again."""

import dataclasses
import hashlib
import os
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from heatproof.core.provenance import Key, digest
from heatproof.errors import HeatproofError
from heatproof.store import source_files as sources
from heatproof.store.manifest import read_checksummed, write_checksummed, write_manifest
from heatproof.store.reading import file_digest, read_json
from heatproof.store.writing import write_json
from heatproof.workflow.plan.folder import Folder
from heatproof.workflow.plan.graph import Graph, Job
from heatproof.workflow.plan.stage import Product, Stage
from heatproof.workflow.reconcile import STALE_TIME, Results, reconcile, switch_target

NAMES = ("weights", "maps", "scores")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


class Jobs(Graph):
    """A job graph with given jobs."""

    def __init__(self, *jobs):
        super().__init__(SimpleNamespace(results=Folder()))
        self.listed = jobs

    def jobs(self):
        return iter(self.listed)


KEY = Key("config", "code")


def job_of(manifest, *files, inputs=(), images=None, sources=()):
    product = Product(manifest, KEY, (*files, manifest), (*files, manifest)[0], images)
    return Job("stage", {}, Stage(), (*inputs, *sources), (product,), sources)


def make(name, *upstream, spec_key=KEY, images=None, content=None, sources=()):
    """Write the results of a job, older than its inputs, and return the job."""
    data, manifest = f"results/{name}.bin", f"results/{name}.json"
    os.makedirs("results", exist_ok=True)
    with open(data, "w") as file:
        file.write(content or name)
    inputs = [job.products[0].data for job in upstream]
    facts = {} if images is None else {"images": [0, images]}
    facts["input_sha256"] = {path: file_digest(path) for path in [*inputs, *sources]}
    write_manifest(manifest, [data], spec_key=spec_key, key=digest([spec_key, facts["input_sha256"]]), **facts)
    date(5000 - 10 * len(os.listdir("results")), data, manifest)
    return job_of(manifest, data, inputs=inputs, images=images, sources=sources)


def make_dataset(spec_key=KEY):
    os.makedirs("results", exist_ok=True)
    write_checksummed("results/dataset.json", {**spec_key._asdict(), "name": "toy", "class_names": [], "splits": {}})
    date(5000, "results/dataset.json")
    return job_of("results/dataset.json")


def date(when, *paths):
    for path in paths:
        os.utime(path, (when, when))


def times(*jobs):
    return [os.stat(file).st_mtime for job in jobs for file in job.outputs]


def remember():
    os.makedirs(".snakemake/metadata", exist_ok=True)
    with open(".snakemake/metadata/job", "w"):
        pass


def chain(**of_maps):
    dataset = make_dataset()
    weights = make("weights", dataset)
    maps = make("maps", weights, **of_maps)
    return [dataset, weights, maps, make("scores", maps)]


def is_current(job, *upstream):
    return Results(Jobs(*upstream, job)).is_current(job, *job.products)


def is_stale(job, *upstream):
    return Results(Jobs(*upstream, job)).is_stale(job, *job.products)


@pytest.mark.parametrize("with_memory", [True, False])
def test_copied_results_get_times_in_the_order_of_the_jobs(folder, with_memory):
    jobs = chain()
    if with_memory:
        remember()
    first = [times(job)[0] for job in jobs]
    assert first == sorted(first, reverse=True), "upside down before"
    reconcile(Jobs(*jobs))
    first = [times(job)[0] for job in jobs]
    assert first == sorted(first)
    assert all(len(set(times(job))) == 1 for job in jobs), "the files of one job are of one time"
    assert all(STALE_TIME <= when < time.time() for when in first), "not newer than now"


@pytest.mark.parametrize("with_memory", [True, False])
def test_times_in_order_are_unchanged(folder, with_memory):
    jobs = chain()
    if with_memory:
        remember()
    for number, job in enumerate(jobs):
        date(1_500_000_000 + number, *job.outputs)
    before = times(*jobs)
    reconcile(Jobs(*jobs))
    assert times(*jobs) == before


@pytest.mark.parametrize("with_memory", [True, False])
def test_an_empty_folder_is_unchanged(folder, with_memory):
    if with_memory:
        remember()
    before = os.listdir(".")
    reconcile(Jobs(job_of("results/a.json", "results/a.bin")))
    assert os.listdir(".") == before


@pytest.mark.parametrize("with_memory", [True, False])
def test_stale_results_get_old_times_and_are_not_removed(folder, with_memory):
    """At each start, with or without Snakemake's records, because another config may have run meanwhile."""
    jobs = chain(spec_key=Key("old", "code"))
    if with_memory:
        remember()
    reconcile(Jobs(*jobs))
    assert set(times(jobs[2])) == {STALE_TIME - 2}
    assert min(times(jobs[0], jobs[1], jobs[3])) >= STALE_TIME
    with open("results/maps.bin") as file:
        assert file.read() == "maps"


def test_stale_results_are_older_than_their_inputs(folder):
    """Even if a copy has times before those of stale results."""
    jobs = chain(spec_key=Key("old", "code"))
    reconcile(Jobs(*jobs))
    assert max(times(jobs[2])) < min(times(jobs[0], jobs[1]))


def test_later_stale_stages_have_older_times(folder):
    """None of the stale files may look newer than its inputs."""
    jobs = [make_dataset()]
    for name in NAMES:
        jobs.append(make(name, jobs[-1], spec_key=Key("old", "code")))
    reconcile(Jobs(*jobs))
    first = [times(job)[0] for job in jobs]
    assert first == sorted(first, reverse=True)
    assert len(set(first)) == len(jobs)


def test_a_stale_list_of_images_is_removed(folder):
    """A job without inputs has no file that its results could be older than."""
    dataset = make_dataset(spec_key=Key("old", "code"))
    reconcile(Jobs(dataset, make("weights", dataset)))
    assert not os.path.exists("results/dataset.json")
    assert os.path.exists("results/weights.json")


def shorter_file(job):
    with open(job.products[0].data, "w") as file:
        file.write("m")


BROKEN = {
    "no manifest": lambda job: os.remove(job.products[0].manifest),
    "damaged manifest": lambda job: os.truncate(job.products[0].manifest, 20),
    "lost file": lambda job: os.remove(job.products[0].data),
    "file of another size": shorter_file,
}


@pytest.mark.parametrize("how", BROKEN)
def test_incomplete_results_are_not_current(folder, how):
    dataset, weights, maps, _ = chain()
    assert is_current(maps, dataset, weights)
    BROKEN[how](maps)
    assert not is_current(maps, dataset, weights)
    reconcile(Jobs(dataset, weights, maps))
    assert {os.stat(path).st_mtime for path in maps.outputs if os.path.exists(path)} == {STALE_TIME - 2}


@pytest.mark.parametrize("how", BROKEN)
def test_damage_is_named_if_snakemake_has_records(folder, how):
    """A missing file is left to jobs that read it; a damaged file is reported at the start, and made again."""
    dataset, weights, maps, _ = chain()
    remember()
    for number, job in enumerate((dataset, weights, maps)):
        date(1_500_000_000 + number, *job.outputs)
    BROKEN[how](maps)
    left = [path for path in maps.outputs if os.path.exists(path)]
    before = [os.stat(path).st_mtime for path in left]
    sentences = reconcile(Jobs(dataset, weights, maps))
    is_damage = how in ("damaged manifest", "file of another size")
    assert len(sentences) == is_damage
    assert all("results/maps." in sentence and "damaged" in sentence for sentence in sentences)
    assert [os.stat(path).st_mtime for path in left] == (before if how == "lost file" else [STALE_TIME - 2] * len(left))


@pytest.mark.parametrize(("has", "wanted", "fits"), [(10, 10, True), (16, 10, True), (10, 16, False)])
def test_a_shard_with_too_few_images_is_not_current(folder, has, wanted, fits):
    maps = make("maps", images=has)
    assert is_current(job_of(maps.products[0].manifest, "results/maps.bin", images=wanted)) == fits
    assert is_stale(job_of(maps.products[0].manifest, "results/maps.bin", images=wanted)) != fits


@pytest.mark.parametrize(("has", "wanted", "fits"), [([1, 3], [3], True), ([1, 3], [], True), ([3], [2, 3], False)])
def test_a_finetuning_must_have_saved_the_requested_epochs(folder, has, wanted, fits):
    weights = make("weights")
    (product,) = weights.products
    content = read_checksummed(product.manifest)
    write_checksummed(product.manifest, {**content, "kept": has})
    requested = dataclasses.replace(weights, products=(dataclasses.replace(product, saved_epochs=tuple(wanted)),))
    assert is_current(requested) == fits


def test_a_job_with_other_outputs_than_its_manifest_lists_is_not_current(folder):
    maps = make("maps")
    assert not is_current(job_of(maps.products[0].manifest, "results/maps.bin", "results/more.bin"))


def test_results_are_reconciled_at_each_start(folder):
    jobs = chain()
    reconcile(Jobs(*jobs))
    remember()
    date(7000, *(file for job in jobs for file in job.outputs))
    reconcile(Jobs(*jobs))
    assert min(times(*jobs)) > 7000
    changed = [
        *jobs[:3],
        dataclasses.replace(jobs[3], products=(dataclasses.replace(jobs[3].products[0], key=Key("new", "code")),)),
    ]
    reconcile(Jobs(*changed))
    assert set(times(changed[3])) == {STALE_TIME - 3}
    assert min(times(*changed[:3])) > 7000


# ---- inputs ----------------------------------------------------------------------------------------------------------


def test_other_bytes_upstream_make_results_stale(folder):
    dataset, weights, maps, scores = chain()
    remember()
    assert not is_stale(maps, dataset, weights)
    weights = make("weights", dataset, content="trained again")
    assert is_stale(maps, dataset, weights)
    reconcile(Jobs(dataset, weights, maps, scores))
    assert set(times(maps)) == {STALE_TIME - 2}
    assert min(times(weights)) >= STALE_TIME


def test_the_same_bytes_made_again_make_nothing_stale(folder):
    dataset, _, maps, _ = chain()
    assert not is_stale(maps, dataset, make("weights", dataset, spec_key=Key("config", "other")))


def test_another_key_upstream_makes_readers_of_the_manifest_stale(folder):
    """Scores, for example, depend on shards of maps through their manifests."""
    weights = make("weights")
    maps = make("maps", weights)
    content = read_checksummed("results/maps.json")
    write_checksummed(
        "results/maps.json",
        {**content, "read": {"results/weights.json": read_checksummed("results/weights.json")["key"]}},
    )
    assert not is_stale(maps, weights)
    make("weights", spec_key=Key("config", "new"))
    assert is_stale(maps, weights)


def test_missing_inputs_make_nothing_stale(folder):
    """A missing input is made again first, and then its bytes are compared."""
    dataset, weights, maps, _ = chain()
    for path in weights.outputs:
        os.remove(path)
    assert not is_stale(maps, dataset, weights)


# ---- older results ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("with_memory", [True, False])
def test_results_of_an_older_format_are_refused_and_nothing_is_touched(folder, with_memory):
    jobs = chain(spec_key=Key("old", "code"))
    if with_memory:
        remember()
    # The last manifest, after others would be marked stale. Early manifests had no format.
    path = jobs[-1].products[0].manifest
    older = {key: value for key, value in read_json(path).items() if key not in ("seal", "format")}
    write_json(path, {**older, "seal": digest(older)})
    date(4000, path)
    files = [file for job in jobs for file in job.outputs]
    before = [(os.stat(file).st_mtime_ns, Path(file).read_bytes()) for file in files]
    with pytest.raises(HeatproofError) as raised:
        reconcile(Jobs(*jobs))
    assert str(raised.value).startswith(f"{path} was made by another version of heatproof")
    assert "\n" not in str(raised.value)
    assert [(os.stat(file).st_mtime_ns, Path(file).read_bytes()) for file in files] == before
    assert sorted(os.listdir("results")) == sorted(os.path.basename(file) for file in files)


def test_results_with_keys_of_format_3_are_refused(folder):
    """Manifests of version 3 of the format had both digests in one text."""
    (job,) = jobs = [make_dataset()]
    path = job.products[0].manifest
    older = {"name": "toy", "spec_key": "0123456789abcdef-fedcba9876543210", "splits": {}, "format": 3}
    write_json(path, {**older, "seal": digest(older)})
    before = Path(path).read_bytes(), os.stat(path).st_mtime_ns
    with pytest.raises(HeatproofError, match="was made by another version of heatproof") as raised:
        reconcile(Jobs(*jobs))
    assert "\n" not in str(raised.value)
    assert "move the results folder away, or use the other version" in str(raised.value)
    os.makedirs("results/datasets")
    os.makedirs("results/maps")
    os.rename(path, "results/datasets/toy.json")
    with pytest.raises(HeatproofError, match="was made by another version of heatproof"):
        switch_target("results", "predicted")
    assert sorted(os.listdir("results")) == ["datasets", "maps"], "nothing is put aside for another target"
    after = Path("results/datasets/toy.json")
    assert (after.read_bytes(), os.stat(after).st_mtime_ns) == before


# ---- a user's checkpoints --------------------------------------------------------------------------------------------


def fetched(mtime=4000):
    """Write fetched weights and their checkpoint."""
    with open("mine.pt", "w") as file:
        file.write("weights")
    date(mtime, "mine.pt")
    return make("weights", sources=("mine.pt",))


def replace_checkpoint(mtime):
    with open("mine.pt", "w") as file:
        file.write("WEIGHTS")
    date(mtime, "mine.pt")


def test_copied_results_are_compared_with_the_bytes_of_their_checkpoint(folder):
    weights = fetched()
    maps = make("maps", weights)
    assert is_current(weights)
    replace_checkpoint(4000)
    assert not is_current(weights)
    reconcile(Jobs(weights, maps))
    assert max(times(weights)) < os.stat("mine.pt").st_mtime
    assert min(times(maps)) >= STALE_TIME


@pytest.mark.parametrize("lose", [lambda: os.remove("mine.pt"), lambda: write_checksummed("results/weights.json", {})])
def test_results_without_their_checkpoint_or_its_digest_are_not_current(folder, lose):
    weights = fetched()
    lose()
    assert not is_current(weights)


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("is_recorded", [False, True])
def test_another_checkpoint_is_noticed_whatever_the_times_of_results(folder, is_recorded, ahead, monkeypatch):
    """With and without a record of its bytes, and with the same size and time."""
    weights = fetched()
    remember()
    monkeypatch.setattr(sources, "STEP", -(10**9))
    if is_recorded:
        reconcile(Jobs(weights))
        assert Path("results/.sources").is_file()
    date(time.time() + 10**8 if ahead else 10**9, *weights.outputs)
    replace_checkpoint(4000)
    reconcile(Jobs(weights))
    assert set(times(weights)) == {4000 - 1}


@pytest.mark.parametrize("mtime", [1, 4000, 2_000_000_000])
def test_a_replaced_checkpoint_of_any_date_makes_results_stale(folder, mtime):
    weights = fetched()
    maps = make("maps", weights)
    remember()
    date(1_500_000_000, *maps.outputs)
    before = times(maps)
    replace_checkpoint(mtime)
    reconcile(Jobs(weights, maps))
    assert max(times(weights)) < mtime
    assert times(maps) == before


def test_the_same_checkpoint_makes_nothing_stale(folder):
    weights = fetched()
    os.utime("mine.pt")
    date(time.time() - 60, *weights.outputs)
    remember()
    reconcile(Jobs(weights))
    assert times(weights) == [os.stat("mine.pt").st_mtime] * 2, "as new as what it was checked against"


def test_times_in_the_future_are_reset(folder):
    """Otherwise Snakemake would take everything that is made from now on for older."""
    jobs = chain()
    date(time.time() + 10**8, *(file for job in jobs for file in job.outputs))
    reconcile(Jobs(*jobs))
    assert max(times(*jobs)) <= time.time()
    assert [times(job)[0] for job in jobs] == sorted(times(job)[0] for job in jobs)


def test_a_checkpoint_that_was_not_touched_is_not_read_again(folder, monkeypatch):
    weights = fetched()
    remember()
    read, digest = [], sources._digest
    monkeypatch.setattr(sources, "_digest", lambda path: [read.append(path), digest(path)][1])
    reconcile(Jobs(weights))
    reconcile(Jobs(weights))
    assert len(read) == 2, "it may have changed again within one step of the clock"
    monkeypatch.setattr(sources, "STEP", -(10**9))
    reconcile(Jobs(weights))
    assert len(read) == 2
    assert is_current(weights)


def test_a_damaged_record_of_checkpoints_is_not_trusted(folder, monkeypatch):
    weights = fetched()
    monkeypatch.setattr(sources, "STEP", -(10**9))
    reconcile(Jobs(weights))
    record = Path("results/.sources")
    record.write_bytes(record.read_bytes()[:-1] + b"x")
    replace_checkpoint(4000)
    assert not is_current(weights)


# ---- data ------------------------------------------------------------------------------------------------------------


def record_of_images(*contents, listed="list"):
    digests = np.array([list(hashlib.sha256(content.encode()).digest()) for content in contents], np.uint8).reshape(
        -1, 32
    )
    names = [f"{row}.png".encode() for row in range(len(contents))]
    facts = {"listed": {"evaluation": (listed, len(contents))}, "rows": {"evaluation": np.arange(len(contents))}}
    return sources.FileRecord(names, np.zeros((len(contents), 3), np.int64), digests, 0, **facts)


def shard_of(record, start, stop):
    """Write a shard that was computed from some images."""
    job = make("maps", make_dataset())
    data = sources.ImagesRead("toy", record).data(("evaluation", start, stop))
    write_checksummed("results/maps.json", {**read_checksummed("results/maps.json"), "data": data})
    return job


@pytest.mark.parametrize(
    ("now", "stale"),
    [
        (record_of_images("a", "b", "c", "d"), False),
        (record_of_images("a", "b", "c", "other"), False),
        (record_of_images("other", "b", "c", "d"), False),
        (record_of_images("a", "other", "c", "d"), True),
        (record_of_images("a", "c", "b", "d"), True),
        (record_of_images("a", "b"), True),
        (record_of_images("a", "b", "c", "d", listed="other ids"), True),
        (record_of_images("a", "b", "c", "d").without_lists(), True),
    ],
)
def test_a_shard_is_stale_if_its_images_changed(folder, now, stale):
    maps, changes_by_dataset = (
        shard_of(record_of_images("a", "b", "c", "d"), 1, 3),
        {"toy": sources.FileChanges(now, [])},
    )
    assert Results(Jobs(make_dataset(), maps), changes_by_dataset).is_stale(maps, *maps.products) == stale
    reconcile(Jobs(make_dataset(), maps), changes_by_dataset)
    assert (max(times(maps)) < STALE_TIME) == stale


def test_without_a_record_of_the_data_nothing_is_stale(folder):
    maps = shard_of(record_of_images("a", "b"), 0, 2)
    assert not is_stale(maps, make_dataset())


def test_benchmark_files_are_no_older_than_inputs(folder):
    """Snakemake counts the benchmark file among the outputs, and would run the job again."""
    first = make("weights")
    job = make("maps", first)
    os.makedirs(os.path.dirname(job.benchmark))
    with open(job.benchmark, "w") as file:
        file.write("s\n1\n")
    date(10, job.benchmark)
    remember()
    reconcile(Jobs(first, job))
    assert os.stat(job.benchmark).st_mtime >= max(os.stat(path).st_mtime for path in job.inputs)


def test_results_of_a_target_are_restored_after_a_killed_switch(tmp_path, monkeypatch):
    (tmp_path / "maps").mkdir()
    (tmp_path / "maps" / "mine").write_text("label")
    (tmp_path / "scores").mkdir()
    monkeypatch.setattr("heatproof.workflow.reconcile.write_text", lambda *_: pytest.fail("killed"))
    with pytest.raises(pytest.fail.Exception, match="killed"):
        switch_target(tmp_path, "predicted")
    monkeypatch.undo()
    assert not (tmp_path / "maps").exists()
    switch_target(tmp_path, "label")
    assert (tmp_path / "maps" / "mine").read_text() == "label"
    assert (tmp_path / "scores").is_dir()
    switch_target(tmp_path, 3)
    (tmp_path / "maps").mkdir()
    switch_target(tmp_path, "label")
    assert (tmp_path / "maps" / "mine").read_text() == "label"
    assert (tmp_path / ".targets" / "3" / "maps").is_dir()


@pytest.mark.parametrize("then", ["label", "predicted", 3, "package.module:function"])
@pytest.mark.parametrize("moves", range(6))
def test_a_killed_switch_of_targets_mixes_no_results(tmp_path, monkeypatch, moves, then):
    """Even if a third target is requested after the kill, and then each target again."""
    names = ("drops", "maps", "scores")

    def fill(target):
        for name in names:
            (tmp_path / name).mkdir(exist_ok=True)
            (tmp_path / name / "of").write_text(str(target))

    for target in ("label", "predicted", 3, "package.module:function", "label"):
        switch_target(tmp_path, target)
        if not (tmp_path / "maps").exists():
            fill(target)
    left, rename = [None] * moves, Path.rename

    def killed(path, target):
        if not left:
            raise KeyboardInterrupt
        left.pop()
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", killed)
    with pytest.raises(KeyboardInterrupt):
        switch_target(tmp_path, "predicted")
    monkeypatch.undo()
    for target in (then, "label", "predicted", 3):
        switch_target(tmp_path, target)
        assert {(tmp_path / name / "of").read_text() for name in names} == {str(target)}


def test_a_switch_of_targets_refuses_a_folder_that_is_a_link(tmp_path):
    results = tmp_path / "results"
    results.mkdir()
    (tmp_path / "elsewhere").mkdir()
    (results / "maps").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(HeatproofError, match="symbolic link"):
        switch_target(results, "predicted")
    (results / ".target").write_text("../../elsewhere")
    (results / "maps").unlink()
    with pytest.raises(HeatproofError, match="does not hold the name of a target"):
        switch_target(results, "predicted")

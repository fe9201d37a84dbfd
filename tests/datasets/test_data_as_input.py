"""Data as an input: the record of a dataset's files, the detection of changes, and the images that a change affects."""

import hashlib
import os
import time
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from heatproof.core.dataset import NamesFiles, Split
from heatproof.core.provenance import Key
from heatproof.core.specs import DatasetSpec, Runtime
from heatproof.datasets.checks import open_dataset
from heatproof.datasets.lazy import SPLIT_NAMES
from heatproof.errors import HeatproofError
from heatproof.store import source_files as sources
from heatproof.store.manifest import read_checksummed
from heatproof.store.source_files import (
    STEP,
    TICK,
    file_changes,
    images_of,
    is_same_data,
    read_record,
    record_path,
    write_record,
)
from heatproof.workflow.changed_data import describe_changes, inspect_data
from heatproof.workflow.config.files import default_config, merge
from heatproof.workflow.plan.graph import Graph
from heatproof.workflow.plan.validate import make_plan
from heatproof.workflow.stages.prepare import Prepare
from heatproof.workflow.start import update_data_records

MANIFEST = "results/datasets/photos.json"
ANTS, BEES = "photos/test/ant", "photos/test/bee"


@pytest.fixture
def folder(tmp_path, monkeypatch, fill):
    monkeypatch.chdir(tmp_path)
    for split, count in (("train", 4), ("val", 2), ("test", 3)):
        fill(tmp_path / "photos" / split, ["ant", "bee"], count)
    for path in (tmp_path / "photos").rglob("*.png"):
        Image.open(path).save(path, compress_level=0)
    # A folder that changed within the last tick of the clock could have changed while it was listed.
    time.sleep(2 * TICK / 1e9)
    return tmp_path


def spec_of(kind="image_folder", module="heatproof.datasets.image_folder", **options):
    options = {"root": "photos", "size": 8, **options} if kind == "image_folder" else options
    return DatasetSpec(kind, module, options, 0, "photos", Key("config", "code"), MANIFEST)


def prepare_record(spec=None):
    spec = spec or spec_of()
    Prepare(dataset=spec, manifest=MANIFEST).run(Runtime())
    return read_record(record_path(MANIFEST))


def wait(record):
    """Return the record as if it had been written after the last tick of the clock."""
    return sources.replace(record, recorded=time.time_ns() + 2 * STEP)


def inspect_again(record=None, **how):
    return file_changes(wait(record or read_record(record_path(MANIFEST))), "photos", **how)


def record_reads(monkeypatch):
    """Return a list to which every file that is read is appended."""
    read, digest = [], sources._digest
    monkeypatch.setattr(sources, "_digest", lambda path: [read.append(os.fsdecode(path)), digest(path)][1])
    return read


def test_a_record_has_all_files_and_their_digests(folder):
    record = prepare_record()
    files = [path for path in (folder / "photos").rglob("*") if path.is_file()]
    names = [os.fsdecode(path) for path in record.paths]
    assert names[: record.lists] == [".", *sorted(n for n in names if (folder / "photos" / n).is_dir() and n != ".")]
    assert len(names) == record.lists + len(files), "each file once"
    for name, stats, digest in zip(names, record.stats, record.digests, strict=True):
        path = folder / "photos" / name
        status = path.stat()
        assert stats.tolist() == [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]
        if path.is_file():
            assert digest.tobytes() == hashlib.sha256(path.read_bytes()).digest()
    assert str(folder) not in record_path(MANIFEST).read_bytes().decode("latin-1"), "nothing of whose machine it is"
    ids = read_checksummed(MANIFEST)["splits"]["train"]["ids"]
    assert [names[row] for row in record.rows["train"]] == ids


def test_an_inspection_without_changes_reads_no_file(folder, monkeypatch):
    prepare_record()
    read = record_reads(monkeypatch)
    inspection = inspect_again()
    assert (inspection.changed, inspection.is_record_outdated, inspection.is_missing, read) == ([], False, False, [])


def test_files_changed_in_the_last_tick_of_the_clock_are_read(folder, monkeypatch):
    """The file could have changed again with the same time."""
    record = prepare_record()
    read = record_reads(monkeypatch)
    changes = file_changes(record, "photos")
    assert len(read) == len(record.paths)
    assert (changes.changed, changes.is_record_outdated) == ([], True)
    assert changes.record.recorded > record.recorded


def change_time(path):
    os.utime(path, (1, 1))


def rewrite(path):
    path.write_bytes(path.read_bytes())


def flip(path):
    """Change the content but neither size nor time."""
    before, pixels = path.stat(), np.array(Image.open(path))
    Image.fromarray(pixels ^ 1).save(path, compress_level=0)
    assert path.stat().st_size == before.st_size
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def remove(path):
    path.unlink()


def replace_by_pipe(path):
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize(
    ("change", "is_changed"),
    [(change_time, False), (rewrite, False), (flip, True), (remove, True), (replace_by_pipe, True)],
)
@pytest.mark.parametrize("split", ["train", "evaluation"])
def test_changes_of_an_image_file_are_detected(folder, split, change, is_changed):
    record = prepare_record()
    row = record.rows[split][1]
    name = os.fsdecode(record.paths[row])
    change(folder / "photos" / name)
    inspection = inspect_again()
    assert (f"photos/{name}" in inspection.changed) == is_changed
    assert inspection.is_record_outdated
    for other in ("train", "validation", "evaluation"):
        same = [record.digest(other, at, at + 1) == inspection.record.digest(other, at, at + 1) for at in range(2)]
        if change is flip:
            assert same == [True, other != split]
        elif change is remove:
            assert same == [False, False], "its folder has changed: the list is not known"


def test_a_change_that_keeps_all_times_is_found_only_by_reading_contents(folder):
    """The inode change time cannot be set, so the record gets the current one."""
    record = prepare_record()
    path = folder / "photos" / os.fsdecode(record.paths[record.rows["train"][0]])
    flip(path)
    stats = np.array(record.stats)
    stats[record.rows["train"][0], 2] = path.stat().st_ctime_ns
    record = sources.replace(record, stats=stats)
    assert inspect_again(record).changed == []
    assert inspect_again(record, contents=True).changed == [str(path.relative_to(folder))]


WHERE = ["photos/test/ant/new.png", "photos/test/cat/new.png", "photos/train/bee/deep/new.png"]


@pytest.mark.parametrize("where", WHERE)
def test_an_added_image_file_is_detected_by_its_folder(folder, save, where):
    prepare_record()
    save(folder / where)
    inspection = inspect_again()
    assert inspection.changed
    assert inspection.record.digest("train", 0, 1) is None, "the images have to be listed anew"


@pytest.mark.parametrize("name", [".hidden", ".DS_Store"])
def test_a_hidden_file_is_not_a_change(folder, name):
    prepare_record()
    (folder / ANTS / name).write_text("")
    assert (inspect_again().changed, inspect_again().is_record_outdated) == ([], True)


def test_an_image_added_while_images_are_listed_is_detected_next_time(folder, save, monkeypatch):
    def open_late(spec):
        dataset = open_dataset(spec)
        assert all(len(dataset.splits[split]) for split in dataset.splits)
        save(folder / ANTS / "late.png")
        return dataset

    with monkeypatch.context() as patched:
        patched.setattr("heatproof.workflow.stages.prepare.open_dataset", open_late)
        record = prepare_record()
    assert file_changes(record, "photos").changed == [f"{ANTS}"]


def test_preparing_again_reads_only_changed_files(folder, monkeypatch):
    record = prepare_record()
    write_record(record_path(MANIFEST), wait(record))
    flip(folder / ANTS / "ant_000.png")
    read = record_reads(monkeypatch)
    again = prepare_record()
    assert read == ["photos/test/ant/ant_000.png"]
    assert (again.digests != record.digests).any(1).sum() == 1


def test_missing_data_are_not_a_change(folder):
    record = prepare_record()
    (folder / "photos").rename(folder / "elsewhere")
    inspection = inspect_again()
    assert (inspection.is_missing, inspection.changed, inspection.is_record_outdated) == (True, [], False)
    assert inspection.record.digest("evaluation", 0, 3) == record.digest("evaluation", 0, 3)


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "text", "gone", "link", "pipe", "count", "rows"])
def test_a_damaged_record_is_not_used(folder, damage):
    record = prepare_record()
    path = record_path(MANIFEST)
    content = path.read_bytes()
    if damage in ("gone", "link", "pipe"):
        path.unlink()
    if damage in ("link", "pipe"):
        if damage == "link":
            (folder / "aside").write_bytes(content)
            path.symlink_to(folder / "aside")
        else:
            os.mkfifo(path)
        with pytest.raises(HeatproofError, match=r"is a symbolic link|is a named pipe"):
            read_record(path)
        return
    if damage == "rows":
        write_record(path, sources.replace(record, rows={**record.rows, "train": record.rows["train"] + 1000}))
    elif damage == "count":
        # With a correct checksum, as an attacker could write it.
        inner = content[32:].replace(b'"count": ', b'"count": 99999', 1)
        path.write_bytes(hashlib.sha256(inner).digest() + inner)
    elif damage != "gone":
        at = len(content) // 2
        flipped = content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]
        path.write_bytes({"flip": flipped, "cut": content[:at], "empty": b"", "text": b"no record\n" * 9}[damage])
    assert read_record(path) is None
    if damage != "gone":
        with pytest.raises(HeatproofError, match=r"photos\.files is damaged: run the same command again"):
            images_of(MANIFEST)


def test_a_record_is_read_as_it_was_written(folder):
    record = prepare_record()
    again = read_record(record_path(MANIFEST))
    assert again.paths == record.paths
    assert (again.lists, again.shared, again.named, again.listed) == (record.lists, 0, True, record.listed)
    np.testing.assert_array_equal(again.stats, record.stats)


# ---- labels and lists ------------------------------------------------------------------------------------------------


def with_table(folder, *columns):
    lines = [",".join(["file", "label", "split", *columns])]
    for split in ("train", "val", "test"):
        for path in sorted((folder / "photos" / split).rglob("*.png")):
            name = path.relative_to(folder / "photos").as_posix()
            lines.append(",".join([name, path.parent.name, split, *("note" for _ in columns)]))
    (folder / "photos/labels.csv").write_text("\n".join(lines) + "\n")
    return spec_of(labels="labels.csv")


def test_labels_are_inputs_of_their_split_and_other_columns_are_not(folder):
    spec = with_table(folder)
    before = prepare_record(spec)
    with_table(folder, "remark")
    assert inspect_again().changed == ["photos/labels.csv"]
    after = prepare_record(spec)
    assert after.listed == before.listed
    path = folder / "photos/labels.csv"
    path.write_text(path.read_text().replace("test/ant/ant_000.png,ant", "test/ant/ant_000.png,bee"))
    changed = prepare_record(spec)
    assert [split for split in before.listed if changed.listed[split] != before.listed[split]] == ["evaluation"]


def test_manifests_hold_digests_of_the_images_that_were_used(folder):
    prepare_record()
    images = images_of(MANIFEST)
    data = images.data(("evaluation", 0, 3), ("train", 0, 8))
    assert list(data) == ["photos/evaluation", "photos/train"]
    assert is_same_data({"data": data}, {"photos": images.record}.get)
    row = images.record.rows["evaluation"]
    flip(folder / "photos" / os.fsdecode(images.record.paths[row[4]]))
    assert is_same_data({"data": data}, {"photos": inspect_again().record}.get), "the fifth is not among them"
    flip(folder / "photos" / os.fsdecode(images.record.paths[row[2]]))
    assert not is_same_data({"data": data}, {"photos": inspect_again().record}.get)
    assert is_same_data({"data": data}, {}.get), "of what nothing is known, nothing is made again"


def test_without_a_manifest_no_data_are_recorded():
    assert images_of("").data(("evaluation", 0, 3)) == {}
    assert images_of("results/datasets/none.json").all_images_of("train") == []


# ---- custom loaders --------------------------------------------------------------------------------------------------


class CustomDataset:
    """A custom dataset without files."""

    num_classes, class_names = 2, ("a", "b")

    @property
    def splits(self):
        return {name: Split((f"{name}-0", f"{name}-1"), np.array([0, 1])) for name in SPLIT_NAMES}

    def images(self, split, start, stop):
        return np.zeros((min(stop, 2) - start, 3, 8, 8), np.float32)


class OfAnArchive(CustomDataset):
    shared_files = ("archive.bin",)


class OfFiles(CustomDataset):
    list_files = ("list.txt",)

    def image_files(self, split):
        return [f"{split}.bin"] * 2


class Generated(CustomDataset):
    shared_files = ()


class TooFew(CustomDataset):
    def image_files(self, split):
        return ["one.bin"]


class Twice(CustomDataset):
    list_files = shared_files = ("archive.bin",)


class ByALetter(CustomDataset):
    list_files = "list.txt"


class NoProperty(CustomDataset):
    def shared_files(self):
        return ["archive.bin"]


class NoMethod(CustomDataset):
    image_files = ("one.bin", "one.bin")


class OfBytes(CustomDataset):
    shared_files = (b"archive.bin",)


class Nothing(CustomDataset):
    def image_files(self, split):
        return None


class Misspelt(CustomDataset):
    def image_files(self, split):
        return ["one.bin", "two.bin"]


class MisspeltList(CustomDataset):
    list_files = ("lists.txt",)


class OfSeveral(CustomDataset):
    def image_files(self, split):
        return [(f"{split}-{row}.png", f"{split}-{row}.msk") for row in range(2)]


class OfSome(CustomDataset):
    def image_files(self, split):
        return [("one.bin", "archive.bin"), "one.bin"]


class OfAFolder(CustomDataset):
    shared_files = ("photos",)


class InTurn(CustomDataset):
    def image_files(self, split):
        return (f"{split}.bin" for _ in range(2))


def prepare_custom(kind, monkeypatch):
    several = [name for split in SPLIT_NAMES for names in OfSeveral().image_files(split) for name in names]
    for name in ("archive.bin", "list.txt", "train.bin", "validation.bin", "evaluation.bin", "one.bin", *several):
        with open(name, "w") as file:
            file.write(name)
    time.sleep(2 * TICK / 1e9)
    monkeypatch.setattr("heatproof.workflow.stages.prepare.open_dataset", lambda spec: kind())
    return prepare_record(spec_of("mine:own", "mine"))


@pytest.mark.parametrize(
    ("kind", "named", "files"),
    [
        (CustomDataset, False, []),
        (Generated, True, []),
        (OfAnArchive, True, ["archive.bin"]),
        (OfFiles, True, ["list.txt", "train.bin", "validation.bin", "evaluation.bin"]),
        (InTurn, True, ["train.bin", "validation.bin", "evaluation.bin"]),
    ],
)
def test_a_record_has_the_files_that_a_loader_names(folder, monkeypatch, kind, named, files):
    record = prepare_custom(kind, monkeypatch)
    assert record.named == named
    assert [os.fsdecode(path) for path in record.paths] == files
    assert isinstance(OfFiles(), NamesFiles) is False, "any of the three is enough"


@pytest.mark.parametrize(
    ("kind", "file", "splits"),
    [
        (OfAnArchive, "archive.bin", {"train", "validation", "evaluation"}),
        (OfFiles, "train.bin", {"train"}),
        (OfFiles, "list.txt", {"train", "validation", "evaluation"}),
    ],
)
def test_a_changed_file_affects_the_splits_that_use_it(folder, monkeypatch, kind, file, splits):
    record = prepare_custom(kind, monkeypatch)
    with open(file, "a") as changed:
        changed.write("more")
    now = file_changes(record, ".").record
    assert {split for split in record.listed if record.digest(split, 0, 2) != now.digest(split, 0, 2)} == splits


def test_an_image_can_have_several_files(folder, monkeypatch):
    record = prepare_custom(OfSeveral, monkeypatch)
    for name in ("train-0.msk", "train-1.msk"):
        row = int(name[6])
        with open(name, "w") as file:
            file.write("other")
        now = file_changes(record, ".").record
        for split, image in (("train", 0), ("train", 1), ("evaluation", 0)):
            is_affected = (split, image) == ("train", row)
            assert (record.digest(split, image, image + 1) != now.digest(split, image, image + 1)) == is_affected
        record = now
    write_record("kept.files", record)
    again = read_record("kept.files")
    assert again.rows["train"].shape == (2, 2)
    assert [again.digest("train", row, row + 1) for row in (0, 1)] == [record.digest("train", r, r + 1) for r in (0, 1)]


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        (TooFew, "names 1 files in `image_files` for the 2 images of train: return one for each image, or none"),
        (Twice, "names a file in `list_files` and in `shared_files`: leave it in `shared_files`"),
        (ByALetter, "'photos' has `list_files` of the type str: give a list of paths"),
        (NoProperty, "has `shared_files` of the type method: give a list of paths"),
        (OfBytes, "has `shared_files` of the type tuple: give a list of paths"),
        (NoMethod, "`image_files` of the dataset 'photos' has to be a method that takes a split"),
        (Nothing, "has `image_files` of the type NoneType: give a list of paths"),
        (Misspelt, "'photos' names the file two.bin, which is not there"),
        (MisspeltList, "names the file lists.txt, which is not there"),
        (OfSome, "`image_files` of several files for some image, and not as many for each: give every image of a"),
        (OfAFolder, "names the file photos, which is a folder, and its files are to be named"),
    ],
)
def test_invalid_file_lists_of_a_loader_are_refused(folder, monkeypatch, kind, sentence):
    with pytest.raises(HeatproofError, match=sentence):
        prepare_custom(kind, monkeypatch)


# ---- messages --------------------------------------------------------------------------------------------------------


@pytest.fixture
def make_graph():
    """A graph with only the job that lists the images."""

    photos = {"dataset": "image_folder", "root": "photos", "size": 32}
    models = [{"net": {"architecture": "cifar_resnet20"}}]
    config = {"datasets": [{"photos": photos}], "models": models, "evaluation": {"images": 4, "accuracy_images": 0}}
    return lambda: Graph(make_plan(merge(default_config(), config)))


def test_a_start_reports_changed_data(folder, make_graph, capsys):
    graph = make_graph()
    assert inspect_data(graph) == {}, "nothing was listed yet"
    os.makedirs("results/datasets")
    spec = graph.job("prepare", {"dataset": "photos"}).spec
    spec.run(SimpleNamespace())
    before = read_checksummed(MANIFEST)
    assert describe_changes(graph) == []
    flip(folder / ANTS / "ant_000.png")
    (message, jobs) = describe_changes(graph)
    assert message.startswith(
        "The data of 'photos' changed (photos/test/ant/ant_000.png): results that depend on it are recomputed"
    )
    assert jobs == "A run recomputes these results, at most 1 job: 1 of prepare."
    assert set(update_data_records(graph, "results", dry_run=True)) == {"photos"}
    assert read_checksummed(MANIFEST) == before, "a dry run writes nothing"
    assert update_data_records(graph, "results", dry_run=False) == {}
    after = read_checksummed(MANIFEST)
    assert {name for name in after if after[name] != before[name]} == {"data"}
    assert "The data of 'photos' changed" in capsys.readouterr().err
    assert describe_changes(graph) == []
    record_path(MANIFEST).write_bytes(b"damaged")
    assert describe_changes(graph)[0].startswith("The record of the files of 'photos' is missing or damaged")
    update_data_records(graph, "results", dry_run=False)
    assert read_checksummed(MANIFEST) == after
    (folder / "photos").rename(folder / "elsewhere")
    assert describe_changes(make_graph()) == [
        "The files of the dataset 'photos' are missing, so that their changes are not detected."
    ]


def test_a_start_refuses_a_dataset_that_became_unreadable(folder, make_graph):
    graph = make_graph()
    os.makedirs("results/datasets")
    graph.job("prepare", {"dataset": "photos"}).spec.run(SimpleNamespace())
    (folder / ANTS / "ant_000.png").write_bytes(b"no picture")
    with pytest.raises(HeatproofError, match=r"1 of the .* images of 'photos' cannot be read: .*ant_000\.png"):
        update_data_records(graph, "results", dry_run=False)


# ---- unchanged facts of changed files --------------------------------------------------------------------------------


def test_another_file_of_the_same_size_and_times_is_read(folder):
    """For example, a link leads to a file that was written in the same tick of the clock."""
    first, second = folder / "one.png", folder / "other.png"
    path = folder / ANTS / "ant_000.png"
    first.write_bytes(path.read_bytes())
    second.write_bytes(path.read_bytes())
    flip(second)
    path.unlink()
    path.symlink_to(first)
    time.sleep(2 * TICK / 1e9)
    record = prepare_record()
    path.unlink()
    path.symlink_to(second)
    stats = np.array(record.stats)
    row = record.paths.index(b"test/ant/ant_000.png")
    stats[row, :3] = sources._stats([record.paths[row]], "photos")[0, :3]
    assert "photos/test/ant/ant_000.png" in inspect_again(sources.replace(record, stats=stats)).changed


def test_a_folder_that_replaces_a_file_of_the_same_name_is_detected(folder, save):
    (folder / ANTS / "more").write_text("a note")
    time.sleep(2 * TICK / 1e9)
    prepare_record()
    (folder / ANTS / "more").unlink()
    save(folder / ANTS / "more/new.png")
    assert inspect_again().changed == [ANTS]


@pytest.mark.parametrize("left", [None, ".mounted"])
def test_an_empty_folder_counts_as_missing_data(folder, make_graph, left):
    """For example, a disk is not mounted: nothing is computed again, and the plan uses the previous list of images."""
    graph = make_graph()
    os.makedirs("results/datasets")
    graph.job("prepare", {"dataset": "photos"}).spec.run(SimpleNamespace())
    (folder / "photos").rename(folder / "elsewhere")
    (folder / "photos").mkdir()
    if left:
        (folder / "photos" / left).touch()
    assert describe_changes(make_graph()) == [
        "The files of the dataset 'photos' are missing, so that their changes are not detected."
    ]
    assert update_data_records(make_graph(), "results", dry_run=False) == {}


def test_a_record_of_another_dataset_is_replaced(folder, make_graph):
    """All files of the record are missing, but those of the dataset exist."""
    graph = make_graph()
    os.makedirs("results/datasets")
    graph.job("prepare", {"dataset": "photos"}).spec.run(SimpleNamespace())
    record = read_record(record_path(MANIFEST))
    foreign = sources.replace(record, paths=[b"/none/" + path for path in record.paths], digests=record.digests ^ 1)
    write_record(record_path(MANIFEST), foreign)
    assert describe_changes(graph)[0].startswith("The record of the files of 'photos' is missing or damaged")
    update_data_records(graph, "results", dry_run=False)
    after = read_record(record_path(MANIFEST))
    assert (after.paths, after.listed) == (record.paths, record.listed)
    flip(folder / ANTS / "ant_000.png")
    assert describe_changes(graph)[0].startswith("The data of 'photos' changed")


class OfOneFile(CustomDataset):
    shared_files = ("archive.bin",)


@pytest.mark.parametrize("root", ["archive.bin", "version 2"])
def test_the_root_of_a_loader_may_be_a_file_or_no_path(folder, monkeypatch, root):
    """The option `root` of a custom loader can be a file, or not a path."""
    time.sleep(2 * TICK / 1e9)
    (folder / "archive.bin").write_text("one")
    monkeypatch.setattr("heatproof.workflow.stages.prepare.open_dataset", lambda spec: OfOneFile())
    record = prepare_record(spec_of("mine:own", "mine", root=root))
    assert (file_changes(wait(record), root).changed, file_changes(wait(record), root).is_missing) == ([], False)
    (folder / "archive.bin").write_text("two")
    assert [os.path.basename(os.path.normpath(path)) for path in file_changes(wait(record), root).changed] == [
        "archive.bin"
    ]

"""Data as an input: the record of a dataset's files, the detection of changes, and the images that a change affects."""

import hashlib
import os
import time
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from heatproof.base.provenance import Key
from heatproof.base.specs import DatasetSpec
from heatproof.config.files import default_config, merge
from heatproof.data.checks import open_dataset
from heatproof.data.lazy import SPLIT_NAMES
from heatproof.data.registry import NamesFiles, Split
from heatproof.errors import HeatproofError
from heatproof.jobs.prepare import prepare
from heatproof.plan.graph import Graph
from heatproof.plan.validate import make_plan
from heatproof.stores import source_files as sources
from heatproof.stores.manifest import read_checksummed
from heatproof.stores.source_files import (
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


def spec_of(kind="image_folder", module="heatproof.data.image_folder", **options):
    options = {"root": "photos", "size": 8, **options} if kind == "image_folder" else options
    return DatasetSpec(kind, module, options, 0, "photos", Key("config", "code"), MANIFEST)


def prepared(spec=None):
    spec = spec or spec_of()
    prepare(spec, MANIFEST)
    return read_record(record_path(MANIFEST))


def wait(record):
    """Return the record as if it had been written after the last tick of the clock."""
    return sources.replace(record, recorded=time.time_ns() + 2 * STEP)


def look_again(record=None, **how):
    return file_changes(wait(record or read_record(record_path(MANIFEST))), "photos", **how)


def reads(monkeypatch):
    """Return a list to which every file that is read is appended."""
    read, digest = [], sources._digest
    monkeypatch.setattr(sources, "_digest", lambda path: [read.append(os.fsdecode(path)), digest(path)][1])
    return read


def test_a_record_has_all_files_and_their_digests(folder):
    record = prepared()
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


def test_a_look_that_finds_nothing_reads_nothing(folder, monkeypatch):
    prepared()
    read = reads(monkeypatch)
    found = look_again()
    assert (found.changed, found.is_record_outdated, found.is_missing, read) == ([], False, False, [])


def test_what_changed_in_the_last_step_of_the_clock_is_read(folder, monkeypatch):
    """The file could have changed again with the same time."""
    record = prepared()
    read = reads(monkeypatch)
    found = file_changes(record, "photos")
    assert len(read) == len(record.paths)
    assert (found.changed, found.is_record_outdated) == ([], True)
    assert found.record.recorded > record.recorded


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


def as_a_pipe(path):
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize(
    ("change", "is_changed"),
    [(change_time, False), (rewrite, False), (flip, True), (remove, True), (as_a_pipe, True)],
)
@pytest.mark.parametrize("split", ["train", "evaluation"])
def test_what_happens_to_a_picture(folder, split, change, is_changed):
    record = prepared()
    row = record.rows[split][1]
    name = os.fsdecode(record.paths[row])
    change(folder / "photos" / name)
    found = look_again()
    assert (f"photos/{name}" in found.changed) == is_changed
    assert found.is_record_outdated
    for other in ("train", "validation", "evaluation"):
        same = [record.digest(other, at, at + 1) == found.record.digest(other, at, at + 1) for at in range(2)]
        if change is flip:
            assert same == [True, other != split]
        elif change is remove:
            assert same == [False, False], "its folder has changed: the list is not known"


def test_only_a_look_at_every_byte_sees_what_kept_its_times(folder):
    """The inode change time cannot be set, so the record gets the current one."""
    record = prepared()
    path = folder / "photos" / os.fsdecode(record.paths[record.rows["train"][0]])
    flip(path)
    stats = np.array(record.stats)
    stats[record.rows["train"][0], 2] = path.stat().st_ctime_ns
    record = sources.replace(record, stats=stats)
    assert look_again(record).changed == []
    assert look_again(record, contents=True).changed == [str(path.relative_to(folder))]


WHERE = ["photos/test/ant/new.png", "photos/test/cat/new.png", "photos/train/bee/deep/new.png"]


@pytest.mark.parametrize("where", WHERE)
def test_an_added_picture_is_seen_by_its_folder(folder, save, where):
    prepared()
    save(folder / where)
    found = look_again()
    assert found.changed
    assert found.record.digest("train", 0, 1) is None, "the images have to be listed anew"


@pytest.mark.parametrize("name", [".hidden", ".DS_Store"])
def test_a_hidden_file_is_no_change(folder, name):
    prepared()
    (folder / ANTS / name).write_text("")
    assert (look_again().changed, look_again().is_record_outdated) == ([], True)


def test_a_picture_that_comes_while_the_images_are_listed_is_seen_at_the_next_look(folder, save, monkeypatch):
    def open_late(spec):
        found = open_dataset(spec)
        assert all(len(found.splits[split]) for split in found.splits)
        save(folder / ANTS / "late.png")
        return found

    with monkeypatch.context() as patched:
        patched.setattr("heatproof.jobs.prepare.open_dataset", open_late)
        record = prepared()
    assert file_changes(record, "photos").changed == [f"{ANTS}"]


def test_preparing_again_reads_only_what_changed(folder, monkeypatch):
    record = prepared()
    write_record(record_path(MANIFEST), wait(record))
    flip(folder / ANTS / "ant_000.png")
    read = reads(monkeypatch)
    again = prepared()
    assert read == ["photos/test/ant/ant_000.png"]
    assert (again.digests != record.digests).any(1).sum() == 1


def test_missing_data_change_nothing(folder):
    record = prepared()
    (folder / "photos").rename(folder / "elsewhere")
    found = look_again()
    assert (found.is_missing, found.changed, found.is_record_outdated) == (True, [], False)
    assert found.record.digest("evaluation", 0, 3) == record.digest("evaluation", 0, 3)


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "text", "gone", "link", "pipe", "count", "rows"])
def test_a_damaged_record_is_none(folder, damage):
    record = prepared()
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
    record = prepared()
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


def test_a_label_is_an_input_of_its_split_and_a_note_of_none(folder):
    spec = with_table(folder)
    before = prepared(spec)
    with_table(folder, "remark")
    assert look_again().changed == ["photos/labels.csv"]
    after = prepared(spec)
    assert after.listed == before.listed
    path = folder / "photos/labels.csv"
    path.write_text(path.read_text().replace("test/ant/ant_000.png,ant", "test/ant/ant_000.png,bee"))
    changed = prepared(spec)
    assert [split for split in before.listed if changed.listed[split] != before.listed[split]] == ["evaluation"]


def test_manifests_hold_what_they_were_made_of(folder):
    prepared()
    images = images_of(MANIFEST)
    data = images.data(("evaluation", 0, 3), ("train", 0, 8))
    assert list(data) == ["photos/evaluation", "photos/train"]
    assert is_same_data({"data": data}, {"photos": images.record}.get)
    row = images.record.rows["evaluation"]
    flip(folder / "photos" / os.fsdecode(images.record.paths[row[4]]))
    assert is_same_data({"data": data}, {"photos": look_again().record}.get), "the fifth is not among them"
    flip(folder / "photos" / os.fsdecode(images.record.paths[row[2]]))
    assert not is_same_data({"data": data}, {"photos": look_again().record}.get)
    assert is_same_data({"data": data}, {}.get), "of what nothing is known, nothing is made again"


def test_outside_a_workflow_nothing_is_kept():
    assert images_of("").data(("evaluation", 0, 3)) == {}
    assert images_of("results/datasets/none.json").all_images_of("train") == []


# ---- custom loaders --------------------------------------------------------------------------------------------------


class Own:
    """A custom dataset without files."""

    num_classes, class_names = 2, ("a", "b")

    @property
    def splits(self):
        return {name: Split((f"{name}-0", f"{name}-1"), np.array([0, 1])) for name in SPLIT_NAMES}

    def images(self, split, start, stop):
        return np.zeros((min(stop, 2) - start, 3, 8, 8), np.float32)


class OfAnArchive(Own):
    shared_files = ("archive.bin",)


class OfFiles(Own):
    list_files = ("list.txt",)

    def image_files(self, split):
        return [f"{split}.bin"] * 2


class Generated(Own):
    shared_files = ()


class TooFew(Own):
    def image_files(self, split):
        return ["one.bin"]


class Twice(Own):
    list_files = shared_files = ("archive.bin",)


class ByALetter(Own):
    list_files = "list.txt"


class NoProperty(Own):
    def shared_files(self):
        return ["archive.bin"]


class NoMethod(Own):
    image_files = ("one.bin", "one.bin")


class OfBytes(Own):
    shared_files = (b"archive.bin",)


class Nothing(Own):
    def image_files(self, split):
        return None


class Misspelt(Own):
    def image_files(self, split):
        return ["one.bin", "two.bin"]


class MisspeltList(Own):
    list_files = ("lists.txt",)


class OfSeveral(Own):
    def image_files(self, split):
        return [(f"{split}-{row}.png", f"{split}-{row}.msk") for row in range(2)]


class OfSome(Own):
    def image_files(self, split):
        return [("one.bin", "archive.bin"), "one.bin"]


class OfAFolder(Own):
    shared_files = ("photos",)


class InTurn(Own):
    def image_files(self, split):
        return (f"{split}.bin" for _ in range(2))


def own(kind, monkeypatch):
    several = [name for split in SPLIT_NAMES for names in OfSeveral().image_files(split) for name in names]
    for name in ("archive.bin", "list.txt", "train.bin", "validation.bin", "evaluation.bin", "one.bin", *several):
        with open(name, "w") as file:
            file.write(name)
    time.sleep(2 * TICK / 1e9)
    monkeypatch.setattr("heatproof.jobs.prepare.open_dataset", lambda spec: kind())
    return prepared(spec_of("mine:own", "mine"))


@pytest.mark.parametrize(
    ("kind", "named", "files"),
    [
        (Own, False, []),
        (Generated, True, []),
        (OfAnArchive, True, ["archive.bin"]),
        (OfFiles, True, ["list.txt", "train.bin", "validation.bin", "evaluation.bin"]),
        (InTurn, True, ["train.bin", "validation.bin", "evaluation.bin"]),
    ],
)
def test_what_a_loader_names(folder, monkeypatch, kind, named, files):
    record = own(kind, monkeypatch)
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
def test_which_images_a_file_is_of(folder, monkeypatch, kind, file, splits):
    record = own(kind, monkeypatch)
    with open(file, "a") as changed:
        changed.write("more")
    now = file_changes(record, ".").record
    assert {split for split in record.listed if record.digest(split, 0, 2) != now.digest(split, 0, 2)} == splits


def test_an_image_can_be_of_several_files(folder, monkeypatch):
    record = own(OfSeveral, monkeypatch)
    for name in ("train-0.msk", "train-1.msk"):
        row = int(name[6])
        with open(name, "w") as file:
            file.write("other")
        now = file_changes(record, ".").record
        for split, one in (("train", 0), ("train", 1), ("evaluation", 0)):
            is_of = (split, one) == ("train", row)
            assert (record.digest(split, one, one + 1) != now.digest(split, one, one + 1)) == is_of
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
def test_what_cannot_be_named_is_said(folder, monkeypatch, kind, sentence):
    with pytest.raises(HeatproofError, match=sentence):
        own(kind, monkeypatch)


# ---- messages --------------------------------------------------------------------------------------------------------


@pytest.fixture
def graph():
    """A graph with only the job that lists the images."""

    photos = {"dataset": "image_folder", "root": "photos", "size": 32}
    models = [{"net": {"architecture": "cifar_resnet20"}}]
    few = {"datasets": [{"photos": photos}], "models": models, "evaluation": {"images": 4, "accuracy_images": 0}}
    return lambda: Graph(make_plan(merge(default_config(), few)))


def test_what_a_start_says(folder, graph, capsys):
    made = graph()
    assert inspect_data(made) == {}, "nothing was listed yet"
    os.makedirs("results/datasets")
    spec = made.job("prepare", {"dataset": "photos"}).spec
    spec.run(SimpleNamespace())
    before = read_checksummed(MANIFEST)
    assert describe_changes(made) == []
    flip(folder / ANTS / "ant_000.png")
    (said, jobs) = describe_changes(made)
    assert said.startswith(
        "The data of 'photos' changed (photos/test/ant/ant_000.png): results that depend on it are recomputed"
    )
    assert jobs == "A run recomputes these results, at most 1 job: 1 of prepare."
    assert set(update_data_records(made, "results", dry_run=True)) == {"photos"}
    assert read_checksummed(MANIFEST) == before, "a dry run writes nothing"
    assert update_data_records(made, "results", dry_run=False) == {}
    after = read_checksummed(MANIFEST)
    assert {name for name in after if after[name] != before[name]} == {"data"}
    assert "The data of 'photos' changed" in capsys.readouterr().err
    assert describe_changes(made) == []
    record_path(MANIFEST).write_bytes(b"damaged")
    assert describe_changes(made)[0].startswith("The record of the files of 'photos' is missing or damaged")
    update_data_records(made, "results", dry_run=False)
    assert read_checksummed(MANIFEST) == after
    (folder / "photos").rename(folder / "elsewhere")
    assert describe_changes(graph()) == [
        "The files of the dataset 'photos' are missing, so that their changes are not detected."
    ]


def test_what_is_no_dataset_any_more_is_said_at_the_start(folder, graph):
    made = graph()
    os.makedirs("results/datasets")
    made.job("prepare", {"dataset": "photos"}).spec.run(SimpleNamespace())
    (folder / ANTS / "ant_000.png").write_bytes(b"no picture")
    with pytest.raises(HeatproofError, match=r"1 of the .* images of 'photos' cannot be read: .*ant_000\.png"):
        update_data_records(made, "results", dry_run=False)


# ---- unchanged facts of changed files --------------------------------------------------------------------------------


def test_another_file_of_the_same_size_and_times_is_read(folder):
    """For example, a link leads to a file that was written in the same tick of the clock."""
    one, other = folder / "one.png", folder / "other.png"
    path = folder / ANTS / "ant_000.png"
    one.write_bytes(path.read_bytes())
    other.write_bytes(path.read_bytes())
    flip(other)
    path.unlink()
    path.symlink_to(one)
    time.sleep(2 * TICK / 1e9)
    record = prepared()
    path.unlink()
    path.symlink_to(other)
    stats = np.array(record.stats)
    row = record.paths.index(b"test/ant/ant_000.png")
    stats[row, :3] = sources._stats([record.paths[row]], "photos")[0, :3]
    assert "photos/test/ant/ant_000.png" in look_again(sources.replace(record, stats=stats)).changed


def test_a_folder_in_the_place_of_a_file_of_its_name_is_seen(folder, save):
    (folder / ANTS / "more").write_text("a note")
    time.sleep(2 * TICK / 1e9)
    prepared()
    (folder / ANTS / "more").unlink()
    save(folder / ANTS / "more/new.png")
    assert look_again().changed == [ANTS]


@pytest.mark.parametrize("left", [None, ".mounted"])
def test_an_empty_folder_is_no_data(folder, graph, left):
    """For example, a disk is not mounted: nothing is computed again, and the plan uses the previous list of images."""
    made = graph()
    os.makedirs("results/datasets")
    made.job("prepare", {"dataset": "photos"}).spec.run(SimpleNamespace())
    (folder / "photos").rename(folder / "elsewhere")
    (folder / "photos").mkdir()
    if left:
        (folder / "photos" / left).touch()
    assert describe_changes(graph()) == [
        "The files of the dataset 'photos' are missing, so that their changes are not detected."
    ]
    assert update_data_records(graph(), "results", dry_run=False) == {}


def test_a_record_of_another_dataset_is_not_gone_by(folder, graph):
    """All files of the record are missing, but those of the dataset exist."""
    made = graph()
    os.makedirs("results/datasets")
    made.job("prepare", {"dataset": "photos"}).spec.run(SimpleNamespace())
    record = read_record(record_path(MANIFEST))
    other = sources.replace(record, paths=[b"/none/" + path for path in record.paths], digests=record.digests ^ 1)
    write_record(record_path(MANIFEST), other)
    assert describe_changes(made)[0].startswith("The record of the files of 'photos' is missing or damaged")
    update_data_records(made, "results", dry_run=False)
    after = read_record(record_path(MANIFEST))
    assert (after.paths, after.listed) == (record.paths, record.listed)
    flip(folder / ANTS / "ant_000.png")
    assert describe_changes(made)[0].startswith("The data of 'photos' changed")


class OfOneFile(Own):
    shared_files = ("archive.bin",)


@pytest.mark.parametrize("root", ["archive.bin", "version 2"])
def test_a_root_that_is_no_folder(folder, monkeypatch, root):
    """The option `root` of a custom loader can be a file, or not a path."""
    time.sleep(2 * TICK / 1e9)
    (folder / "archive.bin").write_text("one")
    monkeypatch.setattr("heatproof.jobs.prepare.open_dataset", lambda spec: OfOneFile())
    record = prepared(spec_of("mine:own", "mine", root=root))
    assert (file_changes(wait(record), root).changed, file_changes(wait(record), root).is_missing) == ([], False)
    (folder / "archive.bin").write_text("two")
    assert [os.path.basename(os.path.normpath(path)) for path in file_changes(wait(record), root).changed] == [
        "archive.bin"
    ]

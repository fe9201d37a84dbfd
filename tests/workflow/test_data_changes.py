"""Which jobs run again after each change of data and checkpoints; docs/reruns.md has this as a table.

`PYTHONPATH=tests:tests/workflow python -m test_data_changes` prints the table.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from snakemake_project import MICRO, REPOSITORY, TABLE, Project, clone

from heatproof.datasets.probe_images import probe_rows
from heatproof.store.reading import read_json

pytestmark = pytest.mark.workflow

PAGE = REPOSITORY / "docs/reruns.md"
SPLITS = {"train": 6, "val": 4, "test": 8}
CLASSES = ("ant", "bee")
READING = {"dataset": "image_folder", "size": 32}
FEW = {
    **MICRO,
    "explainers": ["saliency", "random"],
    "metrics": [],
    "evaluation": {"images": 8, "accuracy_images": 0},
    "drops": {"baselines": ["mean"]},
}
# A network that is trained on class folders, and a user's checkpoint on a table of labels.
TRAINED = {**FEW, "datasets": [{"photos": {**READING, "root": "photos"}}]}
FETCHED = {
    **FEW,
    "datasets": [{"photos": {**READING, "root": "photos", "labels": "labels.csv"}}],
    "models": [{"vgg": {**MICRO["models"][0]["vgg"], "checkpoint": "mine.safetensors"}}],
    "weights": ["pretrained"],
}
WEIGHTS = "results/weights/photos/vgg/pretrained.safetensors"


def draw(path: Path, seed: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path, compress_level=0)


def photos(folder: Path) -> None:
    lines = ["file,label,split"]
    for split, count in SPLITS.items():
        for number in range(count):
            name = f"{split}/{CLASSES[number % 2]}/{number}.png"
            draw(folder / "photos" / name, len(lines))
            lines.append(f"{name},{CLASSES[number % 2]},{split}")
    (folder / "photos/labels.csv").write_text("\n".join(lines) + "\n")


def finish_trained(folder: Path) -> None:
    project = Project(clone(folder), TRAINED)
    photos(folder)
    project.run()


@pytest.fixture(scope="session")
def trained(once) -> Project:
    return Project(once("trained on photos", finish_trained), TRAINED)


@pytest.fixture(scope="session")
def fetched(once, trained) -> Project:
    def finish(folder: Path) -> None:
        project = Project(clone(folder), FETCHED)
        shutil.copytree(trained.folder / "photos", folder / "photos")
        shutil.copy(trained.folder / WEIGHTS, folder / "mine.safetensors")
        project.run()

    return Project(once("fetched for photos", finish), FETCHED)


# ---- the changes -----------------------------------------------------------------------------------------------------


def image_file(project: Project, split: str, is_checked: bool = False) -> Path:
    """Return the last image file of a split, in the order of use, that the applicability check of explainers reads."""
    ids = read_json(project.folder / "results/datasets/photos.json")["splits"][split]["ids"]
    probe = probe_rows(ids, lambda row: False)
    chosen = [name for row, name in enumerate(ids) if (row in probe) == is_checked]
    # A small split has no other images.
    return project.folder / "photos" / (chosen or ids)[-1]


def nothing(project: Project) -> None:
    """Change nothing."""


def touch(project: Project) -> None:
    for path in project.folder.glob("photos/**/*"):
        os.utime(path, (1, 1))


def replace_image(split: str, is_checked: bool = False, restore: bool = False) -> Callable[[Project], None]:
    def change(project: Project) -> None:
        path = image_file(project, split, is_checked)
        before = path.stat()
        draw(path, 1000)
        assert path.stat().st_size == before.st_size
        if restore:
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))

    return change


def add_image(split: str) -> Callable[[Project], None]:
    return lambda project: draw(project.folder / f"photos/{split}/bee/new.png", 1000)


def add_class(project: Project) -> None:
    for split in SPLITS:
        for number in range(2):
            draw(project.folder / f"photos/{split}/cat/{number}.png", 1000 + number)


def add_note(project: Project) -> None:
    (project.folder / "photos/test/ant/README").write_text("a note")


def remove_image(project: Project) -> None:
    project.config["evaluation"] = {"images": 7, "accuracy_images": 0}
    image_file(project, "evaluation").unlink()


def rename_image(project: Project) -> None:
    path = image_file(project, "validation")
    path.rename(path.with_stem("renamed"))


def relabel(split: str) -> Callable[[Project], None]:
    def change(project: Project) -> None:
        name = image_file(project, split).relative_to(project.folder / "photos").as_posix()
        was = Path(name).parts[1]
        other = CLASSES[1 - CLASSES.index(was)]
        project.edit("photos/labels.csv", f"{name},{was},", f"{name},{other},")

    return change


def rewrite_table(project: Project) -> None:
    path = project.folder / "photos/labels.csv"
    path.write_text("".join(f"{line},{n}\n" for n, line in enumerate(path.read_text().splitlines())))


def hide_photos(project: Project) -> None:
    (project.folder / "photos").rename(project.folder / "elsewhere")


def copy_results(project: Project) -> None:
    """Copy the results to a clone without data, as from another machine."""
    hide_photos(project)
    shutil.rmtree(project.folder / ".snakemake")
    for number, path in enumerate(project.folder.glob("results/**/*")):
        os.utime(path, (1_000_000_000 + number, 1_000_000_000 + number))


def replace_checkpoint(results: float | None = None, restore: bool = False) -> Callable[[Project], None]:
    def change(project: Project) -> None:
        path = project.folder / "mine.safetensors"
        before = path.stat()
        content = bytearray(path.read_bytes())
        # The sign of the last weight.
        content[-1] ^= 0x80
        path.write_bytes(bytes(content))
        if restore:
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        for file in project.folder.glob("results/**/*") if results else ():
            os.utime(file, (results, results))

    return change


SHARD = {"drops": 1, "attribute": 1, "attribute_reference": 1, "score": 1, "tables": 1}
SHARDS = {"drops": 2, "attribute": 2, "attribute_reference": 2, "score": 1, "tables": 1}
NETWORK = {"pretrain": 1, "finetune": 1, "drops": 2, "attribute": 2, "score": 1, "tables": 1}
ALL = {**SHARDS, **NETWORK}
NEW_WEIGHTS = {"fetch": 1, "drops": 2, "attribute": 2, "score": 1, "tables": 1}
# The rows of docs/reruns.md: the network, the change, and the number of jobs of each stage that run.
CASES: dict[str, tuple[str, Callable[[Project], None], dict[str, int]]] = {
    "nothing": ("trained", nothing, {}),
    "all files touched": ("trained", touch, {}),
    "a text file added to the folder": ("trained", add_note, {}),
    "an evaluation image replaced": ("trained", replace_image("evaluation"), SHARD),
    "an evaluation image of the applicability check replaced": (
        "trained",
        replace_image("evaluation", is_checked=True),
        {**SHARD, "attribute": 2, "attribute_reference": 2},
    ),
    "an evaluation image replaced, with the same size and time": (
        "trained",
        replace_image("evaluation", restore=True),
        SHARD,
    ),
    "a training image replaced": ("trained", replace_image("train"), NETWORK),
    "a validation image replaced": ("trained", replace_image("validation"), NETWORK),
    "an evaluation image added": ("trained", add_image("test"), SHARDS),
    "a training image added": ("trained", add_image("train"), NETWORK),
    "a class added": ("trained", add_class, ALL),
    "an evaluation image removed": ("trained", remove_image, SHARDS),
    "a validation image renamed": ("trained", rename_image, NETWORK),
    "the data folder moved away": ("trained", hide_photos, {}),
    "results copied without the data": ("trained", copy_results, {}),
    "a column added to the label table": ("fetched", rewrite_table, {}),
    "the label of an evaluation image changed": ("fetched", relabel("evaluation"), SHARDS),
    "the label of a training image changed": ("fetched", relabel("train"), {"drops": 2, "score": 1, "tables": 1}),
    "the checkpoint replaced": ("fetched", replace_checkpoint(), NEW_WEIGHTS),
    "the checkpoint replaced, with results dated in the future": (
        "fetched",
        replace_checkpoint(4_000_000_000),
        NEW_WEIGHTS,
    ),
    "the checkpoint replaced, with the same size and time": ("fetched", replace_checkpoint(None, True), NEW_WEIGHTS),
}


# In the quick tests; the other cases are marked long.
SHORT = (
    "all files touched",
    "an evaluation image replaced",
    "an evaluation image added",
)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in SHORT else pytest.mark.long) for name in CASES]
)
def test_a_change_of_data_reruns_the_jobs_that_depend_on_it(name, request, tmp_path):
    fixture, change, expected = CASES[name]
    project = request.getfixturevalue(fixture).copy(tmp_path / "project")
    change(project)
    assert project.ran() == expected
    assert project.ran() == {}


@pytest.mark.slow
def test_changed_data_are_reported_before_a_run(trained, tmp_path):
    """`check`, `status` and a dry run report changes, and do not affect the next run."""
    project = trained.copy(tmp_path / "project")
    change = replace_image("evaluation")
    manifest, name = project.folder / "results/datasets/photos.json", image_file(project, "evaluation")
    change(project)
    before = manifest.read_bytes()
    message = (
        f"The data of 'photos' changed ({name.relative_to(project.folder)}): results that depend on it are recomputed."
    )
    checked = project.heatproof("check", "micro.yaml").stdout
    assert message in checked
    jobs = re.search(r"at most 6 jobs: (.*)\.$", checked, re.MULTILINE)[1]
    assert set(jobs.split(", ")) == {f"1 of {stage}" for stage in ("prepare", *SHARD)}
    assert message in project.heatproof("status", "micro.yaml").stdout
    printed = project.run("-n", TABLE)
    assert message in printed
    assert re.search(r"^attribute +1$", printed, re.MULTILINE)
    assert manifest.read_bytes() == before
    assert project.ran() == SHARD


@pytest.mark.long
def test_a_run_that_ended_after_the_first_jobs_is_completed(trained, tmp_path):
    """Results that read earlier shards are stale, although the key of a shard does not change."""
    project = trained.copy(tmp_path / "project")
    replace_image("evaluation")(project)
    maps = "results/maps/photos/vgg/finetuned/saliency.1.json"
    assert project.ran(maps) == {"attribute": 1}
    # Results with arbitrary times, as after a copy.
    for path in project.folder.glob("results/**/*"):
        os.utime(path, (1_000_000_000, 1_000_000_000))
    assert project.ran() == {stage: count for stage, count in SHARD.items() if stage != "attribute"}
    assert project.ran() == {}


def rows() -> list[str]:
    """Return the lines of the table in docs/reruns.md."""
    networks = {"trained": "trained by the workflow", "fetched": "your checkpoint"}
    stages = ["fetch", "pretrain", "finetune", "drops", "attribute", "attribute_reference", "score", "tables"]
    assert {stage for _, _, expected in CASES.values() for stage in expected} == set(stages)
    heads = ["network", "change", *(f"`{stage}`" for stage in stages)]
    lines = [f"| {' | '.join(heads)} |", f"|{' --- |' * len(heads)}"]
    for name, (fixture, _, expected) in CASES.items():
        counts = (str(expected.get(stage, "–")) for stage in stages)
        lines.append(f"| {' | '.join([networks[fixture], name, *counts])} |")
    return lines


def test_the_page_on_reruns_has_the_table_of_changes():
    assert "\n".join(rows()) in PAGE.read_text(encoding="utf-8"), "print it again, and put it in docs/reruns.md"


if __name__ == "__main__":
    print("\n".join(rows()))

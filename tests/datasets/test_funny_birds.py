"""FunnyBirds in the published layout: images, part maps, and images without a part."""

import json
from pathlib import Path

import numpy as np
import pytest
from birds import COMPONENTS, KINDS, SIDE, write_birds
from PIL import Image

from heatproof.core.dataset import HasParts
from heatproof.core.provenance import Key
from heatproof.core.specs import DatasetSpec, Runtime
from heatproof.datasets.checks import check_image_files
from heatproof.datasets.funny_birds import funny_birds
from heatproof.datasets.registry import DATASETS
from heatproof.errors import HeatproofError
from heatproof.store.source_files import read_record, record_path
from heatproof.workflow.estimate import synthetic
from heatproof.workflow.plan.validate import make_plan
from heatproof.workflow.stages.prepare import Prepare

MANIFEST = "results/datasets/birds.json"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_birds(tmp_path_factory.mktemp("birds"))


@pytest.fixture
def writable_folder(tmp_path):
    """A folder that a test can damage."""
    return write_birds(tmp_path)


def opened(folder, **options):
    return funny_birds(seed=0, root=str(folder), **{"size": SIDE, **options})


def raw(path):
    return np.asarray(Image.open(path))


def test_it_meets_the_requirements_of_every_dataset(writable_folder, sound):
    dataset = opened(writable_folder)
    ids = sound(dataset, SIDE)
    assert len(ids) == 3 * 4 + 3 * 2
    assert {"test/0/000000", "test/2/000005", "train/2/000011"} <= ids
    assert (dataset.num_classes, dataset.class_names) == (3, ("0", "1", "2"))
    assert opened(writable_folder.parent).splits["evaluation"].ids == dataset.splits["evaluation"].ids
    assert DATASETS["funny_birds"].count(root=str(writable_folder)) == 6
    assert isinstance(dataset, HasParts)
    assert dataset.part_names == ("beak", "eye", "foot", "tail", "wing")


def test_images_and_classes_are_those_of_the_list(folder):
    dataset = opened(folder)
    split = dataset.splits["evaluation"]
    for row, (image_id, label) in enumerate(zip(split.ids, split.labels, strict=True)):
        assert image_id.split("/")[1] == str(label)
        pixels = raw(folder / f"{image_id}.png")[..., :3]
        np.testing.assert_array_equal(
            dataset.images("evaluation", row, row + 1)[0], np.moveaxis(pixels, -1, 0) / np.float32(255)
        )


def test_masks_follow_the_colours_of_the_part_map(folder):
    dataset = opened(folder)
    masks = dataset.part_masks("evaluation", 0, 6)
    assert (masks.shape, masks.dtype) == ((6, 5, SIDE, SIDE), np.int8)
    assert ((masks > 0).sum(axis=1) <= 1).all(), "no pixel in two of them"
    for row, image_id in enumerate(dataset.splits["evaluation"].ids):
        part_map = raw(folder / f"{image_id.replace('test', 'test_part_map')}.png")[..., :3]
        for part, name in enumerate(dataset.part_names):
            for component, (colour, _) in enumerate(COMPONENTS[name], start=1):
                np.testing.assert_array_equal(masks[row, part] == component, (part_map == colour).all(axis=-1))
                assert (masks[row, part] == component).any()
            assert masks[row, part].max() == len(COMPONENTS[name])
    np.testing.assert_array_equal(dataset.part_masks("evaluation", 2, 4), masks[2:4])
    assert dataset.part_masks("evaluation", 3, 3).shape == (0, 5, SIDE, SIDE)


def test_images_without_a_part_are_those_of_the_remaining_parts(folder):
    dataset = opened(folder)
    removed = dataset.without_part("evaluation", 0, 6)
    assert (removed.shape, removed.dtype) == ((6, 5, 3, SIDE, SIDE), np.float32)
    masks, images = dataset.part_masks("evaluation", 0, 6), dataset.images("evaluation", 0, 6)
    for row, image_id in enumerate(dataset.splits["evaluation"].ids):
        for part, name in enumerate(KINDS):
            remaining = "_".join(sorted(set(KINDS) - {name}))
            path = folder / image_id.replace("test", "test_interventions") / f"body_{remaining}.png"
            np.testing.assert_array_equal(removed[row, part], np.moveaxis(raw(path)[..., :3], -1, 0) / np.float32(255))
            changed = (removed[row, part] != images[row]).any(axis=0)
            np.testing.assert_array_equal(changed, masks[row, part] > 0)
    assert dataset.without_part("evaluation", 3, 3).shape == (0, 5, 3, SIDE, SIDE)
    np.testing.assert_array_equal(dataset.without_part("evaluation", 4, 6), removed[4:])


def test_training_images_have_masks_and_no_images_without_a_part(folder):
    dataset = opened(folder, validation=0.25)
    visible = dataset.part_masks("train", 0, 9).any(axis=(2, 3))
    assert visible.all(axis=1).any()
    assert not visible.all(), "parts of half of them are removed"
    for split in ("train", "validation"):
        with pytest.raises(HeatproofError, match=f"for its test images alone, and not for '{split}': take the split"):
            dataset.without_part(split, 0, 1)


def test_masks_are_resized_as_the_images_are(folder):
    dataset = opened(folder, size=20, resize=24)
    assert dataset.images("evaluation", 0, 2).shape == (2, 3, 20, 20)
    assert dataset.without_part("evaluation", 0, 2).shape == (2, 5, 3, 20, 20)
    original_masks, masks = opened(folder).part_masks("evaluation", 0, 6), dataset.part_masks("evaluation", 0, 6)
    # Every second pixel of the central 40 pixels.
    assert masks.shape == (6, 5, 20, 20)
    assert set(np.unique(masks)) == {0, 1, 2}
    coarse = np.stack([original_masks[..., 4 + y : 44 : 2, 4 + x : 44 : 2] for y in (0, 1) for x in (0, 1)])
    assert (masks == coarse).any(axis=0).all()


def test_a_test_set_alone_can_be_scored(writable_folder):
    (writable_folder / "dataset_train.json").unlink()
    dataset = opened(writable_folder)
    assert [len(dataset.splits[name]) for name in ("train", "validation", "evaluation")] == [0, 0, 6]


def test_a_hidden_part_has_an_empty_mask_and_too_few_parts_are_reported(tmp_path):
    dataset = opened(write_birds(tmp_path, hidden={0: ["eye"], 1: ["beak", "eye", "foot", "tail"], 2: [*KINDS]}))
    visible = dataset.part_masks("evaluation", 0, 6).any(axis=(2, 3))
    visible_counts = dict(zip(dataset.splits["evaluation"].ids, visible.sum(axis=1).tolist(), strict=True))
    assert [visible_counts[f"test/{row // 2}/{row:06d}"] for row in range(6)] == [4, 1, 0, 5, 5, 5]
    messages = check_image_files(dataset, "birds")
    assert messages[-1] == "birds: 2 of 6 evaluation images show fewer than two parts: no score of parts"
    assert messages[0] == "birds: shorter side 48 pixels: not resized, square of 48 pixels at the centre"


def test_a_part_in_no_part_map_is_reported(tmp_path):
    messages = check_image_files(opened(write_birds(tmp_path, hidden={row: ["eye"] for row in range(6)})), "birds")
    assert messages[-1] == "birds: none of 6 part maps shows the part 'eye' in its colour: it is not scored"


def resave(path, **change):
    image = Image.open(path)
    image.resize(change["size"]).save(path)


def edit(name, change):
    def damage(folder):
        path = folder / name
        path.write_text(json.dumps(change(json.loads(path.read_text()))))

    return damage


FIRST = "0/000000"
WITHOUT_WING = "body_beak_eye_foot_tail.png"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            lambda folder: (folder / "classes.json").unlink(),
            r"no classes\.json of funny_birds in the folder .*: get Funny",
        ),
        (lambda folder: (folder / "test_part_map").rename(folder / "x"), r"There is no test_part_map of funny_birds"),
        (
            lambda folder: (folder / "test_interventions" / FIRST / WITHOUT_WING).unlink(),
            rf"no .*{FIRST}/{WITHOUT_WING}: unpack",
        ),
        (
            lambda folder: (folder / "test_interventions" / FIRST).rename(folder / "x"),
            r"no .*/body_eye_foot_tail_wing\.png, nor 4 others of test images: unpack FunnyBirds\.zip completely",
        ),
        (lambda folder: (folder / f"test_part_map/{FIRST}.png").unlink(), rf"no .*test_part_map/{FIRST}\.png: unpack"),
        (lambda folder: (folder / "dataset_test.json").write_text("[1, 2"), r"dataset_test\.json cannot be read \("),
        (lambda folder: (folder / "dataset_test.json").write_text("{}"), r"dataset_test\.json is not a list of images"),
        (edit("dataset_test.json", lambda all_: [*all_[:1], {"class_idx": 3}]), r"a class_idx from 0 to 2: unpack"),
        (edit("dataset_test.json", lambda all_: [{"class_idx": "../0"}, *all_]), r"a class_idx from 0 to 2: unpack"),
        (edit("dataset_test.json", lambda all_: [{"class_idx": True}, *all_]), r"a class_idx from 0 to 2: unpack"),
        (edit("classes.json", lambda all_: all_[1:]), r"classes\.json does not number its classes from 0"),
        (edit("classes.json", lambda all_: {"a": 1}), r"classes\.json does not number its classes from 0"),
        (edit("parts.json", lambda all_: all_ | {"crest": []}), r"parts\.json does not have the parts beak, eye, foot"),
        (edit("parts.json", lambda all_: []), r"parts\.json does not have the parts beak, eye, foot"),
    ],
)
def test_missing_and_invalid_files_are_named_before_images_are_read(writable_folder, damage, message):
    damage(writable_folder)
    with pytest.raises(HeatproofError, match=message) as raised:
        DATASETS["funny_birds"].count(root=str(writable_folder))
    assert "\n" not in str(raised.value)


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(HeatproofError, match=r"no folder .*/none for funny_birds: get FunnyBirds\.zip as github"):
        DATASETS["funny_birds"].count(root=str(tmp_path / "none"))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            f"test_part_map/{FIRST}.png",
            rf"test_part_map/{FIRST}\.png has 40×24 pixels, and its image .*has 48×48: unpack",
        ),
        (
            f"test_interventions/{FIRST}/{WITHOUT_WING}",
            rf"{WITHOUT_WING} has 40×24 pixels, and its image .*has 48×48: unpack",
        ),
    ],
)
def test_a_wrong_image_size_is_refused_by_prepare_and_on_reading(writable_folder, name, message):
    resave(writable_folder / name, size=(24, 40))
    dataset = opened(writable_folder)
    row = dataset.splits["evaluation"].ids.index(f"test/{FIRST}")
    read = dataset.part_masks if "map" in name else dataset.without_part
    for check in (lambda: check_image_files(dataset, "birds"), lambda: read("evaluation", row, row + 1)):
        with pytest.raises(HeatproofError, match=message):
            check()


@pytest.mark.parametrize("name", [f"test_part_map/{FIRST}.png", f"test_interventions/{FIRST}/{WITHOUT_WING}"])
def test_damaged_part_maps_and_interventions_are_named(writable_folder, name):
    content = (writable_folder / name).read_bytes()
    (writable_folder / name).write_bytes(content[: len(content) // 2])
    with pytest.raises(HeatproofError, match=rf"1 of the 54 images of 'birds' cannot be read: .*{Path(name).name}"):
        check_image_files(opened(writable_folder), "birds")


def test_part_maps_without_colours_of_parts_are_refused(writable_folder):
    for path in (writable_folder / "test_part_map").rglob("*.png"):
        Image.fromarray(raw(path) // 2).save(path)
    with pytest.raises(HeatproofError, match=r"\.png has none of the colours of parts, and neither have the other"):
        check_image_files(opened(writable_folder), "birds")


def spec_of(folder):
    options = {"root": str(folder), "size": SIDE, "validation": 0.25}
    return DatasetSpec(
        "funny_birds", "heatproof.datasets.funny_birds", options, 0, "birds", Key("config", "code"), MANIFEST
    )


@pytest.mark.parametrize(
    ("name", "change"),
    [
        (f"test_interventions/{FIRST}/{WITHOUT_WING}", ["evaluation"]),
        (f"test_part_map/{FIRST}.png", ["evaluation"]),
        (f"test/{FIRST}.png", ["evaluation"]),
        # Images without several parts or without the background are never read.
        (f"test_interventions/{FIRST}/body_beak.png", []),
        (f"test_interventions/{FIRST}/background_interventions/0.png", []),
        (f"train_part_map/{FIRST}.png", []),
    ],
)
def test_a_changed_file_changes_the_images_that_are_read_from_it(writable_folder, monkeypatch, name, change):
    monkeypatch.chdir(writable_folder.parent)

    def digests():
        Prepare(dataset=spec_of(writable_folder), manifest=MANIFEST).run(Runtime())
        record = read_record(record_path(MANIFEST))
        per_split = {split: record.digest(split, 0, record.listed[split][1]) for split in record.listed}
        rows = range(record.listed["evaluation"][1])
        return per_split, [record.digest("evaluation", row, row + 1) for row in rows]

    (before, each), path = digests(), writable_folder / name
    Image.fromarray(raw(path) ^ 1).save(path)
    after, again = digests()
    assert [split for split in before if before[split] != after[split]] == change
    assert sum(old != new for old, new in zip(each, again, strict=True)) == len(change), "of one image"


def test_a_config_with_a_metric_of_parts_is_planned(folder):
    config = {"datasets": [{"birds": {"dataset": "funny_birds", "root": str(folder)}}], "metrics": ["part_deletion"]}
    plan = make_plan({**config, "evaluation": {"images": 6, "accuracy_images": 6}})
    assert plan.part_metrics == ["part_deletion"]


def test_its_synthetic_stand_in_has_parts():
    options = synthetic.noise_dataset_for("funny_birds", {}, (16, 20))
    assert options.pop("dataset") == "heatproof.workflow.estimate.synthetic:load"
    dataset = synthetic.load(seed=0, **options)
    assert (dataset.num_classes, len(dataset.part_names), options["train_images"]) == (50, 5, 45_000)
    masks = dataset.part_masks("evaluation", 0, 2)
    assert masks.shape == (2, 5, 16, 20)
    assert (masks.sum(axis=1) == 1).all()
    changed = (dataset.without_part("evaluation", 0, 2) != dataset.images("evaluation", 0, 2)[:, None]).any(axis=2)
    np.testing.assert_array_equal(changed, masks)
    assert not isinstance(synthetic.load(seed=0, classes=2, size=8, train_images=4), HasParts)

"""Photographs of one's own: sizes, tables of labels, groups, outputs of a larger network, odd files."""

import io
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from heatproof.config import normalise
from heatproof.data.image_folder import image_folder
from heatproof.data.pictures import damage, read_picture
from heatproof.data.prepare import check_dataset, prepare
from heatproof.errors import HeatproofError
from heatproof.plan.validate import make_plan

CLASSES = ["ant", "bee", "cat"]


def stripes(side: int) -> np.ndarray:
    """Return a picture whose outermost pixels are black and whose next ones are white."""
    picture = np.full((side, side, 3), 128, dtype=np.uint8)
    picture[1:-1, 1:-1] = 255
    picture[0] = picture[-1] = picture[:, 0] = picture[:, -1] = 0
    return picture


def test_pictures_that_have_the_size_stay_as_they_are(tmp_path):
    """A zoom of ten percent cost published CIFAR-10 networks a tenth of their accuracy."""
    for name in CLASSES:
        for number in range(4):
            path = tmp_path / name / f"{number}.png"
            path.parent.mkdir(exist_ok=True)
            Image.fromarray(stripes(32)).save(path)
    images = image_folder(seed=0, root=str(tmp_path), size=32).images("train", 0, 1)[0]
    np.testing.assert_array_equal(images, stripes(32).transpose(2, 0, 1) / np.float32(255))
    smaller = image_folder(seed=0, root=str(tmp_path), size=64).images("train", 0, 1)[0]
    assert smaller[:, 0].max() < 0.5, "of smaller pictures nothing is cut off either"
    larger = image_folder(seed=0, root=str(tmp_path), size=16).images("train", 0, 1)[0]
    assert larger.min() > 0.5, "of larger ones the border is cut off, as networks for 224 pixels are tested"


@pytest.fixture
def flat(tmp_path, save):
    """Twelve pictures of two classes, of six patients."""
    rows = []
    for number in range(12):
        name = f"p{number:02d}.png"
        save(tmp_path / name, 20 * (number % 2))
        rows.append({"file": name, "label": CLASSES[number % 2], "patient": f"m{number // 2}"})
    table = pd.DataFrame(rows)
    table.to_csv(tmp_path / "labels.csv", index=False)
    return tmp_path, table


def folder(root: Path, **options):
    return image_folder(seed=0, root=str(root), size=8, labels="labels.csv", **options)


def test_a_flat_folder_with_a_table_of_labels(flat, sound):
    root, table = flat
    made = folder(root)
    sound(made, 8)
    known = dict(zip(table["file"], table["label"], strict=True))
    for split in made.splits.values():
        assert [known[name] for name in split.ids] == [made.class_names[label] for label in split.labels]


def test_no_group_is_in_two_splits(flat):
    root, table = flat
    patients = dict(zip(table["file"], table["patient"], strict=True))
    made = folder(root, columns={"group": "patient"}, evaluation=0.34, validation=0.17)
    seen = [{patients[name] for name in split.ids} for split in made.splits.values()]
    assert [len(group) for group in seen] == [3, 1, 2]
    assert len(set.union(*seen)) == sum(map(len, seen))
    with pytest.raises(HeatproofError, match=r"6 groups, of which a share of 0\.05 is none for validation"):
        _ = folder(root, columns={"group": "patient"}, validation=0.05).splits["train"]


def test_a_table_that_names_the_splits(flat):
    root, table = flat
    table["split"] = ["train"] * 6 + ["val"] * 2 + ["test"] * 4
    table.to_csv(root / "labels.csv", index=False)
    made = folder(root)
    assert {name: len(split) for name, split in made.splits.items()} == {"train": 6, "validation": 2, "evaluation": 4}
    table.loc[0, "split"] = "test"
    table.to_csv(root / "labels.csv", index=False)
    with pytest.raises(HeatproofError, match="has the patient 'm0' in 2 splits"):
        folder(root, columns={"group": "patient"})


@pytest.mark.parametrize(
    ("change", "options", "told"),
    [
        (lambda t: t.drop(columns="label"), {}, "no column 'label' for the label: it has 'file', 'patient'"),
        (lambda t: t, {"columns": {"group": "site"}}, "no column 'site' for the group"),
        (lambda t: t, {"columns": {"grp": "site"}}, "`columns` names 'grp'"),
        (lambda t: t.iloc[1:], {}, "has pictures that labels.csv does not name .p00.png."),
        (lambda t: pd.concat([t, t.tail(1).assign(file="x.png")]), {}, "names pictures that are not in .* .x.png."),
        (lambda t: pd.concat([t, t.tail(1)]), {}, "names p11.png twice"),
        (lambda t: t.assign(label=["", *t["label"][1:]]), {}, "Line 2 of .* has no label"),
        (lambda t: t.assign(label="ant"), {}, "has 1 classes"),
        (lambda t: t.assign(split="tran"), {}, "names the split 'tran': did you mean 'train'"),
    ],
)
def test_what_is_wrong_with_a_table_is_said(flat, change, options, told):
    root, table = flat
    change(table).to_csv(root / "labels.csv", index=False)
    with pytest.raises(HeatproofError, match=told):
        folder(root, **options)


def test_some_classes_of_an_imagenet_network(tmp_path, fill):
    fill(tmp_path, ["n01443537", "n15075141"], 1)
    made = image_folder(seed=0, root=str(tmp_path), size=8, outputs="imagenet", evaluation=1)
    assert made.num_classes == 1000
    assert sorted(made.splits["evaluation"].labels) == [1, 999]
    assert made.class_names[1] == "goldfish"
    assert set(made.splits) == {"evaluation"}
    check_dataset(made, "mine")
    (tmp_path / "n01443537").rename(tmp_path / "goldfish")
    with pytest.raises(HeatproofError, match="No output of the network is known for goldfish: name the class folders"):
        image_folder(seed=0, root=str(tmp_path), size=8, outputs="imagenet")


def test_outputs_of_ones_own(tmp_path, fill):
    fill(tmp_path, CLASSES, 4)

    def made(outputs, count=5):
        return image_folder(seed=0, root=str(tmp_path), size=8, outputs=outputs, num_outputs=count)

    found = made({"ant": 4, "bee": 0, "cat": 2})
    assert found.class_names == ("bee", "output 1", "cat", "output 3", "ant")
    for outputs, count, told in (
        ({"ant": 4, "bee": 0}, 5, "No output of the network is known for cat: add them"),
        ({"ant": 5, "bee": 0, "cat": 1}, 5, "from 0 to 4, not to 5"),
        ({"ant": 1, "bee": 1, "cat": 0}, 5, "two classes to one number"),
        ({"ant": 1}, None, "num_outputs"),
        ("imagenett", 5, "write imagenet"),
    ):
        with pytest.raises(HeatproofError, match=told):
            made(outputs, count)


def test_one_picture_a_class_is_divided_whatever_the_class(tmp_path, fill):
    fill(tmp_path, [f"c{number:02d}" for number in range(20)], 1)
    made = image_folder(seed=0, root=str(tmp_path), size=8, evaluation=0.5, validation=0.1)
    assert {name: len(split) for name, split in made.splits.items()} == {"train": 8, "validation": 2, "evaluation": 10}


def test_without_training_images_nothing_can_be_trained(tmp_path, fill):
    fill(tmp_path, CLASSES, 4)
    photographs = {"dataset": "image_folder", "root": str(tmp_path), "size": 32, "evaluation": 1}
    settings = {"datasets": [{"mine": photographs}], "evaluation": {"images": 4}}
    with pytest.raises(HeatproofError, match="All images of 'mine' are for evaluation, and the config trains the pre"):
        make_plan(normalise(settings))
    weights = tmp_path / "w.pth"
    weights.touch()
    model = {"cifar_resnet20": {"checkpoint": str(weights)}}
    with pytest.raises(HeatproofError, match="fills patches with their `mean`"):
        make_plan(normalise({**settings, "models": [model], "weights": ["pretrained"]}))
    make_plan(normalise({**settings, "models": [model], "weights": ["pretrained"], "drops": {"baselines": ["zeros"]}}))


# ---- odd files -------------------------------------------------------------------------------------------------------


def encoded(mode: str, kind: str, **settings) -> bytes:
    file = io.BytesIO()
    Image.fromarray(stripes(40)).convert(mode).save(file, kind, **settings)
    return file.getvalue()


def sixteen_bits() -> bytes:
    file = io.BytesIO()
    Image.fromarray(stripes(40)[..., 0].astype(np.uint16) * 257).save(file, "PNG")
    return file.getvalue()


def rotated() -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was held upright: turn by 90 degrees clockwise
    file = io.BytesIO()
    wide = np.zeros((40, 60, 3), dtype=np.uint8)
    wide[:, :20] = 255
    Image.fromarray(wide).save(file, "JPEG", exif=exif, quality=95)
    return file.getvalue()


def animated() -> bytes:
    file = io.BytesIO()
    frames = [Image.fromarray(stripes(40)), Image.fromarray(np.zeros((40, 40, 3), dtype=np.uint8))]
    frames[0].save(file, "GIF", save_all=True, append_images=frames[1:])
    return file.getvalue()


WHOLE = encoded("RGB", "JPEG", quality=95)
READ = {
    "grey.jpg": encoded("L", "JPEG", quality=95),
    "cmyk.jpg": encoded("CMYK", "JPEG", quality=95),
    "palette.png": encoded("P", "PNG"),
    "transparent.png": encoded("RGBA", "PNG"),
    "sixteen.png": sixteen_bits(),
    "animated.gif": animated(),
    "really_a_jpeg.png": WHOLE,
    "followed_by_more.jpg": WHOLE + b"\x00" * 100,
}
REFUSED = {
    "empty.jpg": (b"", "it is empty"),
    "truncated.jpg": (WHOLE[:-60], "it is cut off"),
    "truncated.png": (encoded("RGB", "PNG")[:-60], "it is cut off"),
    "text.jpg": (b"<html>404</html>", "it is none of JPEG"),
    "postscript.png": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "it is none of JPEG"),
    "floats.tiff": (encoded("F", "TIFF"), "its pixels are of the kind 'F'"),
}


@pytest.mark.parametrize("name", READ)
def test_an_odd_picture_is_read_right(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(READ[name])
    assert damage(path) is None
    read = read_picture(path, 40, 40)
    expected = stripes(40).transpose(2, 0, 1) / 255
    assert np.abs(read - expected).mean() < 0.05


@pytest.mark.parametrize("name", REFUSED)
def test_a_damaged_picture_is_named(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(REFUSED[name][0])
    assert REFUSED[name][1] in damage(path)


def test_a_photograph_is_turned_as_the_camera_says(tmp_path):
    path = tmp_path / "a.jpg"
    path.write_bytes(rotated())
    upright, stored = (read_picture(path, 40, 40, upright=turned) for turned in (True, False))
    assert upright[:, 0].mean() > 0.9 > 0.1 > upright[:, -1].mean(), "the bright side is above"
    assert stored[:, :, 0].mean() > 0.9 > 0.1 > stored[:, :, -1].mean(), "the bright side is to the left"


def test_damaged_pictures_are_counted_and_named_before_the_run(tmp_path, fill):
    fill(tmp_path, CLASSES, 10)
    for number in range(7):
        (tmp_path / "bee" / f"bee_00{number}.png").write_bytes(WHOLE[:200])
    options = {"root": str(tmp_path), "size": 8, "validation": 0.2}
    module = "heatproof.data.image_folder"
    spec = {"name": "mine", "kind": "image_folder", "module": module, "options": options, "seed": 0, "key": "k"}
    with pytest.raises(HeatproofError, match=r"7 of the 30 pictures of 'mine' cannot be read: .*bee.* and 2 more: rep"):
        prepare({**spec, "manifest": str(tmp_path / "m.json")}, {})

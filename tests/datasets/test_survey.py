"""Unreadable files are named before a run, and unusual ones are read as documented."""

from pathlib import Path

import numpy as np
import pytest
from odd_files import table
from PIL import Image

from heatproof.core.provenance import Key
from heatproof.core.specs import DatasetSpec, Runtime
from heatproof.datasets.checks import check_image_files
from heatproof.datasets.image_files import read_image
from heatproof.datasets.image_folder import image_folder
from heatproof.datasets.survey import survey
from heatproof.errors import HeatproofError
from heatproof.workflow.stages.prepare import Prepare

DOCUMENT = Path(__file__).parents[2] / "docs" / "datasets.md"


def test_the_documentation_has_the_outcome_of_every_unusual_file(tmp_path):
    document = DOCUMENT.read_text(encoding="utf-8")
    rows = table(tmp_path)
    assert [row for row in rows if row not in document] == []
    assert len(rows) >= 10


def test_unreadable_images_are_counted_and_named_before_the_run(tmp_path, fill):
    fill(tmp_path / "photos", ["ant", "bee"], 10, ".jpg")
    for number in range(5):
        path = tmp_path / "photos" / "bee" / f"bee_00{number}.jpg"
        path.write_bytes(path.read_bytes()[:-200] if number else b"")
    options = {"root": str(tmp_path / "photos"), "size": 8}
    expected = r"5 of the 20 images of 'mine' cannot be read: .*bee_00\d\.jpg \(.+\); .+; and 2 more\. Repair or remove"
    with pytest.raises(HeatproofError, match=expected):
        check_image_files(image_folder(seed=0, **options), "mine")
    spec = DatasetSpec("image_folder", "heatproof.datasets.image_folder", options, 0, "mine", Key("config", "code"))
    with pytest.raises(HeatproofError, match=expected):
        Prepare(dataset=spec, manifest=str(tmp_path / "m.json")).run(Runtime())
    assert not (tmp_path / "m.json").exists()


def test_a_check_of_a_subset_of_images_is_reported(tmp_path, fill):
    fill(tmp_path, ["ant", "bee"], 10)
    messages = check_image_files(image_folder(seed=0, root=str(tmp_path), size=8), "mine", limit=6)
    assert "mine: 5 of 20 images looked at, and all of them in the prepare stage" in messages


def test_bytes_after_the_end_of_an_image_are_accepted(tmp_path, save):
    save(tmp_path / "a.jpg")
    with open(tmp_path / "a.jpg", "ab") as file:
        file.write(b"\0" * 500)
    assert survey([tmp_path / "a.jpg"], 8).unreadable == []


@pytest.mark.parametrize("turned", [False, True])
def test_images_are_rotated_only_if_exif_is_applied(tmp_path, turned):
    pixels = np.zeros((20, 20, 3), dtype=np.uint8)
    pixels[:10] = 255
    exif = Image.Exif()
    exif[0x0112] = 6
    for name in ("ant", "bee"):
        (tmp_path / name).mkdir()
        for number in range(10):
            Image.fromarray(pixels).save(tmp_path / name / f"{number}.png", exif=exif)
    dataset = image_folder(seed=0, root=str(tmp_path), size=20, exif=turned)
    image = dataset.images("evaluation", 0, 1)[0, 0]
    # Orientation 6 is a quarter turn to the right: the top becomes the right side.
    assert (image[5, 5], image[5, 15], image[15, 5]) == ((0, 1, 0) if turned else (1, 1, 0))
    messages = check_image_files(dataset, "mine")
    assert any("20 of 20 stored rotated" in line for line in messages) is not turned


def test_only_unusual_images_are_described(tmp_path, save):
    save(tmp_path / "a.png")
    assert survey([tmp_path / "a.png"], 8).describe() == []
    Image.fromarray(np.zeros((9, 9, 4), dtype=np.uint8)).save(tmp_path / "b.png")
    (words,) = survey([tmp_path / "a.png", tmp_path / "b.png"], 8).describe()
    assert words == "1 of 2 transparent: transparency is ignored and the stored colours are read"
    assert read_image(tmp_path / "b.png", 8, 8).shape == (3, 8, 8)

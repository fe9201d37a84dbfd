"""An image file that is damaged after the dataset was prepared stops the jobs that read it, and no others."""

import json

import numpy as np
import pytest
from PIL import Image
from snakemake_project import MICRO, TABLE, Project, clone

pytestmark = [pytest.mark.workflow, pytest.mark.slow]


def test_an_image_that_is_truncated_during_a_run_is_reported_at_the_next_start(tmp_path):
    rng = np.random.default_rng(0)
    for name in ("ant", "bee"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(20):
            noise = rng.integers(0, 256, (32, 32, 3), dtype=np.uint8)
            Image.fromarray(noise).save(tmp_path / "photos" / name / f"{name}_{number:02d}.jpg")
    photos = {"dataset": "image_folder", "root": str(tmp_path / "photos"), "size": 32}
    project = Project(clone(tmp_path / "project"), {**MICRO, "datasets": [{"photos": photos}]})
    manifest = "results/datasets/photos.json"
    project.run(manifest)
    prepared = json.loads((project.folder / manifest).read_text())
    assert "not resized" in json.dumps(prepared)
    ids = prepared["splits"]["evaluation"]["ids"]
    damaged = tmp_path / "photos" / ids[5]
    content = damaged.read_bytes()
    damaged.write_bytes(content[: len(content) // 2])
    printed = project.run("--keep-going", TABLE, fails=True)
    # The next start detects that the file changed, and reads it before any job starts.
    assert str(damaged) in printed
    assert "Repair or remove" in printed
    assert "Traceback" not in printed
    assert not (project.folder / "results/weights").exists()
    damaged.write_bytes(content)
    ran = project.ran()
    assert ran["drops"] == 2
    assert "prepare" not in ran
    assert (project.folder / TABLE).exists()

"""The config that `heatproof init` writes runs without changes until its table is made."""

import numpy as np
import pandas as pd
import pytest
import yaml
from PIL import Image
from snakemake_project import TABLE, Project, clone


@pytest.mark.slow
@pytest.mark.workflow
def test_init_writes_a_config_for_a_folder_of_photographs_that_runs(tmp_path):
    project = Project(clone(tmp_path / "project"), {})
    generator = np.random.default_rng(0)
    for name, level in (("cat", 60), ("dog", 180)):
        folder = project.folder / "photos" / name
        folder.mkdir(parents=True)
        for number in range(30):
            pixels = generator.integers(level - 40, level + 40, (36, 32, 3))
            Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{number}.png")
    done = project.heatproof("init", "photos", "--model", "cifar_resnet20", "--out", "mine.yaml")
    assert done.returncode == 0, done.stderr
    project.config = yaml.safe_load((project.folder / "mine.yaml").read_text())
    assert "is sound" in project.heatproof("check", "mine.yaml").stdout
    project.run()
    table = pd.read_csv(project.folder / TABLE)
    assert {"saliency", "grad_cam", "random", "edges"} <= set(table["method"])
    assert table.loc[table["method"] != "random", "score"].notna().any()

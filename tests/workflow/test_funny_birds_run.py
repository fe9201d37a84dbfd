"""A run on FunnyBirds, from files in its layout to scores of parts and the figure of protocols."""

import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from snakemake_project import MICRO, Project, clone

from heatproof.metrics.parts import part_deletion
from heatproof.store.zarr_store import read

sys.path.append(str(Path(__file__).parents[1] / "data"))

from birds import KINDS, SIDE, write_birds

pytestmark = [pytest.mark.workflow, pytest.mark.slow]

AUTHORS = {"widen": 2, "hidden": True, "rescale": True}
CONFIG = {
    **MICRO,
    "datasets": [{"birds": {"dataset": "funny_birds", "root": "data", "size": SIDE, "validation": 0.25}}],
    "evaluation": {"images": 8, "accuracy_images": 0},
    "models": [
        {"net": {"architecture": "cifar_resnet20", "options": {"width": 2}, "mean": [0.0] * 3, "std": [1.0] * 3}}
    ],
    "weights": ["pretrained"],
    "drops": {"baselines": ["zeros"]},
    "explainers": ["saliency", "grad_cam"],
    "shard_size": 8,
    "metrics": [{"part_deletion": AUTHORS}],
}
FIGURE = "results/figures/protocols.svg"
WHERE = "birds/net/pretrained"
# The file of the first evaluation image without a wing.
INTERVENTION = "FunnyBirds/test_interventions/0/000000/body_beak_eye_foot_tail.png"


def test_a_run_on_funny_birds_makes_scores_of_parts_and_the_figure(tmp_path):
    project = Project(clone(tmp_path / "run"), CONFIG)
    folder = write_birds(project.folder / "data", classes=2, train=8, test=4, hidden={0: ["eye"], 1: [*KINDS]})
    project.run("results/scores.csv", FIGURE)
    assert "known parts" in (project.folder / FIGURE).read_text()
    table = pd.read_csv(project.folder / "results/scores.csv")
    table = table[table["metric"] == "part_deletion"].set_index("method")
    assert {"saliency", "saliency_abs", "grad_cam"} <= set(table.index)
    assert (table["n_undefined"] >= 1).all(), "an image without any visible part has equal sums"
    assert table["score"].between(0, 1).all()

    # Recomputed from the stored maps and from the files of the dataset.
    base = project.folder / "results"
    store = f"{base}/parts/{WHERE}.zarr"
    logit, mask = (read(store, name, 0, 8) for name in ("logit", "mask"))
    assert set(np.unique(mask)) == {0, 1, 2}
    maps = read(f"{base}/maps/{WHERE}/saliency.zarr", "attribution", 0, 8)[:, 0]
    score, valid, _ = part_deletion(maps, logit[:, :1] - logit[:, 1:], mask, [*"abcdefgh"], **AUTHORS)
    assert table.loc["saliency", "score"] == pytest.approx(score[valid].mean(), abs=1e-6)

    path = folder.parent / INTERVENTION
    Image.fromarray(np.asarray(Image.open(path)) ^ np.array([255, 255, 255, 0], np.uint8)).save(path)
    ran = project.ran("results/scores.csv")
    assert ran["parts"] == 1
    assert "pretrain" not in ran, "no training reads it"
    changed = (read(store, "logit", 0, 8) != logit).any(axis=0)
    assert changed.tolist() == [False] * 5 + [True], "the picture without a wing, and no other"

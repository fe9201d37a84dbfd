"""A run with grids of rows and columns, from the config to tables and pages."""

import copy
import json
import re

import numpy as np
import pandas as pd
import pytest
from scipy.stats import spearmanr
from snakemake_project import MICRO, Project, clone

from heatproof.store.zarr_store import read

pytestmark = [pytest.mark.slow, pytest.mark.workflow]


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    project = Project(clone(tmp_path_factory.mktemp("grids") / "project"), copy.deepcopy(MICRO))
    project.config |= {
        "finetuning": {"epochs": 1, "grid": [4, 8]},
        "drops": {"grids": [4, [4, 8]]},
        "metrics": [{"patch_insertion": {"grid": [8, 4]}}, {"deletion_morf": {"grid": [8, 2], "steps": 4}}],
        "report": {"all_metrics": True, "images": 2},
    }
    project.run("all")
    return project


def test_tables_name_the_grids(ran):
    results = ran.folder / "results"
    assert {path.name for path in results.glob("drops/digits/vgg/finetuned/*.zarr")} == {
        "g4_mean.zarr",
        "g4x8_mean.zarr",
    }
    for name in ("accuracy.csv", "in_domain.csv"):
        table = pd.read_csv(results / name)
        domain = table.groupby("grid")["in_domain"].unique().map(list).to_dict()
        assert domain == {"4": [False], "4x8": [True]}
    metrics = {"idsds", "sds_g4_mean", "patch_insertion", "deletion_morf"}
    assert set(pd.read_csv(results / "scores.csv")["metric"]) == metrics


def test_scores_use_the_rows_and_columns_of_the_grid(ran):
    folder = ran.folder / "results"
    logit = read(str(folder / "drops/digits/vgg/finetuned/g4x8_mean.zarr"), "logit", 0, 6).astype(float)
    maps = read(str(folder / "maps/digits/vgg/finetuned/saliency.zarr"), "attribution", 0, 6)[:, 0]
    sums = maps.reshape(6, 4, 8, 8, 4).sum((2, 4)).reshape(6, 32)
    expected = [
        spearmanr(image_sums, drop).statistic
        for image_sums, drop in zip(sums, logit[:, :1] - logit[:, 1:], strict=True)
    ]
    table = pd.read_parquet(folder / "scores/digits/vgg/finetuned/idsds.parquet")
    np.testing.assert_allclose(table[table["method"] == "saliency"]["score"], expected, atol=1e-6)


def test_the_page_has_a_number_for_every_patch(ran):
    page = (ran.folder / "results/report/index.html").read_text(encoding="utf-8")
    data = json.loads(re.search(r'<script[^>]*id="maps-data"[^>]*>(.*?)</script>', page, re.DOTALL)[1])
    drops = data["datasets"][0]["networks"][0]["drops"]
    assert (drops["grid"], drops["shape"]) == ("4x8", [4, 8])
    assert {len(values) for values in drops["values"]} == {32}
    assert "grid 4x8, mean" in page


def test_commands_name_the_grids(ran):
    folder = "results/maps/digits/vgg/finetuned"
    for grid in ("4", "4x8"):
        done = ran.heatproof("maps", "show", folder, "--grid", grid, "--drops", "--config", "micro.yaml", "-o", "a.png")
        assert (done.returncode, done.stdout) == (0, "a.png\n"), done.stderr
    done = ran.heatproof("maps", "show", folder, "--drops", "--config", "micro.yaml")
    assert "drops for the grids 4, 4x8: choose with --grid" in done.stderr
    assert "grid=4x8" in ran.heatproof("maps", "ls", "results/drops").stdout


def test_a_square_grid_as_a_list_reruns_nothing(ran):
    ran.config["drops"]["grids"] = [[4, 4], [4, 8]]
    assert "Nothing to be done" in ran.run("all")

"""Table 4 of Meta-Rank on replacements: 26 cases of 13 tiny networks, on tiny files in the layouts of its datasets."""

import os
from pathlib import Path

import numpy as np
import pandas as pd
import published_formats
import pytest

from heatproof.workflow.commands.cli import main
from heatproof.workflow.config.files import merge, read_config
from heatproof.workflow.plan.graph import Graph
from heatproof.workflow.plan.validate import make_plan

CONFIG = Path(__file__).parents[2] / "config"
METHODS = ["saliency_abs", "input_x_gradient", "integrated_gradients", "guided_backprop"]
METHODS += ["deep_lift", "deconvolution", "lrp", "guided_grad_cam"]
# EfficientNets of any size have no ReLU.
WITHOUT_RELU = {"guided_backprop", "deconvolution", "guided_grad_cam"}
STEPS = "integrated_gradients"
CASE = ["dataset", "model", "weights", "metric"]


def tiny(name):
    """Return a tiny network that replaces one of the paper."""
    if name.startswith("efficientnet"):
        return {"architecture": "timm_model", "options": {"name": "test_efficientnet"}}
    kind = "cifar_vgg11_bn" if name.startswith("vgg") else "cifar_resnet20"
    return {"architecture": kind, "options": {"width": 4}, "cam_layer": None}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Make the leaderboard and the table of scores in this process, and return the folder."""
    folder = tmp_path_factory.mktemp("meta_rank")
    config = read_config(CONFIG / "paper.yaml", CONFIG / "paper_meta_rank.yaml")
    models = {name: settings for entry in config["models"] for name, settings in entry.items()}
    small = {
        "datasets": [
            {name: {"root": f"data/{name}", "size": 32, "validation": 0.2}} for name in published_formats.UNPACKED
        ],
        "models": [
            {name: {**tiny(name), "datasets": entry_settings["datasets"]}} for name, entry_settings in models.items()
        ],
        "pretraining": {**config["pretraining"], "epochs": 0},
        "evaluation": {"images": 4, "accuracy_images": 0},
        "explainers": [
            {"integrated_gradients": {"steps": 20}} if name == STEPS else name for name in config["explainers"]
        ],
        # ROAD is not part of the leaderboard.
        "metrics": [{name: {"output": "accuracy", "steps": 4}} for name in ("deletion_morf", "deletion_lerf")],
    }
    for name, unpack in published_formats.UNPACKED.items():
        unpack(folder / "data" / name)
    before = os.getcwd()
    os.chdir(folder)
    try:
        plan = make_plan(merge(config, small))
        graph = Graph(plan)
        files = [graph.spec("leaderboard").files["leaderboard"], graph.spec("all_scores").files["scores"]]
        for job in graph.jobs_leading_to(files):
            job.spec.run(plan.runtime())
    finally:
        os.chdir(before)
    return folder


@pytest.fixture(scope="module")
def board(run):
    return pd.read_csv(run / "results/ranking/leaderboard.csv")


@pytest.fixture(scope="module")
def cases(run):
    """Return the mean scores, one row for each test case of pixel deletion; higher is better."""
    scores = pd.read_csv(run / "results/scores.csv")
    scores = scores[scores["metric"].isin(["deletion_morf", "deletion_lerf"])]
    wide = scores.pivot(index=CASE, columns="method", values="score")[METHODS]
    return wide.mul(np.where(wide.index.get_level_values("metric") == "deletion_morf", -1, 1), axis=0)


@pytest.mark.slow
def test_the_leaderboard_has_the_networks_and_methods_of_the_paper(board, cases):
    networks = cases.reset_index().groupby("dataset")["model"].nunique().to_dict()
    assert networks == {"imagenet": 3, "places365": 2, "food101": 3, "resisc45": 5}
    assert len(cases) == 26
    assert sorted(board["method"]) == sorted(METHODS)
    assert board["rank"].is_monotonic_increasing
    counts, expected = board.set_index("method"), cases.notna().sum().to_dict()
    assert {name for name, count in expected.items() if count == 26} >= {
        "saliency_abs",
        "input_x_gradient",
        "deep_lift",
    }
    # LRP has no maps either: with untrained weights its sum is off, and it is not applicable.
    assert {name for name, count in expected.items() if count == 24} == WITHOUT_RELU | {"lrp"}
    assert counts["n_cases"].to_dict() == expected
    assert counts["n_networks"].to_dict() == {name: count // 2 for name, count in expected.items()}
    assert board[["ci_low", "ci_high"]].notna().all(axis=None)


@pytest.mark.slow
def test_kappa_equals_equations_4_to_6(board, cases):
    """Equation 4, with a tie as half a win and ½ added to both sides, and equation 6, by least squares over pairs."""
    rows, odds = [], []
    for number, p in enumerate(METHODS):
        for q in METHODS[number + 1 :]:
            both = cases[[p, q]].dropna()
            won = sum(1.0 if a > b + 1e-12 else 0.5 if abs(a - b) <= 1e-12 else 0.0 for a, b in both.to_numpy())
            share = (won + 0.5) / (len(both) + 1)
            rows.append(np.sqrt(len(both)) * np.array([(name == p) * 1.0 - (name == q) for name in METHODS]))
            odds.append(np.sqrt(len(both)) * np.log(share / (1 - share)))
    # κ is defined up to a constant, which makes the mean 0.
    rows.append(np.ones(len(METHODS)))
    odds.append(0.0)
    kappa = np.linalg.lstsq(np.array(rows), np.array(odds), rcond=None)[0]
    computed = board.set_index("method")["kappa"].reindex(METHODS)
    # Tables have eight digits.
    np.testing.assert_allclose(computed, kappa, atol=1e-6)
    assert np.ptp(kappa) > 0.1


@pytest.mark.slow
def test_the_ranking_of_the_table_of_scores_equals_the_leaderboard(run, board, tmp_path, capsys):
    choice = ["--metrics", "deletion_morf,deletion_lerf", "--methods", ",".join(METHODS), "--independent", "case"]
    assert main(["rank", str(run / "results/scores.csv"), *choice, "--out", str(tmp_path / "found")]) == 0
    assert "8 methods in 26 test cases" in capsys.readouterr().out
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "found/meta_rank.csv"), board)

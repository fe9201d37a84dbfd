"""A run on networks that have learnt nothing: how often it draws false conclusions."""

import importlib.util

import numpy as np
import pandas as pd
import pytest
from snakemake_project import REPOSITORY, Project, clone

SPEC = importlib.util.spec_from_file_location("null_control", REPOSITORY / "benchmarks/null_control.py")
null_control = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(null_control)
LEVEL = 0.95


@pytest.mark.slow
def test_equal_methods_are_separated_no_more_often_than_the_level():
    draws = np.random.default_rng(1)
    # Networks of one model have similar outputs, as after trainings with different seeds.
    kinds = draws.standard_normal((3, 40, 16))
    drops = {
        ("digits", f"net{kind}_seed{seed}", "pretrained"): kinds[kind] + draws.standard_normal((40, 16))
        for kind in range(3)
        for seed in range(2)
    }
    rates = null_control.false_differences(drops, 6, LEVEL).set_index("what")
    assert (rates["trials"] >= 36).all()
    spread = np.sqrt(LEVEL * (1 - LEVEL) / rates["trials"])
    assert (rates["rate"] <= 1 - LEVEL + 4 * spread).all(), rates


@pytest.mark.long
@pytest.mark.workflow
def test_a_run_on_networks_at_chance_separates_methods_no_more_often_than_the_level(tmp_path):
    small = {"architecture": "cifar_vgg11_bn", "options": {"width": 4}}
    config = {
        "evaluation": {"images": 32, "accuracy_images": 200},
        "training_seeds": 2,
        "models": [
            {"random": {**small, "pretraining": {"epochs": 0}}},
            {"shuffled": {**small, "pretraining": {"labels": "shuffled", "epochs": 2}}},
        ],
        "weights": ["pretrained"],
        "explainers": ["saliency", "input_x_gradient", "random", "edges"],
        "metrics": [],
        "report": {"all_metrics": False},
        "scores": {"bootstrap": 200},
    }
    project = Project(clone(tmp_path / "project"), config)
    project.run("results/verdict.csv")
    results = project.folder / "results"
    verdict = pd.read_csv(results / "verdict.csv")
    assert len(verdict) == 4
    assert (verdict["verdict"] == "at chance").mean() >= 0.75, verdict[["model", "verdict", "sentence"]]
    drops = null_control.cached_drops(results, 32)
    rates = null_control.false_differences(drops, 25, LEVEL).set_index("what")
    spread = np.sqrt(LEVEL * (1 - LEVEL) / rates["trials"])
    assert (rates["rate"] <= 1 - LEVEL + 4 * spread).all(), rates

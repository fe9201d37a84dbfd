"""A run of every task, and of functions as targets: exact answers, and what a config says wrong."""

import json

import numpy as np
import pandas as pd
import pytest
from toy_project import WHERE, Project

from heatproof.config_files import merge
from heatproof.errors import HeatproofError
from heatproof.plan.validate import make_plan

TASKS = ("binary", "multiclass", "multilabel", "regression")
# What is asked: the task of the dataset, and the function that is explained, or none.
ASKED = {
    **{task: (task, "label") for task in TASKS},
    "margin": ("multiclass", "questions:margin"),
    "all_numbers": ("multilabel", "questions:all_numbers"),
}


def project(folder, asked, network="linear", **change):
    task, target = ASKED[asked]
    maps = [
        {name: {"explainer": "questions:true_map", "asked": asked, "sign": sign}}
        for name, sign in (("true", 1.0), ("negative", -1.0))
    ]
    settings = {
        "datasets": [{"toy": {"dataset": "questions:dataset", "task": task}}],
        "models": [{"net": {"architecture": f"questions:{network}", "mean": [0.5] * 3, "std": [0.5] * 3}}],
        "weights": ["pretrained", "finetuned"],
        "target": target,
        "pretraining": {"epochs": 0},
        "finetuning": {"epochs": 2, "lr": 0.001, "baseline": "zeros"},
        "drops": {"baselines": ["zeros"]},
        "explainers": maps,
        "evaluation": {"images": 9},
    }
    return Project(folder, **merge(settings, change))


def run(made):
    for told in (made.prepare(), made.pretrain(), *([made.finetune()] if "finetuned" in made.plan.weights else [])):
        made.make(told)
    for network in made.plan.networks():
        for shard in made.plan.shards(made.plan.images):
            made.make(made.on_network("attribute", *network, shard=shard))
            for name, response in made.plan.method_responses.items():
                if made.plan.reads_response("toy", response):
                    made.make(made.on_network("curves", *network, shard=shard, response=name))
        for shard in made.plan.shards(made.plan.drop_images):
            for grid, baseline in made.plan.combinations:
                made.make(made.on_network("drops", *network, grid=grid, baseline=baseline, shard=shard))
            for name, response in made.plan.model_responses.items():
                if made.plan.reads_response("toy", response):
                    made.make(made.on_network("subsets", *network, shard=shard, response=name))
    for case in made.plan.all_cases():
        made.make(made.on_network("score", *case.network, metric=case.metric))
    made.make("tables")
    return made


@pytest.mark.parametrize("network", ["linear", "interacting"])
@pytest.mark.parametrize("asked", ASKED)
def test_the_true_map_has_a_score_of_1_and_its_negative_of_minus_1(tmp_path, asked, network):
    run(project(tmp_path, asked, network))
    for weights, metric in (("pretrained", "sds"), ("finetuned", "idsds")):
        scores = pd.read_parquet(tmp_path / f"results/scores/toy/net/{weights}/{metric}.parquet")
        assert scores.groupby("method").size().to_dict() == {"true": 9, "true_abs": 9, "negative": 9, "negative_abs": 9}
        for method, wanted in (("true", 1.0), ("negative", -1.0)):
            np.testing.assert_allclose(scores.loc[scores["method"] == method, "score"], wanted, atol=1e-6)
        table = pd.read_csv(tmp_path / "results/idsds_table.csv")
        rows = table[(table["weights"] == weights) & (table["metric"] == metric)].set_index("method")
        assert rows.loc["true", "score"] == pytest.approx(1, abs=1e-6)
        assert rows.loc["negative", "score"] == pytest.approx(-1, abs=1e-6)

"""Runs of every task, and with functions as targets: exact results, and errors of invalid configs."""

import shutil

import numpy as np
import pandas as pd
import pytest
import snakemake_project
import task_examples
import torch
import yaml
from toy_project import Project

from heatproof.errors import HeatproofError
from heatproof.store.zarr_store import describe_store, read
from heatproof.workflow.commands.cli import main
from heatproof.workflow.config.files import merge

TASKS = ("binary", "multiclass", "multilabel", "regression")
# The task of the dataset, and the function that is the target, or none.
TARGETS = {
    **{task: (task, "label") for task in TASKS},
    "margin": ("multiclass", "task_examples:margin"),
    "all_numbers": ("multilabel", "task_examples:all_numbers"),
}


def project(folder, target_name, network="linear", **change):
    task, target = TARGETS[target_name]
    maps = [
        {name: {"explainer": "task_examples:true_map", "target_name": target_name, "sign": sign}}
        for name, sign in (("true", 1.0), ("negative", -1.0))
    ]
    settings = {
        "datasets": [{"toy": {"dataset": "task_examples:dataset", "task": task}}],
        "models": [{"net": {"architecture": f"task_examples:{network}", "mean": [0.5] * 3, "std": [0.5] * 3}}],
        "weights": ["pretrained", "finetuned"],
        "target": target,
        "pretraining": {"epochs": 0},
        "finetuning": {"epochs": 2, "lr": 0.001, "baseline": "zeros"},
        "drops": {"baselines": ["zeros"]},
        "explainers": maps,
        "evaluation": {"images": 9},
    }
    toy = Project(folder, **merge(settings, change))
    toy.config = merge(settings, change)
    return toy


def run(toy):
    for job in (toy.prepare(), toy.pretrain(), *([toy.finetune()] if "finetuned" in toy.plan.weights else [])):
        toy.make(job)
    for shard in toy.plan.shards(toy.plan.images) if toy.plan.reference_explainers else ():
        toy.make(toy.reference_spec(shard))
    for network in toy.plan.networks():
        for shard in toy.plan.shards(toy.plan.images):
            toy.make(toy.on_network("attribute", *network, shard=shard))
            for name, response in toy.plan.method_responses.items():
                if toy.plan.reads_response("toy", response):
                    toy.make(toy.on_network("curves", *network, shard=shard, response=name))
        for shard in toy.plan.shards(toy.plan.drop_images):
            for grid, baseline in toy.plan.combinations:
                toy.make(toy.on_network("drops", *network, grid=grid, baseline=baseline, shard=shard))
            for name, response in toy.plan.model_responses.items():
                if toy.plan.reads_response("toy", response):
                    toy.make(toy.on_network("subsets", *network, shard=shard, response=name))
    for case in toy.plan.all_cases():
        toy.make(toy.on_network("score", *case.network, metric=case.metric))
    toy.make("tables")
    return toy


@pytest.mark.parametrize("network", ["linear", "interacting"])
@pytest.mark.parametrize("target_name", TARGETS)
def test_the_true_map_scores_1_and_its_negative_minus_1(tmp_path, target_name, network):
    run(project(tmp_path, target_name, network))
    for weights, metric in (("pretrained", "sds"), ("finetuned", "idsds")):
        scores = pd.read_parquet(tmp_path / f"results/scores/toy/net/{weights}/{metric}.parquet")
        assert scores.groupby("method").size().to_dict() == {"true": 9, "true_abs": 9, "negative": 9, "negative_abs": 9}
        for method, wanted in (("true", 1.0), ("negative", -1.0)):
            np.testing.assert_allclose(scores.loc[scores["method"] == method, "score"], wanted, atol=1e-6)
        table = pd.read_csv(tmp_path / "results/idsds_table.csv")
        rows = table[(table["weights"] == weights) & (table["metric"] == metric)].set_index("method")
        assert rows.loc["true", "score"] == pytest.approx(1, abs=1e-6)
        assert rows.loc["negative", "score"] == pytest.approx(-1, abs=1e-6)


@pytest.mark.parametrize(("target_name", "need"), [("regression", "a regression"), ("margin", "a callable target")])
def test_not_applicable_methods_have_a_row_with_the_reason(tmp_path, target_name, need):
    metrics = [
        {"by_probability": {"metric": "rise_deletion", "steps": 4, "output": "probability"}},
        {"by_logit": {"metric": "rise_deletion", "steps": 4, "output": "logit"}},
    ]
    toy = run(project(tmp_path, target_name, metrics=metrics, weights=["pretrained"]))
    toy.make("all_scores")
    table = pd.read_csv(tmp_path / "results/scores.csv").set_index("metric")
    reason = f"it reads a probability, and {need} gives a number alone: set `output: logit`"
    assert set(table.loc["by_probability", "gap"]) == {reason}
    assert table.loc["by_probability", "score"].isna().all()
    assert len(table.loc["by_probability"]) == len(table.loc["by_logit"]) == 4
    assert table.loc["by_logit", "score"].notna().all()
    # One curve was computed, and its store does not claim to have probabilities.
    (response,) = (
        name for name, response in toy.plan.method_responses.items() if toy.plan.reads_response("toy", response)
    )
    store = f"{tmp_path}/results/curves/toy/net/pretrained/true/{response}.zarr"
    quantities = describe_store(store)["coordinates"]["quantity"]
    values = dict(zip(quantities, np.moveaxis(read(store, "response", 0, 9), 2, 0), strict=True))
    assert np.isfinite(values["logit_label"]).all()
    assert np.isneginf(values["log_probability_label"]).all()
    np.testing.assert_array_equal(values["logit_predicted"], values["logit_label"])


def test_numbers_of_a_segmentation_are_explained(tmp_path):
    toy = project(tmp_path, "margin", network="masks", target="task_examples:whole_mask")
    run(Project(tmp_path, **merge(toy.config, {"explainers": ["saliency", "occlusion", "random"]})))
    table = pd.read_csv(tmp_path / "results/idsds_table.csv").set_index(["weights", "method"])
    # The network is linear, so that occluding a patch gives its drop, whatever the other values of the mask are.
    assert set(table.index.get_level_values(0)) == {"pretrained", "finetuned"}
    assert table["score"].notna().all()
    history = pd.read_csv(tmp_path / "results/weights/toy/net/finetuned.history.csv")
    assert history["validation_error"].notna().all()
    assert pd.read_csv(tmp_path / "results/weights/toy/net/pretrained.history.csv").iloc[0].isna().sum() == 3


def test_targets_do_not_depend_on_shards(tmp_path):
    one_shard, several_shards = tmp_path / "whole", tmp_path / "cut"
    for folder, size in ((one_shard, 16), (several_shards, 4)):
        folder.mkdir()
        run(project(folder, "all_numbers", "interacting", shard_size=size, weights=["pretrained"]))
    for name in ("scores/toy/net/pretrained/sds.parquet", "idsds_table.csv"):
        read_table = pd.read_csv if name.endswith("csv") else pd.read_parquet
        single, other = (read_table(folder / "results" / name) for folder in (one_shard, several_shards))
        pd.testing.assert_frame_equal(single, other)


@pytest.mark.parametrize(("task", "target", "target_name"), [("multilabel", 2, "multilabel"), ("binary", 1, "binary")])
def test_one_label_of_every_image_can_be_the_target(tmp_path, task, target, target_name):
    toy = run(project(tmp_path, target_name, target=target, weights=["pretrained"]))
    scores = pd.read_parquet(tmp_path / "results/scores/toy/net/pretrained/sds.parquet")
    assert scores["image"].nunique() == 9
    assert toy.plan.task_of("toy") == task
    np.testing.assert_allclose(scores.loc[scores["method"] == "true", "score"], 1, atol=1e-6)


@pytest.mark.parametrize("target_name", ["multilabel", "regression", "margin", "all_numbers"])
def test_maps_of_each_target_can_be_shown(tmp_path, target_name):
    toy = project(tmp_path, target_name, weights=["pretrained"])
    for job in (toy.prepare(), toy.pretrain(), toy.on_network("attribute", "toy", "net", "pretrained", shard=0)):
        toy.make(job)
    store = tmp_path / "results/maps/toy/net/pretrained/true.zarr"
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(toy.config))
    image, out = describe_store(store)["image_ids"][2], tmp_path / "map.png"
    arguments = ["maps", "show", str(store), "--image", image, "--config", str(tmp_path / "own.yaml"), "-o", str(out)]
    assert main(arguments) == 0
    assert out.exists()


@pytest.mark.parametrize("outputs", [1, 2])
def test_a_binary_checkpoint_has_one_output_or_two(tmp_path, outputs):
    weights = tmp_path / "weights.pt"
    torch.save(task_examples.Linear(outputs).state_dict(), weights)
    net = {"architecture": "task_examples:linear", "mean": [0.5] * 3, "std": [0.5] * 3, "checkpoint": str(weights)}
    toy = project(tmp_path, "binary", models=[{"net": net}])
    toy = Project(tmp_path, **merge(toy.config, {"explainers": ["input_x_gradient"]}))
    toy.make(toy.prepare())
    toy.make(toy.job("fetch", dataset="toy", model="net"))
    for job in (
        toy.finetune(),
        toy.maps_spec(),
        toy.drops_spec(4, "zeros"),
        toy.on_network("score", metric="idsds"),
    ):
        toy.make(job)
    scores = pd.read_parquet(tmp_path / "results/scores/toy/net/finetuned/idsds.parquet")
    np.testing.assert_allclose(scores.loc[scores["method"] == "input_x_gradient", "score"], 1, atol=1e-6)


def test_a_checkpoint_with_another_head_is_refused_with_the_expected_outputs(tmp_path):
    weights = tmp_path / "weights.pt"
    net = {"architecture": "task_examples:linear", "mean": [0.5] * 3, "std": [0.5] * 3, "checkpoint": str(weights)}
    for target_name, outputs, words in (
        ("binary", 3, "one output, or two, for the two classes of 'toy'"),
        ("multilabel", 2, "the 3 labels of 'toy'"),
        ("regression", 3, "one output for the number of 'toy'"),
    ):
        torch.save(task_examples.Linear(outputs).state_dict(), weights)
        toy = project(tmp_path, target_name, models=[{"net": net}])
        toy.make(toy.prepare())
        with pytest.raises(HeatproofError, match=f"except for its head, which has {words}"):
            toy.make(toy.job("fetch", dataset="toy", model="net"))


# ---- through Snakemake, to the page ---------------------------------------------------------------------------------

THROUGH = {
    "multilabel": {"datasets": [{"data": {"dataset": "task_examples:dataset", "task": "multilabel"}}]},
    "regression": {"datasets": [{"data": {"dataset": "task_examples:dataset", "task": "regression"}}]},
    "segmentation": {
        "datasets": [{"data": {"dataset": "task_examples:dataset", "size": 32}}],
        "target": "task_examples:predicted_mask",
        "models": [{"net": {"architecture": "task_examples:lraspp", "mean": [0.5] * 3, "std": [0.5] * 3}}],
        "pretraining": {"epochs": 0},
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("what", THROUGH)
def test_a_config_of_each_task_runs_to_the_table_and_the_page(tmp_path, what):
    folder = snakemake_project.clone(tmp_path / "clone")
    shutil.copy(task_examples.__file__, folder / "src")
    config = {
        "evaluation": {"images": 6},
        "weights": ["pretrained", "finetuned"],
        "pretraining": {"epochs": 1, "batch_size": 8},
        "finetuning": {"epochs": 1, "batch_size": 8},
        "models": [{"net": {"architecture": "cifar_resnet20", "options": {"width": 2}}}],
        "explainers": ["saliency", "grad_cam", "random"],
        "metrics": [{"rise_deletion": {"steps": 4}}],
        "scores": {"bootstrap": 20},
        "report": {"all_metrics": True},
    }
    toy = snakemake_project.Project(folder, merge(config, THROUGH[what]))
    checked = toy.heatproof("check", "micro.yaml")
    assert checked.returncode == 0, checked.stderr
    toy.run("all")
    page = (folder / "results/report/index.html").read_text()
    table = pd.read_csv(folder / "results/idsds_table.csv")
    assert set(table["weights"]) == {"pretrained", "finetuned"}
    assert table["score"].notna().any()
    gaps = {
        "multilabel": None,
        "regression": "it reads a probability, and a regression gives a number alone",
        "segmentation": "it reads a probability, and a callable target gives a number alone",
    }
    scores = pd.read_csv(folder / "results/scores.csv")
    if reason := gaps[what]:
        assert scores.loc[scores["metric"] == "rise_deletion", "gap"].str.startswith(reason).all()
        assert reason in page
    # Another start has nothing to do.
    assert "Nothing to be done" in toy.run("all")


@pytest.mark.slow
def test_another_target_has_other_rows_and_the_same_networks(tmp_path):
    folder = snakemake_project.clone(tmp_path / "clone")
    shutil.copy(task_examples.__file__, folder / "src")
    config = {
        "datasets": [{"data": {"dataset": "task_examples:dataset", "task": "multilabel"}}],
        "models": [{"net": {"architecture": "task_examples:linear", "mean": [0.5] * 3, "std": [0.5] * 3}}],
        "evaluation": {"images": 6},
        "weights": ["finetuned"],
        "pretraining": {"epochs": 1},
        "finetuning": {"epochs": 1},
        "explainers": ["saliency", "random"],
        "scores": {"bootstrap": 20},
    }
    toy = snakemake_project.Project(folder, config)
    assert toy.ran()["finetune"] == 1
    listed = folder / "results/datasets/data.json"
    of_labels = listed.read_bytes()
    toy.config = {**config, "target": "predicted"}
    # A dry run does not list images again.
    toy.run("--dry-run")
    ran = toy.ran()
    assert not {"prepare", "pretrain", "finetune"} & set(ran)
    assert ran["drops"] == 1
    assert listed.read_bytes() != of_labels
    toy.config = config
    assert "Nothing to be done" in toy.run()
    assert listed.read_bytes() == of_labels


@pytest.mark.parametrize(
    ("target_name", "axis_name"), [("multilabel", "logit of the target"), ("regression", "output")]
)
def test_curves_reliability_and_sorting_name_their_targets(tmp_path, monkeypatch, target_name, axis_name):
    metrics = [{"logit": {"metric": "deletion_morf", "steps": 4, "output": "logit"}}, {"mas_difference": {"steps": 4}}]
    toy = run(project(tmp_path, target_name, metrics=metrics, weights=["pretrained"]))
    toy.make("all_scores")
    toy.make(toy.on_network("metric_curves", "toy", "net", "pretrained"))
    curves = pd.read_csv(tmp_path / "results/figures/curves/toy/net/pretrained.csv")
    assert set(curves.loc[curves["metric"] == "logit", "y_name"]) == {axis_name}
    toy.make("reliability")
    reliability = pd.read_csv(tmp_path / "results/ranking/reliability.csv").set_index("metric")
    image_count = pd.read_parquet(tmp_path / "results/scores/toy/net/pretrained/logit.parquet")["image"].nunique()
    # MAS is undefined on images whose output does not rise, for all methods.
    assert set(reliability["n_images"] + reliability["n_undefined"]) == {image_count}
    assert ("mas_difference" in reliability.index) == (target_name == "multilabel")
    drawn = []
    monkeypatch.setattr("heatproof.report.figures.sorting.draw_sorting", lambda image, maps, *rest: drawn.extend(maps))
    monkeypatch.setattr("heatproof.report.results.save", lambda figure, path: (tmp_path / path).write_bytes(b""))
    (tmp_path / "results/figures/sorting/toy").mkdir(parents=True)
    toy.make("sorting")
    absolute = ["true_abs", "negative_abs"]
    assert drawn == (absolute if target_name == "multilabel" else ["true", "true_abs", "negative", "negative_abs"])

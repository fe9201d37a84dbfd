"""The costs that `heatproof estimate` computes: hours, files and bytes of the jobs of a plan."""

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from heatproof.core.options import parse_duration
from heatproof.errors import HeatproofError
from heatproof.workflow.config.files import default_config, merge, read_config
from heatproof.workflow.estimate.account import (
    Job,
    Measured,
    cost_by_explainer,
    jobs_with_costs,
    map_bytes,
    training_cost,
    wall_time,
)
from heatproof.workflow.estimate.estimate import _describe_fitting_images, estimate, plan_of
from heatproof.workflow.estimate.measure import Bench, JobCost, TimedSteps
from heatproof.workflow.plan.graph import Graph
from heatproof.workflow.plan.validate import make_plan

REPOSITORY = Path(__file__).parents[2]


def measured(plan, responses):
    """Return costs of one second for the start, and a millisecond for each image and explainer."""
    costs = Measured(1.0, score=JobCost(2.0))
    for pair in plan.pairs():
        each = dict.fromkeys(plan.model_explainers, 0.001)
        stages = {f"drops {g} {b}": JobCost(1.0, {"drops": 0.001}) for g, b in plan.combinations}
        stages["attribute"] = JobCost(1.0, each, bytes_per_image=100.0)
        if responses:
            per_explainer = dict.fromkeys(plan.explainers, 0.001)
            stages |= {f"curves {name}": JobCost(1.0, per_explainer) for name in plan.method_responses}
            stages |= {f"subsets {name}": JobCost(1.0, {"subsets": 0.001}) for name in plan.model_responses}
        costs.stages[pair] = stages | {"pretrain": JobCost(10.0), "finetune finetuned": JobCost(10.0)}
    for dataset in plan.datasets:
        costs.stages[dataset, None] = {
            "attribute_reference": JobCost(1.0, dict.fromkeys(plan.reference_explainers, 0.0))
        }
    return costs


def training_spec(stage="pretrain", **settings):
    """Return the spec of a training of the default config, with other settings."""
    spec = next(job.spec for job in Graph(make_plan(default_config())).jobs() if job.stage == stage)
    return replace(spec, training=replace(spec.training, **settings))


def counts(jobs):
    stages = [job.stage for job in jobs]
    return {stage: stages.count(stage) for stage in dict.fromkeys(stages)}


@pytest.mark.parametrize("way", ["together", "apart"])
def test_jobs_are_those_of_the_plan(way):
    plan = make_plan(merge(default_config(), {"shard_size": 40, "attribution_jobs": way}))
    numbers = counts(jobs_with_costs(plan, measured(plan, True), True))
    manifests = [product.manifest for job in Graph(plan).jobs() for product in job.products]

    def manifests_in(folder):
        return [manifest for manifest in manifests if manifest.startswith(f"results/{folder}/")]

    assert numbers["drops"] == len(manifests_in("drops"))
    assert numbers["score"] == len(manifests_in("scores")) == len(plan.all_cases())
    assert numbers["subsets"] == len(manifests_in("subsets"))
    assert numbers["pretrain"] + numbers["finetune"] == len(manifests_in("weights"))
    if way == "apart":
        assert numbers["attribute"] == len(manifests_in("maps"))
        assert numbers["curves"] == len(manifests_in("curves"))
    else:
        assert numbers["curves"] == len(manifests_in("curves")) / len(plan.explainers)


def test_a_training_on_several_devices_takes_that_many_workers():
    two = [Job("finetune", 2.0, devices=2), Job("drops", 1.0), Job("drops", 1.0)]
    assert [wall_time(two, workers) for workers in (1, 2, 3, 4)] == [4.0, 3.0, 2.0, 2.0]
    steps, splits = TimedSteps(1.0, 0.5, 0.0), {"train": 100, "validation": 10}
    seconds = {
        devices: training_cost(training_spec(epochs=3, devices=devices), steps, splits, 1.0).seconds(1)
        for devices in (1, 4)
    }
    assert seconds == {1: 1 + 3 * 105.0, 4: 1 + 3 * 30.0}
    plan = make_plan(merge(default_config(), {"finetuning": {"devices": 4}}))
    jobs = jobs_with_costs(plan, measured(plan, False), False)
    assert {(job.stage, job.devices) for job in jobs if job.devices > 1} == {("finetune", 4)}


def test_hours_and_disk_grow_with_images_and_weights():
    plan = make_plan(default_config())
    costs = measured(plan, True)
    jobs = jobs_with_costs(plan, costs, True)
    hours = cost_by_explainer(jobs)
    networks = len(plan.pairs()) * len(plan.weights)
    assert hours["saliency"][0] == pytest.approx(0.001 * plan.images * networks / 3600)
    assert hours["random"][0] == 0
    assert hours["random"][1] > 0
    apart = jobs_with_costs(make_plan(merge(default_config(), {"attribution_jobs": "apart"})), costs, True)
    for job_list in (jobs, apart):
        left = sum(job.bytes for job in job_list if job.stage == "attribute")
        assert left == pytest.approx(100 * plan.images * networks)


def test_saved_epochs_wait_for_their_finetuning_and_are_not_trained(tmp_path, monkeypatch):
    plan = make_plan(merge(default_config(), {"finetuning": {"keep": [2, 4]}}))
    jobs = jobs_with_costs(plan, measured(plan, False), False)
    networks = len(plan.pairs())
    assert (counts(jobs)["finetune"], counts(jobs)["keep_epoch"]) == (networks, 2 * networks)
    assert plan.weights[-1] == "finetuned_epoch4"
    schedules, bench = [], Bench(plan, tmp_path, 2, print)
    monkeypatch.setattr("heatproof.training.loop.fit", lambda *arguments: schedules.append(arguments[3]))
    dataset, model = plan.pairs()[0]
    bench.training(dataset, model, plan.weights[-1])
    finetuned = Graph(plan).spec("finetune", dataset=dataset, model=model, weights="finetuned")
    assert schedules[0] == replace(finetuned.training, epochs=1)


def test_a_finetuning_validates_twice():
    steps, splits = TimedSteps(0.1, 0.01, 0.0), {"train": 100, "validation": 10}
    once = training_cost(training_spec(epochs=2), steps, splits, 1.0)
    twice = training_cost(training_spec("finetune", epochs=2), steps, splits, 1.0)
    assert once.seconds(1) == pytest.approx(1 + 2 * (10 + 0.1))
    assert twice.seconds(1) == pytest.approx(1 + 2 * (10 + 0.2))


def test_the_papers_grid_is_planned_without_its_data():
    pytest.importorskip("bcos", reason="the grid has networks of the package bcos")
    plan, missing = plan_of([REPOSITORY / "config" / "paper.yaml"], "cpu")
    assert missing == ["imagenet"]
    assert len(plan.pairs()) == 16
    assert plan.images == 50000
    assert len(plan.methods) == 29
    numbers = counts(jobs_with_costs(plan, measured(plan, False), False))
    assert numbers["attribute"] == 2 * 16 * 10


@pytest.mark.parametrize("way", ["together", "apart"])
def test_files_are_those_of_shards_and_of_metadata(way):
    change = {"explainers": ["saliency", "grad_cam"], "attribution_jobs": way, "shard_size": 20}
    plan = make_plan(merge(default_config(), change | {"evaluation": {"images": 100}}))
    costs = measured(plan, False)
    for pair in plan.pairs():
        costs.stages[pair]["attribute"].metadata_files = 2 * 9
    files = sum(job.files for job in jobs_with_costs(plan, costs, False) if job.stage == "attribute")
    # docs/scaling.md: a store has nine files, and two for each shard.
    assert files == 2 * len(list(plan.networks())) * (9 + 2 * 5)


def test_a_dataset_without_known_files_is_reported(tmp_path):
    config = tmp_path / "mine.yaml"
    config.write_text("datasets: [{photos: {dataset: image_folder, root: nowhere}}]\n", encoding="utf-8")
    with pytest.raises(HeatproofError, match="nowhere"):
        plan_of([config], None)


def test_the_papers_configs_have_their_cases():
    plans = {name: make_plan_of(name) for name in ("paper_cifar100", "paper_meta_rank")}
    assert len(plans["paper_cifar100"].pairs()) == 8
    meta = plans["paper_meta_rank"]
    cases = [case for case in meta.all_cases() if case.metric in ("deletion_morf", "deletion_lerf")]
    assert len(cases) == 26


def make_plan_of(name):
    config = read_config(*(REPOSITORY / "config" / f"{n}.yaml" for n in ("paper", name)))
    datasets = [
        {
            next(iter(d)): {
                "dataset": "heatproof.workflow.estimate.synthetic:load",
                "classes": 10,
                "size": 32,
                "train_images": 10,
            }
        }
        for d in config["datasets"]
    ]
    return make_plan({**config, "datasets": datasets})


def test_zero_workers_are_refused():
    with pytest.raises(HeatproofError, match="at least 1"):
        estimate("config.yaml", workers=0)


def test_the_suggested_numbers_of_images_fit_the_budget():
    plan = make_plan(merge(default_config(), {"evaluation": {"images": {"drops": 320, "curves": 80}}}))
    costs = measured(plan, True)

    def lasts(images):
        fewer = make_plan(merge(default_config(), {"evaluation": images}))
        return wall_time(jobs_with_costs(fewer, costs, True), 1)

    full = lasts({"images": {"drops": 320, "curves": 80}})
    shortest = lasts({"images": 2, "accuracy_images": 0})
    budget = (full + shortest) / 2
    spec = _describe_fitting_images(plan, costs, 1, True, budget)
    images = yaml.safe_load(spec.partition("\n\n")[2])["evaluation"]
    assert 0.9 * budget < lasts(images) <= budget
    assert images["images"]["drops"] == pytest.approx(4 * images["images"]["curves"], abs=4)
    assert "is within the budget" in _describe_fitting_images(plan, costs, 1, True, 1.01 * full)
    assert "No number of images fits" in _describe_fitting_images(plan, costs, 1, True, 0.5 * shortest)


def test_times_are_parsed_and_invalid_ones_refused():
    assert [parse_duration(text) for text in ("2h", "15min", "90s", "1.5h")] == [7200, 900, 90, 5400]
    for text in ("2", "h", "-1h", "2 days", "nanh"):
        with pytest.raises(HeatproofError, match="give a time such as 2h"):
            parse_duration(text)


def test_maps_take_the_estimated_bytes():
    plan = make_plan(merge(default_config(), {"explainers": ["saliency", "random"], "evaluation": {"images": 100}}))
    # Three networks, two weights of each, 32 by 32 pixels.
    sizes = {plan.size_of(*pair) or (224, 224) for pair in plan.pairs()}
    (height, width) = sizes.pop()
    assert map_bytes(plan) == 3 * 2 * 100 * height * width * 4
    assert map_bytes(plan, 2) == map_bytes(plan) / 2
    smaller = dict.fromkeys(plan.pairs(), (height // 2, width))
    assert map_bytes(plan, sizes=smaller) == map_bytes(plan) / 2


def test_costs_are_scaled_to_a_device_of_another_speed():
    plan = make_plan(default_config())
    costs = measured(plan, True)
    stages = costs.stages[plan.pairs()[0]]
    before, fixed = dict(stages["attribute"].per_image), stages["attribute"].fixed
    reference = {key: kinds for key, kinds in costs.stages.items() if key[1] is None}
    unscaled = {key: {kind: dict(cost.per_image) for kind, cost in kinds.items()} for key, kinds in reference.items()}
    costs.scale(10.0)
    after = stages["attribute"]
    assert after.per_image == {name: pytest.approx(seconds / 10) for name, seconds in before.items()}
    assert after.fixed == fixed
    assert {key: {kind: cost.per_image for kind, cost in kinds.items()} for key, kinds in reference.items()} == unscaled


@pytest.mark.parametrize(
    ("as_if", "message"),
    [
        (("resnet9", 1.0), "no such model, only resnet20"),
        (("vit", 0.0), "above 0"),
        (("vit", float("inf")), "above 0"),
        (("paper_like", 1.0), "on 2 datasets, say digits/paper_like"),
    ],
)
def test_an_invalid_throughput_is_refused_before_work(tmp_path, as_if, message):
    config = tmp_path / "mine.yaml"
    both = "[digits, parts]"
    config.write_text(
        f"datasets: {both}\n"
        "models:\n"
        "  - resnet20: {architecture: cifar_resnet20, datasets: [digits]}\n"
        "  - vit: {architecture: small_vit, datasets: [digits]}\n"
        f"  - paper_like: {{architecture: cifar_resnet20, datasets: {both}}}\n"
        "evaluation: {images: 20, accuracy_images: 20}\n",
        encoding="utf-8",
    )
    with pytest.raises(HeatproofError, match=message):
        estimate(config, as_if=as_if)

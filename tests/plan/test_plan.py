"""The plan of a config: names of methods and metrics, and files, each of which one job makes."""

import json
import os
from collections import Counter
from dataclasses import is_dataclass, replace
from pathlib import Path

import pytest

from heatproof.core.methods import MethodSpec
from heatproof.errors import HeatproofError
from heatproof.explainers.registry import EXPLAINERS
from heatproof.workflow import check
from heatproof.workflow.config.files import default_config, merge, read_config
from heatproof.workflow.plan.graph import Graph
from heatproof.workflow.plan.stage import STAGES, Report, load_spec
from heatproof.workflow.plan.validate import make_plan
from heatproof.workflow.start import one_file_per_job

ROOT = Path(__file__).parents[2]
AFTER_SCORES = [name for name, kind in STAGES.items() if issubclass(kind, Report)]
# test_papers_page.py plans configs that are merged into others.
ALONE = [path for path in (ROOT / "config").rglob("*.yaml") if not path.name.startswith("paper_")]
CONFIGS = sorted(str(path.relative_to(ROOT / "config")) for path in ALONE)
ON_VIT = {"dataset": "digits", "model": "vit", "weights": "finetuned"}


def test_jobs_wait_for_one_file_of_each_job_that_makes_shards(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    files = [
        "results/datasets/d.json",
        *(f"results/maps/d/m.1/w/{name}.zarr/attribution/c/{shard}/0/0/0" for shard in (0, 1) for name in "ab"),
        *(f"results/maps/d/m.1/w/{name}.0.json" for name in "ab"),
        "results/maps/d/no_model/no_model/random.zarr/attribution/c/0/0/0",
        "results/curves/d/m.1/w/a/mas-1.zarr/response/c/0/0/0",
        "results/curves/d/m.1/w/a/rise-1.zarr/response/c/0/0/0",
        "results/curves/d/m.1/w/b/mas-1.zarr/response/c/0/0/0",
        "results/drops/d/m.1/w/g4_mean.zarr/logit/c/0/0",
        "results/drops/d/m.1/w/g4_mean.0.json",
    ]
    together = [files[position] for position in (0, 1, 3, 7, 8, 9, 11)]
    assert one_file_per_job(files, apart=False) == together
    apart = [files[position] for position in (0, 1, 2, 3, 4, 7, 8, 9, 10, 11)]
    assert one_file_per_job(files, apart=True) == apart
    for age, file in enumerate(files):
        os.makedirs(os.path.dirname(file), exist_ok=True)
        Path(file).touch()
        os.utime(file, (1000 - age, 1000 - age))
    assert one_file_per_job(files[1:3], apart=False) == [files[2]], "one that is stale stands for all"
    os.remove(files[1])
    assert one_file_per_job(files[1:3], apart=False) == [files[1]], "and so does one that is missing"


WHERE = {"dataset": "digits", "model": "vit", "weights": "finetuned"}


def plan_of(**change):
    return make_plan(merge(default_config(), change))


def plan_of_included(name):
    """Return the plan of a shipped config, with few shards, because all shards have the same kind of job."""
    config = read_config(ROOT / "config" / name)
    images_setting = config["evaluation"]["images"]
    images = max(
        images_setting if isinstance(images_setting, int) else max(images_setting.values()),
        config["evaluation"]["accuracy_images"],
    )
    return make_plan({**config, "shard_size": max(images // 2, 1)})


def keys_of(plan):
    return [(product.manifest, product.key) for job in Graph(plan).jobs() for product in job.products]


def test_a_signed_map_has_an_absolute_row_too():
    plan = plan_of(explainers=["saliency", "grad_cam", {"ig": {"explainer": "integrated_gradients", "steps": 3}}])
    assert list(plan.methods) == ["saliency", "saliency_abs", "grad_cam", "ig", "ig_abs"]
    assert plan.explainers["ig"].options["steps"] == 3
    assert plan.explainers["ig"].kind == "integrated_gradients"


def test_maps_of_a_renamed_family_carry_its_name():
    plan = plan_of(explainers=["noise_input_x_gradient", {"mine": {"explainer": "noise_input_x_gradient"}}])
    plain, renamed = (entry.map_names for entry in plan.explainers.values())
    assert len(plain) > 1
    assert renamed == [f"mine_{name}" for name in plain]


def specs_of_methods(value):
    """Yield the specs of explainers in a spec of a job."""
    if isinstance(value, MethodSpec):
        yield value
    elif is_dataclass(value):
        yield from specs_of_methods(list(vars(value).values()))
    elif isinstance(value, dict):
        yield from specs_of_methods(list(value.values()))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from specs_of_methods(item)


def test_methods_have_the_index_of_their_map_after_their_spec_was_stored():
    """Keys of JSON files are sorted, and the maps of a family such as the entropies are not."""
    plan = plan_of(explainers=list(EXPLAINERS), metrics=["deletion_morf"])
    assert any(entry.map_names != sorted(entry.map_names) for entry in plan.explainers.values())
    stages = Counter()
    for job in Graph(plan).jobs():
        stored = json.loads(json.dumps(job.spec_json, sort_keys=True))
        for entry in specs_of_methods(load_spec(job.run, stored)):
            stages[job.stage] += 1
            expected = [(method.name, method.index) for method in plan.explainers[entry.name].methods]
            assert [(method.name, method.index) for method in entry.methods] == expected
    assert {"attribute", "attribute_reference", "curves", "score"} <= stages.keys()


def test_idsds_is_only_for_weights_of_the_same_domain():
    plan = plan_of(
        drops={"grids": [4, 8], "baselines": ["zeros", "blur"]},
        weights=[
            "pretrained",
            "finetuned",
            {"blurred": {"baseline": "blur"}},
            {"fine": {"grid": 8}},
            # No patch is deleted in any image.
            {"intact": {"share": 0.0}},
        ],
    )
    names = {weights: list(plan.metrics_of(weights, "vit")) for weights in plan.weights}
    assert names == {
        "pretrained": ["sds", "sds_g4_blur", "sds_g8_zeros", "sds_g8_blur"],
        "finetuned": ["idsds", "sds_g4_blur", "sds_g8_zeros", "sds_g8_blur"],
        "blurred": ["sds", "idsds_g4_blur", "sds_g8_zeros", "sds_g8_blur"],
        "fine": ["sds", "sds_g4_blur", "idsds_g8_zeros", "sds_g8_blur"],
        "intact": ["sds", "sds_g4_blur", "sds_g8_zeros", "sds_g8_blur"],
    }


def test_overrides_of_a_model_come_before_those_of_weights():
    models = [{"m": {"architecture": "small_vit", "finetuning": {"epochs": 5, "lr": 0.5}}}]
    plan = plan_of(models=models, weights=["finetuned", {"long": {"epochs": 99}}], finetuning={"epochs": 2, "shift": 1})
    assert [plan.finetuning("m", w)["epochs"] for w in ("finetuned", "long")] == [5, 99]
    assert plan.finetuning("m", "long")["lr"] == 0.5
    assert plan.finetuning("m", "long")["shift"] == 1


def test_saved_epochs_are_separate_weights():
    plan = plan_of(
        drops={"baselines": ["zeros", "blur"]},
        finetuning={"epochs": 9, "keep": [4, 2]},
        weights=["pretrained", "finetuned", {"blurred": {"baseline": "blur", "keep": [9]}}, {"plain": {"keep": []}}],
    )
    assert plan.weights == [
        "pretrained",
        *("finetuned", "finetuned_epoch2", "finetuned_epoch4"),
        *("blurred", "blurred_epoch9"),
        "plain",
    ]
    assert plan.finetuned() == ["finetuned", "blurred", "plain"]
    assert list(plan.metrics_of("finetuned_epoch2", "vit")) == ["idsds", "sds_g4_blur"]
    assert list(plan.metrics_of("blurred_epoch9", "vit")) == ["sds", "idsds_g4_blur"]
    spec = Graph(plan).spec("keep_epoch", dataset="digits", model="vit", weights="blurred_epoch9")
    parent = Graph(plan).spec("finetune", dataset="digits", model="vit", weights="blurred")
    assert (spec.epoch, spec.saved_epochs, spec.upstream) == (9, parent.files["saved_epochs"], parent.key)


def test_saving_epochs_changes_no_existing_results():
    less, more = plan_of(), plan_of(finetuning={"keep": [1, 3]})
    keys = dict(keys_of(more))
    upstream_of_tables = [
        product for job in Graph(less).jobs() if job.stage not in AFTER_SCORES for product in job.products
    ]
    assert len(upstream_of_tables) > 20
    assert all(keys[product.manifest] == product.key for product in upstream_of_tables)


@pytest.mark.parametrize(
    ("section", "setting", "default", "alternative"),
    [
        ("finetuning", "precision", "float32", "bfloat16"),
        ("finetuning", "devices", 1, 2),
        ("finetuning", "labels", "true", "own"),
        ("finetuning", "loss", "cross_entropy", "binary_cross_entropy"),
        ("finetuning", "random_resized_crop", 0.0, 0.5),
        ("finetuning", "random_horizontal_flip", 0.0, 0.5),
    ],
)
def test_the_spec_of_a_training_has_every_setting(section, setting, default, alternative):
    """Stating a default explicitly is the same as leaving it out."""
    left_out, same, changed = (
        Graph(plan_of(**settings)).spec("finetune", **WHERE)
        for settings in ({}, {section: {setting: default}}, {section: {setting: alternative}})
    )
    assert left_out == same
    assert getattr(same.training, setting) == default
    assert changed.training == replace(same.training, **{setting: alternative})
    assert changed.key.config != same.key.config
    assert changed.key.code == same.key.code


def test_a_spec_has_target_and_precision_of_passes():
    drops = {**WHERE, "grid": 4, "baseline": "mean", "shard": 0}
    default, changed = (
        Graph(plan_of(**settings)).spec("drops", **drops) for settings in ({}, {"target": 3, "precision": "bfloat16"})
    )
    assert (default.network.target, default.network.precision) == ("label", "float32")
    assert (changed.network.target, changed.network.precision) == (3, "bfloat16")
    assert default.key.config != changed.key.config
    assert default.key.code == changed.key.code


def test_a_training_requests_its_number_of_devices():
    plan = plan_of(
        models=[{"small_vit": {"pretraining": {"devices": 2}}}, "cifar_vgg11_bn"],
        weights=["pretrained", {"finetuned": {"keep": [1]}}, {"wide": {"devices": 4}}],
    )
    devices = {where: plan.training_devices(*where) for where in plan.trainings()}
    assert devices == {
        ("small_vit", "pretrained"): 2,
        ("cifar_vgg11_bn", "pretrained"): 1,
        **{(model, "finetuned"): 1 for model in ("small_vit", "cifar_vgg11_bn")},
        **{(model, "wide"): 4 for model in ("small_vit", "cifar_vgg11_bn")},
    }


@pytest.mark.parametrize("section", ["pretraining", "finetuning"])
def test_every_device_needs_two_images(section):
    plan_of(**{section: {"devices": 4, "batch_size": 8}})
    with pytest.raises(HeatproofError, match=r"trained on devices: 4 with batch_size: 7, and each device needs two"):
        plan_of(**{section: {"devices": 4, "batch_size": 7}})


def test_several_devices_need_a_library(monkeypatch):
    monkeypatch.setattr(check, "find_spec", lambda name: None)
    check.check_machine(plan_of())
    with pytest.raises(HeatproofError, match=r"needs lightning-fabric, .*pip install \"heatproof\[multi-gpu\]\""):
        check.check_machine(plan_of(finetuning={"devices": 2}))


def test_every_file_has_one_producer_and_upstream_comes_first():
    plan = plan_of(
        shard_size=16,
        evaluation={"images": 40},
        drops={"grids": [4, 8], "baselines": ["zeros", "blur"]},
        weights=["pretrained", "finetuned", {"blurred": {"baseline": "blur", "keep": [1, 2]}}],
        datasets=["digits", {"fewer": {"dataset": "digits", "evaluation": 0.3}}],
    )
    check_graph(plan)
    graph = Graph(plan)
    rank = {output: rank for job, rank in graph.depths() for output in job.outputs}
    for case in plan.test_cases():
        job = graph.job("score", case.where)
        assert all(rank[path] < rank[job.spec.files["scores"]] for path in job.inputs)


def check_graph(plan):
    """One job makes each file, and every input that is not a user's file is made by an earlier job."""
    graph = Graph(plan)
    jobs = list(graph.jobs())
    products = [product for job in jobs for product in job.products]
    makers = Counter(output for job in jobs for output in job.outputs)
    assert set(makers.values()) == {1}
    assert all({product.manifest, product.data} <= set(product.files) for product in products)
    assert len({product.manifest for product in products}) == len(products)
    produced, depths = set(), {}
    for job, rank in graph.depths():
        upstream = set(job.inputs) - set(job.sources)
        assert upstream <= produced, f"{job.stage} {job.wildcards} comes before what it reads"
        assert rank == 1 + max((depths[path] for path in upstream), default=-1)
        produced.update(job.outputs)
        depths |= dict.fromkeys(job.outputs, rank)
    assert set(graph.targets()) <= produced
    return jobs


@pytest.mark.parametrize("name", CONFIGS)
def test_every_included_config_has_a_valid_graph(name):
    try:
        plan = plan_of_included(name)
    except HeatproofError as error:
        # Some datasets must be downloaded by hand, and some packages are extras that tests do not need.
        if not any(reason in str(error) for reason in ("There is no folder", "pip install 'heatproof[")):
            raise
        pytest.skip(str(error))
    jobs = check_graph(plan)
    assert {"prepare", "drops", "attribute", "score", "tables", "report_page"} <= {job.stage for job in jobs}
    # Also with wildcards as text, as in Snakemake.
    graph, texts = Graph(plan), jobs[:: max(1, len(jobs) // 40)]
    for job in texts:
        assert graph.job(job.stage, {key: str(value) for key, value in job.wildcards.items()}) == job


@pytest.mark.parametrize("way", ["together", "apart"])
def test_wildcards_as_text_give_the_same_job(way):
    graph = Graph(plan_of(shard_size=40, attribution_jobs=way))
    for job in graph.jobs():
        texts = {key: str(value) for key, value in job.wildcards.items()}
        assert graph.job(job.stage, texts) is job
        assert Graph(graph.plan).job(job.stage, texts) == job


# Figures that `all` does not request.
ON_REQUEST = ("sorting", "metric_curves")


def test_jobs_leading_to_a_file_are_complete():
    plan = plan_of(shard_size=40, weights=["pretrained", "finetuned"])
    graph = Graph(plan)
    first = graph.job("drops", {**ON_VIT, "grid": 4, "baseline": "mean", "shard": 0})
    assert [job.stage for job in graph.jobs_leading_to([first.products[0].data])] == [
        "prepare",
        "pretrain",
        "finetune",
        "drops",
    ]
    scores = graph.jobs_leading_to(plan.score_files([plan.case(*ON_VIT.values(), "idsds")]))
    assert {job.wildcards.get("model", "vit") for job in scores} == {"vit"}
    shards = len(plan.shards(plan.images))
    assert Counter(job.stage for job in scores) == {
        **dict.fromkeys(("prepare", "pretrain", "finetune", "score"), 1),
        **dict.fromkeys(("attribute", "attribute_reference", "drops"), shards),
    }
    everything = graph.jobs_leading_to(graph.targets())
    assert everything == [job for job in graph.jobs() if job.stage not in ON_REQUEST]
    assert graph.jobs_leading_to([]) == []


def specs(plan):
    wildcards = {
        "prepare": {"dataset": "digits"},
        "pretrain": {"dataset": "digits", "model": "vit"},
        "finetune": WHERE,
        "drops": {**WHERE, "grid": 4, "baseline": "mean", "shard": 0},
        "attribute": {**WHERE, "shard": 0},
        "attribute_reference": {"dataset": "digits", "shard": 0},
        "score": plan.case("digits", "vit", "finetuned", "idsds").where,
        "tables": {},
    }
    return [Graph(plan).job(stage, where).spec_json for stage, where in wildcards.items()]


def test_specs_are_json_and_the_same_every_time():
    """Snakemake compares paths as text."""
    assert json.dumps(specs(plan_of())) == json.dumps(specs(plan_of()))


@pytest.mark.parametrize(
    "change", [{"batch_size": 7}, {"threads": 2}, {"device": "cpu"}, {"attribution_jobs": "apart"}]
)
def test_runtime_settings_do_not_affect_results(change):
    assert sorted(keys_of(plan_of())) == sorted(keys_of(plan_of(**change)))


# Changes of the config, with a prefix of the manifests of results that must stay current.
KEEPS = {
    "cam layer": (
        {"models": [{"vit": {"architecture": "small_vit", "cam_layer": "last_tokens"}}]},
        {"saliency": True, "grad_cam": False},
    ),
    "option of another": (
        {"explainers": ["saliency", "grad_cam", {"rise": {"masks": 7}}]},
        {"saliency": True, "rise": False},
    ),
    "seed": ({"seed": 1}, {"saliency": False}),
    "output": ({"attribution": {"output": "probability"}}, {"saliency": False, "random": True}),
}


@pytest.mark.parametrize("what", KEEPS)
def test_maps_depend_only_on_their_settings(what):
    base = {
        "models": [{"vit": {"architecture": "small_vit"}}],
        "explainers": ["saliency", "grad_cam", "rise", "random"],
    }
    change, stays = KEEPS[what]
    keys = []
    for config in (base, {**base, **change}):
        graph = Graph(plan_of(**config))
        maps = [graph.spec("attribute", **WHERE, shard=0), graph.spec("attribute_reference", dataset="digits", shard=0)]
        keys.append({explainer.name: explainer.key for spec in maps for explainer in spec.explainers})
    assert {name: keys[0][name] == keys[1][name] for name in stays} == stays

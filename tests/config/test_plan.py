"""What follows from a config: names of methods and metrics, and files of which each has one maker."""

import json
from collections import Counter

import pytest

from heatproof.config import default_config, merge
from heatproof.errors import HeatproofError
from heatproof.plan import whole
from heatproof.plan.whole import make_plan


def plan_of(**change):
    return make_plan(merge(default_config(), change))


def test_a_signed_map_has_an_absolute_row_beside_it():
    plan = plan_of(explainers=["saliency", "grad_cam", {"ig": {"explainer": "integrated_gradients", "steps": 3}}])
    assert list(plan.methods) == ["saliency", "saliency_abs", "grad_cam", "ig", "ig_abs"]
    assert plan.explainers["ig"].options["steps"] == 3
    assert plan.explainers["ig"].kind == "integrated_gradients"


def test_maps_of_a_renamed_family_carry_its_name():
    plan = plan_of(explainers=["noise_input_x_gradient", {"mine": {"explainer": "noise_input_x_gradient"}}])
    plain, renamed = (list(entry.maps) for entry in plan.explainers.values())
    assert len(plain) > 1
    assert renamed == [f"mine_{name}" for name in plain]


def test_idsds_is_only_for_weights_of_the_same_domain():
    plan = plan_of(
        drops={"grids": [4, 8], "baselines": ["zeros", "blur"]},
        weights=["pretrained", "finetuned", {"blurred": {"baseline": "blur"}}, {"fine": {"grid": 8}}],
    )
    names = {weights: list(plan.metrics_of(weights, "vit")) for weights in plan.weights}
    assert names == {
        "pretrained": ["sds", "sds_g4_blur", "sds_g8_zeros", "sds_g8_blur"],
        "finetuned": ["idsds", "sds_g4_blur", "sds_g8_zeros", "sds_g8_blur"],
        "blurred": ["sds", "idsds_g4_blur", "sds_g8_zeros", "sds_g8_blur"],
        "fine": ["sds", "sds_g4_blur", "idsds_g8_zeros", "sds_g8_blur"],
    }


def test_overrides_of_a_model_come_before_those_of_weights():
    models = [{"m": {"architecture": "small_vit", "finetuning": {"epochs": 5, "lr": 0.5}}}]
    plan = plan_of(models=models, weights=["finetuned", {"long": {"epochs": 99}}], finetuning={"epochs": 2, "shift": 1})
    assert [plan.finetuning("m", w)["epochs"] for w in ("finetuned", "long")] == [5, 99]
    assert plan.finetuning("m", "long")["lr"] == 0.5
    assert plan.finetuning("m", "long")["shift"] == 1


def test_kept_epochs_are_weights_of_their_own():
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
    spec = plan.weights_spec("digits", "vit", "blurred_epoch9")
    parent = plan.finetune_spec("digits", "vit", "blurred")
    assert (spec["epoch"], spec["kept"], spec["upstream"]) == (9, parent["kept"], parent["key"])


def test_what_is_kept_changes_nothing_that_was_there():
    less, more = plan_of(), plan_of(finetuning={"keep": [1, 3]})
    keys = {record.manifest: record.spec_key for record in more.records()}
    upstream_of_tables = [record for record in less.records() if record.rank < 6]
    assert len(upstream_of_tables) > 20
    assert all(keys[record.manifest] == record.spec_key for record in upstream_of_tables)


def test_precision_is_part_of_a_spec_only_where_it_is_not_float32():
    specs = {
        precision: plan_of(finetuning={"precision": precision}).finetune_spec("digits", "vit", "finetuned")
        for precision in ("float32", "bfloat16")
    }
    assert "precision" not in specs["float32"]["training"]
    assert specs["bfloat16"]["training"]["precision"] == "bfloat16"
    assert specs["bfloat16"]["key"] != specs["float32"]["key"]


def test_devices_are_part_of_a_spec_only_where_there_are_several():
    one, two = (plan_of(pretraining={"devices": n}, finetuning={"devices": n}) for n in (1, 2))
    for weights in ("pretrained", "finetuned"):
        alone, shared, left_out = (plan.weights_spec("digits", "vit", weights) for plan in (one, two, plan_of()))
        assert alone == left_out
        assert "devices" not in alone["training"]
        assert shared["training"] == {**alone["training"], "devices": 2}
        assert shared["key"] != alone["key"]


def test_a_training_asks_for_its_own_number_of_devices():
    plan = plan_of(
        models=[{"small_vit": {"pretraining": {"devices": 2}}}, "cifar_vgg11_bn"],
        weights=["pretrained", {"finetuned": {"keep": [1]}}, {"wide": {"devices": 4}}],
    )
    found = {where: plan.training_devices(*where) for where in plan.trainings()}
    assert found == {
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
    monkeypatch.setattr(whole, "find_spec", lambda name: None)
    plan_of().require_libraries()
    with pytest.raises(HeatproofError, match=r"needs lightning-fabric, .*pip install \"heatproof\[multi-gpu\]\""):
        plan_of(finetuning={"devices": 2}).require_libraries()


def test_every_file_has_one_maker_and_upstream_comes_first():
    plan = plan_of(
        shard_size=16,
        evaluation={"images": 40},
        drops={"grids": [4, 8], "baselines": ["zeros", "blur"]},
        weights=["pretrained", "finetuned", {"blurred": {"baseline": "blur", "keep": [1, 2]}}],
        datasets=["digits", {"fewer": {"dataset": "digits", "evaluation": 0.3}}],
    )
    records = list(plan.records())
    makers = Counter(output for record in records for output in record.outputs)
    assert set(makers.values()) == {1}
    assert all(record.manifest in record.outputs for record in records)
    assert len({record.manifest for record in records}) == len(records)
    rank = {output: record.rank for record in records for output in record.outputs}
    for case in plan.test_cases():
        spec = plan.score_spec(*case)
        assert all(rank[path] < rank[spec["output"]] for path in plan.score_inputs(*case))


def specs(plan):
    return [
        plan.dataset_spec("digits"),
        plan.pretrain_spec("digits", "vit"),
        plan.finetune_spec("digits", "vit", "finetuned"),
        plan.drops_spec("digits", "vit", "finetuned", 4, "zeros", 0),
        plan.attribute_spec("digits", "vit", "finetuned", plan.model_explainers, 0),
        plan.attribute_spec("digits", None, None, plan.reference_explainers, 0),
        plan.score_spec("digits", "vit", "finetuned", "idsds"),
        plan.table_spec(),
    ]


def test_specs_are_json_and_the_same_every_time():
    """Snakemake compares them as text."""
    assert json.dumps(specs(plan_of())) == json.dumps(specs(plan_of()))


@pytest.mark.parametrize(
    "change", [{"batch_size": 7}, {"threads": 2}, {"device": "cpu"}, {"attribution_jobs": "apart"}]
)
def test_how_jobs_run_is_no_part_of_what_they_make(change):
    keys = [
        [(record.manifest, record.spec_key) for record in plan.records()] for plan in (plan_of(), plan_of(**change))
    ]
    assert keys[0] == keys[1]


# A change of the config, and which files must stay valid under it: a prefix of their manifests' paths.
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
def test_maps_depend_on_their_own_settings_alone(what):
    base = {
        "models": [{"vit": {"architecture": "small_vit"}}],
        "explainers": ["saliency", "grad_cam", "rise", "random"],
    }
    change, stays = KEEPS[what]
    keys = []
    for config in (base, {**base, **change}):
        plan = plan_of(**config)
        entries = plan.attribute_spec("digits", "vit", "finetuned", plan.model_explainers, 0)["explainers"]
        entries += plan.attribute_spec("digits", None, None, plan.reference_explainers, 0)["explainers"]
        keys.append({entry["name"]: entry["key"] for entry in entries})
    assert {name: keys[0][name] == keys[1][name] for name in stays} == stays

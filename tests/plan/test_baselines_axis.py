"""The plan of a config that varies baselines."""

import pytest

from heatproof.core.perturb.baselines import BASELINES
from heatproof.errors import HeatproofError
from heatproof.workflow.config.files import merge, read_config
from heatproof.workflow.plan.graph import Graph
from heatproof.workflow.plan.validate import make_plan
from heatproof.workflow.stages.baselines import baseline_cases

AXIS = ["mean", "background", "neighbours"]


def plan_of(**change):
    models = [{"vgg": {"architecture": "cifar_vgg11_bn"}}]
    return make_plan(merge(read_config(), {"models": models, "explainers": ["saliency", "random"], **change}))


def test_each_baseline_has_its_weights_and_its_scores():
    plan = plan_of(baselines=AXIS, metrics=[])
    assert plan.weights == ["pretrained", "finetuned", "finetuned_background", "finetuned_neighbours"]
    graph, where = Graph(plan), {"dataset": "digits", "model": "vgg"}
    tuned = [graph.spec("finetune", **where, weights=weights) for weights in plan.weights[1:]]
    assert [spec.training.baseline for spec in tuned] == AXIS
    assert len({spec.upstream for spec in tuned}) == 1, "all begin with the same pretraining"
    compared = [(case.network.weights, case.metric, case.baseline) for case in baseline_cases(plan)]
    assert compared == [
        ("finetuned", "idsds", "mean"),
        ("finetuned_background", "idsds_g4_background", "background"),
        ("finetuned_neighbours", "idsds_g4_neighbours", "neighbours"),
    ]
    assert plan.combinations_on("pretrained", "vgg") == [(4, name) for name in AXIS]
    assert plan.combinations_on("finetuned_background", "vgg") == [(4, "background")]
    assert "results/baselines.csv" in Graph(plan).targets()
    assert not [file for file in Graph(plan_of()).targets() if "baselines" in file]


def test_a_metric_without_a_baseline_uses_that_of_the_weights():
    metrics = ["ids", {"deletion_morf": {"baseline": "blur"}}, "rise_insertion", "road_morf", "soundness"]
    elsewhere = ["deletion_morf", "rise_insertion", "road_morf", "soundness"]
    plan = plan_of(baselines=["mean", "background"], metrics=metrics)
    assert plan.metrics["ids"].options["baseline"] == "mean"
    assert plan.metrics["ids_background"].options["baseline"] == "background"
    assert plan.metrics_on("finetuned", "vgg") == ["ids", *elsewhere]
    assert plan.metrics_on("finetuned_background", "vgg") == ["ids_background", *elsewhere]
    assert {"ids", "ids_background"} <= set(plan.metrics_on("pretrained", "vgg"))


def test_single_pixels_are_not_filled_from_the_border_of_a_patch():
    plan = plan_of(baselines=["neighbours", "background"], metrics=["ids", "patch_insertion"])
    assert plan.metrics["ids"].options["baseline"] == "mean"
    assert plan.metrics["patch_insertion"].options["baseline"] == "neighbours"
    with pytest.raises(HeatproofError, match="fills patches from their border, and single pixels are replaced"):
        plan_of(metrics=[{"ids": {"baseline": "neighbours"}}])


def test_results_of_the_first_baseline_stay_when_others_are_added():
    before, after = (Graph(plan_of(baselines=axis, metrics=["ids"])) for axis in (["mean"], AXIS))
    first, later = ({p.manifest: p.key for j in g.jobs() for p in j.products} for g in (before, after))
    networks = {
        file: key for file, key in first.items() if file.split("/")[1] in ("weights", "maps", "drops", "curves")
    }
    assert networks
    assert networks.items() <= later.items()


def test_a_custom_baseline_is_named_by_its_function():
    plan = plan_of(baselines=["mean", "toy_plugin:half"], metrics=["ids"])
    assert plan.weights[-1] == "finetuned_half"
    assert "idsds_g4_half" in plan.metrics_of("finetuned_half", "vgg")
    assert plan.runtime().baselines == ["toy_plugin:half"]
    del BASELINES["half"]


def test_the_code_of_a_custom_baseline_is_part_of_keys(monkeypatch):
    plan = plan_of(drops={"baselines": ["toy_plugin:half"]}, metrics=[])
    code_modules = []
    monkeypatch.setattr("heatproof.core.provenance._code_of", lambda modules: code_modules.append(modules) or "code")
    spec = next(job.spec for job in Graph(plan).jobs() if job.stage == "drops")
    assert spec.response.settings["baseline"] == "half"
    assert any("toy_plugin" in modules for modules in code_modules)
    del BASELINES["half"]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"baselines": ["mean", "zero"]}, "no baseline named 'zero': did you mean 'zeros'?"),
        ({"baselines": ["mean", "mean"]}, "'baselines' in the config names 'mean' twice"),
        ({"baselines": ["mean", "toy_plugin:nothing"]}, "The baseline 'toy_plugin:nothing' cannot be imported"),
        ({"explainers": [{"integrated_gradients": {"baseline": "grey"}}]}, "no baseline of the explainer"),
        ({"weights": ["finetuned", {"finetuned_blur": {}}], "baselines": ["mean", "blur"]}, "rename them"),
    ],
)
def test_invalid_baselines_are_refused(change, sentence):
    with pytest.raises(HeatproofError, match=sentence.replace("?", r"\?")):
        plan_of(**change)


def test_an_explainer_takes_the_baseline_of_the_weights_that_it_explains():
    same = {"ig_same": {"explainer": "integrated_gradients", "baseline": "same"}}
    plan = plan_of(baselines=["mean", "background"], explainers=["integrated_gradients", same, "random"], metrics=[])

    def fill(weights, explainer):
        spec = Graph(plan).spec("attribute", dataset="digits", model="vgg", weights=weights, shard=0)
        return next(job.options["baseline"] for job in spec.explainers if job.name == explainer)

    weights = ("pretrained", "finetuned", "finetuned_background")
    assert [fill(name, "ig_same") for name in weights] == ["mean", "mean", "background"]
    assert [fill(name, "integrated_gradients") for name in weights] == [None] * 3

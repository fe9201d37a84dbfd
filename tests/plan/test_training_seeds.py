"""Several networks of one model, trained with different seeds."""

import pytest

from heatproof.errors import HeatproofError
from heatproof.workflow.config.files import merge, read_config
from heatproof.workflow.plan.graph import Graph
from heatproof.workflow.plan.validate import make_plan

MINE = {"mine": {"architecture": "cifar_vgg11_bn", "checkpoint": "toy.safetensors"}}
TRAINED = {"vgg": {"architecture": "cifar_vgg11_bn"}}


def plan_of(**change):
    return make_plan(merge(read_config(), {"metrics": [], "explainers": ["saliency"], **change}))


def finetuning(plan, model):
    return Graph(plan).spec("finetune", dataset="digits", model=model, weights="finetuned")


def test_networks_of_one_kind_differ_in_the_seeds_of_both_trainings():
    plan = plan_of(models=[TRAINED], training_seeds=3, seed=5)
    assert plan.kinds == {"vgg": "vgg", "vgg_seed1": "vgg", "vgg_seed2": "vgg"}
    trained = [Graph(plan).spec("pretrain", dataset="digits", model=model).training.seed for model in plan.models]
    tuned = [finetuning(plan, model).training.seed for model in plan.models]
    assert trained == tuned == [5, 6, 7]
    assert [case.training_seed for case in plan.all_cases() if case.network.weights == "finetuned"] == [5, 6, 7]


def test_the_first_network_equals_that_of_a_run_without_seeds():
    single, three = (plan_of(models=[TRAINED], training_seeds=seeds) for seeds in (1, 3))
    for plan in (single, three):
        assert finetuning(plan, "vgg") == finetuning(single, "vgg")


def test_published_weights_are_finetuned_several_times_and_scored_once():
    plan = plan_of(models=[MINE], training_seeds=2)
    scored = [(network.model, network.weights) for network in plan.networks()]
    assert scored == [("mine", "pretrained"), ("mine", "finetuned"), ("mine_seed1", "finetuned")]


def test_a_name_that_is_taken_is_refused():
    taken = {"vgg_seed1": {"architecture": "cifar_vgg11_bn"}}
    with pytest.raises(HeatproofError, match="'vgg_seed1' has the name that `training_seeds` gives to 'vgg'"):
        _ = plan_of(models=[TRAINED, taken], training_seeds=2).models

"""The comparisons of the protocol checks that follow from a config."""

from pathlib import Path

import pytest
import yaml

from heatproof.workflow.config.files import default_config, merge
from heatproof.workflow.plan import comparisons as checks
from heatproof.workflow.plan.graph import Graph
from heatproof.workflow.plan.validate import make_plan

ROOT = Path(__file__).parents[2]


def plan_of(**change):
    return make_plan(merge(default_config(), change))


def find_comparisons(plan, factor, setting=None):
    rows = [row for row in checks.comparisons(plan, "resnet20") if row[0] == factor]
    return [row for row in rows if setting in (None, row[1])]


def test_the_included_example_varies_the_factors_that_it_names():
    plan = plan_of(**yaml.safe_load((ROOT / "config/protocol.yaml").read_text()))
    assert checks.factors(plan) == ["grid", "output", "seed", "weights", "transform"]
    ((_, _, reference, levels),) = find_comparisons(plan, "grid", "in-domain")
    assert reference == "P = 16"
    assert [level[:3] for level in levels] == [
        ("P = 4", "finetuned_g2", "idsds_g2_mean"),
        ("P = 16", "finetuned", "idsds"),
        ("P = 64", "finetuned_g8", "idsds_g8_mean"),
    ]
    # The default setting comes first, and is drawn.
    assert [row[1] for row in find_comparisons(plan, "grid")] == ["in-domain", "pretrained", "finetuned"]
    ((*_, seeds),) = find_comparisons(plan, "seed")
    assert [level[:2] for level in seeds] == [
        ("seed 0", "finetuned"),
        *((f"seed {seed}", f"finetuned_s{seed}") for seed in (1, 2)),
    ]
    ((*_, weights),) = find_comparisons(plan, "weights")
    assert [level[:3] for level in weights] == [
        ("pretrained", "pretrained", "sds"),
        ("finetuned", "finetuned", "idsds"),
    ]
    job = Graph(plan).job("checks", {})
    assert job.spec.transforms["rise"] == "rise"
    assert job.spec.transforms["integrated_gradients"] == "integrated_gradients_abs"
    assert set(job.inputs) <= set(plan.score_files(plan.all_cases()))


def test_every_level_is_a_test_case_of_the_plan():
    plan = plan_of(drops={"grids": [2, 4], "outputs": ["probability", "logit"]})
    cases = {(*case.network, case.metric) for case in plan.all_cases()}
    for _, _, reference, levels in checks.comparisons(plan, "vit"):
        assert all(("digits", "vit", weights, metric) in cases for _, weights, metric, _ in levels)
        assert reference in [level[0] for level in levels]


def test_on_weights_for_one_grid_only_the_grid_varies():
    plan = plan_of(drops={"grids": [2, 4]}, weights=["pretrained", "finetuned"])
    assert [row[1] for row in find_comparisons(plan, "grid")] == ["finetuned", "pretrained"]
    assert {level[1] for level in find_comparisons(plan, "grid")[0][3]} == {"finetuned"}


def test_checkpoints_are_ordered_and_not_the_default_weights():
    weights = ["pretrained", {"finetuned_epoch10": {"lr": 0.005}}, {"finetuned_epoch2": {"lr": 0.005}}, "finetuned"]
    plan = plan_of(weights=weights)
    assert checks.Conventions(plan, "resnet20").default_weights == "finetuned"
    levels = find_comparisons(plan, "weights")[0][3]
    assert [level[0] for level in levels] == ["pretrained", "finetuned_epoch2", "finetuned_epoch10", "finetuned"]
    assert find_comparisons(plan, "seed") == []


def test_default_weights_have_no_settings_at_any_position():
    weights = ["pretrained", {"other_seed": {"seed": 1}}, {"finer": {"grid": 8}}, "finetuned"]
    for keep in ([], [2, 4]):
        plan = plan_of(weights=weights, finetuning={"keep": keep}, drops={"grids": [4, 8]})
        assert checks.Conventions(plan, "resnet20").default_weights == "finetuned"
        assert find_comparisons(plan, "grid", "in-domain")[0][2] == "P = 16"
        assert [level[:2] for level in find_comparisons(plan, "seed")[0][3]] == [
            ("seed 0", "finetuned"),
            ("seed 1", "other_seed"),
        ]


def test_metrics_that_differ_in_one_option_are_compared():
    metrics = ["ids", {"ids_logit": {"metric": "ids", "output": "logit"}}, "deletion_morf", "deletion_lerf"]
    plan = plan_of(metrics=metrics, weights=["finetuned"])
    ((_, setting, reference, levels),) = find_comparisons(plan, "output")
    assert (setting, reference) == ("ids", "probability")
    assert [level[:3] for level in levels] == [("probability", "finetuned", "ids"), ("logit", "finetuned", "ids_logit")]
    ((_, setting, _, levels),) = find_comparisons(plan, "order")
    assert setting == "deletion"
    assert [level[2] for level in levels] == ["deletion_morf", "deletion_lerf"]


@pytest.mark.parametrize("weights", ["pretrained", "finetuned"])
def test_a_config_without_variation_has_no_factor_but_the_transform(weights):
    plan = plan_of(weights=[weights], metrics=[], explainers=["rise", "random"])
    signed = [entry for entry in plan.explainers.values() if len(entry.methods) > len(entry.maps)]
    assert checks.factors(plan) == (["transform"] if signed else [])

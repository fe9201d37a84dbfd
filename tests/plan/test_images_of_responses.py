"""Numbers of images of each kind of response: those that a metric is scored on, and those that jobs compute."""

import json

import pytest

from heatproof.errors import HeatproofError
from heatproof.workflow.config.files import default_config, merge
from heatproof.workflow.plan.graph import Graph
from heatproof.workflow.plan.validate import make_plan

METRICS = ["deletion_morf", "sensitivity_n", {"long": {"metric": "rise_deletion", "images": 90}}]


def plan_of(**change):
    return make_plan(merge(default_config(), {"shard_size": 32, "metrics": METRICS, **change}))


def reach(plan, stage):
    """Return the position after the last image of the shards of each store of a stage."""
    images = {}
    for job in Graph(plan).jobs():
        for product in job.products if job.stage == stage else ():
            store = product.manifest.rsplit(".", 2)[0].rpartition("/")[2]
            images[store] = max(images.get(store, 0), product.images)
    return images


def test_each_metric_has_the_images_of_its_responses():
    plan = plan_of(evaluation={"images": {"drops": 100, "curves": 40, "subsets": 50}, "accuracy_images": 120})
    assert {name: plan.images_of(name) for name in ["idsds", *plan.metrics]} == {
        "idsds": 100,
        "deletion_morf": 40,
        "sensitivity_n": 50,
        "long": 90,
    }
    specs = {case.metric: Graph(plan).spec("score", **case.where).images for case in plan.all_cases()}
    assert (specs["idsds"], specs["deletion_morf"], specs["long"]) == (100, 40, 90)
    assert set(reach(plan, "drops").values()) == {120}
    assert set(reach(plan, "attribute").values()) == {100}
    assert sorted(reach(plan, "curves").values()) == [40, 90]
    assert set(reach(plan, "subsets").values()) == {50}


def test_maps_are_computed_for_the_most_images_of_any_metric():
    plan = plan_of(evaluation={"images": {"drops": 60, "curves": 40}, "accuracy_images": 0})
    assert plan.images == plan.drop_images == 90
    assert set(reach(plan, "attribute").values()) == {90}
    idsds = next(case for case in plan.all_cases() if case.metric == "idsds")
    assert not [file for file in Graph(plan).job("score", idsds.where).inputs if file.endswith("/c/2/0/0/0")]


def test_omitted_kinds_have_the_number_of_images_of_curves():
    plan = plan_of(evaluation={"images": {"drops": 60, "curves": 40}})
    assert plan.images_of_kinds == {"drops": 60, "curves": 40, "subsets": 40, "parts": 40}
    assert set(plan_of(evaluation={"images": {"drops": 60}}).images_of_kinds.values()) == {60}


def test_one_number_equals_the_same_number_for_each_kind():
    single, several = (
        plan_of(evaluation={"images": images}) for images in (64, {"drops": 64, "curves": 64, "parts": 64})
    )
    keys = [
        [(product.manifest, product.key) for job in Graph(plan).jobs() for product in job.products]
        for plan in (single, several)
    ]
    assert keys[0] == keys[1]


def test_every_input_of_a_job_has_a_producer():
    graph = Graph(plan_of(evaluation={"images": {"drops": 100, "curves": 40}, "accuracy_images": 0}))
    jobs = list(graph.jobs())
    assert [file for job in jobs for file in job.inputs if file not in graph.producers] == []
    assert json.dumps([job.spec_json for job in jobs])


@pytest.mark.parametrize(
    ("images", "message"),
    [
        ({"drops": 1}, r"'evaluation.images.drops' in the config must be at least 2, not 1"),
        ({"curves": 8}, r"'evaluation.images.drops' in the config must be "),
        ({"drops": 8, "curvs": 8}, r"no key 'curvs' under 'evaluation.images' in the config: did you mean 'curves'"),
        ([8], r"'evaluation.images' in the config must be a mapping"),
        (1, r"'evaluation.images' in the config must be at least 2, not 1"),
    ],
)
def test_invalid_numbers_are_refused(images, message):
    with pytest.raises(HeatproofError, match=message):
        plan_of(evaluation={"images": images})


def test_an_invalid_number_of_a_metric_is_refused():
    with pytest.raises(HeatproofError, match="'images' of the metric 'ids' must be a whole number of at least 2"):
        plan_of(metrics=[{"ids": {"images": 1}}])

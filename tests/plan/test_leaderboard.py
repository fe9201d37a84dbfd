"""The section `leaderboard` of a config: its outputs, its errors, and that it does not affect other jobs."""

from dataclasses import replace

import pytest

from heatproof.errors import HeatproofError
from heatproof.workflow.config.files import default_config, merge
from heatproof.workflow.plan.graph import Graph
from heatproof.workflow.plan.validate import make_plan

LEADERBOARD = {"metrics": ["deletion_morf", "deletion_lerf"], "methods": ["saliency_abs", "input_x_gradient"]}
BOARD = "results/ranking/leaderboard.csv"


def graph_of(**change):
    small = {
        "metrics": ["deletion_morf", "deletion_lerf", "mas_insertion"],
        "explainers": ["saliency", "input_x_gradient"],
    }
    return Graph(make_plan(merge(default_config(), {**small, "report": {"all_metrics": False}, **change})))


def test_the_leaderboard_is_made_if_it_is_requested():
    job = graph_of(leaderboard=LEADERBOARD).job("leaderboard", {})
    assert job.spec.files == {"leaderboard": BOARD}
    assert job.spec.independent == "case"
    assert {case[-1] for case in job.spec.cases} == set(LEADERBOARD["metrics"])
    # The job does not wait for scores of the other metric.
    assert job.inputs
    assert not [file for file in job.inputs if "mas_insertion" in file]


def test_target_all_makes_the_leaderboard_and_the_page_shows_it():
    graph = graph_of(leaderboard=LEADERBOARD)
    page = graph.job("report_page", {})
    assert BOARD in graph.targets()
    assert BOARD in page.inputs
    assert page.spec.independent == "case"


def test_all_methods_count_where_none_is_named():
    spec = graph_of(leaderboard={"metrics": ["idsds", "mas_insertion"]}).spec("leaderboard")
    assert spec.methods == []
    assert {case[-1] for case in spec.cases} == {"idsds", "mas_insertion"}


def test_a_merged_config_can_remove_the_leaderboard():
    assert not [
        job for job in graph_of(leaderboard={**LEADERBOARD, "metrics": []}).jobs() if job.stage == "leaderboard"
    ]


def test_other_results_stay_current():
    """All other jobs have the same keys as without the section, except the page, which shows the leaderboard."""
    without, requested = (graph_of(**change).jobs() for change in ({}, {"leaderboard": LEADERBOARD}))
    assert not [job for job in without if job.stage == "leaderboard"]
    keys, others = (
        {product.manifest: product.key for job in jobs for product in job.products} for jobs in (without, requested)
    )
    assert {name for name in others if keys.get(name) != others[name]} == {
        "results/ranking/leaderboard.json",
        "results/report/index.json",
    }
    assert replace(requested[0].spec) == without[0].spec


@pytest.mark.parametrize(
    ("leaderboard", "message"),
    [
        (
            {**LEADERBOARD, "methods": ["saliency_abs", "saliancy"]},
            "names 'saliancy', and the config has no such method: did",
        ),
        (
            {**LEADERBOARD, "methods": ["saliency_abs", "grad_cam"]},
            "leaderboard.methods names 'grad_cam', and the config has",
        ),
        ({"metrics": ["deletion_mrof"]}, "metrics names 'deletion_mrof', and the config has no such metric: did you"),
        ({"metrics": ["road_morf"]}, "leaderboard.metrics names 'road_morf', and the config has no such metric"),
        ({**LEADERBOARD, "methods": ["saliency_abs"]}, "leaderboard.methods names 'saliency_abs' alone"),
        ({"methods": ["saliency", "saliency"]}, "'leaderboard.methods' in the config"),
        ({"independent": "model"}, "'leaderboard.independent' in the config cannot be 'model'"),
        ({"method": ["saliency", "saliency_abs"]}, "There is no key 'method' under 'leaderboard'"),
    ],
)
def test_invalid_settings_are_refused_before_any_job_starts(leaderboard, message):
    with pytest.raises(HeatproofError) as refused:
        graph_of(leaderboard=leaderboard)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)

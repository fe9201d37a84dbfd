"""The figure of curves: the labels of its axes, and points that equal those of `evaluate`."""

import numpy as np
import pandas as pd
import pytest
from toy_project import Project

from heatproof.core.methods import MethodSpec
from heatproof.metrics.soundness import soundness_at_levels
from heatproof.report.figures.metric_curves import COLUMNS, SOUNDNESS_LEVELS, draw_metric_curves, line_styles
from heatproof.workflow.config.files import merge, read_config
from heatproof.workflow.plan.graph import Graph
from heatproof.workflow.plan.validate import make_plan

METRICS = [
    {"soundness": {"fractions": [0.2, 0.4, 0.6, 0.8]}},
    "completeness",
    "road_morf",
    {"deletion_lerf": {"steps": 4}},
    {"rise_insertion": {"steps": 4}},
    {"rise_difference": {"steps": 4}},
    {"mas_difference": {"steps": 4}},
    "aic",
    "sensitivity_n",
]
SMALL = {"pretraining": {"epochs": 1}, "finetuning": {"epochs": 1}, "evaluation": {"images": 12}}


@pytest.fixture(scope="module")
def curves_of_project(tmp_path_factory):
    """Return a project whose curves were drawn, and the table of the curves."""
    project = Project(tmp_path_factory.mktemp("curves"), **SMALL, metrics=METRICS, explainers=["saliency", "random"])
    project.train().attribute().respond().score_all()
    before = {name: project.spec(name).key for name in project.plan.metrics}
    job = project.on_network("metric_curves")
    project.make(job)
    assert {name: project.spec(name).key for name in project.plan.metrics} == before
    table = pd.read_csv(project.folder / job.spec.files["table"])
    assert (project.folder / job.spec.files["figure"]).stat().st_size > 10_000
    return project, table


def test_every_metric_with_curves_has_labelled_axes(curves_of_project):
    _, table = curves_of_project
    axes_of_curves = table.groupby(["metric", "curve"])[["x_name", "y_name", "higher_is_better"]].agg("first")
    deleted, inserted = "share of pixels deleted, most relevant first", "share of pixels inserted, most relevant first"
    least, imputed = deleted.replace("most", "least"), deleted.replace("deleted", "imputed")
    probability = "probability of the target"
    assert {key: tuple(row) for key, row in zip(axes_of_curves.index, axes_of_curves.to_numpy(), strict=True)} == {
        ("soundness", "soundness"): ("accuracy that is reached", "soundness", True),
        ("completeness", "completeness"): ("threshold of the map, of its maximum", "loss of accuracy", True),
        ("road_morf", "road"): (imputed, "accuracy", False),
        ("deletion_lerf", "deletion"): (least, probability, True),
        ("rise_insertion", "insertion"): (inserted, probability, True),
        # Both curves of a difference whose two metrics the run does not score.
        ("rise_difference", "insertion"): (inserted, probability, True),
        ("rise_difference", "deletion"): (deleted, probability, False),
        ("mas_difference", "insertion_mas"): (inserted, f"{probability}, aligned with the map", True),
        ("mas_difference", "deletion_mas"): (deleted, f"{probability}, aligned with the map", False),
        ("aic", "aic"): ("information, of that of the image", "accuracy, normalised", True),
    }
    assert set(table["method"]) == {"saliency", "saliency_abs", "random", "random_abs"}


def test_the_points_agree_with_the_scores(curves_of_project):
    project, table = curves_of_project
    for metric, mean in (("completeness", True), ("road_morf", True), ("deletion_lerf", False)):
        scores = project.scores(metric)
        for method, part in table[table["metric"] == metric].groupby("method"):
            score = scores.loc[scores["method"] == method, "score"].mean()
            area = part["y"].mean() if mean else np.trapezoid(part["y"], part["x"])
            assert area == pytest.approx(score, abs=1e-6)
    completeness = table[(table["metric"] == "completeness") & (table["method"] == "saliency")]
    assert completeness["x"].round(6).tolist() == [0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1]
    # The curve of soundness at the level of the metric is its score.
    sound = table[(table["metric"] == "soundness") & np.isclose(table["x"], 0.5)].set_index("method")["y"]
    stored = project.scores("soundness").groupby("method")["score"].mean()
    for method, value in sound.items():
        assert value == pytest.approx(stored[method], abs=1e-9)
    assert set(table.loc[table["metric"] == "soundness", "x"]) <= set(SOUNDNESS_LEVELS)


def test_a_difference_has_no_panels_if_its_two_metrics_have(tmp_path):
    parts = ["rise_insertion", "rise_deletion", "rise_difference"]
    project = Project(tmp_path, **SMALL, metrics=[{name: {"steps": 4}} for name in parts], explainers=["random"])
    project.train().attribute().respond().score_all()
    job = project.on_network("metric_curves")
    project.make(job)
    assert set(pd.read_csv(tmp_path / job.spec.files["table"])["metric"]) == set(parts[:2])


def test_metric_curves_are_planned_but_not_part_of_target_all():
    with_curves = make_plan(merge(read_config(), {"metrics": ["soundness"]}))
    graph = Graph(with_curves)
    jobs = [job for job in graph.jobs() if job.stage == "metric_curves"]
    assert len(jobs) == len({case.network for case in with_curves.all_cases()}) > 0
    assert not any("figures/curves" in file for file in graph.targets())
    assert not Graph(make_plan(merge(read_config(), {"metrics": ["sensitivity_n"]}))).has("metric_curves")


def test_soundness_at_a_level_is_that_where_the_performance_first_reaches_it():
    performance = np.array([0.1, 0.4, 0.3, 0.6])
    ratio = np.array([[1.0, 0.9, 0.8, 0.7], [0.5, 0.4, 0.3, 0.2]])
    reached = soundness_at_levels(performance, ratio, [0.0, 0.1, 0.2, 0.4, 0.5, 0.6, 0.7])
    expected = [[1.0, 1.0, 0.9, 0.9, 0.7, 0.7, np.nan], [0.5, 0.5, 0.4, 0.4, 0.2, 0.2, np.nan]]
    np.testing.assert_array_equal(reached, expected)


def test_maps_and_their_absolute_values_share_a_colour_and_references_are_grey():
    explainers = [
        MethodSpec("e", "e", maps=tuple((f"m{k}", True) for k in range(24))),
        MethodSpec("random", "random", maps=(("random", False),), uses_model=False),
    ]
    lines = line_styles(explainers, ["random"])
    assert len({lines[f"m{k}"].color for k in range(24)}) == 24
    for k in range(24):
        raw, absolute = lines[f"m{k}"], lines[f"m{k}_abs"]
        assert (raw.color, raw.marker) == (absolute.color, absolute.marker)
        assert (raw.linestyle, absolute.linestyle) == ("-", "--")
    assert lines["random"].color == "0.55"


def table_of(metrics, methods):
    rows = [
        ("toy", "net", "w", metric, "c", "share", "accuracy", higher, name, x, x)
        for metric, higher in metrics
        for name in methods
        for x in (0.0, 0.5, 1.0)
    ]
    return pd.DataFrame(rows, columns=COLUMNS)


@pytest.mark.parametrize("count", [1, 4, 7])
@pytest.mark.parametrize("methods", [["a"], [f"method_{k}" for k in range(40)]])
def test_each_metric_has_a_panel_with_labels_and_a_direction(count, methods):
    metrics = [(f"metric{k}", bool(k % 2)) for k in range(count)]
    lines = line_styles([MethodSpec(name, name, maps=((name, False),)) for name in methods], [])
    figure = draw_metric_curves(table_of(metrics, methods), lines, "net")
    panels = [axes for axes in figure.axes if axes.get_visible()]
    assert len(panels) == count
    for axes, (metric, higher) in zip(panels, metrics, strict=True):
        assert axes.get_title(loc="left").split("\n") == [
            metric,
            "↑ higher is better" if higher else "↓ lower is better",
        ]
        assert (axes.get_xlabel(), axes.get_ylabel()) == ("share", "accuracy")
        assert len(axes.lines) == len(methods)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == methods


def test_an_empty_table_leads_to_an_empty_figure():
    assert not draw_metric_curves(pd.DataFrame(columns=COLUMNS), {}, "net").axes

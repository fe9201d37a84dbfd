"""The figure of one image's maps, sorted by the score of each metric."""

import numpy as np
import pandas as pd
import pytest

from heatproof.report.figures.sorting import best_first, draw_sorting, index_of_most_scored
from heatproof.workflow.config.files import default_config
from heatproof.workflow.plan.graph import Graph
from heatproof.workflow.plan.validate import make_plan

SCORES = pd.DataFrame(
    [[0.5, 0.9, np.nan, 0.1], [0.5, 0.9, 0.2, 0.1]], index=["insertion", "deletion"], columns=["a", "b_abs", "c", "d"]
)
UP = {"insertion": True, "deletion": False}


@pytest.mark.parametrize(
    ("metric", "order"), [("insertion", ["b_abs", "a", "d", "c"]), ("deletion", ["d", "c", "a", "b_abs"])]
)
def test_the_best_score_is_first_and_undefined_ones_last(metric, order):
    assert list(best_first(SCORES.loc[metric], UP[metric]).index) == order


def test_equal_scores_keep_their_order():
    assert list(best_first(pd.Series({"x": 1.0, "y": 2.0, "z": 1.0}), higher_is_better=False).index) == ["x", "z", "y"]


def test_each_row_has_the_image_and_the_maps_in_the_order_of_the_metric():
    maps = {name: np.full((8, 12), value) for name, value in zip(SCORES, (1.0, 2.0, 3.0, -4.0), strict=True)}
    figure = draw_sorting(np.zeros((3, 8, 12)), maps, SCORES, UP, "title")
    rows = figure.axes[:2]
    for axes, metric in zip(rows, SCORES.index, strict=True):
        drawn = [float(np.asarray(image.get_array()).flat[0]) for image in axes.images[1:]]
        assert drawn == [maps[name][0, 0] for name in best_first(SCORES.loc[metric], UP[metric]).index]
        texts = [text.get_text() for text in axes.texts]
        assert any(text.startswith(metric) for text in texts)
    assert "rank 1" in [text.get_text() for text in rows[0].texts]
    assert any("undefined" in text.get_text() for text in rows[0].texts)


def test_the_first_image_with_most_scores_is_shown():
    index = pd.MultiIndex.from_product([["a"], ["one", "two", "three"]], names=["method", "image"])
    scores = {"x": pd.Series([np.nan, 1.0, 1.0], index), "y": pd.Series([1.0, 2.0, 1.0], index)}
    assert index_of_most_scored(scores, ["one", "two", "three"]) == 1


def test_the_sorting_figure_is_not_part_of_target_all():
    graph = Graph(make_plan(default_config()))
    (job,) = [job for job in graph.jobs() if job.stage == "sorting"]
    assert not set(job.outputs) & set(graph.targets())
    assert "results/figures/sorting/digits/vgg11.png" in job.outputs
    for network in job.spec.networks:
        assert "soundness" not in network.metrics
        assert {"sic", "aic", "rise_insertion", "mas_difference"} <= set(network.metrics)

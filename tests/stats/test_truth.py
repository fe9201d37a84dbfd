"""Planted truths: a metric that follows the truth is distinguished from one that does not."""

import numpy as np
import pandas as pd
import pytest
from scipy.stats import spearmanr

from heatproof.report.tables.reliability import draw_truth
from heatproof.stats.truth import ALL, COLUMNS, USE_MODEL, spearman_of_images, truth_table

METHODS = ["best", "good", "fair", "poor", "bad", "edges", "random"]
REFERENCES = ["edges", "random"]
IMAGES = 40


def tidy(values, metric, higher=True, dataset="parts"):
    frame = pd.DataFrame(values, columns=METHODS, index=[f"image {row}" for row in range(len(values))])
    long = frame.rename_axis("image").reset_index().melt("image", var_name="method", value_name="score")
    return long.assign(dataset=dataset, model="net", weights="pretrained", metric=metric, higher_is_better=higher)


def truth(seed=0, noise=0.5):
    quality = -np.arange(len(METHODS), dtype=float)
    return quality + noise * np.random.default_rng(seed).standard_normal((IMAGES, len(METHODS)))


@pytest.fixture(scope="module")
def table():
    true, rng = truth(), np.random.default_rng(1)
    shuffled = true[:, [3, 0, 4, 1, 2, 5, 6]]
    scores = [
        tidy(true, "parts"),
        tidy(3 * true + 1, "same"),
        tidy(-true, "lower", higher=False),
        tidy(true + 8 * rng.standard_normal(true.shape), "noisy"),
        tidy(shuffled, "floor only"),
        tidy(np.ones_like(true), "constant"),
    ]
    comparisons = truth_table(pd.concat(scores), ["parts"], REFERENCES, seed=3, repetitions=300)
    return comparisons.set_index(["metric", "methods"])


def test_the_metric_that_is_the_truth_agrees_in_every_draw(table):
    for name in ("same", "lower"):
        row = table.loc[(name, ALL)]
        # These intervals have no width, because the same images are drawn for both.
        assert row[["spearman", "ci_low", "ci_high", "per_image", "per_image_low"]].tolist() == pytest.approx([1.0] * 5)
        assert (row["chosen"], row["best"], row["lost"]) == ("best", "best", 0.0)


def test_means_follow_the_truth_where_single_images_do_not(table):
    row = table.loc[("noisy", ALL)]
    assert row["per_image"] < 0.5 < row["spearman"]
    assert row["ci_low"] < row["spearman"] <= row["ci_high"]


def test_a_metric_that_only_separates_references_fails_without_them(table):
    with_them, without = (table.loc[("floor only", which)] for which in (ALL, USE_MODEL))
    assert with_them["spearman"] > 0.5 > 0 > without["spearman"]
    assert (with_them["n_methods"], without["n_methods"]) == (7, 5)
    assert with_them["chosen"] == "good"
    true = truth().mean(0)
    assert with_them["lost"] == pytest.approx(true[0] - true[1])


def test_methods_that_tie_are_all_chosen():
    true = truth()
    scores = pd.concat([tidy(true, "parts"), tidy(np.round(true.mean(0) / 4) * np.ones_like(true), "coarse")])
    row = truth_table(scores, ["parts"], REFERENCES, repetitions=50).set_index("methods").loc[ALL]
    tied = np.flatnonzero(np.round(true.mean(0) / 4) == 0)
    assert len(tied) > 1
    assert set(row["chosen"].split(", ")) == {METHODS[index] for index in tied}
    assert row["lost"] == pytest.approx(true.mean(0)[0] - true.mean(0)[tied].mean())


def test_a_constant_metric_is_undefined_and_counted(table):
    row = table.loc[("constant", ALL)]
    assert np.isnan(row["spearman"])
    assert np.isnan(row["per_image"])
    assert row["n_undefined"] == IMAGES
    assert row["chosen"] == ""
    assert np.isnan(row["lost"])


def test_a_method_that_is_mostly_undefined_is_left_out():
    true = truth()
    ours = true.copy()
    ours[: IMAGES * 3 // 4, 0] = np.nan
    ours[:3, 1] = np.nan
    scores = pd.concat([tidy(true, "parts"), tidy(ours, "gaps")])
    row = truth_table(scores, ["parts"], REFERENCES, repetitions=50).set_index("methods").loc[ALL]
    assert (row["n_methods"], row["best"]) == (6, "good")
    assert row["spearman"] == pytest.approx(1)


def test_too_few_methods_are_no_correlation():
    tables = tidy(truth(), "parts"), tidy(truth(5), "other")
    scores = pd.concat(part[part["method"].isin(METHODS[:4])] for part in tables)
    assert truth_table(scores, ["parts"], REFERENCES, repetitions=50)["spearman"].isna().all()


def test_networks_are_separate_and_without_a_truth_the_table_is_empty():
    scores = pd.concat([tidy(truth(), "parts"), tidy(truth(1), "ids"), tidy(truth(2), "ids", dataset="digits")])
    assert set(truth_table(scores, ["parts"], repetitions=20)["dataset"]) == {"parts"}
    empty = truth_table(scores, [], repetitions=20)
    assert empty.empty
    assert tuple(empty.columns) == COLUMNS
    assert "no true importance" in draw_truth(empty).texts[0].get_text()


def test_correlations_of_images_equal_those_of_scipy():
    rng = np.random.default_rng(0)
    ours, true = rng.integers(0, 4, (2, 30, 7)).astype(float)
    ours[0, :3], ours[1, 2] = np.nan, np.nan
    correlations = spearman_of_images(ours, true)
    assert np.isnan(correlations[0])
    for row in range(1, 30):
        is_known = ~np.isnan(ours[row])
        assert correlations[row] == pytest.approx(spearmanr(ours[row][is_known], true[row][is_known]).statistic)


def test_the_figure_has_every_metric_and_interval(table):
    figure = draw_truth(table.reset_index()[list(COLUMNS)])
    left = figure.axes[0]
    assert {text.get_text() for text in left.get_yticklabels()} == {"same", "lower", "noisy", "floor only", "constant"}
    assert len(left.collections) == 2

"""Scores of the labels of one image are one case: they are averaged before resampling."""

import numpy as np
import pandas as pd
import pytest

from heatproof.errors import HeatproofError
from heatproof.metrics.bootstrap import summarise
from heatproof.report.tables.ranking import rank_table
from heatproof.report.tables.scores import score_table
from heatproof.stats.per_image import iterate_test_cases, one_score_per_image

CASE = {"dataset": "skies", "model": "net", "weights": "given", "metric": "sds"}


def rows_of(labels=3, num_images=20, seed=0):
    draws = np.random.default_rng(seed)
    return pd.DataFrame(
        [
            {**CASE, "method": method, "image": f"p{number}", "class": f"kind {label}", "score": score, "valid": True}
            for method in ("a", "b", "c")
            for number in range(num_images)
            # The labels of one image have similar scores.
            for label, score in enumerate(draws.normal() + 0.01 * draws.normal(size=labels))
        ]
    )


def test_the_mean_is_over_labels_that_have_a_score():
    rows = rows_of(2, 2)
    rows.loc[(rows["method"] == "a") & (rows["image"] == "p0"), "score"] = [1.0, np.nan]
    rows.loc[(rows["method"] == "b") & (rows["image"] == "p0"), ["score", "valid"]] = [np.nan, False]
    means = one_score_per_image(rows).set_index(["method", "image"])
    assert means.loc[("a", "p0"), "score"] == 1.0
    assert means.loc[("a", "p0"), "valid"]
    assert np.isnan(means.loc[("b", "p0"), "score"])
    assert not means.loc[("b", "p0"), "valid"]
    assert set(means["class"]) == {""}
    assert len(means) == 6


def test_a_table_with_one_class_per_image_is_returned_unchanged():
    rows = rows_of(1)
    assert one_score_per_image(rows) is rows
    assert one_score_per_image(rows.drop(columns="class")) is not None


def test_two_scores_of_one_label_are_not_averaged():
    rows = pd.concat([rows_of(2), rows_of(2).head(1)], ignore_index=True)
    assert one_score_per_image(rows) is rows
    with pytest.raises(HeatproofError, match="more than one score for image"):
        list(iterate_test_cases(rows.assign(higher_is_better=True)))


@pytest.mark.parametrize("labels", [1, 5, 40])
def test_intervals_do_not_shrink_with_the_number_of_labels(labels):
    table = score_table(one_score_per_image(rows_of(labels)), pd.DataFrame(), 0, directions={"sds": True}).set_index(
        "method"
    )
    with_one_label = score_table(
        one_score_per_image(rows_of(1)), pd.DataFrame(), 0, directions={"sds": True}
    ).set_index("method")
    assert table["n_images"].tolist() == [20] * 3
    wide, narrow = ((summary["ci_high"] - summary["ci_low"]).mean() for summary in (with_one_label, table))
    assert narrow == pytest.approx(wide, rel=0.5)


@pytest.mark.parametrize("column", ["class", "label", "target"])
def test_custom_tables_are_averaged_by_the_same_rule(column):
    rows = rows_of().rename(columns={"class": column}).assign(higher_is_better=True)
    ((_, matrix),) = iterate_test_cases(rows)
    assert matrix.shape == (20, 3)
    expected = rows.groupby(["image", "method"])["score"].mean().unstack()
    np.testing.assert_allclose(matrix.loc[expected.index], expected)
    assert "20 images" in rank_table(rows, seed=0, repetitions=20).note


def test_summaries_count_images():
    wide = one_score_per_image(rows_of()).pivot(index="method", columns="image", values="score")
    assert summarise(wide.to_numpy(), 0)["n_images"].tolist() == [20] * 3

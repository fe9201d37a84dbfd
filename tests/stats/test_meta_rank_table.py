import logging

import numpy as np
import pandas as pd
import pytest

from heatproof.errors import HeatproofError
from heatproof.stats.meta_rank import meta_rank
from heatproof.stats.table import meta_rank_table

METHODS = ("gradient", "integrated", "random")


@pytest.fixture
def scores():
    rng = np.random.default_rng(0)
    rows = []
    for model in ("resnet", "vgg", "vit"):
        for metric, upwards in (("idsds", True), ("deletion", False)):
            for quality, method in enumerate(METHODS):
                score = quality + 0.3 * rng.normal()
                rows.append(("digits", model, "finetuned", metric, method, score if upwards else -score, upwards))
    columns = ["dataset", "model", "weights", "metric", "method", "score", "higher_is_better"]
    return pd.DataFrame(rows, columns=columns)


def test_the_table_has_columns_order_and_values(scores):
    table = meta_rank_table(scores, repetitions=50)
    columns = ["method", "kappa", "ci_low", "ci_high", "rank", "n_cases", "n_networks", "bradley_terry", "in_best_set"]
    assert list(table) == [*columns, "note"]
    assert table["method"].tolist() == ["random", "integrated", "gradient"]
    assert table["rank"].tolist() == [1, 2, 3]
    assert table["n_cases"].tolist() == [6, 6, 6]
    expected = meta_rank(np.tile([0.0, 1.0, 2.0], (3, 1)), repetitions=5)
    np.testing.assert_allclose(table["kappa"], expected.kappa[::-1], atol=1e-12)


def test_order_of_rows_does_not_matter(scores):
    shuffled = scores.sample(frac=1, random_state=1)
    pd.testing.assert_frame_equal(meta_rank_table(shuffled, seed=3), meta_rank_table(scores, seed=3))


def test_weights_and_metrics_are_separate_test_cases(scores):
    pretrained = scores.assign(weights="pretrained")
    assert meta_rank_table(pd.concat([scores, pretrained]))["n_cases"].tolist() == [12, 12, 12]


def test_gaps_count_as_missing_however_they_are_written(scores):
    random_on_vit = (scores["method"] == "random") & (scores["model"] == "vit")
    as_nan = scores.assign(score=scores["score"].mask(random_on_vit))
    table = meta_rank_table(as_nan, repetitions=50)
    pd.testing.assert_frame_equal(table, meta_rank_table(scores[~random_on_vit], repetitions=50))
    assert table.set_index("method")["n_cases"].to_dict() == {"gradient": 6, "integrated": 6, "random": 4}


def test_method_without_any_score_comes_last(scores):
    never = scores[scores["method"] == "random"].assign(method="attention", score=np.nan)
    table = meta_rank_table(pd.concat([never, scores]), repetitions=50)
    assert table["method"].iloc[-1] == "attention"
    assert table["n_cases"].iloc[-1] == 0
    assert table.iloc[-1][["kappa", "ci_low", "ci_high", "rank", "bradley_terry"]].isna().all()
    assert table["rank"].tolist()[:3] == [1, 2, 3]


def test_split_resamples_are_reported(scores, caplog):
    chain = [("resnet", ("gradient", "integrated")), ("vgg", ("integrated", "random")), ("vit", ("random", "edges"))]
    rows = [
        {"dataset": "d", "model": model, "weights": "w", "metric": "idsds", "method": method, "score": rank}
        for model, methods in chain
        for rank, method in enumerate(methods)
    ]
    with caplog.at_level(logging.WARNING):
        meta_rank_table(pd.DataFrame(rows).assign(higher_is_better=True), repetitions=100)
    assert "of 100 resamples" in caplog.text


def test_invalid_tables_are_refused(scores):
    with pytest.raises(HeatproofError, match="no column 'weights'"):
        meta_rank_table(scores.drop(columns="weights"))
    with pytest.raises(HeatproofError, match=r"'gradient' in the test case digits, resnet, finetuned, idsds has more"):
        meta_rank_table(pd.concat([scores, scores.head(1)]))
    with pytest.raises(HeatproofError, match=r"digits, vit, finetuned, deletion and others disagree"):
        meta_rank_table(scores.assign(higher_is_better=[*scores["higher_is_better"][:-1], True]))
    with pytest.raises(HeatproofError, match="true or false in every row"):
        meta_rank_table(scores.assign(higher_is_better="False"))
    with pytest.raises(HeatproofError, match="No method has a score"):
        meta_rank_table(scores.head(0))

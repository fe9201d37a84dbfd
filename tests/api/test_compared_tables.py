"""`heatproof.compare` of tables with columns of any type: a ranking, or one sentence."""

import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import heatproof
from heatproof.errors import HeatproofError
from heatproof.report.tables.score_import import read_scores
from heatproof.store.table_formats import UserTable


def table(metric="sds"):
    draws = np.random.default_rng(0)
    return pd.DataFrame(
        [
            {"model": model, "metric": metric, "method": method, "image": image, "score": draws.normal(mean)}
            for model in ("a", "b", "c")
            for method, mean in (("x", 0.0), ("y", 1.0), ("z", 2.0))
            for image in range(4)
        ]
    )


# The same table in other types; each has the ranking of the plain table.
FORMS = {
    "text": lambda plain: plain.assign(score=plain["score"].map(repr)),
    "objects": lambda plain: plain.astype(object),
    "nullable": lambda plain: plain.convert_dtypes(),
    "pyarrow": lambda plain: plain.convert_dtypes(dtype_backend="pyarrow"),
    "categories": lambda plain: plain.astype(dict.fromkeys(("model", "metric", "method"), "category")),
    "another index": lambda plain: plain.set_index(pd.Index([0] * len(plain))),
    "a named index": lambda plain: plain.set_index(["method", "image"]),
    "directions as text": lambda plain: plain.assign(higher_is_better="True"),
    "directions as numbers": lambda plain: plain.assign(higher_is_better=1.0),
    "missing directions": lambda plain: plain.assign(higher_is_better=pd.NA),
}


@pytest.fixture(scope="module")
def expected():
    return heatproof.compare(table()).table


@pytest.mark.parametrize("form", FORMS)
def test_the_ranking_does_not_depend_on_the_types_of_columns(form, expected):
    pd.testing.assert_frame_equal(heatproof.compare(FORMS[form](table())).table, expected)


def test_methods_may_be_numbers(expected):
    plain = table()
    numbered = heatproof.compare(plain.assign(method=plain["method"].map({"x": 1, "y": 2, "z": 3}))).table
    assert numbered["method"].tolist() == expected["method"].map({"x": "1", "y": "2", "z": "3"}).tolist()
    np.testing.assert_array_equal(numbered["kappa"], expected["kappa"])


@pytest.mark.parametrize("missing", [None, np.nan, pd.NA, "", "n/a"])
def test_a_score_may_be_missing(missing):
    plain = table()
    changed = plain.assign(score=plain["score"].astype(object).where(plain.index != 3, missing))
    scores = heatproof.compare(changed).scores["score"]
    assert scores.dtype == np.float64
    pd.testing.assert_series_equal(scores, plain["score"].where(plain.index != 3))


REFUSED = {
    "text": (lambda plain: plain.assign(score="good"), "the score good, which is not a finite number"),
    "infinity": (lambda plain: plain.assign(score=np.inf), "the score inf, which is not a finite number"),
    "complex": (lambda plain: plain.assign(score=plain["score"] + 1j), "which is not a finite number"),
    "lists": (lambda plain: plain.assign(score=[[1]] * len(plain)), r"the score \[1\], which is not a finite number"),
    "no method": (lambda plain: plain.assign(method=plain["method"].replace("z", np.nan)), "Row 8 of the table has"),
    "no image": (lambda plain: plain.assign(image=plain["image"].where(plain.index > 2)), "Row 0 of the table has no"),
    "two columns": (lambda plain: pd.concat([plain, plain[["score"]]], axis=1), "two columns 'score'"),
    "directions": (lambda plain: plain.assign(higher_is_better="up"), "'up' under 'higher_is_better'"),
    "an image twice": (lambda plain: pd.concat([plain, plain]), "has two scores of image '0' in one test case"),
    "nothing": (lambda plain: plain.iloc[:0], "nothing to rank"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_table_that_cannot_be_ranked_is_refused_in_one_sentence(case):
    change, sentence = REFUSED[case]
    with pytest.raises(HeatproofError, match=sentence):
        heatproof.compare(change(table()))


@pytest.mark.parametrize("metric", ["rise_deletion", "deletion_morf", "sds", "infidelity", "own"])
def test_a_direction_that_is_not_given_is_that_of_the_metric_as_in_rank(metric):
    scores = table(metric)
    content = scores.drop(columns="image").groupby(["model", "metric", "method"], as_index=False).mean()
    from_file = read_scores([UserTable(Path("scores.csv"), content.to_csv(index=False).encode())])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        compared = heatproof.compare(scores).scores
    assert set(compared["higher_is_better"]) == set(from_file["higher_is_better"])
    assert [warning.filename for warning in caught] == ([__file__] if metric == "own" else [])
    assert all("taken as better for own" in str(warning.message) for warning in caught)

"""Rankings without one test case, and rankings within families."""

import numpy as np
import pandas as pd
import pytest

from heatproof.stats.meta_rank import meta_rank
from heatproof.stats.stability import family_leaderboards, leave_one_out, stability

NAN = float("nan")


@pytest.mark.parametrize("gaps", [0.0, 0.3])
def test_leaving_a_case_out_equals_ranking_the_others(gaps):
    rng = np.random.default_rng(1)
    scores = np.arange(7.0) + 2 * rng.normal(size=(8, 7))
    scores[rng.random(scores.shape) < gaps] = NAN
    kappa, rank = leave_one_out(scores)
    for case in range(len(scores)):
        expected = meta_rank(np.delete(scores, case, axis=0), repetitions=2)
        np.testing.assert_allclose(kappa[case], expected.kappa, atol=1e-9)
        np.testing.assert_array_equal(rank[case], expected.rank)


def test_the_case_that_moves_most_is_named():
    scores = np.array([[1.0, 2, 3, 4], [1, 2, 3, 4], [4, 3, 2, 1], [1, 2, 3, 4], [1.5, 1, 3, 4], [1.5, 1, 3, 4]])
    by_method, by_case = stability(scores, list("abcd"), [f"case {number}" for number in range(6)])
    rows = by_method.set_index("method")
    assert by_method["method"].tolist() == ["d", "c", "a", "b"] or by_method["method"].tolist() == ["d", "c", "b", "a"]
    assert rows.loc["d", ["rank", "best_rank", "worst_rank", "largest_change"]].tolist() == [1, 1, 1, 0]
    assert rows.loc["d", "without_case"] == ""
    expected = leave_one_out(scores)[1]
    full = meta_rank(scores, repetitions=2).rank
    np.testing.assert_array_equal(
        rows.loc[list("abcd"), "largest_change"].to_numpy(dtype=float), np.abs(expected - full).max(axis=0)
    )
    np.testing.assert_array_equal(by_case["largest_change"].to_numpy(dtype=float), np.abs(expected - full).max(axis=1))
    assert by_case["spearman"].between(-1, 1).all()
    assert by_case["spearman"].min() < 1


def test_method_of_a_single_case_is_unknown_without_it():
    scores = np.array([[1, 2, 3, 4.0], [2, 1, 3, NAN], [1, 2, 3, NAN]])
    by_method, by_case = stability(scores, list("abcd"), ["x", "y", "z"])
    kappa, rank = leave_one_out(scores)
    assert np.isnan(kappa[0, 3])
    assert np.isnan(rank[0, 3])
    assert by_method.set_index("method").loc["d", "worst_rank"] == 1
    assert by_case["spearman"].notna().all()


def test_one_case_has_no_stability():
    by_method, by_case = stability(np.array([[1.0, 2, 3]]), list("abc"), ["x"])
    assert by_method["largest_change"].isna().all()
    assert by_method["rank"].tolist() == [1, 2, 3]
    assert by_case["spearman"].isna().all()


def test_families_have_separate_leaderboards():
    ranked = pd.DataFrame(
        {"method": list("abcdef"), "kappa": [3.0, 2, 2, 1, 0, NAN], "rank": [1, 2, 2, 4, 5, None], "n_cases": 3}
    ).astype({"rank": "Int64"})
    boards = family_leaderboards(ranked, {"a": "cam", "b": "path", "c": "path", "e": "cam", "f": "cam"})
    assert boards["method"].tolist() == ["a", "e", "b", "c"]
    assert boards["place"].tolist() == [1, 2, 1, 1]
    assert boards["n_methods"].tolist() == [2, 2, 2, 2]
    assert boards.loc[1, "rank"] == 5
    assert family_leaderboards(ranked, {}).empty

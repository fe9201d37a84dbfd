"""The independent case of a ranking: a network, or each test case as in the paper of Meta-Rank."""

import numpy as np
import pandas as pd
import pytest

from heatproof.errors import HeatproofError
from heatproof.stats.table import CASE, counted_rows, independent_cases, meta_rank_table, select_rows

METHODS = ("deep_lift", "gradient", "integrated", "lrp", "random")
# Metrics of each network: one metric, two metrics of one property, and three metrics of two properties.
METRICS = {
    "alone": ("deletion_morf",),
    "two": ("deletion_morf", "deletion_lerf"),
    "three": ("deletion_morf", "deletion_lerf", "idsds"),
}


def table(networks=METRICS, seed=0, ties=0, gaps=0):
    """Return scores of each network under its metrics, lower is better for MoRF; the first are tied or missing."""
    rng = np.random.default_rng(seed)
    rows = []
    for model, metrics in networks.items():
        for metric in metrics:
            values = rng.normal(size=len(METHODS))
            values[:ties] = values[0]
            values[len(values) - gaps :] = np.nan
            rows += [
                ("d", model, "w", metric, *method_and_score) for method_and_score in zip(METHODS, values, strict=True)
            ]
    table_of_scores = pd.DataFrame(rows, columns=[*CASE, "method", "score"])
    return table_of_scores.assign(higher_is_better=table_of_scores["metric"] != "deletion_morf")


def kappa_of_the_paper(scores):
    """Return κ by equations 4 to 6 with ½ added to both counts, for a table without missing scores."""
    odds = pd.DataFrame(0.0, METHODS, METHODS)
    cases = [case for _, case in scores.groupby(CASE)]
    for p in METHODS:
        for q in (name for name in METHODS if name != p):
            won = 0.0
            for case in cases:
                up = 1 if case["higher_is_better"].all() else -1
                score, other_score = (up * case.loc[case["method"] == name, "score"].item() for name in (p, q))
                won += 1.0 if score > other_score else 0.5 if score == other_score else 0.0
            share = (won + 0.5) / (len(cases) + 1)
            odds.loc[p, q] = np.log(share / (1 - share))
    return odds.mean(axis=1)


def kappa(scores, **options):
    return meta_rank_table(scores, repetitions=20, **options).set_index("method")["kappa"].reindex(METHODS)


@pytest.mark.parametrize("ties", [0, 2, 5])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_independent_cases_have_the_kappa_of_the_paper(seed, ties):
    scores = table(seed=seed, ties=ties)
    np.testing.assert_allclose(kappa(scores, independent="case"), kappa_of_the_paper(scores), atol=1e-12)


def test_networks_of_several_cases_count_once_by_default():
    scores = table()
    assert np.abs(kappa(scores) - kappa(scores, independent="case")).max() > 0.05
    pd.testing.assert_series_equal(kappa(scores), kappa(scores, independent="network"))


@pytest.mark.parametrize("gaps", [0, 2])
def test_with_one_case_per_network_both_rules_agree(gaps):
    scores = table({f"net{number}": ("deletion_morf",) for number in range(7)}, gaps=gaps)
    each = {independent: meta_rank_table(scores, independent=independent) for independent in ("network", "case")}
    pd.testing.assert_frame_equal(each["network"], each["case"])


@pytest.mark.parametrize("gaps", [0, 2])
def test_an_independent_case_counts_like_a_separate_network(gaps):
    """κ, its interval and the set of the best are those of a table in which each test case is a separate network."""
    scores = table(gaps=gaps)
    names = [f"net{number}" for number in scores.groupby(CASE).ngroup()]
    each = meta_rank_table(scores, independent="case"), meta_rank_table(scores.assign(model=names))
    assert each[0]["n_networks"].tolist() == [3 if count else 0 for count in each[0]["n_cases"]]
    assert each[1]["n_networks"].tolist() == each[1]["n_cases"].tolist()
    cases, networks = (ranking.drop(columns="n_networks") for ranking in each)
    networks["note"] = networks["note"].str.replace("network", "test case")
    pd.testing.assert_frame_equal(cases, networks)


def test_the_note_names_too_few_cases():
    note = meta_rank_table(table({"two": METRICS["two"]}), independent="case")["note"]
    assert note.str.contains("2 test cases: an interval needs 3").all()
    assert not note.str.contains("network").any()


def test_seeds_of_a_kind_are_separate_cases():
    scores = table().assign(kind="same")
    groups, weights = independent_cases(scores[CASE].drop_duplicates(), scores, "case")
    assert len(set(groups)) == len(weights) == 6
    assert weights.tolist() == [1.0] * 6
    np.testing.assert_allclose(kappa(scores, independent="case"), kappa_of_the_paper(scores), atol=1e-12)


def test_metrics_and_methods_can_be_selected():
    scores = table()
    part = select_rows(scores, ["deletion_morf", "deletion_lerf"], ["lrp", "gradient"])
    assert set(part["metric"]) == {"deletion_morf", "deletion_lerf"}
    assert set(part["method"]) == {"lrp", "gradient"}
    pd.testing.assert_frame_equal(select_rows(scores), scores)


def test_a_selected_metric_counts_although_another_represents_it():
    scores = pd.concat([table(), table().assign(metric="same", higher_is_better=False)]).drop_duplicates(
        [*CASE, "method"]
    )
    marked = scores.assign(counted_as=np.where(scores["metric"] == "same", "deletion_morf", ""))
    assert "same" not in set(counted_rows(marked)["metric"])
    assert "same" in set(counted_rows(select_rows(marked, ["same", "deletion_morf"]))["metric"])
    # Selecting methods does not change which metrics count.
    assert "same" not in set(counted_rows(select_rows(marked, methods=["lrp", "gradient"]))["metric"])


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"metrics": ["deletion_mrof"]}, "no metric 'deletion_mrof' in the table: did you mean 'deletion_morf'"),
        ({"methods": ["lrp", "gradent"]}, "no method 'gradent' in the table: did you mean 'gradient'"),
    ],
)
def test_unknown_metrics_and_methods_are_refused(choice, message):
    with pytest.raises(HeatproofError, match=message):
        select_rows(table(), **choice)

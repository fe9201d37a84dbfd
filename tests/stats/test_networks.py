"""A network is the independent case, whatever its number of test cases; and no metric counts twice."""

import numpy as np
import pandas as pd
import pytest

from heatproof.errors import HeatproofError
from heatproof.metrics.registry import METRICS
from heatproof.stats.consistency import agreement, agreement_by_factor
from heatproof.stats.images import meta_rank_over_images
from heatproof.stats.meta_rank import MINIMUM_NETWORKS, meta_rank
from heatproof.stats.stability import stability
from heatproof.stats.table import counted_rows, duplicate_metrics, meta_rank_table, properties_table, property_of

METHODS = [f"method {number}" for number in range(6)]
ESTIMATES = ["kappa", "ci_low", "ci_high", "rank", "n_networks", "bradley_terry", "in_best_set"]


def tidy(networks=4, metrics=("idsds",), seed=0, **columns):
    rng = np.random.default_rng(seed)
    rows = []
    for model in range(networks):
        for metric in metrics:
            scores = 0.4 * np.arange(6) + rng.normal(size=6)
            where = {"dataset": "d", "model": f"net {model}", "weights": "w", "metric": metric, **columns}
            rows += [{**where, "method": method, "score": score} for method, score in zip(METHODS, scores, strict=True)]
    return pd.DataFrame(rows).assign(higher_is_better=True)


def by_method(table):
    return table.set_index("method").sort_index()


@pytest.mark.parametrize("column", ["metric", "weights"])
def test_the_same_cases_twice_give_the_same_ranking(column):
    """κ of the best method once was 1.7 for three cases, and 2.27 when the same cases occurred twice."""
    once = tidy()
    twice = pd.concat([once, once.assign(**{column: "another"})])
    first, second = (by_method(meta_rank_table(table))[ESTIMATES] for table in (once, twice))
    pd.testing.assert_frame_equal(first, second, atol=1e-5)


def test_repeated_cases_in_groups_change_nothing():
    scores = np.random.default_rng(0).normal(size=(5, 4)) + np.arange(4)
    scores[1, 2] = np.nan
    single = meta_rank(scores)
    doubled = meta_rank(np.repeat(scores, 3, axis=0), groups=np.repeat(list("abcde"), 3).tolist())
    for name in ("kappa", "ci_low", "ci_high", "bradley_terry", "n_networks"):
        np.testing.assert_allclose(getattr(doubled, name), getattr(single, name), atol=1e-5)
    np.testing.assert_array_equal(doubled.n_cases, 3 * single.n_cases)
    _, by_case = stability(np.repeat(scores, 3, axis=0), list("abcd"), [*map(str, range(15))], np.repeat(range(5), 3))
    assert (by_case["spearman"] == 1).all(), "two of three equal cases say what the three do"


def test_cases_of_a_network_share_its_weight():
    """A network with three cases does not outvote two networks with one each."""
    scores = np.array([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    result = meta_rank(scores, groups=list("aaabc"), repetitions=10)
    np.testing.assert_array_equal(result.rank, [2, 1])
    np.testing.assert_allclose(result.kappa, [np.log(1.5 / 2.5) / 2, np.log(2.5 / 1.5) / 2])


def test_all_cases_of_a_network_are_drawn_together():
    """Cases that agree within networks leave κ as uncertain as the networks do."""
    scores = np.random.default_rng(1).normal(size=(6, 5))
    alike = np.repeat(scores, 4, axis=0) + 1e-3 * np.random.default_rng(2).normal(size=(24, 5))
    separate, together = (meta_rank(alike, groups=groups) for groups in (None, np.repeat(range(6), 4).tolist()))
    assert ((together.ci_high - together.ci_low) > 1.5 * (separate.ci_high - separate.ci_low)).all()
    np.testing.assert_allclose(together.ci_low, meta_rank(scores).ci_low, atol=1e-5)


def test_seeds_of_one_kind_are_one_independent_case():
    table = tidy(networks=6)
    table["kind"] = table["model"].map(lambda name: "kind" if name in ("net 3", "net 4", "net 5") else name)
    ranking = meta_rank_table(table)
    assert set(ranking["n_networks"]) == {4}
    assert set(ranking["n_cases"]) == {6}
    assert set(meta_rank_table(table.drop(columns="kind"))["n_networks"]) == {6}


@pytest.mark.parametrize("networks", [1, 2, 3])
def test_few_networks_have_a_reason_and_no_interval(networks):
    """Two test cases of one network once had the interval [1.431, 1.431]."""
    ranking = meta_rank_table(tidy(networks, metrics=("idsds", "sds")))
    if networks < MINIMUM_NETWORKS:
        assert ranking[["ci_low", "ci_high"]].isna().all(axis=None)
        assert ranking["note"].str.contains(f"{networks} network.*: an interval needs {MINIMUM_NETWORKS}").all()
    else:
        assert (ranking["ci_low"] < ranking["ci_high"]).all()
        assert ranking["note"].str.contains(f"{networks} networks: 6 are needed").all()
    assert ranking["in_best_set"].isna().all(), "so few networks may agree by chance"


def test_an_interval_has_width_where_all_networks_agree():
    result = meta_rank(np.tile(np.arange(4.0), (5, 1)))
    assert (result.ci_high - result.ci_low > 0.1).all()


def test_images_are_drawn_within_networks():
    rng = np.random.default_rng(0)
    scores = [0.5 * np.arange(4)[:, None] + rng.normal(size=(4, 20)) for _ in range(4)]
    single = meta_rank_over_images(scores, images_of=["d"] * 4, repetitions=50)
    doubled = meta_rank_over_images(
        [values for values in scores for _ in range(2)], images_of=["d"] * 8, groups=list("aabbccdd"), repetitions=50
    )
    for name in ("kappa", "ci_low", "ci_high"):
        np.testing.assert_allclose(getattr(doubled, name), getattr(single, name), atol=1e-9)


def test_correlations_are_drawn_by_network():
    scores = np.random.default_rng(3).normal(size=(12, 8))
    cases = pd.DataFrame({"model": np.repeat(list("abcdef"), 2), "metric": ["x", "y"] * 6})
    correlations = agreement(scores)
    separate, together = (
        agreement_by_factor(correlations, cases, groups=groups) for groups in (None, cases["model"].tolist())
    )
    assert together.loc[0, "spearman"] == separate.loc[0, "spearman"]
    assert together.loc[0, "spearman_low"] != separate.loc[0, "spearman_low"]
    two = agreement_by_factor(agreement(scores[:4]), cases.head(4), groups=cases["model"].head(4).tolist())
    assert two["spearman_low"].isna().all()


def test_groups_must_match_the_cases():
    with pytest.raises(HeatproofError, match="3 test cases and 2 groups"):
        meta_rank(np.zeros((3, 2)), groups=["a", "b"])


# ---- properties, and duplicate metrics ------------------------------------------------------------------------------


def test_properties_count_equally_in_a_network():
    scores = tidy(metrics=("soundness", "road_morf"), seed=4)
    more = pd.concat([scores, scores[scores["metric"] == "road_morf"].assign(metric="deletion_morf")])
    np.testing.assert_allclose(by_method(meta_rank_table(more))["kappa"], by_method(meta_rank_table(scores))["kappa"])
    properties = properties_table(more)
    assert dict(zip(properties["property"], properties["metrics"], strict=True)) == {
        "soundness": "soundness",
        "incremental deletion": "deletion_morf, road_morf",
    }
    alone = by_method(meta_rank_table(scores[scores["metric"] == "soundness"]))
    np.testing.assert_allclose(by_method(properties[properties["property"] == "soundness"])["kappa"], alone["kappa"])


def test_metrics_have_the_property_that_they_measure():
    assert property_of("idsds_g8_blur_probability") == property_of("sds") == "single deletion"
    assert property_of("mine") == "mine"
    assert property_of("own name", {"own name": "road_lerf"}) == "incremental deletion"
    for entry in METRICS.values():
        assert all(part in METRICS for part in entry.derived_from), entry.name


def test_a_difference_metric_is_represented_by_its_parts():
    table = tidy(metrics=("rise_insertion", "rise_deletion", "rise_difference"))
    assert duplicate_metrics(table) == {"rise_difference": "rise_insertion and rise_deletion"}
    assert duplicate_metrics(table[table["metric"] != "rise_deletion"]) == {}
    assert set(counted_rows(table)["metric"]) == {"rise_insertion", "rise_deletion"}


def test_a_declared_duplicate_counts_once_where_it_ranks_alike():
    once = tidy(metrics=("deletion_lerf",))
    same = pd.concat([once.assign(metric="ids"), once])
    assert duplicate_metrics(same) == {"ids": "deletion_lerf"}
    other = pd.concat([tidy(metrics=("ids",), seed=1), once])
    assert duplicate_metrics(other) == {}, "with other options it is another score"


def test_metrics_with_equal_rankings_count_once():
    once = tidy(metrics=("mine",))
    again = once.assign(metric="yours", score=-np.exp(once["score"]), higher_is_better=False)
    both = pd.concat([once, again])
    assert duplicate_metrics(both) == {"yours": "mine"}
    both.iloc[-1, both.columns.get_loc("score")] = 0.0
    assert duplicate_metrics(both) == {}
    few_methods = both[both["method"].isin(METHODS[:4])]
    assert duplicate_metrics(few_methods) == {}, "four methods rank alike by chance"


def test_the_columns_gap_and_counted_as_decide():
    table = tidy(metrics=("a", "b")).assign(counted_as="", gap="")
    table.loc[table["metric"] == "b", "counted_as"] = "a"
    table.loc[table["method"] == METHODS[0], "gap"] = "defined on 1 of 64 images, a rank needs 32"
    counted = counted_rows(table)
    assert set(counted["metric"]) == {"a"}
    assert counted.loc[counted["method"] == METHODS[0], "score"].isna().all()

"""The tables of planted scores."""

import numpy as np
import pandas as pd
import pytest
from jobs import write_listed

from heatproof.errors import HeatproofError
from heatproof.report.tables.scores import (
    CASE,
    SCORE_COLUMNS,
    gaps_of,
    higher_is_better,
    mean_scores,
    require_ranks,
    score_table,
    with_kinds,
)
from heatproof.store.zarr_store import ArraySpec, Layout, ensure_metadata
from heatproof.workflow.stages._accuracy import accuracy_of_networks
from heatproof.workflow.stages.tables import StoredDrops

NO_GAPS = pd.DataFrame()
CASES = [
    ("digits", "vgg", "finetuned", "idsds"),
    ("digits", "vgg", "pretrained", "sds"),
    ("cars", "vgg", "finetuned", "idsds"),
]


def scores_of(planted, case=CASES[0]):
    """Return tidy scores from the scores of images of each method."""
    rows = [
        {**dict(zip(CASE, case, strict=True)), "method": method, "image": f"i{image}", "score": score}
        for method, values in planted.items()
        for image, score in enumerate(values)
    ]
    return pd.DataFrame(rows).assign(valid=lambda table: table.score.notna())


def gap(method, reason, case=CASES[0]):
    return {**dict(zip(CASE, case, strict=True)), "method": method, "gap": reason}


def test_methods_have_mean_scores_and_ranks():
    planted = {"worst": [-1, -0.5], "best": [0.9, 0.7], "middle": [0.1, 0.3]}
    table = score_table(scores_of(planted), NO_GAPS, seed=0)
    assert table.columns.tolist() == [*SCORE_COLUMNS, "note"]
    assert table["in_best_set"].isna().all()
    assert set(table["note"]) == {"2 images are too few to distinguish 3 methods: 11 are needed"}
    assert table.method.tolist() == ["best", "middle", "worst"]
    assert table["rank"].tolist() == [1, 2, 3]
    np.testing.assert_allclose(table.score, [0.8, 0.2, -0.75])
    assert table.n_images.tolist() == [2, 2, 2]
    assert table.n_undefined.tolist() == [0, 0, 0]
    assert (table.ci_low <= table.score).all()
    assert (table.score <= table.ci_high).all()


def test_equal_scores_share_the_best_rank():
    table = score_table(scores_of({"a": [0.5, 0.5], "b": [0.4, 0.6], "c": [0.1, 0.1]}), NO_GAPS, seed=0)
    assert dict(zip(table.method, table["rank"], strict=True)) == {"a": 1, "b": 1, "c": 3}


def test_undefined_scores_are_counted_and_left_out():
    planted = {"a": [0.4, np.nan, 0.8, np.nan], "b": [0.1, 0.1, 0.1, 0.1], "c": [np.nan] * 4}
    table = score_table(scores_of(planted), NO_GAPS, seed=0).set_index("method")
    assert table.loc["a", "score"] == pytest.approx(0.6)
    assert table.n_images.to_dict() == {"a": 2, "b": 4, "c": 0}
    assert table.n_undefined.to_dict() == {"a": 2, "b": 0, "c": 4}
    assert np.isnan(table.loc["c", "score"])
    assert table["rank"].dropna().to_dict() == {"a": 1, "b": 2}
    assert "gap" not in table


def test_methods_that_are_not_applicable_have_a_reason_and_come_last():
    scores = pd.concat(
        [scores_of({"a": [0.1, 0.2]}, CASES[0]), scores_of({"a": [0.3, 0.2], "b": [0.5, 0.6]}, CASES[1])]
    )
    table = score_table(scores, pd.DataFrame([gap("b", "no layer", CASES[0])]), seed=0)
    assert table.columns.tolist() == [*SCORE_COLUMNS, "note", "gap"]
    assert list(zip(table.weights, table.method, strict=True)) == [
        ("finetuned", "a"),
        ("finetuned", "b"),
        ("pretrained", "b"),
        ("pretrained", "a"),
    ]
    row = table.iloc[1]
    assert row["gap"] == "no layer"
    assert row[["score", "ci_low", "ci_high", "rank"]].isna().all()
    assert (row["n_images"], row["n_undefined"]) == (0, 0)
    assert table["gap"].isna().tolist() == [True, False, True, True]
    assert table["rank"].dropna().tolist() == [1, 1, 2]


def test_a_case_without_applicable_methods_has_rows_with_reasons():
    gaps = pd.DataFrame([gap("b", "no layer", CASES[2]), gap("a", "no layer", CASES[2])])
    with_others = score_table(scores_of({"a": [0.1, 0.2]}), gaps, seed=0)
    assert with_others.method.tolist() == ["a", "a", "b"]
    assert with_others.dataset.tolist() == ["digits", "cars", "cars"]
    alone = score_table(scores_of({"a": [0.1]}).iloc[:0], gaps, seed=0)
    assert alone.method.tolist() == ["a", "b"]
    assert alone.columns.tolist() == [*SCORE_COLUMNS, "gap"]
    assert alone[["score", "rank"]].isna().all(axis=None)


def test_cases_keep_the_order_of_the_config():
    planted = {"a": [0.1, 0.2], "b": [0.2, 0.3]}
    table = score_table(pd.concat([scores_of(planted, case) for case in CASES]), NO_GAPS, seed=0)
    cases = list(dict.fromkeys(zip(*(table[key] for key in CASE), strict=True)))
    assert cases == CASES


def test_each_case_is_ranked_separately():
    scores = pd.concat([scores_of({"a": [0.9], "b": [0.1]}, CASES[0]), scores_of({"a": [0.1], "b": [0.9]}, CASES[1])])
    table = score_table(scores, NO_GAPS, seed=0)
    assert table.method.tolist() == ["a", "b", "b", "a"]


def test_the_interval_depends_on_seed_level_and_images_but_not_on_other_methods():
    random = np.random.default_rng(0)
    planted = {name: random.normal(size=30) for name in ("a", "b", "c")}
    table = score_table(scores_of(planted), NO_GAPS, seed=0, repetitions=200).set_index("method")
    alone = score_table(scores_of({"b": planted["b"]}), NO_GAPS, seed=0, repetitions=200).set_index("method")
    np.testing.assert_allclose(
        table.loc["b", ["ci_low", "ci_high"]].astype(float), alone.loc["b", ["ci_low", "ci_high"]].astype(float)
    )
    other = score_table(scores_of(planted), NO_GAPS, seed=1, repetitions=200).set_index("method")
    assert other.loc["b", "ci_low"] != table.loc["b", "ci_low"]
    narrow = score_table(scores_of(planted), NO_GAPS, seed=0, repetitions=200, level=0.5).set_index("method")
    assert (narrow.ci_low > table.ci_low).all()
    assert (narrow.ci_high < table.ci_high).all()


def test_a_method_defined_on_few_images_has_a_score_and_no_rank():
    """A method that was defined on one image of 64 once counted as much as the others."""
    random = np.random.default_rng(0)
    planted = {name: random.normal(size=8) for name in ("a", "b", "lucky", "half")}
    planted["lucky"][1:] = np.nan
    planted["lucky"][0] = 9.0
    planted["half"][4:] = np.nan
    table = score_table(scores_of(planted), NO_GAPS, seed=0, least_coverage=0.5).set_index("method")
    assert table.loc["lucky", "score"] == 9.0
    assert pd.isna(table.loc["lucky", "rank"])
    assert not table.loc["lucky", "in_best_set"]
    assert table.loc["lucky", "gap"] == "defined on 1 of 8 images, a rank needs 4"
    assert sorted(table["rank"].dropna()) == [1, 2, 3]
    assert table["n_images"].to_dict() == {"a": 8, "b": 8, "half": 4, "lucky": 1}
    assert score_table(scores_of(planted), NO_GAPS, seed=0).set_index("method").loc["lucky", "rank"] == 1
    means = mean_scores(scores_of(planted), {"idsds": True}, 0.5).set_index("method")["score"]
    assert means.isna().to_dict() == {"a": False, "b": False, "half": False, "lucky": True}


def test_tables_name_the_kind_of_models():
    table = pd.DataFrame({"model": ["net_s0", "net_s1", "other"]})
    with_kind = with_kinds(table, {"net_s0": "net", "net_s1": "net"})
    assert with_kind["kind"].tolist() == ["net", "net", "other"]
    assert "kind" not in with_kinds(table, {})


def test_methods_that_do_not_differ_from_the_best_are_in_the_best_set():
    """Differences are paired, because hard images are hard for all methods."""
    random = np.random.default_rng(1)
    hard = 3 * random.normal(size=40)
    planted = {name: hard + shift + 0.2 * random.normal(size=40) for name, shift in (("a", 1.0), ("b", 1.0), ("c", 0))}
    table = score_table(scores_of(planted), NO_GAPS, seed=0).set_index("method")
    assert table["in_best_set"].to_dict() == {"a": True, "b": True, "c": False}
    assert table.loc["c", "ci_high"] > table.loc["a", "ci_low"], "intervals that overlap tell nothing of a difference"
    lower = score_table(scores_of(planted), NO_GAPS, seed=0, directions={"idsds": False}).set_index("method")
    assert lower["in_best_set"].to_dict() == {"a": False, "b": False, "c": True}


def test_pairs_are_compared_on_the_images_where_both_are_defined():
    """A method that is better on every image must not lose because it is also defined on hard images."""
    random = np.random.default_rng(2)
    hard = np.r_[np.full(20, -5.0), np.zeros(20)]
    better = hard + 1 + 0.1 * random.normal(size=40)
    other = np.where(hard < 0, np.nan, hard + 0.1 * random.normal(size=40))
    table = score_table(scores_of({"better": better, "other": other}), NO_GAPS, seed=0).set_index("method")
    assert table.loc["other", "score"] > table.loc["better", "score"]
    assert table["in_best_set"].to_dict() == {"better": True, "other": False}


@pytest.mark.parametrize("name", ["idsds", "sds", "idsds_g8_zeros", "sds_g4_blur"])
def test_the_direction_of_a_metric_is_found_by_its_name(name):
    assert higher_is_better(name)


def test_methods_with_a_reason_are_gaps():
    methods = pd.DataFrame([{**gap("a", ""), "images": 2}, {**gap("b", "no layer"), "images": 2}])
    assert gaps_of(methods).to_dict("records") == [gap("b", "no layer")]


# ---- accuracy --------------------------------------------------------------------------------------------------------


def drops_with(folder, target_rank, dtype="int16"):
    ranks = np.array(target_rank, dtype=dtype)
    images, variants = ranks.shape
    arrays = {"target_rank": ArraySpec(("variant",), (variants,), dtype, chunk_by_image=False)}
    store = folder / "g2_zeros.zarr"
    ensure_metadata(store, Layout([f"i{n}" for n in range(images)], np.arange(images) % 2, 2, arrays, {"key": "k"}))
    for shard in range(-(-images // 2)):
        write_listed(store, "target_rank", shard, 2 * shard, ranks[2 * shard : 2 * shard + 2])
    return str(folder / "g2_zeros")


def test_ranks_beyond_int16_are_read_exactly(tmp_path):
    drops = drops_with(tmp_path, [[39_999, 39_999, 0, 0, 0], [0, 0, 0, 0, 32_768]], "int32")
    where = {"dataset": "digits", "model": "vgg", "weights": "finetuned", "grid": 2, "baseline": "zeros"}
    (row,) = accuracy_of_networks([StoredDrops(**where, metric="idsds", drops=drops)], 2).to_dict("records")
    assert (row["top5_clean"], row["top5_worst_patch"]) == (1 / 2, 0.0)


@pytest.mark.parametrize(("metric", "in_domain"), [("idsds", True), ("sds_g2_zeros", False), ("idsds_g2_zeros", True)])
def test_accuracy_equals_values_computed_by_hand(tmp_path, metric, in_domain):
    target_rank = [
        [0, 0, 0, 0, 0],  # right, whichever patch is deleted
        [0, 0, 7, 0, 0],  # right intact; without patch 2 not even among the top five
        [1, 0, 0, 0, 0],  # wrong intact, and right whichever patch is deleted
        [4, 4, 5, 4, 4],  # among the top five intact, but not without patch 2
        [9, 9, 9, 9, 9],  # never right
    ]
    where = {"dataset": "digits", "model": "vgg", "weights": "finetuned", "grid": 2, "baseline": "zeros"}
    item = StoredDrops(**where, metric=metric, drops=drops_with(tmp_path, target_rank))
    (row,) = accuracy_of_networks([item], 5).to_dict("records")
    assert row == {
        **where,
        "in_domain": in_domain,
        "top1_clean": 2 / 5,
        "top1_worst_patch": 2 / 5,
        "top5_clean": 4 / 5,
        "top5_worst_patch": 2 / 5,
        "majority": 3 / 5,
        "n_images": 5,
    }
    (first,) = accuracy_of_networks([item], 2).to_dict("records")
    assert (first["top1_clean"], first["top1_worst_patch"], first["n_images"]) == (1.0, 0.5, 2)


def test_the_error_about_scores_without_a_rank_has_the_reason():
    """This happens for a callable target that no deletion changes on most images."""
    reason = "defined on 2 of 8 images, a rank needs 4"
    rows = pd.DataFrame({"method": ["a", "b"], "rank": [pd.NA, pd.NA], "gap": [reason, reason]})
    with pytest.raises(HeatproofError, match=f"the reason is: {reason}. A score is not defined"):
        require_ranks(rows)
    require_ranks(rows.assign(rank=[1, pd.NA]))
    require_ranks(rows.drop(columns="gap"))

"""The table of claims from cached stores."""

import pandas as pd
import pytest

from heatproof.claims.judge import ordered_claims
from heatproof.claims.published_numbers import FILES
from heatproof.report.tables.ranking import rank_table
from heatproof.report.tables.score_import import read_scores

CURVES = ("rise_insertion", "rise_deletion", "mas_insertion", "mas_deletion")
CONFIG = {
    "explainers": [{"mine": {"explainer": "toy_plugin:gradient"}}, "saliency", "random", "edges"],
    "metrics": [{name: {"steps": 6}} for name in CURVES],
}


@pytest.fixture
def scored(project):
    return project(**CONFIG).attribute().drop().respond().score_all().score()


def test_the_card_has_every_claim(scored):
    scored.make("claims")
    card = pd.read_csv(scored.folder / "results/claims.csv").set_index("claim")
    assert list(card.index) == [claim.name for claim in ordered_claims()]
    assert card.loc["bagnet_beats_post_hoc_methods", "verdict"] == "not testable here"
    assert card.loc["absolute_values_hurt_ig", "published_verdict"] == "reproduced"


def test_the_spec_has_grid_baseline_and_output_of_a_metric(project):
    spec = project(**CONFIG).job("claims").spec
    metric = spec.metrics["idsds"]
    assert (metric.grid, metric.baseline, metric.output) == (4, "mean", "logit")
    assert spec.explains == "logit"
    assert set(spec.published) == {f"{name}.csv" for name in FILES}


def test_the_inputs_of_the_claims_job_exist(scored):
    missing = [path for path in scored.job("claims").inputs if not (scored.folder / path).exists()]
    assert not missing


def test_ranking_the_table_of_scores_gives_the_ranking_of_the_run(scored):
    """The command once ranked 36 test cases, whereas the run ranked 2, and in another order."""
    for stage in ("all_scores", "reliability", "tables"):
        scored.make(stage)
    results = scored.folder / "results"
    for table, ranking in (("scores", "ranking/ranking"), ("idsds_table", "meta_rank")):
        ranked = rank_table(read_scores([results / f"{table}.csv"])).meta_rank
        spec = pd.read_csv(results / f"{ranking}.csv")
        columns = ["method", "kappa", "rank", "n_cases", "n_networks"]
        pd.testing.assert_frame_equal(ranked[columns], spec[columns], check_dtype=False, atol=1e-6)
    scores = pd.read_csv(results / "scores.csv", keep_default_na=False)
    assert set(scores["property"]) == {"single deletion", "incremental deletion", "incremental insertion"}
    assert set(scores["counted_as"]) == {""}
    properties = pd.read_csv(results / "ranking/properties.csv")
    alone = properties[properties["property"] == "single deletion"].reset_index(drop=True)
    pd.testing.assert_frame_equal(alone[columns], pd.read_csv(results / "meta_rank.csv")[columns])
    assert pd.read_csv(results / "meta_rank.csv")["note"].str.startswith("1 network: an interval needs 3; ").all()
    variance = pd.read_csv(results / "ranking/variance.csv")
    assert (variance.loc[variance["component"] == "seed", "note"] == "no model is trained with several seeds").all()


def test_reliability_tables_cover_all_methods_and_metrics(scored):
    scored.make("reliability")
    files = scored.job("reliability").spec.files
    assert all((scored.folder / file).stat().st_size for file in files.values())
    tables = {name: pd.read_csv(scored.folder / path) for name, path in files.items() if path.endswith(".csv")}
    methods = len(scored.plan.methods)
    assert sorted(tables["ranking"]["method"]) == sorted(scored.plan.methods)
    assert tables["ranking"]["n_cases"].max() == len(scored.plan.all_cases())
    cases = len(scored.plan.all_cases())
    assert len(tables["consistency"]) == cases * (cases - 1) / 2
    assert tables["consistency"]["spearman"].between(-1, 1).all()
    assert len(tables["significance"]) == methods * (methods - 1) / 2
    assert (tables["significance"]["p_holm"] >= tables["significance"]["p"]).all()
    assert set(tables["reliability"]["metric"]) == {"idsds", *CURVES}

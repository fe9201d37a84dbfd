"""The claims card from cached stores, and what an offset of the maps does to metrics along curves."""

import os

import numpy as np
import pandas as pd
import pytest
import torch
from toy_project import WHERE

import heatproof
from heatproof.claims.card import claims, ordered_claims
from heatproof.claims.offsets import offset_changes
from heatproof.data.prepare import open_dataset
from heatproof.models.network import load_network, normalise
from heatproof.plan.paths import RELIABILITY, RELIABILITY_PNG
from heatproof.plan.reports import OFFSET_KINDS
from heatproof.report.ranking import rank_table
from heatproof.report.reliability import reliability
from heatproof.report.score_import import read_scores
from heatproof.report.tables import all_scores, tables

CONFIG = {
    "explainers": [{"mine": {"explainer": "toy_plugin:gradient"}}, "saliency", "random", "edges"],
    "metrics": [{name: {"steps": 6}} for name in OFFSET_KINDS],
}


@pytest.fixture
def made(project):
    return project(**CONFIG).attribute().drop().respond().score_all().score()


def inside(folder, run):
    before = os.getcwd()
    os.chdir(folder)
    try:
        return run()
    finally:
        os.chdir(before)


def test_an_offset_changes_scores_as_if_the_maps_had_been_made_with_it(made):
    spec = made.job("claims").spec
    chosen = [method for method in spec["methods"] if method["name"] == "mine_abs"]
    found = inside(made.folder, lambda: offset_changes(spec["offsets"], chosen))
    told = made.plan.finetune_spec(*WHERE)
    data = open_dataset(told["dataset"])
    network = load_network(told["model"], 3, made.folder / told["output"], torch.device("cpu"))
    images = normalise(data.images("evaluation", 0, 10), told["model"]["facts"])
    labels = torch.from_numpy(data.splits["evaluation"].labels[:10])
    maps = np.abs(made.maps()[:, 0])
    # In double precision, so that the offset makes no new ties.
    moved = maps.astype(np.float64) + 0.1 * maps.max(axis=(1, 2), keepdims=True)
    ids = list(data.splits["evaluation"].ids[:10])
    for kind in OFFSET_KINDS:
        plain, after = (
            heatproof.evaluate(kind, network, images, labels, values, image_ids=ids, steps=6)["score"]
            for values in (maps, moved)
        )
        np.testing.assert_allclose(found[kind][0], after - plain, atol=1e-5, equal_nan=True)
    assert np.nanmax(np.abs(found["mas_insertion"])) > 1e-3
    np.testing.assert_array_equal(np.nan_to_num(found["rise_insertion"]), 0)


def test_the_card_has_every_claim(made):
    inside(made.folder, lambda: claims(made.job("claims").spec, made.runtime()))
    card = pd.read_csv(made.folder / "results/claims.csv").set_index("claim")
    assert list(card.index) == [claim.name for claim in ordered_claims()]
    assert card.loc["rise_ignores_an_offset", "verdict"] == "holds"
    assert card.loc["mas_notices_an_offset", "value"] > 0
    assert card.loc["bagnet_beats_post_hoc_methods", "verdict"] == "cannot be tested here"


def test_it_reads_what_its_rule_names(made):
    missing = [path for path in made.job("claims").inputs if not (made.folder / path).exists()]
    assert not missing


def test_rank_of_the_table_of_scores_is_the_ranking_of_the_run(made):
    """The command ranked 36 test cases where the run's own ranking had 2, and ordered them otherwise."""
    for job, stage in (("all_scores", all_scores), ("reliability", reliability), ("tables", tables)):
        inside(made.folder, lambda job=job, stage=stage: stage(made.job(job).spec, made.runtime()))
    results = made.folder / "results"
    for table, ranking in (("scores", "ranking/ranking"), ("idsds_table", "meta_rank")):
        found = rank_table(read_scores([results / f"{table}.csv"])).meta_rank
        told = pd.read_csv(results / f"{ranking}.csv")
        columns = ["method", "kappa", "rank", "n_cases", "n_networks"]
        pd.testing.assert_frame_equal(found[columns], told[columns], check_dtype=False, atol=1e-6)
    scores = pd.read_csv(results / "scores.csv", keep_default_na=False)
    assert set(scores["property"]) == {"single deletion", "incremental deletion", "incremental insertion"}
    assert set(scores["counted_as"]) == {""}
    properties = pd.read_csv(results / "ranking/properties.csv")
    alone = properties[properties["property"] == "single deletion"].reset_index(drop=True)
    pd.testing.assert_frame_equal(alone[columns], pd.read_csv(results / "meta_rank.csv")[columns])
    assert (pd.read_csv(results / "meta_rank.csv")["note"] == "1 network: an interval needs 3").all()
    variance = pd.read_csv(results / "ranking/variance.csv")
    assert (variance.loc[variance["component"] == "seed", "note"] == "no model is trained with several seeds").all()


def test_how_far_the_ranking_can_be_believed(made):
    spec = made.job("reliability").spec
    inside(made.folder, lambda: reliability(spec, made.runtime()))
    assert all((made.folder / file).stat().st_size for file in [*RELIABILITY.values(), *RELIABILITY_PNG.values()])
    found = {name: pd.read_csv(made.folder / path) for name, path in RELIABILITY.items()}
    methods = len(made.plan.methods)
    assert sorted(found["ranking"]["method"]) == sorted(made.plan.methods)
    assert found["ranking"]["n_cases"].max() == len(made.plan.all_cases())
    cases = len(made.plan.all_cases())
    assert len(found["consistency"]) == cases * (cases - 1) / 2
    assert found["consistency"]["spearman"].between(-1, 1).all()
    assert len(found["significance"]) == methods * (methods - 1) / 2
    assert (found["significance"]["p_holm"] >= found["significance"]["p"]).all()
    assert set(found["reliability"]["metric"]) == {"idsds", *OFFSET_KINDS}

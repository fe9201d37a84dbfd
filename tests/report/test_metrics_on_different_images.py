"""Tables, claims and rankings of metrics that are scored on different images."""

import pandas as pd
import pytest

from heatproof.claims.card import claims
from heatproof.report.reliability import reliability
from heatproof.report.tables import all_scores, tables


@pytest.mark.slow
def test_tables_claims_and_ranking_of_metrics_on_different_images(project, monkeypatch):
    made = project(
        evaluation={"images": {"drops": 12, "curves": 5}},
        explainers=[{"mine": {"explainer": "toy_plugin:gradient"}}, "saliency", "random", "edges"],
        metrics=[{name: {"steps": 4}} for name in ("rise_insertion", "mas_insertion")],
    )
    made.attribute().drop().respond().score_all().score()
    monkeypatch.chdir(made.folder)
    for job, stage in (
        ("all_scores", all_scores),
        ("tables", tables),
        ("claims", claims),
        ("reliability", reliability),
    ):
        stage(made.job(job).spec, made.runtime())
    counted = pd.read_csv("results/scores.csv").groupby("metric")["n_images"].max()
    assert counted["rise_insertion"] == 5 >= counted["mas_insertion"]
    assert counted["idsds"] == 12
    assert pd.read_csv("results/ranking/ranking.csv")["kappa"].notna().any()

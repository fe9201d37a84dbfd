"""Tables, claims and rankings of metrics that are scored on different images."""

import pandas as pd
import pytest


@pytest.mark.slow
def test_metrics_on_different_images_have_tables_claims_and_a_ranking(project, monkeypatch):
    run = project(
        evaluation={"images": {"drops": 12, "curves": 5}},
        explainers=[{"mine": {"explainer": "toy_plugin:gradient"}}, "saliency", "random", "edges"],
        metrics=[{name: {"steps": 4}} for name in ("rise_insertion", "mas_insertion")],
    )
    run.attribute().drop().respond().score_all().score()
    monkeypatch.chdir(run.folder)
    for stage in ("all_scores", "tables", "claims", "reliability"):
        run.make(stage)
    counted = pd.read_csv("results/scores.csv").groupby("metric")["n_images"].max()
    assert counted["rise_insertion"] == 5 >= counted["mas_insertion"]
    assert counted["idsds"] == 12
    assert pd.read_csv("results/ranking/ranking.csv")["kappa"].notna().any()

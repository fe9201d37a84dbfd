"""Each kind of response has a number of images of its own."""

import numpy as np
import pandas as pd
import pytest

from heatproof.claims.card import claims
from heatproof.claims.evidence import Case, Draws, Evidence, Method, Model
from heatproof.config import normalise
from heatproof.errors import HeatproofError
from heatproof.plan.graph import Graph
from heatproof.plan.validate import make_plan
from heatproof.report.reliability import reliability
from heatproof.report.tables import all_scores, tables

SMALL = {
    "evaluation": {"images": {"drops": 40, "curves": 10}},
    "explainers": ["saliency", "random"],
    "metrics": ["deletion_morf", "sensitivity_n"],
    "shard_size": 16,
}


def test_jobs_are_made_for_the_images_that_something_reads():
    graph = Graph(make_plan(normalise(SMALL)))
    shards, images = {}, {}
    for job in graph.jobs():
        if "shard" in job.wildcards:
            shards.setdefault(job.stage, set()).add(job.wildcards["shard"])
        if job.stage == "score":
            images[job.wildcards["metric"]] = job.spec["images"]
    assert shards["attribute"] == shards["drops"] == {0, 1, 2}
    assert shards["curves"] == shards["subsets"] == {0}
    assert images == {"idsds": 40, "sds": 40, "deletion_morf": 10, "sensitivity_n": 10}


def test_subsets_have_a_number_of_their_own():
    images = {"drops": 40, "curves": 10, "subsets": 20}
    plan = make_plan(normalise({**SMALL, "evaluation": {"images": images}}))
    assert [plan.images_for(kind) for kind in ("drops", "curves", "subsets", "parts")] == [40, 10, 20, 10]
    assert plan.images == 40
    one = make_plan(normalise({**SMALL, "evaluation": {"images": 12}}))
    assert [one.images_for(kind) for kind in ("drops", "curves", "subsets")] == [12, 12, 12]


@pytest.mark.parametrize(
    ("images", "told"),
    [
        (1, "'evaluation.images' in the config must be at least 2"),
        ("x", "'evaluation.images' in the config must be a whole number"),
        ({"drops": 5}, "'evaluation.images.curves' in the config is missing"),
        ({"drop": 5, "curves": 6}, "no key 'drop' under 'evaluation.images' in the config: did you mean 'drops'"),
        ({"drops": 1, "curves": 6}, "'evaluation.images.drops' in the config must be at least 2"),
    ],
)
def test_what_is_no_number_of_images(images, told):
    with pytest.raises(HeatproofError, match=told):
        normalise({"evaluation": {"images": images}})


def test_a_draw_means_the_same_images_in_cases_with_fewer():
    rows = [
        {"metric": metric, "method": method, "image": f"i{image}", "score": float(image)}
        for metric, count in (("deletion_morf", 10), ("idsds", 30))
        for method in ("a", "b")
        for image in range(count)
    ]
    where = {"dataset": "d", "model": "m", "weights": "finetuned"}
    cases = [Case(*where.values(), metric, metric, {}, True) for metric in ("deletion_morf", "idsds")]
    methods = [Method(name, name, name, "raw", True) for name in "ab"]
    models = {"m": Model("m", "resnet", 20, 1.0, True, True)}
    evidence = Evidence(pd.DataFrame(rows).assign(**where), cases, methods, models, draws=Draws(0, 50))
    few, many = (evidence.values[place] for place in (0, 1))
    assert few.shape == many.shape
    np.testing.assert_array_equal(few[:, :10], many[:, :10])
    assert np.isnan(few[:, 10:]).all()
    assert evidence.means[0, :, 0] == pytest.approx([4.5, 14.5])


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

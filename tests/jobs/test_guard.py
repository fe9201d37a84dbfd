"""The guard of lower precision: changes of scores and orders, on images of the run."""

import numpy as np
import pandas as pd
import pytest

from heatproof.errors import HeatproofError
from heatproof.jobs.guard import compare

DIMS = {"dims": {"explainer": "toy_plugin:dims", "share": 0.999}}
MINE = {"mine": {"explainer": "toy_plugin:gradient"}}


def run_guard(toy):
    toy.make(toy.on_network("guard"))
    return pd.read_csv(toy.folder / "results/precision/toy/net/finetuned.csv").set_index(["metric", "method"])


def test_a_harmless_precision_passes_with_a_table_of_changes(project):
    toy = project(explainers=[MINE, "saliency", "random"], precision="bfloat16", metrics=["ids", "completeness"])
    table = run_guard(toy)
    assert set(table.index.get_level_values("metric")) == {"idsds", "ids", "completeness"}
    assert table["swapped_with"].isna().all()
    assert 0 < table["difference"].abs().max() < 0.2
    assert (table.loc["idsds"].loc[["random"], "images"] == 10).all()
    assert not list((toy.folder / "results").rglob("*.zarr")), "nothing of the sample stays"


def test_the_scores_in_float32_are_those_of_a_run(project):
    toy = project(explainers=[MINE, "saliency"], precision={"maps": "bfloat16"}, precision_guard={"images": 10})
    table = run_guard(toy).loc["idsds"]
    plain = project(explainers=[MINE, "saliency"]).attribute(reference=False).drop()
    plain.score()
    expected = plain.scores("idsds").groupby("method")["score"].mean()
    np.testing.assert_allclose(table["float32"], expected[table.index], atol=1e-7)


def test_a_method_that_rounding_destroys_ends_the_run(project):
    toy = project(explainers=[MINE, DIMS, "random", "saliency"], precision={"maps": "bfloat16"})
    with pytest.raises(HeatproofError, match=r"would turn the order of .*dims.* in idsds") as caught:
        run_guard(toy)
    assert "precision_guard: {refuse: false}" in str(caught.value)
    refused = pd.read_csv(toy.folder / "results/precision/toy/net/finetuned.refused.csv").set_index("method")
    assert refused.loc["dims", "float32"] > 0.4
    assert np.isnan(refused.loc["dims", "lower"]), "all of its drops are rounded away"


def test_refuse_false_writes_the_table_and_continues(project):
    toy = project(
        explainers=[MINE, DIMS, "random", "saliency"], precision={"maps": "bfloat16"}, precision_guard={"refuse": False}
    )
    assert run_guard(toy)["swapped_with"].notna().any()


def test_only_swaps_beyond_chance_are_counted():
    generator = np.random.default_rng(0)
    exact = pd.DataFrame({"a": generator.normal(0.5, 0.1, 30), "b": generator.normal(0.2, 0.1, 30)})
    exact["like a"] = exact["a"] + generator.normal(0, 0.1, 30)
    lower = exact.copy()
    lower["like a"] = exact["a"] - (exact["like a"] - exact["a"])
    assert compare(exact, lower)[1] == []
    lower["b"] = exact["a"] + 0.01
    table, swapped = compare(exact, lower)
    assert swapped == [("a", "b"), ("b", "like a")]
    assert table.set_index("method").loc["b", "swapped_with"] == "a like a"
    assert compare(exact, lower.assign(b=np.nan))[1] == [("a", "b"), ("b", "like a")]


def test_only_jobs_in_lower_precision_wait_for_the_guard(project):
    toy = project(precision={"maps": "bfloat16"})
    waits = "results/precision/toy/net/finetuned.json"
    assert waits in toy.on_network("attribute", shard=0).inputs
    assert waits not in toy.on_network("drops", grid=4, baseline="mean", shard=0).inputs
    assert "results/precision.csv" in toy.job("tables").inputs
    plain = project(precision="bfloat16", precision_guard={"images": 0})
    assert waits not in plain.on_network("attribute", shard=0).inputs

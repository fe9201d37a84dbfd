"""The quality of metrics on a model whose true attribution is known."""

import numpy as np
import pytest
import torch
from torch import nn

import heatproof
from heatproof.api._study import CachedNetwork
from heatproof.errors import HeatproofError
from heatproof.stats.reliability import reliability_table

SIDE = 8
FEW_STEPS = {"steps": 8}


class Additive(nn.Module):
    """Two classes: the logit of the first is a weighted sum over pixels plus a constant, that of the second is zero."""

    def __init__(self, weights, constant=0.0):
        super().__init__()
        self.register_buffer("weights", weights)
        self.constant = constant

    def forward(self, images):
        logit = (images.sum(1) * self.weights).sum((1, 2)) + self.constant
        return torch.stack([logit, torch.zeros_like(logit)], dim=1)


@pytest.fixture(scope="module")
def planted():
    generator = torch.Generator().manual_seed(3)
    images = torch.rand(8, 3, SIDE, SIDE, generator=generator) * 0.9 + 0.1
    weights = torch.rand(SIDE, SIDE, generator=generator) ** 3 * 0.3
    # Removing about half of the evidence changes the prediction.
    model = Additive(weights, -0.5 * float((images.sum(1) * weights).sum((1, 2)).mean())).eval()
    truth = (images.sum(1) * weights).numpy()
    noise = np.random.default_rng(0).random(truth.shape)
    maps = {"truth": truth, "half": truth / truth.max() + 0.5 * noise, "random": noise}
    return model, images, torch.zeros(8, dtype=torch.long), maps


def by_metric(table):
    return {metric: rows.reset_index(drop=True) for metric, rows in table.groupby("metric")}


def test_an_offset_changes_only_metrics_of_values(planted):
    metrics = {
        "rise_insertion": FEW_STEPS,
        "deletion_morf": FEW_STEPS,
        "ids": FEW_STEPS,
        "sds": {},
        "sic": {},
        "mas_insertion": FEW_STEPS,
    }
    options = {"output": "probability", "imputation": "baseline", "rescale": False}
    metrics |= {"mas_difference": FEW_STEPS, "completeness": options}
    tables = by_metric(heatproof.quality.offset_sensitivity(*planted, metrics, (0.05, 0.5)))
    assert list(tables["ids"]["offset"]) == [0.05, 0.5]
    for metric in ("rise_insertion", "deletion_morf", "ids", "sic"):
        assert (tables[metric]["change"] == 0).all()
        assert (tables[metric]["curve_change"] == 0).all()
        assert (tables[metric]["spearman"] == 1).all()
    # An offset adds the same to every sum over a patch.
    assert (tables["sds"]["change"] < 1e-12).all()
    assert tables["sds"]["curve_change"].isna().all()
    for metric in ("mas_insertion", "mas_difference", "completeness"):
        assert (tables[metric]["change"] > 0.001).all()
        assert (tables[metric]["curve_change"] > 0.001).all()
        assert (tables[metric]["share_of_spread"] > 0.001).all()
    assert (tables["mas_insertion"]["n_methods"] == 3).all()


def test_noise_changes_every_score_and_no_noise_none(planted):
    metrics = {"deletion_morf": FEW_STEPS, "mas_insertion": FEW_STEPS}
    tables = by_metric(heatproof.quality.noise_sensitivity(*planted, metrics, (0.0, 0.05, 2.0)))
    for rows in tables.values():
        assert (rows.loc[0, ["change", "worse", "curve_change"]] == 0).all()
        assert 0 < rows.loc[1, "change"] < rows.loc[2, "change"]
        assert rows.loc[2, "worse"] > 0


def test_the_share_of_the_spread_equals_one_computed_by_hand(planted):
    tables = heatproof.quality.noise_sensitivity(*planted, {"deletion_morf": FEW_STEPS}, [0.3]).iloc[0]
    scores = heatproof.quality.image_scores(*planted, {"deletion_morf": FEW_STEPS}).groupby("method")["score"].mean()
    assert tables["share_of_spread"] == pytest.approx(tables["change"] / (scores.max() - scores.min()))


def test_undefined_scores_are_counted(planted):
    model, images, labels, maps = planted
    flat = maps["truth"].copy()
    flat[:2] = 0
    tables = heatproof.quality.offset_sensitivity(model, images, labels, {"flat": flat}, ["mas_insertion"], [0.1])
    assert (tables["n_undefined"].item(), tables["n_scores"].item()) == (2, 8)
    assert np.isnan(tables["spearman"].item())


def test_a_baseline_that_reverses_the_ranking_has_consistency_minus_one():
    # The contribution of a pixel is its weight times its distance from the baseline.
    strong = torch.zeros(SIDE, SIDE, dtype=torch.bool)
    strong[:, : SIDE // 2] = True
    model = Additive(torch.where(strong, 3.0, 1.0)).eval()
    images = torch.where(strong, 1.0, 1.9).expand(4, 3, SIDE, SIDE).clone()
    images += 0.001 * torch.rand(images.shape, generator=torch.Generator().manual_seed(0))
    maps = {
        "strong first": strong.float().expand(4, SIDE, SIDE),
        "weak first": 1 - strong.float().expand(4, SIDE, SIDE),
    }
    labels = torch.zeros(4, dtype=torch.long)
    metrics = {"deletion_morf": {"output": "logit", "steps": 8}}
    baselines = {"zeros": {}, "mean": {"value": [2.0, 2.0, 2.0]}}
    row = heatproof.quality.baseline_invariance(model, images, labels, maps, metrics, baselines).iloc[0]
    assert (row["baseline"], row["other"], row["n_images"], row["n_undefined"]) == ("zeros", "mean", 4, 0)
    assert row["consistency"] == pytest.approx(-1)
    assert row["spearman"] == pytest.approx(-1)
    assert row["consistency_published"] == pytest.approx(0, abs=1e-12)
    alike = {"zeros": {}, "mean": {"value": [0.0, 0.0, 0.0]}}
    row = heatproof.quality.baseline_invariance(model, images, labels, maps, metrics, alike).iloc[0]
    assert row["consistency"] == pytest.approx(1)


def test_the_default_baseline_of_a_metric_is_one_of_those_compared(planted):
    metrics = {"rise_insertion": FEW_STEPS, "rise_deletion": FEW_STEPS, "sds": {}}
    table = heatproof.quality.baseline_invariance(*planted, metrics)
    tables = by_metric(table)
    # RISE inserts into its own blur, and deletes to zeros, which is one of the four baselines.
    assert set(tables["rise_insertion"]["baseline"]) == {"default", "zeros", "random", "blur"}
    assert "default" not in set(tables["rise_deletion"]["baseline"]) | set(tables["sds"]["baseline"])
    assert [len(rows) for rows in tables.values()] == [6, 10, 6]
    assert table["consistency"].between(-1, 1).all()


def test_modification_distances_follow_the_kind_of_metric(planted):
    metrics = {
        "deletion_morf": FEW_STEPS | {"output": "accuracy"},
        "completeness": {"imputation": "baseline"},
        "soundness": {"imputation": "baseline"},
        "mas_difference": FEW_STEPS,
        "sds": {},
    }
    table = heatproof.quality.modification_distances(*planted, metrics, ("constant", "partial"))
    least = table.pivot_table(index="metric", columns="scheme", values="minimal", dropna=False)
    # A constant does not change the order.
    assert least.loc["deletion_morf", "constant"] == 0
    for metric in ("completeness", "soundness", "mas_difference"):
        assert (least.loc[metric] > 0.005).all(), metric
    assert least.loc["sds"].isna().all()
    pairs = table[["original_introduce", "original_remove", "introduce_remove"]]
    np.testing.assert_array_equal(pairs.min(axis=1, skipna=False), table["minimal"])
    near = heatproof.quality.modification_distances(*planted, ["completeness"], ["partial"], kind="modified")
    far = heatproof.quality.modification_distances(*planted, ["completeness"], ["partial"])
    assert (near["minimal"] <= far["minimal"]).all()


def test_image_scores_can_be_passed_to_reliability(planted):
    scores = heatproof.quality.image_scores(*planted, {"deletion_morf": FEW_STEPS, "rise_insertion": FEW_STEPS})
    assert len(scores) == 2 * 3 * 8
    direct = heatproof.evaluate("deletion_morf", *planted[:3], planted[3]["half"], **FEW_STEPS)["score"]
    rows = scores[(scores["metric"] == "deletion_morf") & (scores["method"] == "half")]
    np.testing.assert_allclose(rows["score"], direct, rtol=1e-6)
    reliability = reliability_table(scores).set_index("metric")
    assert reliability.loc["deletion_morf", "alpha"] > 0.7


def test_an_image_passes_the_network_once():
    images = torch.rand(6, 3, SIDE, SIDE)
    inner = Additive(torch.rand(SIDE, SIDE)).eval()
    model = CachedNetwork(inner).eval()
    first = model(images)
    twice = torch.cat([images[:2], torch.rand(1, 3, SIDE, SIDE), images[:2]])
    torch.testing.assert_close(model(twice), inner(twice))
    torch.testing.assert_close(first, inner(images))
    assert (model.requested, model.passes) == (11, 7)
    full = CachedNetwork(inner, maximum=0)
    torch.testing.assert_close(full(images), full(images))
    assert full.passes == 12


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"metrics": ["rise"]}, "no metric named 'rise'"),
        ({"metrics": []}, "nothing to compare"),
        ({"maps": {}}, "nothing to compare"),
        ({"maps": {"one": np.ones((3, SIDE, SIDE))}}, "maps of 'one'"),
        ({"explain": None}, "option of a study"),
        ({"metrics": ["road_morf"], "function": "baseline_invariance"}, "has no baseline to vary"),
        ({"metrics": ["sic"], "function": "baseline_invariance"}, "has no baseline to vary"),
    ],
)
def test_invalid_arguments_are_refused(planted, change, words):
    model, images, labels, maps = planted
    change = {"maps": maps, "metrics": ["ids"]} | change
    function = getattr(heatproof.quality, change.pop("function", "offset_sensitivity"))
    with pytest.raises(HeatproofError, match=words):
        function(model, images, labels, **change)


def test_a_model_in_training_mode_is_refused(planted):
    model = Additive(planted[0].weights).train()
    with pytest.raises(HeatproofError, match="training mode"):
        heatproof.quality.offset_sensitivity(model, *planted[1:], ["ids"])

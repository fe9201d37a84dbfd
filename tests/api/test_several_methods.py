"""`heatproof.evaluate` on maps of several methods gives each method's own scores, and repeats no pass."""

import json

import numpy as np
import pytest
import torch

import heatproof

METHODS = ["saliency", "input_x_gradient", "random"]
ALL = ["idsds", "rise_deletion", "rise_insertion", "rise_difference", "road_morf", "road_lerf", "sensitivity_n"]


@pytest.fixture(scope="module")
def dataset(network, images, targets):
    return heatproof.explain(network, images, targets, [*METHODS, "attention_rollout"])


class Counted(torch.nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner, self.images = inner, 0
        self.eval()

    def forward(self, batch):
        self.images += len(batch)
        return self.inner(batch)


@pytest.mark.parametrize("metric", ["idsds", "rise_deletion", "mas_insertion"])
def test_scores_equal_those_of_each_method_alone(metric, network, images, targets, dataset):
    together = heatproof.evaluate(metric, network, images, targets, dataset)
    assert together["score"].dims == ("method", "image")
    for name in METHODS:
        maps = dataset["attribution"].sel({"method": name}, drop=True)
        single = heatproof.evaluate(metric, network, images, targets, maps)
        np.testing.assert_array_equal(together["score"].sel({"method": name}), single["score"])
    rollout = together.sel({"method": "attention_rollout"})
    assert np.isnan(rollout["score"]).all()
    assert not rollout["valid"].any()
    assert all("attention" in reason for reason in rollout["reason"].values)


def test_a_mapping_and_an_array_have_equal_scores(network, images, targets, dataset):
    array = dataset["attribution"].sel({"method": METHODS})
    mapping = {name: dataset["attribution"].sel({"method": name}).values for name in METHODS}
    first, second = (heatproof.evaluate("idsds", network, images, targets, maps) for maps in (array, mapping))
    np.testing.assert_array_equal(first["score"], second["score"])
    assert first["method"].values.tolist() == second["method"].values.tolist() == METHODS


def test_no_pass_is_repeated(network, images, targets, dataset):
    """Patch drops are computed once for all methods, and curves once for all metrics that read them."""
    maps = dataset["attribution"].sel({"method": METHODS})
    counted = Counted(network)
    scored = heatproof.evaluate(["idsds"], counted, images, targets, maps)["idsds"]
    assert counted.images == 17 * len(images) + scored.attrs["check_passes"]
    # Six of the first images. The predictions that are compared with the labels are those of the scored passes.
    assert scored.attrs["check_passes"] == 6
    counted.images = 0
    heatproof.evaluate(["rise_deletion", "rise_insertion", "rise_difference"], counted, images, targets, maps, steps=8)
    both = counted.images
    counted.images = 0
    heatproof.evaluate(["rise_difference"], counted, images, targets, maps, steps=8)
    assert both == counted.images


def test_all_metrics_at_once_make_the_passes_of_the_union_of_their_responses(network, images, targets, dataset):
    maps = dataset["attribution"].sel({"method": METHODS})
    counted = Counted(network)

    def passes(names):
        counted.images = 0
        scored = heatproof.evaluate(names, counted, images, targets, maps)
        first_scored = scored if isinstance(names, str) else next(iter(scored.values()))
        return counted.images - first_scored.attrs["check_passes"]

    # The difference reads the curves of the other two metrics. Every curve, and ROAD, starts with the intact images.
    intact = len(images)
    apart = sum(passes(name) for name in ALL if name != "rise_difference")
    curves = [name for name in ALL if name.startswith(("rise", "road"))]
    assert apart - passes(ALL) == (len(curves) - 2) * intact


def test_the_result_records_its_options(network, images, targets, dataset):
    fill = {"value": [0.1, 0.2, 0.3]}
    result = heatproof.evaluate(
        "idsds", network, images, targets, dataset, baseline="mean", baseline_options=fill, details=True
    )
    assert result.attrs["baseline"] == "mean"
    assert json.loads(result.attrs["baseline_options"]) == fill
    assert result.attrs["grid"] == 4
    assert result["drops"].sizes["patch"] == result["patch_sums"].sizes["patch"] == 16
    curve = heatproof.evaluate("rise_deletion", network, images, targets, dataset, steps=4)
    np.testing.assert_allclose(curve["share"], [0, 0.25, 0.5, 0.75, 1])
    assert curve.attrs["steps"] == 4


def test_the_result_records_settings_derived_from_options(network, images, targets, dataset):
    result = heatproof.evaluate("mas_difference", network, images, targets, dataset)
    settings = json.loads(result.attrs["responses"])
    assert settings["insertion"]["baseline"] == "blur"
    assert settings["deletion"]["baseline"] == "zeros"
    assert settings["insertion"]["steps"] == settings["deletion"]["steps"] == result.sizes["step"] - 1
    assert result.attrs["range"] == [-1, 1]
    # The area under a curve of logits is unbounded.
    assert "range" not in heatproof.evaluate("ids", network, images, targets, dataset, output="logit", steps=4).attrs


def test_details_contain_the_responses_of_the_metric(network, images, targets, dataset):
    array = dataset["attribution"].sel({"method": "saliency"}, drop=True)
    drops = heatproof.evaluate("idsds", network, images, targets, array, details=True, grid=2)
    side = array.sizes["y"] // 2
    np.testing.assert_allclose(drops["patch_sums"][:, 0], array[:, :side, :side].sum(("y", "x")), rtol=1e-4)
    assert drops["drops"].attrs["units"] == "logit"
    without_digests = array.drop_vars("image_digest")
    scores_of_sic = heatproof.evaluate("sic", network, images.sigmoid(), targets, without_digests, details=True)
    assert scores_of_sic["entropy"].dims == ("image", "picture")
    assert scores_of_sic["logit"].dims == ("image", "picture", "target")
    both = heatproof.evaluate("rise_difference", network, images, targets, array, details=True, steps=4)
    assert both["insertion_logit"].dims == both["deletion_logit"].dims == ("image", "step", "target")
    assert not np.allclose(both["insertion_logit"][:, 0], both["deletion_logit"][:, 0])


def test_an_undefined_score_has_a_reason(network, images, targets, dataset):
    maps = dataset["attribution"].sel({"method": "saliency"}, drop=True).values.copy()
    maps[3] = 1.0
    result = heatproof.evaluate("idsds", network, images, targets, maps)
    assert result["reason"].values[3] == "the map has one value everywhere"
    assert not result["valid"].values[3]
    assert (result["reason"].values[result["valid"].values] == "").all()


@pytest.mark.parametrize(
    ("maps", "sentence"),
    [
        (lambda maps: maps.drop_vars("attribution"), "give what"),
        (lambda maps: {}, "There are no maps"),
        (lambda maps: maps.sel({"method": ["attention_rollout"]}), "no method applies"),
        (lambda maps: {"a": np.zeros((2, 3))}, "must have shape"),
        (lambda maps: [[1.0], [2.0, 3.0]], "makes no array|must have shape|give numbers"),
        (lambda maps: None, "must have shape|give numbers"),
    ],
)
def test_invalid_maps_are_refused_in_one_sentence(maps, sentence, network, images, targets, dataset):
    with pytest.raises(heatproof.HeatproofError, match=sentence) as caught:
        heatproof.evaluate("idsds", network, images, targets, maps(dataset))
    assert "\n" not in str(caught.value)


def test_maps_of_a_run_are_read(network, images, targets, dataset):
    cube = dataset["attribution"].sel({"method": METHODS})
    run = cube.rename({"method": "map"}).transpose("image", "map", "y", "x").to_dataset(name="attribution")
    several = heatproof.evaluate("idsds", network, images, targets, run)
    np.testing.assert_array_equal(
        several["score"], heatproof.evaluate("idsds", network, images, targets, cube)["score"]
    )
    assert several["method"].values.tolist() == METHODS
    scored_dataset = heatproof.evaluate("idsds", network, images, targets, run.sel({"map": [METHODS[1]]}))
    assert scored_dataset["score"].dims == ("image",)
    np.testing.assert_array_equal(scored_dataset["score"], several["score"].sel({"method": METHODS[1]}))
    nameless = run["attribution"].drop_vars("map")
    assert heatproof.evaluate("idsds", network, images, targets, nameless)["method"].values.tolist() == ["0", "1", "2"]


def test_maps_of_bfloat16_are_read(network, images, targets, dataset):
    maps = torch.from_numpy(dataset["attribution"].values[0]).bfloat16()
    lower = heatproof.evaluate("idsds", network, images, targets, maps)
    expected = heatproof.evaluate("idsds", network, images, targets, maps.float())
    np.testing.assert_array_equal(lower["score"], expected["score"])

"""Metrics on models whose scores can be derived by hand, through `heatproof.evaluate`."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

import heatproof
from heatproof.errors import HeatproofError
from heatproof.metrics.registry import METRICS
from heatproof.metrics.responses.curves import Curves

SIDE = 8
CURVED = sorted(name for name, entry in METRICS.items() if entry.reads is Curves)


class Additive(nn.Module):
    """Two classes: the logit of the first is a weighted sum over pixels, that of the second is zero."""

    def __init__(self, weights):
        super().__init__()
        self.register_buffer("weights", weights)
        self.passes = 0

    def forward(self, images):
        self.passes += len(images)
        logit = (images.sum(1) * self.weights).sum((1, 2))
        return torch.stack([logit, torch.zeros_like(logit)], dim=1)


@pytest.fixture
def planted():
    generator = torch.Generator().manual_seed(3)
    images = torch.rand(6, 3, SIDE, SIDE, generator=generator) + 0.1
    model = Additive(torch.rand(SIDE, SIDE, generator=generator) * 0.04).eval()
    truth = images.sum(1) * model.weights
    return model, images, torch.zeros(6, dtype=torch.long), truth


def score(metric, model, images, labels, maps, **options):
    return heatproof.evaluate(metric, model, images, labels, maps, **options)["score"].values


@pytest.mark.parametrize("metric", ["deletion_morf", "deletion_lerf", "ids", "rise_deletion", "rise_insertion"])
def test_true_maps_score_best_and_negated_maps_worst(planted, metric):
    model, images, labels, truth = planted
    options = {"baseline": "zeros", "output": "logit", "step_size": 1}
    best, worst = (score(metric, model, images, labels, maps, **options) for maps in (truth, -truth))
    others = [score(metric, model, images, labels, torch.rand(truth.shape), **options) for _ in range(5)]
    if METRICS[metric].higher_is_better:
        best, worst, others = -best, -worst, [-other for other in others]
    assert all((best < other).all() and (other < worst).all() for other in others)


def test_the_deletion_curve_equals_one_computed_by_hand(planted):
    model, images, labels, truth = planted
    curve = heatproof.evaluate("deletion_morf", model, images, labels, truth, output="logit", steps=4)["deletion"]
    falling = truth.flatten(1).sort(descending=True).values
    expected = [falling[:, count:].sum(1) for count in (0, 16, 32, 48, 64)]
    np.testing.assert_allclose(curve, torch.stack(expected, dim=1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("cut", [{"fractions": [0.0, 0.1, 0.15, 0.5, 1.0]}, {"step_size": 20}, {"steps": 7}])
@pytest.mark.parametrize("metric", ["deletion_morf", "ids", "rise_insertion", "rise_difference", "mas_deletion"])
def test_areas_are_over_the_shares_of_changed_pixels(planted, metric, cut):
    options = {"rule": "trapezoid"} if "rule" in METRICS[metric].options else {}
    scored_dataset = heatproof.evaluate(metric, *planted, baseline="zeros", **cut, **options)
    number = SIDE**2
    if "fractions" in cut:
        changed = [int(number * share) for share in cut["fractions"]]
    elif "steps" in cut:
        changed = [step * number // cut["steps"] for step in range(cut["steps"] + 1)]
    else:
        changed = [0, 20, 40, 60, 64]
    names = {"deletion_morf": ["deletion"], "ids": ["ids"], "rise_insertion": ["insertion"]}
    names |= {"rise_difference": ["insertion", "deletion"], "mas_deletion": ["deletion_mas"]}
    areas = [np.trapezoid(scored_dataset[name], np.array(changed) / number, axis=1) for name in names[metric]]
    np.testing.assert_allclose(scored_dataset["score"], areas[0] - sum(areas[1:]), rtol=0, atol=1e-12)


def test_single_deletion_of_the_truth_is_one(planted):
    model, images, labels, truth = planted
    scores = heatproof.evaluate("idsds", model, images, labels, truth, grid=4)
    np.testing.assert_allclose(scores["score"], 1)
    np.testing.assert_allclose(score("idsds", model, images, labels, -truth, grid=4), -1)
    probability = heatproof.evaluate("idsds", model, images, labels, truth, grid=4, output="probability")
    np.testing.assert_allclose(probability["score"], 1)


def test_maps_proportional_to_the_response_have_no_alignment_penalty(planted):
    """For logits the density of the true map is the response, so MAS has no penalty and equals RISE."""
    model, images, labels, truth = planted
    options = {"output": "logit", "baseline": "zeros", "steps": 8}
    for mode in ("insertion", "deletion"):
        mas = heatproof.evaluate(f"mas_{mode}", model, images, labels, truth, **options)
        rise = heatproof.evaluate(f"rise_{mode}", model, images, labels, truth, monotone=True, **options)
        np.testing.assert_allclose(mas[f"{mode}_alignment_penalty"], 0, atol=1e-5)
        np.testing.assert_allclose(mas["score"], rise["score"], atol=1e-5)


@pytest.mark.parametrize("metric", CURVED)
def test_a_positive_scale_changes_nothing(planted, metric):
    model, images, labels, truth = planted
    np.testing.assert_allclose(
        score(metric, model, images, labels, truth * 4), score(metric, model, images, labels, truth), rtol=1e-6
    )


@pytest.mark.parametrize("metric", ["rise_insertion", "rise_deletion", "deletion_lerf", "ids"])
def test_an_offset_changes_no_score_by_rank(planted, metric):
    model, images, labels, _ = planted
    maps = torch.randint(0, 1000, (6, SIDE, SIDE)).float()
    same = score(metric, model, images, labels, maps), score(metric, model, images, labels, maps + 250)
    assert np.array_equal(*same)


def test_an_offset_moves_mas_and_completeness_of_maps_that_are_not_rescaled(planted):
    model, images, labels, truth = planted
    moved = truth + truth.amax((1, 2), keepdim=True)
    for metric in ("mas_insertion", "mas_deletion"):
        assert (score(metric, model, images, labels, truth) != score(metric, model, images, labels, moved)).all()
    removed = {}
    for name, maps in (("before", truth), ("after", moved)):
        options = {"output": "logit", "noise": 0.0, "imputation": "baseline", "rescale": False}
        removed[name] = heatproof.evaluate("completeness", model, images, labels, maps, **options)["completeness"]
    assert (removed["after"] >= removed["before"] - 1e-6).all()
    assert (removed["after"].mean("step") > removed["before"].mean("step")).all()


def test_ties_are_broken_by_image_id_and_seed_only(planted):
    model, images, labels, _ = planted
    maps, ids = torch.zeros(6, SIDE, SIDE), list("abcdef")
    options = {"steps": 8, "output": "logit"}
    scores_of_one = score("deletion_morf", model, images, labels, maps, image_ids=ids, **options)
    back = score("deletion_morf", model, images.flip(0), labels, maps, image_ids=ids[::-1], **options)
    assert np.array_equal(scores_of_one, back[::-1])
    assert not np.array_equal(
        scores_of_one, score("deletion_morf", model, images, labels, maps, image_ids=ids, seed=1, **options)
    )
    by_index = score("deletion_morf", model, images, labels, maps, ties="index", **options)
    assert not np.array_equal(scores_of_one, by_index)


def test_exactly_the_requested_share_of_a_sparse_map_is_deleted(planted):
    model, images, labels, _ = planted
    maps = torch.zeros(6, SIDE, SIDE)
    maps[:, 0, :4] = 1
    ones = torch.ones_like(images)
    model.weights.fill_(1.0)
    curve = heatproof.evaluate("deletion_morf", model, ones, labels, maps, fractions=[0.0, 0.1, 1.0], output="logit")
    assert curve["deletion"][0].values.tolist() == [192.0, 192.0 - 3 * 6, 0.0]


@pytest.mark.parametrize(("metric", "passes"), [("rise_difference", 65), ("mas_difference", 65), ("rise_deletion", 33)])
def test_no_image_is_passed_twice(planted, metric, passes):
    model, images, labels, truth = planted
    scored_dataset = heatproof.evaluate(metric, model, images, labels, truth)
    assert model.passes == passes * len(images) + scored_dataset.attrs["check_passes"]


@pytest.mark.parametrize("metric", CURVED)
@pytest.mark.parametrize("batch_size", [1, 7, "auto"])
def test_batch_sizes_change_no_score(planted, metric, batch_size):
    model, images, labels, truth = planted
    result = heatproof.evaluate(metric, model, images, labels, truth)
    cut = heatproof.evaluate(metric, model, images, labels, truth, batch_size=batch_size)
    np.testing.assert_allclose(cut["score"], result["score"], rtol=0, atol=1e-5)
    again = heatproof.evaluate(metric, model, images, labels, truth)
    assert np.array_equal(again["score"], result["score"], equal_nan=True)


@pytest.mark.parametrize("metric", CURVED)
def test_a_map_of_zeros_has_an_undefined_or_a_random_score(planted, metric):
    model, images, labels, truth = planted
    truth[2] = 0
    scores = heatproof.evaluate(metric, model, images, labels, truth)
    by_value = metric.startswith("mas") or metric in ("soundness", "completeness")
    assert scores["valid"].values.tolist() == [not (by_value and row == 2) for row in range(6)]
    assert np.isnan(scores["score"].values).tolist() == (~scores["valid"].values).tolist()
    assert scores.attrs["undefined"] == int(by_value)


@pytest.mark.parametrize("metric", CURVED)
def test_negative_maps_are_scored_or_undefined(planted, metric):
    model, images, labels, truth = planted
    scores = heatproof.evaluate(metric, model, images, labels, -truth)
    assert scores["valid"].all() or (metric in ("soundness", "completeness") and not scores["valid"].any())


def test_the_result_has_the_options_as_attributes(planted):
    model, images, labels, truth = planted
    scores = heatproof.evaluate("road_morf", model, images, labels, truth, noise=0.0, seed=4)
    assert scores["road"].dims == ("image", "step")
    assert scores.sizes == {"image": 6, "step": 9}
    attributes = {"metric": "road_morf", "higher_is_better": 0, "noise": 0.0, "seed": 4, "order": "morf"}
    assert attributes.items() <= scores.attrs.items()


def broken(case, images, labels, maps):
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * SIDE * SIDE, 2)).eval()
    options = {}
    if case == "NaN in a map":
        maps[3, 0, 0] = torch.nan
    elif case == "NaN in an image":
        images[3, 0, 0, 0] = torch.nan
    elif case == "map of another size":
        maps = maps[:, ::2]
    elif case == "map with channels":
        maps = maps[:, None]
    elif case == "map of text":
        maps = np.full(maps.shape, "a")
    elif case == "images of bytes":
        images = (images * 100).to(torch.uint8)
    elif case == "no images":
        images, labels, maps = images[:0], labels[:0], maps[:0]
    elif case == "label out of range":
        labels[4] = 2
    elif case == "negative label":
        labels[4] = -1
    elif case == "labels of another number":
        labels = labels[:3]
    elif case == "labels that are probabilities":
        labels = labels.float() / 2
    elif case == "tuple":
        flat = model
        model = lambda batch: (flat(batch), flat(batch))  # noqa: E731
    elif case == "training mode":
        model.train()
    elif case == "names twice":
        options["image_ids"] = ["a"] * 6
    elif case == "batches of nothing":
        options["batch_size"] = 0
    elif case == "option":
        options["step"] = 4
    elif case == "order":
        options["order"] = "most"
    elif case == "two cuts":
        options |= {"steps": 4, "step_size": 2}
    elif case == "more steps than pixels":
        options["steps"] = 65
    elif case == "output":
        options["output"] = "logits"
    elif case == "baseline":
        options["baseline"] = "zero"
    elif case == "no explain":
        options["update"] = True
    return model, images, labels, maps, options


@pytest.mark.parametrize(
    ("case", "sentence"),
    [
        ("NaN in a map", "map of image '3'"),
        ("NaN in an image", "Image '3'"),
        ("map of another size", "(6, 8, 8)"),
        ("map with channels", "sum over channels"),
        ("map of text", "give numbers"),
        ("images of bytes", "images.float().div(255)"),
        ("no images", "batch of images is empty"),
        ("label out of range", "image '4' is class 2"),
        ("negative label", "image '4' is class -1"),
        ("labels of another number", "each of the 6 images"),
        ("labels that are probabilities", "class number"),
        ("tuple", "a tuple"),
        ("training mode", "eval()"),
        ("names twice", "unique id"),
        ("batches of nothing", "not 0"),
        ("option", "'steps'"),
        ("order", "morf, lerf"),
        ("two cuts", "steps and step_size"),
        ("more steps than pixels", "64 pixels"),
        ("output", "logit, probability, accuracy"),
        ("baseline", "'zeros'"),
        ("no explain", "explain"),
    ],
)
def test_invalid_arguments_are_refused(case, sentence):
    images, labels, maps = torch.rand(6, 3, SIDE, SIDE), torch.tensor([0, 1] * 3), torch.rand(6, SIDE, SIDE)
    model, images, labels, maps, options = broken(case, images, labels, maps)
    with pytest.raises(HeatproofError) as raised:
        heatproof.evaluate("ids", model, images, labels, maps, **options)
    assert sentence in str(raised.value)
    assert "\n" not in str(raised.value)


def test_an_unknown_metric_is_refused(planted):
    with pytest.raises(HeatproofError, match="mas_insertion"):
        heatproof.evaluate("mas_insert", *planted)


def test_subset_metrics_of_a_linear_model_are_exact(planted):
    model, images, labels, truth = planted
    np.testing.assert_allclose(score("sensitivity_n", model, images, labels, truth, samples=8), 1, atol=1e-4)
    np.testing.assert_allclose(score("infidelity", model, images, labels, truth, samples=8), 0, atol=1e-6)
    np.testing.assert_allclose(score("sensitivity_n", model, images, labels, -truth, samples=8), -1, atol=1e-4)


def test_a_map_that_never_changes_is_not_sensitive(planted):
    model, images, labels, truth = planted

    def explain(changed, targets):
        return truth[:1].expand(len(changed), -1, -1)

    fixed = truth[:1].expand(6, -1, -1)
    assert (score("sensitivity_max", model, images, labels, fixed, explain=explain) == 0).all()
    with pytest.raises(HeatproofError, match="explain"):
        heatproof.evaluate("sensitivity_max", model, images, labels, fixed)


@pytest.mark.parametrize("options", [{}, {"random_mask": np.eye(16, dtype=bool)}, {"random_mask": torch.eye(16) > 0}])
def test_metrics_with_equal_options_share_their_passes(options):
    images = torch.rand(4, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    model = Additive(torch.linspace(-0.01, 0.01, 256).reshape(16, 16)).eval()
    statistics = {"mean": [0.1, 0.2, 0.3], "std": [1.0, 1.1, 1.2]}
    mean, std = (torch.tensor(values)[:, None, None] for values in statistics.values())
    normalised = (images - mean) / std
    labels, maps = torch.zeros(4, dtype=torch.long), normalised.sum(1)
    # Each metric has arrays and lists of its own.
    metrics = {name: copy.deepcopy(statistics | options) for name in ("sic", "aic")}
    scored_dataset = heatproof.evaluate(metrics, model, normalised, labels, maps)
    # Thirteen thresholds, the blurred and the original image, and the intact image for its predicted class.
    assert model.passes == 16 * 4 + scored_dataset["sic"].attrs["check_passes"]
    alone = heatproof.evaluate("aic", model, normalised, labels, maps, **metrics["aic"])
    assert scored_dataset["aic"].identical(alone)


def test_metrics_with_different_options_share_no_passes():
    images = torch.rand(4, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    model = Additive(torch.linspace(-0.01, 0.01, 256).reshape(16, 16)).eval()
    metrics = {name: {"mean": [mean] * 3, "std": [1.0] * 3} for name, mean in (("sic", 0.0), ("aic", 0.01))}
    scored_dataset = heatproof.evaluate(metrics, model, images, torch.zeros(4, dtype=torch.long), images.sum(1))
    assert model.passes == (15 + 15 + 1) * 4 + scored_dataset["sic"].attrs["check_passes"]


@pytest.mark.parametrize("metric", ["sic", "aic"])
def test_information_curves_are_invariant_to_offset_and_scale(metric):
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(4, 3, 16, 16, generator=generator)
    model = Additive(torch.rand(16, 16, generator=generator) * 0.01 - 0.002).eval()
    maps = torch.randint(0, 500, (4, 16, 16), generator=generator).float()
    labels = torch.zeros(4, dtype=torch.long)
    scores = [heatproof.evaluate(metric, model, images, labels, m) for m in (maps, maps + 125, maps * 4)]
    assert all(np.array_equal(scores[0]["score"], other["score"], equal_nan=True) for other in scores[1:])
    assert scores[0][metric].dims == ("image", "step")
    unexcluded = heatproof.evaluate(metric, model, images, labels, maps, exclude="none")
    assert unexcluded["valid"].sum() >= scores[0]["valid"].sum()


def test_every_metric_is_documented():
    # Plugins of other tests may have registered metrics in this process.
    ours = {name: entry for name, entry in METRICS.items() if entry.function.__module__.startswith("heatproof.")}
    assert len(ours) >= 21
    for name, entry in ours.items():
        better = ("higher is better" in entry.function.__doc__) or ("lower is better" in entry.function.__doc__)
        assert better or "igher is better" in str(entry.function.__doc__) or "Options" in entry.function.__doc__, name
        assert entry.source
        assert entry.range[0] < entry.range[1]


def test_several_metrics_equal_each_computed_alone(planted):
    model, images, labels, truth = planted
    names = ["rise_insertion", "rise_deletion", "rise_difference", "sensitivity_n"]
    scored_dataset = heatproof.evaluate(names, model, images, labels, truth, steps=8, samples=4)
    assert list(scored_dataset) == names
    for name in names:
        fewer_steps = {"samples": 4} if name == "sensitivity_n" else {"steps": 8}
        assert scored_dataset[name].identical(heatproof.evaluate(name, model, images, labels, truth, **fewer_steps))


def test_named_metrics_have_separate_options(planted):
    metrics = {"coarse": {"metric": "ids", "steps": 4}, "fine": {"metric": "ids", "steps": 16}, "deletion_lerf": {}}
    scored_dataset = heatproof.evaluate(metrics, *planted, output="logit")
    assert {name: scores.sizes["step"] for name, scores in scored_dataset.items()} == {
        "coarse": 5,
        "fine": 17,
        "deletion_lerf": 33,
    }
    assert all(scores.attrs["output"] == "logit" for scores in scored_dataset.values())


@pytest.mark.parametrize(
    ("metrics", "options", "sentence"),
    [
        ([], {}, "No metric"),
        (["ids", "sic"], {"samples": 4}, "None of the metrics has an option 'samples'"),
        (["ids", "sick"], {}, "no metric named 'sick'"),
        ({"mine": {}}, {}, "no metric named 'mine'"),
        ({"ids": {"step": 4}}, {}, "'ids' has no option 'step'"),
    ],
)
def test_invalid_selections_of_metrics_are_refused(planted, metrics, options, sentence):
    with pytest.raises(HeatproofError, match=sentence):
        heatproof.evaluate(metrics, *planted, **options)

"""Part deletion on a model with a known true map, and against values computed by hand."""

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from torch import nn

import heatproof
from heatproof.core.input_facts import InputFacts
from heatproof.core.normalise import normalise
from heatproof.datasets.parts import parts
from heatproof.errors import HeatproofError
from heatproof.metrics.parts import part_deletion

FACTS = InputFacts(mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
COUNT = 6


class Additive(nn.Module):
    """A network with two classes: the first logit is a weighted sum over pixels, the other is zero."""

    def __init__(self, weights):
        super().__init__()
        self.weights = weights
        self.seen = 0

    def forward(self, images):
        self.seen += len(images)
        logit = (images * self.weights).sum((1, 2, 3))
        return torch.stack([logit, torch.zeros_like(logit)], dim=1)


@pytest.fixture(scope="module")
def planted():
    """Return a model without interactions, and the map of each pixel's contribution beyond that of the background."""
    data = parts(seed=0)
    images = normalise(data.images("evaluation", 0, COUNT), FACTS)
    masks = data.part_masks("evaluation", 0, COUNT)
    removed = data.without_part("evaluation", 0, COUNT)
    removed = normalise(removed.reshape(-1, 3, 32, 32), FACTS).reshape(removed.shape)
    model = Additive(torch.randn(3, 32, 32, generator=torch.Generator().manual_seed(0))).eval()
    # Masks are disjoint, so that each pixel belongs to at most one removal.
    behind = torch.where(torch.from_numpy(masks)[:, :, None], images[:, None] - removed, 0).sum(1)
    truth = (model.weights * behind).sum(1)
    return model, images, torch.zeros(COUNT, dtype=torch.long), truth, masks, removed


def score(planted, maps, **options):
    model, images, labels, _, masks, removed = planted
    arguments = {"masks": masks, "removed": removed, **options}
    return heatproof.evaluate("part_deletion", model, images, labels, maps, **arguments)


@pytest.mark.parametrize("output", ["logit", "probability"])
def test_the_true_map_scores_one_and_its_negative_minus_one(planted, output):
    truth = planted[3]
    # Logits of hundreds would saturate all probabilities.
    planted = (Additive(planted[0].weights * 0.01).eval(), *planted[1:])
    best = score(planted, truth, output=output)
    np.testing.assert_allclose(best["score"], 1)
    np.testing.assert_allclose(score(planted, -truth, output=output)["score"], -1)
    assert best["valid"].all()
    assert best.attrs["higher_is_better"] == 1
    assert best.attrs["range"] == [-1.0, 1.0]


def test_the_score_equals_scipys_correlation_of_sums_and_drops(planted):
    model, images, _, _, masks, removed = planted
    maps = np.random.default_rng(0).normal(size=(COUNT, 32, 32))
    with torch.inference_mode():
        intact = model(images)[:, :1]
        drops = (intact - model(removed.flatten(0, 1))[:, 0].reshape(COUNT, 5)).double().numpy()
    sums = np.array([[maps[n][masks[n, k]].sum() for k in range(5)] for n in range(COUNT)])
    expected = [spearmanr(a, b).statistic for a, b in zip(sums, drops, strict=True)]
    np.testing.assert_allclose(score(planted, maps)["score"], expected, atol=1e-12)
    with_drops = score(planted, maps, removed=None, drops=drops)
    np.testing.assert_allclose(with_drops["score"], expected, atol=1e-12)
    with_tensors = score(planted, torch.from_numpy(maps), masks=torch.from_numpy(masks))
    np.testing.assert_array_equal(with_tensors["score"], score(planted, maps)["score"])


@pytest.mark.parametrize("batch_size", [1, 4, 64])
def test_passes_are_one_for_the_image_and_one_for_each_part(planted, batch_size):
    model = Additive(planted[0].weights).eval()
    scores = score((model, *planted[1:]), planted[3], batch_size=batch_size)
    assert model.seen == COUNT * 6 + scores.attrs["check_passes"]
    np.testing.assert_allclose(scores["score"], 1)


def test_neither_scale_nor_the_order_of_parts_changes_the_score(planted):
    model, images, labels, _, masks, removed = planted
    maps = torch.rand(COUNT, 32, 32, generator=torch.Generator().manual_seed(1))
    first = score(planted, maps)["score"]
    np.testing.assert_array_equal(score(planted, maps * 4)["score"], first)
    turned = (model, images, labels, None, masks[:, ::-1], removed.flip(1))
    np.testing.assert_allclose(score(turned, maps)["score"], first)


def test_masks_can_be_widened():
    maps = np.zeros((1, 9, 9))
    maps[0, 4, 3] = 5
    maps[0, 0, 0] = 1
    masks = np.zeros((1, 3, 9, 9), dtype=bool)
    masks[0, 0, 4, 5] = masks[0, 1, 0, 0] = masks[0, 2, 8, 8] = True
    drops = np.array([[3.0, 2.0, 1.0]])
    np.testing.assert_allclose(part_deletion(maps, drops, masks, ["a"])[0], spearmanr([0, 1, 0], drops[0]).statistic)
    for pixels, sums in ((1, [0, 1, 0]), (2, [5, 1, 0])):
        score = part_deletion(maps, drops, masks, ["a"], widen=pixels)[0]
        np.testing.assert_allclose(score, spearmanr(sums, drops[0]).statistic)


def test_components_of_a_part_are_widened_separately():
    """Pixels near two feet count twice; masks of other types have one component per part."""
    maps = np.zeros((1, 7, 9))
    maps[0, 3, 4], maps[0, 0, 0], maps[0, 6, 8] = 2, 3, 1
    masks = np.zeros((1, 3, 7, 9), dtype=np.int8)
    masks[0, 0, 3, 3], masks[0, 0, 3, 5], masks[0, 1, 0, 0], masks[0, 2, 6, 8] = 1, 2, 1, 1
    drops = np.array([[3.0, 2.0, 1.0]])
    for typed_masks, sums in ((masks, [4, 3, 1]), (masks.astype(bool), [2, 3, 1]), (masks.astype(np.int64), [2, 3, 1])):
        score = part_deletion(maps, drops, typed_masks, ["a"], widen=1)[0]
        np.testing.assert_allclose(score, spearmanr(sums, drops[0]).statistic)
        unwidened = part_deletion(maps, drops, typed_masks, ["a"])[0]
        np.testing.assert_allclose(unwidened, spearmanr([0, 3, 1], drops[0]).statistic)


def test_the_variant_of_its_authors_equals_a_value_computed_by_hand():
    """Five parts, feet of two components 3 pixels apart, a hidden eye: 1/2 + ρ/2, and undefined images are left out.

    Sums of the map: beak 4, eye 0 (hidden), foot 3 + 3 (the pixel between the feet is near both), tail 1, wing −2. From
    the largest: foot 1, beak 2, tail 3, eye 4, wing 5. Drops 0.5, 0, 0.9, 0.2, 0.3: foot 1, beak 2, wing 3, tail 4, eye
    5. Differences of ranks: foot 0, beak 0, tail 1, eye 1, wing 2. ρ = 1 − 6 · (1 + 1 + 4) / (5 · 24) = 0.7.
    """
    masks = np.zeros((2, 5, 16, 16), dtype=np.int8)
    beak, _, foot, tail, wing = range(5)
    masks[0, beak, 2, 2], masks[0, tail, 2, 13], masks[0, wing, 8, 8] = 1, 1, 1
    masks[0, foot, 13, 3], masks[0, foot, 13, 6] = 1, 2
    masks[1] = masks[0]
    maps = np.zeros((2, 16, 16))
    # All values except the foot's lie within 2 pixels of their part; where no part is, the value is 100.
    maps[0, 4, 4], maps[0, 13, 5], maps[0, 0, 13], maps[0, 10, 6], maps[0, 8, 15] = 4, 3, 1, -2, 100
    drops = np.array([[0.5, 0.0, 0.9, 0.2, 0.3]] * 2)
    authors = {"widen": 2, "hidden": True, "rescale": True}
    score, valid, _ = part_deletion(maps, drops, masks, ["a", "b"], **authors)
    assert valid.tolist() == [True, False]
    np.testing.assert_allclose(score[0], 0.85)
    assert np.nanmean(score) == pytest.approx(0.85), "the second image's sums are all zero"
    # Without the eye: beak 2, foot 1, tail 3, wing 4 by the map and 2, 1, 4, 3 by the drops.
    scores = {
        name: part_deletion(
            maps, drops, masks, ["a", "b"], **{key: value for key, value in authors.items() if key != name}
        )[0]
        for name in authors
    }
    np.testing.assert_allclose(scores["hidden"][0], (1 + (1 - 6 * 2 / (4 * 15))) / 2)
    np.testing.assert_allclose(scores["rescale"][0], 0.7)
    assert np.isnan(scores["widen"]).all(), "no value of the map lies in a part itself"
    np.testing.assert_allclose(part_deletion(maps, drops, masks.astype(bool), ["a", "b"], **authors)[0][0], 0.8)


def squares(visible):
    """Return masks of four squares, of which some are hidden."""
    masks = np.zeros((len(visible), 4, 8, 8), dtype=bool)
    for part in range(4):
        top, left = 4 * (part // 2), 4 * (part % 2)
        masks[:, part, top : top + 3, left : left + 3] = True
    return masks & np.array(visible, dtype=bool)[:, :, None, None]


def test_a_hidden_part_is_left_out():
    maps = np.random.default_rng(0).normal(size=(3, 8, 8))
    drops = np.random.default_rng(1).normal(size=(3, 4))
    masks = squares([[1, 1, 1, 1], [1, 0, 1, 1], [0, 1, 0, 0]])
    score, valid, _ = part_deletion(maps, drops, masks, list("abc"))
    assert valid.tolist() == [True, True, False]
    for row, visible in ((0, [0, 1, 2, 3]), (1, [0, 2, 3])):
        sums = [maps[row][masks[row, part]].sum() for part in visible]
        np.testing.assert_allclose(score[row], spearmanr(sums, drops[row, visible]).statistic)
    assert np.isnan(score[2])


@pytest.mark.parametrize("what", ["constant map", "zero map", "equal drops", "drop of NaN", "no part"])
def test_undefined_scores_are_nan(what):
    maps = np.random.default_rng(0).normal(size=(1, 8, 8))
    drops = np.array([[0.1, 0.4, 0.3, 0.2]])
    masks = squares([[0] * 4 if what == "no part" else [1] * 4])
    if what == "equal drops":
        drops = np.full((1, 4), 0.3)
    elif what == "drop of NaN":
        drops[0, 2] = np.nan
    elif what != "no part":
        maps = np.full((1, 8, 8), 0.1 if what == "constant map" else 0.0)
    score, valid, _ = part_deletion(maps, drops, masks, ["a"])
    assert np.isnan(score).all()
    assert not valid.any()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"masks": None}, "The metric 'part_deletion' needs `masks`"),
        ({"removed": None}, "either `removed`"),
        ({"drops": np.zeros((COUNT, 5))}, "either `removed`"),
        ({"removed": None, "drops": np.zeros((COUNT, 4))}, "do not belong together"),
        (
            {"masks": np.ones((COUNT, 5, 8, 8), dtype=bool)},
            "Subsets of (8, 8) pixels do not belong to maps of (32, 32)",
        ),
        ({"removed": torch.zeros(COUNT, 5, 3, 8, 8)}, "Images without a part (6, 5, 3, 8, 8) do not belong to images"),
        ({"removed": torch.zeros(COUNT, 3, 32, 32)}, "do not belong to images (6, 3, 32, 32)"),
        ({"output": "logits"}, "must be 'logit' or 'probability', not 'logits'"),
        ({"mask": None}, "no option 'mask': did you mean 'masks'?"),
    ],
)
def test_arguments_that_do_not_match_are_refused_in_one_sentence(planted, change, message):
    with pytest.raises(HeatproofError) as raised:
        score(planted, planted[3], **change)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)

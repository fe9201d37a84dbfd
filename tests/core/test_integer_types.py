"""Integer types are wide enough for all possible values, and no value overflows."""

import numpy as np
import pytest
import torch
from network_responses import batch_of
from torch import nn

import heatproof
from heatproof.core.integer_types import as_dtype, widen_dtype
from heatproof.core.network import Network
from heatproof.core.passes import intact_responses, run_batched
from heatproof.core.randomness import counter_integers
from heatproof.errors import HeatproofError
from heatproof.metrics.responses.parts import Parts
from heatproof.metrics.responses.patches import Patches
from heatproof.stats import ranks


@pytest.mark.parametrize(
    ("dtype", "most", "wider"),
    [
        ("int8", 1, "int8"),
        ("int8", 127, "int8"),
        ("int8", 128, "int16"),
        ("int16", 32_767, "int16"),
        ("int16", 32_768, "int32"),
        ("int16", 2**31 - 1, "int32"),
        ("int32", 2**31, "int64"),
        ("int64", 2**63 - 1, "int64"),
    ],
)
def test_a_type_is_widened_only_if_needed(dtype, most, wider):
    assert widen_dtype(dtype, most) == wider
    assert np.iinfo(wider).max >= most


def test_more_than_64_bits_are_refused():
    with pytest.raises(HeatproofError, match="more than 64 bits"):
        widen_dtype("int16", 2**63)


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([0, 32_768], "int16"),
        ([-32_769], "int16"),
        ([255], "int8"),
        ([2**31], "int32"),
        ([2**63], "int64"),
        ([0.5], "int32"),
        ([np.nan], "int16"),
        ([-1], "uint8"),
    ],
)
@pytest.mark.filterwarnings("ignore:invalid value encountered in cast:RuntimeWarning")
def test_a_value_that_a_type_cannot_hold_is_refused(values, dtype):
    with pytest.raises(HeatproofError, match=rf"ranks has the value {values[-1]}, which {dtype} cannot hold"):
        as_dtype(np.array(values), dtype, "ranks")


def test_values_that_fit_are_cast_as_by_numpy():
    for values, dtype in (([0, 127, -128], "int8"), ([2.0, 5.0], "int32"), ([True], "int8"), ([0.1, 1e300], "float32")):
        with np.errstate(over="ignore"):
            cast, plain = as_dtype(np.array(values), dtype, "ranks"), np.array(values).astype(dtype)
        assert cast.dtype == plain.dtype
        np.testing.assert_array_equal(cast, plain)


# ---- classes ---------------------------------------------------------------------------------------------------------


class Counting(nn.Module):
    """A network with the logits 0, 1, 2, … plus a small dependence on the image."""

    def __init__(self, classes):
        super().__init__()
        self.register_buffer("logits", torch.arange(classes, dtype=torch.float32))

    def forward(self, images):
        return self.logits + 1e-3 * images.mean((1, 2, 3))[:, None]


CLASSES = [(3, "int16"), (32_768, "int16"), (32_769, "int32"), (40_000, "int32"), (70_000, "int32")]


@pytest.mark.parametrize(("classes", "dtype"), CLASSES)
def test_the_rank_of_a_target_is_right_for_any_number_of_classes(classes, dtype):
    network, images = Counting(classes).eval(), torch.randn(3, 1, 4, 4)
    targets = torch.tensor([0, 1, classes - 1])
    rows = torch.arange(3)
    read = run_batched(Network.of(network), [(images, rows)], targets, ["a", "b", "c"])
    assert read["target_rank"].tolist() == [classes - 1, classes - 2, 0]
    assert read["target_rank"].dtype == dtype
    intact = intact_responses(batch_of(network, images, targets, ("a", "b", "c"), batch_size=2))
    assert intact["target_rank"].tolist() == [[classes - 1, 0], [classes - 2, 0], [0, 0]]
    # In memory and in a store the type is the same.
    stored = Patches({"grid": 2, "baseline": "zeros"}).cast({"target_rank": read["target_rank"]})
    assert stored["target_rank"].tolist() == [classes - 1, classes - 2, 0]
    assert Patches.array_specs["target_rank"].dtype_for(classes) == dtype
    assert Patches.array_specs["predicted"].dtype_for(classes) == "int32"


def test_scores_of_40000_classes_are_those_of_their_logits():
    network, images = Counting(40_000).eval(), torch.randn(4, 1, 8, 8)
    scores = heatproof.evaluate("sds", network, images, [0, 1, 2, 3], images.sum(1), grid=2)
    assert scores["valid"].all()


# ---- masks of parts --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("inside", [1, True, 255, 256, 0.5, -1])
def test_masks_are_the_pixels_that_are_not_zero(inside):
    masks = np.zeros((2, 2, 4, 4), type(inside))
    if isinstance(inside, int):
        masks = masks.astype(np.int64)
    masks[:, 0, :2], masks[:, 1, 2:] = inside, inside
    drops = np.array([[1.0, 0.0], [0.0, 1.0]])
    network, images = Counting(3).eval(), torch.randn(2, 1, 4, 4)
    scores, plain = (
        heatproof.evaluate("part_deletion", network, images, [0, 1], images.abs().sum(1), masks=values, drops=drops)
        for values in (masks, masks != 0)
    )
    assert scores.equals(plain)
    stored = Parts({}).cast({"mask": masks != 0})["mask"]
    assert stored.dtype == np.int8
    assert stored.max() == 1


# ---- draws -----------------------------------------------------------------------------------------------------------


def test_draws_below_a_large_number_are_not_cut_off():
    drawn = counter_integers(0, "toy", ["a"], (1000,), 2**31)
    assert 0 <= drawn.min() < 2**28
    assert 2**31 - 2**28 < drawn.max() < 2**31
    with pytest.raises(ValueError, match="more than 2³¹"):
        counter_integers(0, "toy", ["a"], (1000,), 2**31 + 1)


# ---- counts ----------------------------------------------------------------------------------------------------------


def test_wins_of_very_many_cases_are_exact(monkeypatch):
    scores = np.random.default_rng(0).integers(0, 3, (50, 4)).astype(float)
    plain = ranks.pairwise_wins(scores)
    assert plain.dtype == np.float32
    monkeypatch.setattr(ranks, "EXACT", 99)
    exact = ranks.pairwise_wins(scores)
    assert exact.dtype == np.float64
    np.testing.assert_array_equal(exact, plain)
    monkeypatch.setattr(ranks, "EXACT", 3)
    assert ranks.to_dense_ranks(scores).dtype == np.float64
    np.testing.assert_array_equal(ranks.pairwise_wins(scores), plain)

"""Names of weights in files that others wrote."""

import time

import pytest
import torch

from heatproof.errors import HeatproofError
from heatproof.models.weight_names import describe_misfits, extract_weights, match_names


def tensors(**shapes):
    return {
        name.replace("__", "."): torch.full(shape, float(place)) for place, (name, shape) in enumerate(shapes.items())
    }


OWN = tensors(conv__weight=(4, 3), conv__bias=(4,), bn__num_batches_tracked=(), head__weight=(10, 4))


def fitted(state, head=()):
    return match_names(state, OWN, lambda: head)


@pytest.mark.parametrize("prefix", ["module.", "model.", "_orig_mod.", "net.module.", "a.b.c."])
def test_a_wrappers_prefix_is_left_out(prefix):
    state, change = fitted({prefix + name: value for name, value in OWN.items()})
    assert state.keys() == OWN.keys()
    assert change == f"the prefix {prefix!r} of its names was left out"


def test_weights_outside_of_the_network_are_dropped_with_the_prefix():
    state, change = fitted({**{f"model.{name}": value for name, value in OWN.items()}, "loss.weight": torch.ones(3)})
    assert state.keys() == OWN.keys()
    assert change.endswith("and so was loss.weight")


def test_names_that_fit_stay_as_they_are():
    assert fitted(OWN) == (OWN, "")
    odd = {**OWN, "extra": torch.ones(1)}
    assert fitted(odd) == (odd, "")


def test_other_names_are_taken_in_order():
    theirs = tensors(stem__0__weight=(4, 3), stem__0__bias=(4,), fc__weight=(10, 4))
    state, change = fitted(theirs)
    assert {name: float(value.flatten()[0]) for name, value in state.items() if value.ndim} == {
        "conv.weight": 0.0,
        "conv.bias": 1.0,
        "head.weight": 2.0,
    }
    assert "matched in order" in change
    other_classes = {**theirs, "fc.weight": torch.ones(3, 4)}
    assert fitted(other_classes, head={"head.weight"})[0]["head.weight"].shape == (3, 4)


def test_sorted_names_have_lost_the_order_of_layers():
    """In sorted order, block 10 of twelve equal blocks would become block 2."""
    own = {f"inner.blocks.{place}.weight": torch.full((2, 2), float(place)) for place in range(12)}
    theirs = dict(sorted((f"layers.{place}.weight", value) for place, value in enumerate(own.values())))
    state, change = match_names(theirs, own, tuple)
    assert theirs.keys() <= state.keys()
    assert not change


def test_a_prefix_of_the_network_is_put_before_names():
    own = {f"inner.{name}": value for name, value in OWN.items()}
    state, change = match_names(OWN, own, tuple)
    assert state.keys() == own.keys()
    assert change == "the prefix 'inner.' was put before its names"


@pytest.mark.parametrize(
    "theirs",
    [
        tensors(a__weight=(4, 3), a__bias=(5,), b__weight=(10, 4)),  # a shape
        tensors(a__weight=(4, 3), a__weight_g=(4,), b__weight=(10, 4)),  # a kind
        tensors(a__weight=(4, 3), a__bias=(4,)),  # a number
    ],
)
def test_weights_that_do_not_fit_in_order_keep_their_names(theirs):
    state, change = fitted(theirs)
    assert theirs.keys() <= state.keys()
    assert not change


@pytest.mark.parametrize(
    "keys", [["state_dict"], ["model"], ["model_state_dict"], ["net", "state_dict"], ["model_ema"]]
)
def test_weights_are_found_among_other_state_of_a_training(keys):
    held = OWN
    for key in reversed(keys):
        held = {"epoch": 3, "optimizer": {"lr": 0.1}, key: held}
    assert extract_weights(held, "w.pt").keys() == OWN.keys()
    both = {"state_dict": OWN, "state_dict_ema": {name: value + 1 for name, value in OWN.items()}}
    assert float(extract_weights(both, "w.pt")["conv.weight"][0, 0]) == 0
    with pytest.raises(HeatproofError, match=r"w\.pt holds no weights"):
        extract_weights({"epoch": 3, "optimizer": {}}, "w.pt")


def test_misfits_are_named():
    state = tensors(conv__weight=(4, 3), a=(1,), b=(1,), c=(1,), d=(1,), head__weight=(3, 4))
    assert describe_misfits(state, OWN) == (
        "conv.bias, bn.num_batches_tracked missing; a, b, c and 1 more unknown to the network; "
        "head.weight is 3×4 and should be 10×4"
    )
    assert describe_misfits(OWN, OWN) == ""


def test_names_of_a_hostile_file_take_no_time_and_stay_in_one_line():
    own = {f"layer.{number}.weight": torch.zeros(1) for number in range(300)}
    one = torch.zeros(1)
    state = {f"a{number}.b.c.\n\x1b[2J{'x' * 300}": one for number in range(100_000)}
    began = time.monotonic()
    named, _ = match_names(state, own, set)
    message = describe_misfits(named, own)
    assert time.monotonic() - began < 10
    assert "\n" not in message
    assert "\x1b" not in message
    assert len(message) < 1_000


def test_a_mapping_in_itself_ends():
    inside = {"w": torch.zeros(1)}
    inside["model"] = inside
    assert list(extract_weights(inside, "w")) == ["w"]

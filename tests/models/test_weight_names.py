"""Names of weights in files that others wrote."""

import time

import pytest
import torch

from heatproof.errors import HeatproofError
from heatproof.models.weight_names import describe_misfits, extract_weights, match_names


def tensors(**shapes):
    return {
        name.replace("__", "."): torch.full(shape, float(number)) for number, (name, shape) in enumerate(shapes.items())
    }


NETWORK_STATE = tensors(conv__weight=(4, 3), conv__bias=(4,), bn__num_batches_tracked=(), head__weight=(10, 4))


def fitted(state, head=()):
    return match_names(state, NETWORK_STATE, lambda: head)


@pytest.mark.parametrize("prefix", ["module.", "model.", "_orig_mod.", "net.module.", "a.b.c."])
def test_the_prefix_of_a_wrapper_is_removed(prefix):
    state, change = fitted({prefix + name: value for name, value in NETWORK_STATE.items()})
    assert state.keys() == NETWORK_STATE.keys()
    assert change == f"the prefix {prefix!r} of its names was left out"


def test_weights_outside_of_the_network_are_dropped_with_the_prefix():
    state, change = fitted(
        {**{f"model.{name}": value for name, value in NETWORK_STATE.items()}, "loss.weight": torch.ones(3)}
    )
    assert state.keys() == NETWORK_STATE.keys()
    assert change.endswith("and so was loss.weight")


def test_matching_names_are_unchanged():
    assert fitted(NETWORK_STATE) == (NETWORK_STATE, "")
    with_extra = {**NETWORK_STATE, "extra": torch.ones(1)}
    assert fitted(with_extra) == (with_extra, "")


def test_other_names_are_matched_in_order():
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


def test_sorted_names_are_not_matched_in_order():
    """In sorted order, block 10 of twelve equal blocks would become block 2."""
    network_state = {f"inner.blocks.{number}.weight": torch.full((2, 2), float(number)) for number in range(12)}
    theirs = dict(sorted((f"layers.{number}.weight", value) for number, value in enumerate(network_state.values())))
    state, change = match_names(theirs, network_state, tuple)
    assert theirs.keys() <= state.keys()
    assert not change


def test_a_missing_prefix_is_added_to_names():
    network_state = {f"inner.{name}": value for name, value in NETWORK_STATE.items()}
    state, change = match_names(NETWORK_STATE, network_state, tuple)
    assert state.keys() == network_state.keys()
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
    held = NETWORK_STATE
    for key in reversed(keys):
        held = {"epoch": 3, "optimizer": {"lr": 0.1}, key: held}
    assert extract_weights(held, "w.pt").keys() == NETWORK_STATE.keys()
    both = {"state_dict": NETWORK_STATE, "state_dict_ema": {name: value + 1 for name, value in NETWORK_STATE.items()}}
    assert float(extract_weights(both, "w.pt")["conv.weight"][0, 0]) == 0
    with pytest.raises(HeatproofError, match=r"w\.pt holds no weights"):
        extract_weights({"epoch": 3, "optimizer": {}}, "w.pt")


def test_misfits_are_named():
    state = tensors(conv__weight=(4, 3), a=(1,), b=(1,), c=(1,), d=(1,), head__weight=(3, 4))
    assert describe_misfits(state, NETWORK_STATE) == (
        "conv.bias, bn.num_batches_tracked missing; a, b, c and 1 more unknown to the network; "
        "head.weight is 3×4 and should be 10×4"
    )
    assert describe_misfits(NETWORK_STATE, NETWORK_STATE) == ""


def test_names_of_a_hostile_file_are_matched_fast_and_reported_in_one_line():
    network_state = {f"layer.{number}.weight": torch.zeros(1) for number in range(300)}
    tensor = torch.zeros(1)
    state = {f"a{number}.b.c.\n\x1b[2J{'x' * 300}": tensor for number in range(100_000)}
    began = time.monotonic()
    named, _ = match_names(state, network_state, set)
    message = describe_misfits(named, network_state)
    assert time.monotonic() - began < 10
    assert "\n" not in message
    assert "\x1b" not in message
    assert len(message) < 1_000


def test_a_mapping_that_contains_itself_is_read():
    inside = {"w": torch.zeros(1)}
    inside["model"] = inside
    assert list(extract_weights(inside, "w")) == ["w"]

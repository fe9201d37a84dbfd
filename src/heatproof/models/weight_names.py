"""Match the names of weights in a file to those of a network."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch

from heatproof.errors import HeatproofError
from heatproof.store.publishing import escaped

# Keys under which training scripts store weights, in order of preference; averages over training (EMA) come last.
STATE_KEYS = ("state_dict", "model_state_dict", "model", "net", "network", "weights", "params")
AVERAGE_KEYS = ("state_dict_ema", "model_ema", "ema_state_dict", "ema", "params_ema")
# PyTorch counts batches under this name, no network computes with it, and older files lack it.
COUNTER = "num_batches_tracked"
# Number of leading parts of a name that can be those of wrappers, such as Lightning's ``model.`` and
# ``torch.compile``'s ``_orig_mod.``.
WRAPPERS = 3
# Depth of nested mappings that is searched; a file can contain a mapping that contains itself.
DEPTH = 8
MAX_LISTED, MAX_LENGTH = 3, 100

State = dict[str, torch.Tensor]
Weights = Mapping[str, torch.Tensor]


def extract_weights(loaded: Any, label: str) -> State:
    """Return the tensors of a loaded file: a state dict, or a mapping that contains one next to other state.

    Raises
    ------
    HeatproofError
        If there are none.
    """
    for _ in range(DEPTH):
        if not isinstance(loaded, Mapping):
            break
        inner = next(
            (loaded[key] for key in (*STATE_KEYS, *AVERAGE_KEYS) if isinstance(loaded.get(key), Mapping)), None
        )
        if inner is None:
            break
        loaded = inner
    entries = loaded.items() if isinstance(loaded, Mapping) else ()
    state = {str(name): value for name, value in entries if isinstance(value, torch.Tensor)}
    if not state:
        raise HeatproofError(f"The checkpoint {label} holds no weights: save the network's state_dict.")
    return state


def match_names(state: Weights, network_state: Weights, head: Callable[[], Collection[str]]) -> tuple[State, str]:
    """Rename weights to the names of a network, if there is one way to do so.

    The prefix that yields the most names of the network is removed; weights with another prefix, such as those of a
    loss, are dropped. If no name is known, weights are matched in order, provided that their number is the same, and
    that each has the same last part of the name (weight, bias, running_mean) and, except in the head, the same shape
    as in the network.

    Parameters
    ----------
    state
        Weights of the file.
    network_state
        Weights of the network.
    head
        Function that returns the names of the weights whose shapes depend on the number of classes.

    Returns
    -------
    state : dict
        The renamed weights; weights that do not fit remain, for the message of the caller.
    change : str
        What was done, as a clause; empty if nothing was.
    """
    # Iterates over the names of the file once, because there can be a million.
    matches = Counter({"": sum(name in network_state for name in state)})
    for name in state:
        parts = name.split(".", WRAPPERS + 1)
        for count in range(1, min(WRAPPERS, len(parts) - 1) + 1):
            before = ".".join(parts[:count]) + "."
            matches[before] += name.removeprefix(before) in network_state
    shortest_first = sorted(matches, key=lambda prefix: (len(prefix), prefix))
    prefix = max(shortest_first, key=lambda prefix: matches[prefix])
    named = {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
    change = f"the prefix {prefix[:MAX_LENGTH]!r} of its names was left out" if prefix else ""
    before = _missing_prefix(state, network_state) if not matches[prefix] else ""
    if before:
        named = {before + name if before + name in network_state else name: value for name, value in state.items()}
        return _with_counters(named, network_state), f"the prefix {before!r} was put before its names"
    if dropped := [name for name in state if not name.startswith(prefix)]:
        change += f", and so {'was' if len(dropped) == 1 else 'were'} {list_names(dropped)}"
    if not matches[prefix] and (renamed := _in_order(state, network_state, head)):
        named, change = renamed, "its weights have other names and were matched in order"
    return _with_counters(named, network_state), change


def _missing_prefix(state: Weights, network_state: Weights) -> str:
    """Return the prefix that the names of the network have and those of the file lack; empty if there is none."""
    prefixes = {name.partition(".")[0] + "." for name in network_state}
    matches = {prefix: sum(name.removeprefix(prefix) in state for name in network_state) for prefix in sorted(prefixes)}
    best = max(matches, key=lambda prefix: matches[prefix], default="")
    return best if matches.get(best) else ""


def _with_counters(named: State, network_state: Weights) -> State:
    # Networks in eval mode never read these counters.
    return {
        **named,
        **{name: value for name, value in network_state.items() if name.endswith(COUNTER) and name not in named},
    }


def _in_order(state: Weights, network_state: Weights, head: Callable[[], Collection[str]]) -> State:
    theirs, ours = ([name for name in each if not name.endswith(COUNTER)] for each in (state, network_state))
    last = [[name.rpartition(".")[2] for name in each] for each in (theirs, ours)]
    # Safetensors sorts names, which loses the order of layers: block 10 precedes block 2.
    if theirs == sorted(theirs) or last[0] != last[1]:
        return {}
    renamed = {new: state[name] for name, new in zip(theirs, ours, strict=True)}
    differ = {new for new, value in renamed.items() if value.shape != network_state[new].shape}
    return {} if differ and not differ <= set(head()) else renamed


def describe_misfits(state: Weights, network_state: Weights) -> str:
    """Return why weights do not fit a network, as clauses; empty if they fit."""
    missing, unknown = (
        [name for name in network_state if name not in state],
        [name for name in state if name not in network_state],
    )
    shapes = [
        f"{name} is {_size(state[name])[:MAX_LENGTH]} and should be {_size(network_state[name])}"
        for name in network_state
        if name in state and state[name].shape != network_state[name].shape
    ]
    problems = {" missing": missing, " unknown to the network": unknown, "": shapes}
    return "; ".join(list_names(names) + words for words, names in problems.items() if names)


def list_names(names: Sequence[str]) -> str:
    """Return the first names of a list, and how many more there are."""
    listed = ", ".join(escaped(name[:MAX_LENGTH], keep="") for name in names[:MAX_LISTED])
    return listed + (f" and {len(names) - MAX_LISTED} more" if len(names) > MAX_LISTED else "")


def _size(value: torch.Tensor) -> str:
    return "×".join(map(str, value.shape)) or "one number"

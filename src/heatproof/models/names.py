"""Match the names of weights in a file to those of a network."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch

from heatproof.errors import HeatproofError
from heatproof.files.publishing import escaped

# Keys under which training scripts store weights, in order of preference; averages over training (EMA) come last.
HOLDERS = ("state_dict", "model_state_dict", "model", "net", "network", "weights", "params")
AVERAGES = ("state_dict_ema", "model_ema", "ema_state_dict", "ema", "params_ema")
# PyTorch counts batches under this name, no network computes with it, and older files lack it.
COUNTER = "num_batches_tracked"
# Number of leading parts of a name that can be those of wrappers, such as Lightning's ``model.`` and
# ``torch.compile``'s ``_orig_mod.``.
WRAPPERS = 3
# Depth of nested mappings that is searched; a file can contain a mapping that contains itself.
DEPTH = 8
NAMED, LONGEST = 3, 100

State = dict[str, torch.Tensor]
Weights = Mapping[str, torch.Tensor]


def extract_weights(loaded: Any, called: str) -> State:
    """Return the tensors of a loaded file: a state dict, or a mapping that contains one next to other state.

    Raises
    ------
    HeatproofError
        If there are none.
    """
    for _ in range(DEPTH):
        if not isinstance(loaded, Mapping):
            break
        inner = next((loaded[key] for key in (*HOLDERS, *AVERAGES) if isinstance(loaded.get(key), Mapping)), None)
        if inner is None:
            break
        loaded = inner
    entries = loaded.items() if isinstance(loaded, Mapping) else ()
    state = {str(name): value for name, value in entries if isinstance(value, torch.Tensor)}
    if not state:
        raise HeatproofError(f"The checkpoint {called} holds no weights: save the network's state_dict.")
    return state


def match_names(state: Weights, own: Weights, head: Callable[[], Collection[str]]) -> tuple[State, str]:
    """Rename weights to the names of a network, if there is one way to do so.

    The prefix that yields the most names of the network is removed; weights with another prefix, such as those of a
    loss, are dropped. If no name is known, weights are matched in order, provided that their number is the same, and
    that each has the same last part of the name (weight, bias, running_mean) and, except in the head, the same shape
    as in the network.

    Parameters
    ----------
    state
        Weights of the file.
    own
        Weights of the network.
    head
        Function that returns the names of the weights whose shapes depend on the number of classes.

    Returns
    -------
    state : dict
        The renamed weights; weights that do not fit remain, for the message of the caller.
    told : str
        What was done, as a clause; empty if nothing was.
    """
    # Iterates over the names of the file once, because there can be a million.
    known = Counter({"": sum(name in own for name in state)})
    for name in state:
        parts = name.split(".", WRAPPERS + 1)
        for count in range(1, min(WRAPPERS, len(parts) - 1) + 1):
            before = ".".join(parts[:count]) + "."
            known[before] += name.removeprefix(before) in own
    shortest_first = sorted(known, key=lambda one: (len(one), one))
    prefix = max(shortest_first, key=lambda one: known[one])
    named = {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
    told = f"the prefix {prefix[:LONGEST]!r} of its names was left out" if prefix else ""
    before = _missing_prefix(state, own) if not known[prefix] else ""
    if before:
        named = {before + name if before + name in own else name: value for name, value in state.items()}
        return _with_counters(named, own), f"the prefix {before!r} was put before its names"
    if left := [name for name in state if not name.startswith(prefix)]:
        told += f", and so {'was' if len(left) == 1 else 'were'} {listed(left)}"
    if not known[prefix] and (renamed := _in_order(state, own, head)):
        named, told = renamed, "its weights have other names and were taken in order"
    return _with_counters(named, own), told


def _missing_prefix(state: Weights, own: Weights) -> str:
    """Return the prefix that the names of the network have and those of the file lack; empty if there is none."""
    found = {name.partition(".")[0] + "." for name in own}
    known = {prefix: sum(name.removeprefix(prefix) in state for name in own) for prefix in sorted(found)}
    best = max(known, key=lambda one: known[one], default="")
    return best if known.get(best) else ""


def _with_counters(named: State, own: Weights) -> State:
    # Networks in eval mode never read these counters.
    return {**named, **{name: value for name, value in own.items() if name.endswith(COUNTER) and name not in named}}


def _in_order(state: Weights, own: Weights, head: Callable[[], Collection[str]]) -> State:
    theirs, ours = ([name for name in each if not name.endswith(COUNTER)] for each in (state, own))
    last = [[name.rpartition(".")[2] for name in each] for each in (theirs, ours)]
    # Safetensors sorts names, which loses the order of layers: block 10 precedes block 2.
    if theirs == sorted(theirs) or last[0] != last[1]:
        return {}
    renamed = {new: state[name] for name, new in zip(theirs, ours, strict=True)}
    differ = {new for new, value in renamed.items() if value.shape != own[new].shape}
    return {} if differ and not differ <= set(head()) else renamed


def describe_misfits(state: Weights, own: Weights) -> str:
    """Return why weights do not fit a network, as clauses; empty if they fit."""
    missing, unknown = [name for name in own if name not in state], [name for name in state if name not in own]
    shapes = [
        f"{name} is {_size(state[name])[:LONGEST]} and should be {_size(own[name])}"
        for name in own
        if name in state and state[name].shape != own[name].shape
    ]
    said = {" missing": missing, " unknown to the network": unknown, "": shapes}
    return "; ".join(listed(names) + words for words, names in said.items() if names)


def listed(names: Sequence[str]) -> str:
    """Return the first names of a list, and how many more there are."""
    shown = ", ".join(escaped(name[:LONGEST], keep="") for name in names[:NAMED])
    return shown + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")


def _size(value: torch.Tensor) -> str:
    return "×".join(map(str, value.shape)) or "one number"

"""Names of weights in files that others wrote, brought to those of a network."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch

from heatproof.errors import HeatproofError
from heatproof.files.publishing import escaped

# Under which training scripts keep the weights, those that are taken first; an average over training (EMA) comes last.
HOLDERS = ("state_dict", "model_state_dict", "model", "net", "network", "weights", "params")
AVERAGES = ("state_dict_ema", "model_ema", "ema_state_dict", "ema", "params_ema")
# Which PyTorch counts and no network computes with; older files lack it.
COUNTER = "num_batches_tracked"
# Parts of a name that can be a wrapper's, such as Lightning's ``model.`` and ``torch.compile``'s ``_orig_mod.``.
WRAPPERS = 3
# One in another, as a training script can keep them; a file can say that a mapping is inside itself.
DEPTH = 8
NAMED, LONGEST = 3, 100

State = dict[str, torch.Tensor]
Weights = Mapping[str, torch.Tensor]


def extract_weights(loaded: Any, called: str) -> State:
    """Return the tensors of a file: a state dict, or what holds one beside optimizers and settings.

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
    """Bring the names of weights to those of a network, where that can be done in one way.

    The prefix is left out that leaves the most names of the network, and with it what has another prefix, such as a
    loss. Weights of which no name is known are taken in order, if they are as many, and each has the last part of the
    name (weight, bias, running_mean) and, but for the head's, the shape of the network's own.

    Parameters
    ----------
    state
        The file's.
    own
        The network's.
    head
        Returns the names of the weights whose shapes depend on the number of classes.

    Returns
    -------
    state : dict
        As many weights as could be named; what does not fit stays, for the message of whoever loads it.
    told : str
        What was done, as a clause; empty for nothing.
    """
    # By the names of the file, of which there can be a million.
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
    """Return what stands before the names of a network that holds the one of the file; empty for nothing."""
    found = {name.partition(".")[0] + "." for name in own}
    known = {prefix: sum(name.removeprefix(prefix) in state for name in own) for prefix in sorted(found)}
    best = max(known, key=lambda one: known[one], default="")
    return best if known.get(best) else ""


def _with_counters(named: State, own: Weights) -> State:
    # Of a network in eval mode it is never read.
    return {**named, **{name: value for name, value in own.items() if name.endswith(COUNTER) and name not in named}}


def _in_order(state: Weights, own: Weights, head: Callable[[], Collection[str]]) -> State:
    theirs, ours = ([name for name in each if not name.endswith(COUNTER)] for each in (state, own))
    last = [[name.rpartition(".")[2] for name in each] for each in (theirs, ours)]
    # Safetensors sorts names, so that the order of layers is lost: block 10 stands before block 2.
    if theirs == sorted(theirs) or last[0] != last[1]:
        return {}
    renamed = {new: state[name] for name, new in zip(theirs, ours, strict=True)}
    differ = {new for new, value in renamed.items() if value.shape != own[new].shape}
    return {} if differ and not differ <= set(head()) else renamed


def describe_misfits(state: Weights, own: Weights) -> str:
    """Return what keeps weights from fitting a network, as clauses; empty where they fit."""
    missing, unknown = [name for name in own if name not in state], [name for name in state if name not in own]
    shapes = [
        f"{name} is {_size(state[name])[:LONGEST]} and should be {_size(own[name])}"
        for name in own
        if name in state and state[name].shape != own[name].shape
    ]
    said = {" missing": missing, " unknown to the network": unknown, "": shapes}
    return "; ".join(listed(names) + words for words, names in said.items() if names)


def listed(names: Sequence[str]) -> str:
    """Return the first names of a list and how many more there are."""
    shown = ", ".join(escaped(name[:LONGEST], keep="") for name in names[:NAMED])
    return shown + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")


def _size(value: torch.Tensor) -> str:
    return "×".join(map(str, value.shape)) or "one number"

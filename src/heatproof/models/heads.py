"""The head in a file of weights, and the options of an architecture with which all other weights fit."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from heatproof.core.options import option_choices
from heatproof.models.from_transformers import read_weights
from heatproof.models.network import build_without_weights, find_head
from heatproof.models.registry import ARCHITECTURES, ModelSpec
from heatproof.models.weight_names import describe_misfits, match_names
from heatproof.models.weights_file import max_file_size, read_state


class Head(NamedTuple):
    """The head in a file of weights, compared with the head of a network.

    Attributes
    ----------
    options
        Options of the architecture with which all weights except the head fit; None if there are none.
    outputs
        Number of outputs that the weights have; None if they do not show one number.
    fits
        Whether the weights fit unchanged, including the head.
    """

    options: dict[str, Any] | None
    outputs: int | None
    fits: bool


def inspect_head(model: ModelSpec, path: Path, classes: int) -> Head:
    """Compare the head in a local file of weights with that of a network with `classes` outputs.

    Raises
    ------
    HeatproofError
        If the file cannot be read, or the network cannot be built.
    """
    if model.architecture == "transformers_model":
        state = read_weights(path, model.options["name"])
    else:
        state = read_state(path, str(path), max_file_size(build_without_weights(model, classes)))
    options = find_fitting_options(model, state, classes)
    if options is None:
        return Head(None, None, fits=False)
    fitting = replace(model, options=options)
    network_state, head = build_without_weights(fitting, classes).state_dict(), find_head(fitting)
    named, _ = match_names(state, network_state, partial(set, head))
    outputs = {len(named[name]) for name in head if name in named and named[name].ndim}
    return Head(options, outputs.pop() if len(outputs) == 1 else None, not describe_misfits(named, network_state))


def find_fitting_options(model: ModelSpec, state: Mapping[str, torch.Tensor], classes: int) -> dict[str, Any] | None:
    """Return options with which weights fit a network except for its head, or None.

    Tried are the configured options, and then each option with a few possible values, one change at a time.
    """
    entry = ARCHITECTURES.get(model.architecture)
    choices = option_choices(entry.build) if entry else {}
    configured = dict(model.options)
    for options in [configured, *({**configured, name: value} for name, values in choices.items() for value in values)]:
        with suppress(Exception):  # a builder can refuse options in any way
            tried = replace(model, options=options)
            network_state, head = build_without_weights(tried, classes).state_dict(), find_head(tried)
            named, _ = match_names(state, network_state, partial(set, head))
            if not describe_misfits({**named, **{name: network_state[name] for name in head}}, network_state):
                return options
    return None

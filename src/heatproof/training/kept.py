"""Weights of one epoch of a finetuning, taken out of the states that it kept."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from heatproof.errors import HeatproofError
from heatproof.manifest import checked, publish_tables
from heatproof.models.network import save_weights
from heatproof.store import write_text


def save_kept(states: Mapping[int, Mapping[str, torch.Tensor]], path: str | Path) -> None:
    """Write the weights of some epochs into one safetensors file, each tensor named ``epoch/name``."""
    save_weights({f"{epoch}/{name}": value for epoch, state in states.items() for name, value in state.items()}, path)


def keep_epoch(spec: Mapping[str, Any], machine: Mapping[str, Any]) -> None:
    """Write one kept epoch as weights of their own, with the history up to it.

    Raises
    ------
    HeatproofError
        If the finetuning did not keep that epoch, or its file is damaged.
    """
    prefix = f"{spec['epoch']}/"
    # The finetuning's manifest lists them; they lie in a folder of their own, away from the weights' names.
    checked(spec["kept"], spec["trained"].removesuffix(".history.csv") + ".json")
    try:
        with safe_open(spec["kept"], "pt") as file:
            state = {name.removeprefix(prefix): file.get_tensor(name) for name in _beginning(file.keys(), prefix)}
    except (OSError, SafetensorError) as error:
        raise HeatproofError(f"{spec['kept']} cannot be read ({error}): {_remedy(spec)}") from None
    if not state:
        raise HeatproofError(f"{spec['kept']} has no weights of epoch {spec['epoch']}: {_remedy(spec)}")
    save_weights(state, spec["output"])
    with open(spec["trained"], encoding="utf-8") as rows:
        write_text(spec["history"], "".join(islice(rows, 1 + spec["epoch"])))
    publish_tables(spec, [spec["output"], spec["history"]], [spec["kept"], spec["trained"]])


def _beginning(names: Iterable[str], prefix: str) -> list[str]:
    return [name for name in names if name.startswith(prefix)]


def _remedy(spec: Mapping[str, Any]) -> str:
    return f"remove it with `rm {spec['kept']}`, and run your snakemake command with this path as its target."

"""Read files of weights: the only code that opens them, and that checks what they say before memory is asked for."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from heatproof.errors import HeatproofError, is_out_of_memory, machine_fault
from heatproof.files.publishing import escaped
from heatproof.files.reading import open_regular, require_regular
from heatproof.models import saved_by_torch
from heatproof.models.names import extract_weights

# Training state beside the weights, twice the precision, and a head for far more classes.
TIMES, MORE = 16, 2**30
# Characters of what is said of a file, whose names can have any length.
MOST_TOLD = 200


def most_bytes(network: torch.nn.Module) -> int:
    """Return the size above which no file is a checkpoint of a network."""
    values = [value for value in network.state_dict().values() if isinstance(value, torch.Tensor)]
    own = sum(value.numel() * value.element_size() for value in values if not torch.nn.parameter.is_lazy(value))
    return TIMES * own + MORE


def require_size(path: str | Path, called: str, most: int | None) -> int:
    """Return the size of a regular file.

    Raises
    ------
    OSError
        If there is none.
    HeatproofError
        If it is something else, or has more than `most` bytes.
    """
    found = os.stat(path)
    require_regular(path, found.st_mode)
    if most is not None and found.st_size > most:
        raise HeatproofError(
            f"The weights {called} do not fit the network: the file has {found.st_size:,} bytes, and {most:,} is the "
            "limit for this architecture: check the path and the architecture."
        )
    return found.st_size


def read_safetensors(
    path: str | Path, called: str, prefix: str = "", most: int | None = None
) -> dict[str, torch.Tensor]:
    """Read the tensors of a safetensors file whose names begin with a prefix, which is left out.

    The library compares the header's lengths, shapes and offsets with the file before it reads a tensor.

    Raises
    ------
    OSError, SafetensorError
        If the file cannot be read, or is none.
    HeatproofError
        As `require_size` does.
    """
    require_size(path, called, most)
    try:
        with safe_open(path, "pt") as file:
            names = [name for name in file.keys() if name.startswith(prefix)]  # noqa: SIM118
            if len(names) > saved_by_torch.MOST_TENSORS:
                raise SafetensorError(f"it has {len(names):,} tensors, which no network has")
            return {name.removeprefix(prefix): file.get_tensor(name) for name in names}
    except (OSError, SafetensorError, MemoryError):
        raise
    except Exception as error:  # types that the library knows and PyTorch does not fail in other ways
        raise SafetensorError(f"{type(error).__name__}: {error}") from None


def read_torch(path: str | Path, called: str, most: int | None = None) -> Any:
    """Read what ``torch.save`` wrote, if ``torch.load(weights_only=True)`` accepts it.

    Raises
    ------
    HeatproofError
        If it needs a pickle, is damaged, or holds tensors for which the file has no bytes.
    """
    size = require_size(path, called, most)
    try:
        with open_regular(path) as file:
            return saved_by_torch.read(file, size)
    except Exception as error:  # a damaged file fails in any way
        fault = machine_fault(error) if isinstance(error, OSError) or is_out_of_memory(error) else None
        raise HeatproofError(
            fault or f"The checkpoint {called} is neither safetensors nor weights alone ({_what_else(path, error)})."
        ) from None


def _what_else(path: str | Path, error: Exception) -> str:
    """Return what a file is that holds no weights, and the remedy."""
    with open_regular(path) as file:
        head = file.read(512)
    if not head:
        return "it is empty: get it again"
    if head.lstrip()[:1] == b"<":
        return "it is a web page: check the address, and get it again"
    # A pickle, or a ZIP file with one.
    if isinstance(error, UnpicklingError) and head.startswith((b"\x80", b"PK")):
        return "it holds more than weights: save its state_dict, because a whole pickled model can run code"
    found = escaped(str(error)[:MOST_TOLD], keep="") if isinstance(error, saved_by_torch.Damaged) else ""
    more = f"; {found}" if found else ""
    return f"it was cut off, or is of another kind{more}: get it again, or save the network's state_dict"


def read_state(path: Path, checkpoint: str, most: int | None = None) -> dict[str, torch.Tensor]:
    """Read a state dict: safetensors, or what ``torch.load(weights_only=True)`` accepts.

    Parameters
    ----------
    path
        Path of the file.
    checkpoint
        Name of the checkpoint in the config, for messages.
    most
        The most bytes that the file may have; None for any number.

    Raises
    ------
    HeatproofError
        If the file needs a pickle, holds no weights, or is too large.
    """
    try:
        return read_safetensors(path, checkpoint, most=most)
    except SafetensorError:
        loaded = read_torch(path, checkpoint, most)
    return extract_weights(loaded, checkpoint)


def require_copies(state: Mapping[str, torch.Tensor], called: str, most: int) -> None:
    """Refuse weights whose copies, each of its own memory, would be larger than any checkpoint of a network.

    Raises
    ------
    HeatproofError
        If they are.
    """
    asked = sum(value.numel() * value.element_size() for value in state.values())
    if asked > most:
        raise HeatproofError(
            f"The weights {called} do not fit the network: they need {asked:,} bytes, and {most:,} is the limit for "
            "this architecture: check the path and the architecture."
        )


def require_finite(state: Mapping[str, torch.Tensor], own: Mapping[str, torch.Tensor], called: str) -> None:
    """Refuse NaN and infinite numbers, but where the network itself is built with them, as masks of attention are.

    Raises
    ------
    HeatproofError
        If there are any; the sentence names the tensor.
    """
    for name, value in state.items():
        if not (value.is_floating_point() or value.is_complex()):
            continue
        # Of eight bits PyTorch computes nothing.
        numbers = value.float() if value.element_size() == 1 else value
        # A finite sum has finite terms, and takes no memory; a large one can be infinite on its own.
        if torch.isfinite(numbers.sum()) or torch.isfinite(numbers).all():
            continue
        expected = own.get(name)
        if not torch.isnan(numbers).any() and expected is not None and torch.isinf(expected).any():
            continue
        what = "NaN" if torch.isnan(numbers).any() else "infinite numbers"
        raise HeatproofError(
            f"The weights {called} have {what} in {name!r}, so that the network's output means nothing: take another "
            "checkpoint, or train again with a lower lr."
        )

"""Read weights files, and check their headers before memory is allocated; no other module opens such files."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from heatproof.errors import HeatproofError, is_out_of_memory, machine_fault
from heatproof.models import saved_by_torch
from heatproof.models.weight_names import extract_weights
from heatproof.store.publishing import escaped
from heatproof.store.reading import open_regular, require_regular

# A checkpoint may contain training state, numbers of twice the precision, and a head for many more classes.
SIZE_FACTOR, EXTRA_BYTES = 16, 2**30
# Characters of a message that quotes a file, because names in files can have any length.
MAX_QUOTE = 200


def max_file_size(network: torch.nn.Module) -> int:
    """Return the largest size in bytes that a checkpoint of a network can have."""
    values = [value for value in network.state_dict().values() if isinstance(value, torch.Tensor)]
    network_bytes = sum(
        value.numel() * value.element_size() for value in values if not torch.nn.parameter.is_lazy(value)
    )
    return SIZE_FACTOR * network_bytes + EXTRA_BYTES


def require_size(path: str | Path, label: str, most: int | None) -> int:
    """Return the size of a regular file in bytes.

    Raises
    ------
    OSError
        If the file does not exist.
    HeatproofError
        If it is not a regular file, or has more than `most` bytes.
    """
    status = os.stat(path)
    require_regular(path, status.st_mode)
    if most is not None and status.st_size > most:
        raise HeatproofError(
            f"The weights {label} do not fit the network: the file has {status.st_size:,} bytes, and {most:,} is the "
            "limit for this architecture: check the path and the architecture."
        )
    return status.st_size


def read_safetensors(
    path: str | Path, label: str, prefix: str = "", most: int | None = None
) -> dict[str, torch.Tensor]:
    """Read the tensors of a safetensors file whose names start with a prefix, and remove the prefix from the names.

    The library compares lengths, shapes and offsets in the header with the file before it reads a tensor.

    Raises
    ------
    OSError, SafetensorError
        If the file cannot be read, or is not a safetensors file.
    HeatproofError
        As in `require_size`.
    """
    require_size(path, label, most)
    try:
        with safe_open(path, "pt") as file:
            names = [name for name in file.keys() if name.startswith(prefix)]  # noqa: SIM118
            if len(names) > saved_by_torch.MAX_TENSORS:
                raise SafetensorError(f"it has {len(names):,} tensors, which no network has")
            return {name.removeprefix(prefix): file.get_tensor(name) for name in names}
    except (OSError, SafetensorError, MemoryError):
        raise
    except Exception as error:  # types that the library knows and PyTorch does not fail in other ways
        raise SafetensorError(f"{type(error).__name__}: {error}") from None


def read_torch(path: str | Path, label: str, most: int | None = None) -> Any:
    """Read a file written by ``torch.save`` if ``torch.load(weights_only=True)`` accepts it.

    Raises
    ------
    HeatproofError
        If it needs a pickle, is damaged, or declares tensors that are larger than the file.
    """
    size = require_size(path, label, most)
    try:
        with open_regular(path) as file:
            return saved_by_torch.read(file, size)
    except Exception as error:  # a damaged file fails in any way
        fault = machine_fault(error) if isinstance(error, OSError) or is_out_of_memory(error) else None
        raise HeatproofError(
            fault
            or f"The checkpoint {label} cannot be read as safetensors or as a file of weights only "
            f"({_describe_other_file(path, error)})."
        ) from None


def _describe_other_file(path: str | Path, error: Exception) -> str:
    """Return what a file without weights contains, and the remedy."""
    with open_regular(path) as file:
        head = file.read(512)
    if not head:
        return "it is empty: get it again"
    if head.lstrip()[:1] == b"<":
        return "it is a web page: check the address, and get it again"
    # The file is a pickle, or a ZIP file that contains one.
    if isinstance(error, UnpicklingError) and head.startswith((b"\x80", b"PK")):
        return "it holds more than weights: save its state_dict, because a whole pickled model can run code"
    quote = escaped(str(error)[:MAX_QUOTE], keep="") if isinstance(error, saved_by_torch.DamagedFile) else ""
    more = f"; {quote}" if quote else ""
    return f"it was cut off, or is of another kind{more}: get it again, or save the network's state_dict"


def read_state(path: Path, checkpoint: str, most: int | None = None) -> dict[str, torch.Tensor]:
    """Read a state dict from safetensors, or from a file that ``torch.load(weights_only=True)`` accepts.

    Parameters
    ----------
    path
        Path of the file.
    checkpoint
        Name of the checkpoint in the config, for messages.
    most
        Largest size of the file in bytes; None for no limit.

    Returns
    -------
    dict
        Tensor of each weight, by name.

    Raises
    ------
    HeatproofError
        If the file needs a pickle, contains no weights, or is too large.
    """
    try:
        return read_safetensors(path, checkpoint, most=most)
    except SafetensorError:
        loaded = read_torch(path, checkpoint, most)
    return extract_weights(loaded, checkpoint)


def require_memory(state: Mapping[str, torch.Tensor], label: str, most: int) -> None:
    """Refuse weights that would be larger than any checkpoint of a network once each tensor has its own memory.

    Raises
    ------
    HeatproofError
        If they are.
    """
    needed = sum(value.numel() * value.element_size() for value in state.values())
    if needed > most:
        raise HeatproofError(
            f"The weights {label} do not fit the network: they need {needed:,} bytes, and {most:,} is the limit for "
            "this architecture: check the path and the architecture."
        )


def require_finite(state: Mapping[str, torch.Tensor], network_state: Mapping[str, torch.Tensor], label: str) -> None:
    """Refuse NaN and infinite values, except where the network itself is built with them, as attention masks are.

    Raises
    ------
    HeatproofError
        If there are any; the message names the tensor.
    """
    for name, value in state.items():
        if not (value.is_floating_point() or value.is_complex()):
            continue
        # PyTorch cannot compute with floats of eight bits.
        numbers = value.float() if value.element_size() == 1 else value
        # If the sum is finite, all terms are, and the sum needs no memory; a sum of finite values can be infinite.
        if torch.isfinite(numbers.sum()) or torch.isfinite(numbers).all():
            continue
        expected = network_state.get(name)
        if not torch.isnan(numbers).any() and expected is not None and torch.isinf(expected).any():
            continue
        problem = "NaN" if torch.isnan(numbers).any() else "infinite numbers"
        raise HeatproofError(
            f"The weights {label} have {problem} in {name!r}, so the network's output is meaningless: use another "
            "checkpoint, or train again with a lower lr."
        )

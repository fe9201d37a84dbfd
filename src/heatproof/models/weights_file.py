"""Read files of weights: the only code that opens them, and that checks what they say before memory is asked for."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import psutil
import torch
from safetensors import SafetensorError, safe_open

from heatproof.errors import HeatproofError, fault_of
from heatproof.storage.reading import require_regular

# Training state beside the weights, twice the precision, and a head for far more classes.
TIMES, MORE = 16, 2**30


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
            return {name.removeprefix(prefix): file.get_tensor(name) for name in names}
    except (OSError, SafetensorError, MemoryError):
        raise
    except Exception as error:  # types that the library knows and PyTorch does not fail in other ways
        raise SafetensorError(f"{type(error).__name__}: {error}") from None


def read_torch(path: str | Path, called: str, most: int | None = None) -> Any:
    """Read what ``torch.load(weights_only=True)`` accepts, on the CPU, after a look at its shapes alone.

    Raises
    ------
    HeatproofError
        If it needs a pickle, is damaged, or holds tensors for which the file has no bytes.
    """
    size = require_size(path, called, most)
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as parts:
                unpacked = sum(part.file_size for part in parts.infolist())
            if unpacked > size:
                raise ValueError(f"its parts are compressed and unpack to {unpacked:,} bytes")
        # On this device tensors have shapes and storages have sizes, and neither has memory.
        outline = list(_tensors(torch.load(path, map_location="meta", weights_only=True)))
        _require_bytes(outline, size)
        return torch.load(path, map_location="cpu", weights_only=True)
    except MemoryError:
        # A damaged length can ask for any amount.
        if size > psutil.virtual_memory().available / 8:
            raise
        raise HeatproofError(
            f"The checkpoint {called} asks for more memory than its {size:,} bytes can need: it is damaged or hostile."
        ) from None
    except Exception as error:  # a damaged file fails in any way
        fault = fault_of(error) if isinstance(error, OSError) else None
        raise HeatproofError(
            fault or f"The checkpoint {called} is neither safetensors nor weights alone ({_what_else(path, error)})."
        ) from None


def _what_else(path: str | Path, error: Exception) -> str:
    """Return what a file is that holds no weights, and the remedy, in place of what PyTorch says of it."""
    with open(path, "rb") as file:
        head = file.read(512)
    if not head:
        return "it is empty: get it again"
    if head.lstrip()[:1] == b"<":
        return "it is a web page: check the address, and get it again"
    if isinstance(error, UnpicklingError) and (zipfile.is_zipfile(path) or head[:1] == b"\x80"):
        return "it holds more than weights: save its state_dict, because a whole pickled model can run code"
    # Of what PyTorch says of damaged files nothing helps; what was found here does.
    found = f"; {error}" if type(error) is ValueError else ""
    return f"it was cut off, or is of another kind{found}: get it again, or save the network's state_dict"


def _tensors(value: Any, name: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _tensors(item, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list | tuple | set):
        for place, item in enumerate(value):
            yield from _tensors(item, f"{name}.{place}" if name else str(place))


def _require_bytes(outline: Collection[tuple[str, torch.Tensor]], size: int) -> None:
    """Refuse tensors that the bytes of a file cannot fill; views of one storage may share it."""
    storages: dict[int, int] = {}
    for name, value in outline:
        if value.layout != torch.strided or value.is_quantized:
            raise ValueError(f"the tensor {name!r} is sparse or quantized")
        storages[value.untyped_storage()._cdata] = value.untyped_storage().nbytes()
        asked = value.numel() * value.element_size()
        # A stride of zero repeats one number as often as the shape says.
        if asked > max(size, value.untyped_storage().nbytes()):
            raise ValueError(
                f"the tensor {name!r} of shape {tuple(value.shape)} needs {asked:,} bytes, and the file has {size:,}"
            )
    if sum(storages.values()) > size:
        raise ValueError(f"its tensors need {sum(storages.values()):,} bytes, and the file has {size:,}")


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

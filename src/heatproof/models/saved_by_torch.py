"""Read files of ``torch.save`` with ``torch.load(weights_only=True)``, within limits of memory and time.

PyTorch calls only what weights need, but trusts the sizes that a file declares, so that a few bytes can request
gigabytes or hours. Therefore, a child process with limited memory and time inspects the shapes first.
"""

from __future__ import annotations

import os
import resource
import zipfile
from collections.abc import Callable, Collection, Iterator, Mapping
from pickle import UnpicklingError
from typing import Any, BinaryIO

import psutil
import torch

# More than any network has.
MAX_TENSORS = 100_000
# Inspecting the shapes of the largest networks takes some MiB and a second.
MIN_MEMORY, MEMORY_FACTOR, SECONDS = 2**30, 2, 8
MAX_MESSAGE = 200


class DamagedFile(ValueError):
    """A file contradicts itself, or needs more than its bytes can justify; the message says how."""


def read(file: BinaryIO, size: int) -> Any:
    """Return the saved value, with tensors on the CPU.

    Parameters
    ----------
    file
        File that is open for reading.
    size
        Number of bytes of the file.

    Returns
    -------
    object
        The saved value.

    Raises
    ------
    UnpicklingError
        If the file contains more than weights.
    DamagedFile
        If the file declares tensors that are larger than itself, or needs more memory or time than its bytes can
        justify. Damaged files can raise other exceptions too.
    """
    _in_bounds(lambda: _inspect(file, size), max(MIN_MEMORY, MEMORY_FACTOR * size))
    file.seek(0)
    return torch.load(file, map_location="cpu", weights_only=True)


def _in_bounds(function: Callable[[], None], memory: int) -> None:
    """Call a function in a child process with a limit of memory in bytes and of time, and raise what it raised."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        outcome = b"damaged it cannot be read"
        try:
            used, (_, most) = psutil.Process().memory_info().vms, resource.getrlimit(resource.RLIMIT_AS)
            resource.setrlimit(resource.RLIMIT_AS, (used + memory, most))
            resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
            function()
            outcome = b"whole"
        except MemoryError:
            outcome = b""
        except UnpicklingError as error:
            outcome = f"pickle {str(error)[:MAX_MESSAGE]}".encode(errors="replace")
        except Exception as error:  # a damaged file fails in any way
            outcome = f"damaged {str(error)[:MAX_MESSAGE] if isinstance(error, DamagedFile) else ''}".encode(
                errors="replace"
            )
        finally:
            # Skip exit handlers, which belong to the parent process.
            os.write(writing, outcome)
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        kind, _, message = pipe.read(8 * MAX_MESSAGE).decode(errors="replace").partition(" ")
    os.waitpid(child, 0)
    if kind == "whole":
        return
    if kind == "pickle":
        raise UnpicklingError(message)
    raise DamagedFile(message if kind == "damaged" else "it asks for more memory or time than its bytes can need")


def _inspect(file: BinaryIO, size: int) -> None:
    """Refuse a file whose tensors are larger than the file, after inspecting their shapes."""
    file.seek(0)
    if zipfile.is_zipfile(file):
        with zipfile.ZipFile(file) as parts:
            unpacked = sum(part.file_size for part in parts.infolist())
        if unpacked > size:
            raise DamagedFile(f"its parts are compressed and unpack to {unpacked:,} bytes")
    file.seek(0)
    # On the meta device, tensors have shapes and storages have sizes, but neither uses memory.
    _require_bytes(list(_tensors(torch.load(file, map_location="meta", weights_only=True))), size)


def _tensors(value: Any, name: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _tensors(item, f"{name}.{key}"[-MAX_MESSAGE:] if name else str(key)[:MAX_MESSAGE])
    elif isinstance(value, list | tuple | set):
        for index, item in enumerate(value):
            yield from _tensors(item, f"{name}.{index}"[-MAX_MESSAGE:] if name else str(index))


def _require_bytes(tensors: Collection[tuple[str, torch.Tensor]], size: int) -> None:
    """Refuse tensors that are larger than the file; views of one storage may share its bytes."""
    if len(tensors) > MAX_TENSORS:
        raise DamagedFile(f"it has {len(tensors):,} tensors, which no network has")
    storages: dict[int, int] = {}
    for name, value in tensors:
        if value.layout != torch.strided or value.is_quantized:
            raise DamagedFile(f"the tensor {name!r} is sparse or quantized")
        storages[value.untyped_storage()._cdata] = value.untyped_storage().nbytes()
        needed = value.numel() * value.element_size()
        # A stride of zero repeats one number, so that the shape can be larger than the storage.
        if needed > max(size, value.untyped_storage().nbytes()):
            raise DamagedFile(
                f"the tensor {name!r} of shape {tuple(value.shape)} needs {needed:,} bytes, and the file has {size:,}"
            )
    if sum(storages.values()) > size:
        raise DamagedFile(f"its tensors need {sum(storages.values()):,} bytes, and the file has {size:,}")

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
MOST_TENSORS = 100_000
# Inspecting the shapes of the largest networks takes some MiB and a second.
LEAST_MEMORY, TIMES, SECONDS = 2**30, 2, 8
MOST_TOLD = 200


class Damaged(ValueError):
    """A file contradicts itself, or needs more than its bytes can justify; the message says how."""


def read(file: BinaryIO, size: int) -> Any:
    """Return the saved value, with tensors on the CPU.

    Parameters
    ----------
    file
        File that is open for reading.
    size
        Number of bytes of the file.

    Raises
    ------
    UnpicklingError
        If the file contains more than weights.
    DamagedFile
        If the file declares tensors that are larger than itself, or needs more memory or time than its bytes can
        justify. Damaged files can raise other exceptions too.
    """
    _in_bounds(lambda: _look(file, size), max(LEAST_MEMORY, TIMES * size))
    file.seek(0)
    return torch.load(file, map_location="cpu", weights_only=True)


def _in_bounds(look: Callable[[], None], memory: int) -> None:
    """Call a function in a child process with a limit of memory in bytes and of time, and raise what it raised."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        said = b"damaged it cannot be read"
        try:
            used, (_, most) = psutil.Process().memory_info().vms, resource.getrlimit(resource.RLIMIT_AS)
            resource.setrlimit(resource.RLIMIT_AS, (used + memory, most))
            resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
            look()
            said = b"whole"
        except MemoryError:
            said = b""
        except UnpicklingError as error:
            said = f"pickle {str(error)[:MOST_TOLD]}".encode(errors="replace")
        except Exception as error:  # a damaged file fails in any way
            said = f"damaged {str(error)[:MOST_TOLD] if isinstance(error, Damaged) else ''}".encode(errors="replace")
        finally:
            # Skip exit handlers, which belong to the parent process.
            os.write(writing, said)
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as answer:
        kind, _, told = answer.read(8 * MOST_TOLD).decode(errors="replace").partition(" ")
    os.waitpid(child, 0)
    if kind == "whole":
        return
    if kind == "pickle":
        raise UnpicklingError(told)
    raise Damaged(told if kind == "damaged" else "it asks for more memory or time than its bytes can need")


def _look(file: BinaryIO, size: int) -> None:
    """Refuse a file whose tensors are larger than the file, after inspecting their shapes."""
    file.seek(0)
    if zipfile.is_zipfile(file):
        with zipfile.ZipFile(file) as parts:
            unpacked = sum(part.file_size for part in parts.infolist())
        if unpacked > size:
            raise Damaged(f"its parts are compressed and unpack to {unpacked:,} bytes")
    file.seek(0)
    # On the meta device, tensors have shapes and storages have sizes, but neither uses memory.
    _require_bytes(list(_tensors(torch.load(file, map_location="meta", weights_only=True))), size)


def _tensors(value: Any, name: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _tensors(item, f"{name}.{key}"[-MOST_TOLD:] if name else str(key)[:MOST_TOLD])
    elif isinstance(value, list | tuple | set):
        for place, item in enumerate(value):
            yield from _tensors(item, f"{name}.{place}"[-MOST_TOLD:] if name else str(place))


def _require_bytes(outline: Collection[tuple[str, torch.Tensor]], size: int) -> None:
    """Refuse tensors that are larger than the file; views of one storage may share its bytes."""
    if len(outline) > MOST_TENSORS:
        raise Damaged(f"it has {len(outline):,} tensors, which no network has")
    storages: dict[int, int] = {}
    for name, value in outline:
        if value.layout != torch.strided or value.is_quantized:
            raise Damaged(f"the tensor {name!r} is sparse or quantized")
        storages[value.untyped_storage()._cdata] = value.untyped_storage().nbytes()
        asked = value.numel() * value.element_size()
        # A stride of zero repeats one number, so that the shape can be larger than the storage.
        if asked > max(size, value.untyped_storage().nbytes()):
            raise Damaged(
                f"the tensor {name!r} of shape {tuple(value.shape)} needs {asked:,} bytes, and the file has {size:,}"
            )
    if sum(storages.values()) > size:
        raise Damaged(f"its tensors need {sum(storages.values()):,} bytes, and the file has {size:,}")

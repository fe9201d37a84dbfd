"""Read what ``torch.save`` wrote with ``torch.load(weights_only=True)``, within bounds of memory and time.

PyTorch calls nothing but what weights need, and believes the sizes that a file says: a few bytes can ask for gigabytes,
or for hours. So a process of its own, of which the system limits memory and time, looks at the shapes first.
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
# A look at shapes takes some MiB and a second for the largest networks.
LEAST_MEMORY, TIMES, SECONDS = 2**30, 2, 8
MOST_TOLD = 200


class Damaged(ValueError):
    """A file contradicts itself, or asks for more than its bytes can need; the text says how."""


def read(file: BinaryIO, size: int) -> Any:
    """Return the value that was saved, with tensors on the CPU.

    Parameters
    ----------
    file
        Open for reading.
    size
        Its number of bytes.

    Raises
    ------
    UnpicklingError
        If it holds more than weights.
    Damaged
        If it holds tensors for which it has no bytes, or asks for more memory or time than its bytes can need. Damage
        can raise other exceptions too.
    """
    _in_bounds(lambda: _look(file, size), max(LEAST_MEMORY, TIMES * size))
    file.seek(0)
    return torch.load(file, map_location="cpu", weights_only=True)


def _in_bounds(look: Callable[[], None], memory: int) -> None:
    """Do something in a process of its own, with so many bytes of memory, and raise what it raised."""
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
            # Nothing that this process would do at its end is for the copy to do.
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
    """Refuse a file whose tensors are larger than it is, by a look at their shapes."""
    file.seek(0)
    if zipfile.is_zipfile(file):
        with zipfile.ZipFile(file) as parts:
            unpacked = sum(part.file_size for part in parts.infolist())
        if unpacked > size:
            raise Damaged(f"its parts are compressed and unpack to {unpacked:,} bytes")
    file.seek(0)
    # On this device tensors have shapes and storages have sizes, and neither has memory.
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
    """Refuse tensors that the bytes of a file cannot fill; views of one storage may share it."""
    if len(outline) > MOST_TENSORS:
        raise Damaged(f"it has {len(outline):,} tensors, which no network has")
    storages: dict[int, int] = {}
    for name, value in outline:
        if value.layout != torch.strided or value.is_quantized:
            raise Damaged(f"the tensor {name!r} is sparse or quantized")
        storages[value.untyped_storage()._cdata] = value.untyped_storage().nbytes()
        asked = value.numel() * value.element_size()
        # A stride of zero repeats one number as often as the shape says.
        if asked > max(size, value.untyped_storage().nbytes()):
            raise Damaged(
                f"the tensor {name!r} of shape {tuple(value.shape)} needs {asked:,} bytes, and the file has {size:,}"
            )
    if sum(storages.values()) > size:
        raise Damaged(f"its tensors need {sum(storages.values()):,} bytes, and the file has {size:,}")

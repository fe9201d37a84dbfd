"""Read what ``torch.save`` wrote, as data: nothing is unpickled and nothing is called.

The pickle in such a file is a program. `_Steps` follows those of its steps that put values together or say which bytes
are a tensor. The few other objects that PyTorch writes beside weights (sets, bytes, devices) are passed over. Memory is
asked for as the file has bytes, and each step makes at most one small object, so that no file can ask for more.
"""

from __future__ import annotations

import io
import math
import pickletools
import struct
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, BinaryIO

import torch

# Of a pickle or a list of members. Those of published checkpoints, which have no numbers in it, have some hundred KB.
MOST_BYTES = 2**25
# About 30 name one tensor.
MOST_STEPS = 2_000_000
MOST_SIDES = 64
# The largest networks have some thousand, and training state three times as many.
MOST_TENSORS = 100_000
# What files before PyTorch 1.6 begin with.
MAGIC, VERSION = 0x1950A86A20F9469CFC6C, 1001
BOUND = 2**60

STORAGES = {
    "DoubleStorage": torch.float64,
    "FloatStorage": torch.float32,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
    "ComplexDoubleStorage": torch.complex128,
    "ComplexFloatStorage": torch.complex64,
    "UntypedStorage": torch.uint8,
}
# What PyTorch's reader of weights takes beside them. Nobody asks for it here, so nothing is made of it.
PASSED_OVER = {
    *("builtins.set", "builtins.bytearray", "builtins.complex", "_codecs.encode", "collections.Counter", "torch.Size"),
    *("__builtin__.set", "__builtin__.bytearray", "__builtin__.complex", "torch.device", "torch.Tensor"),
    *("torch.serialization._get_layout", "torch.nn.parameter.Parameter"),
}
REBUILD = "torch._utils._rebuild_"
PLAIN = {f"{REBUILD}tensor", f"{REBUILD}tensor_v2", f"{REBUILD}tensor_v3"}
PARAMETER = {f"{REBUILD}parameter", f"{REBUILD}parameter_with_state"}
SUBCLASS = "torch._tensor._rebuild_from_type_v2"
MAPPING = "collections.OrderedDict"

GIVEN = {"BININT", "BININT1", "BININT2", "BINFLOAT", "BINUNICODE", "LONG1"}
FRESH: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_DICT": dict,
    "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple,
    "EMPTY_SET": lambda: Unread(),
}
LENGTHS = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
PUT, GET = {"BINPUT", "LONG_BINPUT"}, {"BINGET", "LONG_BINGET"}


class NoWeights(Exception):
    """A file holds objects whose making would run code."""


class Damaged(Exception):
    """A file contradicts itself; the text, if any, says how."""


class Unread:
    """Stands for an object that is no weight and was passed over."""


class _Name(str):
    """Name of a global, which no text of a pickle is."""


@dataclass(frozen=True)
class _Storage:
    data: torch.Tensor
    dtype: torch.dtype


def read(file: BinaryIO, size: int) -> Any:
    """Return the value that was saved, with tensors on the CPU.

    Parameters
    ----------
    file
        Open at its first byte.
    size
        Its number of bytes.

    Raises
    ------
    NoWeights
        If it holds objects that are no weights, nor what PyTorch lets stand beside them.
    Damaged
        If it says that it holds more than it has bytes, or contradicts itself. Damage can raise other exceptions too.
    """
    magic = file.read(4)
    file.seek(0)
    return (_read_zip if magic == b"PK\x03\x04" else _read_old)(file, size)


class _Pieces(io.BufferedReader):
    """File of which no more is read at once than a list of members may have."""

    def read(self, size: int | None = -1, /) -> bytes:
        """Return as many bytes, or the rest of the file, if that is allowed."""
        content = super().read(MOST_BYTES + 1 if size is None or size < 0 else min(size, MOST_BYTES + 1))
        if len(content) > MOST_BYTES:
            raise Damaged("its list of parts is longer than that of any checkpoint")
        return content


def _read_zip(file: BinaryIO, size: int) -> Any:
    pieces = _Pieces(file)  # type: ignore[arg-type]
    try:
        with zipfile.ZipFile(pieces) as archive:
            parts = {part.filename: part for part in archive.infolist()}
        if any(part.compress_type or part.compress_size != part.file_size for part in parts.values()):
            unpacked = sum(part.file_size for part in parts.values())
            raise Damaged(f"its parts are compressed and unpack to {unpacked:,} bytes")
        roots = [name.removesuffix("data.pkl") for name in parts if name.endswith("/data.pkl")]
        if len(roots) != 1:
            raise Damaged("it has no part data.pkl, or several")
        order = parts.get(f"{roots[0]}byteorder")
        if order is not None and bytes(_content(pieces, order, 16)) != b"little":
            raise Damaged("its numbers are not little-endian")

        def fill(key: str, into: torch.Tensor) -> None:
            part = parts[f"{roots[0]}data/{key}"]
            if part.file_size != len(into):
                raise Damaged(f"its part {key} has {part.file_size:,} bytes and should have {len(into):,}")
            _fill(pieces, part, _bytes_of(into))

        steps = _Steps(size, fill)
        return steps.follow(io.BytesIO(_content(pieces, parts[f"{roots[0]}data.pkl"], MOST_BYTES)))
    finally:
        # Whoever opened the file closes it.
        pieces.detach()


def _content(file: BinaryIO, part: zipfile.ZipInfo, most: int) -> bytearray:
    if part.file_size > most:
        raise Damaged(f"its part {part.filename} has {part.file_size:,} bytes, more than {most:,}")
    content = bytearray(part.file_size)
    _fill(file, part, memoryview(content))
    return content


def _fill(file: BinaryIO, part: zipfile.ZipInfo, into: memoryview) -> None:
    file.seek(part.header_offset)
    header = file.read(30)
    if header[:4] != b"PK\x03\x04":
        raise Damaged("a part is not where it should be")
    file.seek(part.header_offset + 30 + sum(struct.unpack("<HH", header[26:30])))
    _read_into(file, into)
    # PyTorch can be told to write none.
    if part.CRC and zlib.crc32(into) != part.CRC:
        raise Damaged(f"its part {part.filename} has another checksum")


def _bytes_of(storage: torch.Tensor) -> memoryview:
    numbers: Any = storage.numpy()
    return memoryview(numbers)


def _read_into(file: BinaryIO, into: memoryview) -> None:
    done = 0
    while done < len(into):
        count = file.readinto(into[done:])  # type: ignore[attr-defined]
        if not count:
            raise Damaged("it ends too early")
        done += count


def _read_old(file: BinaryIO, size: int) -> Any:
    """Read the format before PyTorch 1.6: five pickles, and the bytes of each storage behind its length."""
    pickles = io.BytesIO(file.read(min(size, MOST_BYTES)))
    left: dict[str, torch.Tensor] = {}
    steps = _Steps(size, left.__setitem__)
    try:
        if steps.follow(pickles) != MAGIC:
            raise NoWeights
    except NoWeights:
        raise
    except Exception:
        # The oldest format of all, and what is no checkpoint.
        raise (NoWeights() if pickles.getvalue()[:1] == b"\x80" else Damaged()) from None
    version, system = steps.follow(pickles), steps.follow(pickles)
    if version != VERSION or not isinstance(system, dict) or system.get("little_endian") is not True:
        raise Damaged("it is of another version, or its numbers are not little-endian")
    value, keys = steps.follow(pickles), steps.follow(pickles)
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys) or sorted(keys) != sorted(left):
        raise Damaged("it does not say where its numbers are")
    place = pickles.tell()
    for key in keys:
        data = left[key]
        file.seek(place)
        (count,) = struct.unpack("<q", file.read(8))
        if count * steps.widths[key] != len(data):
            raise Damaged(f"its part {key} has {count:,} numbers and should have {len(data) // steps.widths[key]:,}")
        _read_into(file, _bytes_of(data))
        place += 8 + len(data)
    return value


class _Steps:
    """Follows the steps of pickles.

    Parameters
    ----------
    size
        Bytes of the file: all storages together have no more, and neither has a tensor.
    fill
        Called with the key of a storage and a tensor of its bytes, to write the file's bytes to, now or later.
    """

    def __init__(self, size: int, fill: Callable[[str, torch.Tensor], None]) -> None:
        self.size, self.fill = size, fill
        self.left, self.tensors = MOST_STEPS, 0
        self.data: dict[str, torch.Tensor] = {}
        self.widths: dict[str, int] = {}
        self.bytes = 0

    def follow(self, pickle: io.BytesIO) -> Any:
        """Return the value of the next pickle."""
        stack: list[Any] = []
        marks: list[list[Any]] = []
        memo: dict[int, Any] = {}
        given: Any
        for opcode, given, _ in pickletools.genops(pickle):
            self._count(1)
            step = opcode.name
            if step in GIVEN:
                stack.append(given)
            elif step in PUT:
                memo[given] = stack[-1]
            elif step in GET:
                stack.append(memo[given])
            elif step in FRESH:
                stack.append(FRESH[step]())
            elif step == "MARK":
                marks.append(stack)
                stack = []
            elif step in LENGTHS:
                stack[-LENGTHS[step] :] = [tuple(stack[-LENGTHS[step] :])]
            elif step == "TUPLE":
                items, stack = stack, marks.pop()
                stack.append(tuple(items))
            elif step in ("APPEND", "APPENDS"):
                items = [stack.pop()] if step == "APPEND" else stack
                stack = stack if step == "APPEND" else marks.pop()
                _of(list, stack[-1]).extend(items)
            elif step in ("SETITEM", "SETITEMS"):
                items = [stack.pop(-2), stack.pop()] if step == "SETITEM" else stack
                stack = stack if step == "SETITEM" else marks.pop()
                # A counter is passed over with what it counts.
                if not isinstance(stack[-1], Unread):
                    _of(dict, stack[-1]).update(zip(map(_key, items[::2]), items[1::2], strict=True))
            elif step == "GLOBAL":
                stack.append(_known(given))
            elif step in ("REDUCE", "NEWOBJ"):
                arguments, function = stack.pop(), stack.pop()
                called = stack[-1] if stack and type(stack[-1]) is str else ""
                stack.append(self._made(function, arguments, called))
            elif step == "BUILD":
                # Versions of layers beside a state dict, and what belongs to objects that are passed over.
                stack.pop()
            elif step == "BINPERSID":
                stack.append(self._storage(*_of(tuple, stack.pop())))
            elif step == "SHORT_BINSTRING":
                # Text of Python 2.
                stack.append(given.encode("latin-1").decode("utf-8"))
            elif step == "STOP":
                return stack.pop()
            elif step != "PROTO":
                raise NoWeights
        raise Damaged("it ends too early")

    def _count(self, steps: int) -> None:
        self.left -= steps
        if self.left < 0:
            raise Damaged(f"it takes more than {MOST_STEPS:,} steps to read, which no checkpoint does")

    def _made(self, function: Any, given: Any, called: str) -> Any:
        if not isinstance(function, _Name) or not isinstance(given, tuple):
            raise NoWeights
        if function == MAPPING:
            pairs = _of(list, given[0]) if given else []
            self._count(len(pairs))
            return {_key(key): value for key, value in pairs}
        if function == SUBCLASS and isinstance(given[0], _Name) and given[0] != SUBCLASS:
            return self._made(given[0], given[2], called)
        if function in PARAMETER:
            return _of(torch.Tensor, given[0])
        if function in PLAIN:
            return self._tensor(called, str(function).endswith("3"), *given)
        if function.startswith(REBUILD):
            raise Damaged(f"the tensor {called!r} is sparse or quantized, or has no numbers")
        if function in PASSED_OVER:
            return Unread()
        raise NoWeights

    def _storage(self, kind: Any, name: Any, key: Any, device: Any, count: Any, view: Any = None) -> _Storage:
        dtype = STORAGES[_of(_Name, name).rpartition(".")[2]]
        if kind != "storage" or not isinstance(key, str):
            raise NoWeights
        asked = _whole(count) * dtype.itemsize
        if key not in self.data:
            self.bytes += asked
            if self.bytes > self.size:
                raise Damaged(f"its tensors need {self.bytes:,} bytes, and the file has {self.size:,}")
            self.data[key], self.widths[key] = torch.empty(asked, dtype=torch.uint8), dtype.itemsize
            self.fill(key, self.data[key])
        data = self.data[key]
        if len(data) != asked:
            raise Damaged(f"its part {key} has {len(data):,} bytes and {asked:,} bytes")
        if view is not None:
            _, start, length = _of(tuple, view)
            data = data[_whole(start) * dtype.itemsize :][: _whole(length) * dtype.itemsize]
        return _Storage(data, dtype)

    def _tensor(
        self, called: str, typed: bool, storage: Any, offset: Any, shape: Any, strides: Any, *more: Any
    ) -> torch.Tensor:
        self.tensors += 1
        if self.tensors > MOST_TENSORS:
            raise Damaged(f"it has more than {MOST_TENSORS:,} tensors, which no network has")
        # Behind them: whether it has a gradient, hooks, of the third kind a type, and what PyTorch computes later.
        dtype = _of(torch.dtype, more[2]) if typed else _of(_Storage, storage).dtype
        later = more[3:] if typed else more[2:]
        if any(later):
            raise Damaged(f"the tensor {called!r} is conjugated or negated")
        sides, steps = (tuple(_whole(one) for one in _of(tuple, each)[:MOST_SIDES]) for each in (shape, strides))
        asked = math.prod(sides) * dtype.itemsize
        # A stride of zero repeats one number as often as the shape says.
        if asked > self.size or len(shape) > MOST_SIDES or len(strides) > MOST_SIDES:
            raise Damaged(
                f"the tensor {called!r} of shape {sides} needs {asked:,} bytes, and the file has {self.size:,}"
            )
        flat = _of(_Storage, storage).data.view(dtype)
        return flat.as_strided(sides, steps, flat.storage_offset() + _whole(offset))


def _known(name: str) -> Any:
    """Return what stands for a global of a pickle: a type of numbers, or a name."""
    module, _, last = name.partition(" ")
    whole = f"{module}.{last}"
    dtype = vars(torch).get(last) if module == "torch" else None
    if isinstance(dtype, torch.dtype):
        return dtype
    if module in ("torch", "torch.cuda", "torch.storage") and last.endswith("Storage"):
        if last not in STORAGES:
            raise Damaged(f"a tensor is quantized ({last})")
        return _Name(last)
    if whole not in (*PASSED_OVER, MAPPING, SUBCLASS) and not whole.startswith(REBUILD):
        raise NoWeights
    return _Name(whole)


def _of(kind: type[Any], value: Any) -> Any:
    if not isinstance(value, kind):
        raise Damaged("its parts do not fit together")
    return value


def _whole(value: Any) -> int:
    if type(value) is not int or not 0 <= value < BOUND:
        raise Damaged("a size in it is none")
    return value


def _key(value: Any) -> Any:
    """Return a key of a mapping: of others, such as nested tuples, a hash could take any time."""
    return value if type(value) is str or (type(value) is int and abs(value) < BOUND) else Unread()

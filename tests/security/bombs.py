"""Checkpoints that request far more memory or time than their size justifies, and the cost of reading them.

    python tests/security/bombs.py FOLDER [NAME …]

writes them into the folder, reads each in a process with limited memory, and prints its bytes, the seconds, the peak
memory and the message.
"""

from __future__ import annotations

import io
import json
import pickle
import resource
import struct
import subprocess
import sys
import tarfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from heatproof.errors import HeatproofError, machine_fault

MAGIC = pickle.dumps(0x1950A86A20F9469CFC6C, 2) + pickle.dumps(1001, 2)
SYSTEM = pickle.dumps({"protocol_version": 1001, "little_endian": True}, 2)
LIMIT, SECONDS = 2 * 2**30, 30.0
ALLOWED_OUTCOMES = ("The checkpoint ", "The weights ", "read")


def named(name: str) -> bytes:
    module, _, last = name.rpartition(".")
    return f"c{module}\n{last}\n".encode()


def number(value: int) -> bytes:
    return pickle.dumps(value, 2)[2:-1]


def text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value.encode())) + value.encode()


def called(name: str, *arguments: bytes) -> bytes:
    return named(name) + b"(" + b"".join(arguments) + b"tR"


def storage(count: int, key: str = "0", kind: str = "torch.FloatStorage") -> bytes:
    return b"(" + text("storage") + named(kind) + text(key) + text("cpu") + number(count) + b"tQ"


def tensor(data: bytes, shape: bytes, strides: bytes, more: bytes = b"\x89N") -> bytes:
    return called("torch._utils._rebuild_tensor_v2", data, number(0), shape, strides, more)


def sides(*lengths: int) -> bytes:
    return b"(" + b"".join(map(number, lengths)) + b"t"


def put(index: int) -> bytes:
    return b"r" + struct.pack("<I", index)


def get(index: int) -> bytes:
    return b"j" + struct.pack("<I", index)


def pairs_inside(levels: int) -> bytes:
    """Return nested tuples that share their elements: hashing or printing them takes 2 ** levels steps."""
    return number(1) + b"".join(b"\x86" if not level else b"q\x00h\x00\x86" for level in range(1, levels))


def entry(key: bytes, value: bytes) -> bytes:
    return b"}" + key + value + b"s"


WEIGHT = tensor(storage(1), sides(1), sides(1))
BEFORE = b"}(" + text("w") + WEIGHT + text("x") + b"]("
PICKLES: dict[str, Callable[[], bytes]] = {
    "a bytearray": lambda: called("builtins.bytearray", number(2_700_000_000)),
    "a bytearray of Python 2": lambda: called("__builtin__.bytearray", number(2_700_000_000)),
    "an untyped storage": lambda: called("torch.storage.UntypedStorage", number(2_700_000_000)),
    "an untyped storage as object": lambda: named("torch.storage.UntypedStorage") + number(2**32) + b"\x85\x81",
    "a tensor of an old type": lambda: called("torch.FloatTensor", number(2**30)),
    "a tensor by its type": lambda: called("torch.Tensor", number(2**30)),
    "hexadecimal of hexadecimal": lambda: (
        called("_codecs.encode", text("aa" * 500), text("ascii"))
        + b"".join(put(0) + named("_codecs.encode") + get(0) + text("hex_codec") + b"\x86R" for _ in range(24))
    ),
    "a codec that widens": lambda: called("_codecs.encode", text("a" * 10**6), text("utf-32")),
    "a counter of a counter": lambda: called("collections.Counter", text("ab" * 10**6)),
    "a mapping of the same list, often": lambda: (
        b"](" + b"".join(number(value % 100) + number(1) + b"\x86" for value in range(10**5)) + b"e" + put(0) + b"]("
        + (named("collections.OrderedDict") + get(0) + b"\x85R") * 10**4 + b"e"
    ),
    "state put into mappings, often": lambda: (
        b"}(" + b"".join(text(str(value)) + b"N" for value in range(10**5)) + b"u" + put(0) + b"]("
        + (named("collections.OrderedDict") + b")R" + get(0) + b"b") * 10**4 + b"e"
    ),
    "a key to hash for ever": lambda: entry(pairs_inside(60), b"N"),
    "a key of a million parts, often": lambda: (
        b"(" + b"K\x01" * 10**6 + b"t" + put(0) + b"}(" + (get(0) + b"N") * 10**5 + b"u"
    ),
    "keys of one hash": lambda: (
        b"}(" + b"".join(number(value * (2**61 - 1)) + b"N" for value in range(1, 10**5)) + b"u"
    ),
    "a function to print for ever": lambda: pairs_inside(40) + b")R",
    "a persistent name to print for ever": lambda: b"(" + pairs_inside(40) + b"tQ",
    "lists in each other": lambda: b"]q\x00h\x00ah\x00a",
    "a mapping in itself": lambda: b"}q\x00" + text("state_dict") + b"h\x00s",
    "a mapping in itself, with weights": lambda: b"}q\x00" + text("model") + b"h\x00s" + text("w") + WEIGHT + b"s",
    "lists in lists": lambda: b"]" * 10**6 + b"a" * (10**6 - 1),
    "tuples in tuples": lambda: number(1) + b"\x85" * 10**6,
    "sets": lambda: b"](" + b"\x8f" * 10**7 + b"e",
    "lists": lambda: b"](" + b"]" * 2 * 10**7 + b"e",
    "marks": lambda: b"(" * 2 * 10**7,
    "places of a memo": lambda: b"N" + b"".join(put(index) for index in range(3 * 10**6)),
    "a far place of a memo": lambda: b"Nr\xff\xff\xff\xff",
    "a text longer than the file": lambda: b"X\xff\xff\xff\xff",
    "bytes longer than the file": lambda: b"\x8e" + struct.pack("<Q", 2**40),
    "a number of many digits": lambda: b"\x8b" + struct.pack("<i", 10**7) + b"\xff" * 10**7,
    "a frame": lambda: b"\x95" + struct.pack("<Q", 2**62),
    "a name without end": lambda: b"c" + b"a" * 10**7,
    "a storage larger than the file": lambda: storage(2**40),
    "a storage of a negative length": lambda: storage(-1),
    "storages without numbers": lambda: (
        b"](" + b"".join(storage(0, str(key)) for key in range(5 * 10**4)) + b"e"
    ),
    "a tensor of one number, often": lambda: tensor(storage(1), sides(2**20, 2**20), sides(0, 0)),
    "tensors of one storage, often": lambda: (
        storage(1) + put(0) + b"](" + tensor(get(0), sides(1), sides(1)) * 10**5 + b"e"
    ),
    "a tensor of a million sides": lambda: (
        tensor(storage(1), b"(" + b"K\x01" * 10**6 + b"t", b"(" + b"K\x01" * 10**6 + b"t")
    ),
    "a shape that overflows": lambda: tensor(storage(1), sides(2**62, 2**62, 0), sides(1, 1, 1)),
    "a tensor behind the end": lambda: tensor(storage(1), sides(1), sides(1), b"\x89N").replace(
        number(0) + b"(", number(2**40) + b"(", 1
    ),
    "a sparse tensor": lambda: called("torch._utils._rebuild_sparse_tensor", text("coo"), sides(2**40)),
    "a tensor without storage": lambda: called(
        "torch._utils._rebuild_meta_tensor_no_storage", named("torch.float32"), sides(2**40), sides(1), b"\x89"
    ),
    "a subclass of a subclass": lambda: (
        WEIGHT + (put(0) + named("torch._tensor._rebuild_from_type_v2") * 2 + named("torch.Tensor") + get(0)
        + b"}tR") * 3
    ),
    "code": lambda: called("builtins.exec", text("import heatproof_was_here")),
    "code of an old opcode": lambda: b"(" + text("true") + b"ios\nsystem\n",
    "code by a stack": lambda: text("os") + text("system") + b"\x93" + text("true") + b"\x85R",
}  # fmt: skip


def new(steps: bytes, method: int = zipfile.ZIP_STORED, more: dict[str, bytes] | None = None) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        archive.writestr("a/data.pkl", b"\x80\x02" + steps + b".")
        archive.writestr("a/byteorder", b"little")
        archive.writestr("a/version", b"3\n")
        for name, content in {"a/data/0": bytes(4), **(more or {})}.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def old(steps: bytes) -> bytes:
    # After the length of a storage is the storage that it is a view of, which PyTorch does not write any more.
    steps = steps.replace(b"tQ", b"NtQ")
    return MAGIC + SYSTEM + b"\x80\x02" + steps + b"." + pickle.dumps(["0"], 2) + struct.pack("<q", 1) + bytes(4)


def over_each_other() -> bytes:
    """Return an archive in which 1,000 members of 4 MB share the same bytes."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        steps = b"](" + b"".join(storage(10**6, str(key)) for key in range(1000)) + b"e"
        archive.writestr("a/data.pkl", b"\x80\x02" + steps + b".")
        archive.writestr("a/data/0", bytes(4 * 10**6))
        shared = archive.getinfo("a/data/0")
        for number in range(1, 1000):
            again = zipfile.ZipInfo(f"a/data/{number}")
            again.header_offset, again.file_size, again.compress_size = shared.header_offset, 4 * 10**6, 4 * 10**6
            again.CRC = shared.CRC
            archive.filelist.append(again)
    return content.getvalue()


def many_parts(count: int) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("a/data.pkl", b"\x80\x02}.")
        first = archive.getinfo("a/data.pkl")
        for number in range(count):
            again = zipfile.ZipInfo(f"{number}")
            again.header_offset, again.CRC = first.header_offset, 0
            archive.filelist.append(again)
    return content.getvalue()


def with_safetensors_header(header: bytes, data: bytes = b"", length: int | None = None) -> bytes:
    return struct.pack("<Q", len(header) if length is None else length) + header + data


def many_tensors(count: int) -> bytes:
    tensor = {"dtype": "F32", "shape": [1]}
    parts = {f"{name}.w": {**tensor, "data_offsets": [4 * name, 4 * name + 4]} for name in range(count)}
    return with_safetensors_header(json.dumps(parts).encode(), bytes(4 * count))


def tape() -> bytes:
    """Return a tar file that begins like a checkpoint, and whose header claims exabytes."""
    begin = MAGIC[:90]
    header = bytearray(tarfile.TarInfo(begin.decode("latin-1")).tobuf(tarfile.GNU_FORMAT, "latin-1"))
    header[124:136] = b"\x80" + (2**62).to_bytes(11, "big")
    header[156:157] = b"x"
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header)


FILES: dict[str, Callable[[], bytes]] = {
    "parts over each other": over_each_other,
    "a million parts": lambda: many_parts(10**6),
    "100,000 parts": lambda: many_parts(10**5),
    **{
        f"parts packed by {name}": lambda method=method: new(WEIGHT, method, {"a/data/1": bytes(10**8)})
        for name, method in (("deflate", zipfile.ZIP_DEFLATED), ("bz2", zipfile.ZIP_BZIP2), ("lzma", zipfile.ZIP_LZMA))
    },
    "a long pickle": lambda: new(b"(" + text("a" * 4 * 10**7) + b"t"),
    "a tar": tape,
    "a list of storages, often": lambda: (
        MAGIC + SYSTEM + pickle.dumps({}, 2) + b"\x80\x02](" + (text("0") + put(0)) + get(0) * 10**5 + b"e."
    ),
    "a list of storages to hash for ever": lambda: (
        MAGIC + SYSTEM + pickle.dumps({}, 2) + b"\x80\x02]" + pairs_inside(60) + b"a."
    ),
    "a header of 99 MB": lambda: with_safetensors_header(b'{"__metadata__": {"a": "' + b"b" * 99_000_000 + b'"}}'),
    "a header of exabytes": lambda: with_safetensors_header(b"{}", length=2**63),
    "a header of 200 MB": lambda: with_safetensors_header(b"{" + b" " * 200_000_000 + b"}"),
    "a deep header": lambda: with_safetensors_header(b'{"a":' * 10**6 + b"}" * 10**6),
    "a million tensors": lambda: many_tensors(10**6),
    "one name, often": lambda: with_safetensors_header(
        b"{" + b",".join([b'"w": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}'] * 10**6) + b"}"
    ),
}


# Files of 100 KB or more, or that take a second or more.
LARGE = (
    *("a codec that widens", "a counter of a counter", "a mapping of the same list", "state put into mappings"),
    *(
        "a key of a million",
        "keys of one hash",
        "lists in lists",
        "tuples in tuples",
        "sets",
        "lists,",
        "marks",
        "places",
    ),
    *("a number of many digits", "a name without end", "storages without numbers", "tensors of one storage"),
    *("a tensor of a million", "parts over each other", "a million", "100,000 parts", "a long pickle"),
    *("a list of storages, often", "a header of 99 MB", "a header of 200 MB", "a deep header", "one name, often"),
)


def bombs(small: bool = False) -> dict[str, Callable[[], bytes]]:
    """Return the files by name: the small ones, or all."""
    inside = {
        f"{name}, {how.__name__}": lambda steps=steps, how=how: how(BEFORE + steps() + b"eu")
        for name, steps in PICKLES.items()
        for how in (new, old)
    }  # fmt: skip
    everything = {**inside, **FILES}
    return {name: make for name, make in everything.items() if not (small and name.startswith(LARGE))}


def limit_memory(size: int) -> None:
    """Limit the memory of this process to the present amount and what a file of some size may take."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limit = used + max(LIMIT, 4 * size)
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.getrlimit(resource.RLIMIT_AS)[1]))


def read_and_report(seconds: int) -> None:
    """Read files with a limit on the growth of the address space, and print the outcomes as JSON.

    Parameters
    ----------
    seconds
        Time limit for reading the shapes of each file.
    """
    from heatproof.core.specs import DatasetSpec
    from heatproof.models import saved_by_torch
    from heatproof.models.registry import ModelSpec
    from heatproof.workflow.stages.fetch import Fetch

    model = ModelSpec("cifar_vgg11_bn", "heatproof.models.vgg", {"width": 2})
    saved_by_torch.SECONDS = seconds
    digits = DatasetSpec("digits", "heatproof.datasets.digits", {}, 0, "digits")
    for file in sys.stdin:
        size = Path(file.strip()).stat().st_size
        limit_memory(size)
        began = time.monotonic()
        try:
            Fetch(dataset=digits, model=model, checkpoint=file.strip(), sha256=None).check()
            outcome = "read"
        except HeatproofError as error:
            outcome = str(error)
        except Exception as error:  # as the job does
            outcome = machine_fault(error) or f"{type(error).__name__}: {error}"
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        print(
            json.dumps({"said": outcome, "seconds": time.monotonic() - began, "peak": peak, "size": size}), flush=True
        )


def read_in_a_process(paths: list[Path], seconds: int = 2) -> list[dict[str, Any]]:
    """Read files one after the other, and return the outcome of each."""
    done = subprocess.run(
        [sys.executable, __file__, "--look", str(seconds)],
        input="\n".join(map(str, paths)),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def main(folder: Path, names: list[str]) -> int:
    chosen = {name: make for name, make in bombs().items() if not names or name in names}
    paths = [folder / f"{number}.pt" for number in range(len(chosen))]
    for path, make in zip(paths, chosen.values(), strict=True):
        path.write_bytes(make())
    print(f"{'file':<45}{'bytes':>12}{'s':>8}{'MiB':>8}  said")
    wrong = 0
    for name, read in zip(chosen, read_in_a_process(paths, 8), strict=True):
        bad = read["seconds"] > SECONDS or not read["said"].startswith(ALLOWED_OUTCOMES)
        wrong += bad
        message = read["said"].partition("weights alone ")[2] or read["said"]
        print(
            f"{name:<45}{read['size']:>12}{read['seconds']:>8.1f}{read['peak'] / 2**20:>8.0f}  {'BAD ' * bad}{message}"
        )
    return int(wrong > 0)


if __name__ == "__main__":
    if sys.argv[1] == "--look":
        read_and_report(int(sys.argv[2]))
    else:
        sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))

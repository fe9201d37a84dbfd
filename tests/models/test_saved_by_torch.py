"""Files of `torch.save` are read as `torch.load` reads them, for both formats and each dtype."""

import collections
import os
from pathlib import Path

import pytest
import torch

from heatproof.models.weights_file import read_torch

BOTH = ["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"]
BOTH += ["complex64", "complex128"]
# Dtypes that PyTorch did not have before 1.6.
NEW = ["uint16", "uint32", "uint64", "float8_e4m3fn", "float8_e5m2", "complex32"]
TYPES = [(name, old) for name in BOTH for old in (False, True)] + [(name, False) for name in NEW]
REAL = Path(os.environ.get("HEATPROOF_REAL", Path(__file__).parents[2].parent / "shared" / "real"))
PUBLISHED = sorted(REAL.glob("*.th"))


def save(value, path, old):
    torch.save(value, path, _use_new_zipfile_serialization=not old)
    return torch.load(path, map_location="cpu", weights_only=True)


def assert_same(read, expected):
    assert type(read) is type(expected) or (isinstance(read, dict | torch.Tensor) and isinstance(expected, type(read)))
    if isinstance(expected, torch.Tensor):
        assert (read.dtype, read.shape, read.stride()) == (expected.dtype, expected.shape, expected.stride())
        as_bytes = [
            tensor.detach().clone(memory_format=torch.contiguous_format).flatten() for tensor in (read, expected)
        ]
        assert torch.equal(*(tensor.view(torch.uint8) if tensor.numel() else tensor.float() for tensor in as_bytes))
    elif isinstance(expected, dict):
        assert list(read) == list(expected)
        for key in expected:
            assert_same(read[key], expected[key])
    elif isinstance(expected, list | tuple):
        for part, other in zip(read, expected, strict=True):
            assert_same(part, other)
    else:
        assert read == expected


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(("kind", "old"), TYPES)
def test_tensors_of_each_dtype_are_read(tmp_path, kind, old):
    numbers = (torch.arange(96, dtype=torch.uint8) % 2).view(getattr(torch, kind)).reshape(2, -1)
    expected = save(
        {"whole": numbers, "turned": numbers.T, "part": numbers[1:], "none": numbers[:0]}, tmp_path / "w", old
    )
    assert_same(read_torch(tmp_path / "w", "w"), expected)


@pytest.mark.parametrize("old", [False, True], ids=["zip", "before 1.6"])
def test_values_other_than_tensors_are_read(tmp_path, old):
    marked = torch.ones(3)
    marked.note = "a tensor with an attribute"
    network = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4)).to(
        memory_format=torch.channels_last
    )
    optimizer = torch.optim.AdamW(network.parameters())
    network(torch.ones(2, 3, 8, 8)).sum().backward()
    optimizer.step()
    value = {
        "state_dict": network.state_dict(),
        "optimizer": optimizer.state_dict(),
        "parameter": torch.nn.Parameter(torch.ones(2, 3)),
        "marked": marked,
        "scalar": torch.tensor(3.5),
        "values": [
            1,
            300,
            70_000,
            2**40,
            -(10**30),
            0.5,
            True,
            None,
            "é",
            (),
            (1,),
            (1, 2),
            (1, 2, 3),
            (1, 2, 3, 4),
            {},
        ],
    }
    expected = save(value, tmp_path / "w", old)
    assert_same(read_torch(tmp_path / "w", "w"), expected)


@pytest.mark.parametrize("old", [False, True], ids=["zip", "before 1.6"])
def test_other_python_objects_in_a_file_are_read(tmp_path, old):
    objects = [{1, 2}, b"ab", bytearray(b"ab"), collections.Counter("aab"), torch.Size([1]), torch.device("cpu"), 1j]
    save({"w": torch.ones(2), "beside": objects}, tmp_path / "w", old)
    read = read_torch(tmp_path / "w", "w")
    assert torch.equal(read["w"], torch.ones(2))
    assert read["beside"] == objects


def test_a_file_without_checksums_is_read(tmp_path):
    before = torch.serialization.get_crc32_options()
    try:
        torch.serialization.set_crc32_options(False)
        torch.save({"w": torch.ones(2)}, tmp_path / "w")
    finally:
        torch.serialization.set_crc32_options(before)
    assert torch.equal(read_torch(tmp_path / "w", "w")["w"], torch.ones(2))


@pytest.mark.skipif(not PUBLISHED, reason="no published checkpoints beside this checkout")
@pytest.mark.parametrize("path", PUBLISHED, ids=lambda path: path.name)
def test_published_checkpoints_are_read(path):
    assert_same(read_torch(path, path.name), torch.load(path, map_location="cpu", weights_only=True))

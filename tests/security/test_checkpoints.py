"""An untrusted checkpoint executes no code, takes no more memory than its size justifies, and has finite weights."""

import ast
import hashlib
import json
import os
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch
from bombs import ALLOWED_OUTCOMES, SECONDS, bombs, read_in_a_process
from safetensors.torch import save_file

import heatproof
from heatproof.core.specs import DatasetSpec, Schedule
from heatproof.errors import HeatproofError
from heatproof.models.network import build_network, load_weights
from heatproof.models.registry import ModelSpec
from heatproof.models.weights_file import read_state
from heatproof.training.journal import Journal
from heatproof.training.loop import Examples, TrainingRun, fit
from heatproof.workflow.stages.fetch import Fetch

ROOT = Path(heatproof.__file__).parent
MODEL = ModelSpec("cifar_vgg11_bn", "heatproof.models.vgg", {"width": 2})
DATASET = DatasetSpec("digits", "heatproof.datasets.digits", {}, seed=0, name="digits")


@pytest.fixture
def state():
    return build_network(MODEL, 10, seed=4).state_dict()


def check(checkpoint, sha256=None) -> None:
    Fetch(dataset=DATASET, model=MODEL, checkpoint=str(checkpoint), sha256=sha256).check()


def refused(checkpoint, message: str, sha256=None) -> None:
    with pytest.raises(HeatproofError, match=message) as caught:
        check(checkpoint, sha256)
    assert "\n" not in str(caught.value)
    assert str(checkpoint) in str(caught.value)


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("wrapped", [True, False])
def test_a_tensor_that_repeats_one_number_is_refused(tmp_path, state, zipped, wrapped):
    state["classifier.weight"] = torch.zeros(1).expand(10**6, 10**5)
    path = tmp_path / "bomb.pt"
    torch.save({"state_dict": state} if wrapped else state, path, _use_new_zipfile_serialization=zipped)
    assert path.stat().st_size < 300_000
    refused(path, r"classifier\.weight' of shape \(1000000, 100000\) needs 400,000,000,000 bytes, and the file has ")


def test_many_tensors_of_one_storage_are_refused(tmp_path, state):
    shared = torch.zeros(2**20)
    torch.save({**state, **{str(number): shared for number in range(400)}}, tmp_path / "w.pt")
    refused(tmp_path / "w.pt", r"do not fit the network: they need 1,\d{3},\d{3},\d{3} bytes, and")


def test_tied_weights_are_read(tmp_path):
    shared = torch.arange(6.0)
    torch.save({"a": shared, "b": shared.view(2, 3).T, "c": torch.ones(1).expand(8)}, tmp_path / "w.pt")
    assert torch.equal(read_state(tmp_path / "w.pt", "w")["b"], shared.view(2, 3).T)


def test_compressed_parts_are_refused(tmp_path, state):
    torch.save({**state, "more": torch.zeros(10**6)}, tmp_path / "w.pt")
    with (
        zipfile.ZipFile(tmp_path / "w.pt") as plain,
        zipfile.ZipFile(tmp_path / "z.pt", "w", zipfile.ZIP_DEFLATED) as compressed,
    ):
        for name in plain.namelist():
            compressed.writestr(name, plain.read(name))
    refused(tmp_path / "z.pt", "its parts are compressed and unpack to")


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("kind", ["sparse", "meta", "quantized"])
def test_tensors_that_are_not_plain_are_refused(tmp_path, state, kind):
    tensors = {
        "sparse": lambda: torch.sparse_coo_tensor(torch.zeros(2, 1, dtype=torch.long), torch.ones(1), (10**6, 10**6)),
        "meta": lambda: torch.empty(10**6, 10**5, device="meta"),
        "quantized": lambda: torch.quantize_per_tensor(torch.zeros(3), 1.0, 0, torch.qint8),
    }
    torch.save({**state, "classifier.weight": tensors[kind]()}, tmp_path / "w.pt")
    refused(tmp_path / "w.pt", "cannot be read as safetensors or as a file of weights only")


HEADERS = {
    "a header longer than the file": struct.pack("<Q", 2**40) + b"{}",
    "a header of exabytes": b"\xff" * 8 + b"{}",
    "offsets behind the end": {"w": {"dtype": "F32", "shape": [10**11], "data_offsets": [0, 4 * 10**11]}},
    "a shape larger than its bytes": {"w": {"dtype": "F32", "shape": [10**6, 10**5], "data_offsets": [0, 4]}},
    "a shape that overflows": {"w": {"dtype": "F32", "shape": [2**32, 2**32], "data_offsets": [0, 4]}},
    "tensors over each other": {
        "a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
        "b": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
    },
}


@pytest.mark.parametrize("content", HEADERS.values(), ids=list(HEADERS))
def test_a_false_header_of_safetensors_is_refused(tmp_path, content):
    if isinstance(content, dict):
        text = json.dumps(content).encode()
        content = struct.pack("<Q", len(text)) + text + bytes(4)
    (tmp_path / "w.safetensors").write_bytes(content)
    refused(tmp_path / "w.safetensors", "cannot be read as safetensors or as a file of weights only")
    with pytest.raises(HeatproofError, match="cannot be read"):
        load_weights(build_network(MODEL, 10), tmp_path / "w.safetensors")


def test_a_file_far_larger_than_the_network_is_refused_before_it_is_read(tmp_path):
    with open(tmp_path / "w.pt", "wb") as file:
        file.truncate(2**33)  # without blocks on the disk
    with pytest.raises(HeatproofError, match=r"do not fit the network: the file has 8,589,934,592 bytes, and 1,\d"):
        read_state(tmp_path / "w.pt", "w.pt", most=2**30 + 5)
    with pytest.raises(HeatproofError, match="do not fit the network: the file has"):
        load_weights(build_network(MODEL, 10), tmp_path / "w.pt")


@pytest.mark.parametrize("name", ["features.0.weight", "classifier.bias", "features.1.running_var"])
@pytest.mark.parametrize(("value", "what"), [(float("nan"), "NaN"), (float("-inf"), "infinite numbers")])
def test_weights_that_are_not_finite_are_refused_by_name(tmp_path, state, name, value, what):
    name = name if name in state else next(key for key in state if key.endswith(name.rpartition(".")[2]))
    state[name] = state[name].contiguous().clone(memory_format=torch.contiguous_format)
    state[name].view(-1)[-1] = value
    save_file({key: entry.contiguous() for key, entry in state.items()}, tmp_path / "w.safetensors")
    refused(tmp_path / "w.safetensors", f"have {what} in '{name}', so .*: use another checkpoint")
    with pytest.raises(HeatproofError, match=f"have {what} in '{name}'"):
        load_weights(build_network(MODEL, 10), tmp_path / "w.safetensors")


def test_a_mask_of_the_network_may_be_infinite(tmp_path):
    network = torch.nn.Linear(2, 2)
    network.register_buffer("mask", torch.full((2, 2), -torch.inf).triu(1))
    large = {name: torch.full_like(value, 3e38) for name, value in network.named_parameters()}
    save_file({**network.state_dict(), **large}, tmp_path / "w.safetensors")
    load_weights(network, tmp_path / "w.safetensors")
    assert network.weight.max() > 2e38, "numbers whose sum is infinite"


def test_pipes_and_devices_are_not_opened(tmp_path):
    os.mkfifo(tmp_path / "w.pt")
    refused(tmp_path / "w.pt", "does not exist")
    with pytest.raises(HeatproofError, match="is a named pipe"):
        load_weights(build_network(MODEL, 10), tmp_path / "w.pt")
    for address, message in (((tmp_path / "w.pt").as_uri(), "is a named pipe"), ("file:///dev/zero", "is a device")):
        with pytest.raises(HeatproofError, match=message):
            check(address, hashlib.sha256(b"").hexdigest())


def test_a_journal_of_expanded_tensors_counts_as_damaged(tmp_path):
    journal = Journal(tmp_path / "w.safetensors", "key")
    journal.save({"model": {"w": torch.zeros(1).expand(10**6, 10**5)}})
    assert journal.load() is None


SMALL = 100_000
SCHEDULE = Schedule(1, 4, "sgd", 0.1, 0.0, 0.0, "step", 0.1, 1, 0.0, 0)


def assert_bounded(folder, chosen):
    """Each file is refused in a sentence, or read, within the memory and the time that bombs.py allows."""
    paths = [folder / f"{number}.pt" for number in range(len(chosen))]
    for path, content in zip(paths, chosen.values(), strict=True):
        path.write_bytes(content)
    outcomes = dict(zip(chosen, read_in_a_process(paths), strict=True))
    for name, outcome in outcomes.items():
        assert outcome["said"].startswith(ALLOWED_OUTCOMES), (name, outcome)
        assert "\n" not in outcome["said"], name
        assert outcome["seconds"] < SECONDS, (name, outcome)


def test_small_files_take_limited_memory_and_time(tmp_path):
    files = {name: make() for name, make in bombs(small=True).items()}
    assert len(files) > 60
    assert max(map(len, files.values())) < SMALL
    assert_bounded(tmp_path, files)


@pytest.mark.long
def test_all_files_take_limited_memory_and_time(tmp_path):
    assert_bounded(tmp_path, {name: make() for name, make in bombs().items()})


def test_the_limit_of_memory_is_effective(tmp_path):
    """Otherwise the tests above could not fail."""
    ask = "import sys; sys.path[:0] = [sys.argv[1]]; import bombs; bombs.limit_memory(0); bytearray(2_700_000_000)"
    done = subprocess.run(
        [sys.executable, "-c", ask, str(Path(__file__).parent)], capture_output=True, text=True, env=os.environ
    )
    assert "MemoryError" in done.stderr


@pytest.mark.parametrize("change", ["exchanged", "of another key", "of other weights", "with a changed number"])
def test_the_state_of_another_training_is_never_loaded(tmp_path, change):
    mine = Journal(tmp_path / "a.safetensors", "key")
    mine.save({"model": {"w": torch.zeros(100)}})
    other = Journal(tmp_path / ("a" if change == "of another key" else "b.safetensors"), "other")
    if change == "with a changed number":
        content = mine.file.read_bytes()
        changed = content.replace(bytes(400), b"\1" + bytes(399), 1)
        assert changed != content
        mine.file.write_bytes(changed)
    else:
        if change == "of other weights":
            other = Journal(tmp_path / "b.safetensors", "key")
        other.save({"model": {"w": torch.ones(100)}})
        mine.file.write_bytes(other.file.read_bytes())
    assert mine.load() is None


def test_a_journal_is_not_read_through_links_and_pipes(tmp_path):
    folder = tmp_path / "results"
    folder.mkdir()
    journal = Journal(folder / "w.safetensors", "key")
    journal.save({"model": {}})
    os.rename(journal.file, tmp_path / "elsewhere.pt")
    os.symlink(tmp_path / "elsewhere.pt", journal.file)
    with pytest.raises(HeatproofError, match="is a symbolic link"):
        Journal(folder / "w.safetensors", "key")
    journal.file.unlink()
    os.mkfifo(journal.file)
    assert journal.load() is None


def test_a_journal_with_a_right_digest_that_fits_no_training_is_refused(tmp_path):
    network = torch.nn.Linear(2, 2)
    examples = Examples(torch.ones(4, 2), torch.zeros(4, dtype=torch.int64))
    for state in (
        {},
        {"best": 1, "history": [1], "kept": {}},
        {"best": {}, "history": [], "kept": {}, "model": {}},
        [],
    ):
        journal = Journal(tmp_path / "w.safetensors", "key")
        journal.save(state)
        with pytest.raises(HeatproofError, match="does not fit its training: remove it with `rm"):
            fit(network, examples, examples, SCHEDULE, 0, training_run=TrainingRun(journal=journal))


def test_two_modules_open_checkpoints():
    names = set()
    for file in ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("torch.load", "safe_open", "load_file")):
                names.add(file.name)
    assert names == {"weights_file.py", "saved_by_torch.py"}

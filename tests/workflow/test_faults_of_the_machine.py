"""Messages if the disk is full, permissions are missing or memory runs out; and damage is noticed by all readers."""

import errno
import os
import signal
import subprocess

import numpy as np
import pandas as pd
import pytest
import torch

from heatproof.core.provenance import Key
from heatproof.errors import HeatproofError, machine_fault
from heatproof.models.network import load_weights, save_weights
from heatproof.store import writing as files
from heatproof.store import zarr_store as store
from heatproof.store.manifest import (
    CHECKSUM_KEY,
    key_with_inputs,
    read_checksummed,
    require_manifest,
    verified_path,
    write_manifest,
)
from heatproof.store.result_tables import read_parquet
from heatproof.store.writing import atomic_write, write_text
from heatproof.store.zarr_store import ArraySpec, Layout, ensure_metadata, read, write_shard
from heatproof.workflow import start as workflow
from heatproof.workflow.commands import cli

FAULTS = {
    "full": (OSError(errno.ENOSPC, "No space left on device", "a/b"), "The disk is full at a/b"),
    "quota": (OSError(errno.EDQUOT, "Disk quota exceeded"), "The disk is full (Disk quota"),
    "read-only": (OSError(errno.EROFS, "Read-only file system", "a"), "Permission to write or read at a is missing"),
    "rights": (PermissionError(errno.EACCES, "Permission denied", "a"), "make the folder writable"),
    "large": (OSError(errno.EFBIG, "File too large"), "`ulimit -f`"),
    "handles": (OSError(errno.EMFILE, "Too many open files"), "`ulimit -n`"),
    "broken": (OSError(errno.EIO, "Input/output error", "a"), "check the disk"),
    "memory": (MemoryError(), "Memory ran out: lower batch_size"),
    "no threads": (RuntimeError("can't start new thread"), "Memory ran out"),
    "oneDNN": (RuntimeError("could not create a primitive"), "Memory ran out"),
    "shared GPU": (
        RuntimeError("CUDA error: CUDA-capable device(s) is/are busy or unavailable\nCUDA kernel"),
        "is used exclusively",
    ),
    "new GPU": (
        RuntimeError("CUDA error: no kernel image is available for execution on the device"),
        "a PyTorch built",
    ),
    "old driver": (
        RuntimeError("The NVIDIA driver on your system is too old (found version 11040)."),
        "update the driver",
    ),
    "lost GPU": (RuntimeError("CUDA error: unspecified launch failure"), "disappeared or failed"),
    "no GPU left": (RuntimeError("No CUDA GPUs are available"), "or use another one"),
    "torch": (torch.OutOfMemoryError("CUDA: no room"), "Memory ran out"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_of_the_machine_is_one_sentence(name):
    error, sentence = FAULTS[name]
    message = machine_fault(error)
    assert sentence in message
    assert message.endswith(".")
    assert "\n" not in message
    around = ValueError("a library's own")
    around.__cause__ = error
    assert machine_fault(around) == message


@pytest.mark.parametrize("error", [FileNotFoundError(errno.ENOENT, "x"), RuntimeError("shapes"), KeyError("a")])
def test_a_fault_of_the_program_stays_an_error(error):
    assert machine_fault(error) is None


def test_the_command_line_reports_a_fault_of_the_machine(monkeypatch, capsys):
    def fails(**options):
        raise OSError(errno.ENOSPC, "No space left on device", "results/x")

    monkeypatch.setattr("heatproof.workflow.commands.list_names.print_names", fails)
    assert cli.main(["list", "models"]) == 1
    assert capsys.readouterr().err.startswith("heatproof: The disk is full at results/x")


def test_a_failed_write_leaves_no_incomplete_file(tmp_path):
    write_text(tmp_path / "a.txt", "before")

    def fails():
        with atomic_write(tmp_path / "a.txt") as aside:
            aside.write_text("half")
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        fails()
    assert os.listdir(tmp_path) == ["a.txt"]
    assert (tmp_path / "a.txt").read_text() == "before"


def test_temporary_files_of_a_killed_process_are_removed(tmp_path):
    done = subprocess.Popen(["true"])
    done.wait()
    here = os.uname().nodename
    dead, other, mine = (f".{here}.{done.pid}.a.txt", ".elsewhere.1.a.txt", f".{here}.{os.getppid()}.a.txt")
    for name in (dead, other, mine):
        (tmp_path / name).write_text("half")
    write_text(tmp_path / "a.txt", "whole")
    assert sorted(os.listdir(tmp_path)) == sorted([other, mine, "a.txt"])


# ---- damage ----------------------------------------------------------------------------------------------------------


def flip(path, position):
    content = path.read_bytes()
    path.write_bytes(content[:position] + bytes([content[position] ^ 0x04]) + content[position + 1 :])


@pytest.fixture
def weights(tmp_path):
    path = tmp_path / "net.safetensors"
    save_weights(torch.nn.Linear(3, 2).state_dict(), path)
    write_manifest(tmp_path / "net.json", [path], spec_key=Key("k", "k"), key="k")
    return path


def test_a_flipped_bit_in_weights_is_noticed_by_every_reader(weights):
    assert key_with_inputs("k", [weights])
    flip(weights, weights.stat().st_size - 2)
    # The file format itself has no checksum.
    load_weights(torch.nn.Linear(3, 2), weights)
    with pytest.raises(HeatproofError, match=f"{weights} is damaged .*remove it with `rm {weights}` and run your"):
        key_with_inputs("k", [weights])


def test_a_flipped_bit_in_a_manifest_is_noticed(weights):
    manifest = weights.with_suffix(".json")
    for position in range(0, manifest.stat().st_size, 7):
        before = manifest.read_bytes()
        flip(manifest, position)
        if read_checksummed(manifest) is None:
            with pytest.raises(HeatproofError, match=f"{manifest} is damaged: remove it with `rm {manifest}`"):
                require_manifest(manifest)
            with pytest.raises(HeatproofError, match="is damaged"):
                verified_path(weights)
        else:
            assert (
                before.decode().split() == manifest.read_text().split() or not before[position : position + 1].strip()
            )
        manifest.write_bytes(before)


def test_a_manifest_without_its_digest_is_damaged(weights):
    manifest = weights.with_suffix(".json")
    content = read_checksummed(manifest)
    files.write_json(manifest, content)
    assert CHECKSUM_KEY not in content
    assert read_checksummed(manifest) is None


def test_damaged_scores_are_not_read(tmp_path):
    path = tmp_path / "idsds.parquet"
    files.write_table(pd.DataFrame({"score": np.arange(50.0)}), path)
    write_manifest(tmp_path / "idsds.json", [path], spec_key=Key("k", "k"), key="k")
    assert len(read_parquet(path)) == 50
    flip(path, 60)
    with pytest.raises(HeatproofError, match=f"{path} is damaged"):
        read_parquet(path)
    path.unlink()
    with pytest.raises(HeatproofError, match=f"{path} is missing: run your snakemake command"):
        read_parquet(path)


def test_a_table_is_compared_with_the_manifest_that_lists_it(tmp_path):
    for name in ("a.csv", "b.csv", "tables.json", "other.json"):
        (tmp_path / name).write_text("{}")
    files = [tmp_path / name for name in ("a.csv", "b.csv")]
    write_manifest(tmp_path / "tables.json", files, spec_key=Key("k", "k"), key="k")
    assert verified_path(tmp_path / "b.csv") == tmp_path / "b.csv"
    (tmp_path / "b.csv").write_text("[]")
    with pytest.raises(HeatproofError, match=r"b\.csv is damaged"):
        verified_path(tmp_path / "b.csv")


def test_an_error_of_memory_does_not_call_a_file_damaged(tmp_path, monkeypatch):
    path = tmp_path / "s.zarr"
    ensure_metadata(path, Layout(["a"], np.zeros(1), 1, {"x": ArraySpec(("y",), (2,))}, {"key": "k"}))
    write_shard(path, "x", 0, 0, np.ones((1, 2), np.float32))

    def fails(*arguments, **options):
        raise MemoryError

    monkeypatch.setattr(store.zarr, "open_array", fails)
    with pytest.raises(HeatproofError, match="Memory ran out"):
        read(path, "x", 0, 1)


# ---- the workflow's process ------------------------------------------------------------------------------------------


def test_a_read_only_folder_is_reported_before_any_job_starts(tmp_path, monkeypatch):
    workflow.check_writable(tmp_path / "results")
    assert list((tmp_path / "results").iterdir()) == []
    assert workflow.explain_failure(tmp_path / "results") is None

    def fails(path, text):
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    monkeypatch.setattr(workflow, "write_text", fails)
    with pytest.raises(HeatproofError, match="Permission to write"):
        workflow.check_writable(tmp_path / "results")
    assert "Permission to write" in workflow.explain_failure(tmp_path / "results")


def test_the_error_of_a_failed_run_mentions_a_nearly_full_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(workflow.shutil, "disk_usage", lambda path: NearlyFullDisk)
    assert "has 3 MB left: make room" in workflow.explain_failure(tmp_path)


class NearlyFullDisk:
    free = 3 * 10**6


@pytest.mark.parametrize(
    ("number", "message"), [(signal.SIGKILL, "killed, most likely by the kernel"), (signal.SIGTERM, "")]
)
def test_the_shell_logs_why_a_job_was_killed(tmp_path, number, message):
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\nkill -{int(number)} $$\n")
    python.chmod(0o755)
    command = workflow.JOB_COMMAND.replace("{params.spec:q}", "x").replace("{log:q}", "log").replace("{{", "{")
    environment = {**os.environ, "HEATPROOF_PYTHON": str(python), "HEATPROOF_KILLED": f"heatproof: {workflow.KILLED}"}
    shell = ["bash", "-c", "set -euo pipefail; " + command.replace("}}", "}")]
    done = subprocess.run(shell, cwd=tmp_path, env=environment, capture_output=True)
    assert done.returncode == 128 + number
    assert message in (tmp_path / "log").read_text()
    assert ("heatproof: " in (tmp_path / "log").read_text()) == bool(message)

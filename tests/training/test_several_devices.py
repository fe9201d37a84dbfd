"""A training with two processes on a CPU: the steps of a single process, and the same bytes again, also after kills."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch
import toy_plugin
from jobs import job_process
from torch import nn
from torch.multiprocessing import ProcessContext, ProcessExitedException, ProcessRaisedException
from toy_project import Project

from heatproof.core.specs import Runtime, Schedule
from heatproof.errors import HeatproofError
from heatproof.training import several_devices as several
from heatproof.training.journal import Journal
from heatproof.training.loop import Examples, TrainingRun, fit
from heatproof.training.several_devices import FabricDeviceGroup, synchronise_batch_norm, train_on_devices
from heatproof.workflow.stages._training import train

pytest.importorskip("lightning_fabric")

MACHINE = Runtime(threads=2, device="cpu")
FOLDER = Path("results/weights/toy/net")
FILES = ("finetuned.safetensors", "finetuned.history.csv", "kept/finetuned.safetensors")
# Environment variables of a SLURM job and of an outer launcher, which must not affect the processes of a training.
OUTER = {"SLURM_JOB_ID": "1", "SLURM_JOB_NAME": "job", "SLURM_NTASKS": "1", "SLURM_PROCID": "0", "LOCAL_RANK": "0"}
CHANGE = {
    "models": [{"net": {"architecture": "test_several_devices:at_its_pace", "cam_layer": "features"}}],
    "finetuning": {"devices": 2, "epochs": 8, "batch_size": 10, "keep": [1, 8], "shift": 1},
}


def at_its_pace(num_classes, *, width=4):
    """Build the toy network, which trains slowly if an environment variable is set, so that it can be killed."""
    model = toy_plugin.network(num_classes, width=width)
    model.register_forward_pre_hook(lambda layer, inputs: time.sleep(float(os.environ.get("PACE", 0)) * layer.training))
    return model


def examples(count, seed):
    """Return noisy images whose red channel depends on their class."""
    labels = torch.arange(count) % 2
    images = torch.randn(count, 3, 6, 6, generator=torch.Generator().manual_seed(seed))
    images[:, 0] += (2 * labels - 1)[:, None, None]
    return Examples(images, labels)


def network(*layers):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(3, 4, 3), *layers, nn.Tanh(), nn.Flatten(), nn.Linear(64, 2))


def with_unused():
    net = network()
    net[0].register_module("unused", nn.LayerNorm(2))
    return net


def with_dropout():
    return network(nn.BatchNorm2d(4), nn.Dropout(0.3))


# Network, number of training images, and changes of the schedule. Batches are divided equally or unequally; both
# devices take a last batch of three images completely, and none takes a single image; unused weights have no gradient.
CASES = {
    "even": (network, 32, {}),
    "uneven": (network, 45, {"batch_size": 15, "shift": 1}),
    "three left": (network, 35, {"label_smoothing": 0.1}),
    "one left": (with_unused, 33, {"weight_decay": 0.1}),
    "adamw": (network, 37, {"optimizer": "adamw", "lr": 0.01, "schedule": "cosine"}),
}
DRAWS = (with_dropout, 45, {})


def run(case, device_group=None, journal=None, augment=None):
    build, count, change = case
    base = {"epochs": 3, "batch_size": 16, "optimizer": "sgd", "lr": 0.1, "momentum": 0.9, "weight_decay": 0.0}
    base |= {"schedule": "step", "decay": 0.5, "decay_every": 2, "label_smoothing": 0.0, "shift": 0}
    schedule = Schedule(**{**base, **change})
    return fit(
        build(), examples(count, 0), examples(20, 1), schedule, 0, augment, TrainingRun([3], journal, device_group)
    )


def noise(images, generator):
    return images + 0.1 * torch.randn(images.shape, generator=generator)


class Killed(Exception):
    pass


def interrupt_in_the_second_epoch(seen):
    def augment(images, generator):
        seen.append(None)
        if len(seen) > 4:
            raise Killed
        return noise(images, generator)

    return augment


def train_in_both(spec_json, device_group):
    """Return all results that the tests below compare, from one launch, because processes take seconds to start."""
    trainings = {name: run(case, device_group, augment=noise) for name, case in CASES.items()}
    trainings["draws"] = run(DRAWS, device_group, augment=noise)
    journal = Journal(spec_json["output"].with_name("net.safetensors"), "key")
    with pytest.raises(Killed):
        run(DRAWS, device_group, journal, interrupt_in_the_second_epoch([]))
    assert journal.file.is_file() or not device_group.is_main
    torch.manual_seed(7)
    trainings["draws, cut off"] = run(DRAWS, device_group, journal, noise)
    for folder in (spec_json["folder"], spec_json["disturbed"]):
        os.chdir(folder)
        train(spec_json["finetune"], device_group)
    if device_group.is_main:
        torch.save({name: tuple(trained) for name, trained in trainings.items()}, spec_json["output"])
    device_group.broadcast(None)
    if not device_group.is_main:
        raise HeatproofError("One of them says no.")
    device_group.broadcast(None)


@pytest.fixture(scope="module")
def folder(trained, tmp_path_factory):
    """Project folder of both trainings, with pretrained weights."""
    folder = tmp_path_factory.mktemp("two") / "project"
    shutil.copytree(trained.folder, folder)
    return folder


@pytest.fixture(scope="module")
def disturbed(folder, tmp_path_factory):
    """Folder of a training that was killed, resumed and ended, and the log of the second run."""
    disturbed = tmp_path_factory.mktemp("disturbed") / "project"
    shutil.copytree(folder, disturbed)
    (disturbed / FOLDER / "finetuned.json").unlink()
    before = 0
    for end in (signal.SIGKILL, signal.SIGTERM):
        log_text = interrupt(disturbed, end, before)
        before = last_journal_time(disturbed)
    return disturbed, log_text


@pytest.fixture(scope="module")
def on_two(folder, disturbed):
    spec_json = {
        "output": folder / "made.pt",
        "folder": folder,
        "disturbed": disturbed[0],
        "finetune": Project(folder, **CHANGE).finetune(),
    }
    with pytest.raises(HeatproofError, match=r"^One of them says no\.$"):
        train_on_devices(partial(train_in_both, spec_json), MACHINE, 2)
    assert "LOCAL_RANK" not in os.environ
    return torch.load(spec_json["output"])


@pytest.mark.slow
@pytest.mark.parametrize("name", list(CASES))
def test_two_devices_take_the_steps_of_one(on_two, name):
    _, history, stored = on_two[name]
    alone = run(CASES[name], augment=noise)
    assert stored[3].keys() == alone.saved_epochs[3].keys()
    for key, value in alone.saved_epochs[3].items():
        torch.testing.assert_close(stored[3][key], value, rtol=1e-5, atol=1e-5)
    for row, expected in zip(history, alone.history, strict=True):
        assert row == pytest.approx(expected, abs=1e-5)


@pytest.mark.slow
def test_an_interrupted_training_ends_with_the_same_bits(on_two):
    """The network has batch norm, and dropout, which draws differently on each device."""
    (best, history, stored), (again, same_history, same_stored) = on_two["draws"], on_two["draws, cut off"]
    assert history == same_history
    assert all(torch.equal(best[key], again[key]) for key in best)
    assert all(torch.equal(stored[3][key], same_stored[3][key]) for key in best)


def interrupt(folder, end, before):
    """Start a training, end it by a signal, and return its output."""
    spec = Project(folder, **CHANGE).on_network("finetune")
    # The training takes twenty-four seconds: a late signal still interrupts it, and the test notices a survivor.
    here, slowly = os.pathsep.join(map(str, Path(__file__).parents[:2])), {**OUTER, "PACE": "1.5"}
    started = job_process(folder, spec.run, spec.spec_json, runtime=asdict(MACHINE), importable=here, **slowly)
    job = subprocess.Popen(**started, stderr=subprocess.PIPE, text=True)
    began = time.monotonic()
    while last_journal_time(folder) <= before:
        assert job.poll() is None, job.communicate()[1]
        assert time.monotonic() < began + 200
        time.sleep(0.02)
    children = psutil.Process(job.pid).children(recursive=True)
    assert len(children) >= 2
    job.send_signal(end)
    log_text = job.communicate(timeout=300)[1]
    assert job.returncode == (-9 if end == signal.SIGKILL else 143)
    assert ("The job was ended by SIGTERM" in log_text) == (end == signal.SIGTERM)
    # If a signal ends a process during its exit, Python may report an interrupted finalizer.
    cleaned = re.sub(r"Exception ignored in: <finalize object.*?(?=\n\S(?!raceback)|\Z)", "", log_text, flags=re.DOTALL)
    assert "Traceback" not in cleaned, log_text
    _, left = psutil.wait_procs(children, timeout=20)
    assert not left
    return log_text


@pytest.mark.slow
def test_a_killed_and_terminated_training_resumes_with_the_same_bytes(on_two, folder, disturbed):
    """The bytes equal those of an undisturbed training, and no process is left."""
    again, log_text = disturbed
    assert "resuming after epoch" in log_text
    for name in FILES:
        assert (again / FOLDER / name).read_bytes() == (folder / FOLDER / name).read_bytes()
    assert not list((again / FOLDER).glob(".*")), "no journal is left"


def last_journal_time(folder):
    """Return when the journal was last written; 0 if never."""
    times = [0]
    for file in folder.glob(f"{FOLDER}/.finetuned.journal/[!.]*.pt"):
        # Unfinished files have hidden names, and the journal is removed once the weights are published.
        with suppress(FileNotFoundError):
            times.append(file.stat().st_mtime_ns)
    return max(times)


@pytest.mark.parametrize(("devices", "images"), [(2, 16), (2, 7), (3, 8), (4, 8), (4, 11), (5, 10)])
def test_devices_share_the_rows_with_weights(devices, images):
    rows, weights = [], 0.0
    for rank in range(devices):
        member = FabricDeviceGroup(type("Fabric", (), {"device": None, "world_size": devices, "global_rank": rank}))
        part = member.part(images)
        taken = list(range(images))[part.rows]
        assert len(taken) >= 2
        assert part.weight == pytest.approx(len(taken) * devices / images)
        rows += taken
        weights += part.weight
        assert member.part(2 * devices - 1) == (slice(0, 2 * devices - 1), 1.0)
    assert rows == list(range(images))
    assert weights == pytest.approx(devices)


def test_batch_norm_is_synchronised_over_devices():
    """Only layers of PyTorch and timm, because those of other libraries compute something else."""

    from timm.layers import BatchNormAct2d

    class CustomBatchNorm(nn.BatchNorm2d):
        pass

    net = nn.Sequential(nn.BatchNorm2d(2), nn.Sequential(BatchNormAct2d(2), CustomBatchNorm(2)))
    weights = dict(net.state_dict())
    synchronise_batch_norm(net)
    assert isinstance(net[0], nn.SyncBatchNorm)
    assert isinstance(net[1][0], nn.SyncBatchNorm)
    assert isinstance(net[1][0].act, nn.ReLU)
    assert type(net[1][1]) is CustomBatchNorm
    assert list(net.state_dict()) == list(weights)


def test_fewer_gpus_than_devices_are_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(HeatproofError, match=r"^A training has devices: 2, but this job sees 1 GPU\(s\): .*\.$"):
        train_on_devices(partial(train_in_both, {}), replace(MACHINE, device="auto"), 2)


def test_a_missing_library_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "lightning_fabric", None)
    with pytest.raises(HeatproofError, match=r"needs lightning-fabric, .*heatproof\[multi-gpu\]"):
        train_on_devices(partial(train_in_both, {}), MACHINE, 2)


def test_one_device_does_not_need_the_library(project, monkeypatch):
    monkeypatch.setitem(sys.modules, "lightning_fabric", None)
    toy = project(finetuning={"epochs": 1})
    toy.make(toy.finetune())


def test_failures_of_processes_are_reported(tmp_path):
    killed = several._cause(ProcessExitedException("", 1, 9, -9, "SIGKILL"), tmp_path)
    assert isinstance(killed, HeatproofError)
    assert "on device 1 was ended by SIGKILL, most likely" in str(killed)
    ended = str(several._cause(ProcessExitedException("", 0, 9, -11, "SIGSEGV"), tmp_path))
    assert "on device 0 was ended by SIGSEGV: look" in ended
    assert "memory" not in ended
    taken = several._cause(ProcessRaisedException("... code: -98, name: EADDRINUSE, ...", 0, 9), tmp_path)
    assert isinstance(taken, HeatproofError)
    assert "port" in str(taken)
    raised = ProcessRaisedException("what torch says", 0, 9)
    assert str(several._cause(raised, tmp_path)) == "what torch says"
    for when, sentence, trace in ((2, "It is full.", ""), (1, None, "the first one's traceback")):
        (tmp_path / f"{when:020d}.{when}").write_text(json.dumps({"sentence": sentence, "traceback": trace}))
    cause = several._cause(raised, tmp_path)
    assert not isinstance(cause, HeatproofError)
    assert str(cause) == "the first one's traceback"


def test_a_killed_process_is_reported_before_others(tmp_path):
    class Context(ProcessContext):
        def __init__(self):
            self.processes = [SimpleNamespace(exitcode=1), SimpleNamespace(exitcode=-9)]

        def join(self):
            raise ProcessRaisedException("Connection closed by peer", 0, 9)

    with pytest.raises(ProcessRaisedException) as caught:
        Context().join()
    assert "on device 1 was ended by SIGKILL" in str(several._cause(caught.value, tmp_path))
    report = tmp_path / "1.0"
    report.write_text(json.dumps({"sentence": "The disk is full.", "traceback": ""}))
    assert "on device 1 was ended by SIGKILL" in str(several._cause(caught.value, tmp_path))
    # Long after the first failure, PyTorch itself kills processes.
    os.utime(report, (0, 0))
    assert str(several._cause(caught.value, tmp_path)) == "The disk is full."

"""Training on several devices of one machine, with one process per device, by Lightning Fabric."""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.multiprocessing import ProcessContext, ProcessExitedException, ProcessRaisedException

from heatproof.core.randomness import derive_seed
from heatproof.core.signals import CONTROLLER, children, end_processes, end_with_parent, install_signal_handlers
from heatproof.core.specs import Runtime
from heatproof.errors import RESUME_HINT, HeatproofError, machine_fault
from heatproof.models.network import configure_torch
from heatproof.training.devices import BatchPart, DeviceGroup, T

log = logging.getLogger(__name__)

Train = Callable[[DeviceGroup], None]

# Other processes wait while one validates and writes; if a process ends, the others are ended by other means.
PATIENCE = timedelta(days=1)
# Environment variables by which an outer launcher assigns ranks; only Fabric may set them here.
RANK_VARIABLES = (
    "LOCAL_RANK",
    "GROUP_RANK",
    "NODE_RANK",
    "WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "STANDALONE_PORT",
)

LOG_LEVEL = "TORCH_CPP_LOG_LEVEL"
# PyTorch kills processes that do not end within 30 s of the first failure; an earlier kill has another cause.
KILLS_AFTER = 25.0


def train_on_devices(train: Train, runtime: Runtime, devices: int) -> None:
    """Run a training in one process for each device, and wait for all of them.

    Parameters
    ----------
    train
        Function that can be pickled, which each process calls with its device group.
    runtime
        Settings of the machine; the threads are divided among the processes, with at least one each.
    devices
        Number of GPUs of this machine, or of processes on its CPU.

    Raises
    ------
    HeatproofError
        If the library is not installed, there are fewer GPUs, or a process raised a HeatproofError.
    RuntimeError
        If a process failed otherwise; the message has its traceback.
    """
    try:
        from lightning_fabric import Fabric
        from lightning_fabric.plugins.environments import LightningEnvironment
        from lightning_fabric.strategies import DDPStrategy
    except ImportError:
        raise HeatproofError(
            "A training on several devices needs lightning-fabric, which is not installed: pip install "
            '"heatproof[multi-gpu]", or set devices to 1.'
        ) from None
    accelerator = _accelerator(runtime, devices)
    shared = replace(runtime, threads=max(1, runtime.threads // devices))
    level = logging.getLogger("heatproof").getEffectiveLevel()
    other_children = set(children())
    with tempfile.TemporaryDirectory(prefix="heatproof-training-") as reports, _no_outer_launcher():
        # Looking for unused parameters keeps gradient buckets unchanged. Otherwise, with three devices or more, a
        # training that resumes after a kill would sum gradients in another order.
        strategy = DDPStrategy(start_method="spawn", find_unused_parameters=True, timeout=PATIENCE)
        # Not SLURM's environment, which Fabric would detect in a job, and which requires one task per device.
        fabric: Any = Fabric(
            accelerator=accelerator, devices=devices, strategy=strategy, plugins=[LightningEnvironment()]
        )
        try:
            # `partial`, because Fabric searches arguments for networks, and refuses frozen dataclasses.
            fabric.launch(partial(_member, train=train, runtime=shared, level=level, reports=reports))
        except (ProcessExitedException, ProcessRaisedException) as error:
            raise _cause(error, Path(reports)) from None
        finally:
            end_processes(lambda: set(children()) - other_children)


def _accelerator(runtime: Runtime, devices: int) -> str:
    kind = configure_torch(runtime).type
    if kind == "mps":
        raise HeatproofError(
            f"A training has devices: {devices}, but there is only one Apple GPU: set devices to 1, or set device: cpu."
        )
    if kind == "cuda" and torch.cuda.device_count() < devices:
        raise HeatproofError(
            f"A training has devices: {devices}, but this job sees {torch.cuda.device_count()} GPU(s): lower devices, "
            "or run it on a node with more GPUs."
        )
    return kind


@contextmanager
def _no_outer_launcher() -> Iterator[None]:
    before = {name: os.environ.pop(name) for name in (*RANK_VARIABLES, LOG_LEVEL, CONTROLLER) if name in os.environ}
    # Otherwise PyTorch warns in every process that all parameters were used, which is fine.
    os.environ[LOG_LEVEL] = before.get(LOG_LEVEL, "ERROR")
    # Tells a process to which training it belongs, before Fabric calls it.
    os.environ[CONTROLLER] = str(os.getpid())
    try:
        yield
    finally:
        for name in (*RANK_VARIABLES, LOG_LEVEL, CONTROLLER):
            os.environ.pop(name, None)
        os.environ.update(before)


def _cause(error: ProcessExitedException | ProcessRaisedException, reports: Path) -> Exception:
    # The first report has the cause, because the other processes then fail as well.
    first = next(iter(sorted(reports.iterdir())), None)
    early = first is None or time.time() - first.stat().st_mtime < KILLS_AFTER
    killed = next((rank for rank, code in _exit_codes(error) if code == -signal.SIGKILL), None) if early else None
    if isinstance(error, ProcessExitedException) and error.signal_name == "SIGKILL":
        killed = error.error_index
    if killed is not None:
        return HeatproofError(
            f"The process that trains on device {killed} was ended by SIGKILL, most likely sent by the kernel because "
            "memory ran out: ask for more memory, or let fewer jobs run at once, and run the same command again; "
            f"{RESUME_HINT}."
        )
    if isinstance(error, ProcessExitedException):
        ending = error.signal_name or f"exit code {error.exit_code}"
        return HeatproofError(
            f"The process that trains on device {error.error_index} was ended by {ending}: look for its cause in this "
            f"job's log, and run the same command again; {RESUME_HINT}."
        )
    if first is None:
        if "EADDRINUSE" in str(error):
            return HeatproofError(
                "Another program took the port that the processes of this training communicate on: run the same "
                f"command again; {RESUME_HINT}."
            )
        return RuntimeError(str(error))
    report = json.loads(first.read_text(encoding="utf-8"))
    return HeatproofError(report["sentence"]) if report["sentence"] else RuntimeError(report["traceback"])


def _exit_codes(error: BaseException) -> Iterator[tuple[int, int | None]]:
    """Yield rank and exit code of each process from PyTorch's context, because Fabric does not pass them on."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        context = frame.f_locals.get("self")
        if isinstance(context, ProcessContext):
            yield from ((rank, process.exitcode) for rank, process in enumerate(context.processes))


def _member(fabric: Any, train: Train, runtime: Runtime, level: int, reports: str) -> None:
    """Run the training in one of the processes."""
    install_signal_handlers()
    logging.basicConfig(format="%(asctime)s %(message)s", datefmt="%H:%M:%S", stream=sys.stderr)
    logging.getLogger("heatproof").setLevel(level if fabric.global_rank == 0 else logging.ERROR)
    try:
        configure_torch(runtime)
        train(FabricDeviceGroup(fabric))
    except Exception as error:
        sentence = str(error) if isinstance(error, HeatproofError) else machine_fault(error)
        report = {"sentence": sentence, "traceback": f"On device {fabric.global_rank}:\n{traceback.format_exc()}"}
        with suppress(OSError):
            Path(reports, f"{time.monotonic_ns():020d}.{fabric.global_rank}").write_text(
                json.dumps(report), encoding="utf-8"
            )
        raise


# At import, before the processes connect, because a process would wait a day for a missing one.
if multiprocessing.parent_process() is not None:
    end_with_parent()


class FabricDeviceGroup(DeviceGroup):
    """One of several devices: takes its rows of each batch and steps with averaged gradients."""

    def __init__(self, fabric: Any) -> None:
        super().__init__(fabric.device)
        self.fabric = fabric
        self.devices = fabric.world_size
        self.is_main = fabric.global_rank == 0

    def join(self, model: nn.Module) -> nn.Module:
        """Return the model; on GPUs, its batch norm layers use the statistics of the complete batch."""
        if self.device.type == "cuda":
            synchronise_batch_norm(model)
        norms = [layer for layer in model.modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm)]
        separate = sum(not isinstance(layer, nn.SyncBatchNorm) for layer in norms)
        if separate:
            log.info("%d batch norm layers compute their statistics on each device separately", separate)
        return self.fabric.setup_module(model)

    def begin(self, seed: int, epoch: int) -> None:
        """Seed the draws of the network itself, such as dropout: differently on each device, the same after a kill."""
        torch.manual_seed(derive_seed(seed, f"training epoch {epoch} on device {self.fabric.global_rank}"))

    def part(self, images: int) -> BatchPart:
        """Return a nearly equal share of the rows.

        If a batch has fewer than two images per device, every device takes all of it, because batch norm cannot be
        trained on one image, and networks may not accept an empty batch.
        """
        if images < 2 * self.devices:
            return BatchPart(slice(0, images), 1.0)
        rank, (fewest, remainder) = self.fabric.global_rank, divmod(images, self.devices)
        start = rank * fewest + min(rank, remainder)
        rows = fewest + (rank < remainder)
        return BatchPart(slice(start, start + rows), rows * self.devices / images)

    def backward(self, loss: torch.Tensor) -> None:
        """Add the mean over the devices to the gradients."""
        self.fabric.backward(loss)

    def total(self, value: float) -> float:
        """Return the sum of a value over the devices."""
        return float(self.fabric.all_reduce(torch.tensor(value, dtype=torch.float64), reduce_op="sum"))

    def broadcast(self, value: T | None) -> T:
        """Return the value of the main device on all devices; the others pass None and wait for it."""
        return self.fabric.broadcast(value)


def synchronise_batch_norm(model: nn.Module) -> None:
    """Replace batch norm layers of PyTorch and timm by synchronised ones.

    Subclasses in other libraries, like those of B-cos networks, compute something else and are not replaced.
    """
    from timm.layers import BatchNormAct2d, convert_sync_batchnorm

    batch_norms = {nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, BatchNormAct2d}
    for parent in list(model.modules()):
        for name, layer in list(parent.named_children()):
            if type(layer) in batch_norms:
                setattr(parent, name, convert_sync_batchnorm(layer))

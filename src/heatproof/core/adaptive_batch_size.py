"""Halve the batch size when memory runs out; results stay the same (on a GPU up to rounding)."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from types import TracebackType
from typing import Protocol

import torch

from heatproof.errors import RESUME_HINT, HeatproofError, is_out_of_memory

log = logging.getLogger(__name__)

# First batch size for `auto`; if it does not fit, it is halved, and on a GPU remembered.
AUTO = {"cuda": 512, "mps": 128, "cpu": 64}


def batch_size_of(wanted: int | str, device: torch.device | str) -> int:
    """Return the number of images in one network pass; ``"auto"`` depends on the device."""
    return AUTO.get(torch.device(device).type, AUTO["cpu"]) if wanted == "auto" else int(wanted)


class Attempt:
    """One attempt with a batch size: a context manager that suppresses out-of-memory errors.

    A context manager adds no frame to the traceback of other errors.

    Attributes
    ----------
    size
        Number of images in a batch, which the context returns.
    ran_out
        Whether memory ran out.
    """

    def __init__(self, name: str, size: int) -> None:
        self.name, self.size, self.ran_out = name, size, False

    def __enter__(self) -> int:
        return self.size

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if not isinstance(error, RuntimeError | MemoryError) or not is_out_of_memory(error):
            return False
        if self.size == 1:
            raise HeatproofError(
                f"Memory ran out in {self.name!r} with a batch size of 1: run fewer jobs at once, or use a device with "
                f"more memory or a smaller network, and run the same command again; {RESUME_HINT}."
            ) from None
        self.ran_out = True
        return True


class StoredBatchSizes(Protocol):
    """Batch sizes that fit each GPU model, kept for later jobs."""

    def read(self, device: str) -> int | None:
        """Return the batch size that fits a device; None if it is unknown."""

    def write(self, device: str, size: int) -> None:
        """Store the batch size that fits a device."""


class AdaptiveBatchSize:
    """Batch size that is halved whenever memory runs out, and remembered.

    Parameters
    ----------
    name
        Name of the function that runs in batches, for messages.
    stored
        Batch sizes of earlier jobs; None remembers the size in this process only. They are not used on a CPU, whose
        memory is shared with other programs.
    device
        Device on which the function runs.
    """

    def __init__(self, name: str, stored: StoredBatchSizes | None = None, device: torch.device | str = "cpu") -> None:
        self.name = name
        self.stored = stored if torch.device(device).type == "cuda" else None
        self.device = describe_device(device)
        self.batch_size: int | None = self.stored.read(self.device) if self.stored else None

    def attempts(self, wanted: int) -> Iterator[Attempt]:
        """Yield attempts, largest size first, until one does not run out of memory.

        ::

            for attempt in adaptive_size.attempts(64):
                with attempt as size:
                    result = run(size)

        Parameters
        ----------
        wanted
            The largest size.

        Raises
        ------
        HeatproofError
            Inside the context, if memory runs out with a batch size of 1.
        """
        size = min(wanted, self.batch_size or wanted)
        while True:
            attempt = Attempt(self.name, size)
            yield attempt
            if not attempt.ran_out:
                return
            # Only now, because the context of the error kept the tensors of the failed pass alive.
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            log.info("%s: out of memory with a batch size of %d, continuing with %d", self.name, size, size // 2)
            size //= 2
            self._remember(size)

    def _remember(self, size: int) -> None:
        self.batch_size = size
        if self.stored is None:
            return
        try:
            self.stored.write(self.device, size)
        except OSError as error:
            log.info("%s: the next job starts with the full batch size (%s)", self.name, error)


def describe_device(device: torch.device | str) -> str:
    """Return the model and memory of a device; the same batch sizes fit devices with the same description."""
    device = torch.device(device)
    if device.type == "cuda" and torch.cuda.is_available():
        facts = torch.cuda.get_device_properties(device)
        return f"{facts.name}, {facts.total_memory >> 20} MiB"
    return device.type

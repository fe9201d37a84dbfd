"""Halve the batch size when memory runs out; results stay the same (on a GPU up to rounding)."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

import torch

from heatproof.errors import RESUME_HINT, HeatproofError, is_out_of_memory
from heatproof.files.reading import read_json
from heatproof.files.writing import write_json

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


class AdaptiveBatchSize:
    """Batch size that is halved whenever memory runs out, and remembered.

    Parameters
    ----------
    name
        Name of the function that runs in batches, for messages.
    file
        File that stores the batch size that fits each GPU model, for later jobs; None remembers it in this process
        only. It is not used on a CPU, whose memory is shared with other programs.
    device
        Device on which the function runs.
    """

    def __init__(self, name: str, file: str | Path | None = None, device: torch.device | str = "cpu") -> None:
        self.name = name
        is_gpu = torch.device(device).type == "cuda"
        self.file = Path(file) if file is not None and is_gpu else None
        self.device = describe_device(device)
        known = read_json(self.file) if self.file is not None else None
        size = (known or {}).get(self.device)
        self.batch_size: int | None = size if isinstance(size, int) and size > 0 else None

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
        if self.file is None:
            return
        try:
            write_json(self.file, {**(read_json(self.file) or {}), self.device: size})
        except OSError:
            log.info("%s: %s cannot be written, so the next job starts with the full batch size", self.name, self.file)


def describe_device(device: torch.device | str) -> str:
    """Return the model and memory of a device; the same batch sizes fit devices with the same description."""
    device = torch.device(device)
    if device.type == "cuda" and torch.cuda.is_available():
        facts = torch.cuda.get_device_properties(device)
        return f"{facts.name}, {facts.total_memory >> 20} MiB"
    return device.type


def batch_size_file(base: str | Path) -> Path:
    """Return the path of the file that stores the batch size, in the folder of a store or of weights."""
    base = Path(base)
    return base.with_name(f".{base.name}.batch.json")

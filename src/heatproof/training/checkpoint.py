"""Journal of a training: its state after the last complete epoch, for resuming."""

from __future__ import annotations

import io
import logging
import shutil
import zipfile
from pathlib import Path
from typing import Any, TypedDict

import torch

from heatproof.errors import HeatproofError
from heatproof.models.weights_file import read_torch
from heatproof.storage.files import written_aside

log = logging.getLogger(__name__)


class EpochRow(TypedDict):
    """One row of a training's history; epochs count from 0."""

    epoch: int
    lr: float
    train_loss: float
    validation_loss: float
    validation_accuracy: float


class Journal:
    """File from which a killed training resumes.

    Parameters
    ----------
    output
        The weights in the making; the journal's folder is beside them and hidden, and no output of any rule, because
        Snakemake removes the outputs of a job that was killed.
    key
        Stands for all that the training depends on: a state is found under the same key alone.
    """

    def __init__(self, output: str | Path, key: str) -> None:
        output = Path(output)
        self.file = output.with_name(f".{output.stem}.journal") / f"{key}.pt"

    def save(self, state: dict[str, Any]) -> None:
        """Write the state atomically."""
        whole = io.BytesIO()
        torch.save(state, whole)
        with written_aside(self.file) as aside:
            # Not by torch.save, whose errors do not tell a full disk from others.
            aside.write_bytes(whole.getbuffer())

    def load(self) -> dict[str, Any] | None:
        """Return the state of an earlier job, on the CPU; None if there is none or it is damaged."""
        if not self.file.is_file():
            return None
        try:
            # torch.load does not look at the checksums that it writes.
            with zipfile.ZipFile(self.file) as parts:
                if parts.testzip() is None:
                    return read_torch(self.file, str(self.file))
        except (HeatproofError, OSError, EOFError, RuntimeError, ValueError, zipfile.BadZipFile):
            pass
        log.warning("the journal %s is damaged: the training starts from the first epoch", self.file)
        return None

    def forget(self) -> None:
        """Remove the journal, and those of other configs, once the weights are published."""
        shutil.rmtree(self.file.parent, ignore_errors=True)


class EpochEnded(Exception):
    """Raised to end a training after its first epoch; holds the rows of its history."""

    def __init__(self, history: list[EpochRow]) -> None:
        super().__init__("the first epoch has ended")
        self.history = history


class FirstEpoch(Journal):
    """Journal that stops a training after one epoch and writes nothing, for `heatproof accept`."""

    def save(self, state: dict[str, Any]) -> None:
        """End the training.

        Raises
        ------
        EpochEnded
            Always.
        """
        raise EpochEnded(state["history"])

    def load(self) -> None:
        """Begin with the first epoch."""

"""Journal of a training: its state after the last complete epoch, from which it can resume."""

from __future__ import annotations

import hashlib
import io
import logging
import shutil
from numbers import Real
from pathlib import Path
from typing import Any, TypedDict

import torch

from heatproof.errors import is_out_of_memory
from heatproof.models import saved_by_torch
from heatproof.store.reading import open_regular
from heatproof.store.writing import atomic_write, refuse_links

log = logging.getLogger(__name__)

DIGEST_BYTES = hashlib.sha256().digest_size


class Losses(TypedDict):
    """Columns of every row of a history."""

    epoch: int
    lr: float
    train_loss: float
    validation_loss: float


class EpochRow(Losses, total=False):
    """One row of a training's history; epochs count from 0.

    It has ``validation_accuracy``, or in a regression ``validation_error``, the mean absolute error in the unit of the
    labels.
    """

    validation_accuracy: float
    validation_error: float


class Journal:
    """File from which a killed training resumes.

    Parameters
    ----------
    output
        Path of the weights. The journal is in a hidden folder next to it, and is not an output of a rule, because
        Snakemake removes the outputs of a killed job.
    key
        Digest of everything that the training depends on; a state is found only under the same key.
    """

    def __init__(self, output: str | Path, key: str) -> None:
        output = Path(output)
        self.file = refuse_links(output.with_name(f".{output.stem}.journal") / f"{key}.pt")
        # Part of the digest, so that the state of another training is refused whatever its file name is.
        self.training = f"{output.name} {key}\n".encode()

    def save(self, state: dict[str, Any]) -> None:
        """Write the state atomically, followed by a digest of the state and the identity of the training."""
        buffer = io.BytesIO()
        torch.save(state, buffer)
        with atomic_write(self.file) as aside, open(aside, "wb") as file:
            # Not torch.save(file), whose errors do not distinguish a full disk from other causes.
            file.write(buffer.getbuffer())
            file.write(self._digest(buffer.getbuffer()))

    def load(self) -> dict[str, Any] | None:
        """Return the state of an earlier job on the CPU; None if it is missing, damaged or from another training."""
        try:
            with open_regular(self.file) as file:
                buffer = memoryview(file.read())
            state, digest = buffer[:-DIGEST_BYTES], buffer[-DIGEST_BYTES:]
            if self._digest(state) == digest:
                return saved_by_torch.read(io.BytesIO(state), len(state))
        except FileNotFoundError:
            return None
        except Exception as error:  # a damaged file can raise any exception
            if is_out_of_memory(error):
                raise
        log.warning("the journal %s is damaged: the training starts from the first epoch", self.file)
        return None

    def _digest(self, state: memoryview) -> bytes:
        hasher = hashlib.sha256(self.training)
        hasher.update(state)
        return hasher.digest()

    def remove(self) -> None:
        """Remove this journal and those of other configs, once the weights are published."""
        shutil.rmtree(self.file.parent, ignore_errors=True)


def check_history(rows: Any) -> None:
    """Check that rows are a history.

    Raises
    ------
    TypeError
        If they are not.
    """
    for row in rows:
        validation_keys = row.keys() & EpochRow.__optional_keys__
        has_losses = row.keys() - EpochRow.__optional_keys__ == EpochRow.__required_keys__
        if len(validation_keys) != 1 or not has_losses or not all(isinstance(value, Real) for value in row.values()):
            raise TypeError("not a row of a history")

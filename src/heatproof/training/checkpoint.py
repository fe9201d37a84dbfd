"""Journal of a training: its state after the last complete epoch, for resuming."""

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
from heatproof.files.reading import open_regular
from heatproof.files.writing import atomic_write, refuse_links
from heatproof.models import saved_by_torch

log = logging.getLogger(__name__)

DIGEST_BYTES = hashlib.sha256().digest_size


class Losses(TypedDict):
    """What each row of a history has."""

    epoch: int
    lr: float
    train_loss: float
    validation_loss: float


class EpochRow(Losses, total=False):
    """One row of a training's history; epochs count from 0.

    It has ``validation_accuracy``, or where numbers are learnt ``validation_error``, the mean absolute error in their
    own unit.
    """

    validation_accuracy: float
    validation_error: float


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
        self.file = refuse_links(output.with_name(f".{output.stem}.journal") / f"{key}.pt")
        # In the digest, so that the state of another training is never taken, whatever its file is called.
        self.training = f"{output.name} {key}\n".encode()

    def save(self, state: dict[str, Any]) -> None:
        """Write the state atomically, and behind it a digest of it and of what it belongs to."""
        whole = io.BytesIO()
        torch.save(state, whole)
        with atomic_write(self.file) as aside, open(aside, "wb") as file:
            # Not by torch.save, whose errors do not tell a full disk from others.
            file.write(whole.getbuffer())
            file.write(self._digest(whole.getbuffer()))

    def load(self) -> dict[str, Any] | None:
        """Return the state of an earlier job, on the CPU; None if there is none, or it is damaged or another's."""
        try:
            with open_regular(self.file) as file:
                whole = memoryview(file.read())
            state, told = whole[:-DIGEST_BYTES], whole[-DIGEST_BYTES:]
            if self._digest(state) == told:
                return saved_by_torch.read(io.BytesIO(state), len(state))
        except FileNotFoundError:
            return None
        except Exception as error:  # damage can end in any way
            if is_out_of_memory(error):
                raise
        log.warning("the journal %s is damaged: the training starts from the first epoch", self.file)
        return None

    def _digest(self, state: memoryview) -> bytes:
        found = hashlib.sha256(self.training)
        found.update(state)
        return found.digest()

    def remove(self) -> None:
        """Remove the journal, and those of other configs, once the weights are published."""
        shutil.rmtree(self.file.parent, ignore_errors=True)


def check_history(rows: Any) -> None:
    """Refuse what is no history.

    Raises
    ------
    TypeError
        If it is none.
    """
    for row in rows:
        judged = row.keys() & EpochRow.__optional_keys__
        others = row.keys() - EpochRow.__optional_keys__ == EpochRow.__required_keys__
        if len(judged) != 1 or not others or not all(isinstance(one, Real) for one in row.values()):
            raise TypeError("no row of a history")


class FirstEpochEnded(Exception):
    """Raised to end a training after its first epoch; holds the rows of its history."""

    def __init__(self, history: list[EpochRow]) -> None:
        super().__init__("the first epoch has ended")
        self.history = history


class FirstEpochJournal(Journal):
    """Journal that stops a training after one epoch and writes nothing, for `heatproof accept`."""

    def save(self, state: dict[str, Any]) -> None:
        """End the training.

        Raises
        ------
        EpochEnded
            Always.
        """
        raise FirstEpochEnded(state["history"])

    def load(self) -> None:
        """Begin with the first epoch."""

"""Record what a process finished and saved: batches and epochs in a journal, and weights."""

from __future__ import annotations

import os
from pathlib import Path


def watch(path: str | Path) -> None:
    """Add a line to a file for everything that is saved from now on: its manifest, and its range of images or epochs.

    Complete weights have their own line, before epoch 0.
    """
    from heatproof.training.journal import Journal
    from heatproof.workflow.stages import _training
    from heatproof.workflow.stages._shards import Shard

    ledger = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    keep, save, publish = Shard._write_batch, Journal.save, _training.publish_tables

    def note(what: str | Path, start: int, stop: int) -> None:
        os.write(ledger, f"{what} {start} {stop}\n".encode())

    def noted_keep(shard, start, arrays, seconds, passes):
        # In the writing thread, because data that it has not written yet are not saved.
        keep(shard, start, arrays, seconds, passes)
        note(shard.manifest, start, start + len(next(iter(arrays.values()))))

    def noted_save(journal, state):
        save(journal, state)
        folder, epochs = journal.file.parent, len(state["history"])
        note(folder.with_name(folder.stem.removeprefix(".") + ".json"), epochs - 1, epochs)

    def noted_publish(job, outputs, inputs, **facts):
        publish(job, outputs, inputs, **facts)
        note(job.manifest, -1, 0)

    Shard._write_batch, Journal.save = noted_keep, noted_save
    _training.publish_tables = noted_publish

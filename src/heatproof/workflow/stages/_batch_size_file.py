"""A file that keeps the batch sizes that fit, next to the results of a job."""

from __future__ import annotations

from pathlib import Path

from heatproof.store.reading import read_json
from heatproof.store.writing import write_json


class BatchSizeFile:
    """The batch size that fits each GPU model, in the folder of a store or of weights; see `StoredBatchSizes`."""

    def __init__(self, base: str | Path) -> None:
        base = Path(base)
        self.path = base.with_name(f".{base.name}.batch.json")

    def read(self, device: str) -> int | None:
        """Return the batch size that fits a device; None if it is unknown or the file is damaged."""
        size = (read_json(self.path) or {}).get(device)
        return size if isinstance(size, int) and size > 0 else None

    def write(self, device: str, size: int) -> None:
        """Store the batch size that fits a device."""
        write_json(self.path, {**(read_json(self.path) or {}), device: size})

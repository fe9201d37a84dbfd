"""Results that Snakemake has no memory of: copied from elsewhere, or left when ``.snakemake`` was lost.

Without its memory Snakemake goes by file times alone, and those say nothing after a copy: it would make everything
again, or take the results of another config for its own. The manifests know better. What belongs to this config and
code gets times in the order of the stages; what does not is dated back, so that Snakemake makes it again. Nothing that
took work is removed or changed.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from heatproof.plan.entries import Record
from heatproof.plan.whole import Plan
from heatproof.provenance import digest
from heatproof.store import read_json, write_text

LONG_AGO = 1_000_000_000.0


def adopt(plan: Plan, memory: str | Path = ".snakemake") -> None:
    """Set the times of results without memory, once for a folder and again when config or code change."""
    metadata, marker = Path(memory) / "metadata", Path(memory) / "heatproof.adopted"
    remembers = metadata.is_dir() and any(metadata.iterdir())
    if remembers and not marker.exists():
        return
    records = list(plan.records())
    state = digest([[record.manifest, record.spec_key, record.images] for record in records])
    if marker.exists() and remembers and marker.read_text(encoding="utf-8") == state:
        return
    if any(Path(record.manifest).exists() for record in records):
        now = time.time() - 60
        for record in records:
            if belongs(record):
                set_times(record, now + record.rank)
            elif record.rank == 0:
                # Read from no other file, a list of images cannot be older than its inputs; it is made in a second.
                Path(record.manifest).unlink(missing_ok=True)
            else:
                set_times(record, LONG_AGO - record.rank)
        write_text(marker, state)


def belongs(record: Record) -> bool:
    """Tell whether what a job left is whole, and of this config and code."""
    made = read_json(record.manifest)
    if made is None or made.get("spec_key") != record.spec_key:
        return False
    if record.images is not None and made["images"][1] < record.images:
        return False
    folder = Path(record.manifest).parent
    sizes_fit = all(
        (folder / facts["file"]).is_file() and (folder / facts["file"]).stat().st_size == facts["bytes"]
        for facts in made.get("files", ())
    )
    return sizes_fit and all(os.path.exists(output) for output in record.outputs)


def set_times(record: Record, when: float) -> None:
    """Date the files that a job left."""
    for output in record.outputs:
        if os.path.exists(output):
            os.utime(output, (when, when))

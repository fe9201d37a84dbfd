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

from heatproof.manifest import read_sealed
from heatproof.plan.entries import Record
from heatproof.plan.whole import Plan
from heatproof.provenance import digest, file_digest
from heatproof.store import write_text

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
        # No earlier than the user's own files, which may have come a moment ago.
        sources = [os.stat(s).st_mtime for record in records for s in record.sources if os.path.exists(s)]
        now = max([time.time() - 60, *sources])
        for record in records:
            if belongs(record):
                set_times(record, now + record.rank)
            elif record.rank == 0 and not record.sources:
                # Made from no file that it could be older than: without its manifest it is made again, where what
                # follows from it is.
                Path(record.manifest).unlink(missing_ok=True)
            else:
                date_back(record)
        write_text(marker, state)


def notice_replaced(plan: Plan) -> None:
    """Date back what was made from a checkpoint that is another now, whatever the dates of both.

    Snakemake goes by the time in a file, and a copy or an archive may bring an old one.
    """
    if not any(plan.checkpoint_file(model) for model in plan.models):
        return
    for record in plan.weight_records():
        if record.sources and os.path.exists(record.manifest):
            made = os.stat(record.manifest).st_mtime
            # The system's own time of a change spares the reading of what was not touched since.
            touched = any(os.stat(source).st_ctime >= made for source in record.sources if os.path.exists(source))
            if touched and not read_the_same(record):
                date_back(record)


def belongs(record: Record) -> bool:
    """Tell whether what a job left is whole, and of this config and code."""
    made = read_sealed(record.manifest)
    if made is None or made.get("spec_key") != record.spec_key:
        return False
    if record.images is not None and made["images"][1] < record.images:
        return False
    if not set(record.kept) <= set(made.get("kept", ())) or not read_the_same(record):
        return False
    folder = Path(record.manifest).parent
    sizes_fit = all(
        (folder / facts["file"]).is_file() and (folder / facts["file"]).stat().st_size == facts["bytes"]
        for facts in made.get("files", ())
    )
    return sizes_fit and all(os.path.exists(output) for output in record.outputs)


def read_the_same(record: Record) -> bool:
    """Tell whether the user's own files behind a job have the bytes that it read."""
    then = (read_sealed(record.manifest) or {}).get("input_sha256", {})
    return all(
        os.path.isfile(source) and then.get(Path(source).as_posix()) == file_digest(source) for source in record.sources
    )


def date_back(record: Record) -> None:
    """Make a job's files older than all that they could be made from, so that Snakemake makes them again."""
    oldest = [LONG_AGO, *(os.stat(source).st_mtime for source in record.sources if os.path.exists(source))]
    # What is made from no other result, and so of rank 0, is older than the file as well.
    set_times(record, min(oldest) - max(record.rank, 1))


def set_times(record: Record, when: float) -> None:
    """Date the files that a job left."""
    for output in record.outputs:
        if os.path.exists(output):
            os.utime(output, (when, when))

"""Cost of a start that checks the files of a dataset and finds no change.

    python benchmarks/data_start.py --files 10000 1280000 --out FOLDER

So many empty files are created in class folders of 1,000, and recorded as `prepare` does. Then the check of a start
(`heatproof.workflow.changed_data.inspect_data`: read the record, ask the system for size and times of each file,
compare digests of all images) runs in a separate process. The references are one `os.stat` per file in one thread, and
the listing of the folders by which every start counts images. Looks are calls of `os.stat`, reads are opened files.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from _shared import make_parser, print_table

IN_FOLDER = 1000
SPLIT = "evaluation"


def fill(folder: Path, files: int) -> None:
    """Create the files, and their record."""
    from heatproof.store.source_files import record_files, write_record

    photos, paths = folder / "photos", []
    for number in range(files):
        below = photos / f"class_{number // IN_FOLDER:04d}"
        if number % IN_FOLDER == 0:
            below.mkdir(parents=True)
        path = below / f"picture_{number:08d}.jpeg"
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY))
        paths.append(path)
    folders = [photos, *sorted(photos.iterdir())]
    facts = {"listed": {SPLIT: ("ids", files)}, "rows": {SPLIT: np.arange(files) + len(folders)}}
    # Date the record after the last tick of the file system's clock.
    record = record_files(photos, [*folders, *paths], time.time_ns() + 10**10, lists=len(folders), **facts)
    write_record(folder / "photos.files", record)


def most_memory() -> float:
    """Return the peak memory of this process so far, in MiB."""
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) / 2**10


def look_once(folder: Path, counted: bool) -> dict[str, Any]:
    """Check the files as a start does, and return the cost."""
    from heatproof.store import source_files as sources

    calls = {"looks": 0, "reads": 0}
    if counted:
        plain, opened = os.stat, sources.open_regular

        def stat(path: Any, **how: Any) -> os.stat_result:
            calls["looks"] += 1
            return plain(path, **how)

        def open_regular(path: Any) -> Any:
            calls["reads"] += 1
            return opened(path)

        os.stat, sources.open_regular = stat, open_regular  # type: ignore[assignment]
    before, began = most_memory(), time.perf_counter()
    record = sources.read_record(folder / "photos.files")
    assert record is not None
    changes = sources.file_changes(record, folder / "photos")
    same = sources.is_same_data(
        {"data": sources.ImagesRead("photos", changes.record).data((SPLIT, 0, len(changes.record.rows[SPLIT])))},
        {"photos": changes.record}.get,
    )
    seconds = time.perf_counter() - began
    assert same
    assert not changes.changed
    assert not changes.is_record_outdated
    return {"seconds": seconds, "MiB": most_memory() - before, "files": len(record.paths), **calls}


def plainly(folder: Path) -> tuple[float, float]:
    """Return the seconds of one `os.stat` per file in one thread, and of listing all folders."""
    from heatproof.datasets.image_files import image_files_below

    paths = [path for below in (folder / "photos").iterdir() for path in map(os.fspath, below.iterdir())]
    began = time.perf_counter()
    for path in paths:
        os.stat(path)
    between = time.perf_counter()
    for below in sorted((folder / "photos").iterdir()):
        image_files_below(below)
    return between - began, time.perf_counter() - between


def row(files: int) -> dict[str, Any]:
    """Return a row of the table."""
    with tempfile.TemporaryDirectory(prefix="data-start-") as name:
        folder = Path(name)
        fill(folder, files)
        costs = []
        for counted in ("", "counted"):
            command = [sys.executable, __file__, "--look", name, *([f"--{counted}"] if counted else [])]
            costs.append(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
        stat, listing = plainly(folder)
        size = (folder / "photos.files").stat().st_size / 2**20
    cost, calls = costs
    return {
        "files": files,
        "seconds": cost["seconds"],
        "over one stat a file": cost["seconds"] / stat,
        "over the listing": cost["seconds"] / listing,
        "MiB more": cost["MiB"],
        "record MiB": size,
        "looks a file": calls["looks"] / calls["files"],
        "files read": calls["reads"],
    }


def main() -> None:
    """Print the table."""
    options = make_parser(__doc__ or "")
    options.add_argument("--files", type=int, nargs="+", default=[10_000], help="how many")
    options.add_argument("--look", type=Path, help="look at the files of a folder, and print what it cost")
    options.add_argument("--counted", action="store_true", help="count calls as well")
    args = options.parse_args()
    if args.look:
        print(json.dumps(look_once(args.look, args.counted)))
        return
    print_table([row(files) for files in ([100] if args.small else args.files)], "data_start", args.out)


if __name__ == "__main__":
    main()

"""Run two checkouts over the same configs and compare CSVs byte for byte and arrays value for value.

    python benchmarks/oracle.py FIRST SECOND [--configs NAME …] [--work FOLDER]
    python benchmarks/oracle.py FIRST SECOND --first-results 'baselines/{}'

FIRST and SECOND are checkouts, for instance a worktree of an older commit and this repository. Both run in the
environment of this command, one after the other, with the same configs (those of this repository), threads and batch
sizes. Each run has a folder of its own, FOLDER/first/NAME and FOLDER/second/NAME, which stays; what is whole there is
not made again. Do not edit a checkout while it runs. `--first-results` and `--second-results` name folders of finished
runs in place of a run: the config's name takes the place of `{}`, and the folder has `results` in it.

Compared are all of `results/**/*.csv`, and in the Zarr stores the arrays that hold something of every image: maps,
patch drops, curves, pictures, subsets, parts and channels. NaN equals NaN; chunks, shards, attributes and coordinates
may differ. Digests in names of stores may differ as well: stores that are alike but for their digests are paired by
their content, and `--rename OLD=NEW` tells what else was renamed, as a regular expression on the first side's paths.

Prints a table and the names of what differs. The exit status is 1 if anything differs or is missing on one side.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import zarr

ROOT = Path(__file__).resolve().parent.parent
CONFIGS = {"default": "config", "quick": "quick", "parts": "parts", "everything": "everything"}
TARGETS = ("all", "results/scores.csv", "results/claims.csv")
ALL_METRICS = "report: {all_metrics: true}\n"
# Of a store's settings, at the end of its name.
DIGEST = re.compile(r"-[0-9a-f]{8,}(?=\.zarr\b)")
# They say which image a row is, and hold nothing that was computed.
COORDINATES = {"image", "image_id", "label"}
NAMED = 20


@dataclass
class Comparison:
    """What two results folders have in common: counts, and the paths of what differs or stands on one side alone."""

    csvs: int = 0
    differing_csvs: list[str] = field(default_factory=list)
    missing_csvs: list[str] = field(default_factory=list)
    arrays: int = 0
    differing_arrays: list[str] = field(default_factory=list)
    missing_arrays: list[str] = field(default_factory=list)

    def equal(self) -> bool:
        """Tell whether anything was compared, and nothing of it differs or is missing."""
        wrong = [self.differing_csvs, self.missing_csvs, self.differing_arrays, self.missing_arrays]
        return bool(self.csvs and self.arrays) and not any(wrong)


def compare(first: Path, second: Path, renames: Iterable[tuple[str, str]] = ()) -> Comparison:
    """Compare two results folders.

    Parameters
    ----------
    first, second
        Folders that a run left, named ``results`` in a working folder.
    renames
        Regular expressions and what takes their place in the first side's paths of stores.
    """
    found = Comparison()
    _compare_tables(first, second, found)
    old = {_renamed(name, renames): digest for name, digest in digests(first)}
    new = dict(digests(second))
    _compare_arrays(old, new, found)
    return found


def _compare_tables(first: Path, second: Path, found: Comparison) -> None:
    old, new = (
        # Seconds differ from run to run.
        {path.relative_to(side).as_posix(): path for path in sorted(side.rglob("*.csv")) if path.stem != "costs"}
        for side in (first, second)
    )
    for name in sorted(old.keys() | new.keys()):
        if name not in old or name not in new:
            found.missing_csvs.append(f"{name} (only in the {'second' if name in new else 'first'})")
            continue
        found.csvs += 1
        if old[name].read_bytes() != new[name].read_bytes():
            found.differing_csvs.append(f"{name}: {first_difference(old[name], new[name])}")


def first_difference(old: Path, new: Path) -> str:
    """Return the first line in which two texts differ."""
    lines = [path.read_text(encoding="utf-8", errors="replace").splitlines() for path in (old, new)]
    for number, (before, after) in enumerate(zip(*lines, strict=False), 1):
        if before != after:
            return f"line {number}: {before[:200]!r} is {after[:200]!r}"
    return f"{len(lines[0])} lines and {len(lines[1])}, or another end of lines"


def digests(results: Path) -> Iterator[tuple[str, str]]:
    """Yield the path of every array that holds something of every image, and a digest of its content."""
    for store in sorted(results.rglob("*.zarr")):
        for name, array in sorted(zarr.open_group(store, mode="r").arrays()):
            named = array.metadata.dimension_names or ()
            if name not in COORDINATES and "image" in named:
                yield f"{store.relative_to(results).as_posix()}/{name}", content(np.asarray(array[...]))


def content(values: np.ndarray) -> str:
    """Return a digest of an array's type, shape and values, in which every NaN is the same."""
    if np.issubdtype(values.dtype, np.floating):
        # Adding zero makes no difference between the two zeros.
        values = np.where(np.isnan(values), np.asarray(np.nan, values.dtype), values + values.dtype.type(0))
    told = f"{values.dtype.str} {values.shape} ".encode()
    return hashlib.blake2b(told + np.ascontiguousarray(values).tobytes(), digest_size=16).hexdigest()


def _compare_arrays(old: dict[str, str], new: dict[str, str], found: Comparison) -> None:
    left: defaultdict[str, tuple[dict[str, str], dict[str, str]]] = defaultdict(lambda: ({}, {}))
    for name in sorted(old.keys() | new.keys()):
        if name in old and name in new:
            found.arrays += 1
            if old[name] != new[name]:
                found.differing_arrays.append(name)
            continue
        place = name in new
        left[DIGEST.sub("", name)][place][name] = (new if place else old)[name]
    for alike in left.values():
        _pair(*alike, found)


def _pair(old: dict[str, str], new: dict[str, str], found: Comparison) -> None:
    """Pair arrays whose names differ in a digest alone: those of one content first, the others in order."""
    others = []
    for name, digest in old.items():
        twin = next((other for other, its in new.items() if its == digest), None)
        if twin is None:
            others.append(name)
        else:
            del new[twin]
            found.arrays += 1
    for name, other in zip(others, list(new), strict=False):
        found.arrays += 1
        found.differing_arrays.append(f"{name} and {other}")
    found.missing_arrays += [f"{name} (only in the first)" for name in others[len(new) :]]
    found.missing_arrays += [f"{name} (only in the second)" for name in list(new)[len(others) :]]


def _renamed(name: str, renames: Iterable[tuple[str, str]]) -> str:
    for pattern, replacement in renames:
        name = re.sub(pattern, replacement, name)
    return name


def run(checkout: Path, config: str, folder: Path, cores: int) -> Path:
    """Run one config of this repository on the code of a checkout, and return its results folder."""
    folder.mkdir(parents=True, exist_ok=True)
    over = folder / "all_metrics.yaml"
    over.write_text(ALL_METRICS, encoding="utf-8")
    # Snakemake looks for the embedded default in the run's folder, and goes without it where there is none.
    configs = [str(ROOT / "config" / f"{name}.yaml") for name in dict.fromkeys(["config", CONFIGS[config]])]
    configs.append(str(over))
    command = [sys.executable, "-m", "snakemake", "--snakefile", str(checkout / "Snakefile"), "--cores", str(cores)]
    command += ["--directory", str(folder), "--configfile", *configs, "--", *TARGETS]
    environment = {**os.environ, "PYTHONPATH": str(checkout / "src"), "OMP_NUM_THREADS": "1"}
    began = time.monotonic()
    with open(folder / "log", "w", encoding="utf-8") as log:
        status = subprocess.run(command, env=environment, stdout=log, stderr=log).returncode
    print(f"{config} on {checkout}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    if status:
        sys.exit(f"{config} on {checkout} failed with {status}: {folder / 'log'}")
    return folder / "results"


def main() -> int:
    """Run and compare, print what came out, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("first", type=Path)
    parser.add_argument("second", type=Path)
    parser.add_argument("--configs", nargs="+", choices=CONFIGS, default=list(CONFIGS), metavar="NAME")
    parser.add_argument("--work", type=Path, default=Path("oracle"))
    parser.add_argument("--first-results", metavar="PATTERN")
    parser.add_argument("--second-results", metavar="PATTERN")
    parser.add_argument("--rename", action="append", default=[], metavar="OLD=NEW")
    parser.add_argument("--cores", type=int, default=2)
    asked = parser.parse_args()
    renames = [(old, new) for old, _, new in (one.partition("=") for one in asked.rename)]
    sides = [("first", asked.first, asked.first_results), ("second", asked.second, asked.second_results)]
    found: dict[str, Comparison] = {}
    for config in asked.configs:
        places = [
            Path(pattern.replace("{}", config)) / "results"
            if pattern
            else run(checkout.resolve(), config, asked.work.resolve() / side / config, asked.cores)
            for side, checkout, pattern in sides
        ]
        found[config] = compare(*places, renames)
    show(found)
    return 0 if all(one.equal() for one in found.values()) else 1


def show(found: dict[str, Comparison]) -> None:
    """Print a table, one row a config, and below it the first paths of what differs or is missing."""
    print(f"{'config':<12}{'CSVs':>8}{'differ':>8}{'missing':>9}{'arrays':>9}{'differ':>8}{'missing':>9}")
    for config, one in found.items():
        tables = f"{one.csvs:>8}{len(one.differing_csvs):>8}{len(one.missing_csvs):>9}"
        print(f"{config:<12}{tables}{one.arrays:>9}{len(one.differing_arrays):>8}{len(one.missing_arrays):>9}")
    for config, one in found.items():
        for title in ("differing_csvs", "missing_csvs", "differing_arrays", "missing_arrays"):
            names = getattr(one, title)
            for name in names[:NAMED]:
                print(f"{config}, {title.replace('_', ' ')}: {name}")
            if len(names) > NAMED:
                print(f"{config}, {title.replace('_', ' ')}: and {len(names) - NAMED} more")


if __name__ == "__main__":
    sys.exit(main())

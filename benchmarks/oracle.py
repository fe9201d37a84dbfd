"""Run two checkouts over their configs, and compare numbers exactly and texts apart.

    python benchmarks/oracle.py FIRST SECOND [--configs NAME …] [--work FOLDER]
    python benchmarks/oracle.py FIRST SECOND --first-results 'baselines/{}'

FIRST and SECOND are checkouts, for instance a worktree of an older commit and this repository. Each runs its own
configs, in the environment of this command, one after the other, with the same threads. Do not edit a checkout while
it runs. `--first-results` and `--second-results` name folders of finished runs in place of a run: the config's name
takes the place of `{}`, and the folder has `results` in it.

Everything is kept in FOLDER: the runs in FOLDER/first/NAME and FOLDER/second/NAME, and what a comparison found in
FOLDER/NAME.json. After a kill, the same command goes on: it neither repeats a comparison nor starts a run that was
finished, and Snakemake continues a run that was cut off. After an edit of a checkout its configs are run and compared
again.

Compared are

- the tables of the results folder (`*.csv`, and `*.parquet`, the scores of every image). A column in which every cell
  is a number must have the same numbers in the same rows. Texts are compared apart: differences are listed, and are no
  failure. Columns of `costs.csv` that a clock measured are left out.
- in the Zarr stores, the arrays that hold something of every image: maps, patch drops, curves, pictures, subsets, parts
  and channels. NaN equals NaN; chunks, shards, attributes and coordinates may differ. Digests in names of stores may
  differ as well: stores that are alike but for their digests are paired by their content, and `--rename OLD=NEW` tells
  what else was renamed, as a regular expression on the first side's paths.

Prints a table and the names of what differs. The exit status is 1 if a run failed, a number or an array differs, or a
table, a column of numbers or an array is missing on one side.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd
import zarr

CONFIGS = {"default": "config", "quick": "quick", "parts": "parts", "everything": "everything"}
TARGETS = ("all", "results/scores.csv", "results/claims.csv")
ALL_METRICS = "report: {all_metrics: true}\n"
# The paths that determine what a checkout computes.
CODE = ("Snakefile", "config", "profiles", "src", "workflow")
# Seconds differ from run to run, and so does what follows from them.
MEASURED = {"costs.csv": ["seconds", "cost", "on_front"]}
# Of a store's settings, at the end of its name.
DIGEST = re.compile(r"-[0-9a-f]{8,}(?=\.zarr\b)")
# These arrays identify the image of a row and contain no results.
COORDINATES = {"image", "image_id", "label"}
NAMED = 20
# Next to the results of a run: the digest of the code that finished it.
FINISHED = "finished"


class Failed(Exception):
    """A run that did not finish."""


@dataclass
class Comparison:
    """Results of the comparison of two results folders: counts, and what differs or exists on one side only."""

    tables: int = 0
    differing_numbers: list[str] = field(default_factory=list)
    differing_texts: list[str] = field(default_factory=list)
    missing_tables: list[str] = field(default_factory=list)
    arrays: int = 0
    differing_arrays: list[str] = field(default_factory=list)
    missing_arrays: list[str] = field(default_factory=list)

    def equal(self) -> bool:
        """Whether something was compared, and no number differs or is missing."""
        wrong = [self.differing_numbers, self.missing_tables, self.differing_arrays, self.missing_arrays]
        return bool(self.tables and self.arrays) and not any(wrong)


def compare(first: Path, second: Path, renames: Iterable[tuple[str, str]] = ()) -> Comparison:
    """Compare two results folders.

    Parameters
    ----------
    first, second
        Folders that a run left, named ``results`` in a working folder.
    renames
        Regular expressions and their replacements, for the paths of stores on the first side.
    """
    found = Comparison()
    _compare_tables(first, second, found)
    old = {_renamed(name, renames): digest for name, digest in digests(first)}
    new = dict(digests(second))
    _compare_arrays(old, new, found)
    return found


# ---- tables ----------------------------------------------------------------------------------------------------------


def _compare_tables(first: Path, second: Path, found: Comparison) -> None:
    old, new = (
        {path.relative_to(side).as_posix(): path for path in side.rglob("*") if path.suffix in (".csv", ".parquet")}
        for side in (first, second)
    )
    for name in sorted(old.keys() | new.keys()):
        if name not in old or name not in new:
            found.missing_tables.append(f"{name} (only in the {'second' if name in new else 'first'})")
            continue
        found.tables += 1
        before, after = read_table(old[name]), read_table(new[name])
        if len(before) != len(after):
            found.differing_numbers.append(f"{name}: {len(before)} rows are {len(after)}")
            continue
        for column in dict.fromkeys([*before, *after]):
            sides = [table[column] if column in table else [""] * len(table) for table in (before, after)]
            numbers, difference = compare_column(*sides)
            if column not in before or column not in after:
                difference = f"only in the {'second' if column in after else 'first'}"
            if difference:
                (found.differing_numbers if numbers else found.differing_texts).append(
                    f"{name}, {column}: {difference}"
                )


def read_table(path: Path) -> pd.DataFrame:
    """Return a table with the cells of a CSV as they are written, without the columns of measured times."""
    if path.suffix == ".parquet":
        return pd.read_parquet(path)
    try:
        table = pd.read_csv(path, dtype=str, keep_default_na=False)
    except pd.errors.EmptyDataError:
        return pd.DataFrame()
    return table.drop(columns=MEASURED.get(path.name, []), errors="ignore")


def compare_column(before: Iterable[object], after: Iterable[object]) -> tuple[bool, str]:
    """Return whether a column is numeric, and a description of its difference; "" where there is none.

    Parameters
    ----------
    before, after
        The cells on both sides, of the same rows.
    """
    texts = [[str(cell) for cell in side] for side in (before, after)]
    numbers = [[number_of(cell) for cell in side] for side in texts]
    if any(map(_are_numbers, numbers)):
        differ = [place for place, (a, b) in enumerate(zip(*numbers, strict=True)) if not _same(a, b)]
        if differ:
            return True, _first(differ, texts)
    # One number can be written in two ways, such as 0.5 and 0.50.
    differ = [place for place, (a, b) in enumerate(zip(*texts, strict=True)) if a != b]
    return False, _first(differ, texts) if differ else ""


def number_of(cell: str) -> float | None:
    """Return a cell as a number, NaN where it is empty, or None where it is text."""
    try:
        return float({"": "nan", "True": "1", "False": "0", "None": "nan"}.get(cell, cell))
    except ValueError:
        return None


def _are_numbers(cells: Sequence[float | None]) -> bool:
    """Return whether all cells are numbers or empty, and at least one is a number."""
    return None not in cells and not np.isnan(np.array(cells, float)).all()


def _same(a: float | None, b: float | None) -> bool:
    return a is not None and b is not None and (a == b or (a != a and b != b))


def _first(differ: Sequence[int], texts: Sequence[Sequence[str]]) -> str:
    (before, after), place = texts, differ[0]
    return f"{len(differ)} of {len(before)} rows, row {place + 1}: {before[place][:200]!r} is {after[place][:200]!r}"


# ---- arrays ----------------------------------------------------------------------------------------------------------


def digests(results: Path) -> Iterator[tuple[str, str]]:
    """Yield the path of every array that has a value for every image, and a digest of its content."""
    for store in sorted(results.rglob("*.zarr")):
        for name, array in sorted(zarr.open_group(store, mode="r").arrays()):
            named = array.metadata.dimension_names or ()
            if name not in COORDINATES and "image" in named:
                yield f"{store.relative_to(results).as_posix()}/{name}", content(np.asarray(array[...]))


def content(values: np.ndarray) -> str:
    """Return a digest of an array's type, shape and values, in which all NaN are equal."""
    if np.issubdtype(values.dtype, np.floating):
        # Adding zero turns a negative zero into a positive one.
        values = np.where(np.isnan(values), np.asarray(np.nan, values.dtype), values + values.dtype.type(0))
    type_and_shape = f"{values.dtype.str} {values.shape} ".encode()
    return hashlib.blake2b(type_and_shape + np.ascontiguousarray(values).tobytes(), digest_size=16).hexdigest()


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
    """Pair arrays whose names differ only in a digest: those with equal content first, the others in order."""
    unpaired = []
    for name, digest in old.items():
        twin = next((other for other, its in new.items() if its == digest), None)
        if twin is None:
            unpaired.append(name)
        else:
            del new[twin]
            found.arrays += 1
    for name, other in zip(unpaired, list(new), strict=False):
        found.arrays += 1
        found.differing_arrays.append(f"{name} and {other}")
    found.missing_arrays += [f"{name} (only in the first)" for name in unpaired[len(new) :]]
    found.missing_arrays += [f"{name} (only in the second)" for name in list(new)[len(unpaired) :]]


def _renamed(name: str, renames: Iterable[tuple[str, str]]) -> str:
    for pattern, replacement in renames:
        name = re.sub(pattern, replacement, name)
    return name


# ---- runs ------------------------------------------------------------------------------------------------------------


def code_of(checkout: Path) -> str:
    """Return a digest of everything that determines what a checkout computes."""
    digest = hashlib.blake2b(f"{TARGETS} {ALL_METRICS}".encode(), digest_size=16)
    for part in CODE:
        files = [checkout / part, *(checkout / part).rglob("*")]
        for file in sorted(file for file in files if file.is_file() and "__pycache__" not in file.parts):
            digest.update(f"{file.relative_to(checkout)} {file.stat().st_size} ".encode() + file.read_bytes())
    return digest.hexdigest()


def run(checkout: Path, config: str, folder: Path, cores: int) -> None:
    """Run a config of a checkout in a folder, unless this code has finished it there before.

    Raises
    ------
    Failed
        If the run does not finish, or the checkout is edited meanwhile.
    """
    code, finished = code_of(checkout), folder / FINISHED
    if _finished(folder) == code:
        return
    folder.mkdir(parents=True, exist_ok=True)
    finished.unlink(missing_ok=True)
    over = folder / "all_metrics.yaml"
    over.write_text(ALL_METRICS, encoding="utf-8")
    configs = [str(checkout / "config" / f"{name}.yaml") for name in dict.fromkeys(["config", CONFIGS[config]])]
    command = [sys.executable, "-m", "snakemake", "--snakefile", str(checkout / "Snakefile"), "--cores", str(cores)]
    # The profile makes Snakemake run interrupted jobs again. Snakemake looks for it in the working folder.
    command += ["--workflow-profile", str(checkout / "profiles/default"), "--directory", str(folder)]
    command += ["--configfile", *configs, str(over), "--", *TARGETS]
    environment = {**os.environ, "PYTHONPATH": str(checkout / "src"), "OMP_NUM_THREADS": "1"}
    began = time.monotonic()
    with open(folder / "log", "w", encoding="utf-8") as log:
        status = subprocess.run(command, env=environment, stdout=log, stderr=log).returncode
    print(f"{config} on {checkout}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    if status:
        raise Failed(f"{config} on {checkout} failed with status {status}: see {folder / 'log'}")
    if code_of(checkout) != code:
        raise Failed(f"{checkout} was edited while {config} ran: run the same command again")
    finished.write_text(code, encoding="utf-8")


def _finished(folder: Path) -> str | None:
    """Return the digest of the code that finished the run in a folder, if one did."""
    path = folder / FINISHED
    return path.read_text(encoding="utf-8") if path.is_file() else None


def compared(config: str, work: Path, folders: Sequence[Path], renames: Sequence[tuple[str, str]]) -> Comparison:
    """Compare two runs of a config, or read the result of an earlier command."""
    stored, inputs = work / f"{config}.json", [*map(_finished, folders), [list(one) for one in renames]]
    if stored.is_file() and None not in inputs:
        known = json.loads(stored.read_text(encoding="utf-8"))
        if known["of"] == inputs:
            return Comparison(**known["found"])
    found = compare(folders[0] / "results", folders[1] / "results", renames)
    work.mkdir(parents=True, exist_ok=True)
    aside = stored.with_suffix(".part")
    aside.write_text(json.dumps({"of": inputs, "found": asdict(found)}, indent=1), encoding="utf-8")
    aside.replace(stored)
    return found


def main() -> int:
    """Run and compare, print the results, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("first", type=Path)
    parser.add_argument("second", type=Path)
    parser.add_argument("--configs", nargs="+", choices=CONFIGS, default=list(CONFIGS), metavar="NAME")
    parser.add_argument("--work", type=Path, default=Path("oracle"))
    parser.add_argument("--first-results", metavar="PATTERN")
    parser.add_argument("--second-results", metavar="PATTERN")
    parser.add_argument("--rename", action="append", default=[], metavar="OLD=NEW")
    parser.add_argument("--cores", type=int, default=2)
    args = parser.parse_args()
    # A run that is ended takes Snakemake with it, whose jobs then end by themselves.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    renames = [(old, new) for old, _, new in (one.partition("=") for one in args.rename)]
    sides = [("first", args.first, args.first_results), ("second", args.second, args.second_results)]
    work, found, failed = args.work.resolve(), {}, 0
    for config in args.configs:
        folders = []
        try:
            for side, checkout, pattern in sides:
                folders.append(Path(pattern.replace("{}", config)) if pattern else work / side / config)
                if not pattern:
                    run(checkout.resolve(), config, folders[-1], args.cores)
        except Failed as reason:
            print(reason, file=sys.stderr, flush=True)
            failed += 1
            continue
        found[config] = compared(config, work, folders, renames)
    show(found)
    return int(bool(failed) or not all(one.equal() for one in found.values()))


def show(found: dict[str, Comparison]) -> None:
    """Print a table, one row per config, and below it the first differences and missing files."""
    heads = ("config", "tables", "numbers", "texts", "missing", "arrays", "differ", "missing")
    print(f"{heads[0]:<12}" + "".join(f"{head:>9}" for head in heads[1:]))
    for config, one in found.items():
        lists = (one.differing_numbers, one.differing_texts, one.missing_tables)
        counts = [one.tables, *map(len, lists), one.arrays, len(one.differing_arrays), len(one.missing_arrays)]
        print(f"{config:<12}" + "".join(f"{count:>9}" for count in counts))
    for config, one in found.items():
        for title, names in asdict(one).items():
            if not isinstance(names, list):
                continue
            for name in names[:NAMED]:
                print(f"{config}, {title.replace('_', ' ')}: {name}")
            if len(names) > NAMED:
                print(f"{config}, {title.replace('_', ' ')}: and {len(names) - NAMED} more")


if __name__ == "__main__":
    sys.exit(main())

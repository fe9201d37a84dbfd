"""Run two checkouts over their configs, and compare numbers exactly and texts apart.

    python benchmarks/oracle.py FIRST SECOND [--configs NAME …] [--work FOLDER]
    python benchmarks/oracle.py FIRST SECOND --run-only first
    python benchmarks/oracle.py FIRST SECOND --first-results 'baselines/{}'
    python benchmarks/oracle.py FIRST SECOND --rename '^curves/=responses/' --gone '^ranking/' --gone 'costs.csv, rank$'

FIRST and SECOND are checkouts, for instance a worktree of an older commit and this repository. Each runs its own
configs, in the environment of this command, one after the other, with the same threads. Do not edit a checkout while
it runs. `--run-only first` or `--run-only second` runs the configs of one side and compares nothing, so that both sides
can be prepared at different times. `--first-results` and `--second-results` name folders of finished runs in place of a
run: the config's name takes the place of `{}`, and the folder has `results` in it.

Everything is kept in FOLDER: the runs in FOLDER/first/NAME and FOLDER/second/NAME, and what a comparison found in
FOLDER/NAME.json. After a kill, the same command goes on: it neither repeats a comparison nor starts a run that was
finished, and Snakemake continues a run that was cut off. After an edit of a checkout its configs are run and compared
again. After an edit of this file, or with other `--rename` or `--gone`, the finished runs are compared again.

Compared are

- the tables of the results folder (`*.csv`, and `*.parquet`, the scores of every image). A column in which every cell
  is a number must have the same numbers in the same rows. Texts are compared apart: differences are listed, and are no
  failure. Columns of `costs.csv` that a clock measured are left out. The column `check_passes` is left out of every
  table; its sums over all tables of a side are printed.
- in the Zarr stores, the arrays that hold something of every image: maps, patch drops, curves, pictures, subsets, parts
  and channels. NaN equals NaN; chunks, shards, attributes and other coordinates may differ. Rows are compared by the
  ids of their images, so their order may differ, and images that were not computed (every value is NaN, or -1 in an
  array of integers) may be missing. Ids are in the coordinate `image_id`, or in `image` where a side has no other. Rows
  that share an id are compared in their order, and so are all rows if a side has no ids. A folder with a store for
  every shard (`saliency-0764f811/0-5be1c2aa.zarr`, `saliency-0764f811/1-….zarr`) is compared as if it were one store
  (`saliency-0764f811.zarr`), and is printed so.

A digest (`-` or `.` and at least 8 hexadecimal digits) may differ anywhere in a path. Tables or arrays whose paths
differ only in digests are paired: first those of the same path, then those of the same content, then the others in
order. `--rename OLD=NEW` tells what else was renamed, as a regular expression on the paths of the first side's tables
and arrays.

What only the second side has (tables, columns, arrays) is listed and is no failure. What only the first side has is a
failure, unless `--gone REGEX` matches a part of its path as it is printed. The path of a column is "table, column"; so
end the expression of a table with `$` if its columns are not meant. Both options may be repeated.

Prints a table, the sums of `check_passes`, and the names of what differs. The exit status is 1 if a run failed, a
number or an array differs, or something is missing on the second side.
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
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import product
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np
import pandas as pd
import zarr

CONFIGS = {"default": "config", "quick": "quick", "parts": "parts", "everything": "everything"}
TARGETS = ("all", "results/scores.csv", "results/claims.csv")
ALL_METRICS = "report: {all_metrics: true}\n"
# The paths that determine what a checkout computes.
CODE = ("Snakefile", "config", "profiles", "src", "workflow")
SIDES = ("first", "second")
# Seconds differ from run to run, and so does what follows from them.
MEASURED = {"costs.csv": ["seconds", "cost", "on_front"], ".methods.parquet": ["seconds", "drops_seconds"]}
# How often networks and explainers are checked depends on the division into jobs, and is no result of a method.
CHECKS = "check_passes"
# Of settings or code, anywhere in a path.
DIGEST = re.compile(r"[-.][0-9a-f]{8,}(?![0-9A-Za-z])")
# The name of a shard's store, without its digest.
SHARD = re.compile(r"(\d+)\.zarr")
# Coordinates that identify the image of a row: `image` has ids or positions, whichever the layout of a store says.
IDS = (IMAGE_ID := "image_id", "image")
# The digest of all rows in their own order, next to those by the coordinates above.
OWN_ORDER = ""
# These arrays identify the image of a row and contain no results.
COORDINATES = {*IDS, "label"}
NAMED = 20
# Next to the results of a run: the digest of the code that finished it.
FINISHED = "finished"

Content = TypeVar("Content")


class Failed(Exception):
    """A run that did not finish."""


@dataclass
class Comparison:
    """Results of the comparison of two results folders: counts, and what differs or exists on one side only.

    Attributes
    ----------
    tables, arrays
        How many were compared.
    missing
        What only the first side has.
    gone
        What only the first side has, and the command says so.
    new
        What only the second side has.
    check_passes
        The sum of this column over all tables, on the first and the second side.
    """

    tables: int = 0
    differing_numbers: list[str] = field(default_factory=list)
    differing_texts: list[str] = field(default_factory=list)
    arrays: int = 0
    differing_arrays: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)
    new: list[str] = field(default_factory=list)
    check_passes: tuple[float, float] = (0, 0)

    def equal(self) -> bool:
        """Whether something was compared, and no number differs or is missing."""
        return bool(self.tables and self.arrays) and not any(
            [self.differing_numbers, self.differing_arrays, self.missing]
        )


@dataclass
class Entry(Generic[Content]):
    """A table or an array of one side, under the path that is printed."""

    name: str
    content: Content


Pair = tuple[Entry[Content] | None, Entry[Content] | None]


def compare(first: Path, second: Path, renames: Iterable[tuple[str, str]] = (), gone: Iterable[str] = ()) -> Comparison:
    """Compare two results folders.

    Parameters
    ----------
    first, second
        Folders that a run left, named ``results`` in a working folder.
    renames
        Regular expressions and their replacements, for the paths of tables and arrays on the first side.
    gone
        Regular expressions that match a part of the paths that only the first side is meant to have.
    """
    comparison, renames, gone = Comparison(), list(renames), list(gone)
    _compare_tables(first, second, renames, comparison)
    _compare_arrays(first, second, renames, comparison)
    meant = [name for name in comparison.missing if any(re.search(pattern, name) for pattern in gone)]
    comparison.gone = meant
    comparison.missing = [name for name in comparison.missing if name not in meant]
    return comparison


# ---- pairs -----------------------------------------------------------------------------------------------------------


def _alike(
    before: Iterable[tuple[str, Content]], after: Iterable[tuple[str, Content]], renames: Iterable[tuple[str, str]]
) -> Iterator[tuple[list[Entry[Content]], list[Entry[Content]]]]:
    """Yield what both sides have under each path, where paths differ only in digests."""
    groups: defaultdict[str, tuple[list[Entry[Content]], list[Entry[Content]]]] = defaultdict(lambda: ([], []))
    renamed = ((_renamed(name, renames), content) for name, content in before)
    for side, contents in enumerate((renamed, after)):
        for name, content in contents:
            groups[DIGEST.sub("", name)][side].append(Entry(name, content))
    for path in sorted(groups):
        yield groups[path]


def _renamed(name: str, renames: Iterable[tuple[str, str]]) -> str:
    for pattern, replacement in renames:
        name = re.sub(pattern, replacement, name)
    return name


def _paired(
    before: Sequence[Entry[Content]],
    after: Sequence[Entry[Content]],
    *fits: Callable[[Entry[Content], Entry[Content]], bool],
) -> list[Pair[Content]]:
    """Pair entries of both sides; an entry without a partner is paired with None.

    Parameters
    ----------
    before, after
        The entries on both sides.
    fits
        Whether two entries fit each other, the strictest function first. What fits by none is paired in order.
    """
    pairs: list[Pair[Content]] = []
    unpaired, candidates = list(before), list(after)
    if len(unpaired) == len(candidates) == 1:
        return [(unpaired[0], candidates[0])]
    for fit in fits:
        for entry in list(unpaired):
            partner = next((candidate for candidate in candidates if fit(entry, candidate)), None)
            if partner is not None:
                pairs.append((entry, partner))
                # By identity: entries hold tables, which have no single truth value when they are compared.
                unpaired = [other for other in unpaired if other is not entry]
                candidates = [other for other in candidates if other is not partner]
    shared = min(len(unpaired), len(candidates))
    pairs += zip(unpaired[:shared], candidates[:shared], strict=True)
    return [*pairs, *((entry, None) for entry in unpaired[shared:]), *((None, entry) for entry in candidates[shared:])]


def _same_name(before: Entry[Content], after: Entry[Content]) -> bool:
    return before.name == after.name


def _title(before: Entry[Content], after: Entry[Content]) -> str:
    return before.name if _same_name(before, after) else f"{before.name} and {after.name}"


# ---- tables ----------------------------------------------------------------------------------------------------------


@dataclass
class TableDifferences:
    """Descriptions of what differs between two tables, and the columns that only one of them has."""

    numbers: list[str]
    texts: list[str]
    missing: list[str]
    new: list[str]


def _compare_tables(first: Path, second: Path, renames: Sequence[tuple[str, str]], comparison: Comparison) -> None:
    passes = [0.0, 0.0]
    for group in _alike(_tables(first), _tables(second), renames):
        tables: list[list[Entry[pd.DataFrame]]] = []
        for side, entries in enumerate(group):
            tables.append([])
            for entry in entries:
                table = read_table(entry.content)
                passes[side] += _sum_of_checks(table)
                tables[side].append(Entry(entry.name, table.drop(columns=CHECKS, errors="ignore")))
        for pair in _paired(*tables, _same_name, _same_cells, _same_numbers):
            _add_tables(*pair, comparison)
    comparison.check_passes = passes[0], passes[1]


def _tables(results: Path) -> Iterator[tuple[str, Path]]:
    for path in sorted(results.rglob("*")):
        if path.suffix in (".csv", ".parquet"):
            yield path.relative_to(results).as_posix(), path


def read_table(path: Path) -> pd.DataFrame:
    """Return a table with the cells of a CSV as they are written, without the columns of measured times."""
    is_csv, name = path.suffix == ".csv", DIGEST.sub("", path.name)
    try:
        table = pd.read_csv(path, dtype=str, keep_default_na=False) if is_csv else pd.read_parquet(path)
    except pd.errors.EmptyDataError:
        return pd.DataFrame()
    measured = [column for ending, columns in MEASURED.items() if name.endswith(ending) for column in columns]
    return table.drop(columns=measured, errors="ignore")


def _sum_of_checks(table: pd.DataFrame) -> float:
    return float(pd.to_numeric(table[CHECKS], errors="coerce").sum()) if CHECKS in table else 0.0


def _same_cells(before: Entry[pd.DataFrame], after: Entry[pd.DataFrame]) -> bool:
    differences = table_differences(before.content, after.content)
    return not differences.numbers and not differences.texts


def _same_numbers(before: Entry[pd.DataFrame], after: Entry[pd.DataFrame]) -> bool:
    return not table_differences(before.content, after.content).numbers


def _add_tables(before: Entry[pd.DataFrame] | None, after: Entry[pd.DataFrame] | None, comparison: Comparison) -> None:
    """Add the differences between two tables, or the table that only one side has."""
    if after is None:
        comparison.missing.append(before.name)
        return
    if before is None:
        comparison.new.append(after.name)
        return
    comparison.tables += 1
    differences, title = table_differences(before.content, after.content), _title(before, after)
    comparison.differing_numbers += [f"{title}{text}" for text in differences.numbers]
    comparison.differing_texts += [f"{title}{text}" for text in differences.texts]
    comparison.missing += [f"{before.name}, {column}" for column in differences.missing]
    comparison.new += [f"{after.name}, {column}" for column in differences.new]


def table_differences(before: pd.DataFrame, after: pd.DataFrame) -> TableDifferences:
    """Compare the columns that both tables have, and list the others."""
    missing = [column for column in before if column not in after]
    new = [column for column in after if column not in before]
    differences = TableDifferences([], [], missing, new)
    if len(before) != len(after):
        differences.numbers.append(f": {len(before)} rows are {len(after)}")
        return differences
    for column in before:
        if column in after:
            is_numeric, difference = compare_column(before[column], after[column])
            if difference:
                (differences.numbers if is_numeric else differences.texts).append(f", {column}: {difference}")
    return differences


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
        differing_rows = [row for row, (a, b) in enumerate(zip(*numbers, strict=True)) if not _same(a, b)]
        if differing_rows:
            return True, _first(differing_rows, texts)
    # One number can be written in two ways, such as 0.5 and 0.50.
    differing_rows = [row for row, (a, b) in enumerate(zip(*texts, strict=True)) if a != b]
    return False, _first(differing_rows, texts) if differing_rows else ""


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


def _first(differing_rows: Sequence[int], texts: Sequence[Sequence[str]]) -> str:
    (before, after), row = texts, differing_rows[0]
    cells = f"{before[row][:200]!r} is {after[row][:200]!r}"
    return f"{len(differing_rows)} of {len(before)} rows, row {row + 1}: {cells}"


# ---- arrays ----------------------------------------------------------------------------------------------------------


@dataclass
class Rows:
    """The rows of an array, in the order in which they are stored.

    Attributes
    ----------
    digests
        Digest of each row's values.
    computed
        Whether a row has values.
    ids
        Name of a coordinate to the ids of the images of all rows.
    """

    digests: list[bytes]
    computed: list[bool]
    ids: dict[str, list[str]]

    def __add__(self, other: Rows) -> Rows:
        shared = {name: ids + other.ids[name] for name, ids in self.ids.items() if name in other.ids}
        return Rows(self.digests + other.digests, self.computed + other.computed, shared)

    def contents(self) -> dict[str, str]:
        """Return a digest of the rows by each coordinate of ids, and one in their own order."""
        by_ids = {name: self._content_by(ids) for name, ids in self.ids.items()}
        return {**by_ids, OWN_ORDER: _joint_digest(self.digests)}

    def _content_by(self, ids: Sequence[str]) -> str:
        rows = [row for row in range(len(ids)) if self.computed[row]]
        # The sort is stable: rows that share an id keep their order.
        rows.sort(key=lambda row: ids[row])
        return _joint_digest(part for row in rows for part in (_row_digest(ids[row].encode()), self.digests[row]))


def arrays_of(results: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the path of every array that has a value for every image, and digests of its content.

    Shards that have a store each are joined.
    """
    for name, stores in _stores(results):
        joined: dict[str, Rows] = {}
        for store in stores:
            for array, rows in _rows_of(store):
                joined[array] = joined[array] + rows if array in joined else rows
        for array in sorted(joined):
            yield f"{name}/{array}", joined[array].contents()


def _stores(results: Path) -> Iterator[tuple[str, list[Path]]]:
    """Yield the path of every store, or of every folder of shards as if it were a store, and its parts in order."""
    parts: defaultdict[Path, list[tuple[int, Path]]] = defaultdict(list)
    for store in sorted(results.rglob("*.zarr")):
        shard = SHARD.fullmatch(DIGEST.sub("", store.name))
        # By number, because 10 comes before 9 in the order of names.
        parts[store.parent if shard else store].append((int(shard[1]) if shard else 0, store))
    for path, numbered in sorted(parts.items()):
        name = path.relative_to(results).as_posix().removesuffix(".zarr")
        yield f"{name}.zarr", [store for _, store in sorted(numbered)]


def _rows_of(store: Path) -> Iterator[tuple[str, Rows]]:
    arrays = dict(zarr.open_group(store, mode="r").arrays())
    coordinates = {name: [str(image) for image in arrays[name][...]] for name in IDS if name in arrays}
    for name, array in arrays.items():
        dimensions = array.metadata.dimension_names or ()
        if name not in COORDINATES and "image" in dimensions:
            values = np.moveaxis(np.asarray(array[...]), dimensions.index("image"), 0)
            # A coordinate of another length does not belong to the rows.
            ids = {axis: images for axis, images in coordinates.items() if len(images) == len(values)}
            yield name, Rows(row_digests(values), _are_computed(values), ids)


def row_digests(values: np.ndarray) -> list[bytes]:
    """Return a digest of the type, shape and values of each row of an array, in which all NaN are equal."""
    if np.issubdtype(values.dtype, np.floating):
        # Adding zero turns a negative zero into a positive one.
        values = np.where(np.isnan(values), np.asarray(np.nan, values.dtype), values + values.dtype.type(0))
    type_and_shape = f"{values.dtype.str} {values.shape[1:]} ".encode()
    return [_row_digest(type_and_shape + np.ascontiguousarray(row).tobytes()) for row in values]


def _row_digest(row: bytes) -> bytes:
    return hashlib.blake2b(row, digest_size=16).digest()


def _joint_digest(parts: Iterable[bytes]) -> str:
    return hashlib.blake2b(b"".join(parts), digest_size=16).hexdigest()


def _are_computed(values: np.ndarray) -> list[bool]:
    """Return whether each row has values; stores are filled with NaN, or with -1 in arrays of integers."""
    fill = np.isnan(values) if np.issubdtype(values.dtype, np.floating) else values == -1
    return [bool(computed) for computed in ~fill.all(axis=tuple(range(1, values.ndim)))]


def _compare_arrays(first: Path, second: Path, renames: Sequence[tuple[str, str]], comparison: Comparison) -> None:
    for entries in _alike(arrays_of(first), arrays_of(second), renames):
        for before, after in _paired(*entries, _same_name, _same_content):
            if after is None:
                comparison.missing.append(before.name)
            elif before is None:
                comparison.new.append(after.name)
            else:
                comparison.arrays += 1
                if not _same_content(before, after):
                    comparison.differing_arrays.append(_title(before, after))


def _same_content(before: Entry[dict[str, str]], after: Entry[dict[str, str]]) -> bool:
    """Compare rows by ids, or in their own order if a side has none."""
    names = ([name for name in IDS if name in entry.content] for entry in (before, after))
    orders = list(product(*names)) or [(OWN_ORDER, OWN_ORDER)]
    if (IMAGE_ID, IMAGE_ID) in orders:
        # Equal positions must not hide ids that differ.
        orders = [(IMAGE_ID, IMAGE_ID)]
    return any(before.content[old] == after.content[new] for old, new in orders)


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


def compared(
    config: str, work: Path, folders: Sequence[Path], renames: Sequence[tuple[str, str]], gone: Sequence[str]
) -> Comparison:
    """Compare two runs of a config, or read the result of an earlier command."""
    stored, runs = work / f"{config}.json", [*map(_finished, folders)]
    # What this file compares can change while the runs stay as they are.
    inputs = [*runs, hashlib.blake2b(Path(__file__).read_bytes(), digest_size=16).hexdigest()]
    inputs += [[list(rename) for rename in renames], list(gone)]
    if stored.is_file() and None not in runs:
        earlier = json.loads(stored.read_text(encoding="utf-8"))
        if earlier["of"] == inputs:
            return Comparison(**earlier["found"])
    comparison = compare(folders[0] / "results", folders[1] / "results", renames, gone)
    work.mkdir(parents=True, exist_ok=True)
    aside = stored.with_suffix(".part")
    aside.write_text(json.dumps({"of": inputs, "found": asdict(comparison)}, indent=1), encoding="utf-8")
    aside.replace(stored)
    return comparison


def main() -> int:
    """Run and compare, print the results, and return the exit status."""
    args = _arguments()
    # A run that is ended takes Snakemake with it, whose jobs then end by themselves.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    renames = [(old, new) for old, _, new in (rename.partition("=") for rename in args.rename)]
    comparisons, failures = {}, 0
    for config in args.configs:
        try:
            folders = [_folder_of_run(args, side, config) for side in SIDES if args.run_only in (None, side)]
        except Failed as reason:
            print(reason, file=sys.stderr, flush=True)
            failures += 1
            continue
        if not args.run_only:
            comparisons[config] = compared(config, args.work.resolve(), folders, renames, args.gone)
    if not args.run_only:
        show(comparisons)
    return int(bool(failures) or not all(comparison.equal() for comparison in comparisons.values()))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("first", type=Path)
    parser.add_argument("second", type=Path)
    parser.add_argument("--configs", nargs="+", choices=CONFIGS, default=list(CONFIGS), metavar="NAME")
    parser.add_argument("--work", type=Path, default=Path("oracle"))
    parser.add_argument("--first-results", metavar="PATTERN")
    parser.add_argument("--second-results", metavar="PATTERN")
    parser.add_argument("--run-only", choices=SIDES)
    parser.add_argument("--rename", action="append", default=[], metavar="OLD=NEW")
    parser.add_argument("--gone", action="append", default=[], metavar="REGEX")
    parser.add_argument("--cores", type=int, default=2)
    args = parser.parse_args()
    if args.run_only and getattr(args, f"{args.run_only}_results"):
        parser.error(f"--run-only {args.run_only} has nothing to run with --{args.run_only}-results")
    return args


def _folder_of_run(args: argparse.Namespace, side: str, config: str) -> Path:
    """Return the folder of a finished run, after running the config if the command does not name such a folder."""
    pattern = getattr(args, f"{side}_results")
    if pattern:
        return Path(pattern.replace("{}", config))
    folder = args.work.resolve() / side / config
    run(getattr(args, side).resolve(), config, folder, args.cores)
    return folder


def show(comparisons: dict[str, Comparison]) -> None:
    """Print a table, one row per config, and below it the sums of checks and the first differences."""
    heads = ("config", "tables", "numbers", "texts", "arrays", "differ", "missing", "gone", "new")
    print(f"{heads[0]:<12}" + "".join(f"{head:>9}" for head in heads[1:]))
    for config, comparison in comparisons.items():
        counts = [comparison.tables, len(comparison.differing_numbers), len(comparison.differing_texts)]
        counts += [comparison.arrays, len(comparison.differing_arrays)]
        counts += map(len, (comparison.missing, comparison.gone, comparison.new))
        print(f"{config:<12}" + "".join(f"{count:>9}" for count in counts))
    for config, comparison in comparisons.items():
        before, after = comparison.check_passes
        print(f"{config}, {CHECKS}: {before:.0f} before, {after:.0f} after")
        for title, names in asdict(comparison).items():
            if isinstance(names, list) and title != CHECKS:
                _show_names(f"{config}, {title.replace('_', ' ')}", names)


def _show_names(title: str, names: Sequence[str]) -> None:
    for name in names[:NAMED]:
        print(f"{title}: {name}")
    if len(names) > NAMED:
        print(f"{title}: and {len(names) - NAMED} more")


if __name__ == "__main__":
    sys.exit(main())

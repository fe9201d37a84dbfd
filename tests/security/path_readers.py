"""Damage one random file of a finished run, open it with one command or function, and count outcomes.

    python tests/security/path_readers.py --work FOLDER [--faults 1000] [--starts 60] [--seed 0]

The first call makes two runs of a small project in FOLDER, with different seeds. Each fault is one of: a flipped bit, a
truncated end, bytes replaced by zeros, two files of a kind exchanged, bytes appended, a pipe in place of the file, a
link to a copy elsewhere, or the file of the other run (*older*). A reader is a random command or function that takes a
path; `run` and `report`, which take seconds each, are tried `--starts` times up to their first job.

Outcomes: *sentence*, the reader ends with a message, or reports the file. *Repaired*, it would make the file again.
*Same*, its result is unchanged. *Traceback*, any other exception. *Wrong*, another result without a message, although
the file has a digest. *Other*, another result where no digest exists. Every case is stored, so that a call resumes the
one before. The exit status is 1 after a traceback, a wrong result, or a reader that took 2 GiB or 30 s more than with
undamaged files.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "workflow"), str(HERE.parent / "faults")]

from flips import kind_of  # noqa: E402
from snakemake_project import MICRO, Project, clone  # noqa: E402

from heatproof.errors import HeatproofError  # noqa: E402

Result = dict[str, str]
CONFIG = {**MICRO, "report": {"all_metrics": True}}
FAULTS = ("flip", "cut", "zero", "swap", "append", "pipe", "link", "older")
# Files without a digest: those with times or output of the scheduler, and the record of the last run, which has one.
NO_DIGEST = (".tsv", ".log", ".lock", ".last_run.json", ".target")
# The modules that the readers import, so that the child processes share them.
MODULES = (
    "heatproof.api.results",
    "heatproof.workflow.commands.cli",
    "heatproof.workflow.commands.list_stores",
    "heatproof.workflow.commands.prune",
    "heatproof.workflow.commands.run",
    "heatproof.workflow.plan.graph",
    "heatproof.stats.per_image",
    "heatproof.report.figures.map_figure",
    "heatproof.report.tables.ranking",
    "heatproof.store.lazy",
    "heatproof.store.zarr_store",
    "heatproof.workflow.last_run",
    "heatproof.workflow.reconcile",
)
MORE_SECONDS, MORE_BYTES = 30, 2**31


# ---- commands and functions, and the results of each ---------------------------------------------------------------


def output_of(work: Callable[[], object]) -> str:
    """Return the output of a command, or the message with which it ends."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        try:
            result = work()
        except HeatproofError as error:
            return f"sentence: {error}\n{out.getvalue()}"
    return f"{out.getvalue()}{result or ''}"


def read_results() -> Result:
    """Read everything that `heatproof.open` returns."""
    import heatproof

    results_by_part: Result = {}
    try:
        results = heatproof.open("results")
        parts = {"tables": results.tables, "scores": results.scores}
        parts |= {kind: results.arrays(kind) for kind in ("maps", "drops", "curves", "subsets", "features")}
        results_by_part["answer"] = output_of(lambda: results.answer)
        for part, stored in parts.items():
            for name in stored:
                results_by_part[f"{part}/{name}"] = output_of(lambda stored=stored, name=name: _digest(stored[name]))
                results_by_part[f"{part}/{name} made"] = output_of(
                    lambda part=part, name=name: _plain(
                        results.provenance(name if part == "tables" else f"{part}/{name}")
                    )
                )
    except HeatproofError as error:
        results_by_part["open"] = f"sentence: {error}"
    return results_by_part


def _digest(content: object) -> str:
    import pandas as pd

    if isinstance(content, pd.DataFrame):
        return hashlib.sha256(content.to_csv().encode()).hexdigest()
    every = hashlib.sha256()
    for name, values in content.variables.items():
        every.update(f"{name}{values.dims}{values.shape}".encode() + values.to_numpy().astype("U").tobytes())
    return every.hexdigest()


def _plain(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


def ranked(*paths: str) -> Result:
    from heatproof.workflow.commands.rank import rank

    with tempfile.TemporaryDirectory() as out:
        result = {"rank": output_of(lambda: rank(*paths, out=out, lower=(), seed=0)).replace(out, "OUT")}
        tables = sorted(Path(out).rglob("*.csv"))
        return result | {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in tables}


def statuses() -> Result:
    from heatproof.workflow.commands.run import status

    return {"status": output_of(lambda: status(["micro.yaml"])), "last": output_of(lambda: status([]))}


def pruned() -> Result:
    from heatproof.workflow.commands.prune import prune

    return {"prune": output_of(lambda: prune("micro.yaml"))}


def stores() -> Result:
    from heatproof.workflow.commands.list_stores import print_stores

    return {kind: output_of(lambda kind=kind: print_stores(f"results/{kind}")) for kind in ("maps", "drops")}


def drawn_maps() -> Result:
    from heatproof.workflow.commands.show_maps import show

    store = "results/maps/digits/vgg/finetuned"
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "maps.png"
        result = {"show": output_of(lambda: show(store, "0", None, output=str(out), grid=4, drops=True))}
        return result | ({"png": hashlib.sha256(out.read_bytes()).hexdigest()} if out.exists() else {})


RUN_READERS: dict[str, Callable[[], Result]] = {
    "open": read_results,
    "rank": lambda: ranked("results"),
    "status": statuses,
    "prune": pruned,
    "maps ls": stores,
    "maps show": drawn_maps,
}


def run_in_a_process(reader: Callable[[], Result], folder: Path) -> tuple[Result, str, float, int]:
    """Call a command or function in a new process; return its result, a traceback or "", seconds, and peak memory."""
    reading, writing = os.pipe()
    began = time.monotonic()
    child = os.fork()
    if not child:
        os.close(reading)
        signal.alarm(120)
        os.chdir(folder)
        warnings.simplefilter("ignore")
        sys.stderr = io.StringIO()
        try:
            content = [reader(), ""]
        except BaseException:
            content = [{}, traceback.format_exc()]
        with os.fdopen(writing, "w") as out:
            json.dump(content, out)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    _, status, used = os.wait4(child, 0)
    seconds = time.monotonic() - began
    result, trace = json.loads(text) if text else ({}, f"it ended with status {status}")
    return result, trace, seconds, used.ru_maxrss * 1024


# ---- faults ----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def damaged(path: Path, fault: str, siblings: list[Path], older: Path, draw: random.Random) -> Iterator[bool]:
    """Damage a file, and restore it at the end; yield whether it could be damaged."""
    content, exchanged = path.read_bytes(), None
    stat = path.stat()
    aside = Path(tempfile.mkdtemp())
    changed = True
    if fault == "flip":
        position = draw.randrange(len(content))
        path.write_bytes(
            content[:position] + bytes([content[position] ^ 1 << draw.randrange(8)]) + content[position + 1 :]
        )
    elif fault == "cut":
        path.write_bytes(content[: draw.randrange(len(content))])
    elif fault == "zero":
        start = draw.randrange(len(content))
        length = draw.randint(1, max(1, len(content) - start))
        path.write_bytes(content[:start] + bytes(length) + content[start + length :])
    elif fault == "append":
        path.write_bytes(content + draw.randbytes(draw.randint(1, 64)))
    elif fault in ("swap", "older"):
        source = draw.choice(siblings) if fault == "swap" and siblings else older if fault == "older" else path
        changed = source.is_file() and source.read_bytes() != content
        if changed:
            exchanged = (source, source.read_bytes()) if fault == "swap" else None
            path.write_bytes(source.read_bytes())
            if exchanged:
                source.write_bytes(content)
    elif fault == "pipe":
        path.unlink()
        os.mkfifo(path)
    else:
        shutil.copy(path, aside / path.name)
        path.unlink()
        path.symlink_to(aside / path.name)
    try:
        yield changed
    finally:
        if path.is_symlink() or not path.is_file():
            path.unlink()
        path.write_bytes(content)
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        if exchanged:
            exchanged[0].write_bytes(exchanged[1])
        shutil.rmtree(aside)


def outcome_of(before: Result, after: Result, trace: str, has_digest: bool) -> tuple[str, str]:
    """Return the outcome of a fault, and the message."""
    if trace:
        return "traceback", trace[-1500:]
    words = [text for text in after.values() if text.startswith("sentence: ")]
    # A line of a list can report it too, such as the line of a store.
    words += [after[name] for name in after if "damaged" in after[name] and "damaged" not in before.get(name, "")]
    missing = before.keys() - after.keys()
    differing_items = [
        name for name in before if name in after and after[name] != before[name] and after[name] not in words
    ]
    if words and not differing_items:
        return "sentence", words[0][:300]
    if not missing and not differing_items:
        return "same", ""
    return ("wrong" if has_digest else "other"), str([*missing, *differing_items])[:300]


# ---- the runs --------------------------------------------------------------------------------------------------------


def make_runs(work: Path) -> dict[str, Project]:
    """Make the two runs, unless they exist."""
    projects = {}
    for name, seed in (("run", 0), ("other", 1)):
        project = Project(work / name, {**CONFIG, "seed": seed})
        if not (work / f"{name}.made").exists():
            shutil.rmtree(work / name, ignore_errors=True)
            clone(work / name)
            project.run("all")
            (work / f"{name}.made").touch()
        projects[name] = project
    return projects


def kinds(folder: Path) -> dict[str, list[Path]]:
    files: dict[str, list[Path]] = {}
    for path in sorted((folder / "results").rglob("*")):
        if path.is_file() and path.stat().st_size:
            name = path.relative_to(folder).as_posix()
            files.setdefault(kind_of(name), []).append(path)
    return files


def start(project: Project, command: str) -> tuple[str, str]:
    """Return the outcome of `run` or `report` with a damaged file until its first job, and the message."""
    try:
        done = project.heatproof(command, "micro.yaml", *(["-n"] if command == "run" else []))
    except subprocess.TimeoutExpired:
        return "traceback", "it took more than 120 s"
    printed = done.stdout + done.stderr
    if "Traceback" in printed:
        return "traceback", printed[-1500:]
    words = [line for line in printed.splitlines() if line.startswith("heatproof: ")]
    if done.returncode:
        return ("sentence", words[-1]) if words else ("traceback", printed[-500:])
    if words:
        return "repaired", words[0]
    return "same", printed[-200:]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--faults", type=int, default=1000)
    parser.add_argument("--starts", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    work = options.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    project = make_runs(work)["run"]
    folder, other = work / "run", work / "other"
    # Imported once, and not in each process.
    for module in MODULES:
        import_module(module)
    files_of_kind = kinds(folder)
    stored = work / f"cases-{options.seed}.jsonl"
    done = [json.loads(line) for line in stored.read_text().splitlines()] if stored.exists() else []
    undamaged = {}
    for name, reader in RUN_READERS.items():
        undamaged[name] = run_in_a_process(reader, folder)
        assert not undamaged[name][1], f"{name}: {undamaged[name][1]}"
        assert not any(text.startswith("sentence: ") for text in undamaged[name][0].values()), undamaged[name][0]
        print(f"{name:<16}{undamaged[name][2]:>8.1f} s {undamaged[name][3] / 2**20:>8.0f} MiB", flush=True)
    with stored.open("a") as out:
        for number in range(len(done), options.faults + options.starts):
            draw = random.Random(f"{options.seed} {number}")
            is_start = number >= options.faults
            kind = draw.choice(list(files_of_kind))
            path, fault = draw.choice(files_of_kind[kind]), draw.choice(FAULTS)
            siblings = [sibling for sibling in files_of_kind[kind] if sibling != path]
            has_digest = not path.name.endswith(NO_DIGEST)
            older = other / path.relative_to(folder)
            row = {"file": path.relative_to(folder).as_posix(), "kind": kind, "fault": fault}
            with damaged(path, fault, siblings, older, draw) as changed:
                if is_start:
                    row["door"] = draw.choice(("run", "report"))
                    row["became"], row["said"] = start(project, row["door"]) if changed else ("same", "no change")
                else:
                    row["door"] = draw.choice(list(RUN_READERS))
                    result, trace, seconds, memory = run_in_a_process(RUN_READERS[row["door"]], folder)
                    before = undamaged[row["door"]]
                    row["became"], row["said"] = outcome_of(before[0], result, trace, has_digest)
                    row["seconds"], row["bytes"] = seconds - before[2], memory - before[3]
            done.append(row)
            out.write(json.dumps(row) + "\n")
            out.flush()
    return print_table(done)


def print_table(rows: list[dict]) -> int:
    names = ("sentence", "repaired", "same", "other", "traceback", "wrong")
    print(f"\n| command or function | faults | {' | '.join(names)} |\n| --- |{' --- |' * (len(names) + 1)}")
    for reader in [*sorted({row["door"] for row in rows}), "all"]:
        of = [row for row in rows if reader in (row["door"], "all")]
        counts = Counter(row["became"] for row in of)
        print(f"| {reader} | {len(of)} | {' | '.join(str(counts[name]) for name in names)} |")
    slow = [row for row in rows if row.get("seconds", 0) > MORE_SECONDS or row.get("bytes", 0) > MORE_BYTES]
    bad = [row for row in rows if row["became"] in ("traceback", "wrong")] + slow
    for row in bad:
        print(json.dumps(row, indent=1))
    print(f"{len(slow)} took {MORE_SECONDS} s or {MORE_BYTES >> 30} GiB more than undamaged")
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())

"""Kill a run in each of its stages and at random moments, run the same command again, and compare all files.

    python tests/faults/kills.py --out kills.json [--kills 40] [--seed 0] [--only random]

Each cell starts from a finished run without the results of one stage and of all that depends on it. A job, Snakemake
or the command is killed or signalled, and the same command runs again. Then all files must have the bytes of the
undisturbed run, and all manifests the same content, except for measured seconds and values that depend on them. Cells
are stored as they finish, so that the same call resumes. The exit status is 1 if anything differs.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import chdir, suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "workflow")]

import psutil  # noqa: E402
import yaml  # noqa: E402
from jobs import without_times  # noqa: E402
from snakemake_project import MICRO, REPOSITORY  # noqa: E402

from heatproof.core.signals import SIGNALS, _runs  # noqa: E402
from heatproof.store.manifest import read_if_intact  # noqa: E402
from heatproof.store.reading import read_json  # noqa: E402
from heatproof.store.source_files import FileRecord, read_record  # noqa: E402
from heatproof.workflow.config.files import read_config  # noqa: E402
from heatproof.workflow.plan.graph import Graph, Job  # noqa: E402
from heatproof.workflow.plan.validate import make_plan  # noqa: E402

CONFIG = "micro.yaml"
KINDS = [
    ("job", signal.SIGKILL),
    ("Snakemake", signal.SIGKILL),
    ("job", signal.SIGTERM),
    ("Snakemake", signal.SIGTERM),
    ("command", signal.SIGTERM),
    ("command", signal.SIGHUP),
    ("command", signal.SIGINT),
    ("command", signal.SIGKILL),
    # As after the loss of a node.
    ("everything", signal.SIGKILL),
]
# Seconds and results that depend on them: the costs of methods, their figure, and the pages that show them. The diagram
# of critical differences differs between two undisturbed runs.
MEASURED = re.compile(
    r"results/(costs\.csv|figures/costs\.\w+|scores/.*\.methods\.parquet|report/.*|benchmarks/.*|logs/.*|ranking/critical_difference\.png)$"
)
MEASURED_COLUMNS = {"seconds", "cost", "on_front"}
# Records of the files of data and of checkpoints.
RECORDS = (".files", ".sources")
STANDING = re.compile(r"\.lock$|^\.last_run\.json$")


class Run:
    """A working folder in which the command runs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / CONFIG).write_text(yaml.safe_dump(MICRO))

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        command = arguments or ("run", CONFIG, "--cores", "2")
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "heatproof", *command],
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY / "src"), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            preexec_fn=listen,
        )

    def finish(self, *arguments: str) -> str:
        """Run the command, and return the reason if it failed; "" otherwise."""
        running = self.start(*arguments)
        output = running.communicate(timeout=900)[0]
        return f"the same command again ended with {running.returncode}: {output[-400:]}" if running.returncode else ""

    def jobs(self) -> list[Job]:
        """Return the jobs of the config, upstream first."""
        with chdir(self.folder):
            graph = Graph(make_plan(read_config(CONFIG)))
            return list(graph.jobs_leading_to(graph.targets()))

    def seconds(self, stage: str) -> float:
        """Return the duration of a job of a stage, as measured by Snakemake."""
        files = self.folder.glob(f"results/benchmarks/{stage}/**/*.tsv")
        return max((float(path.read_text().splitlines()[1].split()[0]) for path in files), default=1.0)

    def without(self, stage: str, folder: Path) -> Run:
        """Return a copy without the results of a stage, and without everything that depends on them."""
        copied = Run(folder)
        shutil.copytree(self.folder, folder, ignore=shutil.ignore_patterns(".snakemake", ".lock"))
        gone: set[str] = set()
        for job in self.jobs():
            if job.stage == stage or gone.intersection(job.inputs):
                gone.update(job.outputs)
                gone.update(file for product in job.products for file in (product.manifest, *product.files))
        for path in gone:
            (folder / path).unlink(missing_ok=True)
        return copied

    def state(self) -> dict[str, Any]:
        """Return the content of every file below the results folder, by its path, without times."""
        contents: dict[str, Any] = {}
        for path in sorted(self.folder.glob("results/**/*")):
            name = path.relative_to(self.folder).as_posix()
            if not path.is_file() or STANDING.search(path.name):
                continue
            recorded = read_json(path) if path.suffix == ".json" else None
            if recorded and "files" in recorded:
                contents[name] = without_measured(without_times(recorded), name)
            elif path.suffix == ".csv" and MEASURED.match(name):
                rows = csv.DictReader(path.read_text(encoding="utf-8").splitlines())
                contents[name] = [{key: row[key] for key in row if key not in MEASURED_COLUMNS} for row in rows]
            elif MEASURED.match(name):
                contents[name] = "measured"
            elif path.name.endswith(RECORDS):
                contents[name] = without_clock(read_record(path))
            else:
                contents[name] = path.read_bytes()
        return contents

    def broken(self) -> list[str]:
        """Return the manifests that do not match their files."""
        names = []
        for path in self.folder.glob("results/**/[!.]*.json"):
            recorded = read_json(path)
            if recorded and "files" in recorded and not read_if_intact(path, recorded["key"]):
                names.append(path.name)
        return names


def listen() -> None:
    """Restore the default of signals that are ignored, as in a script that a shell runs in the background."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_DFL)


def without_measured(recorded: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a manifest without the digests of files with measured seconds, and without keys that depend on them."""
    folder = os.path.dirname(name)

    def is_measured(path: str) -> bool:
        return bool(MEASURED.match(os.path.normpath(path)))

    stable = dict(recorded)
    stable["files"] = [
        {"file": facts["file"]} if is_measured(os.path.join(folder, facts["file"])) else facts
        for facts in recorded["files"]
    ]
    read = recorded.get("input_sha256", {})
    # Manifests of shards contain seconds.
    stable["input_sha256"] = {
        path: "measured" if is_measured(path) or path.endswith(".json") else value for path, value in read.items()
    }
    if stable["input_sha256"] != read:
        del stable["key"]
    return stable


def without_clock(record: FileRecord | None) -> Any:
    """Return the content of a record of files without its time; None if it is damaged."""
    if record is None:
        return None
    facts = {
        field.name: getattr(record, field.name) for field in fields(record) if field.name not in ("recorded", "rows")
    }
    arrays = {
        "stats": record.stats,
        "digests": record.digests,
        **{f"rows of {name}": of for name, of in record.rows.items()},
    }
    return {**facts, **{name: array.tolist() for name, array in arrays.items()}}


def differences(expected: Mapping[str, Any], actual: Mapping[str, Any]) -> list[str]:
    """Return the files that differ from the undisturbed run."""
    return sorted(name for name in expected.keys() | actual.keys() if expected.get(name) != actual.get(name))


def working(tree: list[psutil.Process]) -> Iterator[tuple[psutil.Process, str]]:
    """Yield the jobs among processes, with their stages."""
    for process in tree:
        with suppress(psutil.Error):
            command = process.cmdline()
            if "heatproof.workflow.job" in command:
                yield process, Path(command[-1]).name.rsplit("-", 1)[0]


def below(running: subprocess.Popen[str]) -> list[psutil.Process]:
    with suppress(psutil.Error):
        return psutil.Process(running.pid).children(recursive=True)
    return []


def hit(running: subprocess.Popen[str], kind: tuple[str, signal.Signals], stage: str, wait: float) -> dict[str, Any]:
    """Wait for a moment in a stage, or in the complete run, send a signal, and return the outcome."""
    deadline = time.monotonic() + 240
    while stage and stage not in dict(map(reversed, working(below(running)))):  # type: ignore[call-overload]
        if running.poll() is not None or time.monotonic() > deadline:
            return {"hit": False}
        time.sleep(0.01)
    with suppress(subprocess.TimeoutExpired):
        running.wait(timeout=wait)
    tree = below(running)
    at = list(working(tree))
    whose, number = kind
    chosen = [process for process, name in at if not stage or name == stage]
    snakemake = [process for process in tree if "snakemake" in " ".join(process.cmdline())][:1]
    command = [psutil.Process(running.pid)] if tree else []
    victims = {"job": chosen[:1], "Snakemake": snakemake, "command": command, "everything": [*command, *tree]}[whose]
    # A job can take less time than in the undisturbed run.
    if not victims or running.poll() is not None or (stage and not chosen):
        return {"hit": False}
    for victim in victims:
        with suppress(psutil.NoSuchProcess):
            victim.send_signal(number)
    output = running.communicate(timeout=300)[0]
    if not at and running.returncode == 0:
        # The job had finished its work.
        return {"hit": False}
    psutil.wait_procs(tree, timeout=20)
    left = [process.pid for process in tree if _runs(process)]
    sentences = [line for line in output.splitlines() if line.startswith("heatproof: ") and " was ended by " in line]
    wrong = [f"left running: {left}"] if left else []
    if whose == "command" and number in SIGNALS and running.returncode == 128 + number and len(sentences) != 1:
        wrong.append(f"said {sentences}")
    if "Traceback" in output or (running.returncode == 0 and whose != "job"):
        wrong.append(f"status {running.returncode}: {output[-600:]}")
    return {"hit": True, "stages": sorted({name for _, name in at}), "status": running.returncode, "wrong": wrong}


def cell(
    finished_run: Run, expected: Mapping[str, Any], name: str, folder: Path, draw: random.Random, missed: int = 0
) -> dict[str, Any]:
    """Kill once, run again and compare; if the job had ended already, try again earlier."""
    kind = draw.choice(KINDS)
    stages = list(dict.fromkeys(job.stage for job in finished_run.jobs()))
    stage = name.partition(": ")[2]
    begin = stage or draw.choice(stages)
    run = finished_run.without(begin, folder)
    begun = time.monotonic()
    ended = finished_run.seconds(stage) * 0.8 / 2**missed
    longest = ended if stage else 4 + draw.random() * 0.6 * (len(stages) - stages.index(begin))
    running = run.start()
    came = hit(running, kind, stage, draw.uniform(0.0, longest))
    if not came["hit"]:
        running.terminate()
        running.communicate(timeout=60)
        return {}
    broken = run.broken()
    wrong = [*came["wrong"], *([f"manifests that do not hold: {broken}"] if broken else [])]
    if failed := run.finish():
        wrong.append(failed)
    differ = differences(expected, run.state())
    facts = {"from": begin, "victim": kind[0], "signal": kind[1].name, "at": came["stages"], "status": came["status"]}
    return {**facts, "wrong": wrong, "differ": differ, "seconds": round(time.monotonic() - begun, 1)}


def table(cells: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a table in Markdown of the cells, by killed process and stage."""
    rows: dict[str, list[Mapping[str, Any]]] = {}
    for name, group in cells.items():
        rows.setdefault(name.partition(": ")[2] or name.partition(" ")[0], []).append(group)
    lines = ["| stage | kills | by | resumed | differences |", "| --- | --- | --- | --- | --- |"]
    for stage, group in {**rows, "all": list(cells.values())}.items():
        by = (
            ", ".join(sorted({f"{result['signal']} to {result['victim']}" for result in group}))
            if stage != "all"
            else ""
        )
        resumed = sum(not result["wrong"] for result in group)
        lines.append(
            f"| {stage} | {len(group)} | {by} | {resumed} | {sum(bool(result['differ']) for result in group)} |"
        )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=40, help="at random moments, beside one in each stage")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="part of a cell's name, as in `stage: tables`")
    parser.add_argument("--whole", type=Path, help="a finished run of this config and code, instead of a new one")
    parser.add_argument("--out", type=Path, default=Path("kills.json"))
    options = parser.parse_args()
    cells: dict[str, Any] = json.loads(options.out.read_text()) if options.out.exists() else {}
    with tempfile.TemporaryDirectory(prefix="kills-") as temporary:
        finished_run = Run(options.whole.resolve() if options.whole else Path(temporary) / "whole")
        if not options.whole:
            finished_run.write()
            failed = finished_run.finish()
            assert not failed, failed
        expected = finished_run.state()
        stages = dict.fromkeys(job.stage for job in finished_run.jobs())
        # The last stages first, because the least work is repeated after them.
        names = [f"stage: {stage}" for stage in reversed(stages)]
        names += [f"random {number}" for number in range(options.kills)]
        for name in names:
            if options.only not in name or name in cells:
                continue
            result: dict[str, Any] = {}
            for attempt in range(8):
                folder = Path(temporary) / "cell"
                draw = random.Random(f"{options.seed} {name} {attempt}")
                result = cell(finished_run, expected, name, folder, draw, attempt)
                shutil.rmtree(folder)
                if result:
                    break
            if not result:
                print(f"{name}: ended before it was hit", flush=True)
                continue
            cells[name] = result
            options.out.write_text(json.dumps(cells, indent=1) + "\n")
            print(f"{name}: {result}", flush=True)
    print(table(cells))
    return int(any(result["wrong"] or result["differ"] for result in cells.values()))


if __name__ == "__main__":
    sys.exit(main())

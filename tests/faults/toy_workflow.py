"""A complete run without Snakemake: each job in a process that can be killed, in tenths of a second."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace

from jobs import spec_file, without_seconds, without_times
from ledger import watch
from toy_project import BASE

from heatproof.errors import machine_fault
from heatproof.store.reading import read_json
from heatproof.store.source_files import read_record
from heatproof.workflow.changed_data import inspect_data
from heatproof.workflow.config.files import merge
from heatproof.workflow.plan.folder import Folder
from heatproof.workflow.plan.graph import Graph, Job
from heatproof.workflow.plan.validate import make_plan
from heatproof.workflow.reconcile import reconcile

CHANGE = {
    "evaluation": {"images": 10},
    "metrics": [{"rise_deletion": {"steps": 4}}, {"infidelity": {"samples": 4, "sizes": [0.25]}}],
    "report": {"images": 2},
    "shard_size": 6,
    "pretraining": {"epochs": 2},
    "finetuning": {"epochs": 2},
}
MACHINE = {"batch_size": 2, "threads": 1, "device": "cpu"}
# Stages whose outputs are kept when a job fails, because the next job resumes from them.
ADDED_TO = ("pretrain", "finetune", "attribute", "attribute_reference", "drops", "curves", "subsets")


def config(**change) -> dict:
    return merge(merge(BASE, CHANGE), change)


def jobs_of(plan) -> list[Job]:
    """Return the jobs for the tables and their pages, upstream first."""
    graph = Graph(plan)
    pages = [file for name in ("tables", "all_scores", "report_page") for file in graph.spec(name).files.values()]
    return [_without_claims(job) for job in graph.jobs_leading_to(pages) if job.stage != "claims"]


def _without_claims(job: Job) -> Job:
    """Return the job of the index page without the claims card, for which the toy project has too few methods."""
    if job.stage != "report_page":
        return job
    tables = {name: path for name, path in job.spec.page_tables.items() if name != "claims"}
    inputs = tuple(path for path in job.inputs if "claims" not in path)
    return replace(job, spec=replace(job.spec, page_tables=tables), inputs=inputs)


@dataclass
class Ended:
    """The end of a run: the exit status (the negative number of a signal), and the output."""

    status: int
    output: str
    computed: list[tuple[str, int, int]] = field(default_factory=list)

    @property
    def sentence(self) -> str:
        """The last message of heatproof."""
        lines = [line for line in self.output.splitlines() if line.startswith("heatproof: ")]
        return lines[-1].removeprefix("heatproof: ") if lines else ""


class ListedJobs(Graph):
    """A job graph with existing jobs."""

    def __init__(self, jobs: list[Job]) -> None:
        specs = {job.spec.dataset.name: job.spec.dataset for job in jobs if job.stage == "prepare"}
        # Only the results folder and the datasets of the plan are used.
        plan = SimpleNamespace(results=Folder(), datasets=specs, dataset_spec=specs.__getitem__)
        super().__init__(plan)  # type: ignore[arg-type]
        self.listed = jobs

    def job(self, stage: str, wildcards: Mapping[str, object]) -> Job:
        (match,) = [job for job in self.listed if job.stage == stage and job.wildcards == wildcards]
        return match

    def jobs(self) -> Iterator[Job]:
        return iter(self.listed)


class Run:
    """A results folder, and its jobs."""

    def __init__(self, folder: Path, jobs: list[Job], files: dict[str, set[str]] | None = None) -> None:
        # Entries of the ledger by manifest, and the files that contain them.
        self.folder, self.jobs, self.files = folder, jobs, files or {}
        self.ledger, self.log, self.begun = (folder / name for name in ("ledger", "log", "begun"))

    @property
    def results(self) -> Path:
        return self.folder / "results"

    @property
    def tables(self) -> list[str]:
        """Files that the workflow checks before it starts."""
        outputs = [path for job in self.jobs if job.stage in ("tables", "all_scores") for path in job.outputs]
        return [path for path in outputs if path.endswith(".csv")]

    def due(self, job: Job) -> bool:
        """Return whether Snakemake would run a job: an output is missing or older than an input, or it was cut off."""
        outputs = [self.folder / path for path in job.outputs]
        if any(not path.exists() for path in outputs) or job.outputs[0] in self.unfinished():
            return True
        inputs = [self.folder / path for path in job.inputs]
        newest = max((path.stat().st_mtime_ns for path in inputs if path.exists()), default=0)
        return newest > min(path.stat().st_mtime_ns for path in outputs)

    def unfinished(self) -> set[str]:
        lines = self.begun.read_text().splitlines() if self.begun.exists() else []
        return {line[1:] for line in lines if line[0] == "+"} - {line[1:] for line in lines if line[0] == "-"}

    def _note(self, sign: str, job: Job) -> None:
        lines = self.begun.read_text().splitlines() if self.begun.exists() else []
        remaining = [line for line in lines if line[1:] != job.outputs[0]]
        self.begun.write_text("\n".join([*remaining, sign + job.outputs[0]]) + "\n")

    def start(self, prepare: Callable[[], None] = lambda: None) -> int:
        """Start all jobs that are due in a new process, and return its id."""
        self.log.write_text("")
        # Before the fault is injected.
        self.specs = {job.outputs[0]: spec_file(self.folder, job.run, job.spec_json) for job in self.jobs}
        process = os.fork()
        if process:
            return process
        status = 70
        try:
            out = os.open(self.log, os.O_WRONLY | os.O_APPEND)
            os.dup2(out, 1)
            os.dup2(out, 2)
            sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
            os.chdir(self.folder)
            os.environ["HEATPROOF_MACHINE"] = json.dumps(MACHINE)
            watch(self.ledger)
            prepare()
            status = self._work()
        except SystemExit as ended:
            status = int(ended.code or 0)
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)

    def _work(self) -> int:
        from heatproof.workflow.job import main

        # As `heatproof.workflow.start.update_data_records` does, without another process.
        try:
            unlisted = [seen for seen in inspect_data(ListedJobs(self.jobs)).values() if not seen.is_listed]
        except MemoryError as error:
            print(f"heatproof: {machine_fault(error)}", file=sys.stderr)
            return 1
        for seen in unlisted:
            main([self.specs[seen.job.outputs[0]]])
        for sentence in [
            *(sentence for seen in unlisted for sentence in seen.sentences),
            *reconcile(ListedJobs(self.jobs)),
        ]:
            print(f"heatproof: {sentence}", file=sys.stderr)
        for job in self.jobs:
            if not self.due(job):
                continue
            self._note("+", job)
            status = main([self.specs[job.outputs[0]]])
            if status:
                # Snakemake removes the outputs of a failed job, unless jobs update them.
                for path in [] if job.stage in ADDED_TO else job.outputs:
                    Path(path).unlink(missing_ok=True)
                return status
            self._note("-", job)
        return 0

    def finish(self, process: int, timeout: float = 60) -> Ended:
        """Wait for a process, and return how it ended."""
        deadline = time.monotonic() + timeout
        while True:
            done, status = os.waitpid(process, os.WNOHANG)
            if done:
                return Ended(os.waitstatus_to_exitcode(status), self.log.read_text(errors="replace"))
            if time.monotonic() > deadline:
                os.kill(process, 9)
            time.sleep(0.002)

    def run(self, prepare: Callable[[], None] = lambda: None) -> Ended:
        return self.finish(self.start(prepare))

    def computed(self) -> Iterator[tuple[str, int]]:
        """Yield everything that was computed so far, image by image, with repetitions."""
        for line in self.ledger.read_text().splitlines() if self.ledger.exists() else []:
            what, start, stop = line.rsplit(" ", 2)
            yield from ((what, image) for image in range(int(start), int(stop)))

    def computed_twice(self) -> list[tuple[str, int]]:
        """Return what was computed more than once although the first result was finished and undamaged."""
        return [work for work, count in Counter(self.computed()).items() if count > 1]

    def list_files(self) -> None:
        """Find the files that contain the entries of the ledger, in a finished run."""
        for manifest in {what for what, _ in self.computed()}:
            folder = os.path.dirname(manifest)
            listed = read_json(self.folder / manifest)["files"]
            self.files[manifest] = {manifest, *(os.path.normpath(os.path.join(folder, f["file"])) for f in listed)}

    def copy(self, folder: Path) -> Run:
        """Copy the results, with their times, and the ledger."""
        shutil.copytree(self.results, folder / "results")
        shutil.copy(self.ledger, folder / self.ledger.name)
        return Run(folder, self.jobs, self.files)

    def remove(self, outputs: list[str]) -> None:
        for path in outputs:
            (self.folder / path).unlink(missing_ok=True)
        self.strike(outputs)

    def strike(self, paths: list[str], start: int = -1) -> None:
        """Remove entries from the ledger, from an image on, that need some files or folders."""
        inside = tuple(f"{path}/" for path in paths)
        gone = {what for what, files in self.files.items() for f in files if f in paths or f.startswith(inside)}
        lines = [line.rsplit(" ", 2) for line in self.ledger.read_text().splitlines()]
        remaining = [" ".join(line) + "\n" for line in lines if line[0] not in gone or int(line[1]) < start]
        self.ledger.write_text("".join(remaining))

    def bytes(self) -> dict[str, bytes]:
        """Return the content of every file; of manifests without times and checksums."""
        contents = {}
        for path in sorted(self.results.rglob("*")):
            name = str(path.relative_to(self.folder))
            if not path.is_file() or path.name.endswith(".lock"):
                continue
            content = without_seconds(path)
            if path.suffix == ".json" and b'"files"' in content:
                # A file that no job read may still be damaged.
                manifest = read_json(path) or {"key": content.hex()}
                content = json.dumps(without_times(manifest), sort_keys=True).encode()
            if path.suffix == ".files":
                # The time of the record differs between runs.
                record = read_record(path)
                content = record.digests.tobytes() + b"\0".join(record.paths) if record else content
            # Seconds differ between runs.
            contents[name] = b"measured" if path.name.partition(".")[0] == "costs" else content
        return contents


def make_run(folder: Path) -> Run:
    """Return an empty run of the toy project."""
    folder.mkdir(parents=True, exist_ok=True)
    return Run(folder, jobs_of(make_plan(config())))

"""Terminal output of a run: one line for each job, progress, and finally the tables or the error.

Snakemake's log file has its complete output.
"""

from __future__ import annotations

import atexit
import csv
import io
import logging
import os
import re
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from snakemake.logging import ColorizingTextHandler, DefaultFormatter
from snakemake_interface_logger_plugins.common import LogEvent

from heatproof.core.options import parse_duration
from heatproof.core.registry import suggest_name
from heatproof.core.signals import POLL_SECONDS, received_signal
from heatproof.errors import HeatproofError
from heatproof.store.publishing import escaped
from heatproof.store.reading import open_regular, read_result_bytes, refuse_links
from heatproof.store.table_formats import MOST_BYTES
from heatproof.workflow.plan.graph import Graph
from heatproof.workflow.plan.paths import STALE_TIME
from heatproof.workflow.plan.stage import STAGES, Wildcards

if TYPE_CHECKING:
    from heatproof.workflow.plan.folder import Folder

# Seconds between two lines of progress.
EVERY = 10
VERDICTS = 6
RANKING_LINES = 3
# Bytes at the end of a log that are searched for the error of a failed job.
END_OF_A_LOG = 2**20
# Seconds to wait for a signal that has ended a job to reach this process as well.
PATIENCE = 1.0
SILENT = {LogEvent[name] for name in ("WORKFLOW_STARTED", "JOB_STARTED", "JOB_FINISHED", "RESOURCES_INFO", "SHELLCMD")}
# Beginnings of messages that Snakemake prints after every job, and when it ends.
STEPS = ("Select jobs to execute", "Assuming unrestricted", "Building DAG", "host: ", "Using shell")
ENDS = (
    "Shutting down",
    "Terminating processes",
    "Exiting because",
    "WorkflowError:\nAt least one job",
    "RuleException:\nCalledProcessError",
)
NOISE = (*STEPS, *ENDS, "Restored previous", "Cannot restore", "Elapsed time")


@dataclass
class Progress:
    """The progress of a run."""

    began: float = field(default_factory=lambda: time.monotonic())
    last_shown: float = 0.0
    budget: str = "none"

    def line(self, done: int, total: int) -> str:
        """Return a line with the rate and the remaining time, or "" if the last line was less than `EVERY` s ago."""
        now = time.monotonic()
        if done < total and now - self.last_shown < EVERY:
            return ""
        self.last_shown = now
        rate = done / max(now - self.began, 1e-9)
        seconds = (total - done) / max(rate, 1e-9)
        remaining = f", {duration(seconds)} left at this rate" if 0 < done < total else ""
        if remaining and self.budget != "none" and now - self.began + seconds > parse_duration(self.budget):
            remaining += f", beyond the budget of {self.budget}"
        return f"{done} of {total} jobs done, {60 * rate:.3g} per minute{remaining}"


def duration(seconds: float) -> str:
    """Return a duration in words."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def job_line(what: str, wildcards: Wildcards, images: tuple[int, int] = (0, 0)) -> str:
    """Describe a job, such as ``attribution maps: digits / resnet20 finetuned / rise, 64 images``."""
    named = {name: str(value) for name, value in wildcards.items()}
    network = " ".join(named[key] for key in ("model", "weights") if key in named)
    whose = [named.get("dataset"), network, *map(named.get, ("explainer", "metric", "response", "figure"))]
    if "grid" in named:
        whose.append(f"grid {named['grid']}, {named['baseline']}")
    low, high = images
    shard = f", {high - low} images{f' from {low}' if low else ''}" if high else ""
    joined = " / ".join(filter(None, whose))
    return f"{what}{': ' if joined else ''}{joined}{shard}"


class EventFormatter(DefaultFormatter):
    """Formats events of Snakemake as lines in terms of the config; events without interest to users are left out."""

    def __init__(self, graph: Graph) -> None:
        super().__init__(None)
        self.graph, self.progress = graph, Progress(budget=graph.plan.config["budget"])
        self.lines: dict[int, str] = {}
        self.failed: list[tuple[str, list[str]]] = []

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of an event, or ""."""
        event = getattr(record, "event", None)
        text = "" if event in SILENT else super().format(record)
        if text.startswith("MissingRuleException"):
            return escaped(self._no_such_target(text))
        return "" if text.startswith(NOISE) else escaped(text)

    def _no_such_target(self, text: str) -> str:
        """Return a message for a target that this config does not make, with the most similar file that it makes."""
        targets = re.findall(r"No rule to produce (\S+)", text)
        products = {file for job in self.graph.jobs() for file in job.outputs if ".zarr/" not in file}
        sentences = [f"heatproof: This config makes no {path!r}: {suggest_name(path, products)}" for path in targets]
        return "\n".join(sentences) or text

    def format_job_info(self, msg: dict[str, Any]) -> str:
        """Return one line for a job that starts."""
        wildcards = dict(msg["wildcards"] or {})
        try:
            shard = getattr(self.graph.job(msg["rule_name"], wildcards).spec, "shard", None)
        except KeyError:  # a rule that is not a stage
            shard = None
        images = shard.images if shard else (0, 0)
        self.lines[msg["jobid"]] = line = job_line(msg["rule_msg"] or msg["rule_name"], wildcards, images)
        return f"[{time.strftime('%H:%M:%S')}] {line}"

    def format_progress(self, msg: dict[str, Any]) -> str:
        """Return a line with the progress of the run."""
        return self.progress.line(msg["done"], msg["total"])

    def format_job_error(self, msg: dict[str, Any]) -> str:
        """Return a line for a job that failed, unless a signal ends the run; the error is printed at the end."""
        # A terminal sends signals to jobs and Snakemake at the same time, and a job may be the first to end.
        last = time.monotonic() + PATIENCE
        while received_signal() is None and time.monotonic() < last:
            time.sleep(POLL_SECONDS)
        if received_signal() is not None:
            return ""
        line = self.lines.get(msg["jobid"], msg["rule_name"])
        self.failed.append((line, list(msg["log"])))
        return f"[{time.strftime('%H:%M:%S')}] failed: {line}"


class Terminal(ColorizingTextHandler):
    """Snakemake's handler, without its blank lines between jobs."""

    # True whatever Snakemake sets it to, so that no blank line comes before a job.
    last_msg_was_job_info = property(lambda self: True, lambda self, value: None)


def replace_snakemake_output(logger: logging.Logger, graph: Graph) -> EventFormatter:
    """Replace Snakemake's lines on the terminal by those of an `EventFormatter`, and return it."""
    formatter = EventFormatter(graph)
    for handler in list(logger.handlers):
        if isinstance(handler, ColorizingTextHandler):
            ours = Terminal(handler.nocolor, handler.stream, formatter)
            ours.filters = handler.filters
            logger.removeHandler(handler)
            logger.addHandler(ours)
    # At exit, after the last message of Snakemake.
    atexit.register(print_failure, formatter)
    return formatter


def print_failure(formatter: EventFormatter) -> None:
    """Print the error of the job that failed first, unless a signal ended the run, which has been reported."""
    if received_signal() is not None:
        return
    for line, logs in formatter.failed[:1]:
        others = len({line for line, _ in formatter.failed}) - 1
        more = f" ({others} other jobs failed as well.)" if others else ""
        print(escaped(f"\n{line}\nheatproof: {failure_sentence(logs)}{more}"), file=sys.stderr, flush=True)


def failure_sentence(logs: list[str]) -> str:
    """Return the error of a failed job in one sentence, from its logs."""
    for log in logs:
        try:
            with open_regular(refuse_links(log)) as file:
                file.seek(-min(os.fstat(file.fileno()).st_size, END_OF_A_LOG), os.SEEK_END)
                lines = file.read(END_OF_A_LOG).decode("utf-8", "replace").splitlines()
        except (OSError, HeatproofError):
            continue
        sentences = [line.removeprefix("heatproof: ") for line in lines if line.startswith("heatproof: ")]
        if sentences:
            return sentences[-1]
        if lines:
            return f"{lines[-1]} - the full log is {log}."
    return "The job failed without writing a log."


def print_results(results: Folder) -> None:
    """Print the paths of the tables, the verdicts, and the first lines of the rankings."""
    names = ("tables", "all_scores", "claims", "baselines", "reliability", "overview", "report_page")
    paths_of = {name: STAGES[name].paths(results) for name in names}
    listed_tables = (*paths_of["tables"].values(), paths_of["all_scores"]["scores"], paths_of["claims"]["claims"])
    if tables := [path for path in listed_tables if _is_current(path)]:
        print(f"\nTables: {', '.join(tables)}", file=sys.stderr)
    if _is_current(verdict := paths_of["tables"]["verdict"]):
        rows = _rows(verdict)
        # In-domain scores come first, because other networks have never seen a deleted patch. Single labels come last.
        rows.sort(key=lambda row: (row.get("label", "") != "", not row["metric"].startswith("idsds")))
        for row in rows[:VERDICTS]:
            spec = f"{row['dataset']} / {row['model']} {row['weights']} / {row['metric']}: {row['sentence']}"
            print(escaped(spec), file=sys.stderr)
        if len(rows) > VERDICTS:
            print(f"{len(rows) - VERDICTS} more verdicts: {verdict}", file=sys.stderr)
        for sentence in dict.fromkeys(filter(None, (row.get("cannot_see") for row in rows))):
            print(escaped(sentence), file=sys.stderr)
    if _is_current(summary := paths_of["baselines"]["summary"]):
        print(escaped(read_result_bytes(summary, MOST_BYTES).decode("utf-8").strip()), file=sys.stderr)
    rankings = {"patch drops alone": paths_of["tables"]["meta_rank"], "all metrics": paths_of["reliability"]["ranking"]}
    for scope, table in rankings.items():
        if _is_current(table):
            _print_ranking(scope, table)
    if _is_current(captions := paths_of["overview"]["captions"]):
        print(escaped(_rows(captions)[0]["conclusion"]), file=sys.stderr)
    if _is_current(page := paths_of["report_page"]["page"]):
        print(f"Page: {page}", file=sys.stderr)


def _print_ranking(scope: str, table: str) -> None:
    """Print the first methods of a Meta-Rank, and the number of test cases behind its κ."""
    first = _rows(table)[:RANKING_LINES]
    if first:
        count = first[0].get("n_cases", "")
        print(escaped(f"Ranking by {scope} (κ over {count} test cases, {table}):"), file=sys.stderr)
    for row in first:
        low, high = (f"{float(row[key]):.2f}" if row[key] else "" for key in ("ci_low", "ci_high"))
        no_interval = ", ".join(filter(None, ["no interval", row.get("note")]))
        interval = f"{low} to {high}" if low and high else no_interval
        value = f"κ {float(row['kappa'] or 'nan'):.2f} ({interval})"
        print(escaped(f"{row['rank']:>4}  {row['method']:<36} {value}"), file=sys.stderr)


def _rows(path: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(read_result_bytes(path, MOST_BYTES).decode("utf-8"))))


def _is_current(path: str) -> bool:
    """Return whether a file exists and is current; stale files have times before `STALE_TIME`."""
    return Path(path).exists() and Path(path).stat().st_mtime >= STALE_TIME

"""The last lines of a run, after Snakemake's own: where the results are, or the error of the job that failed first."""

from __future__ import annotations

import csv
import io
import logging
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from snakemake_interface_logger_plugins.common import LogEvent

from heatproof.core.registry import suggest_name
from heatproof.errors import HeatproofError
from heatproof.store.publishing import escaped
from heatproof.store.reading import open_regular, read_result_bytes, refuse_links
from heatproof.store.table_formats import MOST_BYTES
from heatproof.workflow.plan.paths import STALE_TIME
from heatproof.workflow.plan.stage import STAGES

if TYPE_CHECKING:
    from heatproof.workflow.plan.folder import Folder
    from heatproof.workflow.plan.graph import Graph

VERDICTS = 6
RANKING_LINES = 3
# Bytes at the end of a log that are searched for the error of a failed job.
END_OF_A_LOG = 2**20


class Failures(logging.Handler):
    """Remembers the rule and the logs of each job that fails, and explains targets that the config does not make."""

    def __init__(self, graph: Graph) -> None:
        super().__init__()
        self.graph = graph
        self.jobs: list[tuple[str, list[str]]] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Read an event or a message of Snakemake."""
        if getattr(record, "event", None) == LogEvent.JOB_ERROR:
            logs = list(record.__dict__["log"])
            # The name of the log has those of network and shard.
            self.jobs.append((f"Failed: {record.__dict__['rule_name']} ({', '.join(logs)})", logs))
        elif str(record.msg).startswith("MissingRuleException"):
            products = {file for job in self.graph.jobs() for file in job.outputs if ".zarr/" not in file}
            for path in re.findall(r"No rule to produce (\S+)", str(record.msg)):
                sentence = f"This config makes no {path!r}: {suggest_name(path, products)}"
                print(escaped(f"heatproof: {sentence}"), file=sys.stderr)


def print_failure(failures: Failures) -> None:
    """Print the error of the job that failed first."""
    for job, logs in failures.jobs[:1]:
        others = len({job for job, _ in failures.jobs}) - 1
        more = f" ({others} other jobs failed as well.)" if others else ""
        print(escaped(f"\n{job}\nheatproof: {failure_sentence(logs)}{more}"), file=sys.stderr, flush=True)


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

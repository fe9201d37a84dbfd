"""The terminal output of a run, from Snakemake's events."""

import logging
import os
from pathlib import Path

import pytest
from snakemake_interface_logger_plugins.common import LogEvent

from heatproof.workflow.plan.folder import Folder
from heatproof.workflow.plan.graph import Graph
from heatproof.workflow.plan.paths import STALE_TIME
from heatproof.workflow.plan.validate import make_plan
from heatproof.workflow.terminal import (
    EventFormatter,
    Progress,
    duration,
    failure_sentence,
    job_line,
    print_failure,
    print_results,
)


@pytest.fixture(scope="module")
def graph():
    return Graph(make_plan({}))


def line_of(formatter, event, text="", **fields):
    record = logging.LogRecord("snakemake", logging.INFO, "", 0, text, None, None)
    record.__dict__.update(event=event, **fields)
    return formatter.format(record)


def started(formatter, rule, jobid=1, **wildcards):
    fields = {"rule_name": rule, "rule_msg": f"{rule} message", "jobid": jobid, "wildcards": wildcards}
    return line_of(formatter, LogEvent.JOB_INFO, **fields)


@pytest.mark.parametrize(
    ("rule", "wildcards", "expected"),
    [
        (
            "attribute",
            {"dataset": "digits", "model": "cifar_resnet20", "weights": "finetuned", "shard": "0"},
            "attribute message: digits / cifar_resnet20 finetuned, 64 images",
        ),
        (
            "drops",
            {"dataset": "digits", "model": "m", "weights": "w", "grid": "4", "baseline": "zeros", "shard": "0"},
            "digits / m w / grid 4, zeros",
        ),
        ("tables", {}, "tables message"),
    ],
)
def test_a_job_has_one_line_of_output(graph, rule, wildcards, expected):
    line = started(EventFormatter(graph), rule, **wildcards) if rule != "drops" else job_line("", wildcards)
    assert expected in line
    assert "\n" not in line


def test_messages_name_images_of_a_later_shard():
    assert job_line("maps", {}, (64, 100)) == "maps, 36 images from 64"


@pytest.mark.parametrize("event", [LogEvent.JOB_FINISHED, LogEvent.WORKFLOW_STARTED, LogEvent.SHELLCMD])
def test_lines_without_information_are_not_printed(graph, event):
    fields = {"cmd": "x", "datetime": "", "workflow_id": ""}
    assert line_of(EventFormatter(graph), event, "Finished jobid: 3", **fields) == ""


def test_lines_of_the_scheduler_are_not_printed_but_errors_are(graph):
    assert line_of(EventFormatter(graph), None, "Select jobs to execute...") == ""
    assert line_of(EventFormatter(graph), None, "MissingInputException: x") == "MissingInputException: x"


def test_an_unknown_target_is_reported_with_the_nearest_file(graph):
    text = "MissingRuleException:\nNo rule to produce results/idsds_tabel.csv (if you use input functions ...)."
    line = line_of(EventFormatter(graph), LogEvent.ERROR, text)
    assert line == "heatproof: This config makes no 'results/idsds_tabel.csv': did you mean 'results/idsds_table.csv'?"


def test_progress_has_a_rate_and_is_printed_rarely(monkeypatch):
    now = iter([100.0, 130.0, 131.0, 160.0])
    monkeypatch.setattr("heatproof.workflow.terminal.time.monotonic", lambda: next(now))
    progress = Progress()
    assert progress.line(10, 40) == "10 of 40 jobs done, 20 per minute, 90 s left at this rate".replace(
        "90 s", duration(90)
    )
    assert progress.line(11, 40) == ""
    assert progress.line(40, 40) == "40 of 40 jobs done, 40 per minute"


def test_progress_mentions_a_time_beyond_the_budget(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("heatproof.workflow.terminal.time.monotonic", lambda: now[0])
    within, beyond = Progress(budget="2h"), Progress(budget="30min")
    now[0] = 600.0
    assert within.line(10, 40).endswith("30 min left at this rate")
    assert beyond.line(10, 40).endswith("30 min left at this rate, beyond the budget of 30min")


def test_durations_have_a_suitable_unit():
    assert [duration(seconds) for seconds in (5, 600, 7200)] == ["5 s", "10 min", "2.0 h"]


def test_the_error_of_a_failed_job_is_printed_last(graph, tmp_path, capsys):
    log = tmp_path / "job.log"
    log.write_text("12:00:00 begun\nheatproof: The checkpoint m.pt is damaged.\n")
    formatter = EventFormatter(graph)
    started(formatter, "tables", jobid=7)
    failed = {"rule_name": "tables", "jobid": 7, "log": [str(log)]}
    assert "failed: tables message" in line_of(formatter, LogEvent.JOB_ERROR, **failed)
    print_failure(formatter)
    assert capsys.readouterr().err.splitlines()[-1] == "heatproof: The checkpoint m.pt is damaged."


def test_a_python_error_is_reported_with_its_log(tmp_path):
    log = tmp_path / "job.log"
    log.write_text("Traceback (most recent call last):\nValueError: no such luck\n")
    assert failure_sentence([str(log)]) == f"ValueError: no such luck - the full log is {log}."
    assert "without writing a log" in failure_sentence([str(tmp_path / "none.log")])


def test_final_output_names_tables_and_the_best_methods(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results").mkdir()
    rows = "".join(f"m{n},{3 - n},{2 - n},{4 - n if n else ''},{n + 1},6,1\n" for n in range(5))
    rows = rows.replace("m0,3,2,,1,6,1", "m0,3,2,,1,6,1,1 network: an interval needs 3")
    header = "method,kappa,ci_low,ci_high,rank,n_cases,bradley_terry,note"
    (tmp_path / "results/meta_rank.csv").write_text(f"{header}\n{rows}")
    print_results(Folder())
    output = capsys.readouterr().err
    assert "Tables: results/meta_rank.csv" in output
    assert "κ 3.00 (no interval, 1 network: an interval needs 3)" in output
    assert [name in output for name in ("m0", "m2", "m3")] == [True, True, False]
    # Stale, because another config ran here last.
    os.utime("results/meta_rank.csv", (STALE_TIME - 2,) * 2)
    print_results(Folder())
    assert not capsys.readouterr().err


def test_final_output_names_rankings_and_limits_of_scores(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results/ranking").mkdir(parents=True)
    (tmp_path / "results/figures/overview").mkdir(parents=True)
    header = "method,kappa,ci_low,ci_high,rank,n_cases,note"
    Path("results/meta_rank.csv").write_text(f"{header}\nm0,0.98,0.5,1.5,1,6,\n")
    Path("results/ranking/ranking.csv").write_text(f"{header}\nm1,0.47,0.2,0.7,1,54,\n")
    Path("results/verdict.csv").write_text(
        "dataset,model,weights,metric,sentence,cannot_see\n"
        "d,one,finetuned,idsds,m0 is the best.,Blind spots.\nd,two,finetuned,idsds,Open.,Blind spots.\n"
    )
    captions = Path("results/figures/overview/captions.csv")
    captions.write_text("figure,shows,conclusion\nplaces.png,places,Metrics disagree.\n")
    print_results(Folder())
    output = capsys.readouterr().err.splitlines()
    assert output[2:] == [
        "d / one finetuned / idsds: m0 is the best.",
        "d / two finetuned / idsds: Open.",
        "Blind spots.",
        "Ranking by patch drops alone (κ over 6 test cases, results/meta_rank.csv):",
        "   1  m0                                   κ 0.98 (0.50 to 1.50)",
        "Ranking by all metrics (κ over 54 test cases, results/ranking/ranking.csv):",
        "   1  m1                                   κ 0.47 (0.20 to 0.70)",
        "Metrics disagree.",
    ]

"""The last lines of a run, after Snakemake's own."""

import logging
import os
from pathlib import Path

from snakemake_interface_logger_plugins.common import LogEvent

from heatproof.workflow.plan.folder import Folder
from heatproof.workflow.plan.graph import Graph
from heatproof.workflow.plan.paths import STALE_TIME
from heatproof.workflow.plan.validate import make_plan
from heatproof.workflow.terminal import Failures, failure_sentence, print_failure, print_results


def record_of(message="", **values):
    record = logging.LogRecord("snakemake", logging.INFO, "", 0, message, None, None)
    record.__dict__.update(values)
    return record


def test_an_unknown_target_is_explained_with_the_nearest_file(capsys):
    text = "MissingRuleException:\nNo rule to produce results/idsds_tabel.csv (if you use input functions ...)."
    Failures(Graph(make_plan({}))).handle(record_of(text, event=LogEvent.ERROR))
    sentence = "heatproof: This config makes no 'results/idsds_tabel.csv': did you mean 'results/idsds_table.csv'?\n"
    assert capsys.readouterr().err == sentence


def test_the_error_of_the_job_that_failed_first_is_printed(tmp_path, capsys):
    log = tmp_path / "job.log"
    log.write_text("12:00:00 begun\nheatproof: The checkpoint m.pt is damaged.\n")
    failures = Failures(Graph(make_plan({})))
    for event, rule in ((LogEvent.JOB_INFO, "tables"), (LogEvent.JOB_ERROR, "drops"), (LogEvent.JOB_ERROR, "score")):
        failures.handle(record_of(event=event, rule_name=rule, log=[str(log)]))
    print_failure(failures)
    sentence = "heatproof: The checkpoint m.pt is damaged. (1 other jobs failed as well.)"
    assert capsys.readouterr().err.splitlines()[-2:] == [f"Failed: drops ({log})", sentence]


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

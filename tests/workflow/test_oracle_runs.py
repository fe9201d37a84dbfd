"""The oracle of `benchmarks/oracle.py` runs two checkouts, finds differences, and resumes after a kill."""

from __future__ import annotations

import os
import re
import runpy
import shutil
import subprocess
import sys
import time

import preloaded
import pytest
import yaml
from snakemake_project import MICRO, REPOSITORY, TABLE, clone

pytestmark = pytest.mark.workflow

ORACLE = REPOSITORY / "benchmarks/oracle.py"


@pytest.fixture
def checkouts(tmp_path):
    """Two checkouts, with the micro config in place of `quick`."""
    folders = [clone(tmp_path / name) for name in ("before", "after")]
    for checkout in folders:
        (checkout / "config/quick.yaml").write_text(yaml.safe_dump(MICRO))
    return folders


@pytest.mark.slow
def test_the_oracle_finds_numbers_that_differ_between_two_checkouts(finished, checkouts, tmp_path, monkeypatch, capsys):
    more = {**MICRO, "scores": {"bootstrap": 21}}
    (checkouts[1] / "config/quick.yaml").write_text(yaml.safe_dump(more))
    for side in ("first", "second"):
        for part in ("results", ".snakemake"):
            shutil.copytree(finished.folder / part, tmp_path / "work" / side / "quick" / part)
    monkeypatch.setattr(sys, "executable", preloaded.python())
    oracle = runpy.run_path(str(ORACLE))
    monkeypatch.setitem(oracle["run"].__globals__, "TARGETS", (TABLE,))
    arguments = ["oracle", *map(str, checkouts), "--configs", "quick", "--work", str(tmp_path / "work")]
    monkeypatch.setattr(sys, "argv", arguments)
    assert oracle["main"]() == 1
    printed = capsys.readouterr().out
    counts = printed.splitlines()[1].split()
    assert counts[0] == "quick"
    assert int(counts[1]) >= 6, "tables, scores of images and courses of trainings"
    assert int(counts[4]) >= 6, "arrays of maps and patch drops"
    assert counts[3:4] + counts[5:] == ["0"] * 5, printed
    checks = re.search(r"^quick, check_passes: (\d+) before, (\d+) after$", printed, flags=re.MULTILINE)
    assert int(checks[1]) == int(checks[2]) > 0
    differing = re.findall(r"^quick, differing numbers: (\S+), (\w+):", printed, flags=re.MULTILINE)
    assert {column for _, column in differing} >= {"ci_low", "ci_high"}
    assert "score" not in {column for _, column in differing}
    assert {table for table, _ in differing} >= {"idsds_table.csv"}
    assert (tmp_path / "work/quick.json").is_file()


@pytest.mark.long
def test_the_oracle_resumes_after_a_kill(checkouts, tmp_path):
    work = tmp_path / "work"
    command = [sys.executable, str(ORACLE), *map(str, checkouts), "--configs", "quick", "--work", str(work)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    running = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    maps = work / "second/quick/results/maps"
    while running.poll() is None and not list(maps.rglob("*.json")):
        time.sleep(0.05)
    assert running.poll() is None, "it compared before it was killed"
    running.terminate()
    assert running.wait(timeout=60) == 143
    finished, log = work / "first/quick/finished", work / "first/quick/log"
    assert finished.is_file()
    assert not (work / "second/quick/finished").exists()
    before = log.stat().st_mtime_ns
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stdout + done.stderr
    assert log.stat().st_mtime_ns == before, "the first checkout's run is not started again"
    (counts,) = (line.split() for line in done.stdout.splitlines() if line.startswith("quick"))
    assert int(counts[1]) > 20
    assert counts[2:4] + counts[5:] == ["0"] * 6
    again = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100)
    assert again.stdout == done.stdout
    assert not re.search(r"\d s$", again.stderr), "nothing was run"

"""A few injections of each kind; `python tests/faults/run.py` makes hundreds."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from downloads import KINDS

SCRIPT = Path(__file__).with_name("run.py")
RUNS = 10


@pytest.mark.slow
def test_no_result_is_lost_and_no_fault_goes_unnoticed():
    # In a new process, because forks of a process that has used torch's threads may hang.
    done = subprocess.run(
        [sys.executable, SCRIPT, "--seed", "3", "--runs", str(RUNS)],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    table = {line[:28].strip(): line[28:].split() for line in done.stdout.splitlines()}
    assert set(KINDS) <= set(table)
    hit = {name: int(table[name][1]) for name in KINDS}
    assert sum(hit.values()) > RUNS / 2, hit


@pytest.mark.parametrize("every", [pytest.param(10, marks=pytest.mark.slow), pytest.param(1, marks=pytest.mark.long)])
def test_a_flipped_bit_in_each_kind_of_file_is_noticed_and_repaired(every):
    command = [sys.executable, SCRIPT.with_name("flips.py"), "--every", str(every)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(done.stdout.splitlines()[-1].split()[0]) > 50 // every


def kills(folder, *arguments):
    """Run kills.py with some arguments, and return the cells."""
    out = folder / "kills.json"
    command = [sys.executable, SCRIPT.with_name("kills.py"), "--out", out, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=7200)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(out.read_text())


@pytest.mark.long
def test_a_run_that_is_killed_in_any_stage_ends_with_the_same_bytes(tmp_path):
    cells = kills(tmp_path, "--kills", "4", "--seed", "1")
    hit = {stage for cell in cells.values() for stage in cell["at"]}
    assert {"attribute", "curves", "drops", "finetune", "report_page", "score", "tables"} <= hit

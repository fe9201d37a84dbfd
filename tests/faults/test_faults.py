"""A few injections of each kind; `python tests/faults/run.py` makes hundreds."""

import subprocess
import sys
from pathlib import Path

import pytest
from others import LIGHT, schedule

SCRIPT = Path(__file__).with_name("run.py")
RUNS = 10


@pytest.mark.slow
def test_nothing_is_lost_and_nothing_goes_unnoticed():
    # In a process of its own: forks of one in which tests have used torch's threads may wait for ever.
    done = subprocess.run(
        [sys.executable, SCRIPT, "--seed", "3", "--runs", str(RUNS), "--without-snakemake"],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    table = {line[:28].strip(): line[28:].split() for line in done.stdout.splitlines()}
    assert set(LIGHT) <= set(table)
    hit = {name: int(table[name][1]) for name in LIGHT}
    assert sum(hit.values()) > RUNS / 2, hit


@pytest.mark.parametrize("every", [pytest.param(5, marks=pytest.mark.slow), pytest.param(1, marks=pytest.mark.long)])
def test_one_flipped_bit_in_each_kind_of_file_is_noticed_and_healed(every):
    command = [sys.executable, SCRIPT.with_name("flips.py"), "--every", str(every)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(done.stdout.splitlines()[-1].split()[0]) > 50 // every


def test_every_kind_has_its_turn():
    assert schedule(7, dict.fromkeys("abc"), {}) == list("abcabca")
    names = schedule(200, dict.fromkeys("abc"), dict.fromkeys("xy"))
    assert {name: names.count(name) for name in "abcxy"} == {"a": 65, "b": 65, "c": 64, "x": 3, "y": 3}

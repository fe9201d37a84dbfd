"""Untrusted inputs with random changes are refused in a sentence or harmless; no wrong values, no code execution."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("fuzz.py")


@pytest.mark.parametrize("cases", [180, pytest.param(3_000, marks=pytest.mark.long)])
def test_no_change_goes_unnoticed_or_executes_code(cases):
    """In a new process, because audit hooks cannot be removed; `python tests/security/fuzz.py` runs 10,000 cases."""
    done = subprocess.run(
        [sys.executable, SCRIPT, "--cases", str(cases), "--seed", "1"], capture_output=True, text=True, timeout=1200
    )
    assert done.returncode == 0, done.stdout + done.stderr
    kinds = {line[:30].strip(): list(map(int, line[30:].split())) for line in done.stdout.splitlines()[1:-1]}
    assert kinds["all"][0] == cases
    assert all(counts[1] for counts in kinds.values()), "each kind is refused at least once"

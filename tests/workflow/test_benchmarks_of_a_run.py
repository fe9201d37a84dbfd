"""A benchmark that reads a finished run starts on a small one."""

import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.slow
@pytest.mark.workflow
def test_the_benchmark_of_stored_maps_starts(project, tmp_path):
    project.run()
    command = [sys.executable, str(FOLDER / "stored_maps.py"), "results", "--out", str(tmp_path / "tables")]
    done = subprocess.run(
        command, cwd=project.folder, env=project.environment(), capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    stored = pd.read_csv(tmp_path / "tables" / "stored_maps.csv")
    assert stored["largest_difference"].max() < 0.05

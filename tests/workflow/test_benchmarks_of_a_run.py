"""Benchmarks that read a finished run start on a small one."""

import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.slow
@pytest.mark.workflow
def test_they_start(project, tmp_path):
    project.run()
    given = {"stages": ["micro.yaml"], "stored_maps": ["results"]}
    for name, arguments in given.items():
        command = [sys.executable, str(FOLDER / f"{name}.py"), *arguments, "--out", str(tmp_path / "tables")]
        done = subprocess.run(
            command, cwd=project.folder, env=project.environment(), capture_output=True, text=True, timeout=600
        )
        assert done.returncode == 0, done.stderr
    stages, stored = (pd.read_csv(tmp_path / "tables" / f"{name}.csv") for name in given)
    assert {"integrated_gradients", "pretrain", "finetune"} <= {*stages["stage"], *stages["weights"]}
    assert (stages["over the floor"] > 0).all()
    assert stored["largest_difference"].max() < 0.05

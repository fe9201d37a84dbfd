"""Each benchmark starts, at its smallest size, and prints numbers."""

import os
import re
import subprocess
import sys
from pathlib import Path

import preloaded
import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"
SMALLEST = {
    "best_set": ["--repetitions", "1", "--out", "{out}"],
    "broken_network": ["--small", "--out", "{out}"],
    "cache": ["--small", "--out", "{out}"],
    "choice": ["--small", "--out", "{out}"],
    "coverage": ["2", "--out", "{out}"],
    "data_start": ["--small", "--out", "{out}"],
    "definitions": ["--small", "--out", "{out}"],
    "device": ["--small", "--out", "{out}"],
    "falsification": ["--small", "--out", "{out}"],
    "first_pass": ["--small", "--out", "{out}"],
    "full_size": ["--small", "--out", "{out}"],
    "introduce_remove": ["--small", "--out", "{out}"],
    "main_command": ["--small", "--out", "{out}"],
    "malloc": ["--small", "--out", "{out}"],
    "matrix": ["--small", "--out", "{out}"],
    "meta_rank": ["--small", "--out", "{out}"],
    "metric_quality": ["--small", "--out", "{out}"],
    "metrics": ["--small", "--out", "{out}"],
    "no_batch_norm": ["--small", "--out", "{out}"],
    "paper_scale": ["--images", "500"],
    "pairs": ["--small", "--out", "{out}"],
    "pic": ["--small", "--out", "{out}"],
    "pic_floor": ["--small", "--out", "{out}"],
    "peers": ["--small", "--out", "{out}"],
    "papers_small": ["paper", "paper_softmax", "--small", "--out", "{out}"],
    "precision": ["--small", "--out", "{out}"],
    "probe": ["--small", "--out", "{out}"],
    "published_rank": ["--small", "--out", "{out}"],
    "random_numbers": ["--small", "--out", "{out}"],
    "rank_claims": ["--small", "--out", "{out}"],
    "reference": ["--small", "--out", "{out}"],
    "rounding": ["--small", "--out", "{out}"],
    "road": ["--small", "--out", "{out}"],
    "same_task": ["--small", "--out", "{out}"],
    "scale": ["--small", "--out", "{out}"],
    "scale_runs": ["--small", "--out", "{out}"],
    "scheduler": ["--small", "--out", "{out}"],
    "slurm_overhead": ["--small", "--out", "{out}"],
}
ELSEWHERE = {
    "null_control": "../workflow/test_null_control.py",
    "oracle": "test_oracle.py",
    "stored_maps": "../workflow/test_benchmarks_of_a_run.py",
}


def test_every_benchmark_has_a_test():
    assert {path.stem for path in FOLDER.glob("[!_]*.py")} == set(SMALLEST) | set(ELSEWHERE)
    tests = Path(__file__).parent
    assert all((tests / where).is_file() for where in ELSEWHERE.values() if where.endswith(".py"))


# They take 20 s and more even with preloaded libraries.
LONG = ("falsification", "metric_quality", "pic", "pic_floor", "best_set", "broken_network")


@pytest.mark.parametrize(
    ("name", "python"),
    [
        # With preloaded libraries, because most benchmarks spend their time on imports.
        *(pytest.param(name, preloaded.python, marks=pytest.mark.slow) for name in SMALLEST if name not in LONG),
        *(pytest.param(name, lambda: sys.executable, marks=pytest.mark.long) for name in SMALLEST),
    ],
    ids=[*(f"preloaded-{name}" for name in SMALLEST if name not in LONG), *(f"real-{name}" for name in SMALLEST)],
)
def test_a_benchmark_starts(name, python, tmp_path):
    if name in ("full_size", "paper_scale", "scale", "scheduler"):
        pytest.importorskip("bcos", reason="the papers' networks need pip install 'heatproof[bcos]'")
    arguments = [argument.format(out=tmp_path) for argument in SMALLEST[name]]
    done = subprocess.run(
        [python(), str(FOLDER / f"{name}.py"), *arguments],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(FOLDER.parent / "src")},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"\d\.\d", done.stdout)
    if "--out" in arguments:
        assert (tmp_path / f"{name}.csv").is_file() or list(tmp_path.glob("*.csv"))

"""A copy of the repository that a test may edit, with Snakemake runs of a micro config in it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import preloaded
import yaml
from jobs import without_seconds, without_times

from heatproof.store.reading import read_json

REPOSITORY = Path(__file__).parents[2]
TABLE = "results/idsds_table.csv"
MICRO = {
    "evaluation": {"images": 6, "accuracy_images": 0},
    "weights": ["finetuned"],
    "models": [{"vgg": {"architecture": "cifar_vgg11_bn", "options": {"width": 2}}}],
    "pretraining": {"epochs": 1},
    "finetuning": {"epochs": 1},
    "explainers": ["saliency", {"integrated_gradients": {"steps": 8}}, "random"],
    "metrics": [{"rise_deletion": {"steps": 4}}, {"road_morf": {"fractions": [0.2, 0.6]}}],
    "scores": {"bootstrap": 20},
    "shard_size": 4,
    "batch_size": 3,
}


class Project:
    """A working copy with its own config."""

    def __init__(self, folder: Path, config: dict) -> None:
        self.folder = folder
        self.config = config

    def write_config(self) -> None:
        (self.folder / "micro.yaml").write_text(yaml.safe_dump(self.config))

    def command(self, *arguments: str, python: str = sys.executable) -> list[str]:
        """Return the command that a user would run, with a Python process that can be killed or stopped."""
        return [python, "-m", "snakemake", "--cores", "2", *arguments, "--configfile", "micro.yaml"]

    def environment(self) -> dict[str, str]:
        # Before the installed package, so that a test can edit the code.
        return {**os.environ, "PYTHONPATH": str(self.folder / "src"), "OMP_NUM_THREADS": "1"}

    def run(self, *arguments: str, fails: bool = False) -> str:
        """Run Snakemake, and return its output."""
        self.write_config()
        done = subprocess.run(
            self.command(*(arguments or (TABLE,)), python=preloaded.python()),
            cwd=self.folder,
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=1800,
        )
        printed = done.stdout + done.stderr
        assert (done.returncode != 0) == fails, printed
        return printed

    def ran(self, *arguments: str) -> dict[str, int]:
        """Run Snakemake and return how many jobs of each rule it executed."""
        self.run(*arguments)
        logs = (self.folder / ".snakemake/log").glob("*.log")
        return jobs(max(logs, key=lambda log: log.stat().st_mtime_ns).read_text(encoding="utf-8"))

    def heatproof(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        self.write_config()
        return subprocess.run(
            [preloaded.python(), "-m", "heatproof", *arguments],
            cwd=self.folder,
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=120,
        )

    def edit(self, path: str, old: str, new: str) -> None:
        file = self.folder / path
        text = file.read_text()
        assert old in text
        file.write_text(text.replace(old, new))

    def tables(self) -> dict[str, bytes]:
        """Return every table, by its path below the results folder."""
        results = self.folder / "results"
        paths = sorted(path for path in results.rglob("*") if path.suffix in (".csv", ".parquet"))
        names = {path.relative_to(results).as_posix(): path for path in paths}
        # Tables of other targets are in a hidden folder.
        return {name: without_seconds(path) for name, path in names.items() if not name.startswith(".")}

    def manifests(self) -> dict[str, dict]:
        """Return the contents of all manifests, without times and checksums."""
        contents = {path.relative_to(self.folder): read_json(path) for path in self.folder.glob("results/**/*.json")}
        return {
            str(path): without_times(content) for path, content in contents.items() if content and "files" in content
        }

    def copy(self, folder: Path) -> Project:
        """Copy everything, including Snakemake's records."""
        shutil.copytree(self.folder, folder, symlinks=True)
        return Project(folder, yaml.safe_load(yaml.safe_dump(self.config)))


def jobs(log: str) -> dict[str, int]:
    """Return the number of jobs that a run of Snakemake finished, by rule, from its log file."""
    return dict(Counter(re.findall(r"^Finished jobid: \d+ \(Rule: (\w+)\)", log, flags=re.MULTILINE)))


def clone(folder: Path) -> Path:
    """Copy the files of the repository that the workflow needs, with compiled Python files."""
    for name in ("Snakefile", "workflow", "config", "profiles", "src", "envs"):
        source = REPOSITORY / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("*.pyc.*"))
        else:
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, folder / name)
    return folder

"""Time and memory of planning the papers' complete grid: `snakemake -n` on 37 networks and 50,000 images of each.

The config is config/paper.yaml with the networks of config/paper_cifar100.yaml and config/paper_meta_rank.yaml added.
No image and no weights are needed: the datasets are stand-ins, which planning does not open. All files are in a
temporary folder.

    python benchmarks/paper_scale.py [--images N] [--shard-size N] [--jobs apart] [TARGET ...]
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

from heatproof.workflow.estimate import synthetic

ROOT = Path(__file__).resolve().parent.parent
PAPERS = ("paper", "paper_cifar100", "paper_meta_rank")


def read(name: str) -> dict[str, Any]:
    return yaml.safe_load((ROOT / "config" / f"{name}.yaml").read_text(encoding="utf-8"))


def grid(images: int) -> dict[str, Any]:
    """Return the three configs as one, with as many images of every dataset."""
    config = read(PAPERS[0])
    datasets, models = {}, []
    for name in PAPERS:
        base_config = read(name)
        dataset_names = [next(iter(dataset)) for dataset in base_config["datasets"]]
        for dataset in base_config["datasets"]:
            datasets |= dataset
        for entry in base_config["models"]:
            model, settings = next(iter(entry.items()))
            settings = {"architecture": model, "datasets": dataset_names, **settings}
            for section in ("pretraining", "finetuning"):
                settings[section] = {**base_config.get(section, {}), **settings.get(section, {})}
            models.append({f"{name}_{model}": settings})
    config["datasets"] = [{name: stand_in(name) | {"evaluation_images": images}} for name in datasets]
    config |= {"models": models, "evaluation": {"images": images, "accuracy_images": images}}
    return config


def stand_in(name: str) -> dict[str, Any]:
    """Return the settings of a dataset of noise, of which planning reads one image."""
    dataset_settings = synthetic.noise_dataset_for(name, {}, (32, 32) if name.startswith("cifar") else None)
    assert dataset_settings is not None, name
    return dataset_settings


def set_up(folder: Path, config: dict[str, Any]) -> None:
    """Create a folder for the workflow that contains only names."""
    for entry in config["models"]:
        (settings,) = entry.values()
        # Planning opens a file, but not an address.
        if "://" not in settings.get("checkpoint", "://"):
            settings |= {"checkpoint": "https://example.org/weights.pth", "sha256": "0" * 8}
    (folder / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")


def plan(folder: Path, targets: list[str]) -> tuple[str, float, float, float]:
    """Run `snakemake -n` there; return its output, wall and processor seconds, and peak memory in GiB."""
    command = [sys.executable, "-m", "snakemake", "-n", "--quiet", "rules", "--snakefile", str(ROOT / "Snakefile")]
    command += ["--directory", str(folder), "--configfile", str(folder / "config.yaml"), "--cores", "1", "--", *targets]
    path = os.pathsep.join([str(folder), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True)
    wall, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        sys.exit(done.stdout[-2000:] + done.stderr[-3000:])
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return done.stdout + done.stderr, wall, processor, after.ru_maxrss / 2**20


def job_counts(output: str) -> dict[str, int]:
    """Return the number of jobs of every rule, from Snakemake's table."""
    rows = [line.split() for line in output.splitlines()]
    return {row[0]: int(row[1]) for row in rows if len(row) == 2 and row[1].isdigit()}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--images", type=int, default=50000)
    parser.add_argument("--shard-size", type=int)
    parser.add_argument("--jobs", choices=["together", "apart"])
    parser.add_argument("--keep", type=Path, help="set the folder up here, and keep it")
    parser.add_argument("targets", nargs="*", default=["results/idsds_table.csv"])
    options = parser.parse_args()
    config = grid(options.images)
    if options.shard_size:
        config["shard_size"] = options.shard_size
    if options.jobs:
        config["attribution_jobs"] = options.jobs
    folder = options.keep or Path(tempfile.mkdtemp(prefix="heatproof-paper-"))
    folder.mkdir(parents=True, exist_ok=True)
    set_up(folder, config)
    output, wall, processor, memory = plan(folder, options.targets)
    for rule, count in job_counts(output).items():
        print(f"{rule:22} {count:7}")
    print(f"{wall:.1f} s wall, {processor:.1f} s of processor, {memory:.2f} GiB")
    if not options.keep:
        shutil.rmtree(folder)

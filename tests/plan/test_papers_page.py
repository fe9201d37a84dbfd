"""docs/papers.md: every config and target that it names is planned, and its recipe does what it says."""

import argparse
import hashlib
import re
import runpy
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import NamedTuple

import preloaded
import pytest
import torch
import yaml
from safetensors.torch import load_file

from heatproof.config_files import merge, read_config
from heatproof.estimate import synthetic
from heatproof.plan.graph import Graph
from heatproof.plan.validate import make_plan

REPOSITORY = Path(__file__).parents[2]
PAGE = (REPOSITORY / "docs/papers.md").read_text(encoding="utf-8")
STATES = ("runs here", "dry-runs", "not")
PAPERS = ("IDSDS", "the reproduction", "Meta-Rank", "MAS", "soundness and completeness")


class Row(NamedTuple):
    paper: str
    what: str
    states: list[str]
    configs: tuple[str, ...]
    target: str
    here: str
    differs: str


def rows():
    found = []
    for section in PAGE.split("\n## ")[1:-1]:
        paper = section.partition("\n")[0].partition(": ")[2]
        for line in section.splitlines():
            cells = [cell.strip() for cell in line.strip("|").split(" |")]
            if line.startswith("| ") and len(cells) == 6 and "`" in cells[1]:
                states, configs, target, here = (re.findall("`([^`]+)`", cell) for cell in cells[1:5])
                found.append(
                    Row(paper, cells[0], states, tuple(configs), *("".join(c) for c in (target, here)), cells[5])
                )
    return found


ROWS = rows()
ASKED = sorted({(row.configs, row.target) for row in ROWS if row.configs})


@cache
def outputs(*names):
    """Files that configs make at their size, with noise in the place of data that are not here."""
    config = read_config(*(REPOSITORY / "config" / f"{name}.yaml" for name in names))
    datasets = []
    for entry in config["datasets"]:
        name, given = (entry, {}) if isinstance(entry, str) else next(iter(entry.items()))
        stand_in = synthetic.in_place_of(given.get("dataset", name), {}, None) if "root" in given else None
        datasets.append({name: stand_in or given})
    # Shards are the same job again.
    plan = make_plan(merge({**config, "datasets": datasets}, {"shard_size": 50000}))
    return {file for job in Graph(plan).jobs() for file in job.outputs}


def test_every_paper_has_its_tables_and_figures():
    assert tuple(dict.fromkeys(row.paper for row in ROWS)) == PAPERS
    # Those that the texts have: 10 figures with parts, 7 tables, and so on.
    wanted = {
        "IDSDS": (range(1, 11), range(1, 8)),
        "the reproduction": (range(1, 2), ()),
        "Meta-Rank": (range(1, 5), range(1, 5)),
        "MAS": (range(1, 6), range(1, 4)),
        "soundness and completeness": (range(1, 16), range(1, 4)),
    }
    for paper, (figures, tables) in wanted.items():
        names = {row.what.partition(":")[0] for row in ROWS if row.paper == paper}
        numbers = {re.sub(r" [a-z]$", "", name) for name in names}
        assert numbers == {f"figure {n}" for n in figures} | {f"table {n}" for n in tables}, paper


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.paper}, {row.what.partition(':')[0]}")
def test_a_state_has_what_it_says(row):
    assert row.states
    assert set(row.states) <= set(STATES)
    if "not" in row.states:
        assert row.states == ["not"]
        assert (row.configs, row.target, row.here) == ((), "", "")
        assert row.differs, "a reason"
    assert bool(row.configs) == bool(row.target) == ("dry-runs" in row.states)
    assert bool(row.here) == ("runs here" in row.states)


@pytest.mark.parametrize(("configs", "target"), ASKED, ids=str)
def test_every_target_is_planned_at_the_papers_size(configs, target):
    if "paper" in configs:
        pytest.importorskip("bcos", reason="the config has a network of the package bcos")
    assert target in outputs(*configs)


@pytest.mark.parametrize("here", sorted({row.here for row in ROWS if row.here}))
def test_what_runs_here_makes_the_same_kind_of_file(here):
    if here.endswith(".py"):
        assert (REPOSITORY / here).is_file()
        return
    made = {re.sub("/[^/]+/[^/]+[.]png$", "", file) for file in outputs(here)}
    for row in ROWS:
        if row.here == here and row.target:
            assert re.sub("/[^/]+/[^/]+[.]png$", "", row.target) in made, row.what


def test_every_config_of_a_paper_is_on_the_page():
    there = {path.stem for path in (REPOSITORY / "config").glob("paper*.yaml")}
    assert there == {name for configs, _ in ASKED for name in configs}


def test_the_recipe_plans_one_cell_without_data():
    assert "results/idsds_table.csv" in outputs("one_cell")
    assert "--configfile config/one_cell.yaml -- results/idsds_table.csv results/accuracy.csv" in PAGE


def test_the_recipe_keeps_the_weights_of_a_file_like_the_authors(tmp_path, monkeypatch, capsys):
    code = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL).group(1)
    (tmp_path / "weights_alone.py").write_text("\n".join(line.removeprefix("   ") for line in code.splitlines()))
    weights = {"module.fc.weight": torch.rand(3, 2).T, "module.fc.bias": torch.rand(2)}
    held = {"epoch": 30, "state_dict": weights, "optimizer": {"state": {}}, "args": argparse.Namespace(lr=0.001)}
    torch.save(held, tmp_path / "theirs.pth.tar")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["weights_alone.py", "theirs.pth.tar", "weights/ours.safetensors"])
    runpy.run_path("weights_alone.py", run_name="__main__")
    said = capsys.readouterr().out.splitlines()
    made = load_file(tmp_path / "weights/ours.safetensors")
    assert made.keys() == {"fc.weight", "fc.bias"}
    assert torch.equal(made["fc.weight"], weights["module.fc.weight"])
    assert said[1].split()[0] == hashlib.sha256((tmp_path / "weights/ours.safetensors").read_bytes()).hexdigest()


@pytest.mark.slow
@pytest.mark.parametrize("configs", sorted({configs for configs, _ in ASKED} | {("one_cell",)}), ids="+".join)
def test_snakemake_plans_it(configs, tmp_path):
    """The workflow's own dry run, with noise for data and an address for weights that are to be put there."""
    pytest.importorskip("bcos")
    written = []
    for name in configs:
        config = yaml.safe_load((REPOSITORY / f"config/{name}.yaml").read_text(encoding="utf-8"))
        for entry in config.get("datasets", []):
            (dataset,) = entry
            entry[dataset] = synthetic.in_place_of(dataset, {}, None) | {"evaluation_images": 50000}
        for entry in config.get("models", []):
            ((_, settings),) = entry.items()
            # A file is looked into before any work; an address is not.
            if "://" not in settings.get("checkpoint", "://"):
                settings |= {"checkpoint": "https://example.org/weights.pth", "sha256": "0" * 8}
        written.append(tmp_path / f"{name}.yaml")
        written[-1].write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
    target = next((target for asked, target in ASKED if asked == configs), "results/idsds_table.csv")
    command = [preloaded.python(), "-m", "snakemake", "-n", "--quiet", "rules", "--cores", "1"]
    command += ["--snakefile", str(REPOSITORY / "Snakefile"), "--directory", str(tmp_path), "--configfile"]
    done = subprocess.run([*command, *map(str, written), "--", target], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-1500:] + done.stderr[-1500:]
    assert "drops" in done.stdout + done.stderr

"""docs/papers.md: every config and target that it names can be planned, and its recipe works."""

import argparse
import hashlib
import importlib.util
import re
import runpy
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path

import preloaded
import pytest
import torch
import yaml
from safetensors.torch import load_file

from heatproof.workflow.config.files import merge, read_config
from heatproof.workflow.estimate import synthetic
from heatproof.workflow.plan.graph import Graph
from heatproof.workflow.plan.validate import make_plan

REPOSITORY = Path(__file__).parents[2]
PAGE = (REPOSITORY / "docs/papers.md").read_text(encoding="utf-8")
sys.path.insert(0, str(REPOSITORY / "docs"))

from blocks.papers import command, papers  # noqa: E402 - needs the path that is added above

PAPERS = papers()
# Figures and tables of the papers, and sections with results that no figure shows.
WANTED = {
    "idsds": (range(1, 11), range(1, 8), ("4.1", "4.2")),
    "reproduction": (range(1, 2), (), ("2.3", "5.1", "5.4")),
    "meta_rank": (range(1, 5), range(1, 5), ()),
    "mas": (range(1, 6), range(1, 4), ("5.2",)),
    "soundness": (range(1, 16), range(1, 4), ()),
}
ROWS = [(paper, row) for paper, rows in PAPERS.items() for row in rows]
TARGETS = sorted({(row.configs, row.target) for _, row in ROWS if row.configs})
# Excluded from a plan if their package is not installed.
ABSENT = {name for name in ("bcos",) if importlib.util.find_spec(name) is None}


def config_at_size(*configs):
    """Return a config at its full size, with noise in place of missing data."""
    config = read_config(*(REPOSITORY / "config" / f"{name}.yaml" for name in configs))
    datasets = []
    for entry in config["datasets"]:
        name, settings = (entry, {}) if isinstance(entry, str) else next(iter(entry.items()))
        stand_in = synthetic.noise_dataset_for(settings.get("dataset", name), {}, None) if "root" in settings else None
        datasets.append({name: stand_in or settings})
    models = [entry for entry in config["models"] if not (ABSENT and "bcos_model" in str(entry))]
    # One shard is enough, because all shards have the same kind of job.
    return merge({**config, "datasets": datasets, "models": models}, {"shard_size": 50000})


@cache
def outputs(*configs):
    """Return the files that configs make at their full size."""
    return {file for job in Graph(make_plan(config_at_size(*configs))).jobs() for file in job.outputs}


@pytest.mark.parametrize("paper", WANTED)
def test_every_paper_has_its_tables_figures_and_sections(paper):
    figures, tables, sections = WANTED[paper]
    numbers = {re.sub(r" [a-z]$", "", row.part) for row in PAPERS[paper]}
    wanted = {f"figure {n}" for n in figures} | {f"table {n}" for n in tables} | {f"section {n}" for n in sections}
    assert numbers == wanted


def test_papers_are_those_of_the_page():
    assert list(PAPERS) == list(WANTED)
    assert re.findall(r"<!-- paper_table (\w+) -->", PAGE) == list(WANTED)


@pytest.mark.parametrize("row", [row for _, row in ROWS], ids=lambda row: f"{row.part}, {row.shows}")
def test_a_row_matches_its_state(row):
    assert bool(row.configs) == bool(row.target) == ("planned" in row.states)
    assert bool(row.here) == ("runs here" in row.states)
    if row.states == ("not made",):
        assert row.differs, "a reason"


@pytest.mark.parametrize(("configs", "target"), TARGETS, ids=str)
def test_the_command_on_the_page_is_planned_at_the_papers_size(configs, target):
    line = command(configs, "FILE")
    assert f"\n{line}\n" in PAGE
    assert f"| `{target}` |" in PAGE
    words = shlex.split(line.replace("\\\n", ""))
    options = words.index("--configfile"), words.index("--directory"), words.index("--")
    named = words[options[0] + 1 : options[1]]
    assert all((REPOSITORY / file).is_file() for file in named)
    assert (REPOSITORY / words[words.index("--profile") + 1]).is_dir()
    assert words[options[2] + 1 :] == ["FILE"]
    assert target in outputs(*(Path(file).stem for file in named))


def test_plans_have_all_networks_except_those_of_absent_packages():
    listed = read_config(REPOSITORY / "config/paper.yaml")["models"]
    planned = config_at_size("paper")["models"]
    assert len(planned) == len(listed) - bool(ABSENT) > 10


@pytest.mark.parametrize("here", sorted({row.here for _, row in ROWS if row.here}))
def test_formats_made_here_match_the_published_ones(here):
    if here.endswith(".py"):
        assert (REPOSITORY / here).is_file()
        return

    def kind(file):
        return re.sub("/[^/]+/[^/]+(/pretrained)?[.]png$", "", file)

    available = set(map(kind, outputs(here)))
    for _, row in ROWS:
        if row.here == here and row.target:
            assert kind(row.target) in available, row.part


def test_every_config_of_a_paper_is_on_the_page():
    there = {path.stem for path in (REPOSITORY / "config").glob("paper*.yaml")}
    assert there == {name for configs, _ in TARGETS for name in configs}


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
    output = capsys.readouterr().out.splitlines()
    stripped = load_file(tmp_path / "weights/ours.safetensors")
    assert stripped.keys() == {"fc.weight", "fc.bias"}
    assert torch.equal(stripped["fc.weight"], weights["module.fc.weight"])
    assert output[1].split()[0] == hashlib.sha256((tmp_path / "weights/ours.safetensors").read_bytes()).hexdigest()


@pytest.mark.slow
@pytest.mark.parametrize("configs", sorted({configs for configs, _ in TARGETS} | {("one_cell",)}), ids="+".join)
def test_snakemake_plans_every_target(configs, tmp_path):
    """A dry run of the workflow, with noise in place of data and an address in place of local weights."""
    pytest.importorskip("bcos")
    written = []
    for name in configs:
        config = yaml.safe_load((REPOSITORY / f"config/{name}.yaml").read_text(encoding="utf-8"))
        for entry in config.get("datasets", []):
            (dataset,) = entry
            entry[dataset] = synthetic.noise_dataset_for(dataset, {}, None) | {"evaluation_images": 50000}
        for entry in config.get("models", []):
            ((_, settings),) = entry.items()
            # A file is read before any job starts; an address is not.
            if "://" not in settings.get("checkpoint", "://"):
                settings |= {"checkpoint": "https://example.org/weights.pth", "sha256": "0" * 8}
        written.append(tmp_path / f"{name}.yaml")
        written[-1].write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
    target = next(
        (target for planned_configs, target in TARGETS if planned_configs == configs), "results/idsds_table.csv"
    )
    command = [preloaded.python(), "-m", "snakemake", "-n", "--quiet", "rules", "--cores", "1"]
    command += ["--snakefile", str(REPOSITORY / "Snakefile"), "--directory", str(tmp_path), "--configfile"]
    done = subprocess.run([*command, *map(str, written), "--", target], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-1500:] + done.stderr[-1500:]
    assert "drops" in done.stdout + done.stderr

"""Each combination of the papers' configs, small: it is the same study, and it makes the files of docs/papers.md."""

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pandas as pd
import pytest

from heatproof.workflow.config.files import read_config
from heatproof.workflow.plan.graph import Graph
from heatproof.workflow.plan.validate import make_plan

FOLDER = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(FOLDER))
small = import_module("papers_small")
COMBINATIONS = small.combinations()


def names(entries):
    return [small.named(entry)[0] for entry in entries]


@pytest.mark.parametrize("configs", COMBINATIONS, ids="+".join)
def test_small_runs_have_the_same_study_and_the_files_of_the_page(configs):
    config = read_config(*(FOLDER.parent / f"config/{name}.yaml" for name in configs))
    lowered = small.shrunk(configs)
    for key in ("datasets", "models", "explainers", "metrics"):
        assert names(lowered[key]) == names(config[key]), key
    same = set(config) - {"datasets", "models", "explainers", "metrics", "evaluation", "pretraining", "finetuning"}
    # Channels are named after layers of the networks.
    same -= {"similarity"}
    assert config.get("similarity", {}).keys() == lowered.get("similarity", {}).keys()
    assert {key: lowered[key] for key in same} == {key: config[key] for key in same}
    assert not any("checkpoint" in settings or "root" in settings for settings in map(str, lowered["models"]))
    outputs = {file for job in Graph(make_plan(lowered)).jobs() for file in job.outputs}
    assert set(COMBINATIONS[configs]) <= outputs


def test_stored_small_runs_have_the_files_of_the_page():
    table = pd.read_csv(FOLDER.parent / "docs/data/papers_small/papers_small.csv")
    ran = {configs: list(part["file"]) for configs, part in table.groupby("configs")}
    assert ran
    assert ran == {"+".join(configs): files for configs, files in COMBINATIONS.items() if "+".join(configs) in ran}
    assert table["made"].all()


def test_configs_without_a_command_on_the_page_are_refused(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["papers_small.py", "paper_mas"])
    with pytest.raises(SystemExit, match="no command of these configs; it has those of\npaper"):
        small.main()


@pytest.mark.parametrize(
    ("settings", "architecture"),
    [
        ({"architecture": "torchvision_model", "options": {"name": "resnet152"}}, "cifar_resnet56"),
        ({"architecture": "torchvision_model", "options": {"name": "wide_resnet50_2"}}, "cifar_resnet32"),
        ({"architecture": "torchvision_model", "options": {"name": "vgg16_bn"}}, "cifar_vgg16_bn"),
        ({"architecture": "timm_model", "options": {"name": "vit_base_patch16_224"}}, "small_vit"),
        ({"architecture": "bcos_model", "options": {"name": "resnet50"}}, "cifar_bcos_resnet20"),
        ({"architecture": "resnet50_fixup"}, "cifar_resnet20_fixup"),
        ({"architecture": "cifar_resnet44", "options": {"shortcut": "A"}}, "cifar_resnet44"),
    ],
)
def test_a_stand_in_is_of_the_same_family(settings, architecture):
    ((_, stand_in),) = small.small_model("name", settings).items()
    assert stand_in["architecture"] == architecture
    assert stand_in["options"].get("shortcut") == settings.get("options", {}).get("shortcut")


def test_saved_epochs_have_the_same_share_in_a_short_training():
    assert small.small_training({"epochs": 200, "keep": [50, 100, 150, 200]})["keep"] == [2, 4, 6, 8]


def test_a_network_without_a_stand_in_is_named():
    with pytest.raises(SystemExit, match="no stand-in for the network timm_model unheard_of"):
        small.small_model("a", {"architecture": "timm_model", "options": {"name": "unheard_of"}})


@pytest.mark.long
@pytest.mark.parametrize("configs", COMBINATIONS, ids="+".join)
def test_small_runs_make_their_files(configs, tmp_path):
    command = [sys.executable, str(FOLDER / "papers_small.py"), *configs, "--small", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    table = pd.read_csv(tmp_path / "papers_small.csv")
    assert list(table["file"]) == COMBINATIONS[configs]

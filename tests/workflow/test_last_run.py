"""Commands use the config of the last run if none is named, and execute no code that a results folder names."""

import json
import re
import subprocess

import preloaded
import pytest
import yaml

from heatproof.errors import HeatproofError
from heatproof.store.manifest import write_checksummed
from heatproof.workflow.commands.run import report, status
from heatproof.workflow.config.files import read_config, workflow_folder
from heatproof.workflow.last_run import RECORD, load_named_or_last, record_run
from heatproof.workflow.plan.stage import STAGES


@pytest.fixture
def working_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results").mkdir()
    return tmp_path


def test_commands_without_a_config_use_the_name_and_values_of_the_last_run(working_folder):
    (working_folder / "mine.yaml").write_text(
        "seed: 3\nmodels: [{zoo: {architecture: small_vit}}, {ant: {architecture: small_vit}}]\n"
    )
    shipped = workflow_folder() / "config/quick.yaml"
    record_run(read_config("quick"), [shipped])
    assert load_named_or_last([]).named == ["quick"]
    record_run(read_config("mine.yaml"), [working_folder / "mine.yaml"])
    (working_folder / "mine.yaml").write_text("seed: 4\n")
    last = load_named_or_last([])
    assert last.named == ["mine.yaml"]
    assert last.note.startswith("No config is named: this uses mine.yaml, as the last run in results did (20")
    assert last.plan.config["seed"] == 3
    assert list(last.plan.models) == ["zoo", "ant"], "in the order of the config"
    assert load_named_or_last(["quick"]).note == ""
    assert list(load_named_or_last(["quick"]).plan.models) == ["vgg11"]


def test_commands_without_a_config_and_a_last_run_are_refused(working_folder):
    for command in (status, report):
        with pytest.raises(HeatproofError, match="No config is named, and no run is recorded in results: name one"):
            command([])
    (working_folder / "results" / RECORD).write_text("{}")
    with pytest.raises(HeatproofError, match=r"results/\.last_run\.json is damaged: name one"):
        status([])


CODE = {
    "a plugin": {"plugins": ["evil"]},
    "a dataset": {"datasets": [{"digits": {"dataset": "evil:run"}}]},
    "a hub": {
        "datasets": [{"digits": {"dataset": "torch.hub:load", "repo_or_dir": ".", "model": "x", "source": "local"}}]
    },
    "an architecture": {"models": [{"m": {"architecture": "evil:run"}}]},
    "an explainer": {"explainers": [{"e": {"explainer": "evil:run"}}]},
    "a metric": {"metrics": [{"m": {"metric": "evil:run"}}]},
    "a baseline": {"drops": {"baselines": ["evil:run"]}},
}


@pytest.mark.parametrize("change", CODE.values(), ids=list(CODE))
def test_code_that_a_received_folder_names_is_not_executed(working_folder, monkeypatch, change):
    (working_folder / "evil.py").write_text("raise SystemExit('code of a results folder')\n")
    (working_folder / "hubconf.py").write_text("raise SystemExit('code of a results folder')\n")
    monkeypatch.syspath_prepend(working_folder)
    (working_folder / "mine.yaml").write_text(yaml.safe_dump(change))
    record_run(read_config("mine.yaml"), ["mine.yaml"])
    for command in (status, report):
        with pytest.raises(HeatproofError) as caught:
            command([])
        reason = "the config of the last run in results, mine.yaml, was not named explicitly"
        assert f"is user code, which is not imported because {reason}" in str(caught.value)


def test_a_record_with_a_right_digest_and_wrong_types_is_damaged(working_folder):
    for odd in ({"named": 3}, {"values": ["x"]}, {"values": "{}"}, {"values": None}, {"when": None}):
        write_checksummed(working_folder / "results" / RECORD, {"named": [], "values": {}, "when": "", **odd})
        with pytest.raises(HeatproofError, match="is damaged"):
            load_named_or_last([])


def test_the_record_has_no_secrets_and_no_folder_in_names(working_folder, tmp_path_factory):
    other = tmp_path_factory.mktemp("home") / "mine.yaml"
    address = "https://me:token@host/x.pth?sig=secret"
    record_run({"models": [{"m": {"checkpoint": address, "sha256": "0"}}]}, [other])
    text = (working_folder / "results" / RECORD).read_text()
    assert json.loads(text)["named"] == ["…/mine.yaml"]
    assert "https://host/x.pth" in text
    assert not any(word in text for word in ("token", "secret", "me:"))


@pytest.mark.slow
@pytest.mark.workflow
def test_only_a_run_with_jobs_is_the_last_run(working_folder):
    """Dry runs, and commands that only read the Snakefile, such as --lint, do not count as the last run."""
    folder, micro = workflow_folder(), working_folder / "micro.yaml"
    micro.write_text(yaml.safe_dump({**yaml.safe_load((folder / "config/quick.yaml").read_text()), "seed": 5}))
    snakemake = ["snakemake", "--snakefile", folder / "Snakefile", "--workflow-profile", folder / "profiles/default"]

    def call(*options):
        command = [preloaded.python(), "-m", *snakemake, "--cores", "1", "--configfile", micro, *options]
        done = subprocess.run([*map(str, command)], cwd=working_folder, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return (working_folder / "results" / RECORD).exists()

    for options in (["--dry-run"], ["--lint"], ["--list-rules"]):
        assert not call(*options), options
    assert call("--until", "prepare")
    assert load_named_or_last([]).named == ["micro.yaml"]
    assert load_named_or_last([]).plan.config["seed"] == 5


def test_a_report_trains_nothing(working_folder):
    with pytest.raises(HeatproofError) as caught:
        report(["quick"])
    assert "jobs first that train networks or pass images through them (1 of " in str(caught.value)
    assert ", 1 of pretrain, " in str(caught.value)
    assert str(caught.value).endswith("`heatproof run quick --target results/report/index.html` runs them.")
    assert not list((working_folder / "results").iterdir())


def test_all_stages_on_a_gpu_run_networks():
    rules = "".join(path.read_text() for path in sorted((workflow_folder() / "workflow/rules").glob("*.smk")))
    bodies = re.findall(r"use rule \w+ as (\w+) with:(.*?)(?=use rule|\Z)", rules, re.S)
    on_gpu = {name for name, body in bodies if "gpu=" in body} & set(STAGES)
    assert {"pretrain", "drops", "curves"} <= on_gpu
    assert all(STAGES[name].runs_network for name in on_gpu)
    assert not any(STAGES[name].runs_network for name in ("score", "tables", "report_page"))

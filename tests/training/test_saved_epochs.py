"""Saved epochs of one finetuning as weights, and a finetuning that is killed."""

import logging
import shutil
import signal
import subprocess
from dataclasses import asdict
from pathlib import Path

import pandas as pd
import pytest
import toy_project
from jobs import job_process
from toy_project import Project

from heatproof.errors import HeatproofError
from heatproof.store.manifest import read_if_intact
from heatproof.store.reading import read_json
from heatproof.training import in_domain
from heatproof.training.journal import Journal
from heatproof.workflow.plan.graph import Graph
from heatproof.workflow.plan.validate import make_plan
from heatproof.workflow.reconcile import Results

FOLDER = "results/weights/toy/net"


def finetune_project(project):
    project.make(project.finetune())
    return project


def extract_epoch(project, epoch):
    project.make(project.on_network("keep_epoch", "toy", "net", f"finetuned_epoch{epoch}"))
    return project.folder / FOLDER / f"finetuned_epoch{epoch}.safetensors"


@pytest.fixture(scope="module")
def saved_run(trained, tmp_path_factory):
    folder = tmp_path_factory.mktemp("kept") / "project"
    shutil.copytree(trained.folder, folder)
    return finetune_project(Project(folder, finetuning={"keep": [1, 3]}))


def test_a_saved_epoch_equals_a_training_of_that_length(saved_run, project):
    short = finetune_project(project(finetuning={"epochs": 1}))
    assert extract_epoch(saved_run, 1).read_bytes() == (short.folder / FOLDER / "finetuned.safetensors").read_bytes()
    history = saved_run.folder / FOLDER / "finetuned_epoch1.history.csv"
    assert history.read_bytes() == (short.folder / FOLDER / "finetuned.history.csv").read_bytes()
    assert extract_epoch(saved_run, 3).read_bytes() != extract_epoch(saved_run, 1).read_bytes()


def test_saving_epochs_changes_no_byte_of_the_finetuned_weights(saved_run, trained):
    for name in ("finetuned.safetensors", "finetuned.history.csv"):
        assert (saved_run.folder / FOLDER / name).read_bytes() == (trained.folder / FOLDER / name).read_bytes()
    assert (trained.folder / FOLDER / "kept/finetuned.safetensors").is_file(), "also where nothing is kept"


def test_manifests_of_saved_epochs_are_intact(saved_run):
    extract_epoch(saved_run, 1)
    for name in ("finetuned", "finetuned_epoch1"):
        path = saved_run.folder / FOLDER / f"{name}.json"
        assert read_if_intact(path, read_json(path)["key"])


def test_later_stages_use_saved_epochs_as_weights(saved_run):
    extract_epoch(saved_run, 3)
    where = ("toy", "net", "finetuned_epoch3")
    saved_run.make(saved_run.on_network("drops", *where, grid=4, baseline="zeros", shard=0))
    assert (saved_run.folder / "results/drops/toy/net/finetuned_epoch3/g4_zeros.0.json").is_file()


def test_saved_epochs_are_scored_and_no_claim_counts_them_as_trainings(saved_run, monkeypatch):
    """Run all stages, from the weights to the table of claims."""
    for epoch in (1, 3):
        extract_epoch(saved_run, epoch)
    scored = Project(
        saved_run.folder,
        finetuning={"keep": [1, 3]},
        evaluation={"images": 6},
        explainers=[{"mine": {"explainer": "toy_plugin:gradient"}}, "saliency", "input_x_gradient", "random"],
        metrics=[{name: {"fractions": [0.2, 0.6]}} for name in ("deletion_morf", "deletion_lerf")],
    )
    for weights in scored.plan.weights:
        monkeypatch.setattr(toy_project, "WHERE", ("toy", "net", weights))
        scored.attribute(reference=weights == "finetuned").drop().respond()
    scored.score_all().score()
    scored.make("claims")
    card = pd.read_csv(saved_run.folder / "results/claims.csv").set_index("claim")
    row = card.loc["ranks_agree_between_checkpoints"]
    assert row["verdict"] == "not testable here", "epochs of a finetuning are no training from scratch"
    assert "no training from scratch saves epochs" in row["reason"]
    ranked = set(pd.read_csv(saved_run.folder / "results/idsds_table.csv")["weights"])
    assert ranked == {"finetuned", "finetuned_epoch1", "finetuned_epoch3"}


def test_a_finetuning_is_repeated_only_for_a_missing_epoch(saved_run, monkeypatch):
    class TrainedAgain(Exception):
        pass

    def fit(*_, **__):
        raise TrainedAgain

    monkeypatch.setattr(in_domain, "fit", fit)
    finetune_project(Project(saved_run.folder, finetuning={"keep": [3]}))
    with pytest.raises(TrainedAgain):
        finetune_project(Project(saved_run.folder, finetuning={"keep": [2, 3]}))


def test_copied_results_without_an_epoch_are_incomplete(saved_run, monkeypatch):
    monkeypatch.chdir(saved_run.folder)
    for keep, expected in (([3], True), ([2, 3], False)):
        requested_project = Project(saved_run.folder, finetuning={"keep": keep})
        job = requested_project.on_network("finetune")
        assert Results(Graph(requested_project.plan)).is_current(job, *job.products) is expected


@pytest.mark.parametrize("damage", ["missing epoch", "not safetensors", "gone"])
def test_missing_or_damaged_states_are_errors(saved_run, project, damage):
    other = project(finetuning={"keep": [1]})
    path = other.folder / FOLDER / "kept/finetuned.safetensors"
    if damage == "not safetensors":
        path.write_bytes(b"no")
    elif damage == "gone":
        path.unlink()
    with pytest.raises(HeatproofError, match=r"kept/finetuned\.safetensors .*as its target"):
        extract_epoch(other, 1)


DYING = """
import os, signal, sys
from heatproof.workflow import job

replace, moved = os.replace, []

def replace_or_die(aside, target):
    if str(target).endswith(".pt"):
        moved.append(target)
    if len(moved) == 3 and sys.argv[1] == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    replace(aside, target)
    if len(moved) == 3:
        os.kill(os.getpid(), signal.SIGKILL)

os.replace = replace_or_die
job.main(sys.argv[2:])
"""


@pytest.mark.parametrize(("when", "done"), [("before", 2), pytest.param("after", 3, marks=pytest.mark.slow)])
def test_a_killed_finetuning_resumes_with_the_same_bytes(project, caplog, when, done):
    """The operating system kills it before or after the third epoch's state is moved into place."""
    change = {"finetuning": {"epochs": 5, "keep": [1, 5], "shift": 1}}
    undisturbed, killed = finetune_project(project(**change)), project(**change)
    path = killed.folder / FOLDER
    spec = killed.on_network("finetune")
    started = job_process(
        killed.folder,
        spec.run,
        spec.spec_json,
        runtime=asdict(killed.runtime()),
        importable=Path(__file__).parents[1],
        program=("-c", DYING, when),
    )
    job = subprocess.run(**started, stderr=subprocess.DEVNULL, check=False)
    assert job.returncode == -signal.SIGKILL
    # Snakemake does the same with the outputs of a killed job.
    for output in ("finetuned.safetensors", "finetuned.history.csv", "finetuned.json", "kept/finetuned.safetensors"):
        (path / output).unlink()
    with caplog.at_level(logging.INFO):
        finetune_project(killed)
    messages = [record.getMessage() for record in caplog.records if "resuming" in record.getMessage()]
    assert messages == [f"resuming after epoch {done} of 5 of an earlier job"]
    for output in ("finetuned.safetensors", "finetuned.history.csv", "kept/finetuned.safetensors"):
        assert (path / output).read_bytes() == (undisturbed.folder / FOLDER / output).read_bytes()
    assert not list(path.glob(".*")), "no journal is left"


def test_another_config_does_not_resume_from_a_journal(project, caplog):
    changed = project(finetuning={"epochs": 2})
    with pytest.MonkeyPatch.context() as killed_before_the_end:
        killed_before_the_end.setattr(Journal, "remove", lambda self: None)
        finetune_project(changed)
    (left,) = (changed.folder / FOLDER).glob(".finetuned.journal/*.pt")
    with caplog.at_level(logging.INFO):
        finetune_project(Project(changed.folder, finetuning={"epochs": 1}))
    assert not any("resuming" in record.getMessage() for record in caplog.records)
    assert not left.exists()


def test_epochs_of_a_pretraining_are_saved_as_well(trained, tmp_path, monkeypatch):
    """Checkpoints of one training as test cases (Meta-Rank, section 5.1)."""
    (tmp_path / "project").mkdir()
    project = Project(tmp_path / "project", weights=["pretrained", "finetuned"], pretraining={"keep": [2, 6]})
    plan = project.plan
    project.make(project.pretrain())
    folder = project.folder / FOLDER
    for name in ("pretrained.safetensors", "pretrained.history.csv"):
        assert (folder / name).read_bytes() == (trained.folder / FOLDER / name).read_bytes()
    for epoch in (2, 6):
        project.make(project.on_network("keep_epoch", "toy", "net", f"pretrained_epoch{epoch}"))
    assert (folder / "pretrained_epoch2.safetensors").read_bytes() != (
        folder / "pretrained_epoch6.safetensors"
    ).read_bytes()
    assert len(pd.read_csv(folder / "pretrained_epoch2.history.csv")) == 2
    assert (folder / "pretrained_epoch6.history.csv").read_bytes() == (folder / "pretrained.history.csv").read_bytes()
    assert plan.finetuning("net", "pretrained_epoch2") is None
    cases = {case.network.weights: case.metric for case in plan.test_cases()}
    assert cases["pretrained_epoch2"].startswith("sds"), "not in domain"


def test_epochs_that_a_pretraining_cannot_save_are_refused():
    config = {"models": [{"net": {"architecture": "cifar_resnet20"}}], "pretraining": {"epochs": 6, "keep": [9]}}
    with pytest.raises(HeatproofError, match=r"pretraining\.keep names epoch 9, and the model 'net' is trained for 6"):
        make_plan(config)
    with pytest.raises(HeatproofError, match="`pretrained` is not among the weights"):
        make_plan({**config, "weights": ["finetuned"]})
    config["models"][0]["net"]["checkpoint"] = "weights.safetensors"
    with pytest.raises(HeatproofError, match="has a checkpoint and is not trained here"):
        make_plan(config)

"""A user's network that fails: the traceback in the log of the job leads to it in a few steps."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from snakemake_project import Project, clone

from heatproof.workflow.plan.folder import Folder

pytestmark = [pytest.mark.workflow, pytest.mark.slow]

PLUGIN = """
import os

import torch
from torch import nn


class Fragile(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, num_classes))

    def forward(self, images):
        # Only in jobs: the start of a run tries the network, and would report the error in one sentence.
        if os.environ.get("FRAGILE") and "HEATPROOF_MACHINE" in os.environ:
            raise RuntimeError("no such thing as a square")
        return self.head(images)


def network(num_classes):
    return Fragile(num_classes)
"""
CONFIG = {
    "evaluation": {"images": 2, "accuracy_images": 0},
    "weights": ["pretrained"],
    "models": [{"mine": {"architecture": "fragile:network"}}],
    "pretraining": {"epochs": 1},
    "explainers": ["saliency", "random"],
    "metrics": [{"rise_deletion": {"steps": 2}}, {"sensitivity_n": {"samples": 3, "sizes": [0.5]}}],
    "scores": {"bootstrap": 20},
    "report": {"all_metrics": False},
}
RESULTS = Folder()
NETWORK = {"dataset": "digits", "model": "mine", "weights": "pretrained"}
# Rules whose jobs run the network, each with one of its files.
TARGETS = {
    "drops": f"{RESULTS.drops}.0.json".format(**NETWORK, grid=4, baseline="mean"),
    "attribute": f"{RESULTS.maps}.0.json".format(**NETWORK, explainer="saliency"),
    "scores": "results/scores.csv",
}
# Frames from the function that the rule runs: the stage, the response, the perturbation, and the loop over batches.
MOST = 5


class ProjectWithCode(Project):
    """A project with code next to its config."""

    failing = False

    def environment(self) -> dict[str, str]:
        before = super().environment()
        more = {"FRAGILE": "1"} if self.failing else {}
        return {**before, "PYTHONPATH": f"{before['PYTHONPATH']}:{self.folder}", **more}


def test_a_traceback_from_the_network_has_few_modules(tmp_path):
    project = ProjectWithCode(clone(tmp_path / "project"), CONFIG)
    (project.folder / "fragile.py").write_text(PLUGIN)

    reference = f"{RESULTS.reference_maps}.0.json".format(dataset="digits", explainer="random")
    # Maps exist, so that responses along their rankings are computed; then those of one explainer are removed.
    assert project.ran(TARGETS["attribute"], reference)["attribute"] == 1
    project.failing = True
    project.run("--keep-going", TARGETS["drops"], TARGETS["scores"], fails=True)
    for file in (project.folder / "results/maps/digits/mine").rglob("saliency*"):
        if file.is_file():
            file.unlink()
    project.run(TARGETS["attribute"], fails=True)
    for stage, count in {"drops": 1, "curves": 1, "subsets": 1, "attribute": 1}.items():
        failed = [log for log in logs(project, stage) if "no such thing as a square" in log]
        assert len(failed) == count, stage
        for log in failed:
            crossed = dict.fromkeys(re.findall(r'^ +File "[^"]*/src/(heatproof/[^"]+)", line', log, flags=re.MULTILINE))
            # The frames of the job itself, which are the same for every error, are not in the log, but count here.
            assert len({"heatproof/workflow/job.py", *crossed}) <= MOST, f"{stage}: {', '.join(crossed)}"
            assert "heatproof/workflow/job.py" not in crossed


def logs(project: Project, stage: str) -> list[str]:
    return [Path(file).read_text() for file in sorted((project.folder / "results/logs" / stage).rglob("*.log"))]

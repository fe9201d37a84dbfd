"""Patch insertion on a model whose gains are known, in memory and through the workflow's jobs."""

import os

import numpy as np
import pandas as pd
import pytest
import torch
from network_responses import FunctionModule
from toy_project import Project

import heatproof
from heatproof.errors import HeatproofError
from heatproof.workflow.plan.graph import Graph
from heatproof.workflow.plan.validate import make_plan

SIDE = 8


class Additive(torch.nn.Module):
    """A network whose logit is a weighted sum over pixels, against a logit of zero."""

    def __init__(self, weights):
        super().__init__()
        self.register_buffer("weights", weights)
        self.passes = 0

    def forward(self, images):
        self.passes += len(images)
        logit = (images.sum(1) * self.weights).sum((1, 2))
        return torch.stack([logit, torch.zeros_like(logit)], dim=1)


@pytest.fixture
def planted():
    generator = torch.Generator().manual_seed(3)
    images = torch.rand(6, 3, SIDE, SIDE, generator=generator) + 0.1
    model = Additive(torch.rand(SIDE, SIDE, generator=generator) * 0.04).eval()
    return model, images, torch.zeros(6, dtype=torch.long), images.sum(1) * model.weights


def test_the_true_map_scores_best_its_negative_worst_and_a_constant_is_undefined(planted):
    model, images, labels, truth = planted
    for maps, expected in ((truth, 1.0), (-truth, -1.0)):
        result = heatproof.evaluate("patch_insertion", model, images, labels, maps)
        np.testing.assert_allclose(result["score"], expected)
    flat = heatproof.evaluate("patch_insertion", model, images, labels, torch.ones_like(truth))
    assert not flat["valid"].any()


def test_a_patch_that_another_can_replace_gains_on_insertion_and_loses_nothing_on_deletion():
    """Both patches contain the evidence and one is enough, so that a deletion has no effect."""
    images = torch.zeros(1, 1, 4, 4)
    images[0, 0, 0, 0] = images[0, 0, 3, 3] = 1.0

    @FunctionModule
    def enough(batch):
        logit = batch.flatten(1).sum(1).clamp(max=1)
        return torch.stack([logit, 0 * logit], dim=1)

    maps, labels = images[:, 0], torch.zeros(1, dtype=torch.long)
    deleted, inserted = (
        heatproof.evaluate(name, enough, images, labels, maps, grid=2)["score"].item()
        for name in ("sds", "patch_insertion")
    )
    assert np.isnan(deleted)
    assert inserted == pytest.approx(1)


def test_every_variant_passes_through_the_network_once(planted):
    model, images, labels, truth = planted
    scores = heatproof.evaluate("patch_insertion", model, images, labels, truth, grid=2)
    assert model.passes == 6 * (1 + 1 + 4) + scores.attrs["check_passes"]


def test_a_grid_that_does_not_divide_is_refused(planted):
    with pytest.raises(HeatproofError, match="grid of 3 does not divide"):
        heatproof.evaluate("patch_insertion", *planted, grid=3)


def test_a_config_with_the_metric_has_jobs_and_scores(tmp_path):
    """No rule, list or stage names it: the response is one of those that are computed once per network."""
    change = {"metrics": [{"patch_insertion": {"baseline": "mean"}}], "explainers": ["saliency"]}
    run = (
        Project(tmp_path, **change, pretraining={"epochs": 1}, finetuning={"epochs": 1})
        .train()
        .attribute()
        .drop()
        .respond()
    )
    assert [name.partition("-")[0] for name in run.plan.model_responses] == ["insertions"]
    job = next(job for job in Graph(run.plan).jobs() if "/insertions-" in job.outputs[0])
    assert all(os.path.isfile(run.folder / path) for path in job.outputs)
    run.score_with("patch_insertion")
    rows = pd.read_parquet(run.folder / "results/scores/toy/net/finetuned/patch_insertion.parquet")
    assert rows.valid.all()
    assert rows.score.nunique() > 3
    before = run.bytes("subsets")
    run.make(run.on_network("subsets", response=next(iter(run.plan.model_responses)), shard=0))
    assert run.bytes("subsets") == before != {}


def test_the_default_config_does_not_have_the_metric():
    assert "patch_insertion" not in make_plan({}).metrics

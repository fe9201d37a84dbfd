"""The mean baseline in the stages, which compute the colour from the training images."""

import numpy as np
import pandas as pd
import pytest
import torch
from network_responses import batch_of, patch_responses
from toy_project import Project

import heatproof
from heatproof.core.normalise import normalise
from heatproof.datasets.checks import open_dataset
from heatproof.models.network import load_network
from heatproof.training import in_domain
from heatproof.training.loop import Trained

CLOSED = [{"toy": {"dataset": "toy_plugin:dataset", "closed": ["train"]}}]
FACTS = {"architecture": "toy_plugin:network", "cam_layer": "features", "mean": [0.2, 0.3, 0.4], "std": [0.5, 0.25, 1]}


def colour_of(project):
    """Return the training images' mean colour in the units of the network's input, computed in another way."""
    facts = project.plan.model_spec("net").facts
    pixels = open_dataset(project.plan.dataset_spec("toy")).pixels["train"].astype(np.float64)
    assert len(pixels) == 36
    return ((pixels.mean((0, 2, 3)) - np.array(facts.mean)) / np.array(facts.std)).tolist()


def case_of(project, count):
    """Return network, images, labels and ids of the evaluation split."""
    spec = project.finetune()
    data = open_dataset(spec.dataset)
    network = load_network(spec.model, 3, project.folder / spec.files["weights"], torch.device("cpu"))
    images = normalise(data.images("evaluation", 0, count), spec.model.facts)
    split = data.splits["evaluation"]
    return network, images, torch.from_numpy(split.labels[:count]), split.ids[:count]


@pytest.mark.parametrize("models", [{}, {"models": [{"net": FACTS}]}], ids=["default facts", "other facts"])
def test_drops_equal_those_of_the_colour(project, models):
    toy = project(drops={"baselines": ["mean"]}, **models).drop()
    case = case_of(toy, 10)
    expected = patch_responses(batch_of(*case), 4, "mean", baseline_options={"value": colour_of(toy)})
    for array, values in expected.items():
        np.testing.assert_allclose(toy.drops_of(array, baseline="mean"), values, atol=1e-5)
    other = patch_responses(batch_of(*case), 4, "zeros")
    assert np.abs(other["logit"] - expected["logit"]).max() > 0.01, "or this test shows nothing"


def test_scores_equal_those_of_evaluate(project):
    toy = project(drops={"baselines": ["zeros", "mean"]}).attribute().drop().score()
    network, images, labels, ids = case_of(toy, 10)
    options = {"baseline": "mean", "baseline_options": {"value": colour_of(toy)}, "image_ids": ids}
    scores = heatproof.evaluate("idsds", network, images, labels, toy.maps()[:, 0], grid=4, **options)
    stored = pd.read_parquet(toy.folder / "results/scores/toy/net/finetuned/sds_g4_mean.parquet")
    np.testing.assert_allclose(stored[stored.method == "mine"].score, scores["score"], atol=1e-12)


def test_training_images_are_read_only_for_the_mean(project):
    """Other baselines need no training image."""
    for baseline in ("zeros", "random", "blur"):
        project(datasets=CLOSED, drops={"baselines": [baseline]}).drop()
    with pytest.raises(AssertionError, match="somebody looked at train"):
        project(datasets=CLOSED, drops={"baselines": ["mean"]}).drop()


def test_current_drops_read_no_training_image(project, monkeypatch):
    toy = project(drops={"baselines": ["mean"]}).drop()
    before = toy.bytes("drops")

    def read(*_):
        raise AssertionError("the mean was taken again")

    monkeypatch.setattr("heatproof.core.perturb.dataset_mean.mean_colour", read)
    assert toy.drop().bytes("drops") == before != {}


def caught_by_fit(project, monkeypatch):
    """Return the arguments with which finetuning calls the training loop, and the mean colour."""
    caught = {}

    def fit(model, train, validation, schedule, seed, augment=None, **_):
        caught.update(train=train, validation=validation, augment=augment)
        return Trained(dict(model.state_dict()), [{"epoch": 0}], {})

    monkeypatch.setattr(in_domain, "fit", fit)
    changed = project(finetuning={"baseline": "mean", "epochs": 1})
    changed.make(changed.finetune())
    return caught, torch.tensor(colour_of(changed), dtype=torch.float32)


def test_finetuning_deletes_to_the_colour(project, monkeypatch):
    caught, colour = caught_by_fit(project, monkeypatch)
    intact, validation = caught["validation"].images.chunk(2)
    train = caught["train"].images
    augmented = caught["augment"](train, torch.Generator().manual_seed(0))
    for before, after, lost in ((intact, validation, (12, 12)), (train, augmented, (8, 28))):
        changed = (before != after).any(1)
        assert lost[0] <= changed.flatten(1).any(1).sum() <= lost[1]
        deleted_pixels = after.movedim(1, -1)[changed]
        assert len(deleted_pixels) >= 9 * lost[0]
        torch.testing.assert_close(deleted_pixels, colour.expand_as(deleted_pixels), rtol=0, atol=1e-6)


def test_finetuning_runs_and_gives_in_domain_scores(tmp_path):
    small = {"pretraining": {"epochs": 1}, "finetuning": {"epochs": 1, "baseline": "mean"}, "evaluation": {"images": 6}}
    toy = Project(tmp_path, **small, drops={"baselines": ["mean"]}, explainers=["saliency", "random"]).train()
    toy.attribute().drop().score()
    table = pd.read_csv(tmp_path / "results/idsds_table.csv")
    assert set(table.metric) == {"idsds"}
    assert table.score.notna().all()

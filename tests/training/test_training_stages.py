"""Pretraining and finetuning as jobs."""

import csv

import pytest
import torch
from safetensors.torch import load_file
from toy_project import Project

from heatproof.core.normalise import normalise
from heatproof.core.provenance import Key
from heatproof.datasets.checks import open_dataset
from heatproof.errors import HeatproofError
from heatproof.models.network import load_network
from heatproof.store.manifest import write_manifest
from heatproof.store.reading import read_json
from heatproof.training import in_domain
from heatproof.training.loop import Trained

FILES = ("safetensors", "history.csv", "json")


def weights(project, name="finetuned"):
    return project.folder / f"results/weights/toy/net/{name}.safetensors"


def accuracy(project, name):
    job = project.finetune()
    data = open_dataset(job.dataset)
    network = load_network(job.model, 3, weights(project, name), torch.device("cpu"))
    images = normalise(data.images("evaluation", 0, 12), job.model.facts)
    return float((network(images).argmax(1).numpy() == data.splits["evaluation"].labels).mean())


def history(project, name):
    with open(weights(project, name).with_suffix("").with_suffix(".history.csv"), encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_trainings_write_weights_history_and_manifest(trained):
    for name, epochs in (("pretrained", 6), ("finetuned", 3)):
        folder = trained.folder / "results/weights/toy/net"
        assert all((folder / f"{name}.{ending}").is_file() for ending in FILES)
        assert [int(row["epoch"]) for row in history(trained, name)] == list(range(epochs))
        assert accuracy(trained, name) == 1.0
    manifest = read_json(trained.folder / "results/weights/toy/net/finetuned.json")
    assert list(manifest["input_sha256"]) == ["results/weights/toy/net/pretrained.safetensors"]
    first, second = (load_file(weights(trained, name)) for name in ("pretrained", "finetuned"))
    assert any(not torch.equal(first[key], second[key]) for key in first)


def test_the_same_config_gives_the_same_bytes(trained, tmp_path):
    again = Project(tmp_path).train()
    for name in ("pretrained", "finetuned"):
        assert weights(again, name).read_bytes() == weights(trained, name).read_bytes()


@pytest.mark.parametrize("change", [{"seed": 1}, {"pretraining": {"seed": 1}}])
def test_another_seed_gives_other_weights(trained, tmp_path, change):
    other = Project(tmp_path, **change).train()
    assert weights(other, "pretrained").read_bytes() != weights(trained, "pretrained").read_bytes()


class TrainedAgain(Exception):
    pass


@pytest.fixture
def no_training(monkeypatch):
    def fit(*_, **__):
        raise TrainedAgain

    monkeypatch.setattr("heatproof.training.loop.fit", fit)
    monkeypatch.setattr(in_domain, "fit", fit)


def test_current_weights_are_not_trained_again(project, no_training):
    again = project()
    before = {name: weights(again, name).stat().st_mtime_ns for name in ("pretrained", "finetuned")}
    again.train()
    assert all(weights(again, name).stat().st_mtime_ns > before[name] for name in before), "as new as their inputs"
    weights(again).write_bytes(b"damaged")
    with pytest.raises(TrainedAgain):
        again.train()


def test_changed_pretrained_weights_are_finetuned_again(project, no_training):
    again = project()
    other = weights(again, "pretrained")
    other.write_bytes(weights(again).read_bytes())
    with pytest.raises(HeatproofError, match=r"pretrained\.safetensors` and run your snakemake command"):
        again.make(again.finetune())
    manifest = other.with_suffix(".json")
    write_manifest(manifest, [other], spec_key=Key("other", "other"), key="other")
    with pytest.raises(TrainedAgain):
        again.make(again.finetune())


def test_training_reads_no_evaluation_image(tmp_path):
    """Neither for training nor for selecting the checkpoint."""
    closed = [{"toy": {"dataset": "toy_plugin:dataset", "closed": ["evaluation"]}}]
    project = Project(tmp_path, datasets=closed)
    project.make(project.pretrain())
    project.make(project.finetune())
    with pytest.raises(AssertionError, match="somebody looked at evaluation"):
        project.attribute()


def captured_fit(project, monkeypatch, baseline="zeros", share=0.5):
    """Return the arguments with which finetuning calls the training loop."""
    caught = {}

    def fit(model, train, validation, schedule, seed, augment=None, **_):
        caught.update(train=train, validation=validation, augment=augment)
        return Trained(dict(model.state_dict()), [{"epoch": 0}], {})

    monkeypatch.setattr(in_domain, "fit", fit)
    changed = project(finetuning={"baseline": baseline, "share": share, "epochs": 1})
    changed.make(changed.finetune())
    return caught


@pytest.mark.parametrize("baseline", ["zeros", "random", "blur", "mean"])
def test_validation_holds_every_image_intact_and_with_one_patch_deleted(project, monkeypatch, baseline):
    caught = captured_fit(project, monkeypatch, baseline)
    images, labels = caught["validation"].images, caught["validation"].labels
    intact, deleted = images.chunk(2)
    assert len(intact) == 12
    assert torch.equal(labels[:12], labels[12:])
    changed = (intact != deleted).any(1).unflatten(1, (4, 3)).unflatten(3, (4, 3)).sum((2, 4)).flatten(1)
    assert ((changed > 0).sum(1) == 1).all()
    where = (intact != deleted).any(1, keepdim=True).expand_as(deleted)
    if baseline == "zeros":
        assert deleted[where].abs().max() == 0
    if baseline == "random":
        assert -1 <= deleted[where].min() < -0.9
        assert 0.9 < deleted[where].max() < 1


@pytest.mark.parametrize(("share", "expected"), [(0.0, 0.0), (0.5, 0.5), (1.0, 1.0)])
def test_the_option_share_is_the_fraction_of_images_with_a_deleted_patch(project, monkeypatch, share, expected):
    caught = captured_fit(project, monkeypatch, share=share)
    images = caught["train"].images.repeat(20, 1, 1, 1)
    perturbed = caught["augment"](images, torch.Generator().manual_seed(0))
    lost = (perturbed != images).flatten(1).any(1).float().mean()
    assert abs(lost - expected) < 0.06


def test_a_training_out_of_memory_names_the_remedy(project, monkeypatch):
    def is_out_of_memory(*arguments, **options):
        raise torch.OutOfMemoryError("CUDA out of memory")

    again = project()
    weights(again).write_bytes(b"damaged")
    monkeypatch.setattr(in_domain, "fit", is_out_of_memory)
    with pytest.raises(HeatproofError, match=r"in the training of .*finetuned.*A smaller batch_size of the training"):
        again.make(again.finetune())

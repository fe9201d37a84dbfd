"""Finetuning without labels: the network learns its own earlier outputs."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch.nn import functional
from toy_project import Project

from heatproof.errors import HeatproofError
from heatproof.training import in_domain
from heatproof.training.loop import Examples
from heatproof.training.losses import compute_loss
from heatproof.workflow.config.schema import normalise
from heatproof.workflow.stages import _training

OWN_LABELS = {"finetuning": {"labels": "own", "epochs": 2}}


def weights(project, name="finetuned"):
    return load_file(project.folder / f"results/weights/toy/net/{name}.safetensors")


def test_own_labels_read_no_label(tmp_path, monkeypatch):
    """Other labels do not change the result, whereas with `true` they do."""
    read = _training.read_labelled

    def with_other_labels(dataset, job):
        return [Examples(examples.images, (examples.labels + 1) % 3, examples.crop) for examples in read(dataset, job)]

    for labels in ("own", "true"):
        (tmp_path / labels).mkdir()
        toy = Project(tmp_path / labels, finetuning={"labels": labels, "epochs": 2}).train()
        first = weights(toy)
        for path in (toy.folder / "results/weights/toy/net").glob("finetuned*"):
            path.unlink()
        with monkeypatch.context() as patched:
            patched.setattr(_training, "read_labelled", with_other_labels)
            toy.make(toy.finetune())
        same = all(torch.equal(first[name], value) for name, value in weights(toy).items())
        assert same == (labels == "own")


def test_the_label_is_the_output_for_the_intact_image(tmp_path, monkeypatch):
    seen = []
    fit = in_domain.fit

    def watched(network, train, validation, *rest, **more):
        if train.compute_labels is None:
            return fit(network, train, validation, *rest, **more)
        images = train.images[:6]
        before = functional.softmax(network.eval()(images), dim=1)
        seen.append((train.compute_labels(images), before.detach(), validation.labels))
        return fit(network, train, validation, *rest, **more)

    monkeypatch.setattr(in_domain, "fit", watched)
    Project(tmp_path, **OWN_LABELS).train()
    ((outputs, before, validation),) = seen
    torch.testing.assert_close(outputs, before)
    # The labels are the same for an intact image and for the same image with a deleted patch.
    first, second = validation.chunk(2)
    assert torch.equal(first, second)
    torch.testing.assert_close(first.sum(1), torch.ones(len(first)))


def test_own_labels_keep_the_weights_nearer_to_the_pretrained_ones(tmp_path):
    moved = {}
    for labels in ("own", "true"):
        (tmp_path / labels).mkdir()
        toy = Project(tmp_path / labels, finetuning={"labels": labels, "epochs": 2}).train()
        before, after = weights(toy, "pretrained"), weights(toy)
        names = [name for name, value in before.items() if value.is_floating_point() and "running" not in name]
        moved[labels] = np.sqrt(sum(float(((after[name] - before[name]) ** 2).sum()) for name in names))
    assert 0 < moved["own"] < moved["true"]


def test_losses_accept_probabilities_as_labels():
    logits = torch.tensor([[2.0, 0.0, -1.0], [0.0, 1.0, 0.5]])
    hard = torch.tensor([0, 1])
    soft = functional.one_hot(hard, 3).float()
    for name in ("cross_entropy", "binary_cross_entropy"):
        for smoothing in (0.0, 0.1):
            assert float(compute_loss(name, logits, soft, smoothing)) == pytest.approx(
                float(compute_loss(name, logits, hard, smoothing))
            )


def test_a_network_from_scratch_has_no_outputs_to_learn():
    with pytest.raises(HeatproofError, match=r"labels.* cannot be 'own'"):
        normalise({"pretraining": {"labels": "own"}})
    assert normalise({"finetuning": {"labels": "own"}})["finetuning"]["labels"] == "own"

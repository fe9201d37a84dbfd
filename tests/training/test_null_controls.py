"""Networks that have learned nothing: with initial weights, and trained on shuffled labels."""

import numpy as np
import torch

from heatproof.core.randomness import derive_seed
from heatproof.datasets.checks import open_dataset
from heatproof.models.network import build_network
from heatproof.models.weights_file import read_safetensors
from heatproof.store.reading import read_json
from heatproof.workflow.stages._training import read_labelled


def test_zero_epochs_keep_the_initial_weights(project):
    network = {"architecture": "toy_plugin:network", "mean": [0.5] * 3, "std": [0.5] * 3, "cam_layer": "features"}
    toy = project(pretraining={"epochs": 0, "seed": 7}, weights=["pretrained"], models=[{"net": network}])
    job = toy.pretrain()
    toy.make(job)
    built = build_network(job.model, 3, derive_seed(7, "initial weights")).state_dict()
    weights = read_safetensors(toy.folder / job.files["weights"], "weights")
    assert built.keys() == weights.keys()
    assert all(torch.equal(built[name], weights[name]) for name in built)
    assert len((toy.folder / job.files["history"]).read_text().splitlines()) == 2
    assert read_json(toy.folder / job.manifest)["key"]


def test_pretraining_and_finetuning_share_the_same_shuffled_labels(project):
    toy = project(pretraining={"labels": "shuffled"}, finetuning={"labels": "shuffled"})
    before, tuned = toy.pretrain(), toy.finetune()
    dataset = open_dataset(before.dataset)
    first, second = (read_labelled(dataset, job) for job in (before, tuned))
    for number, split in enumerate(("train", "validation")):
        true = dataset.splits[split].labels
        assert torch.equal(first[number].labels, second[number].labels)
        assert (first[number].labels.numpy() != true).any()
        assert np.array_equal(np.sort(first[number].labels.numpy()), np.sort(true))
    assert before.key != project().pretrain().key

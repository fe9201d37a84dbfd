"""Published weights as the start of a training: all but the head, which belongs to other classes."""

from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from heatproof.core.specs import Runtime
from heatproof.errors import HeatproofError
from heatproof.models.network import build_network, find_head, load_weights
from heatproof.models.registry import ModelSpec
from heatproof.training.loop import Trained
from heatproof.workflow.config.files import default_config, merge
from heatproof.workflow.plan.graph import Graph
from heatproof.workflow.plan.validate import make_plan
from heatproof.workflow.reconcile import Results

VGG = ModelSpec("cifar_vgg11_bn", "heatproof.models.vgg", {"width": 2})
RUNTIME = Runtime(threads=1, device="cpu")
HEAD = {"classifier.weight", "classifier.bias"}


def published(path, classes=12, width=2):
    state = build_network(replace(VGG, options={"width": width}), classes, seed=4).state_dict()
    save_file({name: value.contiguous() for name, value in state.items()}, path)
    return state


def plan_of(checkpoint, **more):
    settings = {"architecture": "cifar_vgg11_bn", "options": {"width": 2}, "transfer": True, **more}
    settings |= {"checkpoint": str(checkpoint)} if checkpoint else {}
    change = {"models": [{"m": settings}], "pretraining": {"epochs": 1, "batch_size": 512, "lr": 1e-6, "momentum": 0}}
    return make_plan(merge(default_config(), {**change, "weights": ["pretrained"], "metrics": []}))


def start_of(plan):
    """Return the spec of the job that fetches the initial weights of a training."""
    return Graph(plan).spec("fetch_start", model="m")


def pretrain_of(plan):
    """Return the spec of the training."""
    return Graph(plan).spec("pretrain", dataset="digits", model="m")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_transfer_starts_from_all_weights_but_the_head(folder):
    state = published("mine.safetensors")
    plan = plan_of("mine.safetensors")
    start_of(plan).run(RUNTIME)
    start = load_file("results/checkpoints/m.safetensors")
    assert all(torch.equal(start[name], value) for name, value in state.items())
    pretrain_of(plan).run(RUNTIME)
    trained = load_file("results/weights/digits/m/pretrained.safetensors")
    assert trained["classifier.weight"].shape == (10, 16)
    # One epoch of one step with a tiny learning rate does not change the loaded weights visibly.
    convolutions = [name for name, value in state.items() if value.ndim == 4]
    assert len(convolutions) == 8
    assert all(torch.allclose(trained[name], state[name], atol=1e-6) for name in convolutions)


def test_a_training_is_repeated_only_if_the_bytes_of_its_start_change(folder, monkeypatch):
    published("mine.safetensors")
    plan = plan_of("mine.safetensors")
    job = pretrain_of(plan)
    start_of(plan).run(RUNTIME)
    runs = []

    def fit(network, *_, **__):
        runs.append(network)
        history = [{"epoch": 0, "lr": 1.0, "train_loss": 1.0, "validation_loss": 1.0, "validation_accuracy": 0.1}]
        return Trained(network.state_dict(), history, {})

    monkeypatch.setattr("heatproof.training.loop.fit", fit)
    for expected in (1, 1):
        job.run(RUNTIME)
        assert len(runs) == expected
    graph = Graph(plan)
    start = graph.job("fetch_start", {"model": "m"})
    assert "checkpoints" in start.products[0].manifest
    assert Results(graph).is_current(start, *start.products)
    save_file({name: value + 1 for name, value in load_file("mine.safetensors").items()}, "mine.safetensors")
    assert not Results(graph).is_current(start, *start.products), "another file lies under the path"
    start_of(plan).run(RUNTIME)
    job.run(RUNTIME)
    assert len(runs) == 2


def test_the_head_is_new_even_for_the_same_number_of_classes(folder):
    state = published("w.safetensors", classes=10)
    network = build_network(VGG, 10, seed=9)
    before = network.state_dict()["classifier.weight"].clone()
    load_weights(network, "w.safetensors", skip=find_head(VGG))
    after = network.state_dict()
    assert torch.equal(after["classifier.weight"], before)
    assert torch.equal(after["features.0.weight"], state["features.0.weight"])


def test_the_head_is_the_weights_that_depend_on_the_number_of_classes():
    assert find_head(VGG) == HEAD
    timm = ModelSpec("timm_model", "heatproof.models.published", {"name": "resnet18"})
    assert find_head(timm) == {"fc.weight", "fc.bias"}
    bcos = ModelSpec("cifar_bcos_resnet20", "heatproof.models.self_explaining", {"width": 4})
    assert find_head(bcos) == {"classifier.weight"}


def same_for_all(num_classes):
    return torch.nn.Linear(3, 5)


def test_a_network_without_a_head_cannot_be_transferred():
    spec = ModelSpec(f"{__name__}:same_for_all", __name__, {})
    with pytest.raises(HeatproofError, match="builds the same network for any number of classes"):
        find_head(spec)


def test_a_wrong_shape_outside_of_the_head_is_an_error(folder):
    published("wide.safetensors", width=3)
    with pytest.raises(HeatproofError, match=r"do not fit the network \(.*features") as caught:
        start_of(plan_of("wide.safetensors")).run(RUNTIME)
    assert "\n" not in str(caught.value)
    assert not list((folder / "results/checkpoints").iterdir())


def test_weights_of_other_classes_name_the_key_to_set(folder):
    published("mine.safetensors")
    plan = plan_of("mine.safetensors", transfer=False)
    with pytest.raises(HeatproofError, match=r"except for its head.*10 classes of 'digits': set transfer: true"):
        Graph(plan).spec("fetch", dataset="digits", model="m").run(RUNTIME)
    assert (plan.fetched_models(), plan.trained(), plan.transferred_models()) == (["m"], [], [])


def test_a_transfer_needs_a_checkpoint():
    with pytest.raises(HeatproofError, match="'m' has transfer: true and no checkpoint"):
        plan_of(None)


def test_a_plan_trains_a_transferred_model_from_its_checkpoint():
    plan = plan_of("mine.safetensors", sha256="0" * 8)
    assert (plan.fetched_models(), plan.trained(), plan.transferred_models()) == ([], ["m"], ["m"])
    job = pretrain_of(plan)
    graph = Graph(plan)
    start = graph.job("fetch_start", {"model": "m"}).products[0]
    assert job.start == start.data == start_of(plan).files["weights"]
    # Remove the manifest as well: the file system may not have timestamps before it.
    assert {start.data, start.manifest} <= set(graph.job("pretrain", {"dataset": "digits", "model": "m"}).inputs)
    assert not hasattr(job, "checkpoint")
    other = plan_of("mine.safetensors", sha256="1" * 8)
    assert pretrain_of(other).key != job.key
    assert replace(other.models["m"], sha256="0" * 8) == plan.models["m"]

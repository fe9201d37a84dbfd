"""Comparison of networks before and after finetuning, from cached results."""

import shutil
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from network_responses import padded
from toy_project import Project

from heatproof.core.network import Network
from heatproof.core.normalise import normalise
from heatproof.core.perturb.channels import channel_counts, channels_of_layers
from heatproof.core.specs import layer_and_channel
from heatproof.datasets.checks import open_dataset
from heatproof.errors import HeatproofError
from heatproof.models.network import load_network
from heatproof.report.tables.similarity import COLUMNS, draw_exciting, shared_images
from heatproof.store.manifest import read_checksummed, write_checksummed
from heatproof.store.reading import read_json
from heatproof.store.zarr_store import open_store, read
from heatproof.workflow.check import check_machine
from heatproof.workflow.plan.graph import Graph
from heatproof.workflow.reconcile import Results
from heatproof.workflow.stages._compared_networks import compared_datasets

SMALL = {"architecture": "toy_plugin:network", "cam_layer": "features"}
CONFIG = {
    "models": [
        {"net": SMALL},
        {"other": {**SMALL, "pretraining": {"seed": 7}}},
        {"flat": {**SMALL, "cam_layer": None}},
    ],
    "weights": ["pretrained", "finetuned"],
    "explainers": ["saliency", "grad_cam", "random"],
    "evaluation": {"images": 10},
}


class Alike(Project):
    """A project that runs the stages behind a comparison of networks, for all models and weights."""

    def run(self):
        plan = self.plan
        self.make(self.prepare())
        for model in plan.models:
            self.make(self.job("pretrain", dataset="toy", model=model))
            self.make(self.on_network("finetune", "toy", model, "finetuned"))
            for weights in plan.weights:
                self.network(("toy", model, weights))
        self.make("similarity")
        return self

    def network(self, net):
        grid, baseline = self.plan.combinations[0]
        self.make(self.on_network("drops", *net, grid=grid, baseline=baseline, shard=0))
        self.make(self.on_network("attribute", *net, shard=0))
        self.make(self.on_network("channels", *net, shard=0))

    def table(self):
        return pd.read_csv(self.folder / "results/similarity/similarity.csv")


@pytest.fixture(scope="module")
def alike(tmp_path_factory):
    torch.set_num_threads(1)
    return Alike(tmp_path_factory.mktemp("alike"), **CONFIG).run()


def drops_of(alike, model, weights, array):
    return read(alike.folder / f"results/drops/toy/{model}/{weights}/g4_mean.zarr", array, 0, 10)[:, 0]


def test_every_pair_occurs_once(alike):
    table = alike.table()
    assert list(table.columns) == COLUMNS
    pairs = table[["pair", "model", "weights", "other_model", "other_weights"]].drop_duplicates()
    assert (pairs["pair"] == "finetuning").sum() == 3
    assert (pairs["pair"] == "unrelated").sum() == 3
    one_place = ["pair", "model", "other_model", "quantity", "explainer", "map"]
    assert not table.duplicated(one_place).any()


def test_probabilities_and_accuracy_equal_those_of_the_drops(alike):
    table = alike.table().set_index(["model", "other_model", "quantity"])
    before, after = (np.exp(drops_of(alike, "net", w, "log_probability")) for w in ("pretrained", "finetuned"))
    assert table.loc[[("net", "net", "softmax")], "value"].item() == pytest.approx(
        np.abs(after - before).mean(), rel=1e-6
    )
    ranks = [drops_of(alike, "net", weights, "target_rank") for weights in ("pretrained", "finetuned")]
    expected = (ranks[1] < 1).mean() - (ranks[0] < 1).mean()
    assert table.loc[[("net", "net", "accuracy_change")], "value"].item() == pytest.approx(expected)


def test_maps_are_compared_at_one_scale(alike):
    rows = alike.table().query("model == 'net' and other_model == 'net' and explainer == 'saliency'")
    maps = [
        read(alike.folder / f"results/maps/toy/net/{weights}/saliency.zarr", "attribution", 0, 10)[:, 0].reshape(10, -1)
        for weights in ("pretrained", "finetuned")
    ]
    scaled = [values / np.abs(values).max(1, keepdims=True) for values in maps]
    expected = np.abs(scaled[0] - scaled[1]).mean()
    value = rows.set_index("quantity").loc["maps", "value"]
    assert value == pytest.approx(expected, rel=1e-6)


def test_a_model_without_channels_is_left_out_with_its_reason(alike):
    exciting = alike.table().query("quantity == 'exciting'")
    assert set(exciting["model"]) | set(exciting["other_model"]) == {"net", "other"}
    gap = read_json(alike.folder / "results/channels/toy/flat/pretrained.0.json")["gap"]
    assert "no layer" in gap


@pytest.mark.parametrize("batch_size", [1, 3, 64])
def test_channels_do_not_depend_on_the_batch(alike, batch_size):
    spec = alike.on_network("channels", "toy", "net", "pretrained", shard=0).spec.network
    data = open_dataset(spec.dataset)
    network = load_network(spec.model, data.num_classes, alike.folder / spec.weights, torch.device("cpu"))
    images = normalise(data.images("evaluation", 0, 10), spec.model.facts)
    activations = channels_of_layers(Network.of(network), images, ["features"], batch_size)["features"]
    stored = read(alike.folder / "results/channels/toy/net/pretrained.zarr", "activation", 0, 10)
    np.testing.assert_allclose(activations, stored, rtol=1e-6, atol=1e-6)
    with torch.inference_mode():
        direct = network.features(images).amax((2, 3)).numpy()
    np.testing.assert_allclose(activations, direct, rtol=1e-6, atol=1e-6)


def test_a_layer_without_a_grid_is_not_applicable_with_the_reason(alike, tmp_path):
    spec = alike.on_network("channels", "toy", "net", "pretrained", shard=0).spec
    model = replace(spec.network.model, facts=replace(spec.network.model.facts, cam_layer="head"))
    alike.make(replace(spec, network=replace(spec.network, model=model), store=str(tmp_path / "flat")))
    assert "'head'" in read_json(tmp_path / "flat.0.json")["gap"]


class Repeating(torch.nn.Module):
    """A network that uses one ReLU after two layers with different numbers of channels, like torchvision's blocks."""

    def __init__(self, num_classes=2):
        super().__init__()
        self.first, self.second = torch.nn.Conv2d(3, 4, 3), torch.nn.Conv2d(4, 6, 3)
        self.relu, self.classifier = torch.nn.ReLU(inplace=True), torch.nn.Linear(6, num_classes)

    def forward(self, images):
        return self.classifier(self.relu(self.second(self.relu(self.first(images)))).mean((2, 3)))


@pytest.mark.parametrize("batch_size", [1, 2, 64])
def test_a_layer_that_a_pass_calls_several_times_has_no_channels(batch_size):
    network, images = Repeating().eval(), torch.rand(5, 3, 12, 12)
    layers = ["first", "relu", "second", "classifier"]
    activations = channels_of_layers(Network.of(network), images, layers, batch_size)
    assert {layer: values.shape for layer, values in activations.items()} == {"first": (5, 4), "second": (5, 6)}
    assert channel_counts(network, images, layers) == {"first": 4, "relu": 0, "second": 6, "classifier": 0}


def test_a_pass_in_parts_does_not_count_as_several_calls_of_a_layer():
    images, layers = torch.rand(4, 3, 12, 12), ["first", "relu"]
    network = padded(Repeating(), 4)
    expected = channels_of_layers(network, images, layers)
    network.batch_sizes["passes"].batch_size = 2
    activations = channels_of_layers(network, images, layers)
    assert list(activations) == list(expected) == ["first"]
    np.testing.assert_allclose(activations["first"], expected["first"], rtol=1e-6)


def test_shared_images_of_known_channels_are_counted():
    values = np.arange(12.0).reshape(6, 2)
    np.testing.assert_array_equal(shared_images(values, values, 2), [1, 1])
    np.testing.assert_array_equal(shared_images(values, -values, 3), [0, 0])
    dead = np.column_stack([values[:, 0], np.zeros(6)])
    np.testing.assert_array_equal(shared_images(values, dead, 2), [1, np.nan])


def test_a_single_model_has_no_unrelated_pair_and_no_error(tmp_path):
    alone = Alike(tmp_path, **{**CONFIG, "models": [{"net": SMALL}]}).run()
    assert set(alone.table()["pair"]) == {"finetuning"}


@pytest.mark.parametrize("change", ["nothing", "weights", "training images"])
def test_the_manifest_of_similarity_lists_the_shards_that_were_read(alike, tmp_path, monkeypatch, change):
    """A run can end after shards are computed again, so that the times of files do not show that they changed."""
    shutil.copytree(alike.folder, tmp_path / "project")
    monkeypatch.chdir(tmp_path / "project")
    job = alike.job("similarity")
    (manifest,) = (product.manifest for product in job.products)
    shard = str(alike.base("saliency").relative_to(alike.folder)) + ".0.json"
    if change == "weights":
        write_checksummed(shard, {**read_checksummed(shard), "key": "of other weights"})
    elif change == "training images":
        # Possible if maps use training images and the network is a checkpoint of the user.
        of_training = {"toy/train": [[0, 36, "of before"]]}
        write_checksummed(
            shard, {**read_checksummed(shard), "data": {**read_checksummed(shard)["data"], **of_training}}
        )
        alike.job("similarity").spec.run(alike.runtime())
    assert Results(Graph(alike.plan)).inputs_unchanged(job, manifest) == (change == "nothing")


NAMED = {"images": 8, "channels": ["features:1", "features.0", "head"]}


@pytest.fixture(scope="module")
def named(alike, tmp_path_factory):
    """The same results under a config that names channels: only results that depend on them are computed again."""
    folder = tmp_path_factory.mktemp("named") / "project"
    shutil.copytree(alike.folder, folder)
    again = Alike(folder, **CONFIG, similarity=NAMED)
    for model in again.plan.models:
        for weights in again.plan.weights:
            again.make(again.on_network("channels", "toy", model, weights, shard=0))
    again.make("similarity")
    return again


def keys(project):
    return {product.manifest: product.key.config for job in Graph(project.plan).jobs() for product in job.products}


def test_only_results_that_depend_on_channels_and_images_have_new_keys(alike):
    before = keys(alike)
    assert keys(Alike(alike.folder, **CONFIG, similarity={})) == before

    def changed(**similarity):
        after = keys(Alike(alike.folder, **CONFIG, similarity=similarity))
        assert after.keys() == before.keys()
        return {name.split("results/")[1].split("/")[0] for name in after if after[name] != before[name]}

    assert changed(images=8) == {"similarity"}
    assert changed(channels=["features:1"]) == {"channels", "similarity"}
    project, other = (
        Alike(alike.folder, **CONFIG, similarity={"channels": [f"features:{channel}"]}) for channel in (0, 1)
    )
    assert {name.rpartition("/")[2] for name, key in keys(project).items() if keys(other)[name] != key} == {
        "similarity.json"
    }


def test_named_layers_are_compared_one_by_one(named):
    rows = named.table().query("quantity == 'exciting' and pair == 'finetuning'")
    # `flat` has these layers too, but no layer for CAMs. A linear layer has no channels on a grid.
    assert set(rows["model"]) == {"net", "other", "flat"}
    assert set(rows["layer"]) == {"features", "features.0"}
    assert set(named.table().query("quantity == 'softmax'")["n"]) == {8}
    assert rows["chance"].unique() == pytest.approx([0.5])


def test_named_channels_equal_those_of_the_layer(named):
    spec = named.on_network("channels", "toy", "net", "pretrained", shard=0).spec.network
    data = open_dataset(spec.dataset)
    network = load_network(spec.model, data.num_classes, named.folder / spec.weights, torch.device("cpu"))
    images = normalise(data.images("evaluation", 0, 8), spec.model.facts)
    store = named.folder / "results/channels/toy/net/pretrained.zarr"
    stored, names = read(store, "activation", 0, 8), open_store(store).coordinates["channel"]
    with torch.inference_mode():
        expected = {"features": network.features(images), "features.0": network.features[0](images)}
    for layer, values in expected.items():
        columns = [index for index, name in enumerate(names) if name.rpartition(":")[0] == layer]
        np.testing.assert_allclose(stored[:, columns], values.amax((2, 3)).numpy(), rtol=1e-6, atol=1e-6)


def test_the_figure_has_every_named_channel_of_every_model(named, monkeypatch):
    monkeypatch.chdir(named.folder)
    spec = named.job("similarity").spec
    channels = [layer_and_channel(name) for name in spec.channels]
    figure = draw_exciting(compared_datasets(spec), channels, spec.images)
    labels = [axes.get_ylabel().split("\n") for axes in figure.axes]
    assert {tuple(label[2:]) for label in labels} == {
        (model, weights) for model in ("net", "other", "flat") for weights in ("pretrained", "finetuned")
    }
    assert [label[1] for label in labels if label[0] == "features" and label[2] == "net"] == ["channel 1"] * 2
    spread = [label for label in labels if label[0] == "features.0" and label[2:] == ["net", "pretrained"]]
    assert len(spread) == 3


@pytest.mark.parametrize(
    ("channels", "message"),
    [
        (["nowhere:1"], "a layer that no model has"),
        (["features:1000"], "take a number from 0"),
        (["features:1", "features.0:1000"], "'features.0:1000'"),
    ],
)
def test_channels_that_no_model_has_are_an_error_before_any_job(tmp_path, channels, message):
    with pytest.raises(HeatproofError, match=message):
        check_machine(Alike(tmp_path, **CONFIG, similarity={"channels": channels}).plan)


def test_channels_that_one_model_does_not_have_are_skipped(tmp_path):
    wide = {"architecture": "cifar_vgg11_bn", "options": {"width": 4}}
    models = {"models": [{"vgg": wide}, {"resnet": {"architecture": "cifar_resnet20", "options": {"width": 4}}}]}
    plan = Alike(tmp_path, **{**CONFIG, **models}, similarity={"channels": ["stages:15", "features.25:31"]}).plan
    check_machine(plan, libraries=False)


def test_a_layer_without_a_grid_is_an_error_where_the_size_of_images_is_known(tmp_path):
    models = {
        "datasets": ["digits"],
        "models": [{"resnet": {"architecture": "cifar_resnet20", "options": {"width": 4}}}],
    }
    plan = Alike(tmp_path, **{**CONFIG, **models}, similarity={"channels": ["classifier"]}).plan
    with pytest.raises(HeatproofError, match="no channels on a grid"):
        check_machine(plan)


@pytest.mark.parametrize(
    ("similarity", "message"),
    [
        ({"images": 1}, "similarity.images"),
        ({"channels": ["features:x"]}, "channels"),
        ({"channels": ["features:1", "features:1"]}, "twice"),
    ],
)
def test_networks_that_cannot_be_compared_are_refused(tmp_path, similarity, message):
    with pytest.raises(HeatproofError, match=message):
        Alike(tmp_path, **CONFIG, similarity=similarity)


def test_no_more_images_are_compared_than_are_explained(tmp_path):
    """A config merged over another one may score fewer images than the other one compares."""
    alike = Alike(tmp_path, **CONFIG, similarity={"images": 11})
    assert alike.plan.similarity_images == alike.plan.images == 10

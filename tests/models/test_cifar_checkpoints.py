"""Checkpoints of the reproduction's networks on CIFAR-100, as generated files of the same format."""

import hashlib
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from heatproof.core.specs import Runtime
from heatproof.errors import HeatproofError
from heatproof.models.network import build_network, load_network
from heatproof.models.registry import ModelSpec
from heatproof.workflow.config.files import read_config
from heatproof.workflow.estimate import synthetic
from heatproof.workflow.plan.graph import Graph
from heatproof.workflow.plan.validate import make_plan

REPOSITORY = Path(__file__).parents[2]
NAMES = ("paper", "paper_reproduction", "paper_cifar100")
CONFIG = read_config(*(REPOSITORY / f"config/{name}.yaml" for name in NAMES))
MODELS = {name: settings for entry in CONFIG["models"] for name, settings in entry.items()}
BLOCKS = {"resnet20": 3, "resnet32": 5, "resnet44": 7, "resnet56": 9}
# Channels of the convolutions in columns A, B, D and E of Simonyan & Zisserman, and "M" for a pooling.
COLUMNS = {
    "vgg11": "64 M 128 M 256 256 M 512 512 M 512 512 M",
    "vgg13": "64 64 M 128 128 M 256 256 M 512 512 M 512 512 M",
    "vgg16": "64 64 M 128 128 M 256 256 256 M 512 512 512 M 512 512 512 M",
    "vgg19": "64 64 M 128 128 M 256 256 256 256 M 512 512 512 512 M 512 512 512 512 M",
}


class PublishedNetwork:
    """A network of github.com/chenyaofo/pytorch-cifar-models, and a state dict with its names and shapes."""

    def __init__(self, name, seed=5):
        self.name, self.state, self.random = name, {}, torch.Generator().manual_seed(seed)
        self.resnet(BLOCKS[name]) if name in BLOCKS else self.vgg(COLUMNS[name].split())

    def draw(self, *shape, scale=1.0):
        return torch.randn(shape, generator=self.random) * scale

    def conv(self, name, inputs, outputs, side, bias=False):
        self.state[f"{name}.weight"] = self.draw(outputs, inputs, side, side, scale=(2 / (inputs * side * side)) ** 0.5)
        if bias:
            self.state[f"{name}.bias"] = self.draw(outputs, scale=0.1)

    def norm(self, name, channels):
        entries = {"weight": 0.8 + 0.2 * self.draw(channels), "bias": self.draw(channels, scale=0.1)}
        entries |= {"running_mean": self.draw(channels, scale=0.1), "running_var": 0.5 + self.draw(channels).abs()}
        entries["num_batches_tracked"] = torch.tensor(39200)
        self.state |= {f"{name}.{key}": value for key, value in entries.items()}

    def linear(self, name, inputs, outputs):
        self.state[f"{name}.weight"] = self.draw(outputs, inputs, scale=inputs**-0.5)
        self.state[f"{name}.bias"] = self.draw(outputs, scale=0.1)

    def resnet(self, blocks):
        self.conv("conv1", 3, 16, 3)
        self.norm("bn1", 16)
        channels = 16
        for stage, layers in enumerate((16, 32, 64), 1):
            for block in range(blocks):
                here = f"layer{stage}.{block}"
                self.conv(f"{here}.conv1", channels, layers, 3)
                self.norm(f"{here}.bn1", layers)
                self.conv(f"{here}.conv2", layers, layers, 3)
                self.norm(f"{here}.bn2", layers)
                if channels != layers:
                    self.conv(f"{here}.downsample.0", channels, layers, 1)
                    self.norm(f"{here}.downsample.1", layers)
                channels = layers
        self.linear("fc", 64, 100)

    def vgg(self, column):
        channels, position = 3, 0
        for layer in column:
            if layer != "M":
                self.conv(f"features.{position}", channels, int(layer), 3, bias=True)
                self.norm(f"features.{position + 1}", int(layer))
                channels = int(layer)
            position += 1 if layer == "M" else 3
        for position, layers in ((0, 512), (3, 512), (6, 100)):
            self.linear(f"classifier.{position}", 512, layers)

    def convolve(self, name, x, stride=1):
        weight = self.state[f"{name}.weight"]
        return functional.conv2d(x, weight, self.state.get(f"{name}.bias"), stride, weight.shape[-1] // 2)

    def normalise(self, name, x):
        held = (self.state[f"{name}.{key}"] for key in ("running_mean", "running_var", "weight", "bias"))
        return functional.batch_norm(x, *held)

    def connect(self, name, x):
        return functional.linear(x, self.state[f"{name}.weight"], self.state[f"{name}.bias"])

    def logits(self, x):
        if self.name in BLOCKS:
            x = self.normalise("bn1", self.convolve("conv1", x)).relu()
            for stage in (1, 2, 3):
                for block in range(BLOCKS[self.name]):
                    here, stride = f"layer{stage}.{block}", 2 if stage > 1 and block == 0 else 1
                    inner = self.normalise(f"{here}.bn1", self.convolve(f"{here}.conv1", x, stride)).relu()
                    inner = self.normalise(f"{here}.bn2", self.convolve(f"{here}.conv2", inner))
                    if f"{here}.downsample.0.weight" in self.state:
                        x = self.normalise(f"{here}.downsample.1", self.convolve(f"{here}.downsample.0", x, stride))
                    x = (inner + x).relu()
            return self.connect("fc", x.mean((2, 3)))
        position = 0
        for layer in COLUMNS[self.name].split():
            if layer == "M":
                x = functional.max_pool2d(x, 2)
            else:
                x = self.normalise(f"features.{position + 1}", self.convolve(f"features.{position}", x)).relu()
            position += 1 if layer == "M" else 3
        hidden = self.connect("classifier.0", x.flatten(1)).relu()
        return self.connect("classifier.6", self.connect("classifier.3", hidden).relu())


def planned(path, name, **changes):
    """Return the plan of the paper's config with one model, a local checkpoint, and noise instead of the images."""
    settings = {**MODELS[name], "checkpoint": str(path), "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
    data = {"cifar100": synthetic.noise_dataset_for("cifar100", {}, (32, 32))}
    counts = {"images": 4, "accuracy_images": 4}
    return make_plan({**CONFIG, "datasets": [data], "models": [{name: {**settings, **changes}}], "evaluation": counts})


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in ("resnet20", "vgg11") else pytest.mark.slow) for name in sorted(MODELS)],
)
def test_a_checkpoint_gives_the_logits_of_its_own_network(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    theirs, path = PublishedNetwork(name), tmp_path / "theirs.pt"
    torch.save(theirs.state, path)
    plan = planned(path, name)
    job = Graph(plan).spec(stage="fetch", dataset="cifar100", model=name)
    job.run(Runtime())
    network = load_network(plan.model_spec(name), 100, job.files["weights"], torch.device("cpu"))
    images = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        torch.testing.assert_close(network(images), theirs.logits(images), rtol=1e-4, atol=1e-4)
    # The paper's layer for CAMs (section 4): the last stage of a ResNet, the last convolution of a VGG.
    layer = dict(network.named_modules())[plan.models[name].facts.cam_layer]
    last = [layer for layer in network.modules() if isinstance(layer, torch.nn.Conv2d)][-1]
    assert (layer is last) == name.startswith("vgg")


@pytest.mark.parametrize("name", sorted(MODELS))
def test_the_config_names_the_published_file(name):
    settings = MODELS[name]
    family = "resnet" if name in BLOCKS else "vgg"
    start = f"https://github.com/chenyaofo/pytorch-cifar-models/releases/download/{family}/cifar100_{name}"
    assert settings["checkpoint"].startswith(start)
    assert settings["checkpoint"].endswith(f"-{settings['sha256']}.pt")
    assert len(settings["sha256"]) == 8
    assert settings["mean"] == [0.507, 0.4865, 0.4409]
    assert settings["std"] == [0.2673, 0.2564, 0.2761]
    # The paper's network is downloaded, so that only the finetuning is a training.
    assert CONFIG["finetuning"]["lr"] == 0.005


def test_a_vgg_with_one_linear_layer_names_the_option_for_its_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "theirs.pt"
    torch.save(PublishedNetwork("vgg11").state, path)
    with pytest.raises(HeatproofError, match="linear_layers: 3"):
        Graph(planned(path, "vgg11", options={})).spec(stage="fetch", dataset="cifar100", model="vgg11").run(Runtime())


@pytest.mark.parametrize(
    ("architecture", "first", "last"),
    [("cifar_vgg11_bn", -0.19080905616283417, -0.09490376710891724), ("cifar_vgg19_bn", -0.190809056, -0.132928818)],
)
def test_networks_of_one_linear_layer_keep_their_stored_weights(architecture, first, last):
    """Their names, and the weights drawn from a seed, are those of stored results."""
    state = build_network(ModelSpec(architecture, "heatproof.models.vgg", {"width": 4}), 10, seed=3).state_dict()
    assert [name for name in state if name.startswith("classifier")] == ["classifier.weight", "classifier.bias"]
    assert not [name for name in state if name.endswith(".bias") and state[name.replace("bias", "weight")].ndim == 4]
    assert float(state["features.0.weight"].flatten()[0]) == pytest.approx(first)
    assert float(state["classifier.weight"].flatten()[0]) == pytest.approx(last)

"""Networks of torchvision and timm: facts equal those of the libraries, and published files load."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import timm
import torch
import torchvision.models
from safetensors.torch import save_file
from torchvision.models import get_model_weights

from heatproof.core.layers import find_layer
from heatproof.core.provenance import Key
from heatproof.core.specs import DatasetSpec, Runtime
from heatproof.errors import HeatproofError
from heatproof.models.network import build_network, load_weights
from heatproof.models.published import TIMM_LAYERS, TOKENS, TORCHVISION_LAYERS, timm_facts, torchvision_facts
from heatproof.models.registry import ARCHITECTURES, ModelSpec
from heatproof.store.reading import file_digest
from heatproof.workflow.config.files import default_config, merge
from heatproof.workflow.plan.validate import make_plan
from heatproof.workflow.stages.fetch import Fetch

DOCS = Path(__file__).parents[2] / "docs" / "models.md"
# The smallest network of every family, at a size that is quick.
BUILT = [
    ("torchvision_model", "resnet18", 64),
    pytest.param("torchvision_model", "vgg11_bn", 64, marks=pytest.mark.slow),
    ("torchvision_model", "densenet121", 64),
    ("torchvision_model", "efficientnet_b0", 64),
    pytest.param("torchvision_model", "vit_b_32", 64, marks=pytest.mark.slow),
    ("timm_model", "resnet18", 64),
    ("timm_model", "densenet121", 64),
    ("timm_model", "tf_efficientnet_lite0", 64),
    ("timm_model", "inception_v4", 128),
    ("timm_model", "vit_tiny_patch16_224", 64),
]


def options_of(name, size):
    return {"name": name, "size": size} if "vit" in name else {"name": name}


def spec_of(kind, name, size=64):
    entry, options = ARCHITECTURES[kind], options_of(name, size)
    return ModelSpec(kind, entry.build.__module__, options, entry.facts_for(options))


def plain(kind, name, size=64):
    """Return the library's network without changes."""
    if kind == "timm_model":
        return timm.create_model(name, num_classes=3, **({"img_size": size} if "vit" in name else {})).eval()
    options = {"image_size": size} if "vit" in name else {}
    return torchvision.models.get_model(name, weights=None, num_classes=3, **options).eval()


@pytest.mark.parametrize("name", TIMM_LAYERS)
def test_facts_equal_those_of_timm(name):
    facts, expected = timm_facts(name=name), timm.get_pretrained_cfg(name)
    assert (facts.mean, facts.std) == (expected.mean, expected.std)
    assert facts.size == (expected.input_size[1:] if expected.fixed_input_size else None)


@pytest.mark.parametrize("name", TORCHVISION_LAYERS)
def test_facts_equal_those_of_torchvision(name):
    facts, expected = torchvision_facts(name=name), get_model_weights(name)["IMAGENET1K_V1"].transforms()
    assert (list(facts.mean), list(facts.std)) == (expected.mean, expected.std)
    assert (facts.size is not None) == (facts.cam_layer == TOKENS)
    assert facts.size in (None, tuple(expected.crop_size) * 2)


@pytest.mark.parametrize("layers", [TORCHVISION_LAYERS, TIMM_LAYERS], ids=["torchvision", "timm"])
def test_the_layer_of_a_vgg_is_the_last_activation(layers):
    for name in ("vgg13", "vgg16_bn"):
        with torch.device("meta"):
            network = torchvision.models.get_model(name, weights=None, init_weights=False)
            if layers is TIMM_LAYERS:
                network = timm.create_model(name)
        index = int(layers[name].removeprefix("features."))
        assert isinstance(network.features[index], torch.nn.ReLU)
        assert index == len(network.features) - 2


@pytest.mark.parametrize(("kind", "name", "size"), BUILT)
def test_networks_have_the_logits_of_the_library_and_a_grid_for_cams(kind, name, size):
    """The library's weights load by their own names, and hooks get activations that nothing overwrites."""
    library_network = plain(kind, name, size)
    for parameter in library_network.parameters():
        if not parameter.any():  # as the last layer of torchvision's ViT, which no gradient would pass
            torch.nn.init.normal_(parameter, generator=torch.Generator().manual_seed(0))
    network = build_network(spec_of(kind, name, size), 3).eval()
    network.load_state_dict(library_network.state_dict())
    images = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(0))
    seen, copies = [], []
    layer = find_layer(network, spec_of(kind, name, size).facts.cam_layer, "model")
    layer.register_forward_hook(lambda module, inputs, output: seen.append(output))
    layer.register_forward_hook(lambda module, inputs, output: copies.append(output.detach().clone()))
    logits = network(images)
    assert torch.allclose(logits, library_network(images), atol=1e-6 * float(logits.detach().abs().max().clamp(min=1)))
    assert seen[0].ndim == 4
    assert min(seen[0].shape[2:]) > 1
    assert torch.equal(seen[0], copies[0])
    assert torch.autograd.grad(logits[:, 0].sum(), seen[0])[0].abs().sum() > 0


def as_pth(state, path):
    torch.save(state, path)


def as_old_pth(state, path):
    torch.save(state, path, _use_new_zipfile_serialization=False)


@pytest.mark.parametrize("write", [as_pth, as_old_pth, save_file])
@pytest.mark.parametrize(
    ("kind", "name"), [("torchvision_model", "densenet121"), ("timm_model", "vit_tiny_patch16_224")]
)
def test_published_formats_are_fetched_by_the_first_digits_of_their_digest(kind, name, write, tmp_path, monkeypatch):
    # The plan would refuse these digits, because their size is not that of the network.
    monkeypatch.setattr("heatproof.workflow.stages._checkpoint.require_accuracy", lambda *arguments: None)
    monkeypatch.setattr("heatproof.workflow.stages._checkpoint.describe_accuracy", lambda *arguments: "")
    state = dict(build_plain_state(kind, name))
    if name == "densenet121":
        # Like torchvision's file: names of an older torchvision, before batches were counted.
        old = re.compile(r"(denselayer\d+\.(?:norm|conv))([12]\.)")
        state = {old.sub(r"\1.\2", key): value for key, value in state.items() if "num_batches" not in key}
        assert any("denselayer1.norm.1.weight" in key for key in state)
    path = tmp_path / "weights"
    write(state, path)
    digest = file_digest(path)
    job = Fetch(
        dataset=DatasetSpec("digits", "heatproof.datasets.digits", {}, 0, "digits"),
        model=spec_of(kind, name),
        checkpoint=path.as_uri(),
        sha256=digest[:8],
        files={"weights": str(tmp_path / "out/pretrained.safetensors"), "history": str(tmp_path / "out/history.csv")},
        manifest=str(tmp_path / "out/pretrained.json"),
        key=Key("config", "code"),
    )
    job.run(Runtime())
    assert digest in (tmp_path / "out/history.csv").read_text(), "the complete digest is stored"
    network = build_network(job.model, 10)
    load_weights(network, job.files["weights"])
    head = "classifier.weight" if name == "densenet121" else "head.weight"
    assert torch.equal(network.state_dict()[head], state[head])
    with pytest.raises(HeatproofError, match="it is another file"):
        replace(job, sha256="0" * 8).run(Runtime())


def build_plain_state(kind, name):
    if kind == "timm_model":
        return timm.create_model(name, num_classes=10, img_size=64).state_dict()
    return torchvision.models.get_model(name, weights=None, num_classes=10).state_dict()


@pytest.mark.parametrize(
    ("facts", "options", "message"),
    [
        (timm_facts, {"name": "resnet5"}, "timm has no network 'resnet5': did you mean 'resnet50'"),
        (timm_facts, {"name": "resnet50.a2_in1"}, "timm has no weights 'resnet50.a2_in1'.*'resnet50.a2_in1k'"),
        (timm_facts, {"name": "resnet50", "size": 64}, "any size: leave its option 'size' out"),
        (torchvision_facts, {"name": "resnet5"}, "torchvision has no classifier 'resnet5'.*did you mean 'resnet50'"),
        (torchvision_facts, {"name": "inception_v3"}, "no classifier 'inception_v3' with one output"),
        (torchvision_facts, {"name": "vgg16", "size": 64}, "any size: leave its option 'size' out"),
    ],
)
def test_unknown_names_are_refused_with_a_suggestion(facts, options, message):
    with pytest.raises(HeatproofError, match=message):
        facts(**options)


def test_any_other_name_is_looked_up_in_the_library():
    facts = timm_facts(name="swin_tiny_patch4_window7_224")
    assert (facts.size, facts.cam_layer) == ((224, 224), None)
    assert "name one in the model's cam_layer" in facts.cam_reason
    assert timm_facts(name="resnet50.tv_in1k").cam_layer == "layer4"
    assert torchvision_facts(name="regnet_y_400mf").cam_layer is None


def test_a_plan_has_the_facts_of_the_named_network():
    settings = {"architecture": "timm_model", "options": {"name": "inception_v4"}}
    plan = make_plan(merge(default_config(), {"models": [{"m": settings}]}))
    assert plan.model_spec("m").facts.mean == (0.5, 0.5, 0.5)
    assert plan.model_spec("m").facts.cam_layer == "features"
    with pytest.raises(HeatproofError, match="model 'm' needs the option 'name'"):
        make_plan(merge(default_config(), {"models": [{"m": {"architecture": "timm_model"}}]}))


def test_the_page_has_the_addresses_of_torchvision():
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| (https://\S+) \| `([0-9a-f]{8})` \|$", DOCS.read_text(), re.MULTILINE)
    assert len(rows) >= 15
    for name, version, url, digits in rows:
        assert get_model_weights(name)[version].url == url
        assert url.endswith(f"-{digits}.pth")

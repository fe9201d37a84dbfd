"""`heatproof init` keeps the head of a checkpoint with an output for each class, and reports what it found."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from heatproof.errors import HeatproofError
from heatproof.models.network import build_network
from heatproof.models.registry import ModelSpec
from heatproof.store.strict_yaml import read_mapping
from heatproof.workflow.check import check_config
from heatproof.workflow.commands.init import init
from heatproof.workflow.config.files import read_config
from heatproof.workflow.plan.validate import make_plan

CLASSES = ("bee", "cat", "dog", "emu", "fox")
NETWORK = """
from torch import nn

def build(num_classes):
    pooled = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return nn.Sequential(pooled, nn.Linear(4, num_classes))
"""


def write_images(folder, classes, each):
    generator = np.random.default_rng(0)
    for name in classes:
        (folder / name).mkdir(parents=True)
        for number in range(each):
            pixels = generator.integers(0, 256, (32, 32, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number}.png")


@pytest.fixture
def photos(tmp_path, monkeypatch):
    """Five classes of ten image files, in the working folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    write_images(tmp_path / "photos", CLASSES, 10)
    (tmp_path / "netofmine.py").write_text(NETWORK)
    return "photos"


SPECS = {
    "cifar_resnet20": ModelSpec("cifar_resnet20", "heatproof.models.resnet", {"width": 4}),
    "netofmine:build": ModelSpec("netofmine:build", "netofmine", {}),
    "torchvision:squeezenet1_1": ModelSpec(
        "torchvision_model", "heatproof.models.published", {"name": "squeezenet1_1"}
    ),
    "timm:test_resnet": ModelSpec("timm_model", "heatproof.models.published", {"name": "test_resnet"}),
}


def write_config_for(photos, model, outputs):
    """Save weights with a number of outputs, and return the settings that `init` writes, and its output."""
    spec = SPECS[model]
    if spec.architecture.endswith("_model"):
        pytest.importorskip(model.partition(":")[0])
    if model == "cifar_resnet20":
        spec = ModelSpec(spec.architecture, spec.module, {})
    torch.save(build_network(spec, outputs).state_dict(), "weights.pth")
    output = init(photos, model, checkpoint="weights.pth")
    (settings,) = read_mapping("mine.yaml")["models"][0].values()
    return settings, output


@pytest.mark.parametrize("model", SPECS)
def test_a_head_with_an_output_per_class_is_kept(model, photos):
    settings, output = write_config_for(photos, model, 5)
    assert settings["checkpoint"] == "weights.pth"
    assert "transfer" not in settings
    (sentence,) = [line for line in output.splitlines() if line.startswith("weights.pth")]
    assert "order of the sorted folder names (bee, cat, dog, emu, …)" in sentence
    assert "expected_accuracy" in sentence
    assert f"# {sentence}" in Path("mine.yaml").read_text().splitlines()
    plan = make_plan(read_config("mine.yaml"))
    assert plan.fetched_models() == list(plan.models), "nothing trains the network that is explained"
    assert "is sound" in check_config("mine.yaml")


@pytest.mark.parametrize(("outputs", "among"), [(10, True), (3, False), (1, False)])
@pytest.mark.parametrize("model", list(SPECS)[:2])
def test_a_head_of_another_size_is_replaced(model, outputs, among, photos):
    settings, output = write_config_for(photos, model, outputs)
    assert settings["transfer"] is True
    counted = f"{outputs} output{'s' * (outputs != 1)}"
    assert f"weights.pth has {counted}, and there are 5 classes: a new head is trained (transfer: true)" in output
    assert (f"outputs: {{bee: number, …}} and num_outputs: {outputs}" in output) == among
    assert "is sound" in check_config("mine.yaml")


@pytest.mark.parametrize(
    ("names", "options"),
    [
        (None, {}),
        (("fox", "emu", "dog", "cat", "bee"), {"outputs": dict(zip(CLASSES, (4, 3, 2, 1, 0), strict=True))}),
        (("x", *CLASSES, "y"), {"outputs": dict(zip(CLASSES, (1, 2, 3, 4, 5), strict=True))}),
    ],
    ids=["unnamed", "another order", "among more"],
)
def test_a_transformers_folder_names_its_outputs(names, options, photos):
    transformers = pytest.importorskip("transformers")
    count = len(names or CLASSES)
    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16, image_size=32, patch_size=8,
        **({"id2label": dict(enumerate(names)), "label2id": {name: index for index, name in enumerate(names)}}
           if names else {"num_labels": count}),
    )  # fmt: skip
    transformers.ViTForImageClassification(config).save_pretrained("vit")
    facts = {"image_mean": [0.4, 0.5, 0.6], "image_std": [0.2, 0.3, 0.4], "size": {"height": 32, "width": 32}}
    Path("vit/preprocessor_config.json").write_text(json.dumps(facts))
    output = init(photos, "transformers:vit", checkpoint="vit/model.safetensors")
    (dataset,) = read_mapping("mine.yaml")["datasets"][0].values()
    (settings,) = read_mapping("mine.yaml")["models"][0].values()
    assert "transfer" not in settings
    assert dataset.get("outputs") == options.get("outputs")
    assert dataset.get("num_outputs") == (count if options else None)
    expected = "and its config names the class of each output" if options else "order of the sorted folder names"
    assert expected in output
    assert "is sound" in check_config("mine.yaml")
    Path("mine.yaml").unlink()
    assert "with --checkpoint, as vit/model.safetensors." in init(photos, "transformers:vit")


@pytest.mark.parametrize(("classes", "each"), [("abc", 2), ("ab", 1), ("abc", 1)])
def test_too_few_images_is_an_error_that_names_the_folder(classes, each, photos, tmp_path):
    write_images(tmp_path / "few", classes, each)
    with pytest.raises(HeatproofError, match=r"few has \d images of \d classes, .*: add images, about ten") as caught:
        init("few", "cifar_resnet20")
    assert "evaluation.images" not in str(caught.value)
    assert not Path("mine.yaml").exists()

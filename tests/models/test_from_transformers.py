"""Image classifiers of transformers, from a folder."""

import json
from dataclasses import replace

import pytest
import torch

from heatproof.core.specs import Runtime
from heatproof.errors import HeatproofError
from heatproof.models.network import build_network, load_weights
from heatproof.workflow.config.schema import normalise
from heatproof.workflow.plan.graph import Graph
from heatproof.workflow.plan.validate import make_plan

transformers = pytest.importorskip("transformers")


@pytest.fixture
def folder(tmp_path):
    """Write a tiny network with random weights, as `save_pretrained` does."""
    torch.manual_seed(0)
    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=11, num_attention_heads=2, intermediate_size=16, image_size=32, patch_size=8,
        num_labels=10,
    )  # fmt: skip
    network = transformers.ViTForImageClassification(config).eval()
    network.save_pretrained(tmp_path / "vit")
    facts = {"image_mean": [0.4, 0.5, 0.6], "image_std": [0.2, 0.3, 0.4], "size": {"height": 32, "width": 32}}
    (tmp_path / "vit/preprocessor_config.json").write_text(json.dumps(facts))
    return tmp_path / "vit", network


def plan_of(architecture, **settings):
    return make_plan(normalise({"models": [{"mine": {"architecture": architecture, **settings}}]}))


def weights_of(plan, stage="fetch"):
    """Return the spec of the job that makes the weights."""
    return Graph(plan).spec(stage, dataset="digits", model="mine")


def test_the_published_network_is_read_with_its_preprocessing(folder, tmp_path, monkeypatch):
    path, published = folder
    monkeypatch.chdir(tmp_path)
    plan = plan_of(f"transformers:{path}", checkpoint=str(path / "model.safetensors"))
    facts = plan.models["mine"].facts
    assert (facts.mean, facts.std, facts.size) == ((0.4, 0.5, 0.6), (0.2, 0.3, 0.4), (32, 32))
    assert plan.models["mine"].design.family == "vit"
    job = weights_of(plan)
    job.run(Runtime())
    network = build_network(job.model, 10)
    load_weights(network, job.files["weights"])
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(network.eval()(images), published(images).logits)


def test_weights_of_another_folder_are_refused(folder, tmp_path):
    path, _ = folder
    elsewhere = tmp_path / "model.safetensors"
    elsewhere.write_bytes((path / "model.safetensors").read_bytes())
    job = weights_of(plan_of(f"transformers:{path}", checkpoint=str(elsewhere)))
    with pytest.raises(HeatproofError, match="is not in the folder of the model transformers:"):
        replace(job, files={**job.files, "weights": str(tmp_path / "out.safetensors")}).run(Runtime())


def test_folders_without_the_needed_files_are_refused(tmp_path):
    with pytest.raises(HeatproofError, match=r"has no config\.json that can be read .* nothing is downloaded"):
        plan_of(f"transformers:{tmp_path}")
    (tmp_path / "config.json").write_text("{}")
    for settings in ({}, {"mean": [0.1, 0.2, 0.3]}, {"std": [0.1, 0.2, 0.3]}):
        with pytest.raises(HeatproofError, match=r"has no preprocessor_config\.json.* or give mean and std"):
            plan_of(f"transformers:{tmp_path}", **settings)
    stated = plan_of(f"transformers:{tmp_path}", mean=[0.1, 0.2, 0.3], std=[0.4, 0.5, 0.6]).models["mine"].facts
    assert (stated.mean, stated.std) == ((0.1, 0.2, 0.3), (0.4, 0.5, 0.6))
    (tmp_path / "preprocessor_config.json").write_text("{}")
    with pytest.raises(HeatproofError, match="has no image_mean and image_std"):
        plan_of(f"transformers:{tmp_path}")


@pytest.mark.parametrize(("short", "library"), [("timm:resnet18", "timm"), ("torchvision:resnet18", "torchvision")])
def test_short_names_select_the_network_of_a_library(short, library):
    short, long = plan_of(short), plan_of(f"{library}_model", options={"name": "resnet18"})
    assert short.models["mine"].facts == long.models["mine"].facts
    assert weights_of(short, "pretrain").key == weights_of(long, "pretrain").key

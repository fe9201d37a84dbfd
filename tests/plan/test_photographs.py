"""The configs for photographs that are not in the repository, planned with replacements in the same layout."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from heatproof.workflow.config.files import merge, read_config
from heatproof.workflow.plan.graph import Graph
from heatproof.workflow.plan.validate import make_plan

CONFIG = Path(__file__).parents[2] / "config"
CHECKPOINTS = ("resnet20-12fca82f.th", "resnet56-4bfd9763.th")


@pytest.fixture
def photographs(tmp_path, monkeypatch):
    """Write a few images in the layout that docs/photographs.md describes."""
    folders = [f"cifar10/{part}/class{number}" for part in ("train", "test") for number in range(10)]
    folders += [f"imagenet_samples/{wnid}" for wnid in ("n01440764", "n01443537", "n01484850", "n15075141")]
    for number, folder in enumerate(folders):
        (tmp_path / "data" / folder).mkdir(parents=True)
        for column in range(3):
            pixels = np.full((32, 32, 3), 10 * number + column, dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "data" / folder / f"{number}_{column}.png")
    for name in CHECKPOINTS:
        (tmp_path / "data" / name).touch()
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("names", "stages"),
    [
        (["cifar10"], ("finetune", "curves", "baselines")),
        (["cifar10", "cifar10_short"], ("finetune", "curves", "baselines")),
        (["imagenet_samples"], ("curves",)),
        (["imagenet_samples", "imagenet_finetuned"], ("finetune", "curves")),
    ],
    ids=" ".join,
)
def test_configs_for_photographs_can_be_planned(photographs, names, stages):
    config = read_config(*(CONFIG / f"{name}.yaml" for name in names))
    images = config["evaluation"]["images"]
    assert images["drops"] > images["curves"]
    small = {"evaluation": {"images": {"drops": 4, "curves": 2}, "accuracy_images": 0}}
    plan = make_plan(merge(config, small))
    planned_stages = {job.stage for job in Graph(plan).jobs()}
    assert {"prepare", "drops", "attribute", "score", "claims", "report_page", *stages} <= planned_stages
    assert ("finetune" in planned_stages) == ("finetune" in stages)
    if names[0] == "cifar10":
        assert len(plan.explainers) >= 24
        assert len(plan.methods) >= 25
        assert plan.baselines == ["mean", "background"]


@pytest.mark.parametrize(
    ("names", "baseline"),
    [
        (["cifar10", "cifar10_short", "self_taught", "cifar10_self_taught"], "mean"),
        (["imagenet_samples", "imagenet_finetuned", "self_taught", "imagenet_self_taught"], "zeros"),
    ],
    ids=["cifar10", "imagenet_samples"],
)
def test_finetuning_without_labels_is_in_the_domain_of_the_only_drops(photographs, names, baseline):
    small = {"evaluation": {"images": {"drops": 4, "curves": 2}, "accuracy_images": 0}}
    plan = make_plan(merge(read_config(*(CONFIG / f"{name}.yaml" for name in names)), small))
    (model,) = plan.models
    scored = {weights: list(plan.metrics_of(weights, model)) for weights in plan.weights}
    assert scored == {"pretrained": ["sds"], "finetuned": ["idsds"], "taught": ["idsds"]}
    assert [plan.combinations_on(weights, model) for weights in plan.weights] == [[(4, baseline)]] * 3

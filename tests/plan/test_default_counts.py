"""Numbers of images that a config leaves open follow the data; a number that is set and too large is an error."""

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

import heatproof
from heatproof.core.dataset import Split
from heatproof.core.input_facts import InputFacts
from heatproof.core.options import DefaultCount
from heatproof.errors import HeatproofError
from heatproof.explainers.registry import EXPLAINERS
from heatproof.workflow.check import check_config
from heatproof.workflow.config.files import default_config, merge, read_config
from heatproof.workflow.plan.validate import make_plan
from heatproof.workflow.stages._explaining import Background


def photographs(folder, each, classes="ab"):
    for row, name in enumerate(classes):
        (folder / name).mkdir(parents=True)
        for number in range(each):
            Image.fromarray(np.full((16, 16, 3), 20 * row + number % 20, dtype=np.uint8)).save(
                folder / f"{name}/{number}.png"
            )
    return {"photos": {"dataset": "image_folder", "root": str(folder), "size": 16}}


class CustomDataset:
    num_classes, class_names = 2, ("a", "b")

    def __init__(self):
        names = ("train", "validation", "evaluation")
        self.splits = {name: Split(tuple(f"{name}{n}" for n in range(12)), np.arange(12) % 2) for name in names}

    def images(self, split, start, stop):
        return np.random.default_rng(start).random((stop - start, 3, 16, 16)).astype(np.float32)


def load_custom(*, seed):
    return CustomDataset()


def failing(*, seed):
    raise ValueError("said by whoever opens it")


MODEL = {"models": [{"cifar_resnet20": {"options": {"width": 2}}}]}


def plan_of(datasets, **change):
    return make_plan(merge(default_config(), {"datasets": datasets, **MODEL, **change}))


@pytest.mark.parametrize(
    ("each", "evaluation", "images", "drops"),
    [
        (10, {}, 4, 4),
        (188, {}, 64, 76),
        (10, {"accuracy_images": 3}, 4, 4),
        (10, {"images": 3}, 3, 4),
        (700, {}, 64, 256),
    ],
)
def test_default_counts_are_limited_by_the_data(each, evaluation, images, drops, tmp_path):
    plan = plan_of([photographs(tmp_path / "photos", each)], **({"evaluation": evaluation} if evaluation else {}))
    assert (plan.images, plan.drop_images) == (images, drops)


@pytest.mark.parametrize(
    "evaluation",
    [{"images": 64}, {"accuracy_images": 256}, {"images": {"drops": 5}}, {"images": 2, "accuracy_images": 5}],
)
def test_too_large_numbers_in_a_config_are_refused(evaluation, tmp_path):
    """It also applies to the default numbers, if a config states them."""
    with pytest.raises(
        HeatproofError, match=r"evaluation\.\w+ is \d+, and the evaluation split of 'photos' has 4 images"
    ):
        plan_of([photographs(tmp_path / "photos", 10)], evaluation=evaluation)


def test_the_smallest_dataset_limits_default_counts(tmp_path):
    plan = plan_of(["digits", photographs(tmp_path / "photos", 10)])
    assert (plan.images, plan.drop_images) == (4, 4)


def test_a_custom_loader_is_opened_to_count_images():
    assert plan_of([{"mine": {"dataset": "test_default_counts:load_custom"}}]).drop_images == 12
    assert plan_of([{"mine": {"dataset": "test_default_counts:failing"}}]).drop_images == 256


def test_one_image_is_too_few(tmp_path):
    with pytest.raises(HeatproofError, match=r"evaluation split of 'photos' has 1 image, and two .*: add images"):
        plan_of([photographs(tmp_path / "photos", 2, "abc")])


def test_default_counts_survive_a_config_file(tmp_path):
    (tmp_path / "c.yaml").write_text(yaml.safe_dump({"datasets": [photographs(tmp_path / "photos", 10)], **MODEL}))
    assert make_plan(read_config(tmp_path / "c.yaml")).drop_images == 4
    assert yaml.safe_load(yaml.safe_dump(default_config()))["evaluation"] == {"images": 64, "accuracy_images": 256}


def test_the_default_config_has_enough_images():
    plan = make_plan(default_config())
    assert (plan.images, plan.drop_images) == (64, 256)


NEED = [name for name, entry in EXPLAINERS.items() if "baselines" in entry.options]


@pytest.mark.parametrize("name", NEED)
def test_default_baselines_are_limited_by_the_background_images(name, tmp_path):
    torch.manual_seed(0)
    network = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(2),
        torch.nn.Flatten(),
        torch.nn.Linear(16, 3),
    ).eval()
    small = {"steps": 2, "samples": 2, "prior_steps": 2, "layer_steps": 2}
    options = {key: value for key, value in small.items() if key in EXPLAINERS[name].options}
    images = torch.randn(4, 3, 12, 12)
    methods = {"default": {"explainer": name, **options}, "given": {"explainer": name, "baselines": 7, **options}}
    with pytest.warns(UserWarning, match="'given' is left out: 7 background images are asked for and 5 given"):
        result = heatproof.explain(
            network, images, [0, 1, 2, 0], methods, background=torch.randn(5, 3, 12, 12), layer="1"
        )
    assert result["reason"].values[0] == ""
    (tmp_path / "c.yaml").write_text(
        yaml.safe_dump({"datasets": [photographs(tmp_path / "photos", 5)], **MODEL, "explainers": [{name: {}}]})
    )
    assert "is sound" in check_config(tmp_path / "c.yaml")
    (tmp_path / "d.yaml").write_text(yaml.safe_dump({"explainers": [{name: {"baselines": 99}}]}))
    with pytest.raises(HeatproofError, match=r"asks for 99 training images .* there are 7: lower its option"):
        check_config(tmp_path / "c.yaml", tmp_path / "d.yaml")


def test_a_run_uses_all_training_images_by_default():
    background = Background(CustomDataset(), InputFacts((0.5,) * 3, (0.5,) * 3), 0)
    assert len(background(DefaultCount(256))) == 12
    assert len(background(DefaultCount(8))) == 8
    with pytest.raises(HeatproofError, match="256 baselines are requested, but there are only 12 training images"):
        background(256)

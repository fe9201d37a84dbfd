"""Configs with images that are not square or do not have three channels are valid, or refused before any job starts."""

import numpy as np
import pytest
import yaml
from PIL import Image

from heatproof.errors import HeatproofError
from heatproof.models.preprocessing import _sides
from heatproof.models.published import timm_facts, torchvision_facts
from heatproof.workflow.check import check_config
from heatproof.workflow.commands.init import _fitting, init
from heatproof.workflow.config.files import read_config
from heatproof.workflow.plan.validate import make_plan

BUILD = """
from torch import nn


def build(num_classes, *, channels=3, half=False):
    network = nn.Sequential(nn.Conv2d(channels, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, num_classes))
    return network.half() if half else network
"""


@pytest.fixture
def photos(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    generator = np.random.default_rng(0)
    for name in ("cat", "dog"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(12):
            pixels = generator.integers(0, 256, (48, 64), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / name / f"{number}.png")
    (tmp_path / "nets_of_shapes.py").write_text(BUILD)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def write(size, channels, model, **more):
    dataset = {"dataset": "image_folder", "root": "photos", "size": size, "channels": channels}
    config = {"datasets": [{"d": dataset}], "models": [{"m": model}], "drops": {"grids": [4]}, **more}
    config.setdefault("explainers", ["saliency"])
    with open("mine.yaml", "w") as file:
        yaml.safe_dump(config, file)
    return "mine.yaml"


CUSTOM = "nets_of_shapes:build"


@pytest.mark.parametrize(
    ("size", "channels", "model", "message"),
    [
        ([48, 64], 3, {"architecture": "cifar_resnet20"}, None),
        ([48, 64], 1, {"architecture": "cifar_vgg11_bn", "options": {"channels": 1, "width": 4}}, None),
        ([48, 64], "all", {"architecture": "small_vit", "options": {"size": [48, 64], "channels": 1}}, None),
        ([32, 32], 3, {"architecture": "small_vit"}, None),
        (48, 1, {"architecture": CUSTOM, "options": {"channels": 1}}, None),
        (
            [48, 64],
            3,
            {"architecture": "small_vit"},
            "takes images of 32×32 pixels, and those of 'd' have 48×64: set the",
        ),
        (48, 3, {"architecture": "small_vit"}, "takes images of 32×32 pixels, and those of 'd' have 48×48"),
        ([48, 64], 3, {"architecture": "timm_model", "options": {"name": "vit_tiny_patch16_224"}}, "224×224 pixels"),
        (
            [48, 64],
            3,
            {"architecture": "torchvision_model", "options": {"name": "vit_b_32", "size": [48, 64]}},
            "square",
        ),
        (48, 1, {"architecture": "cifar_resnet20"}, "first convolution takes 3 channels, and the images have 1"),
        (
            48,
            3,
            {"architecture": "cifar_resnet20", "options": {"channels": 1}},
            "takes 1 channels, and the images have 3",
        ),
        (48, 1, {"architecture": CUSTOM}, "first convolution takes 3 channels, and the images have 1: set the option"),
        (
            48,
            1,
            {"architecture": "cifar_resnet20", "mean": [0.1, 0.2, 0.3]},
            "3 numbers as mean, and the images have 1",
        ),
        (48, 3, {"architecture": CUSTOM, "options": {"half": True}}, "parameters of float16, which small steps"),
        (48, 2, {"architecture": "cifar_resnet20"}, "'channels' of dataset 'd' must be 3 or 1 or 'all', not 2"),
    ],
)
def test_images_that_do_not_fit_the_network_are_refused(photos, size, channels, model, message):
    path = write(size, channels, model)
    if message is None:
        assert "is sound" in check_config(path)
        return
    with pytest.raises(HeatproofError, match=message):
        check_config(path)


def test_networks_are_inspected_at_the_shape_of_the_images(photos):
    model = {"architecture": "cifar_resnet20", "options": {"channels": 1, "width": 4}}
    output = check_config(write([48, 64], 1, model, explainers=["grad_cam"]))
    assert "m: layer for CAMs stages, 12×16" in output
    assert "d: 48×64 pixels: not resized, 48×64 at the centre" in output


def test_a_grid_has_to_divide_both_sides(photos):
    with pytest.raises(
        HeatproofError, match=r"grid 3 in drops does not divide the 48×64 images of 'd': rows have to divide the height"
    ):
        make_plan(read_config(write([48, 64], 3, {"architecture": "cifar_resnet20"}, drops={"grids": [3]})))


@pytest.mark.parametrize(
    ("sizes", "size"),
    [
        ([(96, 128)] * 3, (96, 128)),
        ([(480, 640)] * 3, (224, 288)),
        ([(1080, 1920)], (224, 384)),
        ([(12, 20)], (8, 16)),
        ([(100, 100)] * 2, (96, 96)),
        ([(96, 128), (128, 96)], (96, 96)),
        ([(10, 400)], (8, 8)),
    ],
)
def test_init_chooses_a_size_by_the_images(sizes, size):
    assert _fitting(sizes) == size


def test_init_writes_the_common_shape_of_the_images(photos):
    init("photos", "cifar_resnet20", "new.yaml")
    assert yaml.safe_load((photos / "new.yaml").read_text())["datasets"][0]["photographs"]["size"] == [48, 64]
    assert "images of 48×64 pixels" in (photos / "new.yaml").read_text()
    Image.new("L", (50, 50)).save(photos / "photos/cat/other.png")
    init("photos", "cifar_resnet20", "square.yaml")
    assert yaml.safe_load((photos / "square.yaml").read_text())["datasets"][0]["photographs"]["size"] == 48


def test_facts_of_libraries_have_both_sides():
    assert timm_facts(name="vit_tiny_patch16_224", size=[96, 128]).size == (96, 128)
    assert timm_facts(name="resnet18", channels=1).mean == (0.5, 0.5, 0.5)
    assert torchvision_facts(name="vit_b_16", size=[96, 96]).size == (96, 96)


@pytest.mark.parametrize(
    ("setting", "sides"),
    [
        ({"height": 96, "width": 128}, (96, 128)),
        ({"shortest_edge": 224}, (224, 224)),
        ({"height": 96}, (96, 96)),
        (224, (224, 224)),
        ({"height": 96, "width": "a"}, None),
        (None, None),
        ([96, 128], None),
    ],
)
def test_sizes_are_read_from_image_processors(setting, sides):
    assert _sides(setting) == sides

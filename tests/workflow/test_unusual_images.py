"""Runs with images that are not square, of one and of five channels, and with a network in half precision."""

import base64
import io
import json
import re

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from PIL import Image
from safetensors.torch import save_file
from snakemake_project import TABLE, Project, clone

PAGE = "results/report/index.html"
FEW = {
    "evaluation": {"images": {"drops": 6, "curves": 6}, "accuracy_images": 0},
    "explainers": ["saliency", "grad_cam", "random", "edges"],
    "pretraining": {"epochs": 2, "batch_size": 8, "lr": 0.01},
    "finetuning": {"epochs": 1, "batch_size": 8, "grid": 4},
    "drops": {"grids": [4], "baselines": ["mean"]},
    "weights": ["finetuned"],
    "scores": {"bootstrap": 20},
    "batch_size": 8,
}
HALF = """\
from torch import nn


def build(num_classes):
    layers = nn.Conv2d(1, 6, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(96, num_classes)
    return nn.Sequential(*layers).half()
"""


def photos(folder, shape, channels):
    """Write image files of two classes: a bright rectangle, or a dark one."""
    generator = np.random.default_rng(0)
    for name, level in (("bright", 120), ("dark", -60)):
        (folder / name).mkdir(parents=True)
        for number in range(16):
            pixels = generator.integers(60, 120, (channels, *shape))
            top, left = (generator.integers(0, side // 2) for side in shape)
            pixels[:, top : top + shape[0] // 3, left : left + shape[1] // 3] += level
            pixels = pixels.astype(np.uint8)
            if channels == 5:
                np.save(folder / name / f"{number}.npy", pixels)
            else:
                image = Image.fromarray(pixels[0] if channels == 1 else np.moveaxis(pixels, 0, -1))
                image.save(folder / name / f"{number}.png")


def maps_on_page(project):
    """Return the data of maps on the page, and its first image and first map as arrays."""
    page = (project.folder / PAGE).read_text(encoding="utf-8")
    (text,) = re.findall(r'<script[^>]*id="maps-data"[^>]*>(.*?)</script>', page, re.DOTALL)
    (dataset,) = json.loads(text)["datasets"]
    uris = dataset["images"][0]["uri"], dataset["cells"][0][0][0]["uri"]
    drawn = [Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2]))) for uri in uris]
    return dataset, *(np.asarray(image) for image in drawn)


def scored(project):
    table = pd.read_csv(project.folder / TABLE)
    assert {"saliency", "grad_cam", "random", "edges"} <= set(table["method"])
    assert table.loc[table["method"].isin(["grad_cam", "saliency_abs"]), "score"].notna().all()
    return table


@pytest.mark.slow
@pytest.mark.workflow
def test_images_that_are_not_square_run_with_a_config_of_init(tmp_path):
    project = Project(clone(tmp_path / "project"), {})
    photos(project.folder / "photos", (96, 128), 3)
    done = project.heatproof("init", "photos", "--model", "cifar_resnet20", "--out", "mine.yaml")
    assert done.returncode == 0, done.stderr
    config = yaml.safe_load((project.folder / "mine.yaml").read_text())
    assert config["datasets"][0]["photographs"]["size"] == [96, 128]
    assert config["drops"]["grids"] == [4]
    small = {"models": [{"net": {"architecture": "cifar_resnet20", "options": {"width": 4}}}], "metrics": ["sic"]}
    project.config = {**config, **FEW, **small}
    project.run(TABLE, PAGE)
    scored(project)
    dataset, image, first = maps_on_page(project)
    assert dataset["size"] == [128, 96]
    assert dataset["drawn"] == ""
    # Images on the page have sides of at most 96 pixels.
    assert image.shape == (72, 96, 3)
    assert first.shape == (72, 96)
    assert np.shape(dataset["networks"][0]["drops"]["values"]) == (4, 16)


@pytest.mark.slow
@pytest.mark.workflow
@pytest.mark.parametrize("channels", [1, 5])
def test_images_of_one_channel_and_of_five_run(tmp_path, channels):
    project = Project(clone(tmp_path / "project"), {})
    photos(project.folder / "photos", (24, 40), channels)
    how = {"dataset": "image_folder", "root": "photos", "size": [24, 40], "channels": 1 if channels == 1 else "all"}
    net = {"architecture": "cifar_resnet20", "options": {"width": 4, "channels": channels}}
    project.config = {
        **FEW,
        "datasets": [{"pictures": how}],
        "models": [{"net": net}],
        "metrics": ["deletion_morf", "sic"],
    }
    project.run(TABLE, PAGE, "results/scores.csv")
    scored(project)
    scores = pd.read_csv(project.folder / "results/scores.csv")
    sic = scores[scores["metric"] == "sic"]
    assert scores.loc[scores["metric"] == "deletion_morf", "score"].notna().all()
    dataset, image, _ = maps_on_page(project)
    assert image.shape == (24, 40, 3)
    np.testing.assert_array_equal(image[..., 0], image[..., 2])
    if channels == 1:
        assert sic["score"].notna().any()
        assert dataset["drawn"] == ""
        # Deleted patches have one colour, the mean.
        assert len({tuple(pixel) for pixel in image.reshape(-1, 3)}) > 9
    else:
        assert sic["score"].isna().all()
        assert set(sic["gap"]) == {"An image has 5 channels: SIC and AIC need one or three, as WebP does."}
        assert dataset["drawn"] == "drawn as the mean of 5 channels, in grey"
        assert "drawn as the mean of 5 channels, in grey" in (project.folder / "results/figures/maps.html").read_text()


@pytest.mark.slow
@pytest.mark.workflow
def test_a_network_of_half_precision_is_scored_and_not_trained(tmp_path):
    project = Project(clone(tmp_path / "project"), {})
    photos(project.folder / "photos", (24, 40), 1)
    (project.folder / "src/halves.py").write_text(HALF)
    drawn = torch.Generator().manual_seed(0)
    shapes = {"0.weight": (6, 1, 3, 3), "0.bias": (6,), "4.weight": (2, 96), "4.bias": (2,)}
    save_file(
        {name: torch.randn(shape, generator=drawn).half() for name, shape in shapes.items()},
        project.folder / "half.safetensors",
    )
    how = {"dataset": "image_folder", "root": "photos", "size": [24, 40], "channels": 1}
    net = {"architecture": "halves:build", "checkpoint": "half.safetensors", "mean": [0.5], "std": [0.5]}
    project.config = {**FEW, "datasets": [{"pictures": how}], "models": [{"net": {**net, "cam_layer": "1"}}]}
    refused = project.heatproof("check", "micro.yaml")
    assert "has parameters of float16, which small steps of a training do not change" in refused.stderr
    project.config |= {"weights": ["pretrained"]}
    project.run()
    scored(project)

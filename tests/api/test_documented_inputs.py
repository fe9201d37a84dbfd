"""The examples of docs/api.md on images and labels run unchanged."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, TensorDataset

import heatproof

PAGE = (Path(__file__).parents[2] / "docs/api.md").read_text(encoding="utf-8")


def blocks(title):
    part = re.search(rf"^## {title}.*?(?=^## )", PAGE, re.S | re.M)[0]
    blocks = re.findall(r"^```python\n(.*?)^```", part, re.S | re.M)
    assert blocks
    return blocks


@pytest.mark.filterwarnings("ignore")
def test_examples_on_inputs_run(tmp_path, monkeypatch):
    timm = pytest.importorskip("timm")
    model = timm.create_model("test_resnet", num_classes=2).eval()
    size = model.pretrained_cfg["input_size"][-1]
    images, targets = torch.randn(4, 3, size, size), torch.tensor([0, 1, 0, 1])
    generator = np.random.default_rng(0)
    for name in ("ant", "bee"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(2):
            pixels = generator.integers(0, 255, (size, size + 9, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / name / f"{number}.png")
    monkeypatch.chdir(tmp_path)
    names = {
        "heatproof": heatproof,
        "DataLoader": DataLoader,
        "methods": ["saliency"],
        "model": model,
        "timm_model": model,
        "images": images,
        "targets": targets,
        "dataset": TensorDataset(images, targets),
        "transform": timm.data.create_transform(**timm.data.resolve_data_config({}, model=model)),
    }
    names["torch"] = torch
    for code in [*blocks("Tasks and target"), *blocks("Image inputs"), *blocks("Match maps")]:
        exec(code, names)
    assert names["one"].equals(names["other"])
    assert names["part"]["score"].equals(names["one"]["score"].isel(image=[0, 1]))


def test_examples_of_checks_run():
    (code,) = blocks("Check your own explainer")
    exec(code, {"heatproof": heatproof, "torch": torch})

"""Datasets whose images are all scored, and the examples in docs/datasets.md."""

import logging
import re
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

from heatproof.core.input_facts import InputFacts
from heatproof.core.perturb.dataset_mean import dataset_options, mean_split
from heatproof.datasets.image_folder import image_folder
from heatproof.errors import HeatproofError
from heatproof.models.expected_accuracy import require_accuracy
from heatproof.models.network import build_network
from heatproof.models.registry import ModelSpec
from heatproof.workflow.check import check_config
from heatproof.workflow.config.files import default_config, merge, read_config
from heatproof.workflow.plan.graph import Graph
from heatproof.workflow.plan.validate import make_plan

PAGE = (Path(__file__).parents[2] / "docs/datasets.md").read_text(encoding="utf-8")
PRINTED = [
    text
    for text in re.findall(r"```yaml\n(.*?)```", PAGE, flags=re.DOTALL)
    if "image_folder" in text and "cifar" not in text
]
INLINE = re.findall(r"`(\{dataset: image_folder[^`]*)`", PAGE)
# The custom package of this example is not installed.
PRINTED = [re.sub(r'(?m)^  - .*"my_package.*\n', "", text) for text in PRINTED]
EXAMPLES = [yaml.safe_load(text) for text in PRINTED] + [
    {"datasets": [{"val": yaml.safe_load(text)}]} for text in INLINE
]


def save_image(path, level):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((24, 24, 3), level, dtype=np.uint8)).save(path)


def folder_of(settings, number):
    """Make the folder of a dataset in an example: two images per class, or one if all are scored."""
    root = Path(settings["root"]).expanduser()
    classes = list(settings["outputs"]) if isinstance(settings.get("outputs"), dict) else ["n01440764", "n01443537"]
    each = 1 if settings.get("evaluation") == 1 else 10
    if "labels" in settings:
        columns = settings["columns"]
        named = columns["label"] if isinstance(columns["label"], list) else [columns["label"]]
        rows = [",".join([columns.get("file", "file"), *named, columns.get("group", "group")])]
        cells = {
            "multilabel": lambda row_number: [f"{row_number % 2}", f"{int(row_number % 3 == 0)}"],
            "regression": lambda row_number: [f"{20 + 1.5 * row_number}"],
        }.get(settings.get("task"), lambda row_number: ["ab"[row_number % 2]])
        for row_number in range(20):
            save_image(root / f"p{row_number}.png", 10 * row_number)
            rows.append(",".join([f"p{row_number}", *cells(row_number), f"g{row_number // 2}"]))
        (root / settings["labels"]).write_text("\n".join(rows))
        return
    for row, name in enumerate(classes):
        for row_number in range(each):
            save_image(root / name / f"{name}{row_number}.png", 40 + 90 * row + row_number)


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "config", EXAMPLES, ids=lambda text: ", ".join(name for each in text["datasets"] for name in each)
)
def test_examples_of_the_page_run_as_printed(config, home):
    """Run the four examples with another network, because their weights are not in this repository."""
    all_settings = [settings for each in config["datasets"] for settings in each.values()]
    if any(settings.get("outputs") == "imagenet" for settings in all_settings):
        pytest.importorskip("timm")
    for number, settings in enumerate(all_settings):
        folder_of(settings, number)
    if "models" in config:
        pytest.importorskip("timm")
        assert make_plan(merge(default_config(), config)).images >= 2
        return
    fully_scored = [settings for settings in all_settings if settings.get("evaluation") == 1]
    classes = 1000 if any("outputs" in settings for settings in all_settings) else 2
    classes = 1 if any(settings.get("task") == "regression" for settings in all_settings) else classes
    spec = ModelSpec("cifar_resnet20", "heatproof.models.resnet", {"width": 4})
    torch.save(build_network(spec, classes).state_dict(), "net.pth")
    model = {"architecture": "cifar_resnet20", "options": {"width": 4}, "checkpoint": "net.pth"}
    settings = {
        "models": [{"net": model}],
        "weights": ["pretrained"],
        "explainers": ["saliency", "random", "deep_shap"],
    }
    Path("mine.yaml").write_text(
        yaml.safe_dump({**config, **settings, "report": {"all_metrics": False}, "metrics": []})
    )
    assert "is sound" in check_config("mine.yaml")
    graph = Graph(make_plan(read_config("mine.yaml")))
    for job in graph.jobs() if fully_scored else ():
        if job.stage in ("prepare", "fetch", "attribute", "attribute_reference", "drops", "score"):
            job.spec.run(graph.plan.runtime())


def test_the_page_has_examples():
    assert len(PRINTED) >= 3
    assert INLINE


@pytest.fixture
def scored(tmp_path):
    """Two classes of three images, all for evaluation."""
    for row, name in enumerate(("cat", "dog")):
        for number in range(3):
            save_image(tmp_path / name / f"{number}.png", 60 + 100 * row)
    return image_folder(seed=0, root=str(tmp_path), size=16, evaluation=1)


def test_accuracy_without_a_validation_split_is_that_of_evaluation_images(scored):
    assert not len(scored.splits["validation"])
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 16 * 16, 2))
    accuracy = require_accuracy(network, scored, InputFacts(), None, "w")
    assert (accuracy.images, accuracy.split) == (6, "evaluation")
    assert np.isfinite(accuracy.value)
    with pytest.raises(HeatproofError, match="of 6 evaluation images correctly, and 300% were expected"):
        require_accuracy(network, scored, InputFacts(), 3.0, "w")


def test_the_mean_without_training_images_is_that_of_evaluation_images(scored, caplog):
    facts = InputFacts((0.0,) * 3, (1.0,) * 3)
    with caplog.at_level(logging.INFO):
        value = dataset_options("mean", None, scored, facts)["value"]
    np.testing.assert_allclose(value, 110 / 255, atol=1e-6)
    assert mean_split(scored) == "evaluation"
    assert "mean of 6 evaluation images" in caplog.text

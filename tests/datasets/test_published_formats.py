"""The four datasets of Meta-Rank in the layouts of their unpacked archives, through the stage `prepare`."""

import numpy as np
import published_formats
import pytest

from heatproof.datasets.checks import open_dataset
from heatproof.store.manifest import require_manifest
from heatproof.workflow.config.files import merge
from heatproof.workflow.plan.graph import Graph
from heatproof.workflow.plan.validate import make_plan

CLASSES = {
    "imagenet": ("tench", "crane (n02012849)", "kit fox", "crane (n03126707)"),
    "places365": ("airfield", "apartment_building/outdoor", "zen_garden"),
    "food101": tuple(published_formats.DISHES),
    "resisc45": tuple(published_formats.PLACES),
}
# Number of training and validation images of each class.
COUNTS = {"imagenet": (4, 1), "places365": (4, 1), "food101": (8, 2), "resisc45": (3, 1)}


@pytest.mark.parametrize("name", list(published_formats.UNPACKED))
def test_prepare_reads_the_published_layout(tmp_path, monkeypatch, name):
    labels = published_formats.UNPACKED[name](tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    config = {
        "datasets": [{name: {"root": "data", "size": 64, "validation": 0.2}}],
        "models": [{"net": {"architecture": "cifar_resnet20"}}],
        "evaluation": {"images": 6},
        "explainers": ["saliency"],
        "metrics": [],
    }
    plan = make_plan(merge({}, config))
    spec = Graph(plan).spec("prepare", dataset=name)
    spec.run(plan.runtime())
    manifest = require_manifest(spec.manifest)
    recorded = manifest["splits"]["evaluation"]
    seen = dict(zip(recorded["ids"], recorded["labels"], strict=True))
    assert seen.items() <= labels.items()
    assert len(seen) == (45 if name == "resisc45" else len(labels))
    dataset = open_dataset(plan.dataset_spec(name))
    assert dataset.class_names == CLASSES[name]
    classes = len(CLASSES[name])
    sizes = tuple(len(dataset.splits[split]) for split in ("train", "validation"))
    assert sizes == tuple(classes * count for count in COUNTS[name])
    for split, listed in dataset.splits.items():
        red = 255 * dataset.images(split, 0, len(listed))[:, 0].mean((1, 2))
        # The conversion to CMYK and back changes values by a few levels.
        np.testing.assert_allclose(red, 20 * (listed.labels % 12), atol=4, err_msg=split)

"""The manifest of a dataset, and the checks before training."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from heatproof.core.dataset import Split
from heatproof.core.provenance import Key
from heatproof.core.specs import DatasetSpec, Runtime
from heatproof.datasets.checks import open_dataset
from heatproof.errors import HeatproofError
from heatproof.store.reading import read_json
from heatproof.workflow.stages import prepare as module
from heatproof.workflow.stages.prepare import Prepare

NAMES = ("train", "validation", "evaluation")


def toy(change=None):
    """Return a valid dataset after a change."""
    splits = {
        name: Split(tuple(f"{name}-{row}" for row in range(4)), np.array([0, 1, 0, 1], dtype=np.int64))
        for name in NAMES
    }
    dataset = SimpleNamespace(
        num_classes=2, class_names=("a", "b"), splits=splits, pixels=np.full((1, 3, 4, 4), 0.5, "f4")
    )
    dataset.images = lambda split, start, stop: dataset.pixels
    if change is not None:
        change(dataset)
    return dataset


def run(tmp_path, monkeypatch, change=None):
    monkeypatch.setattr(module, "open_dataset", lambda spec: toy(change))
    spec = DatasetSpec("toy", "toy", {}, 0, "toy", Key("config", "code"))
    Prepare(dataset=spec, manifest=str(tmp_path / "toy.json")).run(Runtime())
    return read_json(tmp_path / "toy.json")


def replace_split(name, ids=None, labels=None):
    def change(dataset):
        old = dataset.splits[name]
        dataset.splits[name] = Split(
            old.ids if ids is None else ids, old.labels if labels is None else np.array(labels)
        )

    return change


def pixels(array):
    return lambda dataset: setattr(dataset, "pixels", array)


BAD = {
    "no split": (lambda dataset: dataset.splits.pop("validation"), "has no validation images"),
    "empty split": (replace_split("train", (), []), "has no train images"),
    "an id twice": (replace_split("train", ("a", "b", "a", "c")), "an image id more than once in train"),
    "an id in two splits": (
        replace_split("evaluation", ("train-0", "b", "c", "d")),
        "in evaluation or in another split",
    ),
    "fewer labels than images": (replace_split("train", labels=[0, 1]), "has 4 image ids and 2 labels"),
    "a class too many": (
        replace_split("evaluation", labels=[0, 1, 2, 1]),
        "A label of evaluation in 'toy' lies outside 0 to 1",
    ),
    "a negative label": (replace_split("train", labels=[0, 1, -1, 1]), "A label of train"),
    "grey levels": (pixels(np.full((1, 3, 4, 4), 255, np.uint8)), "is uint8 of shape"),
    "float64": (pixels(np.zeros((1, 3, 4, 4))), "is float64"),
    "channels last": (pixels(np.zeros((1, 8, 8, 3), "f4")), "looks like channels last"),
    "no channel": (pixels(np.zeros((1, 4, 4), "f4")), "images must be float32"),
    "0 to 255": (pixels(np.full((1, 3, 4, 4), 200, "f4")), "has values from 200 to 200"),
    "normalised": (pixels(np.full((1, 3, 4, 4), -1.5, "f4")), "before any normalisation"),
    "NaN": (pixels(np.full((1, 3, 4, 4), np.nan, "f4")), "they must lie in"),
}


def test_a_manifest_has_keys_classes_and_splits(tmp_path, monkeypatch):
    manifest = run(tmp_path, monkeypatch)
    assert (manifest["config"], manifest["code"]) == ("config", "code")
    assert manifest["class_names"] == ["a", "b"]
    assert manifest["splits"]["evaluation"] == {
        "ids": [f"evaluation-{row}" for row in range(4)],
        "labels": [0, 1, 0, 1],
    }


@pytest.mark.parametrize("what", BAD)
def test_invalid_datasets_are_refused(tmp_path, monkeypatch, what):
    change, message = BAD[what]
    with pytest.raises(HeatproofError, match=message):
        run(tmp_path, monkeypatch, change)
    assert not (tmp_path / "toy.json").exists()


def test_a_dataset_can_be_opened_by_name_and_by_reference():
    spec = DatasetSpec("digits", "heatproof.datasets.digits", {"evaluation": 0.1}, seed=2)
    named = open_dataset(spec)
    referred = open_dataset(replace(spec, kind="heatproof.datasets.digits:digits"))
    assert named.splits["evaluation"].ids == referred.splits["evaluation"].ids
    assert len(named.splits["evaluation"]) < 200

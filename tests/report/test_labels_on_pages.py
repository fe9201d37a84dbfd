"""Texts of pages and claims on networks with several labels, numbers and callable targets."""

import numpy as np
import pandas as pd
import pytest

from heatproof.claims.evidence import Evidence
from heatproof.claims.registry import CLAIMS, Untestable
from heatproof.core.provenance import Key
from heatproof.core.specs import DatasetSpec
from heatproof.datasets.checks import open_dataset
from heatproof.datasets.rows import unwrap_rows
from heatproof.errors import HeatproofError
from heatproof.report.figures.networks import best_over_accuracy, draw_over_accuracy
from heatproof.report.figures.pictures import label_of
from heatproof.store.rows import ScoredRows, scored_rows
from heatproof.workflow.stages._stored_scores import select_images

FACTS = {
    "task": "multilabel",
    "class_names": ["sun", "rain"],
    "splits": {
        "evaluation": {
            "ids": ["a#sun", "a#rain", "b#rain"],
            "labels": [0, 1, 1],
            "pictures": ["a", "a", "b"],
            "given": [[1, 1], [1, 1], [-1, 1]],
        }
    },
}


def test_rows_have_their_image_and_target():
    rows = scored_rows(FACTS, "label", 3)
    assert rows.target_names(rows.targets).tolist() == ["sun", "rain", "rain"]
    assert rows.first_rows.tolist() == [0, 2]
    np.testing.assert_allclose(rows.mean_by_image(np.array([1.0, 3.0, 5.0])), [2.0, 5.0])
    assert not rows.has_classes
    assert scored_rows(FACTS, "own:number", 3).task == "callable"
    assert scored_rows(FACTS, "own:number", 3).target_names(rows.targets).tolist() == [""] * 3


def test_images_keep_their_order():
    rows = ScoredRows("multilabel", ["x", "y"], list("abcd"), np.zeros(4, int), ["z", "a", "z", "m"], np.zeros(4))
    assert rows.first_rows.tolist() == [0, 1, 3]
    np.testing.assert_allclose(rows.mean_by_image(np.array([1.0, 2.0, 3.0, 4.0])), [2.0, 2.0, 4.0])


@pytest.mark.parametrize("how", ["only_correct", "balanced"])
def test_a_regression_has_neither_right_outputs_nor_classes(how):
    choice = {"only_correct": False, "balanced": False}
    assert select_images(np.zeros(3, int), None, **choice).all()
    with pytest.raises(HeatproofError, match=f"evaluation.{how}` needs classes"):
        select_images(np.zeros(3, int), None, **{**choice, how: True})


def rows_of(task, rows="label", **options):
    settings = {"task": task, **options}
    spec = DatasetSpec(
        "task_examples:dataset", "task_examples", settings, 3, "mine", Key("config", "code"), "", task, rows
    )
    return open_dataset(spec)


@pytest.mark.parametrize(
    ("task", "rows", "names"),
    [("regression", "label", 1), ("regression", "label", 2), ("multilabel", "label", 3), ("regression", "distinct", 2)],
)
def test_labels_of_images_name_their_class_or_number(task, rows, names):
    dataset = rows_of(task, rows, numbers=names)
    labels = unwrap_rows(dataset).splits["evaluation"].labels
    evaluation = dataset.splits["evaluation"]
    for number, (image, target) in enumerate(zip(dataset.image_numbers, evaluation.labels, strict=True)):
        name = dataset.class_names[target]
        if (task, rows) != ("regression", "label"):
            assert label_of(dataset, number) == name
        elif names == 1:
            assert label_of(dataset, number) == f"{labels[image]:.4g}"
        else:
            assert label_of(dataset, number) == f"{name}: {labels[image, target]:.4g}"


def test_the_label_of_an_image_with_one_class_has_number_and_name():
    assert [label_of(rows_of("multiclass"), number) for number in (0, 1)] == ["0, kind 0", "1, kind 1"]


def accuracy(task):
    row = {"dataset": "d", "model": "m", "weights": "finetuned", "grid": 4, "baseline": "zeros", "in_domain": True}
    of = {"multilabel": {"auroc": 0.9, "label": ""}, "regression": {"r2": 0.5}, "callable": {}}[task]
    return pd.DataFrame(
        [{**row, "weights": name, **of, "task": task, "n_images": 9} for name in ("pretrained", "finetuned")]
    )


TABLE = pd.DataFrame(
    [{"dataset": "d", "model": "m", "weights": "finetuned", "method": "a", "metric": "idsds", "score": 0.5}]
)


@pytest.mark.parametrize("task", ["multilabel", "regression", "callable"])
def test_figures_of_accuracy_exclude_other_tasks(task):
    accuracies = accuracy(task)
    assert best_over_accuracy(TABLE, accuracies, []).empty
    draw_over_accuracy(TABLE, accuracies, [])
    evidence = Evidence.__new__(Evidence)
    evidence.accuracy = accuracies
    evidence.cases = []
    speaking = ("accuracy_trades_off", "finetuning_keeps_accuracy", "finetuning_raises_worst_patch_accuracy")
    for name in speaking:
        with pytest.raises(Untestable, match="no network classifies"):
            CLAIMS[name].test(evidence)

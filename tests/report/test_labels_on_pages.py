"""Texts of pages and claims on networks with several labels, numbers and callable targets."""

import numpy as np
import pandas as pd
import pytest

from heatproof.claims.evidence import Evidence
from heatproof.claims.registry import CLAIMS, Untestable
from heatproof.data.registry import Split
from heatproof.errors import HeatproofError
from heatproof.jobs.score import select_images
from heatproof.report.figures.networks import best_over_accuracy, draw_over_accuracy
from heatproof.report.figures.pictures import label_of
from heatproof.stores.rows import ScoredRows, scored_rows

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


class Numbers:
    class_names = ("age",)
    targets = None
    given = np.array([41.25, 7.0])

    def __init__(self, names=("age",), labels=(0, 0)):
        self.class_names, self.splits = names, {"evaluation": Split(("a", "b"), np.array(labels))}


class Functions(Numbers):
    targets = np.array([3, 5])


def test_labels_of_images_name_their_class_or_number():
    assert label_of(Numbers(), 0) == "41.25"
    assert label_of(Numbers(("age", "height"), (1, 0)), 0) == "height: 41.25"
    assert label_of(Functions(("cat", "dog"), (1, 0)), 0) == "dog"


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
    known = accuracy(task)
    assert best_over_accuracy(TABLE, known, []).empty
    draw_over_accuracy(TABLE, known, [])
    evidence = Evidence.__new__(Evidence)
    evidence.accuracy = known
    evidence.cases = []
    speaking = ("accuracy_trades_off", "finetuning_keeps_accuracy", "finetuning_raises_worst_patch_accuracy")
    for name in speaking:
        with pytest.raises(Untestable, match="no network classifies"):
            CLAIMS[name].test(evidence)

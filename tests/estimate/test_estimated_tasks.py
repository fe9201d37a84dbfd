"""For every task, passes and training steps are timed with the outputs and the loss of a run."""

import pytest
from toy_project import BASE

from heatproof.store.writing import write_text
from heatproof.workflow.config.files import merge
from heatproof.workflow.estimate.estimate import plan_of
from heatproof.workflow.estimate.measure import Bench
from heatproof.workflow.plan.validate import make_plan

CASES = {
    **{task: (task, "label", "linear") for task in ("binary", "multiclass", "multilabel", "regression")},
    "mask": ("multiclass", "task_examples:whole_mask", "masks"),
}


@pytest.mark.parametrize("case", CASES)
def test_trainings_and_passes_are_timed(tmp_path, case):
    task, target, network = CASES[case]
    model = {"net": {"architecture": f"task_examples:{network}", "mean": [0.5] * 3, "std": [0.5] * 3}}
    datasets = [{"toy": {"dataset": "task_examples:dataset", "task": task}}]
    change = {"pretraining": {"epochs": 0}, "evaluation": {"images": 6}, "datasets": datasets, "target": target}
    plan = make_plan(merge(BASE, merge(change, {"models": [model]})))
    bench = Bench(plan, tmp_path, 2, print)
    assert bench.training("toy", "net", "finetuned").train > 0
    assert bench.network("toy", "net").gradient > 0


def test_a_stand_in_has_the_task_of_the_dataset(tmp_path):
    path = tmp_path / "config.yaml"
    write_text(path, "datasets:\n  - fashion_mnist: {root: /nowhere, task: binary}\nevaluation: {images: 4}\n")
    plan, missing = plan_of([path], "cpu")
    assert missing == ["fashion_mnist"]
    assert plan.datasets["fashion_mnist"]["task"] == "binary"
    write_text(path, "datasets:\n  - digits: {task: multiclass}\nevaluation: {images: 4}\n")
    assert plan_of([path], "cpu")[1] == []

"""Tasks and targets in a config: the plan that follows from them, and errors for invalid ones."""

import sys

import pytest
from toy_project import BASE

from heatproof.core import provenance
from heatproof.core.tasks import LOSSES
from heatproof.errors import HeatproofError
from heatproof.workflow.check import check_config
from heatproof.workflow.config.files import merge
from heatproof.workflow.plan.graph import Graph
from heatproof.workflow.plan.validate import make_plan
from heatproof.workflow.trial import run_trial

FUNCTION = "task_examples:margin"


def plan_of(task=None, dataset="task_examples:dataset", **change):
    settings = {"dataset": dataset, **({"task": task} if task else {})}
    model = {"net": {"architecture": "task_examples:linear", "mean": [0.5] * 3, "std": [0.5] * 3}}
    base = {"datasets": [{"toy": settings}], "models": [model], "explainers": ["saliency"], "evaluation": {"images": 6}}
    return make_plan(merge(BASE, merge(base, change)))


@pytest.mark.parametrize(
    ("task", "target", "rows"),
    [
        ("binary", "label", "label"),
        ("multiclass", 1, "label"),
        ("multilabel", "label", "label"),
        ("multilabel", 1, "picture"),
        ("multilabel", "predicted", "picture"),
        ("regression", 0, "picture"),
        ("multilabel", FUNCTION, "distinct"),
        ("multiclass", FUNCTION, "distinct"),
    ],
)
def test_rows_follow_the_task_and_the_target(task, target, rows):
    plan = plan_of(task, target=target)
    assert (plan.dataset_spec("toy").task, plan.dataset_spec("toy").rows) == (task, rows)
    # The loader takes the task as an option.
    assert plan.dataset_spec("toy").options == {"task": task}
    assert plan.task_of("toy") == ("callable" if target == FUNCTION else task)


def test_the_default_task_is_that_of_the_loader():
    assert plan_of().datasets["toy"]["task"] == "multiclass"
    assert plan_of(dataset="task_examples:declares_its_task").datasets["toy"]["task"] == "multilabel"
    assert plan_of("multiclass", dataset="task_examples:declares_its_task").datasets["toy"]["task"] == "multiclass"


def test_a_dataset_of_another_task_is_refused_before_any_job():
    with pytest.raises(HeatproofError, match="says that its task is multilabel, and the config has multiclass: write"):
        run_trial(plan_of(dataset="task_examples:undecided"))
    (line,) = run_trial(plan_of("multilabel", dataset="task_examples:undecided")).warnings
    assert line.startswith("toy: 12 evaluation images are")


@pytest.mark.parametrize("task", ["binary", "multiclass", "multilabel", "regression"])
def test_losses_are_those_of_the_task(task):
    graph = Graph(plan_of(task))
    for spec in (graph.spec("pretrain", dataset="toy", model="net"), finetune(graph)):
        assert spec.training.loss == LOSSES[task][0]
        assert spec.training.labels == "true"
        assert not spec.ignores_labels


def finetune(graph):
    return graph.spec("finetune", dataset="toy", model="net", weights="finetuned")


def test_a_callable_target_is_finetuned_on_outputs_of_the_network():
    graph = Graph(plan_of("multiclass", target=FUNCTION))
    assert graph.spec("pretrain", dataset="toy", model="net").training.loss == "cross_entropy"
    spec = finetune(graph)
    assert (spec.training.labels, spec.training.loss, spec.ignores_labels) == ("own", "squared_error", True)
    spec = finetune(Graph(plan_of("multiclass", target=FUNCTION, finetuning={"labels": "true"})))
    assert (spec.training.labels, spec.training.loss, spec.ignores_labels) == ("true", "cross_entropy", False)
    spec = finetune(Graph(plan_of("multilabel", finetuning={"labels": "own"})))
    assert (spec.training.labels, spec.training.loss, spec.ignores_labels) == ("own", "binary_cross_entropy", False)


NEEDS_CLASSES = {
    "only_correct": {"evaluation": {"only_correct": True}},
    "balanced": {"evaluation": {"balanced": True}},
    "output is probability": {"attribution": {"output": "probability"}},
    "outputs is": {"drops": {"outputs": ["logit", "probability"]}},
    "expected_accuracy": {
        "models": [
            {
                "net": {
                    "architecture": "task_examples:linear",
                    "mean": [0.5] * 3,
                    "std": [0.5] * 3,
                    "checkpoint": "w.pt",
                    "expected_accuracy": 0.9,
                }
            }
        ]
    },
}


@pytest.mark.parametrize("key", NEEDS_CLASSES)
def test_settings_that_need_classes_are_refused_for_numbers(key):
    for task, target in (("regression", "label"), ("multiclass", FUNCTION)):
        with pytest.raises(HeatproofError, match=rf"{key}.*, which needs classes, .* gives a number alone.*: leave it"):
            plan_of(task, target=target, **NEEDS_CLASSES[key])
    assert plan_of("multilabel", **NEEDS_CLASSES[key])


def test_the_predicted_class_of_numbers_is_refused():
    with pytest.raises(HeatproofError, match="target is predicted, which needs classes"):
        plan_of("regression", target="predicted")


REFUSED = {
    "no task": ("classes", {}, "The task of the dataset 'toy' is 'classes': "),
    "a loss of classes for numbers": (
        "regression",
        {"finetuning": {"loss": "cross_entropy"}},
        "finetuned weights of 'net' are trained with loss: cross_entropy on 'toy', and what is learnt is a regression",
    ),
    "a loss of exclusive classes for labels": (
        "multilabel",
        {"pretraining": {"loss": "cross_entropy"}},
        "leave loss out, or set it to binary_cross_entropy",
    ),
    "a loss of numbers for classes": (
        "binary",
        {"pretraining": {"loss": "squared_error"}},
        "leave loss out, or set it",
    ),
    "smoothed numbers": ("regression", {"pretraining": {"label_smoothing": 0.1}}, "with label_smoothing on 'toy'"),
    "no target": (
        "multiclass",
        {"target": "labels"},
        "'target' in the config must be `label`, `predicted`, the number",
    ),
    "no module": ("multiclass", {"target": "nowhere_at_all:f"}, "The target 'nowhere_at_all:f' cannot be imported"),
    "no function": ("multiclass", {"target": "task_examples:nothing"}, "The target 'task_examples:nothing'"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_settings_that_contradict_the_task_are_refused_by_name(what):
    task, change, message = REFUSED[what]
    with pytest.raises(HeatproofError) as refused:
        plan_of(task, **change)
    assert message in str(refused.value)


METRICS = [{"rise_deletion": {"steps": 4}}, {"by_logit": {"metric": "rise_deletion", "steps": 4, "output": "logit"}}]


@pytest.mark.parametrize(
    ("task", "target", "scored"),
    [
        ("multiclass", "label", ["rise_deletion", "by_logit"]),
        ("multilabel", "label", ["rise_deletion", "by_logit"]),
        ("regression", "label", ["by_logit"]),
        ("multilabel", FUNCTION, ["by_logit"]),
    ],
)
def test_no_response_is_computed_for_an_inapplicable_metric(task, target, scored):
    plan = plan_of(task, target=target, metrics=[METRICS[0]], weights=["pretrained"])
    graph = Graph(plan)
    applies = "rise_deletion" in scored
    assert any(job.stage == "curves" for job in graph.jobs()) == applies
    spec = graph.spec("score", dataset="toy", model="net", weights="pretrained", metric="rise_deletion")
    assert bool(spec.responses) == applies
    both = Graph(plan_of(task, target=target, metrics=METRICS, weights=["pretrained"]))
    for metric in ("rise_deletion", "by_logit"):
        spec = both.spec("score", dataset="toy", model="net", weights="pretrained", metric=metric)
        assert bool(spec.responses) == (metric in scored)


def test_the_same_networks_are_scored_for_any_target():
    def keys(**change):
        graph = Graph(plan_of("multilabel", finetuning={"labels": "true"}, **change))
        return [graph.spec("pretrain", dataset="toy", model="net").key, finetune(graph).key]

    assert keys() == keys(target=1) == keys(target=FUNCTION)


def test_the_code_of_a_target_function_is_part_of_keys(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    module = tmp_path / "asked_of_it.py"

    def keys(code):
        module.write_text(f"def total(output, labels):\n    return {code}\n")
        sys.modules.pop("asked_of_it", None)
        for cached in (provenance.read_source, provenance._digest_of, provenance._code_of):
            cached.cache_clear()
        graph = Graph(plan_of("multiclass", target="asked_of_it:total"))
        return {job.stage: job.spec.key for job in graph.jobs() if job.stage in ("finetune", "drops")} | {
            "attribute": next(job for job in graph.jobs() if job.stage == "attribute").products[0].key
        }

    before, same, after = keys("output.sum(1)"), keys("output.sum(1)  # all"), keys("output.mean(1)")
    assert before == same
    assert {stage for stage in before if before[stage] != after[stage]} == {"drops", "attribute"}


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("no_number", "returned torch.float32 (3, 3) for a batch of 3: return a floating-point tensor (3,)"),
        ("whole_mask", "fails on the model's output (IndexError"),
    ],
)
def test_a_target_function_is_tried_before_any_job(function, message):
    with pytest.raises(HeatproofError) as refused:
        run_trial(plan_of("multiclass", target=f"task_examples:{function}"))
    assert f"the target function '{function}' {message}" in str(refused.value)


@pytest.mark.parametrize(
    ("task", "dataset", "target", "count"),
    [
        ("binary", "task_examples:dataset", 2, 2),
        ("multiclass", "task_examples:dataset", 3, 3),
        ("multilabel", "task_examples:dataset", 7, 3),
        ("regression", "task_examples:dataset", 1, 1),
        (None, "digits", 10, 10),
    ],
)
def test_a_missing_target_is_refused_before_any_job(task, dataset, target, count):
    with pytest.raises(
        HeatproofError, match=f"run is {target}, and the dataset has {count} classes, labels or numbers"
    ):
        run_trial(plan_of(task, dataset=dataset, target=target))


def test_check_prints_the_targets(tmp_path):
    import yaml

    config = {
        "datasets": [{"toy": {"dataset": "task_examples:dataset", "task": "multilabel"}}],
        "models": [{"net": {"architecture": "task_examples:linear", "mean": [0.5] * 3, "std": [0.5] * 3}}],
        "evaluation": {"images": 6},
    }
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(config))
    output = check_config(path)
    assert "toy: multilabel, each label of an image is explained" in output
    assert "toy: 12 evaluation images are" in output
    path.write_text(yaml.safe_dump({**config, "target": "task_examples:all_numbers"}))
    assert "toy: multilabel, of which task_examples:all_numbers is explained" in check_config(path)

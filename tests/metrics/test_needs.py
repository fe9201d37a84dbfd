"""The output that each metric reads, and the reasons why a metric does not apply to a task."""

import numpy as np
import pytest

from heatproof.core.tasks import CALLABLE, NEEDS, TASKS, task_provides
from heatproof.errors import HeatproofError
from heatproof.metrics.registry import METRICS, metric, outputs_of

DECLARED = {"sic": "probability", "aic": "decision", "sensitivity_max": "number"}
OF_OUTPUT = {"logit": "number", "probability": "probability", "accuracy": "decision"}


@pytest.mark.parametrize("output", OF_OUTPUT)
@pytest.mark.parametrize("name", sorted(METRICS))
def test_needs_are_declared_or_follow_from_the_output(name, output):
    entry = METRICS[name]
    if "output" not in entry.options:
        assert entry.needs() == DECLARED.get(name, entry.declared_needs) in NEEDS
    elif output in outputs_of(entry):
        expected = OF_OUTPUT[output]
        if name == "soundness" and output == "logit":
            expected = "probability"
        assert entry.needs({"output": output}) == expected


@pytest.mark.parametrize("task", [*TASKS, CALLABLE])
@pytest.mark.parametrize("name", sorted(METRICS))
def test_every_metric_applies_or_its_reason_names_the_setting(name, task):
    entry = METRICS[name]
    reason = entry.unsupported_reason(task, {})
    assert (reason is None) == task_provides(task, entry.needs())
    by_logit = "output" in entry.options and task_provides(task, entry.needs({"output": "logit"}))
    assert reason is None or ("set `output: logit`" in reason) == by_logit


def test_scaled_curves_need_a_probability():
    # Dividing by a negative gain reverses the curve, and a regression can be below its baseline.
    for name in ("mas_insertion", "mas_deletion", "mas_difference"):
        assert METRICS[name].needs({"output": "logit"}) == "number"
        assert METRICS[name].needs({"output": "logit", "inverted": "scaled"}) == "probability"
    assert METRICS["rise_deletion"].needs({"output": "logit", "inverted": "scaled"}) == "number"
    assert METRICS["rise_deletion"].needs({"output": "logit", "inverted": "scaled", "monotone": True}) == "probability"


@pytest.mark.parametrize("needs", [None, "label", 3])
def test_a_metric_that_does_not_declare_its_needs_is_refused(needs):
    def of_curve(deletion):
        return np.zeros(1), np.ones(1, bool), {}

    with pytest.raises(HeatproofError, match="does not say what it reads of the network"):
        metric("toy", higher_is_better=True, range=(0, 1), source="here", sequences=lambda *, steps=4: {}, needs=needs)(
            of_curve
        )


def test_an_unknown_output_is_refused():
    with pytest.raises(HeatproofError, match="output is 'softmax'"):
        METRICS["ids"].needs({"output": "softmax"})

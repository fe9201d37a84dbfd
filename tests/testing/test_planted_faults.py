"""The rules detect every planted fault, and accept sound functions."""

import re
from dataclasses import replace
from pathlib import Path

import faults_to_find
import numpy as np
import pytest
import torch

import heatproof
from heatproof.errors import HeatproofError
from heatproof.explainers.registry import EXPLAINERS, explainer
from heatproof.metrics.registry import METRICS, metric
from heatproof.metrics.responses.base import KINDS
from heatproof.metrics.responses.patches import Patches
from heatproof.testing import check_explainer, check_metric, explainer_checks, metric_checks
from heatproof.testing._side_effects import restored_process

CONTRIBUTING = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text(encoding="utf-8")
FACTS = {"higher_is_better": True, "range": (-np.inf, 1e5), "source": "here"}


@pytest.fixture(autouse=True)
def restored(monkeypatch, tmp_path):
    """Undo the changes of planted faults to the process, and the registrations of tests."""
    explainers, metrics, kinds = dict(EXPLAINERS), dict(METRICS), dict(KINDS)
    with restored_process():
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("HOME", str(tmp_path))
        yield
    for table, original in ((EXPLAINERS, explainers), (METRICS, metrics), (KINDS, kinds)):
        for name in set(table) - set(original):
            del table[name]


def cases(table):
    return [
        pytest.param(rule, fault, id=f"{rule}-{_name(fault)}") for rule, faults in table.items() for fault in faults
    ]


def _name(fault):
    return re.sub(r"\W", "", fault.__name__)


def broken(checks, rule):
    # Changes that it left during one rule must not hide it from the next.
    assert checks[0].outcome
    (check,) = [check_of_rule for check_of_rule in checks if check_of_rule.name == rule]
    assert check.outcome.state == "failed"
    with pytest.raises(AssertionError, match=rule):
        check()
    # The message has the observation and the remedy.
    assert len(check.outcome.text.split(": ")) >= 3


@pytest.mark.parametrize(("rule", "fault"), cases(faults_to_find.OF_FUNCTIONS))
def test_a_fault_of_a_function_is_found(rule, fault):
    function = fault() if isinstance(fault, type) or fault.__name__ == "<lambda>" else fault
    broken(explainer_checks(function), rule)


@pytest.mark.parametrize(("rule", "fault"), cases(faults_to_find.OF_EXPLAINED))
def test_a_fault_of_an_explainer_is_found(rule, fault):
    explainer(fault.__name__)(fault)
    broken(explainer_checks(fault.__name__), rule)


@pytest.mark.parametrize(("signed", "function"), [(True, faults_to_find.size_of), (False, faults_to_find.gradient)])
def test_a_wrongly_announced_sign_is_found(signed, function):
    def planted(context):
        maps = function(context) if signed else function(context.output, context.images, context.targets)
        return {"planted": maps}

    explainer("planted", signed=signed)(planted)
    broken(explainer_checks(planted), "has_its_announced_sign")


@pytest.mark.parametrize(("rule", "fault"), cases(faults_to_find.OF_METRICS))
def test_a_fault_of_a_metric_is_found(rule, fault):
    function = fault() if isinstance(fault, type) else fault
    metric("planted", **FACTS)(function)
    broken(metric_checks("planted"), rule)


def _hooks(network):
    network[0].register_forward_hook(lambda module, inputs, output: None)


def _weights(network):
    with torch.inference_mode(False), torch.no_grad():
        network[0].weight.mul_(1.01)


def _training(network):
    network.train()


@pytest.mark.parametrize("fault", [_hooks, _weights, _training])
def test_a_fault_of_a_response_is_found(fault):
    class Faulty(Patches):
        kind = f"odd{fault.__name__}"

        def run(self, network_run, batch, method_maps):
            arrays = super().run(network_run, batch, method_maps)
            fault(network_run.network)
            return arrays

    metric("planted", **FACTS, reads=Faulty)(faults_to_find.first_patch)
    broken(metric_checks("planted"), "leaves_the_network")


def test_a_response_that_changes_images_or_exceeds_the_batch_size_is_found():
    class Writes(Patches):
        kind = "writes"

        def run(self, network_run, batch, method_maps):
            arrays = super().run(network_run, batch, method_maps)
            batch.images.clamp_(min=0)
            return arrays

    class Larger(Patches):
        kind = "larger"

        def run(self, network_run, batch, method_maps):
            return super().run(replace(network_run, batch_size=64), batch, method_maps)

    metric("writes", **FACTS, reads=Writes)(faults_to_find.first_patch)
    metric("larger", **FACTS, reads=Larger)(lambda maps, drops, grid: faults_to_find.first_patch(maps, drops, grid))
    broken(metric_checks("writes"), "leaves_images_and_maps")
    broken(metric_checks("larger"), "does_not_depend_on_the_batch_size")


def test_sound_functions_pass():
    assert {check.state for check in check_explainer(faults_to_find.gradient)} == {"passed", "skipped"}
    metric("sound", **FACTS)(faults_to_find.first_patch)
    assert {check.state for check in check_metric(faults_to_find.first_patch)} == {"passed"}


@pytest.mark.parametrize(
    ("title", "name"),
    [("my_explainer", "scaled_gradient"), ("my_metric", "first_patch_drop"), ("my_response", "top_cells_drop")],
)
def test_examples_of_the_contributing_page_pass(title, name):
    code = re.search(rf"```python\n# {title}\.py\n(.*?)```", CONTRIBUTING, re.DOTALL)[1]
    exec(code, {"__name__": title})
    check = check_explainer if name in EXPLAINERS else check_metric
    assert {outcome.state for outcome in check(name)} <= {"passed", "skipped"}


def test_all_broken_rules_are_reported_at_once():
    def several(model, images, targets):
        maps = faults_to_find.gradient(model, images, targets)
        images.zero_()
        return maps / maps.abs().max()

    with pytest.raises(AssertionError) as caught:
        check_explainer(several)
    assert "leaves_its_inputs" in str(caught.value)
    assert "does_not_depend_on_the_company" in str(caught.value)
    assert str(caught.value).count("several: ") == str(caught.value).count("\n") + 1


def test_an_exemption_needs_a_reason_and_must_be_true():
    reason = {"follows_the_target": "it is of the first class"}
    states = {check.check: check for check in check_explainer(faults_to_find.deaf_to_the_target, exempt=reason | {
        "finds_the_evidence": "it is of the first class"})}  # fmt: skip
    assert states["follows_the_target"] == ("follows_the_target", "exempt", "it is of the first class")
    with pytest.raises(AssertionError, match=r"is declared as exempt .it is of the first class.: leave the exempt"):
        check_explainer(faults_to_find.gradient, exempt=reason)
    with pytest.raises(HeatproofError, match="no rule named 'follows_the_targets': did you mean 'follows_the_target'"):
        check_explainer(faults_to_find.gradient, exempt={"follows_the_targets": "a slip"})


@pytest.mark.parametrize(
    ("check", "argument", "message"),
    [
        (check_explainer, "salience", "no explainer named 'salience': did you mean 'saliency'"),
        (check_explainer, 3, "The explainer 3 is bound to one network, or is not callable"),
        (check_explainer, lambda model: model, "give a function of model, images and targets|."),
        (check_metric, "idsd", "no metric named 'idsd': did you mean 'idsds'"),
        (check_metric, faults_to_find.first_patch, "says nothing of its direction and range"),
    ],
)
def test_invalid_explainers_and_metrics_are_refused(check, argument, message):
    with pytest.raises((HeatproofError, AssertionError), match=message):
        check(argument)


def test_an_option_that_does_not_exist_is_refused():
    with pytest.raises(HeatproofError, match="stepps"):
        check_explainer("integrated_gradients", options={"stepps": 3})
    with pytest.raises(HeatproofError, match="gridd"):
        check_metric("idsds", options={"gridd": 3})


def test_a_function_can_be_named_as_in_a_config():
    assert {check.state for check in check_explainer("faults_to_find:gradient")} == {"passed", "skipped"}
    assert heatproof.testing.check_explainer is check_explainer

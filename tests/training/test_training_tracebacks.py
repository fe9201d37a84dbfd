"""The traceback of an error in a network's forward crosses few modules of heatproof."""

import traceback
from pathlib import Path

import pytest
import toy_plugin

import heatproof

ROOT = Path(heatproof.__file__).parent
EXPLAINERS = {
    "saliency": "gradient",
    "integrated_gradients": "path",
    "noise_integrated_gradients": "noise",
    "grad_cam": "cam",
    "score_cam": "cam",
    "rise": "rise",
    "occlusion": "superpixels",
    "guided_backprop": "backprop",
    "deep_lift": "deep",
    "gradient_shap": "expected",
}
JOB = ("workflow/stages/train.py", "workflow/stages/_training.py")


class Broken(Exception):
    pass


@pytest.fixture
def break_forward(monkeypatch):
    """Return a function that makes the toy network fail, in all modes or in one."""

    def change(training=None):
        forward = toy_plugin.Network.forward

        def broken(self, images):
            if training in (None, self.training):
                raise Broken
            return forward(self, images)

        monkeypatch.setattr(toy_plugin.Network, "forward", broken)

    return change


def modules_crossed(error):
    """Return the modules of heatproof that a traceback crosses."""
    files = [Path(frame.f_code.co_filename) for frame, _ in traceback.walk_tb(error.__traceback__)]
    return {str(file.relative_to(ROOT)) for file in files if file.is_relative_to(ROOT)}


@pytest.mark.parametrize(
    ("explainer", "output"), [*((name, "logit") for name in EXPLAINERS), ("saliency", "probability")]
)
def test_an_error_while_explaining_crosses_few_modules(project, break_forward, monkeypatch, caplog, explainer, output):
    options = {"gradient_shap": {"baselines": 8}}.get(explainer, {})
    toy = project(explainers=[{explainer: options}], attribution={"output": output})
    break_forward()
    monkeypatch.chdir(toy.folder)
    monkeypatch.setattr("heatproof.workflow.stages._maps.check_loaded", lambda *arguments: 0)
    with caplog.at_level("INFO"):
        toy.maps_spec([explainer]).run(toy.runtime())
    # The explainer is not applicable, and the log has its error. A network of heatproof would add a module.
    (error,) = {record.exc_info for record in caplog.records if record.exc_info}
    softmax = {"workflow/stages/_explaining.py"} if output == "probability" else set()
    assert modules_crossed(error[1]) == {"explainers/explaining.py", f"explainers/{EXPLAINERS[explainer]}.py"} | softmax


def test_an_error_of_a_network_that_always_fails_crosses_few_modules(project, break_forward, monkeypatch):
    toy = project(explainers=["saliency"])
    break_forward()
    monkeypatch.chdir(toy.folder)
    with pytest.raises(Broken) as caught:
        toy.maps_spec(["saliency"]).run(toy.runtime())
    stage = {"workflow/stages/attribute.py", "workflow/stages/_maps.py"}
    assert modules_crossed(caught.value) == {*stage, "core/network.py", "core/first_images.py"}


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("stage", ["pretrain", "finetune"])
def test_an_error_in_training_or_validation_crosses_few_modules(project, break_forward, monkeypatch, stage, training):
    toy = project(pretraining={"epochs": 1, "batch_size": 8}, finetuning={"epochs": 1, "batch_size": 8})
    break_forward(training)
    job = toy.pretrain() if stage == "pretrain" else toy.finetune()
    monkeypatch.chdir(toy.folder)
    with pytest.raises(Broken) as caught:
        job.run(toy.runtime())
    in_domain = {"training/in_domain.py"} if stage == "finetune" else set()
    assert modules_crossed(caught.value) == {*JOB, "training/loop.py"} | in_domain

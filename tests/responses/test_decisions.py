"""Decisions in curves and information curves: one class of several, or each label separately."""

import numpy as np
import pytest
import torch
from torch import nn

from heatproof.core.batch import Batch
from heatproof.core.network import attach
from heatproof.core.output_reader import OutputReader
from heatproof.core.passes import intact_responses
from heatproof.metrics.registry import METRICS
from heatproof.metrics.responses.curves import ResponseCurve, decisions
from heatproof.metrics.responses.information_curves import InformationCurves
from heatproof.metrics.responses.label_outputs import LabelOutputs
from heatproof.testing._metrics import MetricSubject, prefers_known_effects_on_numbers
from heatproof.testing._rules import RuleBroken

# Two images at three points: the logits of the label, which is 0, and of the class predicted for the intact image.
LOGITS = np.array([[[2.0, 3.0], [0.5, 4.0], [-1.0, -0.1]], [[-1.0, 1.0], [0.0, 1.0], [3.0, -2.0]]])
PREDICTED = np.array([[1, 1, 1], [1, 1, 0]])
CLASSES = np.array([[0, 1], [0, 1]])
ARRAYS = {"logit": LOGITS, "log_probability": -np.log1p(np.exp(-LOGITS)), "predicted": PREDICTED}


@pytest.mark.parametrize("target", [0, 1])
def test_a_label_is_predicted_by_its_own_logit(target):
    curve = ResponseCurve(ARRAYS, CLASSES, 1, "multilabel")
    decided = curve.read("accuracy", ("label", "predicted")[target])
    np.testing.assert_array_equal(decided, LOGITS[:, :, target] > 0)
    # As by its probability; a logit of 0 is not a decision.
    probability = curve.read("probability", ("label", "predicted")[target])
    np.testing.assert_array_equal(decided, probability > 0.5)


@pytest.mark.parametrize("task", ["binary", "multiclass"])
def test_a_class_decision_is_the_predicted_class(task):
    curve = ResponseCurve(ARRAYS, CLASSES, 1, task)
    np.testing.assert_array_equal(curve.read("accuracy", "label"), PREDICTED == 0)
    np.testing.assert_array_equal(curve.read("accuracy", "predicted"), PREDICTED == 1)
    assert decisions(ARRAYS, CLASSES, task).shape == (2, 3, 2)


@pytest.mark.parametrize(("task", "expected"), [("multilabel", LOGITS[:, :, 0] > 0), ("multiclass", PREDICTED == 0)])
def test_aic_reads_the_decision_of_the_task(task, expected):
    response = InformationCurves({"thresholds": (0.5,)})
    quantities = {f"{name}_{which}": ARRAYS[name][:, :, index] for name in ("logit", "log_probability")
                  for index, which in enumerate(("label", "predicted"))}  # fmt: skip
    quantities |= {"predicted": PREDICTED, "intact": np.ones((2, 3)), "entropy": np.full((2, 3), 100)}
    inputs = response.as_argument(
        quantities, Batch(None, None, None, None, np.zeros(2, dtype=int), ("a", "b"), 0, stated_task=task)
    )
    np.testing.assert_array_equal(inputs["decided"][..., 0], expected)


class Labels(nn.Module):
    """Three labels; the second one always has the largest logit."""

    def forward(self, images):
        first = images.mean((1, 2, 3))
        return torch.stack([first, torch.full_like(first, 50.0), -first], dim=1)


class WithClassNames:
    class_names = ("sun", "rain", "fog")
    num_classes = 3


def test_label_outputs_are_those_of_every_label_of_the_intact_image():
    network = Labels().eval()
    attach(network, reader=OutputReader("multilabel"))
    images = torch.linspace(-1, 1, 4)[:, None, None, None].expand(4, 3, 2, 2).contiguous()
    targets, data = torch.tensor([0, 2, 0, 1]), WithClassNames()
    batch = Batch(network, network, None, images, targets, list("abcd"), 0, batch_size=3, dataset=data)
    outputs = LabelOutputs().run(batch)
    np.testing.assert_allclose(outputs["logit"], network(images))
    np.testing.assert_allclose(outputs["log_probability"], nn.functional.logsigmoid(network(images)), atol=1e-6)
    contents = LabelOutputs().contents(batch, "weather", lambda: batch)
    assert contents.sizes == {"variant": 3}
    assert contents.coordinates == {"variant": ["sun", "rain", "fog"]}
    assert intact_responses(batch)["predicted"].tolist() == [1] * 4


def test_a_score_that_reverses_the_order_is_found(monkeypatch):
    # The published code of MAS divides by a negative difference for probabilities.
    entry = METRICS["rise_deletion"]
    options = {"inverted": "scaled", "monotone": True}
    monkeypatch.setattr(type(entry), "unsupported_reason", lambda *arguments: None)
    with pytest.raises(RuleBroken, match="worse than their negatives"):
        prefers_known_effects_on_numbers(MetricSubject(entry, options))

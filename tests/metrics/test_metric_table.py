"""Registration of metrics."""

import numpy as np
import pytest
import torch

import heatproof
from heatproof.errors import HeatproofError
from heatproof.metrics.registry import METRICS, metric
from heatproof.metrics.responses.curves import Curves

FACTS = {"higher_is_better": True, "range": (0.0, 1.0), "source": "here"}


@pytest.mark.parametrize(
    ("name", "facts", "message"),
    [
        ("mine", {"reads": "curves"}, "reads 'curves': give a subclass of heatproof.metrics.responses.base.Response"),
        ("mine", {"reads": Curves}, "reads Curves, and so needs `sequences`"),
        ("ids", {}, "There is a metric 'ids' in heatproof.metrics.deletion: register yours under another name."),
    ],
)
def test_invalid_declarations_of_metrics_are_refused(name, facts, message):
    before = dict(METRICS)
    with pytest.raises(HeatproofError, match=message.replace("(", r"\(")):
        metric(name, **FACTS, **facts)(lambda maps: (maps, maps, {}))
    assert before == METRICS


@pytest.mark.parametrize("kind", [np.int64, np.uint8, np.int8])
@pytest.mark.parametrize("name", ["deletion_morf", "mas_deletion", "completeness", "soundness", "sensitivity_n"])
def test_maps_of_integers_have_the_scores_of_the_same_floats(name, kind):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 8 * 8, 4)).eval()
    images, labels = torch.rand(5, 3, 8, 8), torch.tensor([0, 1, 2, 3, 0])
    maps = np.random.default_rng(0).integers(0, 100, size=(5, 8, 8))
    options = {"steps": 8} if name in ("deletion_morf", "mas_deletion") else {}
    if name in ("completeness", "soundness"):
        options = {"output": "probability", "level": 0.0} if name == "soundness" else {"output": "probability"}
    of_numbers = heatproof.evaluate(name, model, images, labels, maps.astype(kind), **options)
    of_floats = heatproof.evaluate(name, model, images, labels, maps.astype(np.float64), **options)
    np.testing.assert_array_equal(of_numbers["score"], of_floats["score"])

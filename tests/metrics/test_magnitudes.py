"""A metric that reads magnitudes declares this by its sequences, and scores a map and its absolute values equally."""

import numpy as np
import pytest

from heatproof.metrics.registry import METRICS
from heatproof.testing._metrics import MetricSubject, scores_of, scoring_inputs

OURS = sorted(name for name, entry in METRICS.items() if entry.function.__module__.startswith("heatproof."))
# Part deletion can tie by chance on noise, and metrics that count negative values as zero can tie by design.
RANKED = [name for name in OURS if name.startswith(("rise", "mas", "deletion", "ids", "road", "sic"))]


@pytest.mark.parametrize("name", RANKED)
def test_metrics_declare_whether_they_score_magnitudes(name):
    subject, inputs = MetricSubject(METRICS[name]), scoring_inputs()
    maps = np.random.default_rng(3).normal(size=inputs.maps.shape).astype(np.float32)
    signed, absolute = (scores_of(subject, inputs._replace(maps=maps_of_sign)) for maps_of_sign in (maps, np.abs(maps)))
    both = signed.valid & absolute.valid
    assert both.any()
    alike = np.allclose(signed.score[both], absolute.score[both], atol=1e-6)
    assert alike == METRICS[name].reads_magnitudes()


def test_metrics_that_read_magnitudes_are_exactly_those_of_mas():
    assert [name for name in OURS if METRICS[name].reads_magnitudes()] == [
        "mas_deletion",
        "mas_difference",
        "mas_insertion",
    ]
    assert not METRICS["soundness"].scores_each_image
    assert METRICS["aic"].scores_each_image

"""Metrics that read a decision, in memory: a label is predicted by its own logit."""

import numpy as np
import pytest
import torch
from torch import nn

import heatproof

LABELS, SIZE = 3, 8


class IndependentLogits(nn.Module):
    """Three labels, all of them present; the second always has the largest logit."""

    def forward(self, images):
        first = 20 * images.mean((1, 2, 3))
        return torch.stack([first - 5, torch.full_like(first, 40.0), 4 - first], dim=1)


@pytest.mark.parametrize("metric", ["road_morf", "deletion_morf", "aic", "rise_deletion"])
def test_a_label_is_predicted_by_its_own_logit(metric):
    network, draws = IndependentLogits().eval(), torch.Generator().manual_seed(0)
    images, maps = torch.rand(6, 3, SIZE, SIZE, generator=draws), torch.rand(6, SIZE, SIZE, generator=draws)
    options = {} if metric == "aic" else {"output": "accuracy"}
    targets = torch.zeros(6, dtype=torch.long)

    def scored(network, task):
        result = heatproof.evaluate(metric, network, images, targets, maps, task=task, **options)
        return result["score"].values

    class AsTwoClasses(nn.Module):
        def __init__(self):
            super().__init__()
            self.labels = network

        def forward(self, images):
            # The label's own sigmoid is the softmax of these two.
            first = self.labels(images)[:, 0]
            return torch.stack([first, torch.zeros_like(first)], dim=1)

    wanted = scored(AsTwoClasses().eval(), "multiclass")
    assert np.isfinite(wanted).any()
    np.testing.assert_allclose(scored(network, "multilabel"), wanted, atol=1e-6)
    # Read as classes, it is never the predicted class.
    assert not np.array_equal(scored(network, "multiclass"), wanted, equal_nan=True)

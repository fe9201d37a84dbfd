"""Losses by task: against their definitions, with unknown labels, and in any unit."""

from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional

from heatproof.errors import HeatproofError
from heatproof.training.losses import (
    CompleteOutputReader,
    compute_loss,
    count_correct,
    loss_for_task,
    outputs_as_labels,
    scale_of,
)


@pytest.mark.parametrize(
    ("task", "loss"),
    [
        (None, "cross_entropy"),
        ("binary", "cross_entropy"),
        ("multiclass", "cross_entropy"),
        ("multilabel", "binary_cross_entropy"),
        ("regression", "squared_error"),
        ("callable", "squared_error"),
    ],
)
def test_each_task_has_its_loss(task: str | None, loss: str) -> None:
    assert loss_for_task(task) == loss


def test_unknown_labels_are_ignored() -> None:
    outputs = torch.randn(4, 3, dtype=torch.float64)
    labels = torch.tensor([[1, 0, -1], [0, -1, -1], [1, 1, 0], [-1, -1, -1]], dtype=torch.int8)
    by_hand = []
    for row in range(3):
        is_known = labels[row] >= 0
        each = functional.binary_cross_entropy_with_logits(outputs[row][is_known], labels[row][is_known].double())
        by_hand.append(each)
    assert float(compute_loss("binary_cross_entropy", outputs, labels)) == pytest.approx(float(sum(by_hand)) / 3)
    altered = torch.where(labels < 0, outputs + 100, outputs)
    assert float(compute_loss("binary_cross_entropy", altered, labels)) == pytest.approx(float(sum(by_hand)) / 3)
    right, of = count_correct("binary_cross_entropy", torch.tensor([[1.0, 1.0, 1.0]] * 4), labels)
    assert (right, of) == (pytest.approx(1 / 2 + 0 + 2 / 3), 3)


def test_a_squared_error_has_no_unit() -> None:
    years, outputs = torch.tensor([10.0, 20.0, 60.0]), torch.tensor([[12.0], [25.0], [40.0]])
    first = compute_loss("squared_error", outputs, years, scale=scale_of(years))
    in_days = compute_loss("squared_error", outputs * 365, years * 365, scale=scale_of(years * 365))
    by_hand = ((outputs[:, 0] - years) / years.std(correction=0)).square().mean()
    assert float(first) == pytest.approx(float(by_hand)) == pytest.approx(float(in_days))
    assert scale_of(torch.full((3,), 0.1)).tolist() == [1.0]
    assert count_correct("squared_error", outputs, years) == (0.0, 0)


def test_sums_are_means_times_images() -> None:
    outputs, classes = torch.randn(5, 3), torch.tensor([0, 1, 2, 0, 1])
    labels = torch.tensor([[1, 0, -1]] * 5)
    for name, learnt in (
        ("cross_entropy", classes),
        ("binary_cross_entropy", classes),
        ("binary_cross_entropy", labels),
        ("squared_error", torch.randn(5, 3)),
    ):
        mean, total = compute_loss(name, outputs, learnt), compute_loss(name, outputs, learnt, summed=True)
        assert float(total) == pytest.approx(5 * float(mean))


def test_labels_from_outputs_follow_the_task() -> None:
    outputs = torch.randn(2, 3)
    assert torch.equal(outputs_as_labels("cross_entropy", outputs), outputs.softmax(1))
    assert torch.equal(outputs_as_labels("binary_cross_entropy", outputs), outputs.sigmoid())
    assert torch.equal(outputs_as_labels("squared_error", outputs), outputs)


def test_numbers_of_another_width_are_refused() -> None:
    with pytest.raises(HeatproofError, match="returns 2 numbers for each image, and 1 are learnt"):
        compute_loss("squared_error", torch.zeros(3, 2), torch.zeros(3))


@pytest.mark.parametrize(
    ("output", "width"),
    [
        (torch.zeros(3, 4), 4),
        ({"out": torch.zeros(3, 2, 5, 5), "aux": torch.zeros(3, 1)}, 51),
        ((torch.zeros(3, 4), [torch.zeros(3, 2)], torch.zeros(3, dtype=torch.int64)), 6),
        (SimpleNamespace(logits=torch.zeros(3, 4), hidden=None), 4),
        ({"rows": torch.zeros(3), "others": torch.zeros(7, 2)}, 1),
    ],
)
def test_the_complete_output_is_one_row_per_image(output: object, width: int) -> None:
    assert CompleteOutputReader().read(output, 3).shape == (3, width)


def test_every_tensor_of_an_output_counts_the_same() -> None:
    reader = CompleteOutputReader()
    outputs = reader.read((100 * torch.randn(6, 2), torch.randn(6, 50)), 6)
    scale = reader.scale_of(outputs)
    deviation = torch.cat([part.std(correction=0).expand(part.shape[1]) for part in outputs.split([2, 50], 1)])
    for low, high in ((0, 2), (2, 52)):
        moved = outputs.clone()
        moved[:, low:high] += deviation[low:high]
        assert float(compute_loss("squared_error", moved, outputs, scale=scale)) == pytest.approx(1 / 2)


def test_an_output_without_rows_is_refused() -> None:
    with pytest.raises(HeatproofError, match="as detectors do"):
        CompleteOutputReader().read([{"boxes": torch.zeros(5, 4)}, {"boxes": torch.zeros(2, 4)}], 3)

"""Numbers that are read from a network's output, for every task and for callable targets."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from heatproof.api.inputs.first_images import check_first_images
from heatproof.core.hooks import reader_of
from heatproof.core.network import Network, prepare_network
from heatproof.core.output_reader import OutputReader, log_probabilities, probabilities
from heatproof.core.passes import NO_CLASS, NO_RANK, run_batched
from heatproof.core.tasks import CALLABLE, TASKS, distinct_targets, repeat_target, task_provides, unsupported_reason
from heatproof.errors import HeatproofError, NotApplicable

IMAGES = torch.rand(5, 3, 8, 8, generator=torch.Generator().manual_seed(0))


class Linear(nn.Module):
    """Outputs (B, K) that are linear in the image."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        weights = torch.randn(outputs, 192, generator=torch.Generator().manual_seed(outputs))
        self.weights = nn.Parameter(weights)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images.flatten(1) @ self.weights.T


def outputs_of(network: Linear) -> torch.Tensor:
    with torch.no_grad():
        return Linear.forward(network, IMAGES)


@pytest.mark.parametrize(
    ("task", "width", "expected_task"),
    [
        (None, 1, "binary"),
        (None, 2, "multiclass"),
        ("binary", 1, "binary"),
        ("binary", 2, "binary"),
        ("multiclass", 2, "multiclass"),
        ("multiclass", 7, "multiclass"),
        ("multilabel", 1, "multilabel"),
        ("multilabel", 7, "multilabel"),
        ("regression", 1, "regression"),
        ("regression", 3, "regression"),
    ],
)
def test_outputs_are_read_by_task(task: str | None, width: int, expected_task: str) -> None:
    network = Linear(width).eval()
    expected = outputs_of(network)
    if expected_task == "binary" and width == 1:
        expected = torch.cat([-expected, expected], 1) / 2
    with prepare_network(network, IMAGES, reader=OutputReader(task)) as prepared:
        check_first_images(prepared, IMAGES)
        assert prepared.task == expected_task
        with torch.no_grad():
            assert torch.equal(prepared.module(IMAGES), expected)


@pytest.mark.parametrize(
    ("task", "width", "sentence"),
    [("binary", 3, "take multiclass"), ("multiclass", 1, "take binary"), ("labels", 3, "take one of binary")],
)
def test_a_task_that_does_not_fit_the_outputs_is_refused(task: str, width: int, sentence: str) -> None:
    def call() -> None:
        with prepare_network(Linear(width).eval(), IMAGES, reader=OutputReader(task)) as prepared:
            check_first_images(prepared, IMAGES)

    with pytest.raises(HeatproofError, match=sentence):
        call()


@pytest.mark.parametrize("kind", ["tensor", "array", "list of tensors", "list of numbers", "none"])
def test_a_callable_target_is_computed_for_the_target_of_each_image(kind: str) -> None:
    network = Linear(4).eval()
    plain = outputs_of(network)
    weights = torch.randn(5, 4, generator=torch.Generator().manual_seed(3))
    # Two images share a target.
    weights[4] = weights[1]
    inputs = {
        "tensor": weights,
        "array": weights.numpy(),
        "list of tensors": list(weights),
        "list of numbers": [0, 3, 1, 2, 3],
        "none": None,
    }[kind]

    def number(output: torch.Tensor, targets: object) -> torch.Tensor:
        if targets is None:
            return output[:, 0] - output[:, 1]
        if isinstance(targets, list) and isinstance(targets[0], int):
            return output[torch.arange(len(output)), torch.tensor(targets)]
        rows = torch.stack(targets) if isinstance(targets, list) else torch.as_tensor(targets)
        return (output * rows).sum(1)

    expected = {
        "none": plain[:, 0] - plain[:, 1],
        "list of numbers": plain[torch.arange(5), torch.tensor([0, 3, 1, 2, 3])],
    }.get(kind, (plain * weights).sum(1))
    distinct, numbers = distinct_targets(inputs, 5)
    assert len(distinct) == {"none": 1}.get(kind, 4)
    targets = torch.from_numpy(numbers)
    with prepare_network(network, IMAGES, reader=OutputReader(function=number, targets=distinct)) as prepared:
        check_first_images(prepared, IMAGES)
        assert prepared.task == CALLABLE
        batches = [(IMAGES[rows], torch.tensor(rows)) for rows in ([0, 1, 1], [2], [4, 3, 0])]
        read = run_batched(Network.of(prepared.module), batches, targets, list("abcde"))
    order = [0, 1, 1, 2, 4, 3, 0]
    np.testing.assert_allclose(read["logit"], expected[order].numpy(), rtol=1e-5)
    assert np.isnan(read["log_probability"]).all()
    assert set(read["predicted"]) == {NO_CLASS}
    assert set(read["target_rank"]) == {NO_RANK}


def test_only_requested_targets_are_computed() -> None:
    calls = []

    def number(output: torch.Tensor, targets: list[int]) -> torch.Tensor:
        calls.append(targets[0])
        return output.sum(1) * targets[0]

    network = Linear(2).eval()
    with prepare_network(network, IMAGES, reader=OutputReader(function=number, targets=[1, 2, 3, 4])) as prepared:
        reader = reader_of(prepared.module)
        assert reader is not None
        with reader.only_targets([3, 1, 3]), torch.no_grad():
            read = prepared.module(IMAGES)
        assert calls == [2, 4]
        assert read.shape == (5, 4)
        assert (read[:, [0, 2]] == 0).all()
        torch.testing.assert_close(read[:, 3], 2 * read[:, 1])


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        (lambda output, targets: output, "returned torch.float32 \\(3, 4\\) for a batch of 3"),
        (lambda output, targets: output.sum(), "returned torch.float32 \\(\\)"),
        (lambda output, targets: output.argmax(1), "returned torch.int64"),
        (lambda output, targets: 1.0, "returned a float"),
        (lambda output, targets: output.logits.mean(1), "fails on the model's output"),
        (lambda output: output.sum(1), "gets the complete output"),
    ],
)
def test_results_other_than_one_number_per_image_are_refused(function: object, sentence: str) -> None:
    def call() -> None:
        with prepare_network(Linear(4).eval(), IMAGES, reader=OutputReader(function=function)) as prepared:  # type: ignore[arg-type]
            check_first_images(prepared, IMAGES)

    with pytest.raises(HeatproofError, match=sentence):
        call()


def test_probabilities_are_those_of_the_task() -> None:
    numbers = torch.tensor([[1.0, -2.0, 0.5]])
    for task in TASKS:
        if task_provides(task, "probability"):
            expected = numbers.sigmoid() if task == "multilabel" else numbers.softmax(1)
            torch.testing.assert_close(probabilities(numbers, task), expected)
            torch.testing.assert_close(log_probabilities(numbers, task).exp(), expected)
            continue
        with pytest.raises(NotApplicable, match="gives a number alone"):
            probabilities(numbers, task)


def test_the_reason_names_the_need_and_the_remedy() -> None:
    assert unsupported_reason("multilabel", "decision") is None
    assert unsupported_reason("regression", "number") is None
    reason = unsupported_reason("regression", "probability", "set output: logit")
    assert reason == "it reads a probability, and a regression gives a number alone: set output: logit"


@pytest.mark.parametrize("targets", ["abcde", {"a": 1}, 3, [1, 2]])
def test_targets_of_another_number_of_images_are_refused(targets: object) -> None:
    with pytest.raises(HeatproofError, match="one for each image"):
        distinct_targets(targets, 5)


def test_targets_of_a_batch_keep_the_form_of_the_input() -> None:
    assert repeat_target([None], 0, 3) is None
    assert repeat_target(["cat", "dog"], 1, 2) == ["dog", "dog"]
    assert repeat_target(np.arange(6).reshape(2, 3), 1, 2).tolist() == [[3, 4, 5], [3, 4, 5]]
    assert repeat_target(torch.arange(2), 1, 3).tolist() == [1, 1, 1]

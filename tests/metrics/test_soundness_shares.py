"""The shares that soundness removes: by default those of the published code, and optionally those of the paper."""

import numpy as np
import pytest
import torch
from network_responses import FunctionModule

import heatproof
from heatproof.errors import HeatproofError
from heatproof.metrics.registry import METRICS
from heatproof.metrics.soundness import false_attribution
from heatproof.workflow.config.files import merge, read_config
from heatproof.workflow.plan.validate import make_plan

# Algorithm 3, line 1, and the config of the published code: start 0.98, end 0.02, step -0.01.
PAPER = [f"{hundredth / 100:.2f}" for hundredth in range(1, 100)]
CODE = PAPER[2:98]


def shares(**options):
    """Return the shares of the sequence, as they are shown in a table."""
    entry = METRICS["soundness"]
    response = entry.responses(entry.reads.complete(entry.complete_options(options)), [(224, 224), (10, 10)])[
        "deletion"
    ]
    return [f"{share:.2f}" for share in response.sequence.fractions]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, CODE),
        ({"fractions": None}, CODE),
        ({"fractions": "code"}, CODE),
        ({"fractions": "paper"}, PAPER),
        ({"fractions": [0.25, 0.5]}, ["0.25", "0.50"]),
        ({"fractions": "paper", "imputation": "baseline", "baseline": "blur"}, PAPER),
    ],
)
def test_complete_fractions_returns_the_shares(options, expected):
    assert shares(**options) == expected


def test_the_default_has_one_name_in_a_store():
    """Naming the default recomputes nothing, and the response for the paper's shares contains those of the code."""
    entry = METRICS["soundness"]
    kinds = {
        fractions: entry.responses(entry.reads.complete(entry.complete_options({"fractions": fractions})))["deletion"]
        for fractions in (None, "code", "paper")
    }
    assert kinds[None] == kinds["code"] != kinds["paper"]
    assert kinds["paper"].points_of(kinds["code"]) == list(range(2, 98))


@FunctionModule
def model(batch):
    inside = batch[:, 0, 3:7, 3:7].mean((1, 2)) - 0.5
    return torch.stack([-inside, inside], 1)


def test_the_curve_begins_with_the_first_hundredth():
    images = torch.rand(120, 1, 20, 20, generator=torch.Generator().manual_seed(0))
    labels = model(images).argmax(1)
    maps = np.abs(images[:, 0].numpy() - 0.5)
    by_name = heatproof.evaluate("soundness", model, images, labels, maps, imputation="baseline", fractions="paper")
    np.testing.assert_allclose(by_name["removed"][[0, 1, -1]], [0.99, 0.98, 0.01])
    by_values = heatproof.evaluate(
        "soundness", model, images, labels, maps, imputation="baseline", fractions=[float(share) for share in PAPER]
    )
    assert by_name["score"].equals(by_values["score"])
    np.testing.assert_array_equal(by_name["soundness"], by_values["soundness"])


@pytest.mark.parametrize("fractions", ["papers", "0.5", {}])
def test_unknown_names_of_fractions_are_refused_in_a_config_and_in_memory(fractions):
    with pytest.raises(HeatproofError, match="fractions"):
        make_plan(merge(read_config(), {"metrics": [{"soundness": {"fractions": fractions}}]}))
    entry = METRICS["soundness"]
    with pytest.raises(HeatproofError, match="fractions"):
        entry.responses(entry.complete_options({"fractions": fractions}))


def test_the_thresholds_of_completeness_are_those_of_algorithm_4():
    entry = METRICS["completeness"]
    sequence = entry.responses(entry.reads.complete(entry.complete_options({})))["deletion"].sequence
    assert sequence.thresholds == (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


@pytest.mark.parametrize("thresholds", [[0.8], [0.2, 0.5, 0.6], [0.6, 0.2], None])
def test_the_pixels_above_each_threshold_are_imputed(thresholds):
    """The network counts pixels, and the map has the values 0.02 … 0.98: the loss is the number of values above."""

    @FunctionModule
    def model(batch):
        seen = batch.sum((1, 2, 3))
        return torch.stack([seen, -seen], 1)

    values = np.append(np.linspace(0.02, 0.98, 47), [0, 1]).reshape(1, 7, 7)
    options = {"output": "logit", "imputation": "baseline", "thresholds": thresholds}
    shares = thresholds or [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]
    above = {share: int((values > share).sum()) for share in shares}
    scores = heatproof.evaluate("completeness", model, torch.ones(1, 1, 7, 7), [0], values, **options)
    assert scores["score"].item() == pytest.approx(np.mean(list(above.values())))
    assert scores["completeness"][0].values.tolist() == sorted(above.values())
    for share, count in above.items():
        result = heatproof.evaluate("completeness", model, torch.ones(1, 1, 7, 7), [0], values, at=share, **options)
        assert result["score"].item() == count


@pytest.mark.parametrize(
    ("metric", "options"),
    [
        ("completeness", {"thresholds": ["a"]}),
        ("completeness", {"thresholds": [1.5]}),
        ("completeness", {"thresholds": [-0.5, 0.5]}),
        ("soundness", {"fractions": ["paper"]}),
        ("soundness", {"fractions": [True]}),
        ("road_morf", {"fractions": ["a"]}),
    ],
)
def test_lists_of_invalid_values_are_refused_in_memory_and_in_a_config(metric, options):
    images, maps = torch.ones(2, 1, 8, 8), np.ones((2, 8, 8))
    with pytest.raises(HeatproofError, match=next(iter(options))):
        heatproof.evaluate(metric, torch.nn.Flatten(), images, [0, 0], maps, **options)
    with pytest.raises(HeatproofError, match=next(iter(options))):
        make_plan(merge(read_config(), {"metrics": [{metric: options}]}))


def test_a_step_of_just_the_threshold_is_false_attribution():
    """This is the rule of the published code; in algorithm 3 only smaller steps add false attribution."""
    performance, added = np.array([0.01, 0.03]), np.ones((1, 2))
    assert false_attribution(performance, added, 0.01, None)[1].tolist() == [[1.0, 1.0]]

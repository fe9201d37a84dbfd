"""Generated invalid inputs to the functions for a model in memory: a result or one sentence, never a traceback."""

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

import heatproof

SIDE, COUNT = 8, 4
METRICS = [
    "idsds",
    "deletion_morf",
    "rise_insertion",
    "mas_insertion",
    "soundness",
    "sic",
    "sensitivity_n",
    "infidelity",
]
METHODS = ["saliency", "integrated_gradients", "grad_cam", "occlusion", "rise", "random", "attn_lrp"]
INVALID: list = [
    None, "", "0", "nothing", b"bytes", True, -1, 0, 1, 7, 1.7, -0.5, 1e30, float("nan"), float("inf"), [], [1], ["a"],
    {}, {"a": 1}, (), object(), np.int64(3), np.float32(0.5), np.zeros(3), torch.tensor(2), torch.zeros(2, 2), print,
]  # fmt: skip
invalid = st.sampled_from(INVALID)


def arrays(good):
    """Return the right tensor in a wrong form."""
    return st.sampled_from(
        [
            good,
            good.double(),
            good.bfloat16(),
            good.half(),
            good.int(),
            good.bool(),
            good[:1],
            good[:0],
            good[0],
            good[None],
            good.flatten(),
            good.numpy(),
            good.tolist(),
            good.to_sparse(),
            torch.full_like(good, float("nan")) if good.is_floating_point() else good - 99,
            good.clone().requires_grad_() if good.is_floating_point() else good + 99,
        ]
    )


torch.manual_seed(0)
IMAGES, LABELS, MAPS = torch.rand(COUNT, 3, SIDE, SIDE), torch.arange(COUNT) % 3, torch.rand(COUNT, SIDE, SIDE)
MODEL = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)).eval()
LIMITS = settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


def sentence_or_result(function, *arguments, **options):
    try:
        function(*arguments, **options)
    except heatproof.HeatproofError as error:
        message = str(error)
        assert message
        assert "\n" not in message.strip()
        assert "Traceback" not in message


@pytest.mark.filterwarnings("ignore")
@LIMITS
@given(st.sampled_from(METRICS), arrays(IMAGES) | invalid, arrays(LABELS) | invalid, arrays(MAPS) | invalid)
def test_evaluate_returns_a_result_or_raises_one_sentence(metric, images, labels, maps):
    sentence_or_result(heatproof.evaluate, metric, MODEL, images, labels, maps)


@pytest.mark.filterwarnings("ignore")
@LIMITS
@given(
    st.sampled_from(METRICS) | invalid,
    st.sampled_from(
        ["grid", "baseline", "steps", "seed", "noise", "batch_size", "device", "output", "ranking", "details", "other"]
    ),
    invalid,
)
def test_options_of_evaluate_give_a_result_or_one_sentence(metric, name, value):
    sentence_or_result(heatproof.evaluate, metric, MODEL, IMAGES, LABELS, MAPS, **{name: value})


@pytest.mark.filterwarnings("ignore")
@LIMITS
@given(
    st.sampled_from([MODEL, *INVALID]),
    arrays(IMAGES) | invalid,
    arrays(LABELS) | invalid,
    st.lists(st.sampled_from(METHODS), min_size=1, max_size=2, unique=True) | invalid,
    st.dictionaries(st.sampled_from(["seed", "batch_size", "image_ids", "layer", "background"]), invalid, max_size=1),
)
def test_explain_returns_a_result_or_raises_one_sentence(model, images, labels, methods, options):
    sentence_or_result(heatproof.explain, model, images, labels, methods, **options)


@pytest.mark.filterwarnings("ignore")
@LIMITS
@given(invalid | st.builds(dict, a=invalid) | st.just({"a": heatproof}))
def test_compare_returns_a_result_or_raises_one_sentence(scores):
    sentence_or_result(heatproof.compare, scores)


@pytest.mark.filterwarnings("ignore")
@settings(LIMITS, max_examples=25)
@given(
    arrays(IMAGES) | invalid,
    arrays(LABELS) | invalid,
    st.dictionaries(
        st.sampled_from(["grid", "baseline", "share", "epochs", "lr", "batch_size", "optimizer", "seed"]),
        invalid,
        max_size=1,
    ),
)
def test_finetune_returns_a_result_or_raises_one_sentence(images, labels, options):
    sentence_or_result(heatproof.finetune, MODEL, images, labels, **{"epochs": 1, **options})

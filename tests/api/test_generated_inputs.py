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
ODD: list = [
    None, "", "0", "nothing", b"bytes", True, -1, 0, 1, 7, 1.7, -0.5, 1e30, float("nan"), float("inf"), [], [1], ["a"],
    {}, {"a": 1}, (), object(), np.int64(3), np.float32(0.5), np.zeros(3), torch.tensor(2), torch.zeros(2, 2), print,
]  # fmt: skip
odd = st.sampled_from(ODD)


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
@given(st.sampled_from(METRICS), arrays(IMAGES) | odd, arrays(LABELS) | odd, arrays(MAPS) | odd)
def test_evaluate(metric, images, labels, maps):
    sentence_or_result(heatproof.evaluate, metric, MODEL, images, labels, maps)


@pytest.mark.filterwarnings("ignore")
@LIMITS
@given(
    st.sampled_from(METRICS) | odd,
    st.sampled_from(
        ["grid", "baseline", "steps", "seed", "noise", "batch_size", "device", "output", "ranking", "details", "other"]
    ),
    odd,
)
def test_options_of_evaluate(metric, name, value):
    sentence_or_result(heatproof.evaluate, metric, MODEL, IMAGES, LABELS, MAPS, **{name: value})


@pytest.mark.filterwarnings("ignore")
@LIMITS
@given(
    st.sampled_from([MODEL, *ODD]),
    arrays(IMAGES) | odd,
    arrays(LABELS) | odd,
    st.lists(st.sampled_from(METHODS), min_size=1, max_size=2, unique=True) | odd,
    st.dictionaries(st.sampled_from(["seed", "batch_size", "image_ids", "layer", "background"]), odd, max_size=1),
)
def test_explain(model, images, labels, methods, options):
    sentence_or_result(heatproof.explain, model, images, labels, methods, **options)


@pytest.mark.filterwarnings("ignore")
@LIMITS
@given(odd | st.builds(dict, a=odd) | st.just({"a": heatproof}))
def test_compare(scores):
    sentence_or_result(heatproof.compare, scores)


@pytest.mark.filterwarnings("ignore")
@settings(LIMITS, max_examples=25)
@given(
    arrays(IMAGES) | odd,
    arrays(LABELS) | odd,
    st.dictionaries(
        st.sampled_from(["grid", "baseline", "share", "epochs", "lr", "batch_size", "optimizer", "seed"]),
        odd,
        max_size=1,
    ),
)
def test_finetune(images, labels, options):
    sentence_or_result(heatproof.finetune, MODEL, images, labels, **{"epochs": 1, **options})

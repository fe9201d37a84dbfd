"""Explainers that alter a pass do not change the outputs of the network in any batch; otherwise they do not apply."""

import dataclasses

import pytest
import torch
from torch import nn

import heatproof
from heatproof.core.input_facts import InputFacts
from heatproof.errors import NotApplicable
from heatproof.explainers._unaltered import require_unaltered_outputs
from heatproof.explainers.registry import EXPLAINERS, ExplainContext
from heatproof.store.reading import read_json

CAMS = [name for name, entry in EXPLAINERS.items() if entry.family == "cam"]
OF_RULES = ["lrp", "guided_backprop", "deconvolution", "guided_grad_cam", "deep_lift", "deep_shap", "attn_lrp"]
ALTERING = [*OF_RULES, *CAMS]
OF_ATTENTION = ["raw_attention", "attention_rollout", "chefer_attention", "attn_lrp", "chefer_lrp"]


def explained_by(network, images, figures=None):
    ids = tuple(map(str, range(len(images))))
    network = network.eval().requires_grad_(False)
    return ExplainContext(network, network, None, images, torch.arange(len(images)) % 3, ids, seed=0, figures=figures)


def plain():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))


@pytest.mark.parametrize("count", [1, 3])
def test_only_unaltered_outputs_are_accepted(count):
    network, images, figures = plain(), torch.rand(count, 3, 8, 8), {}
    context = explained_by(network, images, figures)
    outputs = network(images)
    require_unaltered_outputs(context, images, outputs)
    assert figures["difference_from_network"].value < 1e-5
    assert figures["difference_from_network"].images == count
    spread = outputs.max() - outputs.min()
    require_unaltered_outputs(context, images, outputs + 5e-4 * spread)
    with pytest.raises(
        NotApplicable, match=r"changes the outputs of the network by 0\.01 of their spread, above 0\.001"
    ):
        require_unaltered_outputs(context, images, outputs + 0.01 * spread)
    with pytest.raises(NotApplicable, match="changes the outputs of the network by inf"):
        require_unaltered_outputs(context, images, outputs.masked_fill(outputs == outputs.max(), torch.nan))


class Watching(nn.Module):
    """Changes its output if gradients are enabled and an image is bright; images of the first batch are not."""

    def __init__(self):
        super().__init__()
        self.network = plain()
        self.attended = False

    def forward(self, images):
        outputs = self.network(images)
        bright = (images.mean((1, 2, 3)) > 1)[:, None] & images.requires_grad
        return outputs + bright * torch.arange(3.0)


@pytest.mark.parametrize("name", ALTERING)
def test_the_outputs_of_every_batch_are_compared(name):
    images = torch.rand(8, 3, 8, 8)
    images[7] += 2
    fields = {"facts": InputFacts(cam_layer="network.0"), "background": lambda count: images[:count] / 2}
    context = dataclasses.replace(explained_by(Watching(), images), batch_size=2, **fields)
    before = dataclasses.replace(context, images=images[:6], image_ids=context.image_ids[:6])
    options = {"baselines": 2} if name == "deep_shap" else {}
    assert EXPLAINERS[name].function(before, **options)[name].isfinite().all()
    with pytest.raises(NotApplicable, match="changes the outputs of the network"):
        EXPLAINERS[name].function(context, **options)


@pytest.mark.parametrize("name", OF_ATTENTION)
def test_attention_that_depends_on_fusion_is_not_applicable(name, explain_digits, monkeypatch):
    """The map would explain another function if the output of a network depends on whether attention is fused."""
    context = explain_digits("small_vit")
    assert EXPLAINERS[name].function(context)[name].isfinite().all()
    real = torch.Tensor.softmax
    monkeypatch.setattr(
        torch.Tensor, "softmax", lambda values, *arguments, **options: real(1.5 * values, *arguments, **options)
    )
    with pytest.raises(NotApplicable, match="changes the outputs of the network"):
        EXPLAINERS[name].function(context)


def test_explain_counts_comparisons_as_check_passes():
    network, images, targets = plain().eval(), torch.rand(10, 3, 8, 8), torch.zeros(10, dtype=torch.long)
    of_saliency, of_lrp = (
        heatproof.explain(network, images, targets, methods, batch_size=4) for methods in (["saliency"], ["lrp"])
    )
    assert of_lrp.attrs["check_passes"] == of_saliency.attrs["check_passes"] + 10


def test_a_job_records_its_comparisons(project):
    run = project(explainers=["saliency", "lrp"], shard_size=8).attribute().drop().score()
    for name, each in (("saliency", 0), ("lrp", 1)):
        shards = [read_json(f"{run.base(name)}.{shard}.json") for shard in range(2)]
        counts = [shard["images"][1] - shard["images"][0] for shard in shards]
        assert counts == [8, 2]
        assert [shard["check_passes"] - each * count for shard, count in zip(shards, counts, strict=True)] == [6, 6]
        assert shards[0]["gate"]["check_passes"] == 4 * each

"""AttnLRP: conservation on networks of three libraries, rules by hand, and the state of fused attention after it."""

import dataclasses

import pytest
import timm
import torch
from tiny_vits import tiny_vit
from torch import nn
from torch.nn import functional

from heatproof.errors import NotApplicable
from heatproof.explainers._attn_lrp import AttentionRules
from heatproof.explainers.registry import EXPLAINERS


def explained_by(explain_digits, network, figures=None):
    network = network.eval().requires_grad_(False)
    return dataclasses.replace(explain_digits(count=2), network=network, output=network, figures=figures)


def swin():
    torch.manual_seed(0)
    return timm.models.SwinTransformer(
        img_size=32, patch_size=2, embed_dim=8, depths=(2, 2), num_heads=(2, 2), window_size=4, num_classes=10
    )


def torchvisions():
    from torchvision.models import VisionTransformer

    torch.manual_seed(0)
    network = VisionTransformer(32, 8, 2, 2, 12, 24, num_classes=10)
    nn.init.normal_(network.heads.head.weight)
    return network


@pytest.mark.parametrize("make", [tiny_vit, swin, torchvisions])
def test_relevance_of_image_and_constants_sums_to_the_logit(make, explain_digits):
    figures = {}
    maps = EXPLAINERS["attn_lrp"].function(explained_by(explain_digits, make(), figures))["attn_lrp"]
    assert figures["conservation_error"].value < 1e-4
    assert maps.std() > 0


def test_the_map_sums_to_the_logit_without_constants(explain_digits):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(3, 4, 4, 4, bias=False), nn.GELU(), nn.Flatten(), nn.Linear(256, 10, bias=False))
    context = explained_by(explain_digits, network)
    maps = EXPLAINERS["attn_lrp"].function(context)["attn_lrp"]
    logits = network(context.images)[range(2), context.targets]
    torch.testing.assert_close(maps.sum((1, 2)), logits, rtol=1e-4, atol=1e-5)


def test_an_operation_without_a_rule_is_not_applicable(explain_digits):
    class Exponential(nn.Module):
        def forward(self, images):
            return images.flatten(1)[:, :10].exp()

    with pytest.raises(NotApplicable, match="an operation that no rule covers"):
        EXPLAINERS["attn_lrp"].function(explained_by(explain_digits, Exponential()))


def relevance(function, values):
    """Return the value of a sum of outputs, and input times gradient under the rules."""
    read = values.clone().requires_grad_()
    with AttentionRules(values):
        output = function(read)
    (slope,) = torch.autograd.grad((output * torch.arange(1.0, 1 + output.shape[-1])).sum(), read)
    return output.detach(), slope * values


def test_relevance_of_softmax_follows_its_expansion():
    """Relevance is x (R − s ΣR), where R is the relevance of each output, here its value times 1, 2, 3."""
    values = torch.tensor([[0.5, -1.0, 2.0]])
    output, output_relevance = relevance(lambda x: x.softmax(-1), values)
    received = output * torch.tensor([1.0, 2.0, 3.0])
    torch.testing.assert_close(output_relevance, values * (received - output * received.sum()))


def test_a_norm_conserves_relevance():
    values = torch.tensor([[0.5, -1.0, 2.0]])
    output, output_relevance = relevance(lambda x: functional.layer_norm(x - x.mean(-1, keepdim=True), (3,)), values)
    torch.testing.assert_close(output, functional.layer_norm(values, (3,)))
    weights = torch.tensor([1.0, 2.0, 3.0])
    torch.testing.assert_close(output_relevance.sum(), (output * weights).sum())


def test_factors_of_a_product_get_equal_shares():
    first, second = torch.rand(1, 2, 3), torch.rand(1, 3, 2)
    first.requires_grad_()
    second.requires_grad_()
    with AttentionRules(torch.zeros(1, 1)):
        product = first @ second
    slopes = torch.autograd.grad(product.sum(), (first, second))
    for factor, slope in zip((first, second), slopes, strict=True):
        torch.testing.assert_close((factor * slope).sum(), product.sum() / 2)


def test_fused_attention_is_decomposed_only_inside_the_mode():
    torch.manual_seed(0)
    query, key, value = torch.rand(3, 2, 2, 4, 6).unbind()
    fused = functional.scaled_dot_product_attention(query, key, value)
    inside = []
    original = functional.scaled_dot_product_attention
    with AttentionRules(query), torch.profiler.profile() as profiled:
        inside.append(functional.scaled_dot_product_attention(query, key, value))
    assert not any("scaled_dot_product" in event.key for event in profiled.key_averages())
    torch.testing.assert_close(inside[0], fused)
    assert functional.scaled_dot_product_attention is original
    with torch.profiler.profile() as profiled:
        functional.scaled_dot_product_attention(query, key, value)
    assert any("scaled_dot_product" in event.key for event in profiled.key_averages())

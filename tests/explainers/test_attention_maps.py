"""Attention of tiny vision transformers against explicit formulas; a pass leaves the network unchanged."""

import dataclasses

import pytest
import timm
import torch
from applicable import ATTENTION, TRANSFORMERS
from tiny_vits import POOLINGS, Wrapped, by_hand, enlarge, tiny_vit
from torch import nn

from heatproof.core.hooks import is_counted_as_check
from heatproof.errors import NotApplicable
from heatproof.explainers._attention import attention_blocks, read_attention
from heatproof.explainers.attention import propagate, roll_out, run_markov_chain
from heatproof.explainers.registry import EXPLAINERS


@pytest.fixture(params=POOLINGS)
def context(request, explain_digits):
    network = tiny_vit(**POOLINGS[request.param])
    return dataclasses.replace(
        explain_digits(count=3), network=network, output=network, targets=torch.tensor([1, 5, 9]), batch_size=2
    )


def test_attention_and_gradients_equal_those_of_the_network(context):
    logits, maps, gradients = by_hand(context.network, context.images, context.targets)
    assert (logits - context.network(context.images)).abs().max() < 1e-5
    parts = list(read_attention(context, gradients=True))
    assert [len(part.images) for part in parts] == [2, 1]
    for block in range(3):
        attention = torch.cat([part.attention[block] for part in parts])
        assert (attention.sum(-1) - 1).abs().max() < 1e-5
        assert attention.std() > 0.01, "far from uniform"
        assert (attention - maps[block]).abs().max() < 1e-5
        slopes = torch.cat([part.gradients[block] for part in parts])
        assert (slopes - gradients[block]).abs().max() < 1e-5 * gradients[block].abs().max().clamp(min=1)


def test_maps_follow_the_formulas(context):
    network = context.network
    _, maps, gradients = by_hand(network, context.images, context.targets)
    identity = torch.eye(maps[0].shape[-1])
    first, second, third = ((each.mean(1) + identity) / 2 for each in maps)
    weighted = [(slope * each).relu().mean(1) for each, slope in zip(maps, gradients, strict=True)]
    path = [by_hand(network, context.images * share, context.targets)[2][-1] for share in torch.linspace(0, 1, 20)]
    mean_slope = sum(path) / 20
    # One third of three blocks, the first one, is skipped.
    state = maps[2].mean(1) @ maps[1].mean(1) + maps[2].mean(1)
    relevance = (identity + weighted[2]) @ (identity + weighted[1]) @ (identity + weighted[0])
    expected = {
        "raw_attention": maps[-1].mean(1),
        "attention_rollout": third @ second @ first,
        "attention_grad": weighted[-1],
        "chefer_attention": relevance,
        "transition_attention": state * mean_slope.relu().mean(1),
    }
    assert set(expected) == set(ATTENTION)
    for name, rows in expected.items():
        values = EXPLAINERS[name].function(context)[name]
        assert values.std() > 0
        assert (values - enlarge(network, rows)).abs().max() < 1e-5, name


def test_rollout_of_attention_to_oneself_is_the_identity():
    identity = torch.eye(5).expand(2, 5, 5)
    assert torch.equal(roll_out([identity] * 4), identity)


def test_rollout_of_uniform_attention_by_hand():
    rolled = roll_out([torch.full((1, 2, 2), 0.5)] * 2)
    # (A + I) / 2 has ¾ on the diagonal and ¼ elsewhere; it is squared.
    torch.testing.assert_close(rolled, torch.tensor([[[0.625, 0.375], [0.375, 0.625]]]))
    assert torch.equal(rolled.sum(-1), torch.ones(1, 2))


def test_rollout_multiplies_later_blocks_from_the_left():
    swap_to_second = torch.tensor([[[0.0, 1.0], [0.0, 1.0]]])
    swap_to_first = torch.tensor([[[1.0, 0.0], [1.0, 0.0]]])
    rolled = roll_out([swap_to_second, swap_to_first])
    # In block 1 the first token keeps ½ of itself; in block 2 the second token gets half of that.
    torch.testing.assert_close(rolled, torch.tensor([[[0.5, 0.5], [0.25, 0.75]]]))


def test_the_markov_chain_adds_every_block_to_the_state_of_later_ones():
    first, second, third = torch.rand(3, 1, 4, 4).softmax(-1)
    state = run_markov_chain([first, second, third])
    torch.testing.assert_close(state, third + third @ second + third @ first + third @ second @ first)
    torch.testing.assert_close(state.sum(-1), torch.full((1, 4), 4.0))
    assert torch.equal(run_markov_chain([third]), third)


def test_relevance_without_positive_gradients_stays_with_each_token():
    assert torch.equal(propagate(iter([torch.zeros(1, 3, 3)] * 2)), torch.eye(3)[None])


@pytest.mark.parametrize("name", TRANSFORMERS)
@pytest.mark.parametrize("settings", [[True, True, True], [True, False, True]], ids=str)
def test_fused_attention_is_disabled_in_the_pass_and_restored_after_it(name, settings, explain_digits):
    network = tiny_vit()
    context = dataclasses.replace(explain_digits(), network=network, output=network)
    blocks = attention_blocks(network)
    for block, fused in zip(blocks, settings, strict=True):
        block.fused_attn = fused
    fused_logits = network(context.images)
    met, logits = [], []
    handles = [
        blocks[0].register_forward_pre_hook(
            lambda *_: met.append((is_counted_as_check(), [block.fused_attn for block in blocks]))
        ),
        network.register_forward_hook(
            lambda module, inputs, output: logits.append((is_counted_as_check(), output.detach()))
        ),
    ]
    EXPLAINERS[name].function(context)
    for handle in handles:
        handle.remove()
    # The last of the twenty passes of transition attention has the image itself.
    assert met == [(False, [False] * 3)] * (20 if name == "transition_attention" else 1) + [(True, settings)]
    assert [block.fused_attn for block in blocks] == settings
    assert [checks for checks, _ in logits[-2:]] == [False, True]
    assert all((unfused - fused_logits).abs().max() < 1e-5 for _, unfused in logits[-2:])
    assert not any(block.attn_drop._forward_hooks for block in blocks)


def test_fused_attention_is_restored_after_a_failure(explain_digits):
    network = tiny_vit()
    network.norm.register_forward_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        EXPLAINERS["raw_attention"].function(dataclasses.replace(explain_digits(), network=network, output=network))
    assert all(block.fused_attn for block in attention_blocks(network))
    assert not any(block.attn_drop._forward_hooks for block in attention_blocks(network))


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_map_is_where_the_network_attends(name, explain_digits):
    """All queries attend most to the one bright patch."""
    network = tiny_vit(depth=1, num_heads=1, pos_embed="none", class_token=False, global_pool="avg")
    attention = network.blocks[0].attn
    with torch.no_grad():
        attention.qkv.bias[:12] = 1
        attention.qkv.weight[:12] = 0
        attention.qkv.weight[12:24] = 3 * network.patch_embed.proj(torch.ones(1, 3, 8, 8)).flatten()
    images = torch.full((1, 3, 32, 32), -1.0)
    images[:, :, 8:16, 16:24] = 1
    context = dataclasses.replace(explain_digits(count=1), network=network, output=network, images=images)
    every_class = dataclasses.replace(context, images=images.expand(10, -1, -1, -1), targets=torch.arange(10))
    every_class = dataclasses.replace(every_class, image_ids=tuple("0123456789"))
    (seen,) = read_attention(every_class, gradients=True)
    # The class whose logit depends most on attention to the bright patch.
    target = (seen.gradients[0][:, 0, 0, 6] - seen.gradients[0][:, 0, 0, 0]).argmax()
    values = EXPLAINERS[name].function(dataclasses.replace(context, targets=target[None]))[name][0]
    row, column = divmod(int(values.argmax()), 32)
    assert 8 <= row < 16
    assert 16 <= column < 24


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_network_without_attention_is_not_applicable(name, explain_digits):
    with pytest.raises(NotApplicable, match="no attention blocks"):
        EXPLAINERS[name].function(explain_digits("cifar_resnet20"))


def test_a_transformer_inside_of_a_network_is_found(explain_digits):
    plain, outer = tiny_vit(), Wrapped(tiny_vit())
    context = explain_digits()
    name = "attention_grad"
    of_plain = EXPLAINERS[name].function(dataclasses.replace(context, network=plain, output=plain))[name]
    of_outer = EXPLAINERS[name].function(dataclasses.replace(context, network=outer, output=outer))[name]
    torch.testing.assert_close(of_outer, 2 * of_plain)


class Loose(nn.Module):
    """An attention block without a transformer around it."""

    def __init__(self):
        super().__init__()
        self.attention = timm.models.vision_transformer.Attention(8, 2)

    def forward(self, images):
        return self.attention(images.flatten(2).mT[..., :1].repeat(1, 1, 8)).mean(1)


class Pooled(timm.models.VisionTransformer):
    """Each pair of patches becomes one token, so tokens no longer form the declared grid."""

    def _pos_embed(self, tokens):
        return torch.cat([self.cls_token.expand(len(tokens), -1, -1), tokens.unflatten(1, (-1, 2)).mean(2)], 1)


def test_tokens_without_a_grid_are_not_applicable(explain_digits):
    loose = Loose().eval()
    pooled = Pooled(32, 8, num_classes=10, embed_dim=12, depth=1, num_heads=2).eval()
    skipped = tiny_vit()
    skipped.blocks[1] = nn.Identity()
    skipped.spare = tiny_vit().blocks[0]
    for network, reason in (
        (loose, "num_prefix_tokens"),
        (pooled, "not a grid of patches"),
        (skipped, "2 attention blocks.* 3 has"),
    ):
        for name in ATTENTION:
            with pytest.raises(NotApplicable, match=reason):
                EXPLAINERS[name].function(dataclasses.replace(explain_digits(), network=network, output=network))

"""Attention with masks, shared heads and keys that are no tokens of the image, as torch's functions compute it."""

import pytest
import torch
from hand_vits import hand_vit
from test_cells import noise, run
from torch import nn
from torch.nn import functional

from heatproof.errors import NotApplicable
from heatproof.explainers._function_rules import AttentionRecorder, UnfusedAttention

TOKENS = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0))
MASK = torch.eye(5, dtype=torch.bool).roll(1, 1)
PADDING = torch.tensor([[False] * 4 + [True], [False] * 5])


def attend(tokens, mask=None, padding=None, **options):
    torch.manual_seed(0)
    module = nn.MultiheadAttention(8, 2, batch_first=True, **options).double().eval()
    nn.init.normal_(module.in_proj_bias)
    return module(tokens, tokens, tokens, attn_mask=mask, key_padding_mask=padding, need_weights=False)[0]


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"mask": MASK},
        {"padding": PADDING},
        {"mask": MASK, "padding": PADDING},
        {"mask": torch.stack([MASK, ~MASK, MASK, ~MASK])},
        {"add_zero_attn": True, "mask": MASK},
        {"add_bias_kv": True, "padding": PADDING},
        {"add_bias_kv": True, "add_zero_attn": True},
    ],
    ids=lambda arguments: ", ".join(arguments) or "plain",
)
def test_decomposed_multi_head_attention_equals_that_of_torch(arguments):
    tokens = TOKENS.double().requires_grad_()
    expected = attend(tokens, **arguments)
    with UnfusedAttention():
        values = attend(tokens, **arguments)
    torch.testing.assert_close(values, expected)


def test_heads_that_share_keys_equal_those_of_torch():
    query, key = torch.randn(2, 4, 5, 8), torch.randn(2, 2, 5, 8)
    expected = functional.scaled_dot_product_attention(query, key, key, enable_gqa=True)
    with AttentionRecorder() as recorder:
        values = functional.scaled_dot_product_attention(query, key, key, enable_gqa=True)
    torch.testing.assert_close(values, expected)
    assert [tuple(attention.shape) for attention in recorder.attention] == [(2, 4, 5, 5)]


class OtherKeys(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.inner = nn.MultiheadAttention(8, 2, batch_first=True, **options)

    def forward(self, tokens):
        return self.inner(tokens, tokens, tokens, need_weights=False)[0]


@pytest.mark.parametrize("option", ["add_zero_attn", "add_bias_kv"])
def test_keys_that_are_no_tokens_are_the_reason(option):
    network = hand_vit((4, 4), prefix=1)
    network.blocks[0].read_attention = OtherKeys(**{option: True})
    with pytest.raises(NotApplicable, match="from 17 tokens to 18"):
        run("attention_rollout", network, noise(12, 12))

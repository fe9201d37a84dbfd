"""Tiny vision transformers, and their attention by explicit formulas."""

import timm
import torch
from torch import nn
from torch.nn.functional import interpolate


def tiny_vit(**options):
    """Return a transformer whose attention is far from uniform: its random weights are ten times timm's."""
    sizes = {"img_size": 32, "patch_size": 8, "num_classes": 10, "embed_dim": 12, "depth": 3, "num_heads": 2}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = timm.models.VisionTransformer(**(sizes | options))
        for name, parameter in network.named_parameters():
            if "qkv" in name:
                nn.init.normal_(parameter, std=0.5)
    return network.eval().requires_grad_(False)


POOLINGS = {
    "class token": {},
    "class token and registers": {"reg_tokens": 3},
    "mean of patches": {"class_token": False, "global_pool": "avg"},
    "mean of patches beside a class token": {"global_pool": "avg", "reg_tokens": 2},
}


def by_hand(network, images, targets):
    """Return the logits, the attention of every block and its gradients, computed from timm's weights without hooks."""
    tokens = network._pos_embed(network.patch_embed(images.clone().requires_grad_()))
    attention = []
    for block in network.blocks:
        normed = block.norm1(tokens)
        count, length, width = normed.shape
        heads = block.attn.num_heads
        query, key, value = block.attn.qkv(normed).view(count, length, 3, heads, -1).permute(2, 0, 3, 1, 4)
        weights = (query @ key.mT / (width // heads) ** 0.5).softmax(-1)
        attention.append(weights)
        tokens = tokens + block.attn.proj((weights @ value).transpose(1, 2).flatten(2))
        tokens = tokens + block.mlp(block.norm2(tokens))
    logits = network.forward_head(network.norm(tokens))
    gradients = torch.autograd.grad(logits[range(len(images)), targets].sum(), attention)
    return logits.detach(), [each.detach() for each in attention], gradients


def enlarge(network, rows):
    prefix = network.num_prefix_tokens
    query = rows[:, 0] if network.global_pool == "token" else rows[:, prefix:].mean(1)
    assert query.shape[1] == 16 + prefix
    return interpolate(query[:, prefix:].view(-1, 1, 4, 4), (32, 32), mode="bilinear", align_corners=False)[:, 0]


class Wrapped(nn.Module):
    """A user's network around timm's."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, images):
        return self.inner(images) * 2

"""Vision transformers written by hand, which declare nothing about the order of their tokens."""

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention


class Attend(nn.Module):
    def __init__(self, width, heads=2):
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, tokens):
        query, key, value = self.qkv(tokens).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return self.out(scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm1, self.read_attention = nn.LayerNorm(width), Attend(width)
        self.norm2, self.mlp = nn.LayerNorm(width), nn.Sequential(nn.Linear(width, 2 * width), nn.GELU())
        self.out = nn.Linear(2 * width, width)

    def forward(self, tokens):
        tokens = tokens + self.read_attention(self.norm1(tokens))
        return tokens + self.out(self.mlp(self.norm2(tokens)))


class HandVit(nn.Module):
    """Vision transformer with patches of any shape and other tokens before and after them.

    Parameters
    ----------
    grid
        Number of rows and columns of patches.
    prefix, suffix
        Number of tokens before and after the patches.
    pool
        Tokens that the head reads: ``class`` (the first token, or the last one without prefix tokens), ``patches`` or
        ``all``.
    size
        Height and width of the image; by default, patches have three pixels a side.
    by_column
        Whether patches are ordered column by column.
    """

    def __init__(
        self, grid, prefix=0, suffix=0, pool="class", size=None, by_column=False, depth=1, width=8, stem=None, scale=0.5
    ):
        super().__init__()
        self.grid, self.prefix, self.suffix, self.pool, self.by_column = grid, prefix, suffix, pool, by_column
        self.size = size or (3 * grid[0], 3 * grid[1])
        patch = self.size[0] // grid[0], self.size[1] // grid[1]
        self.embed = stem or nn.Conv2d(3, width, patch, patch)
        self.before, self.after = (nn.Parameter(torch.randn(1, count, width)) for count in (prefix, suffix))
        self.position = nn.Parameter(scale * torch.randn(1, prefix + grid[0] * grid[1] + suffix, width))
        self.blocks = nn.Sequential(*(Block(width) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 5)
        self.eval().requires_grad_(False)

    @property
    def cells(self):
        """Index of the token of each cell, row by row."""
        index = torch.arange(self.grid[0] * self.grid[1])
        index = index.view(self.grid[::-1]).T.flatten() if self.by_column else index.flatten()
        return tuple((index + self.prefix).tolist())

    def forward(self, images):
        patches = self.embed(images)
        patches = (patches.mT if self.by_column else patches).flatten(2).mT
        other_tokens = [each.expand(len(images), -1, -1) for each in (self.before, self.after)]
        tokens = self.blocks(torch.cat([other_tokens[0], patches, other_tokens[1]], 1) + self.position)
        tokens = self.norm(tokens)
        if self.pool == "class":
            return self.head(tokens[:, 0 if self.prefix else -1])
        only = slice(self.prefix, self.prefix + patches.shape[1])
        return self.head(tokens[:, only if self.pool == "patches" else slice(None)].mean(1))


def hand_vit(*args, seed=0, **options):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return HandVit(*args, **options)

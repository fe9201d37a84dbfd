"""Find the kinds of a network that explainers declare in `applies_to`, and the layer for class activation maps."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import nn

from heatproof.errors import NotApplicable
from heatproof.explainers._attention import attention_blocks, find_transformer
from heatproof.explainers._batches import as_leaf
from heatproof.explainers._function_rules import AttentionRecorder
from heatproof.explainers._hooks import prefix_tokens
from heatproof.explainers._layers import Layout, inspect_layers
from heatproof.explainers._relus import ReluRules

# Parts of class names of norms over the values of one image, in torch, torchvision, timm and transformers.
NORMS = ("layernorm", "groupnorm", "rmsnorm", "instancenorm", "responsenorm")


class NetworkTraits(NamedTuple):
    """Properties of a network that decide which explainers apply to it.

    Attributes
    ----------
    kinds
        Names of `heatproof.explainers.registry.NETWORK_KINDS`.
    layout
        Layer for class activation maps; None if there is none.
    blocks
        Number of softmaxes between tokens in a pass.
    tokens
        Smallest and largest number of tokens in these softmaxes; None without them.
    """

    kinds: frozenset[str]
    layout: Layout | None
    blocks: int
    tokens: tuple[int, int] | None

    def __str__(self) -> str:
        """Describe the layer for class activation maps and the attention blocks."""
        layer = f"layer for CAMs {self.layout}" if self.layout else "no layer for CAMs"
        if self.tokens is None:
            return f"{layer}; no attention blocks"
        where = "all patches" if "attention" in self.kinds else "windows" if "windows" in self.kinds else "other tokens"
        fewest, most = self.tokens
        count = f"{most}" if fewest == most else f"{fewest} to {most}"
        return f"{layer}; {self.blocks} attention block(s) between {where}, {count} tokens"


def inspect_network(network: nn.Module, images: torch.Tensor, cam_layer: str | None = None) -> NetworkTraits:
    """Find the properties of a network by three passes and one gradient.

    Parameters
    ----------
    network
        Images to logits, in eval mode.
    images
        (2, C, H, W), normalised.
    cam_layer
        Name of the layer in the model's facts; for None, the rule of `heatproof.explainers._layers` finds it.
    """
    inspection = inspect_layers(network, images, cam_layer)
    layout = inspection.layout
    with torch.enable_grad(), AttentionRecorder() as mode, ReluRules() as relus:
        network(as_leaf(images).clone())
    token_counts = [attention.shape[-1] for attention in mode.attention]
    is_one_per_image = all(len(attention) == len(images) for attention in mode.attention)
    kinds = {"any"} | ({"grid"} if layout else set())
    modules = list(network.modules())
    names = {type(module).__name__.lower() for module in modules}
    # A ReLU that does not read the image, as in a position embedding, has no gradient that a rule could change.
    if relus.was_called:
        kinds.add("relu")
    if all(hasattr(network, name) for name in ("patches", "patch_size", "patch_stride")):
        kinds.add("bagnet")
    if all(hasattr(network, name) for name in ("encode", "linear")):
        kinds.add("bcos")
    if token_counts and is_one_per_image and len(set(token_counts)) == 1:
        if inspection.changes.locate_attended_tokens(token_counts[0], prefix_tokens(network)):
            kinds.add("attention")
    elif token_counts and not is_one_per_image:
        kinds.add("windows")
    has_norms = any(norm in name for name in names for norm in NORMS)
    if any(isinstance(module, nn.Conv2d) for module in modules) and not (token_counts or has_norms or "bcos" in kinds):
        kinds.add("convolutional")
    if _is_plain_vit(network):
        kinds.add("plain_vit")
    return NetworkTraits(
        frozenset(kinds), layout, len(token_counts), (min(token_counts), max(token_counts)) if token_counts else None
    )


def _is_plain_vit(network: nn.Module) -> bool:
    from heatproof.explainers._relevance import require_rules

    blocks = attention_blocks(network)
    try:
        require_rules(find_transformer(network, blocks))
    except NotApplicable:
        return False
    return bool(blocks)

"""Maximal activation of each channel of a layer, for each image."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from heatproof.errors import NotApplicable
from heatproof.models.network import find_layer

if TYPE_CHECKING:
    from heatproof.perturbation.batching import Query


def channel_responses(query: Query, layer: str) -> dict[str, np.ndarray]:
    """Return the ``activation`` (N, channels) of a query's images; see `channel_activations`."""
    network: Any = query.network
    found = channel_activations(network, query.images, layer, query.batch_size, device=query.device)
    return {"activation": found}


def channel_activations(
    network: torch.nn.Module,
    images: torch.Tensor,
    layer: str,
    batch_size: int = 64,
    *,
    device: torch.device | str | None = None,
) -> np.ndarray:
    """Return the maximal activation of each channel over positions, for each image.

    The images with the largest values of a channel show what it has learned; a network that is finetuned and keeps its
    features keeps them (Hesse et al. 2024, section 4.1, network similarity, and appendix A).

    Parameters
    ----------
    network
        Images (B, C, H, W) to logits, in eval mode.
    images
        (N, C, H, W), normalised.
    layer
        Name of the submodule whose output is (B, channels, height, width).
    batch_size
        The largest number of images in one network pass.
    device
        Device of the network; default: that of the images.

    Returns
    -------
    numpy.ndarray
        (N, channels) float32, of any sign: the maximum over height and width.

    Raises
    ------
    HeatproofError
        If there is no such layer.
    NotApplicable
        If its output has no grid.
    """
    module = find_layer(network, layer, "model")
    seen: list[torch.Tensor] = []

    def keep(_module: torch.nn.Module, _inputs: object, output: torch.Tensor) -> None:
        if not isinstance(output, torch.Tensor) or output.ndim != 4:
            raise NotApplicable(
                f"the layer {layer!r} gives no (batch, channels, height, width), so its channels cannot be followed"
            )
        # At once: what follows may write into the same memory, as a ReLU in place does.
        seen.append(output.amax((2, 3)))

    handle = module.register_forward_hook(keep)
    parts = []
    try:
        with torch.no_grad():
            for start in range(0, len(images), batch_size):
                seen.clear()
                batch = images[start : start + batch_size]
                network(batch.to(device if device is not None else batch.device))
                # More than one where memory ran out, and more rows than images where the batch was filled up.
                parts.append(torch.cat(seen)[: len(batch)].float().cpu().numpy())
    finally:
        handle.remove()
    return np.concatenate(parts)

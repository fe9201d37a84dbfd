"""Maximal activation of each channel of a layer, for each image."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from heatproof.core.network import Network


def channels_of_layers(
    network: Network, images: torch.Tensor, layers: Sequence[str], batch_size: int = 64
) -> dict[str, np.ndarray]:
    """Return the maximal activation of each channel of layers over positions, for each image, from one pass per image.

    The images with the largest values of a channel show what it has learned. If finetuning preserves the features of a
    network, it preserves these images (Hesse et al. 2024, section 4.1, network similarity, and appendix A).

    Layers are omitted if the network does not have them, if their output is not (B, channels, height, width), or if a
    pass calls them several times, like one ReLU that a whole block shares.

    Parameters
    ----------
    network
        The network.
    images
        (N, C, H, W), normalised.
    layers
        Names of submodules.
    batch_size
        The largest number of images in one network pass.

    Returns
    -------
    dict
        Arrays (N, channels) float32 by layer, in the order of `layers`, of any sign.
    """
    modules = dict(network.module.named_modules(remove_duplicate=False))
    maxima: dict[str, list[torch.Tensor]] = {layer: [] for layer in layers if layer in modules}
    calls: dict[str, int] = {}
    repeated: set[str] = set()

    def record(layer: str, _module: torch.nn.Module, _inputs: object, output: torch.Tensor) -> None:
        calls[layer] = calls.get(layer, 0) + 1
        if calls[layer] > 1:
            repeated.add(layer)
        elif isinstance(output, torch.Tensor) and output.ndim == 4:
            # Reduced in the hook, because later layers may overwrite the output, as an in-place ReLU does.
            maxima[layer].append(output.amax((2, 3)))

    # If memory runs out, one call makes several passes of the module.
    handles = [network.module.register_forward_pre_hook(lambda *_: calls.clear())]
    handles += [modules[layer].register_forward_hook(partial(record, layer)) for layer in maxima]
    parts: dict[str, list[np.ndarray]] = {}
    try:
        with torch.no_grad():
            for start in range(0, len(images), batch_size):
                for values in maxima.values():
                    values.clear()
                part = images[start : start + batch_size]
                network(part.to(network.device))
                # There are several tensors if memory ran out, and more rows than images if the batch was padded.
                for layer, values in maxima.items():
                    if values:
                        parts.setdefault(layer, []).append(torch.cat(values)[: len(part)].float().cpu().numpy())
    finally:
        for handle in handles:
            handle.remove()
    return {layer: np.concatenate(parts[layer]) for layer in maxima if layer in parts and layer not in repeated}


def channel_counts(network: torch.nn.Module, images: torch.Tensor, layers: Sequence[str]) -> dict[str, int]:
    """Return the number of channels of each layer that has a grid, and 0 for other layers and those called repeatedly.

    If the network fails on the images, only the layers before the failure are included.

    Parameters
    ----------
    network
        Network from images to logits; on PyTorch's meta device, nothing is computed.
    images
        (B, C, H, W), on the network's device.
    layers
        Names of submodules.

    Returns
    -------
    dict
        Number of channels, by name of the layer.
    """
    modules = dict(network.named_modules(remove_duplicate=False))
    counts = {layer: 0 for layer in layers if layer in modules}
    called: set[str] = set()

    def record(layer: str, _module: torch.nn.Module, _inputs: object, output: torch.Tensor) -> None:
        once = layer not in called
        called.add(layer)
        counts[layer] = output.shape[1] if once and isinstance(output, torch.Tensor) and output.ndim == 4 else 0

    handles = [modules[layer].register_forward_hook(partial(record, layer)) for layer in counts]
    try:
        with torch.no_grad():
            network(images)
    except Exception:  # the network can fail in any way; the job that runs it reports the error
        return {layer: count for layer, count in counts.items() if count}
    finally:
        for handle in handles:
            handle.remove()
    return counts

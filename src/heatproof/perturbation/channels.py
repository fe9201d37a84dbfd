"""Maximal activation of each channel of a layer, for each image."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from heatproof.errors import NotApplicable
from heatproof.models.network import find_layer
from heatproof.perturbation.batching import PaddedBatches

if TYPE_CHECKING:
    from heatproof.perturbation.batching import Query


def channel_responses(query: Query, layers: Sequence[str]) -> dict[str, np.ndarray]:
    """Return the ``activation`` (N, channels) of images, layer after layer; see `channels_of_layers`."""
    network: Any = query.network
    found = channels_of_layers(network, query.images, layers, query.batch_size, device=query.device)
    return {"activation": np.concatenate(list(found.values()), axis=1)}


def channel_activations(
    network: torch.nn.Module,
    images: torch.Tensor,
    layer: str,
    batch_size: int = 64,
    *,
    device: torch.device | str | None = None,
) -> np.ndarray:
    """Return the maximal activation of each channel of a layer over positions, for each image.

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
        If its output has no grid, or a pass calls it several times.
    """
    find_layer(network, layer, "model")
    found = channels_of_layers(network, images, [layer], batch_size, device=device)
    if not found:
        raise NotApplicable(
            f"the layer {layer!r} gives no (batch, channels, height, width) once in a pass, so its channels cannot be "
            "followed"
        )
    return found[layer]


def channels_of_layers(
    network: torch.nn.Module,
    images: torch.Tensor,
    layers: Sequence[str],
    batch_size: int = 64,
    *,
    device: torch.device | str | None = None,
) -> dict[str, np.ndarray]:
    """Return the activations of `channel_activations` for several layers, from one pass an image.

    Layers that the network does not have, those whose output has no grid, and those that a pass calls several times,
    such as one ReLU for all of a block, are left out.

    Parameters
    ----------
    network, images, batch_size, device
        As of `channel_activations`.
    layers
        Names of submodules.

    Returns
    -------
    dict
        Layer to (N, channels) float32, in the order given.
    """
    modules = dict(network.named_modules(remove_duplicate=False))
    seen: dict[str, list[torch.Tensor]] = {layer: [] for layer in layers if layer in modules}
    calls: dict[str, int] = {}
    several: set[str] = set()

    def keep(layer: str, _module: torch.nn.Module, _inputs: object, output: torch.Tensor) -> None:
        calls[layer] = calls.get(layer, 0) + 1
        if calls[layer] > 1:
            several.add(layer)
        elif isinstance(output, torch.Tensor) and output.ndim == 4:
            # At once: what follows may write into the same memory, as a ReLU in place does.
            seen[layer].append(output.amax((2, 3)))

    # Where memory runs out, one call of the outer network is several passes.
    inner = network.network if isinstance(network, PaddedBatches) else network
    handles = [inner.register_forward_pre_hook(lambda *_: calls.clear())]
    handles += [modules[layer].register_forward_hook(partial(keep, layer)) for layer in seen]
    parts: dict[str, list[np.ndarray]] = {}
    try:
        with torch.no_grad():
            for start in range(0, len(images), batch_size):
                for values in seen.values():
                    values.clear()
                batch = images[start : start + batch_size]
                network(batch.to(device if device is not None else batch.device))
                # More than one where memory ran out, and more rows than images where the batch was filled up.
                for layer, values in seen.items():
                    if values:
                        parts.setdefault(layer, []).append(torch.cat(values)[: len(batch)].float().cpu().numpy())
    finally:
        for handle in handles:
            handle.remove()
    return {layer: np.concatenate(parts[layer]) for layer in seen if layer in parts and layer not in several}


def channel_counts(network: torch.nn.Module, images: torch.Tensor, layers: Sequence[str]) -> dict[str, int]:
    """Return the number of channels on a grid of the layers that a network has, 0 for none and for several calls.

    Layers of a network that fails on the images are left out.

    Parameters
    ----------
    network
        Images to logits; on PyTorch's device meta nothing is computed.
    images
        (B, C, H, W), on the network's device.
    layers
        Names of submodules.
    """
    modules = dict(network.named_modules(remove_duplicate=False))
    counts = {layer: 0 for layer in layers if layer in modules}
    called: set[str] = set()

    def keep(layer: str, _module: torch.nn.Module, _inputs: object, output: torch.Tensor) -> None:
        once = layer not in called
        called.add(layer)
        counts[layer] = output.shape[1] if once and isinstance(output, torch.Tensor) and output.ndim == 4 else 0

    handles = [modules[layer].register_forward_hook(partial(keep, layer)) for layer in counts]
    try:
        with torch.no_grad():
            network(images)
    except Exception:  # it can fail in any way, which the job that runs it says
        return {layer: count for layer, count in counts.items() if count}
    finally:
        for handle in handles:
            handle.remove()
    return counts

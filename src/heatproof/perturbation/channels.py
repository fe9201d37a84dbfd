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
    """Return the ``activation`` (N, channels) of images for all layers in turn; see `channels_of_layers`."""
    network: Any = query.network
    activations = channels_of_layers(network, query.images, layers, query.batch_size, device=query.device)
    return {"activation": np.concatenate(list(activations.values()), axis=1)}


def channel_activations(
    network: torch.nn.Module,
    images: torch.Tensor,
    layer: str,
    batch_size: int = 64,
    *,
    device: torch.device | str | None = None,
) -> np.ndarray:
    """Return the maximal activation of each channel of a layer over positions, for each image.

    The images with the largest values of a channel show what it has learned. If finetuning preserves the features of a
    network, it preserves these images (Hesse et al. 2024, section 4.1, network similarity, and appendix A).

    Parameters
    ----------
    network
        Network in eval mode, from images (B, C, H, W) to logits.
    images
        (N, C, H, W), normalised.
    layer
        Name of the submodule whose output is (B, channels, height, width).
    batch_size
        The largest number of images in one network pass.
    device
        Device of the network; None for the device of the images.

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

    Examples
    --------
    >>> network = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.Flatten(), torch.nn.LazyLinear(4)).eval()
    >>> channel_activations(network, torch.rand(5, 3, 8, 8), "0").shape
    (5, 8)
    """
    find_layer(network, layer, "model")
    activations = channels_of_layers(network, images, [layer], batch_size, device=device)
    if not activations:
        raise NotApplicable(
            f"the layer {layer!r} does not output (batch, channels, height, width) once in a pass, so its "
            "channels cannot be followed"
        )
    return activations[layer]


def channels_of_layers(
    network: torch.nn.Module,
    images: torch.Tensor,
    layers: Sequence[str],
    batch_size: int = 64,
    *,
    device: torch.device | str | None = None,
) -> dict[str, np.ndarray]:
    """Return the activations of `channel_activations` for several layers, from one pass per image.

    Layers are omitted if the network does not have them, if their output has no grid, or if a pass calls them several
    times, like one ReLU that a whole block shares.

    Parameters
    ----------
    network, images, batch_size, device
        As in `channel_activations`.
    layers
        Names of submodules.

    Returns
    -------
    dict
        Arrays (N, channels) float32 by layer, in the order of `layers`.
    """
    modules = dict(network.named_modules(remove_duplicate=False))
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

    # If memory runs out, one call of the wrapper makes several passes of the inner network.
    inner = network.network if isinstance(network, PaddedBatches) else network
    handles = [inner.register_forward_pre_hook(lambda *_: calls.clear())]
    handles += [modules[layer].register_forward_hook(partial(record, layer)) for layer in maxima]
    parts: dict[str, list[np.ndarray]] = {}
    try:
        with torch.no_grad():
            for start in range(0, len(images), batch_size):
                for values in maxima.values():
                    values.clear()
                batch = images[start : start + batch_size]
                network(batch.to(device if device is not None else batch.device))
                # There are several tensors if memory ran out, and more rows than images if the batch was padded.
                for layer, values in maxima.items():
                    if values:
                        parts.setdefault(layer, []).append(torch.cat(values)[: len(batch)].float().cpu().numpy())
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

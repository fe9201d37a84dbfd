"""Features of several layers for intact images and images with one deleted patch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from heatproof.core.batch import Batch, PerturbedImages
from heatproof.core.grids import AnyGrid, patch_masks
from heatproof.core.passes import run_batched
from heatproof.core.perturb.baselines import baseline_images
from heatproof.core.randomness import numpy_generator
from heatproof.errors import NotApplicable

PENULTIMATE = "penultimate"
# Including the penultimate layer.
MOST_LAYERS = 8
# Compared by exact class, because a block of a library can be a subclass of one of them.
CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


def feature_layers(network: nn.Module, image: torch.Tensor) -> dict[str, nn.Module]:
    """Find the layers of a network whose features are compared, from early to late.

    The network is divided into blocks. Containers (`torch.nn.Sequential` and the like) are divided into their items. A
    module outside of containers is divided into its children if no sibling has the same class, as the encoder of a
    transformer. Candidates are the blocks that have a kernel (a weight with two or more axes), run once and return
    positions, (B, C, H, W) or (B, tokens, C): stages of a DenseNet, blocks of a ResNet or a transformer, convolutions
    of a VGG. Seven of the candidates are selected at equal steps in the order in which they finish, including the first
    and the last. ``penultimate`` is the input of the classifier: of the layer with a kernel that starts last.

    Parameters
    ----------
    network
        Network in eval mode, from images (B, C, H, W) to logits.
    image
        (1, C, H, W), on the network's device; it passes through the network once.

    Returns
    -------
    dict
        Module whose output is read, by name of the block; the last item is ``penultimate`` and the module whose input
        is read.

    Raises
    ------
    NotApplicable
        If no layer with a kernel runs in the network.
    """
    begun: list[nn.Module] = []
    ended: dict[nn.Module, list[bool]] = {}

    def begin(module: nn.Module, _inputs: object) -> None:
        begun.append(module)

    def end(module: nn.Module, _inputs: object, output: object) -> None:
        ended.setdefault(module, []).append(isinstance(output, torch.Tensor) and output.ndim in (3, 4))

    with ExitStack() as hooks, torch.no_grad():
        for module in network.modules():
            hooks.callback(module.register_forward_pre_hook(begin).remove)
            hooks.callback(module.register_forward_hook(end).remove)
        network(image)
    heads = [module for module in begun if module is not network and _has_kernel(module, recurse=False)]
    if not heads:
        raise NotApplicable("the network runs no layer with a kernel, so its features cannot be followed")
    names = {block: name for name, block in _blocks(network)}
    once = [block for block, has_positions in ended.items() if block in names and has_positions == [True]]
    candidates = [block for block in once if _has_kernel(block) and heads[-1] not in block.modules()]
    steps = np.linspace(0, len(candidates) - 1, min(len(candidates), MOST_LAYERS - 1)).round().astype(int)
    return {**{names[candidates[step]]: candidates[step] for step in steps}, PENULTIMATE: heads[-1]}


def _has_kernel(module: nn.Module, recurse: bool = True) -> bool:
    return any(weight.ndim > 1 for weight in module.parameters(recurse))


def _blocks(module: nn.Module, prefix: str = "", inside: bool = False) -> Iterator[tuple[str, nn.Module]]:
    """Yield the blocks of a module by name; `inside` says whether the module is a container."""
    kinds = Counter(type(child) for child in module.children())
    for name, child in module.named_children():
        container = type(child) in CONTAINERS
        alone = not inside and kinds[type(child)] == 1 and any(True for _ in child.children())
        if container or alone:
            yield from _blocks(child, f"{prefix}{name}.", container)
        else:
            yield prefix + name, child


def pooled(features: torch.Tensor) -> torch.Tensor:
    """Return the mean of features over positions, (B, C).

    Parameters
    ----------
    features
        (B, C), (B, tokens, C), or (B, C, H, W); or (B, H, W, C), which is assumed if H equals W but not C.

    Returns
    -------
    torch.Tensor
        (B, C).
    """
    if features.ndim < 3:
        return features
    if features.ndim == 3:
        return features.mean(1)
    is_channels_last = features.ndim == 4 and features.shape[1] == features.shape[2] != features.shape[3]
    return features.mean((1, 2)) if is_channels_last else features.flatten(2).mean(2)


@contextmanager
def _tapped(layers: Mapping[str, nn.Module]) -> Iterator[dict[str, list[torch.Tensor]]]:
    """Yield a list for each layer, to which each pass inside this context appends features (B, C)."""
    seen: dict[str, list[torch.Tensor]] = {name: [] for name in layers}

    # Reduced in the hook, because later layers may overwrite the output, as an in-place ReLU does.
    def read_output(name: str, _module: nn.Module, _inputs: object, output: torch.Tensor) -> None:
        seen[name].append(pooled(output).float())

    def read_input(name: str, _module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        seen[name].append(pooled(inputs[0]).float())

    with ExitStack() as hooks:
        for name, layer in layers.items():
            if name == PENULTIMATE:
                hooks.callback(layer.register_forward_pre_hook(partial(read_input, name)).remove)
            else:
                hooks.callback(layer.register_forward_hook(partial(read_output, name)).remove)
        yield seen


def feature_widths(network: nn.Module, image: torch.Tensor) -> dict[str, int]:
    """Return the number of features of each layer of `feature_layers`, which has the same arguments and errors."""
    with _tapped(feature_layers(network, image)) as seen, torch.no_grad():
        network(image)
    return {name: rows[-1].shape[1] for name, rows in seen.items()}


def feature_responses(
    batch: Batch, grid: AnyGrid, baseline: str, *, baseline_options: Mapping[str, Any] | None = None
) -> dict[str, np.ndarray]:
    """Run a network on each image, intact and with one deleted patch, and return features of several layers.

    The deleted patch of an image is drawn from the seed and the image's id.

    Parameters
    ----------
    batch
        N images with their network.
    grid, baseline, baseline_options
        As in `heatproof.core.perturb.patches.patch_variants`.

    Returns
    -------
    dict
        ``features`` (N, 2, layers, F) float32, of the intact and of the perturbed image: means over positions of the
        layers of `feature_layers`, padded with zeros to the width F of the widest layer; ``confidence`` (N, 2),
        softmax probability of the predicted class; ``predicted`` (N, 2).

    Raises
    ------
    HeatproofError
        As in `heatproof.core.perturb.patches.patch_variants`.
    NotApplicable
        As in `feature_layers`.
    """
    network = batch.adapted
    layers = feature_layers(network.module, batch.images[:1].to(batch.device))
    collected: dict[str, list[torch.Tensor]] = {name: [] for name in layers}

    class Recorder:
        """Wrapper that collects features of each pass and returns the outputs of the network unchanged."""

        reader = network.reader

        def __call__(self, images: torch.Tensor) -> torch.Tensor:
            for rows in seen.values():
                rows.clear()
            logits = network(images)
            padded_size = max(len(images), network.padded_to or 0)
            for name, rows in seen.items():
                # Rows of a pass that ran out of memory come first, and copies that padded the batch last.
                collected[name].append(torch.cat(rows)[-padded_size:][: len(images)].cpu())
            return logits

    height, width = batch.images.shape[-2:]
    masks = torch.from_numpy(patch_masks(grid, height, width)).unsqueeze(1).to(batch.device)

    def batches() -> Iterator[PerturbedImages]:
        for rows, chunk, ids in batch.chunks():
            drawn = [
                int(numpy_generator(batch.seed, "in-domain patch", image_id).integers(len(masks))) for image_id in ids
            ]
            filled = baseline_images(baseline, chunk, ids, batch.seed, baseline_options, grid)
            pairs = torch.stack([chunk, torch.where(masks[drawn], filled, chunk)], dim=1).flatten(0, 1)
            for part in torch.arange(len(pairs), device=batch.device).split(batch.batch_size):
                yield batch.match_layout(pairs[part]), part // 2 + rows.start

    with _tapped(layers) as seen:
        recorder: Any = Recorder()
        read = run_batched(recorder, batches(), batch.targets.to(batch.device), batch.image_ids, largest=True)
    layer_features = [torch.cat(parts).numpy() for parts in collected.values()]
    widest = max(values.shape[1] for values in layer_features)
    features = np.stack([np.pad(values, ((0, 0), (0, widest - values.shape[1]))) for values in layer_features], axis=1)
    return {
        "features": features.reshape(-1, 2, *features.shape[1:]),
        "confidence": np.exp(read["largest_log_probability"]).reshape(-1, 2),
        "predicted": read["predicted"].reshape(-1, 2),
    }

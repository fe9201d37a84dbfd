"""In-domain finetuning: a share of the images lose one patch, so that images with deleted patches are in-domain."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import torch

from heatproof.core.grids import AnyGrid
from heatproof.core.hooks import hooks_of
from heatproof.core.network import attach
from heatproof.core.perturb.baselines import baseline_images
from heatproof.core.randomness import torch_generator
from heatproof.core.specs import FinetuningSettings
from heatproof.core.state import copy_network
from heatproof.errors import HeatproofError
from heatproof.training.examples import ConcatenatedImages
from heatproof.training.loop import (
    Examples,
    Images,
    Trained,
    TrainingRun,
    delete_patches,
    delete_random_patches,
    draw_patches,
    fit,
    split_into_batches,
)
from heatproof.training.losses import SQUARED, CompleteOutputReader, outputs_as_labels, scale_of

if TYPE_CHECKING:
    from heatproof.core.output_reader import OutputReader

# Number of images whose outputs determine the scale of outputs.
SCALE_IMAGES = 256
Baselines = Callable[[torch.Tensor, int, Iterable[int]], torch.Tensor]


def finetune_in_domain(
    network: torch.nn.Module,
    train: Examples,
    validation: Examples,
    settings: FinetuningSettings,
    options: Mapping[str, Any],
    training_run: TrainingRun,
) -> Trained:
    """Train a network on images, a share of which lose one random patch.

    Parameters
    ----------
    network
        Network, which is trained in place.
    train, validation
        Normalised images and their labels, which are not used if ``settings.labels`` is ``own``.
    settings
        Settings of the training and of the patches.
    options
        Options of the baseline.
    training_run
        As in `heatproof.training.loop.fit`.

    Returns
    -------
    Trained
        Best weights, history and saved epochs.

    Raises
    ------
    HeatproofError
        If the loss becomes infinite or NaN, no weight changed, or no image lost a patch.
    """
    seed, device = (
        settings.seed,
        training_run.device_group.device if training_run.device_group else next(network.parameters()).device,
    )
    if settings.labels == "own":
        compute_labels = _labels_from_outputs(network, settings.loss, device)
        low = range(0, len(validation.labels), settings.batch_size)
        labels = [compute_labels(validation.images[at : at + settings.batch_size]) for at in low]
        train, validation = replace(train, compute_labels=compute_labels), replace(validation, labels=torch.cat(labels))
        if settings.loss == SQUARED and train.scale is None:
            first, size = min(SCALE_IMAGES, len(train.labels)), settings.batch_size
            labels = [compute_labels(train.images[at : min(at + size, first)]) for at in range(0, first, size)]
            scale = scale_of(torch.cat(labels))
            train, validation = replace(train, scale=scale), replace(validation, scale=scale)

    def delete(images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        draw = int(torch.randint(2**31, (), generator=generator))
        filled = baselines(images, draw, range(len(images)))
        return delete_random_patches(
            images, filled, settings.grid, settings.share, generator, training_run.patch_counts
        )

    def baselines(images: torch.Tensor, draw: int, rows: Iterable[int]) -> torch.Tensor:
        ids = [f"training {draw} {row}" for row in rows]
        return baseline_images(settings.baseline, images, ids, seed, options, settings.grid)

    pairs = _with_deleted(validation, settings.grid, torch_generator(seed, "validation patches"), baselines)
    trained = fit(network, train, pairs, settings, seed, delete, training_run=training_run)
    # If a training resumed after a kill, the patches of its first epochs were not counted.
    n_images = settings.epochs * sum(map(len, split_into_batches(torch.arange(len(train.labels)), settings.batch_size)))
    if settings.share and training_run.patch_counts["images"] == n_images and not training_run.patch_counts["deleted"]:
        raise HeatproofError(
            f"No image lost a patch in {settings.epochs} epochs of the finetuning: raise share, now "
            f"{settings.share:g}, or epochs, or give more images."
        )
    return trained


def use_complete_output(network: torch.nn.Module, examples: list[Examples], batch_size: int) -> list[Examples]:
    """Make a network return its complete output, and return the images with the scale of its outputs."""
    if hooks := hooks_of(network):
        hooks.remove()
    attach(network, reader=cast("OutputReader", reader := CompleteOutputReader()))
    images, device = examples[0].images, next(network.parameters()).device
    first = min(SCALE_IMAGES, len(examples[0].labels))
    with torch.no_grad():
        outputs = [network(images[at : min(at + batch_size, first)].to(device)) for at in range(0, first, batch_size)]
    scale = reader.scale_of(torch.cat(outputs)).cpu()
    return [replace(part, scale=scale) for part in examples]


def _with_deleted(validation: Examples, grid: AnyGrid, generator: torch.Generator, baselines: Baselines) -> Examples:
    """Return the validation images, each once intact and once with a deleted patch, the same in every epoch."""
    count = len(validation.labels)
    draw = int(torch.randint(2**31, (), generator=generator))
    patches = draw_patches(count, grid, 1.0, generator)

    def change(images: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        return delete_patches(images, baselines(images, draw, rows.tolist()), grid, patches[rows])

    pairs: Images = ConcatenatedImages(validation.images, count, change)
    # If the images fit in memory once, they fit twice.
    in_memory = isinstance(validation.images, torch.Tensor)
    return Examples(pairs[:] if in_memory else pairs, torch.cat([validation.labels] * 2), scale=validation.scale)


def _labels_from_outputs(
    network: torch.nn.Module, loss: str, device: torch.device
) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a function from normalised images to the network's outputs before further training, as labels.

    The labels (N, K) are on the CPU, as returned by `heatproof.training.losses.outputs_as_labels`.
    """
    before = copy_network(network).eval().requires_grad_(False)

    @torch.no_grad()
    def compute_labels(images: torch.Tensor) -> torch.Tensor:
        return outputs_as_labels(loss, before(images.to(device, memory_format=torch.channels_last)).float()).cpu()

    return compute_labels

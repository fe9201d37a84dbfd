"""What the model says of perturbed images: the one loop that runs networks on them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from heatproof.errors import HeatproofError
from heatproof.grids import patch_masks
from heatproof.perturbation.baselines import baseline_images
from heatproof.perturbation.whole import layout_of

Network = Callable[[torch.Tensor], torch.Tensor]
Batch = tuple[torch.Tensor, torch.Tensor]


def run_batched(
    network: Network,
    batches: Iterable[Batch],
    targets: torch.Tensor,
    image_ids: Sequence[str],
    *,
    largest: bool = False,
) -> dict[str, np.ndarray]:
    """Run a network over batches of perturbed images and keep what metrics need of the logits.

    Parameters
    ----------
    network
        Images (B, C, H, W) to logits (B, K), in eval mode.
    batches
        Pairs of perturbed images (B, C, H, W) and the rows (B,) int64 of `targets` and `image_ids` that they stem
        from; each pair makes one network pass.
    targets
        (N,) int64, on the device of the batches: the class whose output is read; or (N, T), several of them.
    image_ids
        N strings, for messages.
    largest
        Give ``largest_logit`` and ``largest_log_probability`` as well: those of the predicted class.

    Returns
    -------
    dict
        Arrays (M,), one value per perturbed image in the order of the batches: ``logit`` float32, of the target;
        ``log_probability`` float32, log-softmax at the target, at most 0; ``predicted`` int64, the class with the
        largest logit; ``target_rank`` int16, the number of classes with a strictly larger logit than the target's,
        so that top-5 correct is ``target_rank < 5``. All but ``predicted`` are (M, T) where there are T targets.

    Raises
    ------
    HeatproofError
        If the network is in training mode, returns anything but a tensor (B, K), has no class for a target, or
        returns a logit that is not finite.
    """
    if getattr(network, "training", False):
        raise HeatproofError(
            "The model is in training mode, so its output would depend on the batch: call eval() on it first."
        )
    parts: list[dict[str, torch.Tensor]] = []
    with torch.inference_mode():
        for images, rows in batches:
            logits = _checked_logits(network(images), images, rows, image_ids).float()
            if not parts:
                _check_targets(targets, logits.shape[1], image_ids)
            target = targets[rows].reshape(len(rows), -1)
            at_target, shape = logits.gather(1, target), (len(rows), *targets.shape[1:])
            log_probability = logits.log_softmax(1)
            part = {
                "logit": at_target.reshape(shape),
                "log_probability": log_probability.gather(1, target).reshape(shape),
                "predicted": logits.argmax(1),
                "target_rank": (logits.unsqueeze(1) > at_target.unsqueeze(2)).sum(2).to(torch.int16).reshape(shape),
                "finite": logits.isfinite().all(1),
                "rows": rows,
            }
            if largest:
                part |= {"largest_logit": logits.amax(1), "largest_log_probability": log_probability.amax(1)}
            parts.append(part)
        # One transfer at the end: asking every batch for its values would stall an accelerator.
        read = {name: torch.cat([part[name] for part in parts]).cpu().numpy() for name in parts[0]}
    finite, rows_read = read.pop("finite"), read.pop("rows")
    if not finite.all():
        image_id = image_ids[rows_read[np.flatnonzero(~finite)[0]]]
        raise HeatproofError(
            f"The model returned a logit that is not finite for image {image_id!r}: check the weights, and the "
            "normalisation of the images."
        )
    return read


def intact_responses(
    network: Network,
    images: torch.Tensor,
    labels: torch.Tensor,
    image_ids: Sequence[str],
    batch_size: int = 64,
    device: torch.device | str | None = None,
) -> dict[str, np.ndarray]:
    """Run a network once on every image as it is.

    Returns
    -------
    dict
        As `run_batched`, with T = 2 targets: the label, and the class that is predicted for the image.
    """
    device = images.device if device is None else torch.device(device)

    def batches() -> Iterator[Batch]:
        for rows in torch.arange(len(images), device=device).split(batch_size):
            yield images[rows.to(images.device)].to(device).contiguous(memory_format=layout_of(images)), rows

    read = run_batched(network, batches(), labels.to(device), image_ids, largest=True)
    both = {name: np.stack([read[name], read["largest_" + name]], axis=1) for name in ("logit", "log_probability")}
    rank = np.stack([read["target_rank"], np.zeros_like(read["target_rank"])], axis=1)
    return {**both, "predicted": read["predicted"], "target_rank": rank}


def patch_responses(
    network: Network,
    images: torch.Tensor,
    targets: torch.Tensor,
    image_ids: Sequence[str],
    grid: int,
    baseline: str,
    seed: int,
    batch_size: int = 64,
    *,
    baseline_options: Mapping[str, Any] | None = None,
    truncate: bool = False,
    device: torch.device | str | None = None,
) -> dict[str, np.ndarray]:
    """Run a network on every image as it is and with each patch deleted (Hesse et al. 2024, section 3).

    Exactly N × (P + 1) images go through the network, P = grid × grid, `batch_size` at a time.

    Parameters
    ----------
    network
        As in `run_batched`.
    images
        (N, C, H, W), normalised; a channels_last layout is kept.
    targets
        (N,) int64, usually the labels.
    image_ids
        N strings, which seed a random baseline.
    grid
        Patches along one side.
    baseline
        Key in `BASELINES`.
    seed
        The workflow's seed.
    batch_size
        The largest number of images in one network pass.
    baseline_options
        Options of the baseline.
    truncate
        As in `heatproof.grids.patch_size`.
    device
        Where the network is; left out, where the images are.

    Returns
    -------
    dict
        The arrays of `run_batched`, each (N, P + 1): index 0 is the intact image, then the patches row by row. The
        logit drop of patch p is ``logit[:, 0] - logit[:, p]``.

    Raises
    ------
    HeatproofError
        If the grid does not divide the images, the baseline is unknown or refuses its options, or the network fails
        as in `run_batched`.
    """
    device = images.device if device is None else torch.device(device)
    masks = torch.from_numpy(patch_masks(grid, images.shape[-2], images.shape[-1], truncate=truncate))
    masks = torch.cat([torch.zeros_like(masks[:1]), masks]).unsqueeze(1).to(device)
    targets = targets.to(device)

    def batches() -> Iterator[Batch]:
        # As many images as a batch has: all of their variants fill whole batches, and each baseline is made once.
        for start in range(0, len(images), batch_size):
            chunk = images[start : start + batch_size].to(device)
            ids = image_ids[start : start + batch_size]
            baselines = baseline_images(baseline, chunk, ids, seed, baseline_options)
            for part in torch.arange(len(chunk) * len(masks), device=device).split(batch_size):
                row, variant = part // len(masks), part % len(masks)
                perturbed = torch.where(masks[variant], baselines[row], chunk[row])
                yield perturbed.contiguous(memory_format=layout_of(images)), row + start

    read = run_batched(network, batches(), targets, image_ids)
    return {name: values.reshape(len(images), len(masks)) for name, values in read.items()}


def _checked_logits(output: object, images: torch.Tensor, rows: torch.Tensor, image_ids: Sequence[str]) -> torch.Tensor:
    """Return the network's output if it is logits for these images."""
    if isinstance(output, torch.Tensor) and output.ndim == 2 and len(output) == len(images):
        return output
    got = f"a tensor {tuple(output.shape)}" if isinstance(output, torch.Tensor) else f"a {type(output).__name__}"
    raise HeatproofError(
        f"The model returned {got} for {len(images)} images, of which the first is {image_ids[int(rows[0])]!r}: "
        "wrap it so that it returns one tensor of logits (images, classes)."
    )


def _check_targets(targets: torch.Tensor, classes: int, image_ids: Sequence[str]) -> None:
    """Refuse targets that the network has no class for; on an accelerator they would end the process."""
    wrong = (targets < 0) | (targets >= classes)
    outside = wrong.reshape(len(targets), -1).any(1).nonzero().flatten().tolist()
    if outside:
        raise HeatproofError(
            f"The target of image {image_ids[outside[0]]!r} is class {int(targets[wrong][0])}, but the model has "
            f"classes 0 to {classes - 1}: check the labels, and the model's number of classes."
        )

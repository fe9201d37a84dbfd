"""Passes of a network over batches of perturbed images, and what is read from their outputs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from heatproof.core.batch import PerturbedImages
from heatproof.core.batches import note_passes
from heatproof.core.integer_types import widen_dtype
from heatproof.core.output_reader import check_targets, log_probabilities
from heatproof.core.probabilities import PROBABILITIES_MESSAGE, is_distribution
from heatproof.core.tasks import EXCLUSIVE, task_provides
from heatproof.errors import HeatproofError

if TYPE_CHECKING:
    from heatproof.core.batch import Batch
    from heatproof.core.network import Network

# Predicted class and rank of a target if the task has no classes. The rank is not among the first ones, and -1 means
# "not computed" in stores.
NO_CLASS, NO_RANK = -2, 2**15 - 1


def run_batched(
    network: Network,
    batches: Iterable[PerturbedImages],
    targets: torch.Tensor,
    image_ids: Sequence[str],
    *,
    largest: bool = False,
) -> dict[str, np.ndarray]:
    """Run a network on batches of perturbed images, and return logits and probabilities of the targets.

    Parameters
    ----------
    network
        The network, which returns logits (B, K) for images (B, C, H, W). A single logit z stands for the logits
        [-z/2, z/2] of two classes.
    batches
        Pairs of perturbed images (B, C, H, W) and the rows (B,) int64 of `targets` and `image_ids` to which they
        belong; each pair is one network pass.
    targets
        (N,) int64, on the device of the batches: the class whose output is read; or (N, T) for several classes.
    image_ids
        N strings, for messages.
    largest
        Whether to return ``largest_logit`` and ``largest_log_probability``, those of the predicted class, as well.

    Returns
    -------
    dict
        Arrays (M,) with one value per perturbed image in the order of the batches: ``logit`` of the target, and
        ``log_probability``, log-softmax at the target, at most 0, both float32, or float64 if the network's output is;
        ``predicted`` int64, the class with the largest logit; ``target_rank``, the number of classes with a strictly
        larger logit than the target's, so that a target is among the top 5 if ``target_rank < 5``: int16, or int32 for
        more than 32,768 classes. For T targets, all but ``predicted`` are (M, T). For ``multilabel``, each label has
        its own probability (sigmoid). For tasks without classes, ``log_probability`` is NaN, ``predicted`` -2 and
        ``target_rank`` the largest int16.

    Raises
    ------
    HeatproofError
        If a module of the network is in training mode, its output is not a tensor (B, K), it has no class for a
        target, or it returns probabilities or a logit that is not finite.
    """
    parts: list[dict[str, torch.Tensor]] = []
    reader = network.reader
    # A wrapper that records what passes do is called as it is.
    run = getattr(network, "direct", network)
    on_host = targets.cpu() if reader.function else None
    # The copy to the host would stall an accelerator, so only a line of progress reads it.
    latest_rows: torch.Tensor | None = None
    note_passes(lambda: 0 if latest_rows is None else int(latest_rows.max()) + 1)
    with torch.no_grad():
        for images, rows in batches:
            with reader.only_targets([] if on_host is None else on_host[rows.cpu()].flatten().tolist()):
                logits = run(images)
            task = reader.task
            if not parts:
                check_targets(targets, logits.shape[1], image_ids)
            target = targets[rows].reshape(len(rows), -1)
            at_target, shape = logits.gather(1, target), (len(rows), *targets.shape[1:])
            has_classes = task_provides(task, "probability")
            log_probability = log_probabilities(logits, task) if has_classes else logits * float("nan")
            rank_type = getattr(torch, widen_dtype("int16", logits.shape[1] - 1))
            part = {
                "logit": at_target.reshape(shape),
                "log_probability": log_probability.gather(1, target).reshape(shape),
                "predicted": logits.argmax(1) if has_classes else torch.full_like(rows, NO_CLASS),
                "target_rank": _ranks(logits, at_target, rank_type, has_classes).reshape(shape),
                # A target function's numbers for targets of other images may be undefined.
                "finite": (logits if reader.function is None else at_target).isfinite().all(1),
                "distribution": is_distribution(logits) & (task in EXCLUSIVE and logits.shape[1] > 1),
                "undecided": logits.amax(1) < 1,
                "rows": rows,
            }
            if largest:
                largest_logit = logits.amax(1) if has_classes else at_target[:, 0]
                part |= {"largest_logit": largest_logit, "largest_log_probability": log_probability.amax(1)}
            parts.append(part)
            latest_rows = rows
        if not parts:
            return {}
        # One transfer at the end, because a transfer in every batch would stall an accelerator.
        read = {name: torch.cat([part[name] for part in parts]).cpu().numpy() for name in parts[0]}
    finite, rows_read = read.pop("finite"), read.pop("rows")
    # Outputs that are only 0 and 1 are not treated as probabilities, some of which would be below 1 for each class.
    undecided = read.pop("undecided").any()
    if read.pop("distribution").all() and undecided:
        raise HeatproofError(PROBABILITIES_MESSAGE)
    if not finite.all():
        image_id = image_ids[rows_read[np.flatnonzero(~finite)[0]]]
        if reader.function is not None:
            raise HeatproofError(
                f"{reader.label} returned a number that is not finite for image {image_id!r} or for a perturbed one: "
                "return a finite number for every output, for example by clamping a divisor."
            )
        raise HeatproofError(
            f"The model returned a logit that is not finite for image {image_id!r}: check the weights, and the "
            "normalisation of the images."
        )
    return read


def read_outputs(batch: Batch, batches: Iterable[PerturbedImages]) -> dict[str, np.ndarray]:
    """Run the network of a batch on perturbed images; arrays as in `run_batched`, or none if there are no batches."""
    return run_batched(batch.adapted, batches, batch.targets.to(batch.device), batch.image_ids)


def read_variants(batch: Batch, batches: Iterable[PerturbedImages], variants: int) -> dict[str, np.ndarray]:
    """Run the network on `variants` variants of each image; arrays as in `run_batched`, each (N, variants, …)."""
    read = run_batched(batch.adapted, batches, batch.targets.to(batch.device), batch.image_ids)
    return {name: values.reshape(len(batch.images), variants, *values.shape[1:]) for name, values in read.items()}


def _ranks(logits: torch.Tensor, at_target: torch.Tensor, kind: torch.dtype, has_classes: bool) -> torch.Tensor:
    """Return how many classes have a larger logit than each target, (B, T)."""
    if not has_classes:
        return torch.full_like(at_target, NO_RANK, dtype=kind)
    return (logits.unsqueeze(1) > at_target.unsqueeze(2)).sum(2).to(kind)


def intact_responses(batch: Batch) -> dict[str, np.ndarray]:
    """Run a network once on each unperturbed image.

    Returns
    -------
    dict
        As in `run_batched`, with T = 2 targets: the target of the batch, and the predicted class of the image.
    """
    targets = batch.targets.to(batch.device)
    read = run_batched(batch.adapted, batch.intact_images(), targets, batch.image_ids, largest=True)
    responses = {name: np.stack([read[name], read["largest_" + name]], axis=1) for name in ("logit", "log_probability")}
    without_classes = read["predicted"] == NO_CLASS
    rank = np.stack([read["target_rank"], np.where(without_classes, read["target_rank"], 0)], axis=1)
    return {**responses, "predicted": read["predicted"], "target_rank": rank}

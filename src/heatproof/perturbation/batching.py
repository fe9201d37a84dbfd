"""Run networks on perturbed images, in batches of one size that fit into memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from heatproof.base.integer_types import widen_dtype
from heatproof.base.specs import Runtime
from heatproof.base.tasks import EXCLUSIVE, task_provides
from heatproof.errors import HeatproofError
from heatproof.models.adaptive_batch_size import AdaptiveBatchSize, batch_size_file, batch_size_of
from heatproof.models.hooks import reader_of
from heatproof.models.network import load_network
from heatproof.models.output_reader import OutputReader, log_probabilities
from heatproof.models.probabilities import NEAR_ONE, PROBABILITIES_MESSAGE
from heatproof.models.registry import NetworkSpec

# Predicted class and rank of a target if the task has no classes. The rank is not among the first ones, and -1 means
# "not computed" in stores.
NO_CLASS, NO_RANK = -2, 2**15 - 1

Network = Callable[[torch.Tensor], torch.Tensor]
PerturbedBatch = tuple[torch.Tensor, torch.Tensor]


def run_batched(
    network: Network,
    batches: Iterable[PerturbedBatch],
    targets: torch.Tensor,
    image_ids: Sequence[str],
    *,
    largest: bool = False,
) -> dict[str, np.ndarray]:
    """Run a network on batches of perturbed images, and return logits and probabilities of the targets.

    Parameters
    ----------
    network
        Network in eval mode that returns logits (B, K) for images (B, C, H, W). A single logit z stands for the logits
        [-z/2, z/2] of two classes. With the hooks of `heatproof.models.adapter.attach`, the network returns what its
        reader reads.
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
    attached_reader = reader_of(network)
    reader = attached_reader or OutputReader()
    on_host = targets.cpu() if reader.function else None
    with torch.no_grad():
        for images, rows in batches:
            with reader.only_targets([] if on_host is None else on_host[rows.cpu()].flatten().tolist()):
                output = network(images)
            logits = reader.read(output, len(images)) if attached_reader is None else output
            task = reader.task
            if not parts:
                _check_targets(targets, logits.shape[1], image_ids)
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
                "distribution": (logits >= 0).all(1)
                & ((logits.sum(1) - 1).abs() < NEAR_ONE)
                & (task in EXCLUSIVE and logits.shape[1] > 1),
                "undecided": logits.amax(1) < 1,
                "rows": rows,
            }
            if largest:
                largest_logit = logits.amax(1) if has_classes else at_target[:, 0]
                part |= {"largest_logit": largest_logit, "largest_log_probability": log_probability.amax(1)}
            parts.append(part)
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


def _ranks(logits: torch.Tensor, at_target: torch.Tensor, kind: torch.dtype, has_classes: bool) -> torch.Tensor:
    """Return how many classes have a larger logit than each target, (B, T)."""
    if not has_classes:
        return torch.full_like(at_target, NO_RANK, dtype=kind)
    return (logits.unsqueeze(1) > at_target.unsqueeze(2)).sum(2).to(kind)


@dataclass
class Query:
    """A network, images with targets, and settings of the passes.

    Attributes
    ----------
    network
        As in `run_batched`.
    images
        (N, C, H, W), normalised; perturbed images have the same memory layout.
    targets
        (N,) int64, usually the labels; or (N, T), several classes whose outputs are read.
    image_ids
        N strings, which seed random numbers and appear in messages.
    seed
        Seed of the workflow.
    batch_size
        The largest number of images in one network pass.
    device
        Device of the network; None for the device of the images.
    """

    network: Network
    images: torch.Tensor
    targets: torch.Tensor
    image_ids: Sequence[str]
    seed: int = 0
    batch_size: int = 64
    device: Any = None

    def __post_init__(self) -> None:
        self.device = self.images.device if self.device is None else torch.device(self.device)
        self.targets = self.targets.to(self.device)

    def chunks(self) -> Iterator[tuple[slice, torch.Tensor, Sequence[str]]]:
        """Yield rows, images and ids of consecutive chunks of `batch_size` images, on the network's device.

        All variants of the images of a chunk fill complete batches, and baselines are computed once per chunk.
        """
        for start in range(0, len(self.images), self.batch_size):
            rows = slice(start, min(start + self.batch_size, len(self.images)))
            yield rows, self.images[rows].to(self.device), self.image_ids[rows]

    def match_layout(self, perturbed: torch.Tensor) -> torch.Tensor:
        """Return perturbed images in the memory layout of the images."""
        return perturbed.contiguous(memory_format=layout_of(self.images))

    def read(self, batches: Iterable[PerturbedBatch]) -> dict[str, np.ndarray]:
        """Run the network on perturbed images; arrays as in `run_batched`, or none if there are no batches."""
        return run_batched(self.network, batches, self.targets, self.image_ids)

    def run(self, batches: Iterable[PerturbedBatch], variants: int) -> dict[str, np.ndarray]:
        """Run the network on `variants` variants of each image; arrays as in `run_batched`, each (N, variants, …)."""
        read = self.read(batches)
        return {name: values.reshape(len(self.images), variants, *values.shape[1:]) for name, values in read.items()}


def intact_responses(query: Query) -> dict[str, np.ndarray]:
    """Run a network once on each unperturbed image.

    Returns
    -------
    dict
        As in `run_batched`, with T = 2 targets: the label, and the predicted class of the image.
    """
    batches = (
        (query.match_layout(chunk), torch.arange(rows.start, rows.stop, device=query.device))
        for rows, chunk, _ in query.chunks()
    )
    read = run_batched(query.network, batches, query.targets, query.image_ids, largest=True)
    responses = {name: np.stack([read[name], read["largest_" + name]], axis=1) for name in ("logit", "log_probability")}
    without_classes = read["predicted"] == NO_CLASS
    rank = np.stack([read["target_rank"], np.where(without_classes, read["target_rank"], 0)], axis=1)
    return {**responses, "predicted": read["predicted"], "target_rank": rank}


class PaddedBatches(torch.nn.Module):
    """Wrapper that pads every batch to one size, and counts the images that pass through the network.

    Float sums can depend on the batch size. The last batch of a shard is padded with copies, so that outputs depend
    neither on the division into shards nor on the other images of a batch. If memory runs out, the size is halved for
    all further batches.

    Parameters
    ----------
    network
        Network in eval mode, from images (B, C, H, W) to logits (B, K).
    size
        Images in a batch; larger batches pass unchanged.
    adaptive_size
        Object that remembers the batch size that fits; None for a new one for this network only.
    """

    def __init__(self, network: torch.nn.Module, size: int, adaptive_size: AdaptiveBatchSize | None = None) -> None:
        super().__init__()
        self.network = network
        self.size = size
        self.adaptive_size = adaptive_size or AdaptiveBatchSize("the network")
        self.images = 0
        self.eval()

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits (B, K)."""
        count = len(images)
        filled = images
        if count < self.size:
            filled = torch.cat([images, images[-1:].expand(self.size - count, *images.shape[1:])])
            filled = filled.contiguous(memory_format=layout_of(images))
        parts: list[torch.Tensor] = []
        for attempt in self.adaptive_size.attempts(len(filled)):
            with attempt:
                parts = [self.network(part) for part in filled.split(attempt.size)]
        self.images += len(filled)
        return (parts[0] if len(parts) == 1 else torch.cat(parts))[:count]


def open_network(spec: NetworkSpec, reader: OutputReader, runtime: Runtime, device: torch.device) -> PaddedBatches:
    """Load the network of a job that needs only outputs, neither gradients nor hooks.

    Parameters
    ----------
    spec
        Spec of the network.
    reader
        Reader of its outputs, as `heatproof.models.network.reader_of_dataset` returns it.
    runtime
        Settings: ``batch_size``, a number or ``auto``, and ``compile`` for torch.compile.
    device
        Device of the network.

    Returns
    -------
    PaddedBatches
        The network in eval mode, which runs in batches of one size.
    """
    assert reader.classes is not None, "a dataset says how many outputs there are"
    network = load_network(spec.model, reader.classes, spec.weights, device, spec.precision, reader)
    if runtime.compile:
        network.compile()
    adaptive_size = AdaptiveBatchSize(spec.model.name, batch_size_file(spec.weights), device)
    return PaddedBatches(network, batch_size_of(runtime.batch_size, device), adaptive_size)


def layout_of(images: torch.Tensor) -> torch.memory_format:
    """Return channels_last if the images have this layout, else the contiguous format."""
    if images.is_contiguous() or not images.is_contiguous(memory_format=torch.channels_last):
        return torch.contiguous_format
    return torch.channels_last


def _check_targets(targets: torch.Tensor, classes: int, image_ids: Sequence[str]) -> None:
    """Check that the network has a class for each target; on a GPU, an invalid one would abort the process."""
    wrong = (targets < 0) | (targets >= classes)
    outside = wrong.reshape(len(targets), -1).any(1).nonzero().flatten().tolist()
    if outside:
        raise HeatproofError(
            f"The target of image {image_ids[outside[0]]!r} is class {int(targets[wrong][0])}, but the model has "
            f"classes 0 to {classes - 1}: check the labels, and the model's number of classes."
        )

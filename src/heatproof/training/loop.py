"""Training loop: SGD or AdamW, step or cosine schedule, best epoch by validation loss."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, NamedTuple, Protocol

import torch
from torch import nn
from torch.nn import functional
from torch.optim import Optimizer

from heatproof.core.batches import count_done, prefetch, track
from heatproof.core.grids import AnyGrid, patch_count, patch_masks
from heatproof.core.randomness import counter_uniform, torch_generator
from heatproof.core.specs import FinetuningSettings, Schedule
from heatproof.errors import HeatproofError, is_out_of_memory
from heatproof.models.weight_names import describe_misfits
from heatproof.training.devices import DeviceGroup, sound_backward
from heatproof.training.journal import EpochRow, Journal, check_history
from heatproof.training.losses import SQUARED, compute_loss, count_correct, sum_absolute_errors

log = logging.getLogger(__name__)

State = dict[str, torch.Tensor]
Batch = tuple[torch.Tensor, torch.Tensor]
Augment = Callable[[torch.Tensor, torch.Generator], torch.Tensor]


def optimizer_of(schedule: Schedule, model: nn.Module) -> tuple[Optimizer, torch.optim.lr_scheduler.LRScheduler]:
    """Return the optimizer of the model's parameters and its learning rate schedule, with one step per epoch."""
    kinds: dict[str, Any] = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
    extra = {"momentum": schedule.momentum} if schedule.optimizer == "sgd" else {}
    groups, decay = _parameter_groups(schedule, model), schedule.weight_decay
    optimizer = kinds[schedule.optimizer](groups, schedule.lr, weight_decay=decay, **extra)
    if schedule.schedule == "step":
        return optimizer, torch.optim.lr_scheduler.StepLR(optimizer, schedule.decay_every, schedule.decay)
    return optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, schedule.epochs)


def _parameter_groups(schedule: Schedule, model: nn.Module) -> Any:
    """Return the model's parameters, grouped by ``model.lr_multiple(name)`` if the model has this method.

    The first group has the highest multiple. Finetuning has one learning rate for all, as in Hesse et al. 2024.

    Raises
    ------
    HeatproofError
        If a multiple is not a number of at least 0.
    """
    multiple_of = getattr(model, "lr_multiple", None)
    if multiple_of is None or isinstance(schedule, FinetuningSettings):
        return model.parameters()
    parameter_groups: dict[float, list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        multiple = multiple_of(name) if callable(multiple_of) else None
        if not isinstance(multiple, Real) or not 0 <= float(multiple) < float("inf"):
            raise HeatproofError(
                f"The network's lr_multiple gives {multiple!r} for the parameter {name!r}: make it a method that "
                "returns the multiple of the learning rate of a parameter by its name, a number from 0."
            )
        parameter_groups.setdefault(float(multiple), []).append(parameter)
    return [
        {"params": parameter_groups[multiple], "lr": multiple * schedule.lr}
        for multiple in sorted(parameter_groups, reverse=True)
    ]


class Images(Protocol):
    """Normalised images of a split, (N, C, H, W) float32: a tensor, or an object that reads images when indexed."""

    def __getitem__(self, rows: Any, /) -> torch.Tensor:
        """Return the images of a slice, or of rows (n,) int64."""
        ...


@dataclass(frozen=True)
class Examples:
    """Labelled images of a split.

    Attributes
    ----------
    images
        Normalised images.
    labels
        Labels as in `heatproof.training.losses`: (N,) int64, or (N, K) float32 for soft labels, such as the softmax of
        another network.
    crop
        ``crop(rows, epoch)`` returns random crops, which replace the images; None for no crops.
    compute_labels
        ``compute_labels(images)`` returns labels (n, K) of a batch of intact images, which replace `labels`.
    scale
        (K,) or (1,), divisor of differences in a squared error; see `heatproof.training.losses.scale_of`.
    """

    images: Images
    labels: torch.Tensor
    crop: Callable[[torch.Tensor, int], torch.Tensor] | None = None
    compute_labels: Callable[[torch.Tensor], torch.Tensor] | None = None
    scale: torch.Tensor | None = None


class Trained(NamedTuple):
    """Result of a training.

    Attributes
    ----------
    best
        Weights of the epoch with the lowest validation loss, on the CPU.
    history
        One row per epoch.
    saved_epochs
        Weights by the number of epochs after which they were saved, on the CPU.
    """

    best: State
    history: list[EpochRow]
    saved_epochs: dict[int, State]


@dataclass(frozen=True)
class TrainingRun:
    """Settings of a training that do not affect the weights: saved epochs, journal, devices.

    Attributes
    ----------
    saved_epochs
        Numbers of epochs, from 1, after which the weights are saved as well, whatever their loss.
    journal
        Journal that stores the state after every epoch, and from which a killed training resumes; None for none.
    device_group
        Devices that share the training; None for the model's device only.
    patch_counts
        Counts of this process: ``images`` for which patches were drawn, ``deleted`` patches, and ``changed`` images.
    """

    saved_epochs: Collection[int] = ()
    journal: Journal | None = None
    device_group: DeviceGroup | None = None
    patch_counts: Counter[str] = field(default_factory=Counter)


def fit(
    model: nn.Module,
    train: Examples,
    validation: Examples,
    schedule: Schedule,
    seed: int,
    augment: Augment | None = None,
    training_run: TrainingRun | None = None,
) -> Trained:
    """Train and return the weights of the epoch with the lowest validation loss.

    The checkpoint is selected on the validation split only, so that images that are scored later have no influence.

    Parameters
    ----------
    model
        Model, which is trained in place.
    train, validation
        The two splits; the best epoch is the one with the lowest loss on `validation`.
    schedule
        Optimizer, learning rates, epochs and batch size.
    seed
        Seed of the order of the images and of all augmentations.
    augment
        Function that is applied to every training batch after the shift; None for none.
    training_run
        Saved epochs, journal and devices; None for the best epoch only, no journal, and the model's device. All devices
        call this function with the same arguments; the main device returns the weights.

    Returns
    -------
    Trained
        Best weights, history and saved epochs.

    Raises
    ------
    HeatproofError
        If the loss becomes infinite or NaN, or no weight changed.
    """
    training_run = training_run or TrainingRun()
    journal, device_group = training_run.journal, training_run.device_group or DeviceGroup(_device(model))
    optimizer, scheduler = optimizer_of(schedule, model)
    before = {name: parameter.detach().to("cpu", copy=True) for name, parameter in model.named_parameters()}
    trained = Trained({}, [], {})
    saved_state = journal.load() if journal else None
    if saved_state is not None:
        try:
            trained = Trained(*(saved_state[field] for field in Trained._fields))
            model.load_state_dict(saved_state["model"])
            optimizer.load_state_dict(saved_state["optimizer"])
            scheduler.load_state_dict(saved_state["scheduler"])
            _set_random_state(saved_state["random"], _device(model))
            check_history(trained.history)
            if any(
                describe_misfits(state, saved_state["model"])
                for state in (trained.best, *trained.saved_epochs.values())
            ):
                raise ValueError("weights of another network")
        except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
            if is_out_of_memory(error):
                raise
            # The model may have been restored partially.
            assert journal is not None
            raise HeatproofError(
                f"The journal {journal.file} does not fit its training: remove it with `rm {journal.file}`, and run "
                "the same command again, which trains from the first epoch."
            ) from None
        log.info("resuming after epoch %d of %d of an earlier job", len(trained.history), schedule.epochs)
    wrapped = device_group.join(model)
    epochs = range(len(trained.history), schedule.epochs)
    for epoch in track(epochs, "training", unit="epoch") if device_group.is_main else epochs:
        device_group.begin(seed, epoch)
        lr = optimizer.param_groups[0]["lr"]
        batches = _batches(train, schedule, seed, epoch, augment, device_group.device)
        train_loss = _one_epoch(wrapped, batches, train, schedule, optimizer, device_group)
        validated = validate(model, validation, schedule.batch_size, schedule.loss) if device_group.is_main else None
        loss, accuracy = device_group.broadcast(validated)
        if not (train_loss < float("inf") and loss < float("inf")):
            raise HeatproofError(
                f"Training diverged in epoch {epoch} (loss {train_loss}): lower the learning rate, now {schedule.lr}."
            )
        scheduler.step()
        lowest = min((row["validation_loss"] for row in trained.history), default=float("inf"))
        trained.history.append(_row(schedule, epoch, lr, train_loss, loss, accuracy))
        if not device_group.is_main:
            continue
        if loss < lowest:
            trained = trained._replace(best=_copy(model))
        if epoch + 1 in training_run.saved_epochs:
            trained.saved_epochs[epoch + 1] = _copy(model)
        if journal:
            journal.save(
                {
                    **trained._asdict(),
                    "model": dict(model.state_dict()),
                    "optimizer": optimizer.state_dict(),
                    "scheduler": scheduler.state_dict(),
                    "random": _random_state(_device(model)),
                }
            )
    if not trained.history:
        # Without epochs, the history has one row about the initial weights.
        loss, accuracy = validate(model, validation, schedule.batch_size, schedule.loss)
        trained.history.append(_row(schedule, -1, 0.0, float("nan"), loss, accuracy))
        trained = trained._replace(best=_copy(model))
    elif device_group.is_main and not _has_moved(before, trained.best):
        kind, lr = "finetuning" if isinstance(schedule, FinetuningSettings) else "training", schedule.lr
        raise HeatproofError(
            f"The {kind} moved no weight in {schedule.epochs} epochs: raise lr, now {lr:g}, or give more images."
        )
    chosen = min(trained.history, key=lambda row: row["validation_loss"])
    if schedule.loss == SQUARED:
        log.info("best epoch %(epoch)d: validation error %(validation_error).4g", chosen)
    else:
        log.info("best epoch %(epoch)d: validation accuracy %(validation_accuracy).4f", chosen)
    return trained


def _row(schedule: Schedule, epoch: int, lr: float, train_loss: float, loss: float, quality: float) -> EpochRow:
    """Return a row of the history; `quality` is the second value of `validate`."""
    row = EpochRow(epoch=epoch, lr=lr, train_loss=train_loss, validation_loss=loss)
    row["validation_error" if schedule.loss == SQUARED else "validation_accuracy"] = quality
    return row


def untrained_result(model: nn.Module) -> Trained:
    """Return the initial weights of a network, with a history that has no epoch and no validation."""
    nothing = float("nan")
    row = EpochRow(epoch=-1, lr=0.0, train_loss=nothing, validation_loss=nothing, validation_accuracy=nothing)
    return Trained(_copy(model), [row], {})


def _has_moved(before: State, after: State) -> bool:
    """Return whether a weight changed by more than the rounding of the largest; if all were zero, any change counts."""
    # A table of integers or truth values is no weight, and its numbers may be far larger.
    weights = {
        name: weight
        for name, weight in before.items()
        if weight.numel() and (weight.is_floating_point() or weight.is_complex())
    }
    moved = max(float((after[name] - weight).abs().max()) for name, weight in weights.items())
    largest = max(float(weight.abs().max()) for weight in weights.values())
    return moved > torch.finfo(torch.float32).eps * largest


def _copy(model: nn.Module) -> State:
    return {name: value.detach().to("cpu", copy=True) for name, value in model.state_dict().items()}


def _device(model: nn.Module) -> torch.device:
    return next(model.parameters()).device


def _random_state(device: torch.device) -> dict[str, torch.Tensor]:
    """Return the states of PyTorch's global generators, from which dropout draws."""
    states = {"cpu": torch.get_rng_state()}
    if device.type != "cpu":
        states[device.type] = torch.get_device_module(device).get_rng_state()
    return states


def _set_random_state(states: dict[str, torch.Tensor], device: torch.device) -> None:
    torch.set_rng_state(states["cpu"])
    # A job may resume on another device than it began on.
    if device.type != "cpu" and device.type in states:
        torch.get_device_module(device).set_rng_state(states[device.type])


def split_into_batches(order: torch.Tensor, batch_size: int) -> list[torch.Tensor]:
    """Return the rows of each step of an epoch; a single remaining image is left out.

    Raises
    ------
    HeatproofError
        If every batch would have one image.
    """
    # Batch norm cannot be trained on one image.
    batches = [rows for rows in order.split(batch_size) if len(rows) > 1 or len(order) == 1]
    if not batches:
        raise HeatproofError(
            f"A batch_size of {batch_size} trains nothing, because batch norm cannot be trained on one image: take at "
            "least 2."
        )
    return batches


def _batches(
    train: Examples, schedule: Schedule, seed: int, epoch: int, augment: Augment | None, device: torch.device
) -> Iterator[Batch]:
    """Yield augmented images and labels of an epoch, reading one batch ahead."""
    generator = torch_generator(seed, f"training epoch {epoch}")
    order = torch.randperm(len(train.labels), generator=generator)
    drawn = split_into_batches(order, schedule.batch_size)

    def read(rows: torch.Tensor) -> torch.Tensor:
        return train.images[rows] if train.crop is None else train.crop(rows, epoch)

    for rows, images in prefetch(read, drawn, device):
        if schedule.random_horizontal_flip:
            images = flip_randomly(images, schedule.random_horizontal_flip, seed, epoch, rows)
        if schedule.shift:
            images = shift_randomly(images, schedule.shift, generator)
        learnt = train.labels[rows] if train.compute_labels is None else train.compute_labels(images)
        if augment is not None:
            images = augment(images, generator)
        yield images, learnt


def _one_epoch(
    model: nn.Module,
    batches: Iterable[Batch],
    train: Examples,
    schedule: Schedule,
    optimizer: Optimizer,
    device_group: DeviceGroup,
) -> float:
    count, scale = len(train.labels), train.scale
    model.train()
    total = 0.0
    with sound_backward(model, device_group.device):
        for images, labels in batches:
            # Augmentations are drawn for the complete batch on every device, so that they equal those on one device.
            part, device = device_group.part(len(labels)), device_group.device
            images_of_part = images[part.rows].to(device, memory_format=torch.channels_last)
            with torch.autocast(device.type, torch.bfloat16, enabled=schedule.precision == "bfloat16"):
                logits = model(images_of_part)
            labels_of_part = labels[part.rows].to(device)
            loss = compute_loss(schedule.loss, logits.float(), labels_of_part, schedule.label_smoothing, scale)
            loss = loss * part.weight
            optimizer.zero_grad(set_to_none=True)
            device_group.backward(loss)
            optimizer.step()
            total += float(loss.detach()) * len(labels) / device_group.devices
            count_done(len(labels))
    return device_group.total(total) / count


@torch.no_grad()
def validate(model: nn.Module, examples: Examples, batch_size: int, loss: str = "cross_entropy") -> tuple[float, float]:
    """Return the mean loss, without label smoothing, and the share of images in [0, 1] with the most likely label.

    If an image can have several labels, the share is that of the known labels that are right. In a regression, the
    second value is the mean absolute error in the unit of the labels.
    """
    model.eval()
    device, count = _device(model), len(examples.labels)
    total, right, labelled = 0.0, 0.0, 0
    slices = [slice(low, min(low + batch_size, count)) for low in range(0, count, batch_size)]
    for rows, images in prefetch(examples.images.__getitem__, slices, device):
        outputs, labels = model(images.to(device, memory_format=torch.channels_last)).cpu(), examples.labels[rows]
        total += float(compute_loss(loss, outputs, labels, scale=examples.scale, summed=True))
        if loss == SQUARED:
            measured, labels_known = sum_absolute_errors(outputs, labels)
        else:
            measured, labels_known = count_correct(loss, outputs, labels)
        right, labelled = right + measured, labelled + labels_known
    return total / count, right / labelled if labelled else float("nan")


def flip_randomly(images: torch.Tensor, probability: float, seed: int, epoch: int, rows: torch.Tensor) -> torch.Tensor:
    """Mirror each image of (N, C, H, W) with a probability; the draw depends on its row and the epoch."""
    drawn = counter_uniform(seed, f"flip of epoch {epoch}", [str(row) for row in rows.tolist()], ())
    return torch.where((drawn < probability)[:, None, None, None], images.flip(-1), images)


def shift_randomly(images: torch.Tensor, pixels: int, generator: torch.Generator) -> torch.Tensor:
    """Shift each image of (N, C, H, W) by up to `pixels` in each direction; edge pixels are repeated."""
    height, width = images.shape[-2:]
    padded = functional.pad(images, (pixels,) * 4, mode="replicate")
    tops, lefts = torch.randint(0, 2 * pixels + 1, (2, len(images)), generator=generator).tolist()
    shifts = zip(padded, tops, lefts, strict=True)
    return torch.stack([image[:, top : top + height, left : left + width] for image, top, left in shifts])


def delete_random_patches(
    images: torch.Tensor,
    baselines: torch.Tensor,
    grid: AnyGrid,
    share: float,
    generator: torch.Generator,
    patch_counts: Counter[str] | None = None,
) -> torch.Tensor:
    """Replace one random patch by the baseline in a share of the images (Hesse et al. 2024, section 3).

    Parameters
    ----------
    images, baselines
        (N, C, H, W), normalised; a deleted patch gets the baseline's pixels at the same position.
    grid
        An integer, the number of rows and of columns of patches, or (rows, columns).
    share
        Probability with which an image loses a patch; one half in the paper, so that intact images stay in-domain.
    generator
        Random generator; it draws the same numbers for every image, so that `share` does not change the drawn patches.
    patch_counts
        As in `TrainingRun`; None to count nothing.

    Returns
    -------
    torch.Tensor
        (N, C, H, W), the perturbed images.
    """
    patches = draw_patches(len(images), grid, share, generator)
    perturbed = delete_patches(images, baselines, grid, patches)
    if patch_counts is not None:
        changed = (perturbed != images).flatten(1).any(1)
        patch_counts.update(images=len(images), deleted=int((patches >= 0).sum()), changed=int(changed.sum()))
    return perturbed


def draw_patches(count: int, grid: AnyGrid, share: float, generator: torch.Generator) -> torch.Tensor:
    """Return the number of the deleted patch (N,) of each image, and -1 for images that lose none."""
    chosen = torch.rand(count, generator=generator, dtype=torch.float32) < share
    patches = torch.randint(0, patch_count(grid), (count,), generator=generator)
    return torch.where(chosen, patches, -1)


def delete_patches(images: torch.Tensor, baselines: torch.Tensor, grid: AnyGrid, patches: torch.Tensor) -> torch.Tensor:
    """Replace a patch of each image by the baseline; the patch number -1 replaces none."""
    masks = torch.from_numpy(patch_masks(grid, images.shape[-2], images.shape[-1]))
    deleted = masks[patches] & (patches >= 0)[:, None, None]
    return torch.where(deleted[:, None], baselines, images)

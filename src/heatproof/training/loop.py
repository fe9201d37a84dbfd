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

from heatproof.base.batches import prefetch, track
from heatproof.base.grids import AnyGrid, patch_count, patch_masks
from heatproof.base.randomness import counter_uniform, torch_generator
from heatproof.base.specs import FinetuningSettings, Schedule
from heatproof.errors import HeatproofError, is_out_of_memory
from heatproof.models.names import describe_misfits
from heatproof.training.checkpoint import EpochRow, Journal, check_history
from heatproof.training.devices import DeviceGroup, sound_backward
from heatproof.training.losses import SQUARED, compute_loss, count_correct, sum_absolute_errors

log = logging.getLogger(__name__)

State = dict[str, torch.Tensor]
Batch = tuple[torch.Tensor, torch.Tensor]
Augment = Callable[[torch.Tensor, torch.Generator], torch.Tensor]


def optimizer_of(schedule: Schedule, model: nn.Module) -> tuple[Optimizer, torch.optim.lr_scheduler.LRScheduler]:
    """Return the optimizer over the model's parameters and its schedule, stepped once an epoch."""
    kinds: dict[str, Any] = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
    own = {"momentum": schedule.momentum} if schedule.optimizer == "sgd" else {}
    groups, decay = _groups(schedule, model), schedule.weight_decay
    optimizer = kinds[schedule.optimizer](groups, schedule.lr, weight_decay=decay, **own)
    if schedule.schedule == "step":
        return optimizer, torch.optim.lr_scheduler.StepLR(optimizer, schedule.decay_every, schedule.decay)
    return optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, schedule.epochs)


def _groups(schedule: Schedule, model: nn.Module) -> Any:
    """Return the model's parameters, in groups where ``model.lr_multiple(name)`` gives some another learning rate.

    The first group has the highest multiple. A finetuning has one rate for all, as that of Hesse et al. 2024 does.

    Raises
    ------
    HeatproofError
        If a multiple is no number from 0.
    """
    multiple_of = getattr(model, "lr_multiple", None)
    if multiple_of is None or isinstance(schedule, FinetuningSettings):
        return model.parameters()
    groups: dict[float, list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        multiple = multiple_of(name) if callable(multiple_of) else None
        if not isinstance(multiple, Real) or not 0 <= float(multiple) < float("inf"):
            raise HeatproofError(
                f"The network's lr_multiple gives {multiple!r} for the parameter {name!r}: make it a method that "
                "returns the multiple of the learning rate of a parameter by its name, a number from 0."
            )
        groups.setdefault(float(multiple), []).append(parameter)
    return [{"params": groups[one], "lr": one * schedule.lr} for one in sorted(groups, reverse=True)]


class Images(Protocol):
    """Normalised images of a split, (N, C, H, W) float32: a tensor, or what reads those that are asked for."""

    def __getitem__(self, rows: Any, /) -> torch.Tensor:
        """Return the images of a slice, or of rows (n,) int64."""
        ...


@dataclass(frozen=True)
class Examples:
    """Labelled images of a split.

    Attributes
    ----------
    images
        Normalised.
    labels
        As `heatproof.training.losses` takes them: (N,) int64, or (N, K) float32, what is learnt in place of a label,
        such as another network's softmax.
    crop
        ``crop(rows, epoch)`` returns random crops in place of the images; None for the images themselves.
    answer
        ``answer(images)`` returns what is learnt of a batch of intact images (n, K), in place of their labels.
    scale
        (K,) or (1,), by which differences are divided in a squared error; see `heatproof.training.losses.scale_of`.
    """

    images: Images
    labels: torch.Tensor
    crop: Callable[[torch.Tensor, int], torch.Tensor] | None = None
    answer: Callable[[torch.Tensor], torch.Tensor] | None = None
    scale: torch.Tensor | None = None


class Trained(NamedTuple):
    """Result of a training.

    Attributes
    ----------
    best
        Weights of the epoch with the lowest validation loss, on the CPU.
    history
        One row an epoch.
    kept
        Number of passes over the training images to the weights after them, on the CPU.
    """

    best: State
    history: list[EpochRow]
    kept: dict[int, State]


@dataclass(frozen=True)
class TrainingRun:
    """Settings of a training that do not affect the weights: kept epochs, journal, devices.

    Attributes
    ----------
    keep
        After how many epochs the weights are kept as well, whatever their loss; from 1.
    journal
        Takes the state after every epoch, and gives back that of a training that was cut off; None for neither.
    team
        The devices that share the training; None for the model's own alone.
    seen
        Counts of this process: ``images`` that patches were drawn for, ``deleted`` patches, and ``changed`` images.
    """

    keep: Collection[int] = ()
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

    The images that are scored later take no part: the checkpoint is chosen on the validation split alone.

    Parameters
    ----------
    model
        Trained in place.
    train, validation
        The two splits; `validation` is used as given, so that what it holds decides what "best" means.
    schedule
        How to train.
    seed
        Seeds the order of the images and every augmentation.
    augment
        Applied to every training batch after the shift; None for none.
    session
        Which epochs are kept, the journal and the devices; None for none but the best, no journal, and the model's own
        device. All devices call this with the same arguments; weights come back where the team leads.

    Raises
    ------
    HeatproofError
        If the loss becomes infinite or NaN, or no weight moved.
    """
    training_run = training_run or TrainingRun()
    journal, device_group = training_run.journal, training_run.device_group or DeviceGroup(_device(model))
    optimizer, scheduler = optimizer_of(schedule, model)
    before = {name: one.detach().to("cpu", copy=True) for name, one in model.named_parameters()}
    trained = Trained({}, [], {})
    left = journal.load() if journal else None
    if left is not None:
        try:
            trained = Trained(*(left[field] for field in Trained._fields))
            model.load_state_dict(left["model"])
            optimizer.load_state_dict(left["optimizer"])
            scheduler.load_state_dict(left["scheduler"])
            _set_random_state(left["random"], _device(model))
            check_history(trained.history)
            if any(describe_misfits(state, left["model"]) for state in (trained.best, *trained.kept.values())):
                raise ValueError("weights of another network")
        except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
            if is_out_of_memory(error):
                raise
            # The model may have half of it.
            assert journal is not None
            raise HeatproofError(
                f"The journal {journal.file} does not fit its training: remove it with `rm {journal.file}`, and run "
                "the same command again, which trains from the first epoch."
            ) from None
        log.info("resuming after epoch %d of %d of an earlier job", len(trained.history), schedule.epochs)
    shared = device_group.join(model)
    epochs = range(len(trained.history), schedule.epochs)
    for epoch in track(epochs, "training", unit="epoch") if device_group.is_main else epochs:
        device_group.begin(seed, epoch)
        lr = optimizer.param_groups[0]["lr"]
        batches = _batches(train, schedule, seed, epoch, augment, device_group.device)
        train_loss = _one_epoch(shared, batches, train, schedule, optimizer, device_group)
        judged = validate(model, validation, schedule.batch_size, schedule.loss) if device_group.is_main else None
        loss, accuracy = device_group.broadcast(judged)
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
        if epoch + 1 in training_run.keep:
            trained.kept[epoch + 1] = _copy(model)
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
        # As it was built: no epoch, and one row of what it is.
        loss, accuracy = validate(model, validation, schedule.batch_size, schedule.loss)
        nothing = float("nan")
        trained.history.append(_row(schedule, -1, 0.0, nothing, loss, accuracy))
        trained = trained._replace(best=_copy(model))
    elif device_group.is_main and not _has_moved(before, trained.best):
        what, lr = "finetuning" if isinstance(schedule, FinetuningSettings) else "training", schedule.lr
        raise HeatproofError(
            f"The {what} moved no weight in {schedule.epochs} epochs: raise lr, now {lr:g}, or give more images."
        )
    chosen = min(trained.history, key=lambda row: row["validation_loss"])
    if schedule.loss == SQUARED:
        log.info("best epoch %(epoch)d: validation error %(validation_error).4g", chosen)
    else:
        log.info("best epoch %(epoch)d: validation accuracy %(validation_accuracy).4f", chosen)
    return trained


def _row(schedule: Schedule, epoch: int, lr: float, train_loss: float, loss: float, judged: float) -> EpochRow:
    """Return a row of the history; `judged` is the second number of `validate`."""
    row = EpochRow(epoch=epoch, lr=lr, train_loss=train_loss, validation_loss=loss)
    row["validation_error" if schedule.loss == SQUARED else "validation_accuracy"] = judged
    return row


def untrained_result(model: nn.Module) -> Trained:
    """Return a network as it was built, of which no epoch is known and nobody judges the answers."""
    nothing = float("nan")
    row = EpochRow(epoch=-1, lr=0.0, train_loss=nothing, validation_loss=nothing, validation_accuracy=nothing)
    return Trained(_copy(model), [row], {})


def _has_moved(before: State, after: State) -> bool:
    """Tell whether a weight moved by more than rounding of the largest; one at zero moves by the least step."""
    moved = max(float((after[name] - one).abs().max()) for name, one in before.items() if one.numel())
    largest = max(float(one.abs().max()) for one in before.values() if one.numel())
    return moved > torch.finfo(torch.float32).eps * largest


def _copy(model: nn.Module) -> State:
    return {name: value.detach().to("cpu", copy=True) for name, value in model.state_dict().items()}


def _device(model: nn.Module) -> torch.device:
    return next(model.parameters()).device


def _random_state(device: torch.device) -> dict[str, torch.Tensor]:
    """Return the states of PyTorch's global generators, which dropout draws from."""
    states = {"cpu": torch.get_rng_state()}
    if device.type != "cpu":
        states[device.type] = torch.get_device_module(device).get_rng_state()
    return states


def _set_random_state(states: dict[str, torch.Tensor], device: torch.device) -> None:
    torch.set_rng_state(states["cpu"])
    # A job may go on elsewhere than it began.
    if device.type != "cpu" and device.type in states:
        torch.get_device_module(device).set_rng_state(states[device.type])


def split_into_batches(order: torch.Tensor, batch_size: int) -> list[torch.Tensor]:
    """Return the rows of one step after another of an epoch; a single image that is left over takes part in none.

    Raises
    ------
    HeatproofError
        If every batch would be of one image.
    """
    # Batch norm cannot be trained on one image.
    drawn = [rows for rows in order.split(batch_size) if len(rows) > 1 or len(order) == 1]
    if not drawn:
        raise HeatproofError(
            f"A batch_size of {batch_size} trains nothing, because batch norm cannot be trained on one image: take at "
            "least 2."
        )
    return drawn


def _batches(
    train: Examples, schedule: Schedule, seed: int, epoch: int, augment: Augment | None, device: torch.device
) -> Iterator[Batch]:
    """Yield augmented images and labels of an epoch, and read one batch ahead."""
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
        learnt = train.labels[rows] if train.answer is None else train.answer(images)
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
            # Drawn for the whole batch on every device, so that the draws are those of one.
            part, device = device_group.part(len(labels)), device_group.device
            own = images[part.rows].to(device, memory_format=torch.channels_last)
            with torch.autocast(device.type, torch.bfloat16, enabled=schedule.precision == "bfloat16"):
                logits = model(own)
            own_labels = labels[part.rows].to(device)
            loss = compute_loss(schedule.loss, logits.float(), own_labels, schedule.label_smoothing, scale)
            loss = loss * part.weight
            optimizer.zero_grad(set_to_none=True)
            device_group.backward(loss)
            optimizer.step()
            total += float(loss.detach()) * len(labels) / device_group.devices
    return device_group.total(total) / count


@torch.no_grad()
def validate(model: nn.Module, examples: Examples, batch_size: int, loss: str = "cross_entropy") -> tuple[float, float]:
    """Return the mean loss, without label smoothing, and the share of images in [0, 1] with the most likely label.

    The share is that of the known labels where an image can have several; of numbers, the mean absolute error in their
    own unit is in its place.
    """
    model.eval()
    device, count = _device(model), len(examples.labels)
    total, right, known = 0.0, 0.0, 0
    pieces = [slice(low, min(low + batch_size, count)) for low in range(0, count, batch_size)]
    for rows, images in prefetch(examples.images.__getitem__, pieces, device):
        outputs, labels = model(images.to(device, memory_format=torch.channels_last)).cpu(), examples.labels[rows]
        total += float(compute_loss(loss, outputs, labels, scale=examples.scale, summed=True))
        correct, of = sum_absolute_errors(outputs, labels) if loss == SQUARED else count_correct(loss, outputs, labels)
        right, known = right + correct, known + of
    return total / count, right / known if known else float("nan")


def flip_randomly(images: torch.Tensor, probability: float, seed: int, epoch: int, rows: torch.Tensor) -> torch.Tensor:
    """Mirror each image of (N, C, H, W) with a probability, drawn by its row and the epoch."""
    drawn = counter_uniform(seed, f"flip of epoch {epoch}", [str(row) for row in rows.tolist()], ())
    return torch.where((drawn < probability)[:, None, None, None], images.flip(-1), images)


def shift_randomly(images: torch.Tensor, pixels: int, generator: torch.Generator) -> torch.Tensor:
    """Shift each image of (N, C, H, W) by up to `pixels` in each direction; edges are repeated."""
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
        (N, C, H, W), normalised; a deleted patch takes the baseline's pixels at its place.
    grid
        A whole number, for as many rows as columns of patches, or (rows, columns).
    share
        Probability with which an image loses a patch; the paper's is one half, so that intact images stay
        in-domain.
    generator
        Drawn from for every image alike, so that `share` does not change which patches are drawn.
    seen
        As in `TrainingRun`; None to count nothing.
    """
    patches = draw_patches(len(images), grid, share, generator)
    made = delete_patches(images, baselines, grid, patches)
    if patch_counts is not None:
        changed = (made != images).flatten(1).any(1)
        patch_counts.update(images=len(images), deleted=int((patches >= 0).sum()), changed=int(changed.sum()))
    return made


def draw_patches(count: int, grid: AnyGrid, share: float, generator: torch.Generator) -> torch.Tensor:
    """Return the number of a patch (N,) for each image that loses one, and -1 for the others."""
    chosen = torch.rand(count, generator=generator, dtype=torch.float32) < share
    patches = torch.randint(0, patch_count(grid), (count,), generator=generator)
    return torch.where(chosen, patches, -1)


def delete_patches(images: torch.Tensor, baselines: torch.Tensor, grid: AnyGrid, patches: torch.Tensor) -> torch.Tensor:
    """Replace a patch of each image by the baseline; none where its number is -1."""
    masks = torch.from_numpy(patch_masks(grid, images.shape[-2], images.shape[-1]))
    deleted = masks[patches] & (patches >= 0)[:, None, None]
    return torch.where(deleted[:, None], baselines, images)

"""`heatproof.finetune`: a copy of a network that is finetuned so that images with a deleted patch are in its domain."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any, Literal

import torch

from heatproof.api.inputs.finetuned import RECORD_ATTRIBUTE, layer_digest, weight_digests
from heatproof.api.inputs.first_images import check_first_images
from heatproof.api.inputs.read import read_inputs
from heatproof.api.inputs.targets import TargetSpec
from heatproof.api.inputs.value_ranges import warn_of_range
from heatproof.core.batches import count_images, count_words, show_progress
from heatproof.core.grids import as_grid
from heatproof.core.hooks import counted_as_check
from heatproof.core.input_facts import UNSCALED
from heatproof.core.network import attach, compilation_disabled, prepare_network, uncompiled
from heatproof.core.options import Bounds, Count, PatchGrid, check_arguments
from heatproof.core.output_reader import check_targets
from heatproof.core.perturb.baselines import BASELINES
from heatproof.core.perturb.dataset_mean import mean_colour
from heatproof.core.probabilities import warn_of_probabilities
from heatproof.core.registry import look_up
from heatproof.core.specs import FinetuningSettings
from heatproof.core.state import copy_network, enable_gradients, preserve_random_states
from heatproof.core.tasks import CALLABLE
from heatproof.errors import HeatproofError, first_line, machine_fault
from heatproof.training.devices import DeviceGroup
from heatproof.training.in_domain import SCALE_IMAGES, finetune_in_domain
from heatproof.training.loop import Examples, TrainingRun, split_into_batches
from heatproof.training.losses import SQUARED, CompleteOutputReader, loss_for_task, scale_of

if TYPE_CHECKING:
    from heatproof.api.inputs.source import Inputs


# With fewer images, only a handful are trained on, and one or two select the epoch.
MINIMUM_IMAGES = 10


def finetune(
    model: torch.nn.Module,
    images: torch.Tensor,
    targets: Any = None,
    *,
    task: str | None = None,
    target: Callable[[Any, Any], torch.Tensor] | None = None,
    grid: PatchGrid = 4,
    baseline: str = "mean",
    baseline_options: Mapping[str, Any] | None = None,
    share: Annotated[float, Bounds(above=0, most=1)] = 0.5,
    epochs: Count = 5,
    lr: Annotated[float, Bounds(above=0)] = 1e-3,
    batch_size: Count = 32,
    optimizer: Literal["sgd", "adam", "adamw"] = "sgd",
    validation: Annotated[float, Bounds(above=0, below=1)] = 0.2,
    seed: int = 0,
    transform: Callable[[Any], Any] | None = None,
    progress: bool | None = None,
) -> torch.nn.Module:
    """Return a copy of a network, finetuned so that images with a deleted patch are in its domain.

    On such a copy, scores of `heatproof.evaluate` by deleted patches are IDSDS if they have the grid and the baseline
    of the finetuning. They are SDS with any other grid or baseline, and on the network as it was published. The method
    is that of Hesse et al. 2024, section 3: a share of the training images loses one random patch, and the weights of
    the epoch with the lowest validation loss are returned. Each validation image counts once intact and once without a
    patch.

    Parameters
    ----------
    model
        A network: images (B, C, H, W) to logits (B, K), or to any output that `target` takes. It is not changed.
    images
        As in `heatproof.explain`; use other images than those that are explained.
    targets
        The labels; None takes those that come with the images. For classes, (N,) integers, learnt with cross entropy.
        For ``multilabel``, (N, K) of 1, 0, and -1 or NaN where a label is unknown, learnt with the binary cross entropy
        of each known label. For ``regression``, (N,) or (N, K) numbers, learnt with the squared error of outputs and
        labels, both standardised by the mean and standard deviation of the training labels. Without any labels, the
        copy learns to reproduce the output of the network for the intact image, which changes the network less: its
        softmax, its sigmoids, or its numbers, standardised. With a `target` function the copy always learns this, with
        the squared error of the complete output: of all floating-point tensors that have a row for each image, each
        standardised.
    task, target
        As in `heatproof.explain`. A `target` function is not differentiated here: the complete output is learnt,
        whichever number the function reads.
    grid, baseline
        Number of patches along one side, or (rows, columns), and the baseline that replaces a deleted patch.
        `heatproof.evaluate` and `heatproof.choose` take both from the copy, with the options of the baseline.
    baseline_options
        Options of the baseline: ``black`` needs the ``mean`` and ``std`` with which the images were normalised.
    share
        Share of the training images that lose a patch, above 0 and at most 1.
    epochs, lr, batch_size, optimizer
        Settings of the training; the learning rate follows a cosine. `optimizer` is ``sgd``, ``adam`` or ``adamw``.
    validation
        Share of the images that select the epoch.
    seed
        Seed of the split, the order and the patches.
    transform, progress
        As in `heatproof.explain`.

    Returns
    -------
    torch.nn.Module
        In eval mode, on the device of `model`. All weights but integers are trained, including frozen ones. Its
        attribute ``heatproof`` has the settings, the history of losses, ``steps`` (number of optimizer steps),
        ``images_trained`` (number of training images; the others selected the epoch), ``deleted`` (number of deleted
        patches in all epochs), ``size`` (height and width of the images), ``colour`` (the mean of the training images),
        digests of the weights, of the layers and of all images, and ``task``, the task of the labels. The finetuning is
        valid for labels of this task, or for any task and target if the network's own outputs were learnt; for these
        weights and layers; and for images of this size. If the network is trained further or gets other images, it is
        no longer in its domain.

    Raises
    ------
    HeatproofError
        If the inputs do not match, there are too few images, the training diverges, no weight changed, no image lost a
        patch, or the output has no tensor with a row for each image, such as that of a detector.

    Examples
    --------
    >>> import heatproof
    >>> tuned = heatproof.finetune(model, training_images, training_labels, grid=4)  # doctest: +SKIP
    >>> scores = heatproof.evaluate("idsds", tuned, images, labels, maps)  # doctest: +SKIP
    >>> scores.attrs["metric"]  # doctest: +SKIP
    'idsds'
    """
    check_arguments(finetune, locals(), "task", "target", "transform")
    if not isinstance(model, torch.nn.Module):
        raise HeatproofError(
            f"The model is {type(model).__name__}: give a torch.nn.Module, whose weights can be trained."
        )
    if batch_size < 2:
        raise HeatproofError(
            f"A batch_size of {batch_size} is too small, because batch norm cannot be trained on one image: use at "
            "least 2."
        )
    model = uncompiled(model)
    if isinstance(model, torch.jit.ScriptModule):
        raise HeatproofError("The model is scripted and cannot be trained: pass the module that it was scripted from.")
    if not any(map(_is_trained, model.parameters())):
        raise HeatproofError("The model has no weights, and cannot be finetuned: give one that was trained.")
    target_spec = TargetSpec(task, target)
    labels_of_images = None if target is not None else targets
    source = read_inputs(model, images, labels_of_images, transform=transform, target_spec=target_spec, pairs=False)
    images, ids = source.images, source.ids
    validation_count = round(validation * len(images))
    if len(images) < MINIMUM_IMAGES or validation_count < 1 or len(images) - validation_count < 2:
        raise HeatproofError(f"{len(images)} images are too few to finetune on: give at least {MINIMUM_IMAGES}.")
    labels, learns_outputs = _labels_to_learn(source, target_spec)
    warn_of_range(images, model)
    look_up(BASELINES, baseline, "baseline")
    tuned = copy_network(model)
    for parameter in tuned.parameters():
        parameter.requires_grad_(_is_trained(parameter))
    loss, scale = loss_for_task(target_spec.kind or None), None
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(int(seed)))
    reader: Any = target_spec.reader() if target is None else CompleteOutputReader()
    with prepare_network(copy_network(model).eval(), images, seed, reader) as network:
        check_first_images(network, source.read(source.probe_rows))
        if not target_spec.kind:
            assert network.classes is not None, "the network is checked"
            check_targets(labels, network.classes, ids, network.task, network.has_one_logit)
        elif not learns_outputs and labels.reshape(len(labels), -1).shape[1] != network.classes:
            raise HeatproofError(
                f"The targets are {tuple(labels.shape)} and the model returns {network.classes} numbers for each "
                "image: give one column for each of them."
            )
        warn_of_probabilities(network)
        if learns_outputs and loss == SQUARED:
            with counted_as_check(), torch.no_grad():
                parts = images[order[validation_count:][:SCALE_IMAGES]].split(batch_size)
                outputs = torch.cat([network.module(network.copy_to_device(part)).float().cpu() for part in parts])
            scale = scale_of(outputs) if target is None else reader.scale_of(outputs)
    if not (learns_outputs or target_spec.kind) and len(only := labels.unique()) == 1:
        warnings.warn(
            f"All {len(images)} images are of class {int(only)}, so that the copy learns to predict it for every "
            "image: leave the targets out, or pass images of all classes.",
            stacklevel=2,
        )
    if target_spec.kind == "multilabel" and not learns_outputs:
        for rows, does in (
            (order[validation_count:], "are trained on"),
            (order[:validation_count], "select the epoch"),
        ):
            if not bool((labels[rows] >= 0).any()):
                raise HeatproofError(
                    f"None of the {len(rows)} images that {does} has a known label: pass 1 and 0 for more images, or "
                    "leave the targets out."
                )
    settings = FinetuningSettings(
        seed=seed,
        grid=as_grid(grid),
        share=share,
        baseline=baseline,
        labels="own" if learns_outputs else "given",
        loss=loss,
        epochs=epochs,
        batch_size=min(int(batch_size), len(images) - validation_count),
        optimizer=optimizer,
        lr=lr,
        momentum=0.9,
        weight_decay=0.0,
        schedule="cosine",
        decay=0.1,
        decay_every=1,
        label_smoothing=0.0,
        shift=0,
    )
    with enable_gradients():
        train, chosen_by = (
            Examples(images[rows].cpu(), labels[rows].cpu())
            for rows in (order[validation_count:], order[:validation_count])
        )
        if loss == SQUARED:
            scale = scale_of(train.labels) if scale is None else scale
            train, chosen_by = replace(train, scale=scale), replace(chosen_by, scale=scale)
    # The attributes of a dataset that computing the mean colour of its training images takes.
    pixels = network.copy_to_device(images[order[validation_count:]]).cpu().numpy()
    dataset: Any = SimpleNamespace(splits={"train": pixels}, images=lambda split, low, high: pixels[low:high])
    with show_progress(progress):
        colour = mean_colour(dataset, UNSCALED)
    options = {**({"value": colour} if baseline == "mean" else {}), **(baseline_options or {})}
    step = f"finetuning for {count_words(int(epochs), 'epoch')}"
    with (
        enable_gradients(),
        preserve_random_states(seed),
        compilation_disabled(),
        show_progress(progress),
        count_images(step, int(epochs) * len(train.labels)),
    ):
        attached = attach(tuned, reader=reader)
        try:
            training_run = TrainingRun(device_group=DeviceGroup(attached.device))
            trained = finetune_in_domain(tuned, train, chosen_by, settings, options, training_run)
        except HeatproofError:
            raise
        except Exception as error:
            # A user's network can fail in any way.
            if machine_fault(error):
                raise
            raise HeatproofError(
                f"The model cannot be trained ({type(error).__name__}: {first_line(error)}): pass one whose "
                "forward passes keep no state and are differentiable."
            ) from error
        finally:
            attached.hooks.remove()
    tuned.load_state_dict(trained.best)
    if not training_run.patch_counts["changed"]:
        warnings.warn(
            f"No deleted patch changed an image, because all have the colour of the baseline {baseline!r}: the copy is "
            "in domain only for images like these.",
            stacklevel=2,
        )
    best_epoch = min(trained.history, key=lambda row: row["validation_loss"])["epoch"]
    steps = (best_epoch + 1) * len(split_into_batches(torch.arange(len(train.labels)), settings.batch_size))
    record = {**vars(settings), "baseline_options": options, "colour": colour, "history": trained.history}
    record |= {"steps": steps, "images_trained": len(train.labels), "deleted": training_run.patch_counts["deleted"]}
    record |= {"weights": weight_digests(tuned), "layers": layer_digest(tuned), "images": source.digests}
    record |= {"task": "" if learns_outputs else target_spec.kind}
    record |= {"size": tuple(source.read([0]).shape[-2:])}
    setattr(tuned, RECORD_ATTRIBUTE, record)
    return tuned.eval()


def _is_trained(parameter: torch.nn.Parameter) -> bool:
    """Tell whether a parameter has gradients, which one of integers has not."""
    return parameter.is_floating_point() or parameter.is_complex()


def _labels_to_learn(source: Inputs, target_spec: TargetSpec) -> tuple[torch.Tensor, bool]:
    """Return the labels to learn, and whether these are the network's own outputs.

    Raises
    ------
    HeatproofError
        If labels do not fit the task.
    """
    if not target_spec.kind:
        learns_outputs = source.targets is None
        return (
            torch.zeros(len(source), dtype=torch.int64) if source.targets is None else source.targets
        ), learns_outputs
    if target_spec.kind != CALLABLE and source.labels is None and source.targets is not None:
        raise HeatproofError(
            f"The targets name only one label for each of the {len(source)} images: pass one column for each label, "
            "with 1 if an image has it, 0 if it does not and -1 if that is unknown."
        )
    if source.labels is None:
        return torch.zeros(len(source), 1), True
    not_finite = (~source.labels.isfinite()).reshape(len(source), -1).any(1).nonzero().flatten().tolist()
    if not_finite:
        raise HeatproofError(f"The target of image {source.ids[not_finite[0]]!r} is not finite: leave the image out.")
    return (source.labels.float() if source.labels.is_floating_point() else source.labels), False

"""`heatproof.finetune`: a copy of a network for which images without a patch are in domain."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from heatproof.base.grids import as_grid
from heatproof.base.options import Bounds, Count, PatchGrid, check_arguments
from heatproof.base.tasks import CALLABLE
from heatproof.errors import HeatproofError, first_line, machine_fault

if TYPE_CHECKING:
    import torch

    from heatproof.inputs.source import ImageSource
    from heatproof.inputs.targets import TargetSpec


# Below it, four fifths are a handful, and one or two choose the epoch.
FEWEST = 10


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
) -> torch.nn.Module:
    """Return a copy of a network, finetuned so that an image without a patch is in its domain.

    Scores of `heatproof.evaluate` by deleted patches are IDSDS on such a copy, where they have the grid and the filling
    of the finetuning, and SDS with any other and on the network as it was published. Hesse et al. 2024, section 3: a
    share of the training images loses one random patch; the epoch is kept that has the lowest loss on validation
    images, each once intact and once without a patch.

    Parameters
    ----------
    model
        A network: images (B, C, H, W) to logits (B, K), or to anything that `target` takes. It is left as it is.
    images
        As in `heatproof.explain`; other images than those that are explained.
    targets
        The labels; None for those that come with the images. For classes (N,) integers, which are learnt by cross
        entropy. For ``multilabel`` (N, K) of 1, 0, and -1 or NaN where a label is not known, by the binary cross
        entropy of each label that is known. For ``regression`` (N,) or (N, K) numbers, by the squared error of outputs
        and labels, both standardised by mean and deviation of the labels that are trained on. Without any, the copy
        learns to answer as the network answered to the intact image, which moves it less: its softmax, its sigmoids, or
        its numbers, standardised. With a `target` function always so, by the squared error of the network's whole
        output: of all of its floating-point tensors that have a row for each image, each standardised.
    task, target
        As in `heatproof.explain`. A `target` function is not differentiated here: what is learnt is the whole output,
        whatever is asked of it.
    grid, baseline
        Patches along one side, or (rows, columns), and what a deleted one is filled with. `heatproof.evaluate` and
        `heatproof.choose` take both from the copy, with the options of the baseline.
    baseline_options
        Options of the baseline: ``black`` needs the ``mean`` and ``std`` with which the images were normalised.
    share
        Of the training images that lose a patch, above 0 and at most 1.
    epochs, lr, batch_size, optimizer
        Of the training; the learning rate falls along a cosine. `optimizer` is ``sgd``, ``adam`` or ``adamw``.
    validation
        Share of the images that choose the epoch.
    seed
        Of the split, the order and the patches.

    Returns
    -------
    torch.nn.Module
        In eval mode, on the device of `model`, with all weights trained, those that were frozen as well. Its attribute
        ``heatproof`` has the settings, the history of losses, ``steps`` (how many the weights took), ``images_trained``
        (of how many images; the others chose the epoch), ``deleted`` (patches, in all epochs), ``size`` (height and
        width of the images), the mean ``colour`` of the images that are trained on, and digests of the weights, of the
        layers and of all images, and ``task``, of which labels were learnt. It counts for labels of this task alone,
        and on its own answers for any task and target; for these weights and layers; and for images of this size: a
        network that is trained further, or gets other ones, is not in its domain any more.

    Raises
    ------
    HeatproofError
        If the inputs do not match, there are too few images, the training diverges, no weight moved, no image lost a
        patch, or the output has no tensor with a row for each image, as that of a detector.
    """
    check_arguments(finetune, locals(), "task", "target")
    import torch

    from heatproof.base.registry import look_up
    from heatproof.base.specs import FinetuningSettings
    from heatproof.data.few import probe_rows_of_images
    from heatproof.inputs.arrays import warn_of_range
    from heatproof.inputs.finetuned import RECORD_ATTRIBUTE, layer_digest, weight_digests
    from heatproof.inputs.read import read_inputs
    from heatproof.inputs.targets import TargetSpec
    from heatproof.models.adapter import (
        adapt_network,
        attach,
        check_network,
        compilation_disabled,
        counted_as_check,
        uncompiled,
    )
    from heatproof.models.probabilities import warn_of_probabilities
    from heatproof.models.registry import UNSCALED
    from heatproof.models.state import copy_network, enable_gradients, preserve_random_states
    from heatproof.perturbation.baselines import BASELINES
    from heatproof.perturbation.dataset_mean import mean_colour
    from heatproof.training.devices import DeviceGroup
    from heatproof.training.in_domain import SCALE_IMAGES, finetune_in_domain
    from heatproof.training.loop import Examples, TrainingRun, split_into_batches
    from heatproof.training.losses import SQUARED, CompleteOutputReader, loss_for_task, scale_of

    if not isinstance(model, torch.nn.Module):
        raise HeatproofError(
            f"The model is {type(model).__name__}: give a torch.nn.Module, whose weights can be trained."
        )
    if batch_size < 2:
        raise HeatproofError(
            f"A batch_size of {batch_size} trains nothing, because batch norm cannot be trained on one image: take at "
            "least 2."
        )
    model = uncompiled(model)
    if isinstance(model, torch.jit.ScriptModule):
        raise HeatproofError("The model is scripted, and cannot be trained here: give the module that it was made of.")
    if not any(True for _ in model.parameters()):
        raise HeatproofError("The model has no weights, and cannot be finetuned: give one that was trained.")
    target_spec = TargetSpec(task, target)
    source = read_inputs(model, images, None if target is not None else targets, target_spec=target_spec, pairs=False)
    images, ids = source.images, source.ids
    few = round(validation * len(images))
    if len(images) < FEWEST or few < 1 or len(images) - few < 2:
        raise HeatproofError(f"{len(images)} images are too few to finetune on: give at least {FEWEST}.")
    labels, is_own = _learnt(source, target_spec)
    warn_of_range(images, model)
    look_up(BASELINES, baseline, "baseline")
    mine = copy_network(model).requires_grad_()
    loss, scale = loss_for_task(target_spec.kind or None), None
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(int(seed)))
    reader: Any = target_spec.reader() if target is None else CompleteOutputReader()
    with adapt_network(copy_network(model).eval(), images, seed, reader) as network:
        network.check_precision(images)
        check_network(network, images[probe_rows_of_images(source.digests, images)])
        if not target_spec.kind:
            network.check_targets(labels, ids)
        elif not is_own and labels.reshape(len(labels), -1).shape[1] != network.classes:
            raise HeatproofError(
                f"The targets are {tuple(labels.shape)} and the model returns {network.classes} numbers for each "
                "image: give one column for each of them."
            )
        warn_of_probabilities(network)
        if is_own and loss == SQUARED:
            with counted_as_check(), torch.no_grad():
                parts = images[order[few:][:SCALE_IMAGES]].split(batch_size)
                answers = torch.cat([network.network(network.copy_to_device(part)).float().cpu() for part in parts])
            scale = scale_of(answers) if target is None else reader.scale_of(answers)
    if not (is_own or target_spec.kind) and len(only := labels.unique()) == 1:
        warnings.warn(
            f"All {len(images)} images are of class {int(only)}, so that the copy learns to answer it to everything: "
            "leave the targets out, or give images of all classes.",
            stacklevel=2,
        )
    if target_spec.kind == "multilabel" and not is_own:
        for rows, does in ((order[few:], "are trained on"), (order[:few], "choose the epoch")):
            if not bool((labels[rows] >= 0).any()):
                raise HeatproofError(
                    f"No label is known of the {len(rows)} images that {does}: give 1 and 0 for more of the images, or "
                    "leave the targets out."
                )
    settings = FinetuningSettings(
        seed=seed,
        grid=as_grid(grid),
        share=share,
        baseline=baseline,
        labels="own" if is_own else "given",
        loss=loss,
        epochs=epochs,
        batch_size=min(int(batch_size), len(images) - few),
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
        train, chosen_by = (Examples(images[rows].cpu(), labels[rows].cpu()) for rows in (order[few:], order[:few]))
        if loss == SQUARED:
            scale = scale_of(train.labels) if scale is None else scale
            train, chosen_by = replace(train, scale=scale), replace(chosen_by, scale=scale)
    # What is needed of a dataset to read the mean colour of its training images.
    pixels = network.copy_to_device(images[order[few:]]).cpu().numpy()
    dataset: Any = SimpleNamespace(splits={"train": pixels}, images=lambda split, low, high: pixels[low:high])
    colour = mean_colour(dataset, UNSCALED)
    options = {**({"value": colour} if baseline == "mean" else {}), **(baseline_options or {})}
    with enable_gradients(), preserve_random_states(seed), compilation_disabled(mine.modules()):
        copied = attach(mine, reader=reader)
        try:
            training_run = TrainingRun(device_group=DeviceGroup(copied.device))
            trained = finetune_in_domain(mine, train, chosen_by, settings, options, training_run)
        except HeatproofError:
            raise
        except Exception as error:
            # A network of the caller's own can fail in any way.
            if machine_fault(error):
                raise
            raise HeatproofError(
                f"The model cannot be trained ({type(error).__name__}: {first_line(error)}): give one whose passes "
                "leave nothing behind, and whose gradient can be taken."
            ) from error
        finally:
            copied.hooks.remove()
    mine.load_state_dict(trained.best)
    if not training_run.patch_counts["changed"]:
        warnings.warn(
            f"No deleted patch changed an image, because all have the colour of the baseline {baseline!r}: the copy is "
            "in domain for images like these alone.",
            stacklevel=2,
        )
    kept = min(trained.history, key=lambda row: row["validation_loss"])["epoch"]
    steps = (kept + 1) * len(split_into_batches(torch.arange(len(train.labels)), settings.batch_size))
    record = {**vars(settings), "baseline_options": options, "colour": colour, "history": trained.history}
    record |= {"steps": steps, "images_trained": len(train.labels), "deleted": training_run.patch_counts["deleted"]}
    record |= {"weights": weight_digests(mine), "layers": layer_digest(mine), "images": source.digests}
    record |= {"task": "" if is_own else target_spec.kind}
    record |= {"size": tuple(source.read([0]).shape[-2:])}
    setattr(mine, RECORD_ATTRIBUTE, record)
    return mine.eval()


def _learnt(source: ImageSource, target_spec: TargetSpec) -> tuple[torch.Tensor, bool]:
    """Return what is learnt of each image, and whether that is the network's own answer.

    Raises
    ------
    HeatproofError
        If labels are not those of the task.
    """
    import torch

    if not target_spec.kind:
        is_own = source.targets is None
        return (torch.zeros(len(source), dtype=torch.int64) if source.targets is None else source.targets), is_own
    if target_spec.kind != CALLABLE and source.labels is None and source.targets is not None:
        raise HeatproofError(
            f"The targets name one label for each of the {len(source)} images, and say nothing of the others: give one "
            "column for each label, 1 where an image has it, 0 where it has not and -1 where that is not known."
        )
    if source.labels is None:
        return torch.zeros(len(source), 1), True
    bad = (~source.labels.isfinite()).reshape(len(source), -1).any(1).nonzero().flatten().tolist()
    if bad:
        raise HeatproofError(f"The target of image {source.ids[bad[0]]!r} is no finite number: leave the image out.")
    return (source.labels.float() if source.labels.is_floating_point() else source.labels), False

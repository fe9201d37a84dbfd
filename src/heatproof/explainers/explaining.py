"""Compute the maps of a batch of images. No other module calls an explainer."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from heatproof.core.batch import ApplicabilityFigure, Batch, MapSums
from heatproof.core.first_images import fails_inside
from heatproof.core.methods import Method
from heatproof.core.network import Network
from heatproof.core.state import NetworkState, preserve_modes, preserve_random_states
from heatproof.errors import CallRefused, DamagedInput, HeatproofError, NotApplicable, first_line, machine_fault
from heatproof.explainers.registry import Explainer

# Parts of the messages of PyTorch and captum if no gradient reaches the images.
NO_GRADIENT = ("does not require grad", "not have been used in the graph", "is not connected to every target layer")


class ExplainerFailed(NotApplicable):
    """Raised if an explainer raises an error or returns something other than its maps; the message is the reason."""


class ExplainedBatch(NamedTuple):
    """Maps of a batch of N images by the explainer of a method, and what they cost.

    Attributes
    ----------
    values
        (N, maps, H, W) float32.
    deltas
        (N, maps), see `convergence_delta`; NaN unless sums were requested.
    seconds, passes
        Time since the last batch was stored, and number of images that went through the network.
    """

    values: np.ndarray
    deltas: np.ndarray
    seconds: float
    passes: int


def called_explainer(method: Method) -> Explainer:
    """Return the explainer that makes the maps of a method."""
    assert isinstance(method.explainer, Explainer), f"the maps of {method.name} are in a store, or handed in"
    return method.explainer


def explain_batch(method: Method, batch: Batch) -> np.ndarray:
    """Return the maps of a batch of images by the explainer of a method, all maps that the explainer makes.

    The explainer gets copies of images, targets and background images, because it may write to them. If memory runs
    out, it is called again with half the batch size for its network passes.

    Parameters
    ----------
    method
        The method; its index and its transform are not read.
    batch
        Input of the explainer. Figures (numbers that the applicability check measured) and sums of an earlier call are
        removed.

    Returns
    -------
    numpy.ndarray
        (N, maps, H, W) float32.

    Raises
    ------
    NotApplicable
        If the explainer is not applicable. `ExplainerFailed` if it raises any error, returns other maps than it
        declares or a value that is not finite, or records sums for another number of images.
    HeatproofError
        If the machine fails, or an image cannot be read.
    """
    explainer = called_explainer(method)
    for attempt in batch.attempts(method.name):
        with attempt as size:
            for records in (batch.figures, batch.sums):
                if records is not None:
                    records.clear()
            copied = replace(
                batch,
                images=batch.images.clone(),
                targets=batch.targets.clone(),
                background=batch.background and _with_copies(batch.background),
                batch_size=size,
            )
            random_states = nullcontext() if batch.global_seed is None else preserve_random_states(batch.global_seed)
            # What earlier passes or the explainer leave in the network or in torch must not affect other maps.
            if batch.network is not None and (contents := batch.adapted.hooks.contents) is not None:
                contents.put_back()
            try:
                with preserve_modes(), NetworkState(batch.output), random_states, _only_targets_of(batch):
                    result = explainer.function(copied, **method.options)
            except NotApplicable:
                raise
            except Exception as error:
                # Explainers of users and of other libraries can fail in any way. A fault of the machine is not theirs.
                if machine_fault(error) or isinstance(error, DamagedInput | CallRefused):
                    raise
                raise ExplainerFailed(_reason(error, batch.network)) from error
    maps = stack_maps(result, list(explainer.maps), batch)
    finite = np.isfinite(maps).all((1, 2, 3))
    if not finite.all():
        row = int(np.flatnonzero(~finite)[0])
        raise ExplainerFailed(f"its map of image {batch.image_ids[row]!r} has a value that is not finite")
    _check_sums(batch, explainer)
    return maps


def explain_batches(
    method: Method, batches: Iterable[Batch], network: Network | None = None, check_first: bool = False
) -> Iterator[ExplainedBatch]:
    """Explain one batch after another; callers read the images of a batch when they yield it, and store the maps.

    Parameters
    ----------
    method
        As in `explain_batch`.
    batches
        The batches.
    network
        Network whose passes are counted, including those that make a batch; None for reference maps.
    check_first
        Whether the first batch is the sample of images of `check_applicability`.

    Yields
    ------
    ExplainedBatch
        The maps of each batch.

    Raises
    ------
    NotApplicable
        As `explain_batch` and `check_applicability` raise it.
    """
    began, before = time.monotonic(), 0 if network is None else network.passes
    for number, batch in enumerate(batches):
        make = check_applicability if check_first and not number else explain_batch
        values = make(method, batch)
        deltas = convergence_delta(method, values, batch.sums or {})
        passes = 0 if network is None else network.passes - before
        yield ExplainedBatch(values, deltas, time.monotonic() - began, passes)
        began, before = time.monotonic(), 0 if network is None else network.passes


def recomputed_maps(method: Method, batch: Batch) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """Return a function from changed images and targets to maps of a method.

    Parameters
    ----------
    method
        The method, with the explainer that makes its maps.
    batch
        The N original images with what the explainer needs.

    Returns
    -------
    callable
        Images (k N, C, H, W), k changed copies of each original one after another, which share its random draws, and
        targets (k N,), to maps (k N, H, W) float32 on the CPU.
    """
    explainer = called_explainer(method)
    template = batch if explainer.uses_model else replace(batch, network=None, output=None, facts=None)
    if len(explainer.maps) == 1:
        # A caller's function makes the map of a method, whatever the index of its other maps.
        method = replace(method, index=0)

    def explain(images: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        copies = len(images) // len(batch.image_ids)
        changed = replace(
            template,
            images=batch.match_layout(images.to(batch.device)),
            targets=targets.to(batch.device),
            image_ids=tuple(image_id for image_id in batch.image_ids for _ in range(copies)),
            maps=None,
            intact=None,
        )
        return torch.from_numpy(method.select_maps(explain_batch(method, changed)))

    return explain


def _only_targets_of(batch: Batch) -> AbstractContextManager[Any]:
    """Let a callable target compute the columns of this batch's targets only."""
    reader = None if batch.network is None else batch.adapted.reader
    if reader is None or reader.function is None:
        return nullcontext()
    return reader.only_targets(batch.targets.tolist())


def _check_sums(batch: Batch, explainer: Explainer) -> None:
    """Check that an explainer recorded one sum for each image, and only for maps that it returns."""
    for name, records in (batch.sums or {}).items():
        shapes = [tuple(tensor.shape) for sums in records for tensor in sums if tensor is not None]
        count = sum(len(sums.expected) for sums in records if sums.expected.ndim == 1)
        if (
            (name and name not in explainer.maps)
            or count != len(batch.images)
            or any(len(shape) != 1 for shape in shapes)
        ):
            raise ExplainerFailed(
                f"it noted sums {shapes} of the map {name or next(iter(explainer.maps))!r} for {len(batch.images)} "
                "images: note_sum takes one value for each image, of a map that it makes"
            )


def convergence_delta(method: Method, maps: np.ndarray, sums: Mapping[str, Sequence[MapSums]]) -> np.ndarray:
    """Return the sums of maps minus the sums that the explainer recorded for them.

    Parameters
    ----------
    method
        The method.
    maps
        (N, maps, H, W), as `explain_batch` returns them.
    sums
        Sums that the explainer recorded, `Batch.sums`.

    Returns
    -------
    numpy.ndarray
        (N, maps) float64, in units of the output; NaN for maps without a promised sum.
    """
    deltas = np.full(maps.shape[:2], np.nan)
    for index, name in enumerate(called_explainer(method).maps):
        records = [*sums.get(name, ()), *(sums.get("", ()) if index == 0 else ())]
        if records:
            totals = maps[:, index].sum(axis=(1, 2), dtype=np.float64)
            if records[0].actual is not None:
                totals = _concatenate([record.actual for record in records])
            deltas[:, index] = totals - _concatenate([record.expected for record in records])
    return deltas


def _concatenate(values: Sequence[Any]) -> np.ndarray:
    return torch.cat([tensor.double().cpu() for tensor in values]).numpy()


def _with_copies(background: Callable[[int], torch.Tensor]) -> Callable[[int], torch.Tensor]:
    return lambda count: background(count).clone()


def _reason(error: Exception, network: Any) -> str:
    """Return the reason for which a failed explainer is not applicable, and whether the network failed inside it."""
    if isinstance(error, HeatproofError):
        return str(error).rstrip(".")
    message = first_line(error)[:200]
    if any(part in message for part in NO_GRADIENT):
        return (
            "it needs the gradient of an image, and the model gives none, as where a part of it runs under no_grad or "
            "is cut off by detach"
        )
    last = traceback.extract_tb(error.__traceback__)[-1]
    subject = "the model fails in it" if fails_inside(error, network) else "it fails"
    return f"{subject} ({type(error).__name__}: {message}; {Path(last.filename).name}, line {last.lineno})"


def stack_maps(maps: Mapping[str, torch.Tensor], declared: Collection[str], batch: Batch) -> np.ndarray:
    """Return an explainer's maps as one array (N, maps, H, W) float32.

    Parameters
    ----------
    maps
        Result of the explainer.
    declared
        Names of the maps that it must return.
    batch
        Its input.

    Raises
    ------
    ExplainerFailed
        If the result has another number of maps than it declares, or maps of another shape.
    NotApplicable
        If the maps have another height or width than the images.
    """
    expected = (len(batch.images), *batch.images.shape[-2:])
    values: list[Any] = list(maps.values()) if isinstance(maps, Mapping) else []
    if len(values) != len(declared):
        keys = ", ".join(f"{key!r}: …" for key in declared)
        raise ExplainerFailed(
            f"it must return a dict {{{keys}}} of tensors (images, height, width), but "
            f"returned {list(maps) if isinstance(maps, Mapping) else type(maps).__name__}"
        )
    for value in values:
        if not isinstance(value, torch.Tensor):
            raise ExplainerFailed(f"it returned a {type(value).__name__} for a map and not a torch.Tensor")
        if value.ndim == 3 and len(value) == expected[0] and tuple(value.shape) != expected:
            raise NotApplicable(
                f"its map has {value.shape[1]} × {value.shape[2]} pixels, and the image has {expected[1]} × "
                f"{expected[2]}"
            )
        if tuple(value.shape) != expected:
            raise ExplainerFailed(
                f"it returned a map of shape {tuple(value.shape)}, but {expected} was "
                "expected: one value per pixel, summed over channels"
            )
    return torch.stack([value.detach().float().cpu() for value in values], dim=1).numpy()


def check_applicability(method: Method, batch: Batch) -> np.ndarray:
    """Compute the maps of a sample of images, and compare the recorded figures with their limits.

    Parameters
    ----------
    method
        See `explain_batch`.
    batch
        The sample of images; its `figures` are filled.

    Returns
    -------
    numpy.ndarray
        (N, maps, H, W) float32.

    Raises
    ------
    NotApplicable
        If every map is constant, a figure is above its limit, or `explain_batch` raises it.
    """
    figures: dict[str, ApplicabilityFigure] = {} if batch.figures is None else batch.figures
    maps = explain_batch(method, replace(batch, figures=figures))
    check_limits(figures, maps)
    return maps


def check_limits(figures: dict[str, ApplicabilityFigure], maps: np.ndarray) -> None:
    """Add `constant_maps` to the figures of maps (N, M, H, W), and check all figures against their limits.

    Raises
    ------
    NotApplicable
        If every map is constant, or a figure is above its limit.
    """
    pixels = maps.reshape(-1, maps.shape[-2] * maps.shape[-1])
    figures["constant_maps"] = ApplicabilityFigure(float(np.mean(np.ptp(pixels, axis=1) == 0)))
    if figures["constant_maps"].value == 1:
        raise NotApplicable("each of its maps is constant")
    for name, (value, limit, _) in figures.items():
        if limit is not None and not value <= limit:
            raise NotApplicable(f"its {name.replace('_', ' ')} is {value:.2g}, above {limit:g}")

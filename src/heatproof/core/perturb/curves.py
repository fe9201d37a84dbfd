"""Images along perturbation sequences, and response curves of a network along them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import torch

from heatproof.core.batch import Batch, PerturbedImages
from heatproof.core.passes import run_batched
from heatproof.core.perturb.baselines import baseline_images
from heatproof.core.perturb.road import impute_sequence
from heatproof.core.sequences import Perturbation, changed_sums, check_ranking, first_changed, pixel_ranking
from heatproof.errors import HeatproofError

Arrays = Mapping[str, np.ndarray]
Outputs = dict[str, np.ndarray]
Explain = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
# Batches for the network, and a function that arranges its outputs by point of the sequence.
Passes = tuple[Iterator[PerturbedImages], Callable[[Arrays], Outputs]]
RESPONSES = ("logit", "log_probability", "predicted", "target_rank")


def curve_variants(
    batch: Batch,
    maps: np.ndarray,
    perturbation: Perturbation,
    *,
    intact: Arrays | None = None,
    ranking: np.ndarray | None = None,
) -> tuple[Iterator[PerturbedImages], Callable[[Arrays], Outputs]]:
    """Make the images along a perturbation sequence.

    RISE's two curves of 32 steps take 32 passes per image each, and one more for the intact image unless `intact` is
    given.

    Parameters
    ----------
    batch
        N images with their network, and T targets each.
    maps
        (N, H, W), higher is more relevant.
    perturbation
        The sequence, without `update`.
    intact
        Responses to the intact images from `intact_responses`; None includes these images in the batches.
    ranking
        (N, H × W), or (N, patches): pixels or patches, most relevant first, instead of the order of the maps.

    Returns
    -------
    batches
        Batches for `read_outputs`.
    arranged
        Function from the result of `read_outputs` to a dict: the arrays of `run_batched`, (N, S, T), and (N, S) for
        ``predicted``; ``changed`` (N, S) int64, the number of changed pixels; ``magnitude`` and ``positive`` (N, S)
        float64, the sums of the map's absolute values, and of its positive values, over changed pixels; and
        ``total_magnitude`` and ``total_positive`` (N,), these sums over all pixels.

    Raises
    ------
    HeatproofError
        If a map has the wrong size or a value that is not finite.
    """
    maps = _checked(batch, maps, perturbation, ranking)
    first = first_changed(perturbation, maps, batch.image_ids, batch.seed, ranking)
    make = _imputed if perturbation.imputation == "road" else _filled
    batches, by_point = make(batch, intact, first, perturbation)
    return batches, lambda read: by_point(read) | _sums_of_maps(maps, first, perturbation)


def updated_curves(
    batch: Batch, maps: np.ndarray, perturbation: Perturbation, explain: Explain, ranking: np.ndarray | None = None
) -> Outputs:
    """Run a network along a sequence with `update`, for which maps are recomputed before each step.

    Deleted pixels stay deleted.

    Parameters
    ----------
    batch, maps, perturbation, ranking
        As in `curve_variants`.
    explain
        Function from images (B, C, H, W) and the first of their T targets (B,) to maps (B, H, W).

    Returns
    -------
    dict
        As `arranged` of `curve_variants` returns it.

    Raises
    ------
    HeatproofError
        If a map has the wrong size or a value that is not finite, or as in `run_batched`.
    """
    maps = _checked(batch, maps, perturbation, ranking)
    images, targets = batch.images, batch.targets.to(batch.device)
    counts = perturbation.counts(*images.shape[-2:])
    shape = images.shape[-2:]
    first = np.full(maps.shape, len(counts), dtype=np.int32)
    parts: list[Outputs] = []
    for rows, chunk, ids in batch.chunks():
        options = dict(perturbation.baseline_options)
        fill = baseline_images(perturbation.baseline, chunk, ids, batch.seed, options, perturbation.grid)
        gone = np.zeros((len(chunk), shape[0] * shape[1]), dtype=bool)
        current, now, outputs = chunk, maps[rows], []
        for point, removed in enumerate(counts):
            if point:
                updated = explain(current, targets[rows, 0])
                now = updated.detach().float().cpu().numpy()
                check_maps(now, chunk, ids)
                now = np.abs(now) if perturbation.magnitude else now
            order = pixel_ranking(now, ids, batch.seed, ties=perturbation.ties)
            if ranking is not None and not point:
                order = ranking[rows]
            order = order[:, ::-1] if perturbation.order == "lerf" else order
            ahead = np.argsort(~np.take_along_axis(gone, order, axis=1), axis=1, kind="stable")
            np.put_along_axis(gone, np.take_along_axis(order, ahead, axis=1)[:, :removed], True, axis=1)
            flat = first[rows].reshape(gone.shape)
            flat[gone] = np.minimum(flat[gone], point)
            mask = torch.from_numpy(gone.reshape(len(chunk), 1, *shape)).to(batch.device)
            current = batch.match_layout(torch.where(mask, fill, chunk))
            passed = [(current, torch.arange(len(chunk), device=batch.device))]
            outputs.append(run_batched(batch.adapted, passed, targets[rows], ids))
        parts.append({key: np.stack([output[key] for output in outputs], axis=1) for key in RESPONSES})
    read = {key: np.concatenate([part[key] for part in parts]) for key in RESPONSES}
    return read | _sums_of_maps(maps, first, perturbation)


def _checked(batch: Batch, maps: np.ndarray, perturbation: Perturbation, ranking: np.ndarray | None) -> np.ndarray:
    check_maps(maps, batch.images, batch.image_ids)
    if ranking is not None:
        check_ranking(ranking, len(maps), perturbation.units(*maps.shape[1:]), batch.image_ids)
    return np.abs(maps) if perturbation.magnitude else maps


def _sums_of_maps(maps: np.ndarray, first: np.ndarray, perturbation: Perturbation) -> Outputs:
    """Return the number of changed pixels and the sums of each map over them, at each point of the sequence."""
    points, sums = perturbation.points(*maps.shape[1:]), {}
    for key, values in (("magnitude", np.abs(maps)), ("positive", np.maximum(maps, 0))):
        sums[key] = changed_sums(first, values, points)
        sums["total_" + key] = values.sum(axis=(1, 2), dtype=np.float64)
    return {**sums, "changed": changed_sums(first, np.ones(maps.shape), points).astype(np.int64)}


def check_maps(maps: np.ndarray, images: torch.Tensor, image_ids: Sequence[str]) -> None:
    """Check that maps match the images in shape and are finite.

    Raises
    ------
    HeatproofError
        If they do not; the message has the id of the image.
    """
    expected = (len(images), *images.shape[-2:])
    if maps.shape != expected:
        raise HeatproofError(
            f"The maps have shape {maps.shape}, but must have shape {expected}, (images, height, width): sum "
            "over channels, and resize the maps to the size of the images."
        )
    if not np.issubdtype(maps.dtype, np.floating) and not np.issubdtype(maps.dtype, np.integer):
        raise HeatproofError(f"The maps are of type {maps.dtype}: give numbers, for example float32.")
    bad = np.flatnonzero(~np.isfinite(maps.reshape(len(maps), -1)).all(1))
    if len(bad):
        raise HeatproofError(
            f"The map of image {image_ids[int(bad[0])]!r} has a value that is not finite: recompute it, or leave the "
            "image out."
        )


def _filled(batch: Batch, intact: Arrays | None, first: np.ndarray, perturbation: Perturbation) -> Passes:
    """Make a sequence with a baseline, in batches over images and points; the intact and the empty image occur once."""
    height, width = batch.images.shape[-2:]
    points = perturbation.points(height, width)
    n_units = perturbation.units(height, width)
    # For sequences by value, the number of changed pixels is known at the first point only.
    by_value = perturbation.thresholds is not None
    counts = [0, *[None] * (points - 1)] if by_value else perturbation.counts(height, width).tolist()
    # A pixel has changed if its first point is at most this level: no pixel, all, or those up to the point.
    nothing, everything = -1, points
    of_point = [
        nothing if count == 0 else everything if count == n_units else point for point, count in enumerate(counts)
    ]
    deletes = perturbation.mode == "deletion"
    known_level = None if intact is None else nothing if deletes else everything
    levels = [level for level in dict.fromkeys(of_point) if level != known_level]
    up_to = torch.tensor(levels, dtype=torch.int32, device=batch.device).reshape(-1, 1, 1, 1)

    def batches() -> Iterator[PerturbedImages]:
        for rows, chunk, ids in batch.chunks():
            options = dict(perturbation.baseline_options)
            fill = baseline_images(perturbation.baseline, chunk, ids, batch.seed, options, perturbation.grid)
            before, after = (chunk, fill) if deletes else (fill, chunk)
            first_of = torch.from_numpy(first[rows]).to(batch.device).unsqueeze(1)
            for part in torch.arange(len(chunk) * len(levels), device=batch.device).split(batch.batch_size):
                row, level = part // len(levels), part % len(levels)
                changed = first_of[row] <= up_to[level]
                yield batch.match_layout(torch.where(changed, after[row], before[row])), row + rows.start

    def by_point(read: Arrays) -> Outputs:
        shaped = {key: values.reshape(len(first), len(levels), *values.shape[1:]) for key, values in read.items()}
        parts: list[Arrays] = [shaped] if levels else []
        if intact is not None:
            parts.append({key: intact[key][:, None] for key in RESPONSES})
        indices = {level: index for index, level in enumerate([*levels, known_level])}
        places = [indices[level] for level in of_point]
        return {key: np.concatenate([part[key] for part in parts], axis=1)[:, places] for key in RESPONSES}

    return batches(), by_point


def _imputed(batch: Batch, intact: Arrays | None, first: np.ndarray, perturbation: Perturbation) -> Passes:
    """Make a sequence with ROAD's imputation, which solves for a batch of images point by point."""
    points = perturbation.points(*batch.images.shape[-2:])
    skip = int(intact is not None and not (first == 0).any())

    def imputed_images() -> Iterator[PerturbedImages]:
        for rows, chunk, ids in batch.chunks():
            removed = torch.from_numpy(first[rows]).to(batch.device)
            sequence = impute_sequence(chunk, removed, points, noise=perturbation.noise, seed=batch.seed, image_ids=ids)
            for point, imputed in enumerate(sequence):
                if point >= skip:
                    yield imputed, torch.arange(rows.start, rows.stop, device=batch.device)

    order: list[int] = []

    def batches() -> Iterator[PerturbedImages]:
        for images, rows in _rebatched(imputed_images(), batch.batch_size):
            order.extend(rows.tolist())
            yield batch.match_layout(images), rows

    def by_point(read: Arrays) -> Outputs:
        # Outputs are ordered by chunk and point; a stable sort by image puts the points of each image in order.
        by_image = np.argsort(order, kind="stable")
        shape = (len(batch.images), points - skip)
        shaped = {key: values[by_image].reshape(*shape, *values.shape[1:]) for key, values in read.items()}
        if skip and intact is not None:
            shaped = {key: np.concatenate([intact[key][:, None], shaped[key]], axis=1) for key in RESPONSES}
        return shaped

    return batches(), by_point


def _rebatched(batches: Iterator[PerturbedImages], size: int) -> Iterator[PerturbedImages]:
    """Regroup batches into batches of one size; the last may be smaller."""
    rest: list[PerturbedImages] = []
    for batch in batches:
        images, rows = (torch.cat(parts) for parts in zip(*rest, batch, strict=True))
        while len(rows) >= size:
            yield images[:size], rows[:size]
            images, rows = images[size:], rows[size:]
        rest = [(images, rows)] if len(rows) else []
    yield from rest

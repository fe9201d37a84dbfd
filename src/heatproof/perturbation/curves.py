"""Response curves: what a network says along perturbation sequences."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import groupby

import numpy as np
import torch

from heatproof.errors import HeatproofError
from heatproof.perturbation.baselines import baseline_images
from heatproof.perturbation.batching import Perturbed, Query, layout_of, run_batched
from heatproof.sequences import Perturbation, changed_sums, first_changed, pixel_ranking

Explain = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
RESPONSES = ("logit", "log_probability", "predicted", "target_rank")


def response_curves(
    query: Query,
    maps: np.ndarray,
    perturbations: Mapping[str, Perturbation],
    *,
    intact: Mapping[str, np.ndarray] | None = None,
    ranking: np.ndarray | None = None,
    explain: Explain | None = None,
) -> dict[str, dict[str, np.ndarray]]:
    """Run a network along several perturbation sequences of the same images and maps.

    An image that several sequences share, the intact one and the whole baseline image, goes through the network once:
    RISE's two curves of 32 steps take 65 passes an image, of which the intact one can be handed in.

    Parameters
    ----------
    query
        The network and N images, with T targets each.
    maps
        (N, H, W), higher is more relevant.
    perturbations
        Name to sequence.
    intact
        Responses to the intact images from `intact_responses`; left out, they are made here.
    ranking
        (N, H × W), or (N, grid × grid): pixels or patches, most relevant first, instead of the maps' own order.
    explain
        Images (B, C, H, W) and targets (B,), the first of T, to maps (B, H, W), for a sequence with `update`.

    Returns
    -------
    dict
        Name to arrays: those of `run_batched`, (N, S, T) and for ``predicted`` (N, S); ``changed`` (N, S) int64, pixels
        that have changed; ``magnitude`` and ``positive`` (N, S) float64, the sums of |map| and of max(map, 0) over
        them, and ``total_magnitude`` and ``total_positive`` (N,) over the whole map.

    Raises
    ------
    HeatproofError
        If a map has the wrong size or a value that is not finite, or as `run_batched`.
    """
    check_maps(maps, query.images, query.image_ids)
    read: dict[str, dict[str, np.ndarray]] = {}
    firsts: dict[str, np.ndarray] = {}
    together: dict[str, Perturbation] = {}
    for name, perturbation in perturbations.items():
        if perturbation.update:
            if explain is None:
                raise HeatproofError("A map that is updated along the sequence needs `explain`, which makes it.")
            read[name], firsts[name] = _updated(query, maps, perturbation, explain, ranking)
            continue
        firsts[name] = first_changed(perturbation, maps, query.image_ids, query.seed, ranking)
        if perturbation.imputation == "road":
            read[name] = _imputed(query, intact, firsts[name], perturbation)
        else:
            together[name] = perturbation
    if together:
        read |= _filled(query, intact, firsts, together)
    for name, first in firsts.items():
        points = perturbations[name].points(*maps.shape[1:])
        for key, values in (("magnitude", np.abs(maps)), ("positive", np.maximum(maps, 0))):
            read[name][key] = changed_sums(first, values, points)
            read[name]["total_" + key] = values.sum(axis=(1, 2), dtype=np.float64)
        read[name]["changed"] = changed_sums(first, np.ones(maps.shape), points).astype(np.int64)
    return {name: read[name] for name in perturbations}


def check_maps(maps: np.ndarray, images: torch.Tensor, image_ids: Sequence[str]) -> None:
    """Refuse maps that do not belong to the images, and values that are not finite.

    Raises
    ------
    HeatproofError
        One sentence with the image's id.
    """
    expected = (len(images), *images.shape[-2:])
    if maps.shape != expected:
        raise HeatproofError(
            f"The maps are {maps.shape}, and the images ask for {expected}, (images, height, width): sum over "
            "channels, and bring the maps to the size of the images."
        )
    if not np.issubdtype(maps.dtype, np.floating) and not np.issubdtype(maps.dtype, np.integer):
        raise HeatproofError(f"The maps are of type {maps.dtype}: give numbers, for example float32.")
    bad = np.flatnonzero(~np.isfinite(maps.reshape(len(maps), -1)).all(1))
    if len(bad):
        raise HeatproofError(
            f"The map of image {image_ids[int(bad[0])]!r} has a value that is not finite: make it again, or leave the "
            "image out."
        )


def _filled(
    query: Query,
    intact: Mapping[str, np.ndarray] | None,
    firsts: Mapping[str, np.ndarray],
    perturbations: Mapping[str, Perturbation],
) -> dict[str, dict[str, np.ndarray]]:
    """Run all sequences that fill with a baseline, in batches over images and points."""
    images, batch_size, device = query.images, query.batch_size, query.device
    height, width = images.shape[-2:]
    baselines: list[tuple[str, str]] = []
    variants: dict[tuple[int, int, int], int] = {}
    where: dict[str, list[int]] = {}
    for number, (name, perturbation) in enumerate(perturbations.items()):
        fill = _fill_of(perturbation)
        if fill not in baselines:
            baselines.append(fill)
        points = perturbation.points(height, width)
        units = height * width if perturbation.grid is None else perturbation.grid**2
        counts = perturbation.counts(height, width) if perturbation.thresholds is None else None
        places = []
        for point in range(points):
            ends = None if counts is None else {0: "start", units: "end"}.get(int(counts[point]))
            if counts is None and point == 0:
                ends = "start"
            if ends is None:
                key = (number, point, baselines.index(fill))
            else:
                whole = (ends == "end") == (perturbation.mode == "deletion")
                key = (-2, 0, baselines.index(fill)) if whole else (-1, 0, 0)
            places.append(variants.setdefault(key, len(variants)))
        where[name] = places
    given = variants.get((-1, 0, 0)) if intact is not None else None
    keys = [key for key, place in variants.items() if place != given]
    column = {place: number for number, (_, place) in enumerate((k, variants[k]) for k in keys)}
    options = {b: next(p for p in perturbations.values() if _fill_of(p) == b) for b in baselines}
    names = list(perturbations)
    runs = _runs(keys)

    def batches() -> Iterator[Perturbed]:
        memory = layout_of(images)
        for rows, chunk, ids in query.chunks():
            fills = [
                baseline_images(b[0], chunk, ids, query.seed, dict(options[b].baseline_options)).contiguous()
                for b in baselines
            ]
            first = [torch.from_numpy(firsts[name][rows]).to(device) for name in names]
            for low in range(0, len(chunk) * len(keys), batch_size):
                high = min(low + batch_size, len(chunk) * len(keys))
                made = torch.empty((high - low, *chunk.shape[1:]), dtype=chunk.dtype, device=device)
                made = made.contiguous(memory_format=memory)
                for begin, stop, row, run in _pieces(runs, len(keys), low, high):
                    into = made[begin - low : stop - low]
                    if run.number == -1:
                        into[:] = chunk[row]
                    elif run.number == -2:
                        into[:] = fills[run.fill][row]
                    else:
                        ahead = begin - row * len(keys) - run.begin
                        points = run.points[ahead : ahead + stop - begin].to(device)
                        changed = (first[run.number][row] <= points.reshape(-1, 1, 1)).unsqueeze(1)
                        kept, put = chunk[row], fills[run.fill][row]
                        if perturbations[names[run.number]].mode == "insertion":
                            kept, put = put, kept
                        into[:] = torch.where(changed, put, kept)
                yield made, torch.arange(low, high, device=device) // len(keys) + rows.start

    shaped = query.run(batches(), len(keys)) if keys else {}
    if intact is not None and given is not None:
        shaped = {
            key: np.concatenate([shaped[key], intact[key][:, None]], axis=1) if shaped else intact[key][:, None]
            for key in RESPONSES
        }
        column[given] = len(keys)
    return {
        name: {key: shaped[key][:, [column[place] for place in places]] for key in RESPONSES}
        for name, places in where.items()
    }


@dataclass(frozen=True)
class _Run:
    """Consecutive points of one sequence, among the variants of one image."""

    begin: int
    number: int
    fill: int
    points: torch.Tensor


def _runs(keys: Sequence[tuple[int, int, int]]) -> list[_Run]:
    """Join variants of one sequence, so that they are made by one operation."""
    runs = []
    begin = 0
    for (number, fill), group in groupby(keys, key=lambda key: (key[0], key[2])):
        points = torch.tensor([point for _, point, _ in group], dtype=torch.int32)
        runs.append(_Run(begin, number, fill, points))
        begin += len(points)
    return runs


def _pieces(runs: Sequence[_Run], variants: int, low: int, high: int) -> Iterator[tuple[int, int, int, _Run]]:
    """Yield where each run of each image lies within a batch: begin, stop, image and run."""
    for row in range(low // variants, -(-high // variants)):
        for run in runs:
            begin = row * variants + run.begin
            stop = begin + len(run.points)
            if stop > low and begin < high:
                yield max(begin, low), min(stop, high), row, run


def _fill_of(perturbation: Perturbation) -> tuple[str, str]:
    return perturbation.baseline, repr(sorted(perturbation.baseline_options.items()))


def _imputed(
    query: Query, intact: Mapping[str, np.ndarray] | None, first: np.ndarray, perturbation: Perturbation
) -> dict[str, np.ndarray]:
    """Run one sequence with ROAD's imputation, whose systems are solved for a batch of images point by point."""
    # Found by name, so that the code of ROAD is no part of what other sequences depend on.
    impute_sequence = import_module("heatproof.perturbation.road").impute_sequence
    points = perturbation.points(*query.images.shape[-2:])
    skip = int(intact is not None and not (first == 0).any())

    def pieces() -> Iterator[Perturbed]:
        for rows, chunk, ids in query.chunks():
            removed = torch.from_numpy(first[rows]).to(query.device)
            sequence = impute_sequence(chunk, removed, points, noise=perturbation.noise, seed=query.seed, image_ids=ids)
            for point, imputed in enumerate(sequence):
                if point >= skip:
                    yield imputed, torch.arange(rows.start, rows.stop, device=query.device)

    order: list[int] = []

    def batches() -> Iterator[Perturbed]:
        for made, rows in _rebatched(pieces(), query.batch_size):
            order.extend(rows.tolist())
            yield query.like_images(made), rows

    read = run_batched(query.network, batches(), query.targets, query.image_ids)
    # Chunk by chunk and point by point, as they were yielded: a stable sort by image brings points into order.
    by_image = np.argsort(order, kind="stable")
    shape = (len(query.images), points - skip)
    shaped = {key: values[by_image].reshape(*shape, *values.shape[1:]) for key, values in read.items()}
    if skip and intact is not None:
        shaped = {key: np.concatenate([intact[key][:, None], shaped[key]], axis=1) for key in RESPONSES}
    return shaped


def _rebatched(pieces: Iterator[Perturbed], size: int) -> Iterator[Perturbed]:
    """Cut and join pieces to batches of one size; the last may be smaller."""
    waiting: list[Perturbed] = []
    have = 0
    for piece in pieces:
        waiting.append(piece)
        have += len(piece[1])
        while have >= size:
            made, rows = (torch.cat([part[side] for part in waiting]) for side in (0, 1))
            yield made[:size], rows[:size]
            waiting = [(made[size:], rows[size:])]
            have -= size
    if have:
        yield torch.cat([part[0] for part in waiting]), torch.cat([part[1] for part in waiting])


def _updated(
    query: Query, maps: np.ndarray, perturbation: Perturbation, explain: Explain, ranking: np.ndarray | None
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Delete along maps that are made anew before every step; pixels that are gone stay gone."""
    images, targets = query.images, query.targets
    counts = perturbation.counts(*images.shape[-2:])
    shape = images.shape[-2:]
    first = np.full(maps.shape, len(counts), dtype=np.int32)
    parts: list[dict[str, np.ndarray]] = []
    for rows, chunk, ids in query.chunks():
        fill = baseline_images(perturbation.baseline, chunk, ids, query.seed, dict(perturbation.baseline_options))
        gone = np.zeros((len(chunk), shape[0] * shape[1]), dtype=bool)
        current, now = chunk, maps[rows]
        for point, wanted in enumerate(counts):
            if point:
                made = explain(current, targets[rows, 0])
                now = made.detach().float().cpu().numpy()
                check_maps(now, chunk, ids)
            order = pixel_ranking(now, ids, query.seed, ties=perturbation.ties)
            if ranking is not None and not point:
                order = ranking[rows]
            order = order[:, ::-1] if perturbation.order == "lerf" else order
            ahead = np.argsort(~np.take_along_axis(gone, order, axis=1), axis=1, kind="stable")
            leaving = np.take_along_axis(order, ahead, axis=1)[:, :wanted]
            flat = first[rows].reshape(len(chunk), -1)
            for row, pixels in enumerate(leaving):
                new = pixels[~gone[row, pixels]]
                flat[row, new] = point
                gone[row, new] = True
            mask = torch.from_numpy(gone.reshape(len(chunk), 1, *shape)).to(query.device)
            current = query.like_images(torch.where(mask, fill, chunk))
            batch = [(current, torch.arange(len(chunk), device=query.device))]
            parts.append(
                {"rows": np.arange(rows.start, rows.stop)} | run_batched(query.network, batch, targets[rows], ids)
            )
    by_image = np.argsort(np.concatenate([part.pop("rows") for part in parts]), kind="stable")
    read = {key: np.concatenate([part[key] for part in parts])[by_image] for key in RESPONSES}
    return {key: v.reshape(len(images), len(counts), *v.shape[1:]) for key, v in read.items()}, first

"""Time and accuracy of ROAD's imputation on 224 × 224 colour images, beside a plain direct solution.

    python benchmarks/road.py

The yardstick assembles the sparse system and solves it for every image and channel, on some steps only, as it takes
minutes for all of them; a network's forward pass tells how much of a run the imputation is.
"""

from __future__ import annotations

import time

import numpy as np
import torch
from scipy import sparse
from scipy.ndimage import gaussian_filter
from scipy.sparse.linalg import spsolve
from torchvision.models import resnet18

from heatproof.perturbation.road import impute_sequence

SIZE = 224
SEQUENCES = {"96 steps": np.arange(3, 99) / 100, "9 steps": np.arange(1, 10) / 10}


def pictures(count: int) -> torch.Tensor:
    noise = np.random.default_rng(1).standard_normal((count, 3, SIZE, SIZE))
    return torch.from_numpy(8 * gaussian_filter(noise, (0, 0, 3, 3)) + 0.2 * noise).float()


def first_removed(kind: str, count: int, fractions: np.ndarray) -> torch.Tensor:
    values = np.random.default_rng(0).standard_normal((count, SIZE, SIZE))
    if kind == "blob":
        values = gaussian_filter(values, (0, SIZE / 12, SIZE / 12))
    rank = values.reshape(count, -1).argsort(1).argsort(1)
    steps = np.searchsorted((SIZE * SIZE * fractions).astype(int), rank, side="right")
    return torch.from_numpy(steps.reshape(values.shape))


def direct(image: np.ndarray, removed: np.ndarray) -> np.ndarray:
    height, width = removed.shape
    number = np.full((height + 2, width + 2), -1)
    inside = np.zeros_like(number, dtype=bool)
    inside[1:-1, 1:-1] = True
    at = np.argwhere(removed) + 1
    number[at[:, 0], at[:, 1]] = np.arange(len(at))
    offsets = [(i, j) for i in (-1, 0, 1) for j in (-1, 0, 1) if (i, j) != (0, 0)]
    rows, columns, values = [np.arange(len(at))], [np.arange(len(at))], [np.ones(len(at))]
    weights = np.stack([inside[at[:, 0] + i, at[:, 1] + j] / (6 if 0 in (i, j) else 12) for i, j in offsets])
    weights /= weights.sum(axis=0)
    out = image.copy()
    for channel in range(len(image)):
        padded = np.pad(image[channel], 1)
        right = np.zeros(len(at))
        r, c, v = list(rows), list(columns), list(values)
        for weight, (i, j) in zip(weights, offsets, strict=True):
            near = number[at[:, 0] + i, at[:, 1] + j]
            unknown = near >= 0
            right += np.where(unknown, 0, weight * padded[at[:, 0] + i, at[:, 1] + j])
            r.append(np.flatnonzero(unknown))
            c.append(near[unknown])
            v.append(-weight[unknown])
        matrix = sparse.csr_array((np.concatenate(v), (np.concatenate(r), np.concatenate(c))))
        out[channel][removed] = spsolve(matrix, right)
    return out


def main() -> None:
    print(f"{torch.get_num_threads()} threads")
    images = pictures(2)
    with torch.inference_mode():
        for kind in ("blob", "scattered"):
            for name, fractions in SEQUENCES.items():
                first = first_removed(kind, len(images), fractions)
                chosen = range(0, len(fractions), max(1, len(fractions) // 6))
                kept, theirs, difference = {}, [], 0.0
                start = time.perf_counter()
                for step, imputed in enumerate(
                    impute_sequence(images, first, len(fractions), noise=0, seed=0, image_ids="ab")
                ):
                    if step in chosen:
                        kept[step] = imputed[0]
                ours = (time.perf_counter() - start) / len(images)
                for step in chosen:
                    start = time.perf_counter()
                    exact = direct(images[0].double().numpy(), (first[0] <= step).numpy())
                    theirs.append(time.perf_counter() - start)
                    difference = max(difference, np.abs(kept[step].numpy() - exact).max())
                yardstick = float(np.mean(theirs)) * len(fractions)
                print(
                    f"{kind:9} {name:8}: {ours:6.3f} s an image, yardstick {yardstick:6.2f} s, "
                    f"{yardstick / ours:5.1f} times faster, largest difference {difference:.1e}",
                    flush=True,
                )
        network = resnet18().eval().to(memory_format=torch.channels_last)
        batch = pictures(16).contiguous(memory_format=torch.channels_last)
        network(batch)
        start = time.perf_counter()
        network(batch)
        print(f"resnet18 forward: {(time.perf_counter() - start) / 16:.4f} s an image")


if __name__ == "__main__":
    main()

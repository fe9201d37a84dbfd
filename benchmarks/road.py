"""Time and accuracy of ROAD's imputation on colour images of two sizes, compared with a direct solution.

    python benchmarks/road.py --out FOLDER

The yardstick assembles the sparse system and solves it channel by channel, for one image and some steps only, because
it would take minutes for all of them; a network's forward pass shows the share of the imputation in a run.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from _shared import make_parser, print_table
from scipy import sparse
from scipy.ndimage import gaussian_filter
from scipy.sparse.linalg import spsolve
from torchvision.models import resnet18

from heatproof.core.perturb.road import impute_sequence

SEQUENCES = (np.arange(3, 99) / 100, np.arange(1, 10) / 10)


def smooth_images(count: int, size: int) -> torch.Tensor:
    noise = np.random.default_rng(1).standard_normal((count, 3, size, size))
    return torch.from_numpy(8 * gaussian_filter(noise, (0, 0, 3, 3)) + 0.2 * noise).float()


def first_removed(kind: str, count: int, size: int, fractions: np.ndarray) -> torch.Tensor:
    values = np.random.default_rng(0).standard_normal((count, size, size))
    if kind == "blob":
        values = gaussian_filter(values, (0, size / 12, size / 12))
    rank = values.reshape(count, -1).argsort(1).argsort(1)
    steps = np.searchsorted((size * size * fractions).astype(int), rank, side="right")
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


def best(function: Callable[[], object], repeats: int = 3) -> float:
    """Return the seconds of the fastest repeat."""
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def fill(images: torch.Tensor, first: torch.Tensor, steps: int, saved_steps: dict[int, np.ndarray]) -> None:
    """Run a sequence, and return every step of the first image."""
    names = [str(number) for number in range(len(images))]
    for step, imputed in enumerate(impute_sequence(images, first, steps, noise=0, seed=0, image_ids=names)):
        saved_steps[step] = imputed[0].numpy()


def forward(size: int) -> float:
    """Return the milliseconds per image of a network's forward pass, in a batch of 64."""
    network = resnet18().eval().to(memory_format=torch.channels_last)
    batch = smooth_images(64, size).contiguous(memory_format=torch.channels_last)
    with torch.inference_mode():
        network(batch)
        return 1e3 * best(lambda: network(batch)) / len(batch)


def measure(size: int, count: int, repeats: int) -> list[dict[str, object]]:
    images = smooth_images(count, size)
    rows, a_pass = [], forward(size)
    for kind in ("blob", "scattered"):
        for fractions in SEQUENCES:
            first = first_removed(kind, count, size, fractions)
            chosen = np.linspace(0, len(fractions) - 1, 5).round().astype(int)
            direct_times, difference, saved_steps = [], 0.0, {}
            ours = best(partial(fill, images, first, len(fractions), saved_steps), repeats) / count
            for step in chosen:
                start = time.perf_counter()
                exact = direct(images[0].double().numpy(), (first[0] <= step).numpy())
                direct_times.append(time.perf_counter() - start)
                difference = max(difference, np.abs(saved_steps[step] - exact).max() / images[0].abs().max().item())
            yardstick = float(np.mean(direct_times)) * len(fractions)
            rows.append(
                {
                    "pixels": size,
                    "removed": kind,
                    "steps": len(fractions),
                    "ms a step": 1e3 * ours / len(fractions),
                    "of a ResNet-18 pass": 1e3 * ours / len(fractions) / a_pass,
                    "direct solution takes times": yardstick / ours,
                    "largest difference": f"{difference:.0e}",
                }
            )
            print(rows[-1], flush=True)
    return rows


def main() -> None:
    options = make_parser(__doc__).parse_args()
    print(f"{torch.get_num_threads()} threads for torch, 1 for the direct solution")
    sizes = ((32, 4, 1),) if options.small else ((224, 4, 2), (32, 64, 3))
    print_table([row for size in sizes for row in measure(*size)], "road", options.out)


if __name__ == "__main__":
    main()

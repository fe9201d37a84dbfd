"""SIC and AIC by `heatproof.evaluate`, in turn with the published procedure written out: how much faster, how steadily.

    python benchmarks/pic_floor.py --out FOLDER
    PYTHONPATH=OTHER_CHECKOUT/src python benchmarks/pic_floor.py

The reference is that of `pic.py`: both metrics one after the other; for each step of an image,
`scipy.interpolate.griddata` for each channel, the size as WebP, and one pass of the same network on one thread.
heatproof has all threads. Both take two crops of photographs at 224 × 224 (`--small`: one of 64 × 64) on ResNet-18 with
random weights, in turn, and have to find the same entropies. The reference takes minutes: `--references N` has it
in the first N rounds only.

A ratio of a round is the reference's time divided by heatproof's; the median has to be at least 2.5. The slowest round
of heatproof divided by its median has to be below 1.5.
"""

from __future__ import annotations

import statistics
import warnings
from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np
import torch
from _shared import make_parser, print_table
from pic import MEAN, SIDE, STD, Split, photographs, yardstick
from scipy.ndimage import gaussian_filter
from torchvision.models import resnet18

import heatproof
from heatproof.core.perturb.pic import random_mask

SEED, SMALL_SIDE = 0, 64
LEAST_RATIO, LARGEST_SPREAD = 2.5, 1.5


class Work:
    """The same images, maps and network for both."""

    def __init__(self, count: int, side: int = SIDE) -> None:
        torch.manual_seed(SEED)
        self.network = resnet18().eval()
        self.crops = np.ascontiguousarray(photographs(count)[:, :side, :side])
        noise = np.random.default_rng(SEED).normal(size=self.crops.shape[:3])
        self.maps = np.stack([np.abs(gaussian_filter(plane, 3) * 10 + plane) for plane in noise])
        self.images = torch.from_numpy((self.crops - MEAN) / STD).permute(0, 3, 1, 2).contiguous()
        self.random = random_mask(side, side, SEED)

    def evaluate(self, **options: Any) -> dict[str, Any]:
        """Return the scores by heatproof."""
        settings = {"mean": MEAN.tolist(), "std": STD.tolist(), "seed": SEED, **options}
        targets = torch.zeros(len(self.images), dtype=torch.int64)
        scores: dict[str, Any] = heatproof.evaluate(
            ["sic", "aic"], self.network, self.images, targets, self.maps, **settings
        )
        return scores

    def reference(self) -> list[list[int]]:
        """Return the entropies of all steps of the images."""
        threads = torch.get_num_threads()
        # For single images, several threads can be slower than one.
        torch.set_num_threads(1)
        entropies = [
            yardstick(self.network, crop, plane, self.random, Split())
            for crop, plane in zip(self.crops, self.maps, strict=True)
        ]
        torch.set_num_threads(threads)
        return entropies


def timed(function: Callable[[], Any]) -> tuple[float, Any]:
    began = perf_counter()
    result = function()
    return perf_counter() - began, result


def rounds_of(work: Work, rounds: int, references: int) -> tuple[list[float], list[float]]:
    """Return the seconds of the reference in the first rounds, and of heatproof in each round."""
    # The first call imports modules, and does not count.
    entropies = work.evaluate(details=True)["sic"]["entropy"].values.tolist()
    seconds_of_reference, seconds = [], []
    for number in range(rounds):
        if number < references:
            reference, sizes = timed(work.reference)
            if sizes != entropies:
                raise SystemExit("The two procedures disagree on an entropy, so their times are of different work.")
            seconds_of_reference.append(reference)
        ours, _ = timed(work.evaluate)
        seconds.append(ours)
        print(f"reference {seconds_of_reference[-1]:.2f} s, heatproof {ours:.2f} s", flush=True)
    return seconds_of_reference, seconds


def main() -> None:
    options = make_parser(__doc__)
    options.add_argument("--images", default=2, type=int)
    options.add_argument("--rounds", default=15, type=int)
    options.add_argument("--references", type=int, help="rounds with the reference; all by default")
    args = options.parse_args()
    warnings.simplefilter("ignore")
    work = Work(1, SMALL_SIDE) if args.small else Work(args.images)
    rounds = 1 if args.small else args.rounds
    reference, ours = rounds_of(work, rounds, args.references or rounds)
    # Rounds that have both.
    ratio = statistics.median(slow / fast for slow, fast in zip(reference, ours, strict=False))
    spread = max(ours) / statistics.median(ours)
    row = {
        "images": len(work.images),
        "rounds": len(ours),
        "rounds of the reference": len(reference),
        "reference s": statistics.median(reference),
        "heatproof s": statistics.median(ours),
        "reference over heatproof": ratio,
        "slowest round over median": spread,
        "passes": "yes" if ratio >= LEAST_RATIO and spread < LARGEST_SPREAD else "no",
    }
    print_table([row], "pic_floor", args.out)


if __name__ == "__main__":
    main()

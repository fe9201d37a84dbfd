"""All reference maps of 1,000 images: seconds for each explainer, on one thread.

Usage: python benchmarks/reference.py [--images N] [--size PIXELS] [--batch-size N]
"""

from __future__ import annotations

import argparse
from time import perf_counter

import torch

from heatproof.attribution.make import stack_maps
from heatproof.attribution.registry import EXPLAINERS, Explained
from heatproof.data.digits import digits


def batches(count: int, size: int, batch_size: int) -> list[Explained]:
    """Return digits in batches, enlarged where asked, and repeated under other names where there are too few."""
    data = digits(seed=0)
    images = torch.from_numpy(data.images("train", 0, min(count, len(data.splits["train"].ids)))) * 2 - 1
    images = images.repeat(-(-count // len(images)), 1, 1, 1)[:count]
    if size != images.shape[-1]:
        images = torch.nn.functional.interpolate(images, (size, size), mode="bilinear")
    return [
        Explained(
            network=None,
            output=None,
            facts=None,
            images=part,
            targets=torch.zeros(len(part), dtype=torch.int64),
            image_ids=tuple(f"{place}-{row}" for row in range(len(part))),
            seed=0,
        )
        for place, part in enumerate(images.split(batch_size))
    ]


def run(count: int, size: int, batch_size: int) -> None:
    given = batches(count, size, batch_size)
    entries = [entry for entry in EXPLAINERS.values() if not entry.uses_model]
    total = 0.0
    print(f"{count} images of {size} pixels, batches of {batch_size}, {torch.get_num_threads()} thread")
    for entry in entries:
        told = {"name": entry.name, "maps": entry.maps}
        # Importing the libraries is paid once a process, whatever the number of images.
        entry.function(given[0])
        start = perf_counter()
        for explained in given:
            stack_maps(entry.function(explained), told, explained)
        seconds = perf_counter() - start
        total += seconds
        print(f"{entry.name:16s} {len(entry.maps):3d} maps {seconds:7.2f} s")
    print(f"{'all':16s} {sum(len(entry.maps) for entry in entries):3d} maps {total:7.2f} s")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--images", default=1000, type=int)
    parser.add_argument("--size", default=32, type=int)
    parser.add_argument("--batch-size", default=64, type=int)
    options = parser.parse_args()
    torch.set_num_threads(1)
    run(options.images, options.size, options.batch_size)

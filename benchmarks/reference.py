"""Milliseconds per image of every explainer that does not use the model, on one thread.

python benchmarks/reference.py --out FOLDER
"""

from __future__ import annotations

from time import perf_counter

import torch
from _shared import make_parser, print_table

from heatproof.core.batch import Batch
from heatproof.datasets.digits import digits
from heatproof.explainers.explaining import stack_maps
from heatproof.explainers.registry import EXPLAINERS


def batches(count: int, size: int, batch_size: int) -> list[Batch]:
    """Return digits in batches, enlarged if requested, and repeated under other names where there are too few."""
    data = digits(seed=0)
    images = torch.from_numpy(data.images("train", 0, min(count, len(data.splits["train"].ids)))) * 2 - 1
    images = images.repeat(-(-count // len(images)), 1, 1, 1)[:count]
    if size != images.shape[-1]:
        images = torch.nn.functional.interpolate(images, (size, size), mode="bilinear")
    return [
        Batch(
            network=None,
            output=None,
            facts=None,
            images=part,
            targets=torch.zeros(len(part), dtype=torch.int64),
            image_ids=tuple(f"{number}-{row}" for row in range(len(part))),
            seed=0,
        )
        for number, part in enumerate(images.split(batch_size))
    ]


def measure(count: int, size: int, batch_size: int = 64) -> list[dict[str, object]]:
    """Return a row for each explainer, and one of all."""
    contexts = batches(count, size, batch_size)
    rows = []
    for entry in [entry for entry in EXPLAINERS.values() if not entry.uses_model]:
        # Importing the libraries costs the same for any number of images.
        entry.function(contexts[0])
        start = perf_counter()
        for context in contexts:
            stack_maps(entry.function(context), list(entry.maps), context)
        spent = 1000 * (perf_counter() - start) / count
        rows.append({"pixels": size, "images": count, "explainer": entry.name, "maps": len(entry.maps), "ms": spent})
    total = {"explainer": "all", "maps": sum(row["maps"] for row in rows), "ms": sum(row["ms"] for row in rows)}
    return [*rows, rows[0] | total]


if __name__ == "__main__":
    options = make_parser(__doc__).parse_args()
    torch.set_num_threads(1)
    sizes = ((8, 32),) if options.small else ((1000, 32), (32, 224))
    print_table([row for size in sizes for row in measure(*size)], "reference", options.out)

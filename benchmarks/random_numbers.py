"""Time of drawing an image's random numbers on a CPU, by counter, by PyTorch's generator, and by the earlier method.

    python benchmarks/random_numbers.py --out FOLDER

One process, one thread, in turns; the ratios are the result. Earlier, every image had a newly seeded generator.
"""

import time

import torch
from _shared import make_parser, print_table

from heatproof.core.randomness import counter_normal, counter_uniform, torch_generator

SHAPES = {"25 samples of 3 × 224 × 224": (1, (25, 3, 224, 224)), "64 images of 3 × 32 × 32": (64, (3, 32, 32))}
KINDS = {"normal": (counter_normal, torch.randn), "uniform": (counter_uniform, torch.rand)}
ROUNDS = 15


def main():
    """Print milliseconds and ratios, the least of all rounds, because others use the machine too."""
    torch.set_num_threads(1)
    options = make_parser(__doc__).parse_args()
    rows = []
    for purpose, (images, shape) in SHAPES.items():
        ids = [f"image {number}" for number in range(images)]
        for kind, (by_counter, library) in KINDS.items():
            generator = torch.Generator()
            ways = (
                lambda draw=by_counter, ids=ids, shape=shape: draw(0, "x", ids, shape),
                lambda draw=library, ids=ids, shape=shape, source=generator: draw(len(ids), *shape, generator=source),
                lambda draw=library, ids=ids, shape=shape: torch.stack(
                    [draw(shape, generator=torch_generator(0, "x", name)) for name in ids]
                ),
            )
            spent = [float("inf")] * len(ways)
            for _ in range(1 if options.small else ROUNDS):
                for number, way in enumerate(ways):
                    start = time.perf_counter()
                    way()
                    spent[number] = min(spent[number], 1000 * (time.perf_counter() - start))
            row = dict(zip(("ms by counter", "ms by PyTorch at once", "ms as before"), spent, strict=True))
            ratios = {"over PyTorch": spent[0] / spent[1], "over before": spent[0] / spent[2]}
            rows.append({"numbers": f"{kind}, {purpose}"} | row | ratios)
    print_table(rows, "random_numbers", options.out)


if __name__ == "__main__":
    main()

"""Memory and time of `heatproof.explain` with a cache, for ten times as many images.

    python benchmarks/cache.py --out FOLDER

A small network explains images of 64 by 64 pixels that a dataset draws when they are read, in a separate process for
each number of images; then the same call reads the maps from the cache. `MiB beyond the process` is the growth of the
process's peak memory during the call.
"""

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from _shared import make_parser, print_table


def measure(folder: str, count: int, size: int) -> None:
    """Explain once, and print the seconds and the memory that it took."""
    import torch
    from torch import nn

    import heatproof

    class Drawn(torch.utils.data.Dataset):
        def __len__(self):
            return count

        def __getitem__(self, number):
            return torch.randn(3, size, size, generator=torch.Generator().manual_seed(number))

    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(128, 10)]
    network = nn.Sequential(*layers).eval()
    methods = ["saliency", "input_x_gradient", "random"]
    # The memory that libraries take at their first use does not depend on the number of images.
    heatproof.explain(network, torch.randn(128, 3, size, size), None, methods, cache=f"{folder}-warm")
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
    maps = heatproof.explain(network, Drawn(), None, methods, cache=folder)
    seconds = time.perf_counter() - began
    total = sum(float(maps["attribution"][:, row].sum()) for row in range(0, count, 50))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(json.dumps({"seconds": seconds, "peak": peak / 1024, "more": (peak - before) / 1024, "total": total}))


def rows(counts: list[int], size: int) -> list[dict[str, object]]:
    """Return the time and memory for each number of images, with an empty and with a filled cache."""
    measured_rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as folder:
        for count in counts:
            for state in ("cold", "warm"):
                command = [sys.executable, __file__, "--measure", f"{folder}/{count}", str(count), str(size)]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                measured = json.loads(done.stdout.splitlines()[-1])
                cache_size = sum(path.stat().st_size for path in Path(folder, str(count)).rglob("*.batch")) / 2**20
                first = measured_rows[0]["peak in MiB"] if measured_rows else measured["peak"]
                measured_rows.append(
                    {
                        "images": count,
                        "cache": state,
                        "seconds": measured["seconds"],
                        "peak in MiB": measured["peak"],
                        "ratio of peaks": measured["peak"] / first,
                        "MiB beyond the process": measured["more"],
                        "MiB kept": cache_size,
                    }
                )
    return measured_rows


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        measure(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    else:
        args = make_parser(__doc__).parse_args()
        print_table(rows([64, 256] if args.small else [500, 5000], 16 if args.small else 64), "cache", args.out)

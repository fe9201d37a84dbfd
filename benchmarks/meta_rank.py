"""Time and memory of Meta-Rank for growing numbers of methods (after figure 4 of the Meta-Rank paper).

Every size is run several times in a separate process with one thread; the least processor time counts, because other
work on the machine only adds to it. The floor is the one operation that cannot be avoided: a matrix product over as
many pairs and resamples, measured in the same process.

    python benchmarks/meta_rank.py --out FOLDER
"""

import json
import os
import subprocess
import sys
from pathlib import Path

from _shared import make_parser, print_table

CASES = 26
SIZES = (10, 30, 100, 300, 1000, 3000, 10000)
LIMITS = {1000: 1.0, 10000: 60.0}


def measure(methods):
    """Print processor seconds, peak memory in GiB and the floor, as JSON."""
    import resource
    import time

    import numpy as np

    from heatproof.stats.meta_rank import default_repetitions, meta_rank

    rng = np.random.default_rng(0)
    scores = np.linspace(0, 3, methods) + rng.normal(size=(CASES, methods))
    meta_rank(scores[:, :5])
    seconds = []
    for _ in range(5 if methods <= 1000 else 2 if methods <= 3000 else 1):
        began = time.process_time()
        meta_rank(scores)
        seconds.append(time.process_time() - began)
    resamples = default_repetitions(methods)
    left = rng.random((resamples, CASES), dtype=np.float32)
    right = rng.random((CASES, methods), dtype=np.float32)
    blocks = min(methods, 50)
    floor = []
    for _ in range(3):
        began = time.process_time()
        for _ in range(blocks):
            left @ right
        floor.append((time.process_time() - began) * methods / blocks / 2)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(json.dumps({"seconds": min(seconds), "peak": peak, "floor": min(floor), "resamples": resamples}))


def draw(results, path):
    """Draw seconds and memory over the number of methods."""
    import matplotlib.pyplot as plt

    sizes = list(results)
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    left.loglog(sizes, [results[size]["seconds"] for size in sizes], "o-", label="Meta-Rank with its interval")
    left.loglog(
        sizes, [results[size]["floor"] for size in sizes], "s--", color="0.5", label="the matrix products alone"
    )
    for size, limit in LIMITS.items():
        left.plot([size], [limit], "v", color="C3", label="limit" if size == min(LIMITS) else None)
    left.set(xlabel=f"methods, in {CASES} test cases", ylabel="processor seconds, one thread")
    left.legend(frameon=False)
    right.semilogx(sizes, [results[size]["peak"] for size in sizes], "o-")
    right.plot([max(LIMITS)], [4.0], "v", color="C3")
    right.set(xlabel=f"methods, in {CASES} test cases", ylabel="peak memory, GiB", ylim=(0, None))
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        measure(int(sys.argv[2]))
        sys.exit()
    options = make_parser(__doc__).parse_args()
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    results = {}
    for size in (10,) if options.small else SIZES:
        command = [sys.executable, __file__, "--measure", str(size)]
        done = subprocess.run(command, env={**os.environ, **threads}, capture_output=True, text=True, check=True)
        results[size] = json.loads(done.stdout)
    rows = [
        {
            "methods": size,
            "processor s": result["seconds"],
            "over the products": result["seconds"] / result["floor"],
            "peak GiB": result["peak"],
            "resamples": result["resamples"],
        }
        for size, result in results.items()
    ]
    print_table(rows, "meta_rank", options.out)
    draw(results, (options.out or Path()) / "meta_rank_scaling.png")

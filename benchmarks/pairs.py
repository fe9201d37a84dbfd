"""Times of two checkouts in pairs: the same calls in turns, and the ratio of the second's seconds to the first's.

    python benchmarks/pairs.py FIRST SECOND --pairs 15 --out FOLDER
    python benchmarks/pairs.py FIRST SECOND --lines "sds small" "start of a job"

Each checkout has one process with its own PYTHONPATH and as many threads of torch as the other. After a warm-up, both
make the same call in turns, and change the order with every pair, so that a slow moment of the machine slows down both.
Short calls are repeated until a turn lasts half a second. `start of a job` starts a process for each turn, which
imports what the jobs `attribute`, `curves` and `score` import. Both processes are new after every five pairs, so
that what makes one process slower than another with the same code does not count for a whole line.

A line passes if the median of its ratios is at most 1.02 and the upper end of the median's 95 % interval, from order
statistics of the binomial distribution, is at most 1.08. Fewer than six pairs have no such interval. The ratio of the
processor seconds does not count for this, but shows whether other programs cause a difference.

The small network is a CNN at 32 × 32 with 24 images; ResNet-18 at 224 × 224 has 8 images, 16 in `choose`, and 1 in
`sic`, whose images take seconds each. At 224 pixels deletion and insertion have 16 steps. In all calls, integrated
gradients has 4 steps and RISE 8 masks; `choose` compares two cheap methods by one measure. With `--out`, seconds are
stored after every pair, and a run on the same code continues after a kill.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import math
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pandas as pd
from _shared import make_parser, module_of_workflow, print_table
from scipy.stats import binom

# Of the median of the ratios, and of the upper end of its interval.
MEDIAN_LIMIT, UPPER_LIMIT = 1.02, 1.08
LEVEL = 0.95
# Seconds that a turn lasts at least, and the largest number of calls in it.
TURN, REPEATS = 0.5, 50
# Pairs that one process of each checkout measures.
BLOCK = 5
METHODS: dict[str, dict[str, int]] = {
    "saliency": {},
    "input_x_gradient": {},
    "integrated_gradients": {"steps": 4},
    "grad_cam": {},
    "guided_backprop": {},
    "rise": {"masks": 8},
}
METRICS = ("sds", "rise_deletion", "mas_insertion", "sic")
START = "start of a job"
STAGES_OF_A_START = ("attribute", "curves", "score")

Call = Callable[[], Any]


def calls() -> dict[str, Callable[[], Call]]:
    """Return the lines: their name to a function that prepares the call."""
    lines: dict[str, Callable[[], Call]] = {}
    for size in ("small", "resnet18"):
        for metric in METRICS:
            lines[f"{metric} {size}"] = lambda metric=metric, size=size: evaluation(metric, size)
        lines[f"explain {size}"] = lambda size=size: explanation(size)
        lines[f"choose {size}"] = lambda size=size: choice(size)
    return {**lines, START: start_of_a_job}


def network_and_images(size: str, count: int) -> tuple[Any, Any, Any]:
    """Return a network with random weights, images that are smooth as photographs, and their classes."""
    import torch

    torch.manual_seed(0)
    if size == "small":
        side, network = 32, small_network()
    else:
        from torchvision.models import resnet18

        side, network = 224, resnet18()
    coarse = torch.rand(count, 3, side // 8, side // 8)
    images = torch.nn.functional.interpolate(coarse, side, mode="bicubic").clamp(0, 1)
    return network.eval(), images, torch.arange(count) % 10


def small_network() -> Any:
    from torch import nn

    layers = [nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(32 * 16, 10))


def evaluation(metric: str, size: str) -> Call:
    import torch

    import heatproof

    count = 24 if size == "small" else 1 if metric == "sic" else 8
    network, images, targets = network_and_images(size, count)
    maps = torch.rand(count, *images.shape[2:])
    options: dict[str, Any] = {"grid": 4} if metric == "sds" else {}
    if metric == "sic":
        options = {"mean": [0.0] * 3, "std": [1.0] * 3}
    elif metric != "sds" and size == "resnet18":
        options = {"steps": 16}
    return lambda: heatproof.evaluate(metric, network, images, targets, maps, **options)


def explanation(size: str) -> Call:
    import heatproof

    network, images, targets = network_and_images(size, 24 if size == "small" else 8)
    return lambda: heatproof.explain(network, images, targets, METHODS, progress=False)


def choice(size: str) -> Call:
    import heatproof

    network, images, targets = network_and_images(size, 24 if size == "small" else 16)
    measures = {"patch deletion": {"metric": "sds", "baseline": "zeros"}}
    methods = ["saliency", "grad_cam"]
    return lambda: heatproof.choose(network, images, targets, methods, measures=measures, progress=False)


def start_of_a_job() -> Call:
    """Return the start of a process that imports what this checkout's stages import, at their top and when they run."""
    # The package had another name.
    core = "core" if find_spec("heatproof.core") else "base"
    read_source = import_module(f"heatproof.{core}.provenance").read_source
    registry = module_of_workflow("plan.stage").STAGES
    stages = [registry[name] for name in STAGES_OF_A_START]
    modules = dict.fromkeys(module for stage in stages for module in (stage.__module__, *getattr(stage, "code", ())))
    modules |= dict.fromkeys(imported for module in [*modules] for imported in read_source(module).imports)
    imports = f"import {', '.join(['heatproof.workflow.job', *modules])}"
    return lambda: subprocess.run([sys.executable, "-c", imports], check=True, stdout=subprocess.DEVNULL)


def answer_requests(threads: int) -> None:
    """Make the calls that the lines of the input name, and print the seconds of each request."""
    import torch

    import heatproof

    answers = os.fdopen(os.dup(1), "w")
    # What a call prints must not mix with the answers.
    os.dup2(2, 1)
    warnings.simplefilter("ignore")
    torch.set_num_threads(threads)
    print(json.dumps(str(Path(heatproof.__file__).parent)), file=answers, flush=True)
    prepared: tuple[str, Call | None] = ("", None)
    for line in sys.stdin:
        name, repeats = json.loads(line)
        if name != prepared[0]:
            # The images and the network of the line before are freed first.
            prepared = ("", None)
            prepared = (name, calls()[name]())
        call = prepared[1]
        assert call is not None
        began, used = time.perf_counter(), processor_seconds()
        for _ in range(repeats):
            call()
        durations = time.perf_counter() - began, processor_seconds() - used
        print(json.dumps([duration / repeats for duration in durations]), file=answers, flush=True)


def processor_seconds() -> float:
    """Return the processor seconds of this process and of those that it has waited for."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


class Side:
    """The process of a checkout."""

    def __init__(self, checkout: Path, threads: int) -> None:
        source = checkout.resolve() / "src"
        environment = {
            **os.environ,
            "PYTHONPATH": str(source),
            "OMP_NUM_THREADS": str(threads),
            "PYTHONWARNINGS": "ignore",
        }
        command = [sys.executable, __file__, "--answer", str(threads)]
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed in `end`
        self.process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True
        )
        package = self._answer()
        if Path(package) != source / "heatproof":
            raise SystemExit(f"The process of {checkout} imports {package}: give a checkout of heatproof.")

    def _answer(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self.errors.seek(0)
            raise SystemExit(self.errors.read()[-3000:])
        return json.loads(line)

    def seconds(self, name: str, repeats: int = 1) -> tuple[float, float]:
        """Return the seconds of a call, and its processor seconds."""
        assert self.process.stdin is not None
        print(json.dumps([name, repeats]), file=self.process.stdin, flush=True)
        wall, processor = self._answer()
        return wall, processor

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()
        self.errors.close()


@contextlib.contextmanager
def both_sides(first: Path, second: Path, threads: int) -> Iterator[tuple[Side, Side]]:
    sides = Side(first, threads), Side(second, threads)
    try:
        yield sides
    finally:
        for side in sides:
            side.end()


def digest_of_code(checkout: Path) -> str:
    """Return a digest of the library's code, also of changes that are not committed."""
    digest = hashlib.sha256()
    package = checkout / "src/heatproof"
    for path in sorted(package.rglob("*.py")):
        digest.update(path.relative_to(package).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()[:12]


class Seconds:
    """The seconds of all pairs, stored after each one; those of other code or other threads do not count."""

    def __init__(self, out: Path | None, identity: dict[str, Any]) -> None:
        self.file = out / "pairs_seconds.csv" if out else None
        self.identity = identity
        self.rows: list[dict[str, Any]] = []
        if self.file and self.file.is_file():
            self.rows = pd.read_csv(self.file, dtype={"first": str, "second": str}).to_dict("records")

    def of(self, name: str) -> list[dict[str, Any]]:
        """Return the pairs of a line."""
        same = {"line": name, **self.identity}
        return [stored for stored in self.rows if all(stored[key] == value for key, value in same.items())]

    def add(self, name: str, first: tuple[float, float], second: tuple[float, float]) -> None:
        durations = {"first s": first[0], "second s": second[0]}
        durations |= {"first processor s": first[1], "second processor s": second[1]}
        self.rows.append({"line": name, **self.identity, **durations})
        if self.file:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            # Replaced as a whole, because a kill can come at any time.
            temporary = self.file.with_suffix(".part")
            pd.DataFrame(self.rows).to_csv(temporary, index=False)
            temporary.replace(self.file)


def repeats_of(name: str, sides: tuple[Side, Side]) -> int:
    """Return how many calls a turn has."""
    quickest = min(side.seconds(name)[0] for side in sides)
    return min(max(math.ceil(TURN / quickest), 1), REPEATS)


def measure(name: str, args: argparse.Namespace, seconds: Seconds, pairs: int) -> None:
    """Measure the pairs of a line that are not stored."""
    repeats = 0
    for start in range(len(seconds.of(name)), pairs, BLOCK):
        with both_sides(args.first, args.second, args.threads) as sides:
            for side in sides:
                # The first call imports modules.
                side.seconds(name)
            repeats = repeats or repeats_of(name, sides)
            for pair in range(start, min(start + BLOCK, pairs)):
                turns = {number: sides[number].seconds(name, repeats) for number in order_of(pair)}
                seconds.add(name, turns[0], turns[1])


def order_of(pair: int) -> tuple[int, int]:
    return (1, 0) if pair % 2 else (0, 1)


def interval_of_median(values: list[float]) -> tuple[float, float]:
    """Return the order statistics between which the median lies with a probability of at least 95 %."""
    count = len(values)
    # So many values at each end are outside: at most 2.5 % of the binomial distribution are below.
    outside = int(binom.ppf((1 - LEVEL) / 2, count, 0.5))
    if outside < 1:
        return math.nan, math.nan
    ordered = sorted(values)
    return ordered[outside - 1], ordered[count - outside]


def row(name: str, pairs: list[dict[str, Any]]) -> dict[str, Any]:
    ratios = [pair["second s"] / pair["first s"] for pair in pairs]
    median, (low, high) = statistics.median(ratios), interval_of_median(ratios)
    processor = statistics.median(pair["second processor s"] / pair["first processor s"] for pair in pairs)
    return {
        "line": name,
        "pairs": len(pairs),
        "first s": statistics.median(pair["first s"] for pair in pairs),
        "second s": statistics.median(pair["second s"] for pair in pairs),
        "second over first": median,
        "low": low,
        "high": high,
        "passes": "yes" if median <= MEDIAN_LIMIT and high <= UPPER_LIMIT else "no",
        "processor second over first": processor,
    }


def parsed() -> argparse.Namespace:
    options = make_parser(__doc__)
    # Optional for `--small`, which compares this checkout with itself.
    here = Path(__file__).resolve().parent.parent
    options.add_argument("first", nargs="?", type=Path, default=here, help="a checkout")
    options.add_argument("second", nargs="?", type=Path, default=here, help="another, such as one with a change")
    options.add_argument("--pairs", type=int, default=15)
    options.add_argument("--lines", nargs="+", metavar="NAME", choices=list(calls()), help="some of the lines")
    options.add_argument("--threads", type=int, default=1, help="of torch, in both processes")
    return options.parse_args()


def main() -> None:
    if sys.argv[1:2] == ["--answer"]:
        answer_requests(int(sys.argv[2]))
        return
    args = parsed()
    lines = args.lines or (["sds small"] if args.small else list(calls()))
    identity = {"first": digest_of_code(args.first), "second": digest_of_code(args.second), "threads": args.threads}
    seconds = Seconds(args.out, identity)
    for name in lines:
        measure(name, args, seconds, 1 if args.small else args.pairs)
        print(row(name, seconds.of(name)), flush=True)
    print_table([row(name, seconds.of(name)) for name in lines], "pairs", args.out)


if __name__ == "__main__":
    main()

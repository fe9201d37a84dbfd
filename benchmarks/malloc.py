"""Processor time of network passes on a CPU, with default malloc settings and with those of the workflow's jobs.

    python benchmarks/malloc.py --out FOLDER

Two processes with one thread each; the ratio is the result. Time in the kernel is spent on allocating memory again.
"""

import os
import resource
import subprocess
import sys

from _shared import make_parser, print_table

from heatproof.workflow.start import MALLOC

IMAGES, ROUNDS = 16, 6


def measure(name):
    """Print milliseconds per image, in the network and in the kernel."""
    import timm
    import torch

    torch.set_num_threads(1)
    network = timm.create_model(name).eval().to(memory_format=torch.channels_last)
    images = torch.randn(IMAGES, 3, 224, 224).contiguous(memory_format=torch.channels_last)
    with torch.inference_mode():
        network(images)
        before = resource.getrusage(resource.RUSAGE_SELF)
        for _ in range(ROUNDS):
            network(images)
        after = resource.getrusage(resource.RUSAGE_SELF)
    for spent in (after.ru_utime - before.ru_utime, after.ru_stime - before.ru_stime):
        print(1000 * spent / (IMAGES * ROUNDS))


def compare(name):
    """Return the row of a network."""
    plain = {key: value for key, value in os.environ.items() if key not in MALLOC}
    totals = []
    for environment in (plain, {**plain, **MALLOC}):
        command = [sys.executable, __file__, "--measure", name]
        output = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
        totals.append(sum(map(float, output.split())))
    before, after = totals
    return {"network": name, "ms as it is": before, "ms as jobs set it": after, "times as fast": before / after}


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        measure(sys.argv[2])
    else:
        options = make_parser(__doc__).parse_args()
        names = ("resnet18",) if options.small else ("tf_efficientnet_lite0", "resnet18")
        print_table([compare(name) for name in names], "malloc", options.out)

"""Network passes of every metric, and its wall time over the floor: passes ÷ best throughput in the same run.

    python benchmarks/metrics.py [--images N] --out FOLDER

On torchvision's ResNet-18 at 224×224 and on the embedded ResNet-20 at 32×32, random weights, channels_last. Images and
maps are smooth noise; the wall time includes a metric's other work (ranking, imputation, encoding). The last column
divides the wall time by the time inside the network in the same call, which other programs slow down equally.
"""

import time

import torch
from _shared import make_parser, print_table
from torchvision.models import resnet18

import heatproof
from heatproof.metrics.registry import METRICS
from heatproof.metrics.responses.map_changes import MapChanges
from heatproof.models.registry import ARCHITECTURES

BATCH = 16


def networks():
    torch.manual_seed(0)
    yield "ResNet-18, 224×224", resnet18().eval(), 224
    yield "embedded ResNet-20, 32×32", ARCHITECTURES["cifar_resnet20"].build(num_classes=10, width=8).eval(), 32


def seconds_per_image(network, size, repeats=5):
    """Return the best time per image in a full batch."""
    images = torch.rand(BATCH, 3, size, size).contiguous(memory_format=torch.channels_last)
    best = float("inf")
    with torch.inference_mode():
        for _ in range(repeats):
            began = time.perf_counter()
            network(images)
            best = min(best, time.perf_counter() - began)
    return best / BATCH


class Meter:
    """Counts the images that pass through a network, and the seconds that it takes."""

    def __init__(self, network):
        self.passes, self.inside, self.entered = 0, 0.0, 0.0
        network.register_forward_pre_hook(self.enter)
        network.register_forward_hook(self.leave)

    def enter(self, module, inputs):
        self.passes += len(inputs[0])
        self.entered = time.perf_counter()

    def leave(self, module, inputs, output):
        self.inside += time.perf_counter() - self.entered


def smooth(count, channels, size):
    """Return images in [0, 1] with 8-bit levels, smooth as photographs, with a little noise."""
    coarse = torch.rand(count, channels, size // 8, size // 8)
    fine = torch.nn.functional.interpolate(coarse, size, mode="bicubic") + 0.02 * torch.randn(
        count, channels, size, size
    )
    return (fine.clamp(0, 1) * 255).round() / 255


def measure(count, small=False):
    """Return a row for each metric and network, or for the small network only."""
    rows = []
    for title, network, size in networks():
        if small and size > 100:
            continue
        network = network.to(memory_format=torch.channels_last)
        number = count if size > 100 else 16 * count
        images = smooth(number, 3, size).contiguous(memory_format=torch.channels_last)
        labels = torch.zeros(number, dtype=torch.long)
        maps = smooth(number, 1, size)[:, 0]
        meter = Meter(network)
        seconds_per_image(network, size)
        print(f"{title}: {number} images, batches of {BATCH}, {torch.get_num_threads()} threads")
        for name, entry in METRICS.items():
            if entry.reads is MapChanges or name in ("sds", "part_deletion"):
                continue
            floor = seconds_per_image(network, size)
            meter.passes, meter.inside, began = 0, 0.0, time.perf_counter()
            heatproof.evaluate(name, network, images, labels, maps, batch_size=BATCH)
            wall, passes, there = time.perf_counter() - began, meter.passes, meter.inside
            floor = min(floor, seconds_per_image(network, size))
            row = {"network": title, "metric": name, "passes an image": passes / number}
            rows.append(row | {"over the floor": wall / (passes * floor), "over the network": wall / there})
            print(rows[-1], flush=True)
    return rows


if __name__ == "__main__":
    options = make_parser(__doc__)
    options.add_argument("--images", type=int, default=16, help="of 224 pixels; 16 times as many of 32")
    args = options.parse_args()
    print_table(measure(1 if args.small else args.images, args.small), "metrics", args.out)

"""Every metric's network passes, and its wall time over the floor: passes ÷ best throughput in the same run.

    python benchmarks/metrics.py [IMAGES]

On torchvision's ResNet-18 at 224×224 and on the embedded ResNet-20 at 32×32, random weights, channels_last. Maps are
smooth noise; what a metric needs beside the network (ranking, imputation, encoding) is in its wall time.
"""

import sys
import time

import torch
from torchvision.models import resnet18

import heatproof
from heatproof.metrics.catalogue import METRICS
from heatproof.models.catalogue import ARCHITECTURES

BATCH = 16


def networks():
    torch.manual_seed(0)
    yield "ResNet-18, 224×224", resnet18().eval(), 224
    yield "embedded ResNet-20, 32×32", ARCHITECTURES["cifar_resnet20"].build(num_classes=10, width=8).eval(), 32


def seconds_per_image(network, size, repeats=5):
    """Return the best time an image takes in a full batch."""
    images = torch.rand(BATCH, 3, size, size).contiguous(memory_format=torch.channels_last)
    best = float("inf")
    with torch.inference_mode():
        for _ in range(repeats):
            began = time.perf_counter()
            network(images)
            best = min(best, time.perf_counter() - began)
    return best / BATCH


def main(count):
    for title, network, size in networks():
        network = network.to(memory_format=torch.channels_last)
        number = count if size > 100 else 16 * count
        images = torch.rand(number, 3, size, size).contiguous(memory_format=torch.channels_last)
        labels = torch.zeros(number, dtype=torch.long)
        maps = torch.nn.functional.interpolate(torch.rand(number, 1, 12, 12), size, mode="bicubic")[:, 0]
        passes = 0

        def counted(module, inputs):
            nonlocal passes
            passes += len(inputs[0])

        network.register_forward_pre_hook(counted)
        seconds_per_image(network, size)
        print(f"{title}: {number} images, batches of {BATCH}, {torch.get_num_threads()} threads")
        print(f"{'metric':18} passes/image  s/image  over floor")
        for name, entry in METRICS.items():
            if entry.reads == "explanations" or name == "sds":
                continue
            floor = seconds_per_image(network, size)
            passes, began = 0, time.perf_counter()
            heatproof.evaluate(name, network, images, labels, maps, batch_size=BATCH)
            wall, made = time.perf_counter() - began, passes
            floor = min(floor, seconds_per_image(network, size))
            print(f"{name:18} {made / number:12.1f} {wall / number:8.3f} {wall / (made * floor):11.2f}", flush=True)
        print()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 2)

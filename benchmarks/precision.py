"""Effects of bfloat16 and torch.compile on the speed of network passes, and on scores and ranks.

    python benchmarks/precision.py --out FOLDER

Speed is that of complete batches in one run, relative to the same network in float32. Scores are SDS (the network is
not finetuned) on digits, with a small trained network; both maps and drops are computed in the format.
"""

import copy
import time

import numpy as np
import torch
import torchvision
from _shared import make_parser, print_table
from metric_quality import SEED, explain, trained
from scipy.stats import spearmanr

from heatproof.core.batch import Batch
from heatproof.core.grids import patch_sums
from heatproof.core.passes import read_variants
from heatproof.core.perturb.patches import patch_variants
from heatproof.metrics.arrays import spearman_rows
from heatproof.models.network import set_precision

CPU = torch.device("cuda" if torch.cuda.is_available() else "cpu")
GRID = 4


def scores(network, images, labels):
    """Return the mean score of every method, and the logit drops (N, P)."""
    ids = [str(number) for number in range(len(images))]
    batch = Batch(network, network, None, images, labels, ids, SEED)
    responses = read_variants(batch, *patch_variants(batch, GRID, "zeros"))
    drops = responses["logit"][:, :1] - responses["logit"][:, 1:]
    maps = explain(network, images, labels)
    means = {name: np.nanmean(spearman_rows(patch_sums(values, GRID), drops)) for name, values in maps.items()}
    return means, drops


def rate(network, images, repetitions=5):
    """Return the best seconds of a pass."""
    best = np.inf
    with torch.inference_mode():
        network(images)
        for _ in range(repetitions):
            began = time.perf_counter()
            network(images)
            if CPU.type == "cuda":
                torch.cuda.synchronize()
            best = min(best, time.perf_counter() - began)
    return best


def speeds(name, network, images):
    """Return the speed of each format, best of passes that take turns."""
    network = network.eval().requires_grad_(False).to(CPU, memory_format=torch.channels_last)
    images = images.to(CPU).contiguous(memory_format=torch.channels_last)
    kinds = {"float32": copy.deepcopy(network), "bfloat16": set_precision(copy.deepcopy(network), "bfloat16", CPU)}
    if CPU.type == "cuda":
        kinds["tf32"] = set_precision(copy.deepcopy(network), "tf32", CPU)
    compiled = copy.deepcopy(network)
    began = time.perf_counter()
    compiled.compile()
    with torch.inference_mode():
        same = compiled(images)
        difference = (same - network(images)).abs().max() / same.abs().max()
    took = time.perf_counter() - began
    kinds["compiled"] = compiled
    rates = {kind: rate(variant, images) for kind, variant in kinds.items()}
    print(f"{name}: compiling took {took:.0f} s; largest difference {difference:.1e} of the largest logit")
    return {"network": name} | {kind: rates["float32"] / spent for kind, spent in rates.items() if kind != "float32"}


def main():
    options = make_parser(__doc__).parse_args()
    torch.set_num_threads(1)
    network, images, labels = trained()
    count = 8 if options.small else 128
    images, labels = images[:count], labels[:count]
    exact, drops = scores(network, images, labels)
    lower, other = scores(set_precision(copy.deepcopy(network), "bfloat16", CPU), images, labels)
    rows = [{"method": name, "float32": exact[name], "bfloat16": lower[name]} for name in exact]
    print_table(sorted(rows, key=lambda row: -row["float32"]), "precision_scores", options.out)
    change = {
        "images": count,
        "change of drops, of their spread": np.abs(other - drops).mean() / drops.std(),
        "largest change of a score": max(abs(exact[name] - lower[name]) for name in exact),
        "Spearman of the orders": spearmanr(list(exact.values()), list(lower.values())).statistic,
    }
    print_table([change], "precision_change", options.out)
    if options.small:
        return
    torch.manual_seed(0)
    large = speeds("ResNet-18, 16 images of 224 pixels", torchvision.models.resnet18(), torch.randn(16, 3, 224, 224))
    small = speeds("ResNet-20, 64 images of 32 pixels", network, images[:64])
    print_table([small, large], "precision_speed", options.out)


if __name__ == "__main__":
    main()

"""Deletion areas of a broken network, on real digits with a small trained network; docs/limits.md.

A deletion area is the mean probability of the label while pixels are deleted, most relevant first; lower is better.
Weights are multiplied by noise around 1, and shrunken towards 0, so that the network guesses. The maps are computed
again for each network. Random maps of the same network are the reference: the difference from their area is the
contribution of the maps.

    python benchmarks/broken_network.py --out FOLDER
"""

import copy

import pandas as pd
import torch
from _shared import make_parser, print_table
from metric_quality import SEED, explain, trained

import heatproof

METHODS = ("saliency", "integrated_gradients", "grad_cam", "random")
DRAWS = 5
# Standard deviation of the noise that multiplies each weight, and the factor of the last layer's weights.
BROKEN = {
    "as trained": (0.0, 1.0),
    "weights noised": (0.5, 1.0),
    "weights noised more": (2.0, 1.0),
    "head shrunken": (0, 0.1),
}


def broken(network, noise, factor, seed):
    """Return a copy whose weights are multiplied by N(1, noise), and those of its last layer also by a factor."""
    broken_copy, draw = copy.deepcopy(network), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weights in broken_copy.parameters():
            weights *= 1 + noise * torch.randn(weights.shape, generator=draw)
        last = [module for module in broken_copy.modules() if isinstance(module, torch.nn.Linear)][-1]
        last.weight *= factor
        last.bias *= factor
    return broken_copy


def measure(network, images, labels):
    """Return the accuracy, the mean probability of the labels, and the mean deletion area of each method."""
    with torch.inference_mode():
        logits = network(images)
    probability = logits.softmax(1).gather(1, labels[:, None])
    maps = {name: values for name, values in explain(network, images, labels).items() if name in METHODS}
    scores = heatproof.evaluate("rise_deletion", network, images, labels, maps, steps=16)["score"]
    areas = dict(zip(scores["method"].values.tolist(), scores.mean("image").values.tolist(), strict=True))
    right = (logits.argmax(1) == labels).float().mean()
    return {"accuracy": float(right), "probability of the label": float(probability.mean()), **areas}


def main(options):
    """Print and store the table of means over the draws of the noise."""
    network, images, labels = trained()
    count = 4 if options.small else 128
    rows = []
    for name, (noise, factor) in BROKEN.items():
        draws = range((2 if options.small else DRAWS) if noise else 1)
        measures = [
            measure(broken(network, noise, factor, SEED + draw), images[:count], labels[:count]) for draw in draws
        ]
        rows.append({"network": name, **pd.DataFrame(measures).mean()})
    print_table(rows, "broken_network", options.out)


if __name__ == "__main__":
    main(make_parser(__doc__).parse_args())

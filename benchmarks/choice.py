"""How often `heatproof.choose` is right, where nothing can be concluded and where the truth is planted.

Null control: networks with random weights and other images each time, on which maps of random methods are equivalent,
so that any winner is false. Planted truth: logits that are sums of pixels times weights, whose patch drops are known;
the method that returns them competes with noisy copies of itself, and has to be in the set. `wrong` is the share of
runs with a false winner, or without the truth in the set; lower is better.

    python benchmarks/choice.py --out docs/data/choice
"""

from __future__ import annotations

import warnings

import torch
from _shared import make_parser, print_table
from torch import nn

import heatproof

SIDE = 16
MEASURES = {"patch deletion": {"metric": "sds", "baseline": "zeros"}}
# Standard deviations of the added noise, in units of the standard deviation of the truth.
NOISES = (0.0, 0.1, 0.2, 0.4, 0.8)


class Sums(nn.Module):
    """Two logits: plus and minus the sum of pixels times weights."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.randn(1, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(seed)))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        value = (images * self.weights).sum((1, 2, 3))
        return torch.stack([value, -value], 1)


def untrained(seed: int) -> nn.Module:
    """Return a small convolutional network with random weights."""
    torch.manual_seed(seed)
    layers = [nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(8 * (SIDE // 2) ** 2, 4)).eval()


def noisy(share: float, seed: int):
    def method(model: Sums, images: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        truth = (1 - 2 * targets.float()[:, None, None]) * (images * model.weights).sum(1)
        draws = torch.randn(truth.shape, generator=torch.Generator().manual_seed(seed + len(images)))
        return truth + share * draws * truth.std()

    return method


def drawn(seed: int):
    def method(model: nn.Module, images: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        key = int(images.double().abs().sum() * 1000) % 2**31
        return torch.randn(images[:, 0].shape, generator=torch.Generator().manual_seed(seed + key))

    return method


def random_images(seed: int, count: int) -> torch.Tensor:
    return torch.randn(count, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(10_000 + seed))


def main() -> None:
    """Run both controls and print the frequency of each verdict."""
    options = make_parser(__doc__)
    options.add_argument("--repetitions", type=int, default=100)
    options.add_argument("--images", type=int, default=60)
    args = options.parse_args()
    repetitions = 3 if args.small else args.repetitions
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    rows = []
    counts = {"open": 0, "winner": 0, "set": 0}
    for seed in range(repetitions):
        methods = {f"random {number}": drawn(1000 * seed + number) for number in range(8)}
        images = random_images(seed, args.images)
        choice = heatproof.choose(untrained(seed), images, methods=methods, measures=MEASURES, seed=seed)
        counts["winner" if choice.best else "open" if choice.verdict != "found" else "set"] += 1
    case = "eight random methods, networks without training"
    rows.append({"case": case, "runs": repetitions, **counts, "wrong": f"{counts['winner'] / repetitions:.1%}"})
    inside = 0
    counts = {"open": 0, "winner": 0, "set": 0}
    for seed in range(repetitions):
        methods = {f"noise {share}": noisy(share, seed) for share in NOISES}
        images = random_images(seed, args.images)
        choice = heatproof.choose(Sums(seed).eval(), images, methods=methods, measures=MEASURES, seed=seed)
        inside += "noise 0.0" in choice.methods
        counts["winner" if choice.best else "open" if choice.verdict != "found" else "set"] += 1
    result = {"case": "planted truth among its noisy copies", "runs": repetitions, **counts}
    rows.append({**result, "truth in the set": inside, "wrong": f"{1 - inside / repetitions:.1%}"})
    print_table(rows, "choice", args.out)


if __name__ == "__main__":
    main()

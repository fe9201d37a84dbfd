"""Accuracy of residual networks without batch norm, and without any bias, by network, training and seed.

    python benchmarks/no_batch_norm.py --out FOLDER
    python benchmarks/no_batch_norm.py --out FOLDER --photographs cifar10    # train/CLASS/*.jpg and test/CLASS/*.jpg
    PYTHONPATH=OTHER_CHECKOUT/src python benchmarks/no_batch_norm.py --out FOLDER_BEFORE

ResNet-20 of 8 channels, with batch norm, by Fixup, and without any bias, on the embedded digits (1,079 to train on)
and, where the folder is given, on 2,000 of its photographs. Every training is stored when it ends, and not run again.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from _shared import make_parser, print_table
from PIL import Image

import heatproof.models.resnet  # noqa: F401
from heatproof.core.input_facts import InputFacts
from heatproof.core.normalise import normalise
from heatproof.core.randomness import derive_seed
from heatproof.core.specs import Schedule
from heatproof.datasets.digits import Digits
from heatproof.errors import HeatproofError
from heatproof.models.network import build_network
from heatproof.models.registry import ARCHITECTURES, ModelSpec
from heatproof.training.loop import Examples, fit, validate

NETWORKS = ("cifar_resnet20", "cifar_resnet20_fixup", "cifar_resnet20_nobias")
WIDTH = 8
# Photographs per class: for training, for the choice of the epoch, and for the accuracy.
PHOTOGRAPHS_PER_CLASS = {"train": 200, "validation": 50, "evaluation": 50}
DIGITS, CIFAR10 = (
    InputFacts((0.3054,) * 3, (0.3768,) * 3),
    InputFacts((0.4914, 0.4822, 0.4465), (0.247, 0.2435, 0.2616)),
)


@dataclass(frozen=True)
class Recipe:
    """The options of a schedule in which the trainings differ."""

    optimizer: str
    lr: float
    epochs: int
    batch_size: int = 32

    def schedule(self, epochs: int | None = None) -> Schedule:
        decay = 0.05 if self.optimizer == "adamw" else 1e-4
        epochs = epochs or self.epochs
        return Schedule(epochs, self.batch_size, self.optimizer, self.lr, 0.9, decay, "cosine", 0.1, 1, 0.0, 1)


# The training of all other networks of config/studies.yaml, longer ones, and SGD at the rate of Fixup's code.
RECIPES = {
    "digits": (
        Recipe("adamw", 0.003, 12),
        Recipe("adamw", 0.003, 30),
        Recipe("adamw", 0.001, 30),
        Recipe("adamw", 0.001, 60),
        Recipe("sgd", 0.1, 12),
    ),
    "photographs": (Recipe("adamw", 0.001, 12), Recipe("sgd", 0.1, 12)),
}


def digits() -> dict[str, Examples]:
    dataset = Digits(0, 0.2, 0.2)
    return {
        name: Examples(normalise(dataset.images(name, 0, len(split.labels)), DIGITS), torch.from_numpy(split.labels))
        for name, split in dataset.splits.items()
    }


def photographs(folder: Path) -> dict[str, Examples]:
    """Return the first photographs of each class, by name; the photographs of `test` measure the accuracy."""
    classes = sorted(path.name for path in (folder / "train").iterdir() if path.is_dir())
    splits = {}
    for split, count in PHOTOGRAPHS_PER_CLASS.items():
        first = PHOTOGRAPHS_PER_CLASS["train"] if split == "validation" else 0
        inside = folder / ("test" if split == "evaluation" else "train")
        files = [sorted((inside / name).glob("*.jpg"))[first : first + count] for name in classes]
        pixels = np.stack([np.asarray(Image.open(file).convert("RGB")) for each in files for file in each])
        images = np.float32(pixels / 255).transpose(0, 3, 1, 2)
        labels = np.repeat(np.arange(len(classes)), [len(each) for each in files])
        splits[split] = Examples(normalise(images, CIFAR10), torch.from_numpy(labels))
    return splits


def train(name: str, parts: dict[str, Examples], schedule: Schedule, seed: int) -> tuple[float, float]:
    """Return the accuracy on images outside of the training, and the last epoch's loss; NaN where it diverged."""
    entry = ARCHITECTURES[name]
    spec = ModelSpec(name, entry.build.__module__, {"width": WIDTH}, entry.facts)
    network = build_network(spec, 10, derive_seed(seed, "initial weights"))
    try:
        trained = fit(network, parts["train"], parts["validation"], schedule, seed)
    except HeatproofError as error:
        print(error)
        return float("nan"), float("nan")
    network.load_state_dict(trained.best)
    return validate(network, parts["evaluation"], 64)[1], float(trained.history[-1]["train_loss"])


def main() -> None:
    options = make_parser(__doc__)
    options.add_argument("--photographs", type=Path, metavar="FOLDER", help="of classes, under train and test")
    options.add_argument("--networks", nargs="+", default=NETWORKS, choices=NETWORKS)
    options.add_argument("--seeds", type=int, default=3)
    args = options.parse_args()
    torch.set_num_threads(1)
    data = {"digits": digits()} | ({"photographs": photographs(args.photographs)} if args.photographs else {})
    cells = [(kind, recipe, seed, name) for kind in data for recipe in RECIPES[kind]
             for seed, name in product(range(args.seeds), args.networks)]  # fmt: skip
    if args.small:
        cells, data["digits"] = (
            cells[:2],
            {n: Examples(p.images[:96], p.labels[:96]) for n, p in data["digits"].items()},
        )
    stored = args.out / "no_batch_norm.csv" if args.out else None
    rows = pd.read_csv(stored).to_dict("records") if stored and stored.exists() else []
    keys = ("data", "optimizer", "lr", "epochs", "network", "seed")
    done = {tuple(row[key] for key in keys) for row in rows}
    for kind, recipe, seed, name in cells:
        schedule = recipe.schedule(1 if args.small else None)
        row = dict(zip(keys, (kind, recipe.optimizer, recipe.lr, schedule.epochs, name, seed), strict=True))
        if tuple(row.values()) not in done:
            accuracy, loss = train(name, data[kind], schedule, seed)
            rows.append({**row, "accuracy": accuracy, "train_loss": loss})
            print_table(rows, "no_batch_norm", args.out)
    if not args.out:
        print_table(rows, "no_batch_norm", None)


if __name__ == "__main__":
    main()

"""A user's own datasets and networks of every task, whose drops are known without a network pass."""

import numpy as np
import torch
from torch import nn

from heatproof.core.dataset import Split

SIZE, GRID, NUMBERS = 8, 4, 3
PATCH = SIZE // GRID
NAMES = ("train", "validation", "evaluation")
COUNTS = {"binary": 2, "multiclass": NUMBERS, "multilabel": NUMBERS, "regression": 1}


class Pictures:
    """Noise images with labels of a task."""

    def __init__(self, seed, count, task, numbers, size=SIZE):
        self.num_classes = numbers or COUNTS[task]
        self.class_names = tuple(f"kind {number}" for number in range(self.num_classes))
        self.pixels, self.splits = {}, {}
        for split_number, name in enumerate(NAMES):
            images = count * (3 if name == "train" else 1)
            draws = np.random.default_rng([seed, split_number])
            self.pixels[name] = draws.random((images, 3, size, size), dtype=np.float32)
            self.splits[name] = Split(
                tuple(f"{name}-{row:02d}" for row in range(images)), self.labels(draws, images, task)
            )

    def labels(self, draws, images, task):
        if task == "regression":
            labels = draws.normal(40, 10, (images, self.num_classes))
            return labels[:, 0] if self.num_classes == 1 else labels
        if task == "multilabel":
            labels = (draws.random((images, self.num_classes)) < 0.5).astype(np.int8)
            # The second image has no label, and one label of the third image is unknown.
            labels[:3] = [[1, 1, 0], [0, 0, -1], [1, -1, 0]]
            return labels
        return np.arange(images) % self.num_classes

    def images(self, split, start, stop):
        return self.pixels[split][start:stop]


def dataset(*, seed, task="multiclass", count=12, numbers=None, size=SIZE):
    """Noise images of a task."""
    return Pictures(seed, count, task, numbers, size)


def of_task(task):
    """Return a class whose task is its attribute."""
    return type("Loader", (), {"task": task, "__new__": lambda cls, *, seed: Pictures(seed, 12, task, None)})


declares_its_task = of_task("multilabel")


def undecided(*, seed):
    """Images whose task is known only after they are opened."""
    images = Pictures(seed, 12, "multilabel", None)
    images.task = "multilabel"
    return images


class Linear(nn.Module):
    """Outputs that are linear in the image."""

    def __init__(self, outputs):
        super().__init__()
        draws = torch.Generator().manual_seed(outputs)
        self.weights = nn.Parameter(0.1 * torch.randn(outputs, 3, SIZE, SIZE, generator=draws))

    def forward(self, images):
        return torch.einsum("nchw,kchw->nk", images, self.weights)

    def drops(self, images):
        """Return what each output loses without each patch, where the baseline is zero: (N, K, P)."""
        return by_patch(torch.einsum("nchw,kchw->nkhw", images, self.weights))


class Interacting(Linear):
    """The same, plus the product of the first two patches."""

    def products(self, images):
        patches = Linear.drops(self, images)
        return patches[:, :, 0] * patches[:, :, 1]

    def forward(self, images):
        return super().forward(images) + self.products(images)

    def drops(self, images):
        patches = super().drops(images).clone()
        patches[:, :, :2] += self.products(images)[:, :, None]
        return patches


def by_patch(values):
    """Return sums over patches (…, P) of (…, H, W)."""
    return values.unfold(-2, PATCH, PATCH).unfold(-2, PATCH, PATCH).sum((-1, -2)).flatten(-2)


def linear(num_classes):
    """A linear network."""
    return Linear(num_classes)


def interacting(num_classes):
    """A network with an interaction."""
    return Interacting(num_classes)


class Masks(nn.Module):
    """A mask for each of three classes in the place of logits; the first image of all classes is the background."""

    def __init__(self, kind):
        super().__init__()
        self.weights = nn.Parameter(kind(NUMBERS).weights.detach().sum(1, keepdim=True))

    def forward(self, images):
        return {"out": torch.einsum("nchw,kchw->nkhw", images, self.weights.expand(-1, 3, -1, -1)), "other": images}

    def drops(self, images):
        return by_patch(self(images)["out"])


def masks(num_classes):
    """A network that segments."""
    return Masks(Linear)


def lraspp(num_classes):
    """A network of torchvision that segments, with random weights."""
    from torchvision.models.segmentation import lraspp_mobilenet_v3_large

    torch.manual_seed(0)
    return lraspp_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=num_classes)


def predicted_mask(output, labels):
    """The mean of a class over the pixels with this prediction, or over all pixels if there are none."""
    of_class = output["out"].gather(1, labels[:, None, None, None].expand(-1, 1, *output["out"].shape[2:]))[:, 0]
    mask = (output["out"].argmax(1) == labels[:, None, None]).float()
    mask = torch.where(mask.any(2).any(1)[:, None, None], mask, torch.ones_like(mask))
    return (of_class * mask).sum((1, 2)) / mask.sum((1, 2))


def whole_mask(output, labels):
    """The mean of a class over all pixels of the mask."""
    return output["out"].mean((2, 3)).gather(1, labels[:, None])[:, 0]


def margin(output, labels):
    """The label's logit over that of the next class."""
    return output.gather(1, labels[:, None])[:, 0] - output.gather(1, (labels[:, None] + 1) % NUMBERS)[:, 0]


def all_numbers(output, labels):
    """A number that does not depend on the label."""
    return output.sum(1)


def no_number(output, labels):
    return output


def numbers_of(drops, targets, target_name):
    """Return the drops (N, P) of a target of the outputs."""
    rows = torch.arange(len(targets))
    if target_name == "margin":
        return drops[rows, targets] - drops[rows, (targets + 1) % NUMBERS]
    if target_name == "all_numbers":
        return drops.sum(1)
    if target_name == "binary":
        return drops[:, 0] * (2 * targets - 1)[:, None]
    return drops[rows, targets]


def true_map(context, *, target_name="", sign=1.0):
    """A map whose sum over each patch is the drop without the patch."""
    with torch.no_grad():
        drops = numbers_of(context.network.drops(context.images), context.targets, target_name)
    per_pixel = drops.reshape(-1, GRID, GRID) / PATCH**2
    return {"map": sign * per_pixel.repeat_interleave(PATCH, 1).repeat_interleave(PATCH, 2)}

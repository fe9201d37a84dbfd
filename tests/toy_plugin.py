"""A user's own dataset, network and explainers, named in a config as toy_plugin:callable."""

import numpy as np
import torch
from torch import nn

from heatproof.core.dataset import Split
from heatproof.core.randomness import counter_normal
from heatproof.core.sequences import Perturbation
from heatproof.errors import NotApplicable
from heatproof.metrics.registry import metric

SIZE = 12
NAMES = ("train", "validation", "evaluation")


class Toy:
    """A bright square in the quarter of the class, under noise."""

    num_classes = 3
    class_names = ("top left", "top right", "bottom left")

    def __init__(self, seed, count, closed):
        self.closed = closed
        self.pixels, self.splits = {}, {}
        for split_number, name in enumerate(NAMES):
            images = count * (3 if name == "train" else 1)
            labels = np.arange(images) % 3
            pixels = 0.3 * np.random.default_rng([seed, split_number]).random((images, 3, SIZE, SIZE), dtype=np.float32)
            for image, label in zip(pixels, labels, strict=True):
                top, left = 6 * (label // 2) + 2, 6 * (label % 2) + 2
                image[:, top : top + 3, left : left + 3] += 0.6
            self.pixels[name] = pixels
            self.splits[name] = Split(tuple(f"{name}-{row:02d}" for row in range(images)), labels)

    def images(self, split, start, stop):
        assert split not in self.closed, f"somebody looked at {split}"
        return self.pixels[split][start:stop]


def dataset(*, seed, count=12, closed=()):
    """Toy images of 12×12 pixels."""
    return Toy(seed, count, closed)


class Network(nn.Module):
    def __init__(self, num_classes, width):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(width, 8, 3, padding=1),
        )
        self.head = nn.Sequential(nn.ReLU(), nn.Flatten(), nn.Linear(288, num_classes))

    def forward(self, images):
        return self.head(self.features(images))


def network(num_classes, *, width=4):
    """Two convolutions; `features` has a grid of 6×6."""
    return Network(num_classes, width)


def gradient(context):
    """Gradient times image."""
    images = context.images.detach().requires_grad_()
    chosen = context.output(images).gather(1, context.targets[:, None]).sum()
    (slope,) = torch.autograd.grad(chosen, images)
    return {"whatever": (slope * context.images).sum(1)}


def of_a_model_with_channels(model, images, targets, *, scale=1.0):
    """Gradient times image in batches, as a function for `heatproof.explain`."""
    assert 1 <= len(images) == len(targets) <= 4
    inputs = images.clone().requires_grad_()
    (slope,) = torch.autograd.grad(model(inputs).gather(1, targets[:, None]).sum(), inputs)
    return scale * slope * images


def of_a_model(model, images, targets, *, scale=1.0):
    """Gradient times image, summed over channels, as an array."""
    return of_a_model_with_channels(model, images, targets, scale=scale).sum(1).numpy()


def tiny(context):
    """Gradient times image, mostly below the smallest number of float16."""
    return {"tiny": 1e-9 * gradient(context)["whatever"]}


def noisy(context, *, scale=1.0):
    """Different noise for each image."""
    drawn = counter_normal(context.seed, "toy noise", context.image_ids, (SIZE, SIZE))
    return {"noisy": scale * drawn}


def breaks_at_seven(context):
    """Returns NaN for image 7."""
    maps = noisy(context)["noisy"]
    for row, image_id in enumerate(context.image_ids):
        if image_id == "evaluation-07":
            maps[row, 3, 4] = torch.nan
    return {"map": maps}


def dims(context, *, share=0.99):
    """Drop of the output if a patch is dimmed by 1 %, which float32 resolves and bfloat16 hardly does."""
    maps = torch.zeros(len(context.images), SIZE, SIZE)
    intact = context.output(context.images).gather(1, context.targets[:, None])[:, 0]
    for top in range(0, SIZE, 3):
        for left in range(0, SIZE, 3):
            dimmed = context.images.clone()
            dimmed[:, :, top : top + 3, left : left + 3] *= share
            less = context.output(dimmed).gather(1, context.targets[:, None])[:, 0]
            maps[:, top : top + 3, left : left + 3] = (intact - less)[:, None, None]
    return {"dims": maps}


def greedy(context, *, fits=3):
    """Runs out of memory with more images in a batch than fit."""
    if context.batch_size > fits:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")
    return noisy(context)


def wrong_in_another_way(context):
    raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")


def never_applies(context):
    """Is never applicable."""
    raise NotApplicable("the network has no attention")


def picky(context):
    """Refuses images that were changed."""
    originals = torch.from_numpy(Toy(0, 12, ()).pixels["evaluation"].reshape(12, -1))
    facts = context.facts
    mean, std = (torch.tensor(values)[:, None, None] for values in (facts.mean, facts.std))
    seen = (context.images * std + mean).flatten(1)
    if torch.cdist(seen, originals).min(1).values.max() > 1e-2:
        raise NotApplicable("this is no image of the split")
    return noisy(context)


def stops_applying(context):
    """Raises NotApplicable only after the applicability check."""
    if "evaluation-05" in context.image_ids:
        raise NotApplicable("image 5 is special")
    return noisy(context)


def keeps_channels(context):
    return {"map": context.images}


def one_image_too_few(context):
    return {"map": noisy(context)["noisy"][1:]}


def two_maps(context):
    noise = noisy(context)["noisy"]
    return {"first": noise, "second": noise}


def bare_tensor(context):
    return noisy(context)["noisy"]


def of_numpy(context):
    return {"map": noisy(context)["noisy"].numpy()}


@metric(
    "toy_above_half",
    higher_is_better=True,
    range=(0.5, 1.0),
    source="here",
    needs="probability",
    sequences=lambda *, steps=4: {"deletion": Perturbation(steps=steps)},
)
def above_half(deletion):
    """Probability at the second point, where it is above one half."""
    probabilities = deletion.read("probability", "label")[:, 1]
    return probabilities, probabilities > 0.5, {}


@metric("toy_smallest_drop", higher_is_better=False, range=(-np.inf, np.inf), source="here")
def smallest_drop(maps, drops, grid):
    """Logit drop of the patch with the largest sum."""
    cut = maps.reshape(len(maps), grid, SIZE // grid, grid, SIZE // grid).sum((2, 4)).reshape(len(maps), -1)
    drop = np.take_along_axis(drops, cut.argmax(1)[:, None], axis=1)[:, 0]
    return drop, np.isfinite(drop)


def constant_map(context):
    """Finds every pixel equally relevant."""
    return {"map": torch.ones(len(context.images), SIZE, SIZE)}


def half_a_map(context):
    return {"map": noisy(context)["noisy"][:, :6]}


def misses_its_sum(context):
    """Reports that its sum is wrong."""
    context.note("completeness_error", torch.tensor([0.1, 3.0]), 1.0)
    return noisy(context)


def half(images, image_ids, seed):
    """Half of the image: a baseline."""
    return images / 2


class Bands(Toy):
    """Toy images of another number of channels, and perhaps of two classes."""

    def __init__(self, seed, count, channels, classes):
        super().__init__(seed, count, ())
        self.num_classes = classes
        self.class_names = self.class_names[:classes]
        for name, split in self.splits.items():
            self.splits[name] = Split(split.ids, split.labels % classes)
            self.pixels[name] = np.repeat(self.pixels[name][:, :1], channels, axis=1)


def bands(*, seed, count=12, channels=1, classes=3):
    """Return toy images with this number of channels."""
    return Bands(seed, count, channels, classes)


def one_logit(num_classes, *, channels=1):
    """A network of one logit, for two classes."""
    network = Network(1, 4)
    network.features[0] = nn.Conv2d(channels, 4, 3, padding=1)
    return network


class Twin(Network):
    """The network of one logit z with the logits of two classes, [-z/2, z/2]."""

    def forward(self, images):
        logit = super().forward(images)
        return torch.cat([-logit, logit], dim=1) / 2


def two_logits_of_one(num_classes, *, channels=1):
    network = Twin(1, 4)
    network.features[0] = nn.Conv2d(channels, 4, 3, padding=1)
    return network


def of_channels(num_classes, *, channels=1):
    """Return the toy network for this number of channels."""
    network = Network(num_classes, 4)
    network.features[0] = nn.Conv2d(channels, 4, 3, padding=1)
    return network

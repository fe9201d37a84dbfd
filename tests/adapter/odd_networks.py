"""Tiny networks that do what networks should not do, and their twins that do not."""

import torch
from torch import nn

CLASSES = 3


class Plain(nn.Module):
    """Two convolutions and a head; `prepare` is what comes before them."""

    def __init__(self, prepare=None, classes=CLASSES, finish=None, width=6):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.features = nn.Sequential(
                nn.Conv2d(3, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1), nn.ReLU()
            )
            self.head = nn.Linear(width * 64, classes)
        self.prepare, self.finish = prepare, finish
        self.eval()

    def forward(self, images):
        if self.prepare is not None:
            images = self.prepare(images)
        logits = self.head(self.features(images).flatten(1))
        return logits if self.finish is None else self.finish(logits)


class Inside(nn.Module):
    """A module that calls a function, deep inside of another."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, images):
        return self.function(images)


def deep(function):
    return nn.Sequential(nn.Identity(), nn.Sequential(nn.Identity(), Inside(function))).eval()


def _assigned(images):
    images[:, 0] = 0
    return images


def _normalised(images):
    mean, scale = torch.tensor([0.1, -0.2, 0.3])[:, None, None], torch.tensor([0.5, 2.0, 1.0])[:, None, None]
    images -= mean
    images /= scale
    return images


def _out_of_place_normalised(images):
    mean, scale = torch.tensor([0.1, -0.2, 0.3])[:, None, None], torch.tensor([0.5, 2.0, 1.0])[:, None, None]
    return (images - mean) / scale


def _first_channel_cleared(images):
    images = images.clone()
    images[:, 0] = 0
    return images


def _view_written(images):
    images.view(len(images), 3, -1)[:, 1].mul_(-2)
    return images


def _view_multiplied(images):
    return torch.stack([images[:, 0], images[:, 1] * -2, images[:, 2]], 1)


def _written_under_no_grad(images):
    with torch.no_grad():
        images.data.add_(0.5)
    return images


# What writes into its input, and the same out of place.
WRITES = {
    "relu": (nn.ReLU(inplace=True), nn.ReLU()),
    "mul_": (lambda x: x.mul_(0.5), lambda x: x * 0.5),
    "clamp_": (lambda x: x.clamp_(-0.3, 0.3), lambda x: x.clamp(-0.3, 0.3)),
    "assignment": (_assigned, _first_channel_cleared),
    "normalisation": (_normalised, _out_of_place_normalised),
    "a view": (_view_written, _view_multiplied),
    "deep inside": (deep(lambda x: x.add_(1).mul_(2).sigmoid_()), deep(lambda x: ((x + 1) * 2).sigmoid())),
    "data": (_written_under_no_grad, lambda x: x + 0.5),
}

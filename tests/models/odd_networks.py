"""Tiny networks with forbidden side effects, and twins of them without."""

from functools import cache
from types import SimpleNamespace

import torch
from torch import nn

CLASSES = 3


class Plain(nn.Module):
    """Two convolutions and a head; the function `prepare` comes before them."""

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
    """A module that calls a function, nested in another module."""

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
    # Not len(images), which torch.fx cannot trace for LRP.
    images.view(images.shape[0], 3, -1)[:, 1].mul_(-2)
    return images


def _view_multiplied(images):
    return torch.stack([images[:, 0], images[:, 1] * -2, images[:, 2]], 1)


def _written_under_no_grad(images):
    with torch.no_grad():
        images.data.add_(0.5)
    return images


# Functions that write to their input, and equal functions that do not.
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


class Keeps(nn.Module):
    """Adds a table of zeros before the convolutions, made and stored in the first pass; `how` says where."""

    def __init__(self, how):
        super().__init__()
        self.how, self.tables, self.several, self.table, self.nested = how, {}, [], None, {"a": [{}]}

    def forward(self, images):
        return images + getattr(self, f"_in_{self.how}")(images)

    def _make(self, images):
        return torch.zeros(1, *images.shape[1:], dtype=images.dtype)

    def _in_attribute(self, images):
        if self.table is None:
            self.table = self._make(images)
        return self.table

    def _in_new_attribute(self, images):
        if not hasattr(self, "late"):
            self.late = self._make(images)
        return self.late

    def _in_dict(self, images):
        return self.tables.setdefault(tuple(images.shape[2:]), self._make(images))

    def _in_dict_by_batch(self, images):
        return self.tables.setdefault(tuple(images.shape), self._make(images).repeat(len(images), 1, 1, 1))

    def _in_nested(self, images):
        return self.nested["a"][0].setdefault("table", self._make(images))

    def _in_list(self, images):
        if not self.several:
            self.several.append(self._make(images))
        return self.several[0]

    def _in_buffer(self, images):
        if "late" not in self._buffers:
            self.register_buffer("late", self._make(images))
        return self.late

    def _in_parameter(self, images):
        if "late" not in self._parameters:
            self.late = nn.Parameter(self._make(images))
        return self.late

    def _in_module(self, images):
        if not hasattr(self, "built"):
            self.add_module("built", nn.Conv2d(3, 3, 1, bias=False).eval())
            nn.init.zeros_(self.built.weight)
        return self.built(images)

    @cache  # noqa: B019
    def _cached(self, size):
        return torch.zeros(1, 3, *size)

    def _in_lru_cache(self, images):
        return self._cached(tuple(images.shape[2:]))

    def _in_closure(self, images):
        return self.closed(images)

    def _in_last(self, images):
        self.last = images
        return torch.zeros_like(images)

    def _in_object(self, images):
        if getattr(self.holder, "table", None) is None:
            self.holder.table = self._make(images)
        return self.holder.table

    def _in_detached(self, images):
        if self.table is None:
            self.table = (images.detach() * 0).mean(0, keepdim=True)
        return self.table

    def _in_table_of_weights(self, images):
        if self.table is None:
            self.table = self.weight * 0
        return self.table * images


KEPT = sorted(name.removeprefix("_in_") for name in vars(Keeps) if name.startswith("_in_"))


def keeping(how):
    """Return a network that stores a table in its first pass."""
    keeps = Keeps(how).eval()
    if how == "table_of_weights":
        keeps.weight = nn.Parameter(torch.ones(1, 3, 1, 1))
    keeps.holder, held = SimpleNamespace(), {}
    keeps.closed = lambda images: held.setdefault("table", torch.zeros_like(images[:1]))
    return Plain(keeps)


class Counts(nn.Module):
    """Counts its passes in a number, a list of numbers, and a buffer."""

    def __init__(self):
        super().__init__()
        self.calls, self.sizes = 0, []
        self.register_buffer("passes", torch.zeros((), dtype=torch.long))

    def forward(self, images):
        self.calls += 1
        self.sizes.append(len(images))
        self.passes += 1
        return images

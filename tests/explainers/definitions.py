"""Small networks with constructions on which rules and hooks can fail, and maps of explainers by their definitions.

Each construction is a network as users write it, and `steps`, which compute the same without in-place operations and
without shared modules. `steps` is called with the layers, the features of images, and functions for ReLUs, other
activations and products. A definition passes functions with its rule: an `autograd.Function` with the paper's rule, or
with DeepLift's multipliers. This module does not use the modes and hooks of heatproof.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

WIDTH, CLASSES, SIZE = 6, 4, 8
Function = Callable[..., torch.Tensor]


@dataclass(frozen=True)
class Rules:
    """Functions by which a definition replaces nonlinear functions.

    Attributes
    ----------
    relu
        Called with a tensor, instead of a ReLU.
    activation
        Called with an elementwise function and a tensor, instead of any other activation.
    product
        Called with two tensors that both depend on the image, instead of their product.
    """

    relu: Function
    activation: Function
    product: Function


PLAIN = Rules(torch.relu, lambda function, values: function(values), torch.mul)


class Constructed(nn.Module):
    """A convolution, a construction, global average pooling and a linear layer."""

    def __init__(self, body: Callable[[Any, torch.Tensor], torch.Tensor], seed: int = 0) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.stem = nn.Conv2d(3, WIDTH, 3, padding=1)
            self.one = nn.Conv2d(WIDTH, WIDTH, 3, padding=1)
            self.two = nn.Conv2d(WIDTH, WIDTH, 3, padding=1)
            self.wide = nn.Conv2d(2 * WIDTH, WIDTH, 3, padding=1)
            self.gate = nn.Linear(WIDTH, WIDTH)
            self.head = nn.Linear(WIDTH, CLASSES)
        self.relu, self.relus = nn.ReLU(), nn.ModuleList([nn.ReLU() for _ in range(3)])
        self.in_place, self.in_places = nn.ReLU(inplace=True), nn.ModuleList([nn.ReLU(inplace=True) for _ in range(3)])
        self.body = body
        self.eval().requires_grad_(False)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits (N, CLASSES)."""
        return self.head(self.body(self, self.stem(images)).mean((2, 3)))

    def by_hand(self, steps: Callable[..., torch.Tensor], images: torch.Tensor, rules: Rules) -> torch.Tensor:
        """Return the same logits, computed by steps with rules."""
        return self.head(steps(self, self.stem(images), rules).mean((2, 3)))


@dataclass(frozen=True)
class Construction:
    """A network as users write it, and its steps."""

    written: Callable[[Any, torch.Tensor], torch.Tensor]
    steps: Callable[[Any, torch.Tensor, Rules], torch.Tensor]


CONSTRUCTIONS: dict[str, Construction] = {}


def _register(name: str, steps: Callable[[Any, torch.Tensor, Rules], torch.Tensor]) -> Callable[[Any], Any]:
    def decorate(written: Callable[[Any, torch.Tensor], torch.Tensor]) -> Any:
        CONSTRUCTIONS[name] = Construction(written, steps)
        return written

    return decorate


# ---- steps of the constructions --------------------------------------------------------------------------------------


def _twice(net: Any, h: torch.Tensor, rules: Rules) -> torch.Tensor:
    return rules.relu(net.two(rules.relu(net.one(rules.relu(h)))))


def _residual(net: Any, h: torch.Tensor, rules: Rules) -> torch.Tensor:
    h = rules.relu(h)
    return rules.relu(net.two(rules.relu(net.one(h))) + h)


def _residual_of_changed(net: Any, h: torch.Tensor, rules: Rules) -> torch.Tensor:
    """The shortcut is changed in place, so both terms read the output of the ReLU."""
    out = rules.relu(h)
    return rules.relu(net.one(out) + out)


def _residual_of_unchanged(net: Any, h: torch.Tensor, rules: Rules) -> torch.Tensor:
    return h + net.one(rules.relu(h))


def _dense(net: Any, h: torch.Tensor, rules: Rules) -> torch.Tensor:
    return rules.relu(net.wide(torch.cat([h, net.one(rules.relu(h))], 1)))


def _half(net: Any, h: torch.Tensor, rules: Rules) -> torch.Tensor:
    """A view of half of the channels is changed in place, and then all channels are read."""
    left, right = h[:, : WIDTH // 2], h[:, WIDTH // 2 :]
    return rules.relu(net.one(torch.cat([rules.relu(left), right], 1)))


def _elementwise_steps(function: Function) -> Callable[[Any, torch.Tensor, Rules], torch.Tensor]:
    def steps(net: Any, h: torch.Tensor, rules: Rules) -> torch.Tensor:
        out = rules.activation(function, h)
        return rules.relu(net.two(rules.activation(function, net.one(out))) + out)

    return steps


def _gated(net: Any, h: torch.Tensor, rules: Rules) -> torch.Tensor:
    h = rules.relu(h)
    gate = rules.activation(torch.sigmoid, net.gate(h.mean((2, 3))))[:, :, None, None].expand_as(h)
    return net.one(rules.product(h, gate))


def _sum(net: Any, h: torch.Tensor, rules: Rules) -> torch.Tensor:
    return rules.relu(rules.relu(net.one(h)) + net.two(h) + h)


# ---- constructions as users write them -------------------------------------------------------------------------------


@_register("plain", _twice)
def plain(net, h):
    first, second, third = net.relus
    return third(net.two(second(net.one(first(h)))))


@_register("in-place", _twice)
def in_place(net, h):
    first, second, third = net.in_places
    return third(net.two(second(net.one(first(h)))))


@_register("residual", _residual)
def residual(net, h):
    first, second, third = net.relus
    h = first(h)
    return third(net.two(second(net.one(h))) + h)


@_register("residual, in-place", _residual)
def residual_in_place(net, h):
    first, second, third = net.in_places
    h = first(h)
    shortcut = h
    out = net.two(second(net.one(h)))
    out += shortcut
    return third(out)


@_register("in-place on a shared tensor", _residual_of_changed)
def in_place_on_shared(net, h):
    shortcut = h
    out = torch.relu_(h)
    return torch.relu(net.one(out) + shortcut)


@_register("module in-place on a shared tensor", _residual_of_changed)
def module_in_place_on_shared(net, h):
    out = net.one(net.in_place(h))
    return net.in_place(out.add_(h))


@_register("dense", _dense)
def dense(net, h):
    first, second, _ = net.relus
    return second(net.wide(torch.cat([h, net.one(first(h))], 1)))


@_register("reused module", _twice)
def reused(net, h):
    return net.relu(net.two(net.relu(net.one(net.relu(h)))))


@_register("reused in-place module", _twice)
def reused_in_place(net, h):
    return net.in_place(net.two(net.in_place(net.one(net.in_place(h)))))


@_register("functional", _twice)
def of_functions(net, h):
    return net.two(net.one(h.relu()).clamp(min=0)).clamp_min(0.0)


@_register("other names", _twice)
def of_other_names(net, h):
    h = net.one(functional.threshold(h, 0, 0))
    return torch.where((out := net.two(torch.maximum(h, torch.zeros_like(h)))) > 0, out, 0.0)


@_register("masks", _twice)
def of_masks(net, h):
    h = net.one(h.masked_fill(h < 0, 0))
    h = net.two(h * (h > 0))
    h[h < 0] = 0
    return h


@_register("other names, in-place", _twice)
def of_other_names_in_place(net, h):
    h = net.one(h.clamp_(min=0))
    return functional.threshold(net.two(functional.leaky_relu(h, 0.0, True)), 0.0, 0.0, inplace=True)


@_register("named arguments", _twice)
def of_named_arguments(net, h):
    h = net.one(functional.relu(input=h))
    h = net.two(torch.clip(input=h, min=0))
    return torch.where(h > 0, input=h, other=torch.zeros(()).to(h))


@_register("shared tensor", _residual_of_unchanged)
def shared(net, h):
    return h + net.one(net.relu(h))


@_register("shared tensor, cloned and in-place", _residual_of_unchanged)
def shared_clone(net, h):
    return net.one(net.in_place(h.clone())).add_(h)


@_register("sum, in-place", _sum)
def of_a_sum(net, h):
    return functional.relu(torch.add(net.in_place(net.one(h)), net.two(h)).add_(h), inplace=True)


@_register("view, in-place", _half)
def of_a_view(net, h):
    h[:, : WIDTH // 2].relu_()
    return net.relu(net.one(h))


@_register("another view, in-place", _half)
def of_another_view(net, h):
    part = h.narrow(1, 0, WIDTH // 2).flatten(2)
    functional.relu(part, inplace=True)
    return net.in_place(net.one(h))


@_register("relu6", _elementwise_steps(lambda values: functional.relu6(16 * values)))
def relu6(net, h):
    out = functional.relu6(16 * h)
    return net.relu(net.two(functional.hardtanh(16 * net.one(out), 0, 6)) + out)


@_register("relu6, in-place", _elementwise_steps(lambda values: functional.relu6(16 * values)))
def relu6_in_place(net, h):
    functional.relu6(h.mul_(16), True)
    return net.relu(net.two(functional.hardtanh(net.one(h).mul_(16), 0, 6, inplace=True)) + h)


@_register("leaky, in-place", _elementwise_steps(lambda values: functional.leaky_relu(values, 0.1)))
def leaky_in_place(net, h):
    shortcut = h
    out = functional.leaky_relu_(h, 0.1)
    out = net.two(functional.leaky_relu(net.one(out), 0.1, inplace=True))
    return net.in_place(out + shortcut)


@_register("elu, in-place", _elementwise_steps(functional.elu))
def elu_in_place(net, h):
    functional.elu_(h)
    return net.relu(net.two(functional.elu(net.one(h), 1.0, True)).add_(h))


@_register("silu, in-place", _elementwise_steps(functional.silu))
def silu_in_place(net, h):
    functional.silu(h, inplace=True)
    return net.relu(net.two(functional.silu(net.one(h), inplace=True)) + h)


@_register("gate", _gated)
def gated(net, h):
    h = net.relu(h)
    return net.one(h * net.gate(h.mean((2, 3))).sigmoid()[:, :, None, None])


@_register("gate, in-place", _gated)
def gated_in_place(net, h):
    net.in_place(h)
    gate = net.gate(h.mean((2, 3))).sigmoid_()[:, :, None, None]
    # Not a ReLU, because autograd saves its output, which must not be changed in place.
    h = h.clone()
    h *= gate
    return net.one(h)


# ---- definitions -----------------------------------------------------------------------------------------------------


class GuidedRelu(torch.autograd.Function):
    """Springenberg et al. 2015, section 3.4."""

    @staticmethod
    def forward(ctx, values):
        ctx.save_for_backward(values)
        return values.clamp(min=0)

    @staticmethod
    def backward(ctx, gradient):
        (values,) = ctx.saved_tensors
        return torch.where((values > 0) & (gradient > 0), gradient, 0)


class DeconvolvedRelu(torch.autograd.Function):
    """Zeiler and Fergus 2014, section 2.1."""

    @staticmethod
    def forward(ctx, values):
        return values.clamp(min=0)

    @staticmethod
    def backward(ctx, gradient):
        return torch.where(gradient > 0, gradient, 0)


class Rescaled(torch.autograd.Function):
    """DeepLift's rescale rule (Shrikumar et al. 2017, section 3.5.1): images first, then their baselines."""

    @staticmethod
    def forward(ctx, values, function):
        outputs = function(values)
        with torch.enable_grad():
            inputs = values.detach().requires_grad_()
            (slope,) = torch.autograd.grad(function(inputs).sum(), inputs)
        change, change_out = (
            stacked[: len(stacked) // 2] - stacked[len(stacked) // 2 :] for stacked in (values, outputs)
        )
        multiplier = torch.where(change.abs() < 1e-9, slope[: len(slope) // 2], change_out / change)
        ctx.save_for_backward(multiplier.repeat(2, *[1] * (values.ndim - 1)))
        return outputs

    @staticmethod
    def backward(ctx, gradient):
        (multiplier,) = ctx.saved_tensors
        return gradient * multiplier, None


class Shared(torch.autograd.Function):
    """A product whose difference is the sum of the difference of each factor times the mean of the other."""

    @staticmethod
    def forward(ctx, factor, other):
        ctx.save_for_backward(factor, other)
        return factor * other

    @staticmethod
    def backward(ctx, gradient):
        means = []
        for factor in ctx.saved_tensors:
            image, baseline = factor.chunk(2)
            means.append(((image + baseline) / 2).repeat(2, 1, 1, 1))
        return gradient * means[1], gradient * means[0]


class Identity(torch.autograd.Function):
    """LRP's identity rule as a gradient: the ratio of output and input."""

    @staticmethod
    def forward(ctx, values, function):
        outputs = function(values)
        ctx.save_for_backward(torch.where(values == 0, 0, outputs / values))
        return outputs

    @staticmethod
    def backward(ctx, gradient):
        (ratio,) = ctx.saved_tensors
        return gradient * ratio, None


def _identity(function, values):
    # A gate is held constant.
    return function(values).detach() if function is torch.sigmoid else Identity.apply(values, function)


RULES = {
    "guided_backprop": Rules(GuidedRelu.apply, PLAIN.activation, PLAIN.product),
    "deconvolution": Rules(DeconvolvedRelu.apply, PLAIN.activation, PLAIN.product),
    "deep_lift": Rules(
        lambda values: Rescaled.apply(values, torch.relu), lambda f, v: Rescaled.apply(v, f), Shared.apply
    ),
    "attn_lrp": Rules(lambda values: Identity.apply(values, torch.relu), _identity, PLAIN.product),
}
EXPLAINERS = ("guided_backprop", "deconvolution", "guided_grad_cam", "deep_lift", "deep_shap", "attn_lrp")


def network_of(name: str, dtype: torch.dtype = torch.float64) -> Constructed:
    """Return the network of a construction, in the form in which users write it."""
    return Constructed(CONSTRUCTIONS[name].written).to(dtype)


def images_of(count: int, dtype: torch.dtype = torch.float64, seed: int = 1) -> torch.Tensor:
    """Return images (count, 3, SIZE, SIZE)."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 3, SIZE, SIZE, generator=generator, dtype=torch.float64).to(dtype)


def gradient_of(name: str, network: Constructed, images: torch.Tensor, targets: torch.Tensor, rules: Rules) -> Any:
    """Return the gradient (N, 3, H, W) of the targets' logits under rules."""
    steps = CONSTRUCTIONS[name].steps
    start = images.clone().requires_grad_()
    logits = network.by_hand(steps, start, rules)
    (slope,) = torch.autograd.grad(logits[range(len(targets)), targets].sum(), start)
    return slope


def grad_cam_of(name: str, network: Constructed, images: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return Grad-CAM (N, H, W) at the stem, whose grid has a cell for each pixel."""
    features = network.stem(images).requires_grad_()
    logits = network.head(CONSTRUCTIONS[name].steps(network, features, PLAIN).mean((2, 3)))
    (slope,) = torch.autograd.grad(logits[range(len(targets)), targets].sum(), features)
    return (slope.mean((2, 3), keepdim=True) * features).sum(1).clamp(min=0).detach()


def defined(
    explainer: str,
    name: str,
    network: Constructed,
    images: torch.Tensor,
    targets: torch.Tensor,
    background: torch.Tensor,
) -> torch.Tensor:
    """Return the maps (N, H, W) of an explainer on a construction, by its definition.

    Parameters
    ----------
    explainer
        One of `EXPLAINERS`; Grad-CAM reads the stem.
    name
        Name of the construction.
    network
        Result of `network_of`.
    images, targets
        (N, 3, SIZE, SIZE) and (N,).
    background
        (B, 3, SIZE, SIZE), the baselines of Deep SHAP; the baseline of DeepLift is zero.
    """
    if explainer == "guided_grad_cam":
        guided = defined("guided_backprop", name, network, images, targets, background)
        return guided * grad_cam_of(name, network, images, targets)
    if explainer == "deep_lift":
        return _multiplied(name, network, images, torch.zeros_like(images), targets)
    if explainer == "deep_shap":
        each = [_multiplied(name, network, images, reference.expand_as(images), targets) for reference in background]
        return torch.stack(each).mean(0)
    slope = gradient_of(name, network, images, targets, RULES[explainer])
    return (slope * images if explainer == "attn_lrp" else slope).sum(1)


def _multiplied(
    name: str, network: Constructed, images: torch.Tensor, baselines: torch.Tensor, targets: torch.Tensor
) -> torch.Tensor:
    both = torch.cat([images, baselines]).requires_grad_()
    logits = network.by_hand(CONSTRUCTIONS[name].steps, both, RULES["deep_lift"])
    (slope,) = torch.autograd.grad(logits[range(len(targets)), targets].sum(), both)
    return (slope[: len(images)] * (images - baselines)).sum(1).detach()

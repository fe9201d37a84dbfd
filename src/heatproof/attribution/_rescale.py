"""DeepLift's multipliers, by rules for the operations that a network calls, whatever modules it is made of.

A network gets images and their baselines in one batch, images first. While `RescaleRules` is entered, every operation
below is replaced by one of the same value whose gradient is a multiplier: times the difference of its inputs it gives
the difference of its outputs. The gradient of an output is then DeepLift's multiplier of the image (Shrikumar,
Greenside and Kundaje 2017, section 3.1).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch.nn import functional

from heatproof.attribution._functions import FunctionRules
from heatproof.attribution._relus import RELUS, relu_of

# Of single elements, the rescale rule (section 3.5.1).
ELEMENTWISE = frozenset(
    (
        *("relu", "relu6", "leaky_relu", "prelu", "rrelu", "elu", "selu", "celu", "gelu", "silu", "mish"),
        *("sigmoid", "logsigmoid", "tanh", "softplus", "softsign", "tanhshrink", "hardshrink", "softshrink"),
        *("hardtanh", "hardswish", "hardsigmoid", "threshold", "clamp", "clip", "clamp_min", "clamp_max"),
    )
)
PRODUCTS = frozenset(["mul", "multiply", "matmul", "bmm"])
POOLS = frozenset(["max_pool2d", "adaptive_max_pool2d"])
# As a share of the inputs, below which their difference is taken for rounding and the gradient for the multiplier.
SMALLEST = 1e-6


class RescaleRules(FunctionRules):
    """Replace operations on tensors that depend on the input; the rest is linear, or is not covered."""

    names: ClassVar[frozenset[str]] = ELEMENTWISE | PRODUCTS | POOLS | RELUS

    def rule(self, name: str, func: Callable[..., Any], args: tuple[Any, ...], given: dict[str, Any]) -> Any:
        """Call a rule where there is one."""
        # A leaf is no activation: weights of a target function can take gradients, and those of the network cannot.
        every = (*args, *given.values())
        depend = [isinstance(each, torch.Tensor) and each.requires_grad and not each.is_leaf for each in every]
        if not torch.is_grad_enabled() or not any(depend):
            return func(*args, **given)
        if name in PRODUCTS and depend[:2] == [True, True]:
            return _product(torch.matmul if name in ("matmul", "bmm") else torch.mul, *args[:2])
        if sum(depend) > 1:
            return func(*args, **given)
        if name in POOLS and depend[0]:
            return _pool(name, *args, **given)
        if name in ELEMENTWISE and depend[0]:
            return _elementwise(lambda values: func(values, *args[1:], **given), args[0])
        if name in RELUS and (values := relu_of(name, args, given)) is not None:
            return _elementwise(torch.relu, values)
        return func(*args, **given)


def _as(value: torch.Tensor, linear: torch.Tensor) -> torch.Tensor:
    """Return a value exactly, with the gradient of another tensor."""
    return value.detach() + (linear - linear.detach())


def _elementwise(function: Callable[[torch.Tensor], torch.Tensor], values: torch.Tensor) -> torch.Tensor:
    inputs = values.detach().requires_grad_()
    # What stands around may save tensors elsewhere, as checkpointing does, which calls the network again to get them.
    with torch.autograd.graph.saved_tensors_hooks(_itself, _itself):
        outputs = function(inputs)
        (slope,) = torch.autograd.grad(outputs.sum(), inputs)
    return _as(outputs, values * _ratio(_change(outputs), inputs.detach(), slope))


def _itself(saved: torch.Tensor) -> torch.Tensor:
    return saved


def _change(values: torch.Tensor) -> torch.Tensor:
    image, baseline = values.detach().chunk(2)
    return image - baseline


def _ratio(change_out: torch.Tensor, inputs: torch.Tensor, slope: torch.Tensor) -> torch.Tensor:
    """Return the multipliers of both halves; `slope` is taken where the inputs are the same."""
    change = _change(inputs)
    same = change.abs() <= SMALLEST * torch.maximum(*inputs.abs().chunk(2))
    multiplier = torch.where(same, slope.chunk(2)[0], change_out / torch.where(same, 1, change))
    return torch.cat([multiplier, multiplier])


def _product(function: Callable[..., torch.Tensor], one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Multiply each factor's difference by the mean of the other factor, which add up to the product's difference."""
    halfway = []
    for factor in (one, other):
        image, baseline = factor.detach().chunk(2)
        halfway.append(((image + baseline) / 2).repeat(2, *[1] * (factor.ndim - 1)))
    value = function(one.detach(), other.detach())
    return _as(value, function(one, halfway[1]) + function(halfway[0], other))


def _pool(name: str, values: torch.Tensor, *given: Any, **named: Any) -> torch.Tensor:
    """Give the difference of a window's maxima to the pixel that makes it, with windows that overlap.

    If the image's maximum is the higher one, that is where the image has it, else where the baseline has it: the
    pixel's own difference is of the same sign and at least as large. A pixel adds up what it gets from its windows.
    """
    outputs, places = getattr(functional, f"{name}_with_indices")(values.detach(), *given, **named)
    found, index = outputs.flatten(2), places.flatten(2)
    image_place, baseline_place = index.chunk(2)
    place = torch.where(_change(found) >= 0, image_place, baseline_place)
    taken = values.flatten(2).gather(2, torch.cat([place, place]))
    ratio = _ratio(_change(found), taken.detach(), torch.ones_like(taken))
    return _as(outputs, (taken * ratio).view_as(outputs))

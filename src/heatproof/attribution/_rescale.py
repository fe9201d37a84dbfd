"""DeepLift's multipliers, by rules for the operations that a network calls, independent of its modules.

The network gets images and their baselines in one batch, images first. While `RescaleRules` is active, it replaces
every operation below by one with the same value whose gradient is a multiplier: the multiplier times the difference of
the inputs is the difference of the outputs. The gradient of an output is then DeepLift's multiplier of the image
(Shrikumar, Greenside and Kundaje 2017, section 3.1).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch.nn import functional

from heatproof.attribution._functions import FunctionRules
from heatproof.attribution._relus import RELUS, relu_of

# Elementwise operations, for the rescale rule (section 3.5.1).
ELEMENTWISE = frozenset(
    (
        *("relu", "relu6", "leaky_relu", "prelu", "rrelu", "elu", "selu", "celu", "gelu", "silu", "mish"),
        *("sigmoid", "logsigmoid", "tanh", "softplus", "softsign", "tanhshrink", "hardshrink", "softshrink"),
        *("hardtanh", "hardswish", "hardsigmoid", "threshold", "clamp", "clip", "clamp_min", "clamp_max"),
    )
)
PRODUCTS = frozenset(["mul", "multiply", "matmul", "bmm"])
POOLS = frozenset(["max_pool2d", "adaptive_max_pool2d"])
# If the difference of inputs is a smaller share of them, it is rounding, and the gradient replaces the multiplier.
SMALLEST = 1e-6


class RescaleRules(FunctionRules):
    """Mode that replaces operations on tensors that depend on the images; others are linear or not covered."""

    names: ClassVar[frozenset[str]] = ELEMENTWISE | PRODUCTS | POOLS | RELUS

    def rule(self, name: str, func: Callable[..., Any], args: tuple[Any, ...], given: dict[str, Any]) -> Any:
        """Apply the rule of an operation that has one."""
        # Leaves are excluded: the weights of a callable target can require gradients.
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
    """Return the exact value of one tensor with the gradient of another."""
    return value.detach() + (linear - linear.detach())


def _elementwise(function: Callable[[torch.Tensor], torch.Tensor], values: torch.Tensor) -> torch.Tensor:
    inputs = values.detach().requires_grad_()
    # The hooks override those of the caller: checkpointing would call the network again to get the saved tensors.
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
    """Return the multipliers for both halves of the batch; `slope` where image and baseline have the same input."""
    change = _change(inputs)
    same = change.abs() <= SMALLEST * torch.maximum(*inputs.abs().chunk(2))
    multiplier = torch.where(same, slope.chunk(2)[0], change_out / torch.where(same, 1, change))
    return torch.cat([multiplier, multiplier])


def _product(function: Callable[..., torch.Tensor], one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Multiply the difference of each factor by the mean of the other; both add up to the difference of the product."""
    halfway = []
    for factor in (one, other):
        image, baseline = factor.detach().chunk(2)
        halfway.append(((image + baseline) / 2).repeat(2, *[1] * (factor.ndim - 1)))
    value = function(one.detach(), other.detach())
    return _as(value, function(one, halfway[1]) + function(halfway[0], other))


def _pool(name: str, values: torch.Tensor, *given: Any, **named: Any) -> torch.Tensor:
    """Attribute the difference of the maxima of a window to one pixel; windows may overlap.

    This is the pixel of the image's maximum if that is the higher one, else the pixel of the baseline's maximum. The
    difference of this pixel has the same sign and is at least as large. A pixel of several windows gets the sum.
    """
    outputs, places = getattr(functional, f"{name}_with_indices")(values.detach(), *given, **named)
    found, index = outputs.flatten(2), places.flatten(2)
    image_place, baseline_place = index.chunk(2)
    place = torch.where(_change(found) >= 0, image_place, baseline_place)
    taken = values.flatten(2).gather(2, torch.cat([place, place]))
    ratio = _ratio(_change(found), taken.detach(), torch.ones_like(taken))
    return _as(outputs, (taken * ratio).view_as(outputs))

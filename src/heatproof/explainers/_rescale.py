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

from heatproof.explainers._function_rules import FunctionRules
from heatproof.explainers._relus import RELUS, relu_of

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
ROUNDING = 1e-6


class RescaleRules(FunctionRules):
    """Mode that replaces operations on tensors that depend on the images; others are linear or not covered."""

    names: ClassVar[frozenset[str]] = ELEMENTWISE | PRODUCTS | POOLS | RELUS

    def rule(self, name: str, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Apply the rule of an operation that has one."""
        # Leaves are excluded: the weights of a callable target can require gradients.
        arguments = (*args, *kwargs.values())
        depends = [
            isinstance(argument, torch.Tensor) and argument.requires_grad and not argument.is_leaf
            for argument in arguments
        ]
        if not torch.is_grad_enabled() or not any(depends):
            return func(*args, **kwargs)
        if name in PRODUCTS and depends[:2] == [True, True]:
            return _product(torch.matmul if name in ("matmul", "bmm") else torch.mul, *args[:2])
        if sum(depends) > 1:
            return func(*args, **kwargs)
        if name in POOLS and depends[0]:
            return _pool(name, *args, **kwargs)
        if name in ELEMENTWISE and depends[0]:
            return _elementwise(lambda values: func(values, *args[1:], **kwargs), args[0])
        if name in RELUS and (values := relu_of(name, args, kwargs)) is not None:
            return _elementwise(torch.relu, values)
        return func(*args, **kwargs)


def _with_gradient_of(value: torch.Tensor, differentiable: torch.Tensor) -> torch.Tensor:
    """Return the exact value of one tensor with the gradient of another."""
    return value.detach() + (differentiable - differentiable.detach())


def _elementwise(function: Callable[[torch.Tensor], torch.Tensor], values: torch.Tensor) -> torch.Tensor:
    inputs = values.detach().requires_grad_()
    # The hooks override those of the caller: checkpointing would call the network again to get the saved tensors.
    with torch.autograd.graph.saved_tensors_hooks(_identity, _identity):
        outputs = function(inputs)
        (gradient,) = torch.autograd.grad(outputs.sum(), inputs)
    return _with_gradient_of(outputs, values * _ratio(_difference(outputs), inputs.detach(), gradient))


def _identity(saved: torch.Tensor) -> torch.Tensor:
    return saved


def _difference(values: torch.Tensor) -> torch.Tensor:
    image, baseline = values.detach().chunk(2)
    return image - baseline


def _ratio(output_difference: torch.Tensor, inputs: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """Return the multipliers for both halves of the batch; `slope` where image and baseline have the same input."""
    difference = _difference(inputs)
    is_same = difference.abs() <= ROUNDING * torch.maximum(*inputs.abs().chunk(2))
    multiplier = torch.where(is_same, gradient.chunk(2)[0], output_difference / torch.where(is_same, 1, difference))
    return torch.cat([multiplier, multiplier])


def _product(function: Callable[..., torch.Tensor], first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Multiply the difference of each factor by the mean of the other; both add up to the difference of the product."""
    halfway = []
    for factor in (first, second):
        image, baseline = factor.detach().chunk(2)
        halfway.append(((image + baseline) / 2).repeat(2, *[1] * (factor.ndim - 1)))
    value = function(first.detach(), second.detach())
    return _with_gradient_of(value, function(first, halfway[1]) + function(halfway[0], second))


def _pool(name: str, values: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """Attribute the difference of the maxima of a window to one pixel; windows may overlap.

    This is the pixel of the image's maximum if that is the higher one, else the pixel of the baseline's maximum. The
    difference of this pixel has the same sign and is at least as large. A pixel of several windows gets the sum.
    """
    outputs, positions = getattr(functional, f"{name}_with_indices")(values.detach(), *args, **kwargs)
    maxima, index = outputs.flatten(2), positions.flatten(2)
    image_position, baseline_position = index.chunk(2)
    position = torch.where(_difference(maxima) >= 0, image_position, baseline_position)
    inputs = values.flatten(2).gather(2, torch.cat([position, position]))
    ratio = _ratio(_difference(maxima), inputs.detach(), torch.ones_like(inputs))
    return _with_gradient_of(outputs, (inputs * ratio).view_as(outputs))

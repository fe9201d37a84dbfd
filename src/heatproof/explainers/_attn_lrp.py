"""Rules of AttnLRP for the functions that a network calls, as gradients whose product with the input is relevance.

Achtibat et al., "AttnLRP: attention-aware layer-wise relevance propagation for transformers", 2024, section 3. While
`AttentionRules` is active, each function keeps its value, and its gradient g is changed so that g times an input is the
relevance of that input:

- linear layers, convolutions and sums, by the epsilon rule with a vanishing epsilon: the unchanged gradient;
- softmax, by the Taylor expansion at its input: the unchanged gradient;
- a product of two values that both depend on the image, by the uniform rule: half of the gradient for each;
- an activation, by the identity rule: the ratio of output and input;
- a norm, by the identity rule for its division: the gradient with a constant denominator.

Gates (a sigmoid times features) are held constant, as in LRP's rule for gates. Biases, embeddings and the constant term
of softmax's expansion take relevance that does not reach the image. It is added up, because otherwise no sum could show
an operation that no rule covers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch

from heatproof.explainers._function_rules import ATTENTION, UnfusedAttention

# These activations are zero at zero, so that the ratio of output and input describes them.
ACTIVATIONS = frozenset(
    ["relu", "relu6", "leaky_relu", "elu", "gelu", "silu", "mish", "hardswish", "tanh", "hardtanh", "celu", "selu"]
)
GATES = frozenset(["sigmoid", "hardsigmoid"])
PRODUCTS = frozenset(["matmul", "bmm", "mul", "multiply", "einsum", "rmatmul", "rmul"])
SUMS = frozenset(["add", "radd", "sub", "rsub"])
LAYERS = frozenset(["linear", "conv2d", "batch_norm", "layer_norm", "group_norm", "rms_norm", "normalize"])
CONCATENATIONS = frozenset(["cat", "concat"])


class AttentionRules(UnfusedAttention):
    """Mode that applies the rules in one pass of images.

    Attributes
    ----------
    constants
        (N,), for each image the relevance of constants, which does not reach the image.
    """

    names: ClassVar[frozenset[str]] = (
        ATTENTION | ACTIVATIONS | GATES | PRODUCTS | SUMS | LAYERS | CONCATENATIONS | {"softmax"}
    )

    def __init__(self, images: torch.Tensor) -> None:
        super().__init__()
        self.constants = images.new_zeros(len(images))

    def rule(self, name: str, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Apply the rule of a function, if one of its arguments depends on the image."""
        if name in ATTENTION or not torch.is_grad_enabled() or not any(_depends(each) for each in _flatten(args)):
            return super().rule(name, func, args, kwargs)
        if name in LAYERS:
            return getattr(self, f"_{name}")(func, *args, **kwargs)
        if name == "softmax":
            return self._softmax(func, *args, **kwargs)
        if name in GATES:
            return func(*args, **kwargs).detach()
        if name in ACTIVATIONS:
            values = args[0]
            output = func(values.detach(), *args[1:], **kwargs)
            ratio = (output / values.detach()).masked_fill(values == 0, 0)
            return _with_gradient_of(output, values * ratio)
        if name in PRODUCTS and sum(_depends(each) for each in args) == 2:
            product = func(*args, **kwargs)
            return _with_gradient_of(product, product / 2)
        if name in SUMS:
            return self._sum(name, func, *args, **kwargs)
        if name in CONCATENATIONS:
            return self._cat(func, *args, **kwargs)
        return func(*args, **kwargs)

    def _count_constant(self, output: torch.Tensor, constant: torch.Tensor | float | None) -> torch.Tensor:
        """Count the relevance of a constant term of an output."""
        if constant is not None:
            output.register_hook(lambda gradient: self._count(gradient * constant))
        return output

    def _count(self, relevance: torch.Tensor) -> None:
        # The windows and heads of an image are adjacent.
        self.constants += relevance.reshape(len(self.constants), -1).sum(1)

    def _linear(self, func: Any, inputs: Any, weight: Any, bias: Any = None) -> torch.Tensor:
        return self._count_constant(func(inputs, weight, bias), bias)

    def _conv2d(self, func: Any, inputs: Any, weight: Any, bias: Any = None, *args: Any, **kwargs: Any) -> Any:
        output = func(inputs, weight, bias, *args, **kwargs)
        return self._count_constant(output, None if bias is None else bias[:, None, None])

    def _batch_norm(
        self,
        func: Any,
        inputs: Any,
        mean: Any,
        variance: Any,
        weight: Any = None,
        bias: Any = None,
        *_: Any,
        **kwargs: Any,
    ) -> Any:
        # Explained networks are in eval mode, in which a batch norm is linear.
        scale = (variance + kwargs.get("eps", _[2] if len(_) > 2 else 1e-5)).rsqrt() * (1 if weight is None else weight)
        constant = (0 if bias is None else bias) - mean * scale
        shape = (-1, *[1] * (inputs.ndim - 2))
        return self._count_constant(inputs * scale.view(shape) + constant.view(shape), constant.view(shape))

    def _layer_norm(
        self, func: Any, inputs: Any, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5, **_: Any
    ) -> Any:
        dims = tuple(range(-len(shape), 0))
        centred = inputs - inputs.mean(dims, keepdim=True)
        output = centred / (centred.detach().square().mean(dims, keepdim=True) + eps).sqrt()
        output = output if weight is None else output * weight
        return output if bias is None else self._count_constant(output + bias, bias)

    def _group_norm(
        self, func: Any, inputs: Any, groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5, **_: Any
    ) -> Any:
        grouped = inputs.unflatten(1, (groups, -1))
        dims = tuple(range(2, grouped.ndim))
        centred = grouped - grouped.mean(dims, keepdim=True)
        output = (centred / (centred.detach().square().mean(dims, keepdim=True) + eps).sqrt()).flatten(1, 2)
        shape = (-1, *[1] * (inputs.ndim - 2))
        output = output if weight is None else output * weight.view(shape)
        return output if bias is None else self._count_constant(output + bias.view(shape), bias.view(shape))

    def _rms_norm(self, func: Any, inputs: Any, shape: Any, weight: Any = None, eps: float | None = None) -> Any:
        dims = tuple(range(-len(shape), 0))
        epsilon = torch.finfo(inputs.dtype).eps if eps is None else eps
        output = inputs / (inputs.detach().square().mean(dims, keepdim=True) + epsilon).sqrt()
        return output if weight is None else output * weight

    def _normalize(self, func: Any, inputs: Any, p: float = 2.0, dim: int = 1, eps: float = 1e-12, **_: Any) -> Any:
        return inputs / inputs.detach().norm(p, dim, keepdim=True).clamp_min(eps)

    def _softmax(self, func: Any, inputs: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        read = inputs.view_as(inputs)
        output: torch.Tensor = func(read, *args, **kwargs)
        # A masked product is minus infinity; its relevance is zero.
        read.register_hook(lambda gradient: self._count(-(gradient * inputs.detach()).masked_fill(inputs.isinf(), 0)))
        output.register_hook(lambda gradient: self._count(gradient * output.detach()))
        return output

    def _sum(self, name: str, func: Any, first: Any, second: Any, **kwargs: Any) -> torch.Tensor:
        factor = kwargs.get("alpha", 1) * (-1 if "sub" in name else 1)
        output: torch.Tensor = func(first, second, **kwargs)
        if not _depends(first):
            return self._count_constant(output, first)
        if not _depends(second):
            masked = isinstance(second, torch.Tensor) and bool(second.isinf().any())
            return self._count_constant(output, factor * (second.masked_fill(second.isinf(), 0) if masked else second))
        return output

    def _cat(self, func: Any, tensors: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        output: torch.Tensor = func(tensors, *args, **kwargs)
        constants = [torch.zeros_like(each) if _depends(each) else each for each in tensors]
        return output if all(map(_depends, tensors)) else self._count_constant(output, func(constants, *args, **kwargs))


def _flatten(args: tuple[Any, ...]) -> list[Any]:
    return [each for argument in args for each in (argument if isinstance(argument, list | tuple) else [argument])]


def _depends(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


def _with_gradient_of(value: torch.Tensor, differentiable: torch.Tensor) -> torch.Tensor:
    """Return the exact value of one tensor with the gradient of another."""
    return value.detach() + (differentiable - differentiable.detach())

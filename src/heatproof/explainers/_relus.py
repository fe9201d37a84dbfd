"""Rules for the backward pass of all ReLUs that a network calls, independent of its modules and functions.

A ReLU is any call that keeps positive values and replaces the others by zero, such as ``clamp(min=0)``. Activations
with an upper bound or a negative slope are not ReLUs and keep their gradient.
"""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from types import CodeType, FrameType
from typing import Any, ClassVar, Literal

import torch

from heatproof.explainers._function_rules import FunctionRules

# Functions that compute a ReLU for some of their arguments.
RELUS = frozenset(
    (
        *("relu", "clamp", "clip", "clamp_min", "threshold", "leaky_relu", "prelu", "rrelu", "elu", "hardtanh"),
        *("maximum", "max", "fmax", "where", "masked_fill", "mul", "multiply"),
    )
)
# Keyword of the slope for negative values.
SLOPES = {"leaky_relu": "negative_slope", "prelu": "weight", "elu": "alpha"}
# Beginnings of the names of autograd nodes of ReLUs that no rule reached, and of nodes whose content is unknown: of
# compiled parts, and of custom operators with a backward pass of their own.
BACKWARDS = ("Relu", "Threshold", "ClampMin", "Clamp")
UNKNOWN = ("DifferentiableGraph", "CompiledFunction", "GeneratedBackwardFor_")
# Namespaces of operators that contain no ReLU, or are seen as functions of torch.
OPERATORS = frozenset(("aten", "prim", "prims", "torchvision"))


def relu_of(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor | None:
    """Return the values whose ReLU a call computes; None if it computes something else.

    Parameters
    ----------
    name
        Name of the function, as in `FunctionRules`.
    args, kwargs
        Arguments of the call.
    """
    first, second, third = (*args[:3], None, None, None)[:3]
    if name == "relu":
        return first
    if name in ("clamp", "clip"):
        high = kwargs.get("max", third)
        return first if _is_zero(kwargs.get("min", second)) and (high is None or high == math.inf) else None
    if name == "clamp_min":
        return first if _is_zero(kwargs.get("min", second)) else None
    if name == "threshold":
        return first if _is_zero(kwargs.get("threshold", second)) and _is_zero(kwargs.get("value", third)) else None
    if name == "hardtanh":
        has_no_top = kwargs.get("max_val", third) == math.inf
        return first if has_no_top and _is_zero(kwargs.get("min_val", second)) else None
    if name == "rrelu":
        # In eval mode the slope is the mean of both bounds.
        slopes = kwargs.get("lower", second), kwargs.get("upper", third)
        return first if all(map(_is_zero, slopes)) else None
    if name in SLOPES:
        return first if _is_zero(kwargs.get(SLOPES[name], second)) else None
    if name == "masked_fill":
        return first if _is_zero(kwargs.get("value", third)) and _is_mask(~second, first) else None
    if name == "where":
        if isinstance(first, torch.Tensor) and first.dtype != torch.bool:
            first, second = second, first
        if _is_zero(third):
            return second if _is_mask(first, second) else None
        return third if third is not None and _is_zero(second) and _is_mask(~first, third) else None
    if name in ("mul", "multiply"):
        return next((values for values, mask in ((first, second), (second, first)) if _is_mask(mask, values)), None)
    if isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor):
        # A maximum of two tensors, not along a dimension.
        return next((values for values, other in ((first, second), (second, first)) if _is_zero(other)), None)
    return None


def _is_zero(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return not value.requires_grad and not bool(value.any())
    return isinstance(value, int | float) and not isinstance(value, bool) and value == 0


def _is_mask(mask: Any, values: Any) -> bool:
    """Return whether a mask is True, or 1, exactly where values are positive (or not negative)."""
    if not (isinstance(mask, torch.Tensor) and isinstance(values, torch.Tensor) and mask.shape == values.shape):
        return False
    if mask.requires_grad or not values.is_floating_point():
        return False
    detached = values.detach()
    # A factor of ones could be anything, not only a mask.
    if mask.dtype != torch.bool and bool(mask.all()):
        return False
    return any(torch.equal(mask, positive.to(mask.dtype)) for positive in (detached > 0, detached >= 0))


class ReluRules(FunctionRules):
    """Mode in which ReLUs pass a gradient back by the rule of guided backprop or of deconvolution.

    Attributes
    ----------
    kind
        ``guided``: only positive gradients pass, and only through active ReLUs; ``deconvolution``: only positive
        gradients pass, through all ReLUs.
    was_called
        Whether a ReLU was called whose input depends on the image.
    was_applied
        Whether a gradient passed back through a rule.
    was_bypassed
        Whether a gradient passed back through a ReLU that no rule reached.
    """

    names: ClassVar[frozenset[str]] = RELUS

    def __init__(self, kind: Literal["guided", "deconvolution"] = "guided") -> None:
        super().__init__()
        self.kind = kind
        self.was_called = self.was_applied = self.was_bypassed = False
        # Code that called a ReLU with gradients disabled, such as the forward of a `torch.autograd.Function`.
        self._code_without_gradients: set[CodeType] = set()

    def rule(self, name: str, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Apply the rule if the call computes a ReLU."""
        values = relu_of(name, args, kwargs)
        if values is None:
            return func(*args, **kwargs)
        if values.requires_grad and torch.is_grad_enabled():
            self.was_called = True
            return _Ruled.apply(values, self)
        if not torch.is_grad_enabled():
            self._code_without_gradients.update(_calling_code())
        return func(*args, **kwargs)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Apply the rules, and watch the results of custom operators, inside of which no mode sees a call."""
        results = super().__torch_function__(func, types, args, kwargs)
        if _is_custom_operator(func):
            for result in results if isinstance(results, list | tuple) else [results]:
                node = getattr(result, "grad_fn", None)
                if node is not None and getattr(node, "_forward_cls", None) is not _Ruled:
                    node.register_prehook(self._record_bypass)
        return results

    def watch_bypasses(self, outputs: torch.Tensor) -> None:
        """Watch for ReLUs that no rule reached: in compiled parts, and in functions with a custom backward pass.

        Parameters
        ----------
        outputs
            Outputs of a pass in this mode, before the gradient is computed.
        """
        nodes, visited = [outputs.grad_fn], set()
        while nodes:
            node = nodes.pop()
            if node is None or node in visited:
                continue
            visited.add(node)
            nodes.extend(previous for previous, _ in node.next_functions)
            forward = inspect.unwrap(getattr(getattr(node, "_forward_cls", None), "forward", len))
            if getattr(forward, "__code__", None) in self._code_without_gradients or _is_relu(node):
                node.register_prehook(self._record_bypass)

    def _record_bypass(self, gradients: Any) -> None:
        self.was_bypassed = True


class _Ruled(torch.autograd.Function):
    """ReLU with the gradient of a rule."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, mode: ReluRules) -> torch.Tensor:
        """Return the positive part."""
        ctx.mode = mode
        # The signs are saved, not the values, because the network may change these in place.
        ctx.save_for_backward(values > 0)
        return values.relu()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        """Return the positive part of the gradient, where the rule lets it pass."""
        ctx.mode.was_applied = True
        passed = gradients[0].relu()
        (active,) = ctx.saved_tensors
        return passed * active if ctx.mode.kind == "guided" else passed, None


def _is_custom_operator(func: Any) -> bool:
    """Return whether a function is an operator (``torch.ops``) of another library than torch and torchvision."""
    if isinstance(func, torch._ops.OpOverload):
        return func.namespace not in OPERATORS
    return isinstance(func, torch._ops.OpOverloadPacket) and func._qualified_op_name.split("::")[0] not in OPERATORS


def _calling_code() -> Iterator[CodeType]:
    """Yield the code of the functions on the call stack, innermost first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame.f_code
        frame = frame.f_back


def _is_relu(node: Any) -> bool:
    name = node.name().rpartition("::")[2]
    if any(name.startswith(prefix) for prefix in UNKNOWN):
        return True
    if not any(name.startswith(f"{relu}Backward") for relu in BACKWARDS):
        return False
    bounds = [getattr(node, f"_saved_{bound}", None) for bound in ("threshold", "min", "max")]
    return name.startswith("Relu") or (any(map(_is_zero, bounds[:2])) and bounds[2] is None)

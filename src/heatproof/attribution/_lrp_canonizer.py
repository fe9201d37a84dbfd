"""Rewrite a network into the form that LRP's rules expect."""

from __future__ import annotations

import copy
import operator
from typing import Any

import torch
from torch import fx, nn
from torch.fx.experimental.optimization import fuse
from zennit.composites import SpecialFirstLayerMapComposite, layer_map_base
from zennit.core import BasicHook, ParamMod, Stabilizer
from zennit.layer import Sum
from zennit.rules import ClampMod, Epsilon, Flat, zero_bias
from zennit.types import Convolution

from heatproof.errors import NotApplicable

ADDITIONS = {operator.add, operator.iadd, torch.add, "add", "add_"}
RELUS = {torch.relu, torch.relu_, nn.functional.relu, "relu", "relu_"}


# Added to denominators; zennit's own 1e-6 takes more than a thousandth of small relevances.
STABILISER = 1e-9


class KeptZPlus(BasicHook):
    """zennit's `ZPlus` rule without biases, which conserves relevance where the plain rule loses it.

    Where no input raises a convolution's output, which then is its bias alone or negative, the plain rule has nothing
    to give relevance to; here every input takes a share in proportion to its size.
    """

    def __init__(self) -> None:
        stabilise = Stabilizer.ensure(STABILISER)

        def share(gradient: torch.Tensor, outputs: list[torch.Tensor]) -> list[torch.Tensor]:
            raised = outputs[0] + outputs[1]
            none = raised <= STABILISER
            plain = (gradient / stabilise(raised)).masked_fill(none, 0)
            return [plain, plain, (gradient / stabilise(outputs[2])).masked_fill(~none, 0)]

        super().__init__(
            input_modifiers=[
                lambda values: values.clamp(min=0),
                lambda values: values.clamp(max=0),
                lambda values: values.abs(),
            ],
            param_modifiers=[
                ClampMod(min=0.0, zero_params="bias"),
                ClampMod(max=0.0, zero_params=zero_bias("bias")),
                ParamMod(lambda values, _: torch.ones_like(values), zero_params="bias"),
            ],
            output_modifiers=[lambda output: output] * 3,
            gradient_mapper=share,
            reducer=lambda inputs, gradients: sum(x * g for x, g in zip(inputs, gradients, strict=True)),
        )


def composite() -> SpecialFirstLayerMapComposite:
    """Return zennit's `EpsilonPlusFlat` composite with `KeptZPlus`; biases get no relevance."""
    return SpecialFirstLayerMapComposite(
        [
            *layer_map_base(STABILISER),
            (Convolution, KeptZPlus()),
            (nn.Linear, Epsilon(STABILISER, zero_params="bias")),
        ],
        [(Convolution, Flat(STABILISER, zero_params="bias"))],
    )


def canonise(network: nn.Module) -> nn.Module:
    """Return a copy with batch norms merged into convolutions, and sums and ReLUs as separate modules.

    A traced copy fits residual networks of any library, where zennit's canonizers are written for torchvision's.

    Raises
    ------
    NotApplicable
        If the network cannot be traced.
    """
    plain = copy.deepcopy(network)
    for module in plain.modules():
        module._forward_hooks.clear()
        module._forward_pre_hooks.clear()
        if getattr(module, "inplace", False) is True:
            module.inplace = False  # type: ignore[assignment]
    try:
        traced: Any = fuse(plain)
    except Exception as error:
        # Tracing runs the network's own code on stand-ins for tensors, which can fail in any way.
        raise NotApplicable(
            f"LRP needs a network that torch.fx can trace: {' '.join(str(error).split())[:200]}"
        ) from None
    for index, node in enumerate(list(traced.graph.nodes)):
        if node.op not in ("call_function", "call_method"):
            continue
        if node.target in ADDITIONS and len(node.args) == 2 and all(isinstance(term, fx.Node) for term in node.args):
            with traced.graph.inserting_before(node):
                # Terms of other shapes, as a position embedding, are broadcast as in the sum.
                stacked = traced.graph.call_function(_stack, node.args)
            _replace(traced, node, f"canonical_sum_{index}", Sum(), stacked)
        elif node.target in RELUS:
            _replace(traced, node, f"canonical_relu_{index}", nn.ReLU(), node.args[0])
    traced.graph.lint()
    traced.recompile()
    # Whoever counts the network's passes counts these too.
    traced._forward_pre_hooks = network._forward_pre_hooks
    return traced.eval().requires_grad_(False)


def _stack(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return torch.stack(torch.broadcast_tensors(one, other), dim=-1)


def _replace(traced: Any, node: fx.Node, name: str, module: nn.Module, argument: Any) -> None:
    traced.add_module(name, module)
    with traced.graph.inserting_before(node):
        node.replace_all_uses_with(traced.graph.call_module(name, (argument,)))
    traced.graph.erase_node(node)

"""What the passes of a check show: precisions, the modules that run, and what the outputs depend on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from heatproof.core.callables import CallableModule
from heatproof.core.rounding import largest_difference
from heatproof.errors import HeatproofError

HALF = (torch.float16, torch.bfloat16)
# Higher-order operators whose functions compute with scores and masks, and hold no layers.
WITHOUT_LAYERS = {"flex_attention"}


class PrecisionsMet(TorchDispatchMode):
    """Record the precisions in which a pass computes, whatever the dtypes of weights and outputs are."""

    def __init__(self) -> None:
        super().__init__()
        self.dtypes: set[torch.dtype] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        outputs = func(*args, **(kwargs or {}))
        if func.namespace == "quantized":
            # Quantised layers compute with eight bits, scaled to the range of the batch.
            self.dtypes.add(torch.bfloat16)
        for output in outputs if isinstance(outputs, tuple | list) else (outputs,):
            if isinstance(output, torch.Tensor) and output.dtype in HALF:
                self.dtypes.add(output.dtype)
        return outputs


def check_operators(operators: Iterable[str]) -> None:
    """Refuse a network whose layers run inside of a higher-order operator, where no hook reaches them.

    Raises
    ------
    HeatproofError
        If there is an operator that can run layers; the message names it.
    """
    if operator := min(set(operators) - WITHOUT_LAYERS, default=None):
        raise HeatproofError(
            f"The model computes a part of its pass in torch's operator {operator}, where its layers cannot be read: "
            "call this part itself, for torch.cond after a Python if."
        )


def check_registered(network: nn.Module, passes: Counter[nn.Module]) -> None:
    """Refuse a network that runs the same module in several passes and has not registered it.

    Hooks, modes and gradients are set on the registered submodules of a network. A module that its forward runs and
    that is none of them, because a list holds it for example, would miss them without notice.

    Parameters
    ----------
    network
        The network.
    passes
        Number of its passes that ran each module, as `heatproof.core.hooks.Hooks.counting_modules` counts them.

    Raises
    ------
    HeatproofError
        If there is one; the message names its class.
    """
    # Modules of a function are only called, and none of its layers is read.
    if not isinstance(network, CallableModule):
        registered = set(network.modules())
        _refuse(network, (module for module, count in passes.items() if count > 1 and module not in registered))


def check_tensors(network: nn.Module, modules: Iterable[nn.Module]) -> None:
    """Refuse a network that runs a module with parameters or buffers that are not those of the network.

    A module without tensors that a forward makes anew in every pass, such as ``nn.ReLU()(x)``, is accepted.

    Raises
    ------
    HeatproofError
        As in `check_registered`.
    """
    registered = set(network.modules())
    tensors = set(map(id, chain(network.parameters(), network.buffers())))
    _refuse(
        network,
        (
            module
            for module in modules
            if module not in registered
            and any(id(tensor) not in tensors for tensor in chain(module.parameters(), module.buffers()))
        ),
    )


def _refuse(network: nn.Module, modules: Iterator[nn.Module]) -> None:
    module = next(modules, None)
    if module is None:
        return
    kind = type(module).__name__
    if isinstance(network, CallableModule):
        raise HeatproofError(
            f"The model is a function that runs a {kind} and does not name it itself: give the module, or a "
            "function that names it."
        )
    raise HeatproofError(
        f"The model runs a {kind} that is none of its submodules: register it, for example in a torch.nn.ModuleList."
    )


def _batch_remedy(network: nn.Module) -> str:
    """Return what to change in a network whose outputs for an image depend on the rest of the batch."""
    for name, module in network.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.running_mean is None:
            return f"give {name!r}, a {type(module).__name__}, running statistics (track_running_stats=True)"
    return "let it treat each image by itself, as its passes have several images, whatever batch_size is"


def check_outputs(
    network: nn.Module,
    in_batch: torch.Tensor,
    first: torch.Tensor,
    last: torch.Tensor,
    again: torch.Tensor,
    tolerance: float,
    same_size_tolerance: float,
) -> None:
    """Refuse outputs that depend on chance, or on the other images of the batch.

    Parameters
    ----------
    network
        The network, for the message.
    in_batch
        (B, K), the outputs of a batch.
    first, last, again
        (1, K), the outputs of its first and last image alone, and of the first image once more.
    tolerance, same_size_tolerance
        Largest difference by rounding between passes, and between two passes of the same batch size.

    Raises
    ------
    HeatproofError
        If they do.
    """
    if first.shape[1] != in_batch.shape[1] or first.shape != last.shape:
        raise HeatproofError(
            f"The model returns {in_batch.shape[1]} logits for each image of a batch, and {first.shape[1]} for one "
            "alone: wrap it so that it returns one tensor of logits (images, classes)."
        )
    difference = largest_difference(again, first)
    if difference > same_size_tolerance:
        raise HeatproofError(
            f"The model returns different outputs for the same image, by up to {difference:.2g}: remove parts that "
            "draw random numbers or store state in eval mode."
        )
    difference = largest_difference(torch.cat([first, last]), in_batch[[0, -1]])
    if difference > tolerance:
        raise HeatproofError(
            f"The model returns other outputs for an image alone than in a batch, by up to {difference:.2g}: "
            f"{_batch_remedy(network)}."
        )

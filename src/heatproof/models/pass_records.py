"""What the passes of a check show: precisions, the modules that run, and what the outputs depend on."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from heatproof.errors import HeatproofError
from heatproof.models.callables import CallableModule
from heatproof.models.rounding import largest_difference

HALF = (torch.float16, torch.bfloat16)


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


class ModulesRun:
    """Record the modules that passes of a network run in this thread.

    Hooks, modes and gradients are set on the registered submodules of a network. A module that its forward runs and
    that is none of them, because a list holds it for example, would miss them without notice.
    """

    def __init__(self, network: nn.Module) -> None:
        self.network = network
        self._thread = threading.get_ident()
        self._paused = False
        self._passes = 0
        # Each module, and the number of passes that ran it.
        self._counts: dict[nn.Module, int] = {}
        self._last_pass: dict[nn.Module, int] = {}

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record the passes inside this context."""
        # The hook of one module would not show what this module runs besides its submodules.
        handle = nn.modules.module.register_module_forward_pre_hook(self._record)
        try:
            yield
        finally:
            handle.remove()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Do not record inside this context, in which a target function may run modules of its own."""
        self._paused = True
        try:
            yield
        finally:
            self._paused = False

    def check_registered(self) -> None:
        """Refuse a network that runs the same module in several passes and has not registered it.

        Raises
        ------
        HeatproofError
            If there is one; the message names its class.
        """
        # Modules of a function are only called, and none of its layers is read.
        if not isinstance(self.network, CallableModule):
            self._refuse(module for module in self._unregistered() if self._counts[module] > 1)

    def check_tensors(self) -> None:
        """Refuse a network that runs a module with parameters or buffers that are not those of the network.

        A module without tensors that a forward makes anew in every pass, such as ``nn.ReLU()(x)``, is accepted.

        Raises
        ------
        HeatproofError
            As in `check_registered`.
        """
        tensors = set(map(id, chain(self.network.parameters(), self.network.buffers())))
        self._refuse(
            module
            for module in self._unregistered()
            if any(id(tensor) not in tensors for tensor in chain(module.parameters(), module.buffers()))
        )

    def _unregistered(self) -> list[nn.Module]:
        registered = set(self.network.modules())
        return [module for module in self._counts if module not in registered]

    def _refuse(self, modules: Iterator[nn.Module]) -> None:
        module = next(modules, None)
        if module is None:
            return
        kind = type(module).__name__
        if isinstance(self.network, CallableModule):
            raise HeatproofError(
                f"The model is a function that runs a {kind} and does not name it itself: give the module, or a "
                "function that names it."
            )
        raise HeatproofError(
            f"The model runs a {kind} that is none of its submodules: register it, for example in a "
            "torch.nn.ModuleList."
        )

    def _record(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        if self._paused or threading.get_ident() != self._thread:
            return
        if module is self.network:
            self._passes += 1
        if self._last_pass.get(module) != self._passes:
            self._last_pass[module] = self._passes
            self._counts[module] = self._counts.get(module, 0) + 1


def check_outputs(
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
            f"The model returns other outputs for an image alone than in a batch, by up to {difference:.2g}: remove "
            "parts that depend on the batch, such as a batch norm without running statistics."
        )

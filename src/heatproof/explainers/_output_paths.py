"""Which tensors of a pass are the outputs that a target function reads, and which paths it has to the images.

For a function of outputs that still have positions, such as the class maps of a segmentation or the boxes of a
detection, the last layer with a grid is the outputs themselves, and Grad-CAM of it is the positive part of a logit. The
graph of a pass shows this: no convolution and no linear layer is between that layer and the outputs.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from types import TracebackType
from typing import Any

import torch
from torch import nn

from heatproof.core.hooks import reader_of
from heatproof.explainers._hooks import in_this_thread, tensors_in

# Names of the nodes in torch's graph that mix channels with weights; "upsamplebilinear" is none.
MIXES = re.compile(r"conv|^linear|attention|^(add|b|addb|baddb)?mm|^(add)?mv")


class OutputPaths:
    """Context of one pass of a network; without a target function of outputs with positions, it finds nothing.

    Parameters
    ----------
    network
        The network, whose hooks read its outputs.
    """

    def __init__(self, network: nn.Module) -> None:
        reader = reader_of(network)
        self._network = network if reader is not None and reader.function is not None else None
        self._outputs: list[torch.Tensor] = []
        self._after_mixing: set[Any] | None = None
        self._handle: Any = None

    def __enter__(self) -> OutputPaths:
        """Record what the network puts out, before the target function reads it."""

        def record(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
            is_one_per_class = isinstance(output, torch.Tensor) and output.ndim <= 2
            self._outputs = [] if is_one_per_class else list(tensors_in(output))

        if self._network is not None:
            self._handle = self._network.register_forward_hook(in_this_thread(record), prepend=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Remove the hook."""
        if self._handle is not None:
            self._handle.remove()

    def follow(self, numbers: torch.Tensor) -> None:
        """Follow the paths from the target function's numbers (B, T) to the last convolutions and linear layers."""
        roots = {tensor.grad_fn for tensor in self._outputs} - {None}
        if not roots:
            return
        # Other outputs, such as those of auxiliary heads, do not matter.
        read = roots & _nodes_from({numbers.grad_fn}, lambda node: node in roots)
        self._after_mixing = _nodes_from(read, lambda node: bool(MIXES.search(node.name().lower())))

    def are_outputs(self, tensor: torch.Tensor) -> bool:
        """Return whether nothing with weights is between a tensor of the pass and the outputs."""
        return self._after_mixing is not None and tensor.grad_fn in self._after_mixing

    def bypass(self, tensor: torch.Tensor, numbers: torch.Tensor, images: torch.Tensor) -> bool:
        """Return whether the numbers depend on the images in ways that do not pass a tensor."""
        if self._after_mixing is None:
            return False
        nodes = _nodes_from({numbers.grad_fn}, lambda node: node is tensor.grad_fn)
        return any(getattr(node, "variable", None) is images for node in nodes)


def _nodes_from(starts: set[Any], is_end: Callable[[Any], bool]) -> set[Any]:
    """Return the nodes of torch's graph from the starts back to the first nodes that are an end, inclusive."""
    nodes, waiting = set(), list(starts)
    while waiting:
        node = waiting.pop()
        if node is None or node in nodes:
            continue
        nodes.add(node)
        if not is_end(node):
            # No gradient goes to the former values of a tensor that a copy overwrites.
            overwritten = 1 if node.name().endswith("CopyBackwards") else 0
            waiting += [before for before, _ in node.next_functions[overwritten:]]
    return nodes

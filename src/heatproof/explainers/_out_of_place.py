"""Rewrite a traced network without in-place operations, so that LRP's rules can replace them.

`res = h; out = relu_(h); conv(out) + res` adds the output of the ReLU to that of the convolution. If `relu_` became a
separate ReLU and the sum still read `h`, the network would compute another function. To find which operations write,
and which nodes refer to the same tensor, the traced network runs once, node by node.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch.fx.graph import inplace_methods

# Keys of what a run notes in the `meta` of a node: its arguments and keywords, if one of them is a tensor, with numbers
# instead of the nodes that compute them; and the number of dimensions of its tensor.
SETTINGS, DIMENSIONS = "heatproof_settings", "heatproof_dimensions"


class RecordingProxy(fx.Proxy):
    """Proxy that records `x += y` and `x[i] = y`; `fx.Proxy` records `x = x + y` instead, and refuses the latter."""


def _recording(name: str) -> Callable[..., fx.Proxy]:
    def record(self: fx.Proxy, *args: Any) -> fx.Proxy:
        return self.tracer.create_proxy("call_function", getattr(operator, name), (self, *args), {})

    return record


for _name in inplace_methods:
    setattr(RecordingProxy, f"__{_name}__", _recording(_name))


class _RecordingInterpreter(fx.Interpreter):
    """Interpreter that records where the tensors of a traced network are and which nodes write to them.

    Attributes
    ----------
    memory
        For each node, the address of the memory of its tensor.
    section
        For each node, the part of that memory that its tensor covers. Nodes with the same memory and section refer to
        the same tensor.
    written
        For each node that writes, the argument that it writes to; in the order of the pass.
    rectified
        For each node that returned the ReLU of one of its arguments, that argument.
    arguments
        For each node, its arguments before the rewriting.
    """

    def __init__(self, traced: fx.GraphModule) -> None:
        # The memory of a freed tensor could be reused at the same address.
        super().__init__(traced, garbage_collect_values=False)
        self.memory: dict[fx.Node, int] = {}
        self.section: dict[fx.Node, tuple[Any, ...]] = {}
        self.written: dict[fx.Node, fx.Node] = {}
        self.rectified: dict[fx.Node, fx.Node] = {}
        self.arguments: dict[fx.Node, tuple[Any, Any]] = {}

    def run(self, *args: Any, **_: Any) -> None:
        """Run all nodes; torch.fx would show a progress bar, whose lock fixes the start method of multiprocessing."""
        self.env, self.args_iter = {}, iter(self.graph.process_inputs(*args))
        for node in self.graph.nodes:
            self.env[node] = self.run_node(node)

    def run_node(self, n: fx.Node) -> Any:
        """Run a node, and record the memory of its tensor and the argument that it writes to."""
        inputs = {
            argument: self.env[argument]
            for argument in n.all_input_nodes
            if isinstance(self.env[argument], torch.Tensor)
        }
        self.arguments[n] = n.args, n.kwargs
        versions = {argument: tensor._version for argument, tensor in inputs.items()}
        result = super().run_node(n)
        if len(inputs) == 1:
            # Sizes of the images, which other nodes compute, become numbers.
            n.meta[SETTINGS] = fx.map_arg((n.args, n.kwargs), lambda a: a if a in inputs else self.env[a])
        if isinstance(result, torch.Tensor):
            n.meta[DIMENSIONS] = result.ndim
        if isinstance(result, torch.Tensor) and result.layout == torch.strided and result.numel():
            memory = result.untyped_storage().data_ptr()
            # A detached tensor shares the memory but not the gradient, so it does not refer to the same tensor.
            is_detached = not result.requires_grad and any(
                self.memory.get(argument) == memory and (tensor.requires_grad or self.section[argument][-1])
                for argument, tensor in inputs.items()
            )
            self.memory[n] = memory
            self.section[n] = (result.storage_offset(), result.shape, result.stride(), result.dtype, is_detached)
        written_nodes = [argument for argument, tensor in inputs.items() if tensor._version != versions[argument]]
        if written_nodes and written_nodes[0] in self.memory:
            self.written[n] = written_nodes[0]
        elif isinstance(result, torch.Tensor) and result.requires_grad and n.op in ("call_function", "call_method"):
            for argument, tensor in inputs.items():
                if bool((tensor < 0).any()) and torch.equal(tensor.clamp(min=0), result):
                    self.rectified[n] = argument
        return result


def write_out_of_place(traced: fx.GraphModule, images: torch.Tensor) -> dict[fx.Node, fx.Node]:
    """Rewrite a traced network so that no node writes to a tensor that other nodes read.

    A node that writes gets a copy, and later nodes read its result instead of any node that refers to the tensor. If
    later nodes read other parts of the tensor's memory, such as the base of a view, the result is written into a copy
    of that memory, and the parts are taken from the copy. Modules with an option `inplace` are set to False.

    Parameters
    ----------
    traced
        The traced network in eval mode, which is changed.
    images
        (B, C, H, W), on which it runs once.

    Returns
    -------
    dict
        Mapping from each function call that returns the ReLU of a tensor, under any name (such as a maximum with zero
        or a product with a mask), to the node of that tensor.
    """
    recorded = _RecordingInterpreter(traced)
    with torch.enable_grad():
        # A clone, because in-place operations on a leaf raise an error.
        recorded.run(images.detach().requires_grad_().clone())
    rewriting = _Rewriting(traced, recorded)
    positions = {node: node.all_input_nodes.index(argument) for node, argument in recorded.rectified.items()}
    for node, target in recorded.written.items():
        rewriting.rewrite(node, target)
    rectified = {node: node.all_input_nodes[position] for node, position in positions.items()}
    for module in traced.modules():
        if getattr(module, "inplace", False) is True:
            module.inplace = False  # type: ignore[assignment]
    traced.graph.lint()
    traced.recompile()
    return rectified


class _Rewriting:
    """Rewriting of the nodes that write, one by one in the order of the pass."""

    def __init__(self, traced: fx.GraphModule, recorded: _RecordingInterpreter) -> None:
        self.traced, self.graph, self.recorded = traced, traced.graph, recorded
        self.order = {node: index for index, node in enumerate(traced.graph.nodes)}
        # For each traced node, the node that has the values of its tensor now.
        self.current = {node: node for node in recorded.memory}

    def rewrite(self, node: fx.Node, target: fx.Node) -> None:
        """Let the nodes after one that writes to `target` read its result instead."""
        memory, section = self.recorded.memory, self.recorded.section
        # Later nodes may refer to the tensor as well, but they read the result already.
        shared = [
            alias for alias in memory if memory[alias] == memory[target] and self.order[alias] <= self.order[node]
        ]
        names = [alias for alias in shared if section[alias] == section[target]]
        module = self.traced.get_submodule(str(node.target)) if node.op == "call_module" else None
        result = node
        if getattr(module, "inplace", False) is not True:
            with self.graph.inserting_before(node):
                copied = self.graph.call_method("clone", (self.current[target],))
            node.replace_input_with(self.current[target], copied)
            # Some operations return nothing, such as x[i] = y.
            result = node if node in names else copied
        parts = [alias for alias in shared if alias not in names and self._is_read_later(node, self.current[alias])]
        renamed = dict.fromkeys(names, result)
        if parts:
            renamed |= self._renew_parts(node, target, result, parts)
        for alias, replacement in renamed.items():
            for user in list(self.current[alias].users):
                if self.order.get(user, -1) > self.order[node]:
                    user.replace_input_with(self.current[alias], replacement)
            self.current[alias] = replacement

    def _is_read_later(self, node: fx.Node, alias: fx.Node) -> bool:
        return any(self.order.get(user, -1) > self.order[node] for user in alias.users)

    def _renew_parts(
        self, node: fx.Node, target: fx.Node, result: fx.Node, parts: list[fx.Node]
    ) -> dict[fx.Node, fx.Node]:
        """Return nodes for the base tensor of the memory and parts of it, with the result written into them."""
        views = self._views_to(target)
        root = views[0]
        if any(self._views_to(part)[0] is not root for part in parts):
            # If this changes the outputs, `require_unaltered_outputs` raises the error.
            return {}
        renewed: dict[fx.Node, fx.Node] = {}
        with self.graph.inserting_after(result if self.order.get(result, -1) >= 0 else node):
            # New nodes are inserted before this placeholder, so they keep their order.
            placeholder = self.graph.call_function(tuple, ())
        with self.graph.inserting_before(placeholder):
            if self.recorded.section[root] == self.recorded.section[target]:
                renewed[root] = result
            else:
                renewed[root] = self.graph.call_method("clone", (self.current[root],))
                self._copy_views(views, renewed)
                self.graph.call_method("copy_", (renewed[views[-1]], result))
            for part in parts:
                self._copy_views(self._views_to(part), renewed)
        self.graph.erase_node(placeholder)
        return {root: renewed[root]} | {part: renewed[self._views_to(part)[-1]] for part in parts}

    def _copy_views(self, views: list[fx.Node], renewed: dict[fx.Node, fx.Node]) -> None:
        """Copy the nodes of a chain of views that have no copy yet."""
        for view in views:
            if view not in renewed:
                args, kwargs = fx.map_arg(
                    self.recorded.arguments[view],
                    lambda argument: renewed.get(self._written_to(argument), self.current.get(argument, argument)),
                )
                renewed[view] = self.graph.create_node(view.op, view.target, args, kwargs)

    def _written_to(self, node: fx.Node) -> fx.Node:
        """Return the node whose tensor a node wrote to and returned; the node itself if there is none."""
        written, section = self.recorded.written, self.recorded.section
        while node in written and section.get(node) == section[written[node]]:
            node = written[node]
        return node

    def _views_to(self, view: fx.Node) -> list[fx.Node]:
        """Return the chain of nodes from the base tensor of a memory to a view of it."""
        view, memory = self._written_to(view), self.recorded.memory
        arguments: list[fx.Node] = []
        fx.map_arg(self.recorded.arguments[view], arguments.append)
        bases = [argument for argument in arguments if memory.get(argument) == memory[view]]
        return [*(self._views_to(bases[0]) if bases else []), view]

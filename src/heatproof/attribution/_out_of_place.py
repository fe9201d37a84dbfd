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


class RecordingProxy(fx.Proxy):
    """Proxy that records `x += y` and `x[i] = y`; `fx.Proxy` records `x = x + y` instead, and refuses the latter."""


def _recording(name: str) -> Callable[..., fx.Proxy]:
    def record(self: fx.Proxy, *others: Any) -> fx.Proxy:
        return self.tracer.create_proxy("call_function", getattr(operator, name), (self, *others), {})

    return record


for _name in inplace_methods:
    setattr(RecordingProxy, f"__{_name}__", _recording(_name))


class _Watched(fx.Interpreter):
    """Interpreter that records where the tensors of a traced network are and which nodes write to them.

    Attributes
    ----------
    memory
        For each node, the address of the memory of its tensor.
    place
        For each node, the part of that memory that its tensor covers. Nodes with the same memory and place refer to the
        same tensor.
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
        self.place: dict[fx.Node, tuple[Any, ...]] = {}
        self.written: dict[fx.Node, fx.Node] = {}
        self.rectified: dict[fx.Node, fx.Node] = {}
        self.given: dict[fx.Node, tuple[Any, Any]] = {}

    def run_node(self, n: fx.Node) -> Any:
        """Run a node, and record the memory of its tensor and the argument that it writes to."""
        given = {one: self.env[one] for one in n.all_input_nodes if isinstance(self.env[one], torch.Tensor)}
        self.given[n] = n.args, n.kwargs
        versions = {one: tensor._version for one, tensor in given.items()}
        made = super().run_node(n)
        if isinstance(made, torch.Tensor) and made.layout == torch.strided and made.numel():
            memory = made.untyped_storage().data_ptr()
            # A detached tensor shares the memory but not the gradient, so it does not refer to the same tensor.
            cut = not made.requires_grad and any(
                self.memory.get(one) == memory and (tensor.requires_grad or self.place[one][-1])
                for one, tensor in given.items()
            )
            self.memory[n] = memory
            self.place[n] = (made.storage_offset(), made.shape, made.stride(), made.dtype, cut)
        changed = [one for one, tensor in given.items() if tensor._version != versions[one]]
        if changed and changed[0] in self.memory:
            self.written[n] = changed[0]
        elif isinstance(made, torch.Tensor) and made.requires_grad and n.op in ("call_function", "call_method"):
            for one, tensor in given.items():
                if bool((tensor < 0).any()) and torch.equal(tensor.clamp(min=0), made):
                    self.rectified[n] = one
        return made


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
    watched = _Watched(traced)
    with torch.enable_grad():
        # A clone, because in-place operations on a leaf raise an error.
        watched.run(images.detach().requires_grad_().clone())
    rewriting = _Rewriting(traced, watched)
    places = {node: node.all_input_nodes.index(one) for node, one in watched.rectified.items()}
    for node, target in watched.written.items():
        rewriting.rewrite(node, target)
    rectified = {node: node.all_input_nodes[place] for node, place in places.items()}
    for module in traced.modules():
        if getattr(module, "inplace", False) is True:
            module.inplace = False  # type: ignore[assignment]
    traced.graph.lint()
    traced.recompile()
    return rectified


class _Rewriting:
    """Rewriting of the nodes that write, one by one in the order of the pass."""

    def __init__(self, traced: fx.GraphModule, watched: _Watched) -> None:
        self.traced, self.graph, self.watched = traced, traced.graph, watched
        self.order = {node: index for index, node in enumerate(traced.graph.nodes)}
        # For each traced node, the node that has the values of its tensor now.
        self.now = {node: node for node in watched.memory}

    def rewrite(self, node: fx.Node, target: fx.Node) -> None:
        """Let the nodes after one that writes to `target` read its result instead."""
        memory, place = self.watched.memory, self.watched.place
        # Later nodes may refer to the tensor as well, but they read the result already.
        shared = [one for one in memory if memory[one] == memory[target] and self.order[one] <= self.order[node]]
        names = [one for one in shared if place[one] == place[target]]
        module = self.traced.get_submodule(str(node.target)) if node.op == "call_module" else None
        result = node
        if getattr(module, "inplace", False) is not True:
            with self.graph.inserting_before(node):
                copied = self.graph.call_method("clone", (self.now[target],))
            node.replace_input_with(self.now[target], copied)
            # Some operations return nothing, such as x[i] = y.
            result = node if node in names else copied
        parts = [one for one in shared if one not in names and self._is_read_behind(node, self.now[one])]
        renamed = dict.fromkeys(names, result)
        if parts:
            renamed |= self._taken_anew(node, target, result, parts)
        for one, other in renamed.items():
            for user in list(self.now[one].users):
                if self.order.get(user, -1) > self.order[node]:
                    user.replace_input_with(self.now[one], other)
            self.now[one] = other

    def _is_read_behind(self, node: fx.Node, one: fx.Node) -> bool:
        return any(self.order.get(user, -1) > self.order[node] for user in one.users)

    def _taken_anew(
        self, node: fx.Node, target: fx.Node, result: fx.Node, parts: list[fx.Node]
    ) -> dict[fx.Node, fx.Node]:
        """Return nodes for the base tensor of the memory and parts of it, with the result written into them."""
        way = self._way_to(target)
        root = way[0]
        if any(self._way_to(one)[0] is not root for one in parts):
            # If this changes the outputs, `require_unaltered_outputs` raises the error.
            return {}
        anew: dict[fx.Node, fx.Node] = {}
        with self.graph.inserting_after(result if self.order.get(result, -1) >= 0 else node):
            # New nodes are inserted before this placeholder, so they keep their order.
            behind = self.graph.call_function(tuple, ())
        with self.graph.inserting_before(behind):
            if self.watched.place[root] == self.watched.place[target]:
                anew[root] = result
            else:
                anew[root] = self.graph.call_method("clone", (self.now[root],))
                self._copy(way, anew)
                self.graph.call_method("copy_", (anew[way[-1]], result))
            for part in parts:
                self._copy(self._way_to(part), anew)
        self.graph.erase_node(behind)
        return {root: anew[root]} | {part: anew[self._way_to(part)[-1]] for part in parts}

    def _copy(self, way: list[fx.Node], anew: dict[fx.Node, fx.Node]) -> None:
        """Copy the nodes of a chain of views that have no copy yet."""
        for one in way:
            if one not in anew:
                args, named = fx.map_arg(
                    self.watched.given[one], lambda given: anew.get(self._written_to(given), self.now.get(given, given))
                )
                anew[one] = self.graph.create_node(one.op, one.target, args, named)

    def _written_to(self, one: fx.Node) -> fx.Node:
        """Return the node whose tensor a node wrote to and returned; the node itself if there is none."""
        written, place = self.watched.written, self.watched.place
        while one in written and place.get(one) == place[written[one]]:
            one = written[one]
        return one

    def _way_to(self, one: fx.Node) -> list[fx.Node]:
        """Return the chain of nodes from the base tensor of a memory to a view of it."""
        one, memory = self._written_to(one), self.watched.memory
        given: list[fx.Node] = []
        fx.map_arg(self.watched.given[one], given.append)
        inner = [before for before in given if memory.get(before) == memory[one]]
        return [*(self._way_to(inner[0]) if inner else []), one]

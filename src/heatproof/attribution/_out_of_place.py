"""Write a traced network without operations in place, so that rules can be put in their stead.

`res = h; out = relu_(h); conv(out) + res` adds the ReLU's output to the convolution's. A rewriting that makes a ReLU of
its own of `relu_`, and lets the sum read `h`, is another function. Which operations write, and which names are of the
tensor that they write to, is found by what they do: the traced network runs once, node by node.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch.fx.graph import inplace_methods


class RecordingProxy(fx.Proxy):
    """A stand-in that records `x += y` and `x[i] = y`, where `fx.Proxy` records `x = x + y`, and refuses."""


def _recording(name: str) -> Callable[..., fx.Proxy]:
    def record(self: fx.Proxy, *others: Any) -> fx.Proxy:
        return self.tracer.create_proxy("call_function", getattr(operator, name), (self, *others), {})

    return record


for _name in inplace_methods:
    setattr(RecordingProxy, f"__{_name}__", _recording(_name))


class _Watched(fx.Interpreter):
    """Runs a traced network.

    Attributes
    ----------
    memory
        Of a node, the address of its tensor's memory.
    place
        Of a node, which part of that memory its tensor is. Nodes of one memory and place are names of one tensor.
    written
        Of a node that writes, the argument that it writes to; in the order of the pass.
    rectified
        Of a node that returned what a ReLU makes of one of its arguments, that argument.
    given
        Of a node, its arguments before anything is rewritten.
    """

    def __init__(self, traced: fx.GraphModule) -> None:
        # What is freed would lend its address to others.
        super().__init__(traced, garbage_collect_values=False)
        self.memory: dict[fx.Node, int] = {}
        self.place: dict[fx.Node, tuple[Any, ...]] = {}
        self.written: dict[fx.Node, fx.Node] = {}
        self.rectified: dict[fx.Node, fx.Node] = {}
        self.given: dict[fx.Node, tuple[Any, Any]] = {}

    def run_node(self, n: fx.Node) -> Any:
        """Run a node, and note where its tensor is and what it writes to."""
        given = {one: self.env[one] for one in n.all_input_nodes if isinstance(self.env[one], torch.Tensor)}
        self.given[n] = n.args, n.kwargs
        versions = {one: tensor._version for one, tensor in given.items()}
        made = super().run_node(n)
        if isinstance(made, torch.Tensor) and made.layout == torch.strided and made.numel():
            memory = made.untyped_storage().data_ptr()
            # A detached tensor shares memory, but not the gradient, and so is no other name.
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
    """Change a traced network so that nothing is written to a tensor that is read by another name.

    An operation that writes gets a copy, and what comes behind it reads its result in place of the tensor, by whatever
    name. Where other parts of the tensor's memory are read later, such as what it is a view of, the result is written
    into a copy of that memory, of which they are taken anew. Modules in place get their plain form.

    Parameters
    ----------
    traced
        In eval mode; it is changed.
    images
        (B, C, H, W) that it runs on.

    Returns
    -------
    dict
        Calls of functions that return what a ReLU makes of a tensor, by whatever name (a maximum with zero, a product
        with a mask), and the node of that tensor.
    """
    watched = _Watched(traced)
    with torch.enable_grad():
        # No leaf, to which nothing can be written.
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
    """Rewrites the nodes that write, one by one in the order of the pass."""

    def __init__(self, traced: fx.GraphModule, watched: _Watched) -> None:
        self.traced, self.graph, self.watched = traced, traced.graph, watched
        self.order = {node: index for index, node in enumerate(traced.graph.nodes)}
        # Of a node as it was traced, the one that has its tensor's values by now.
        self.now = {node: node for node in watched.memory}

    def rewrite(self, node: fx.Node, target: fx.Node) -> None:
        """Let what comes behind a node that writes to `target` read the result."""
        memory, place = self.watched.memory, self.watched.place
        # A node behind this one may be a name of the tensor too, but of the result already.
        shared = [one for one in memory if memory[one] == memory[target] and self.order[one] <= self.order[node]]
        names = [one for one in shared if place[one] == place[target]]
        module = self.traced.get_submodule(str(node.target)) if node.op == "call_module" else None
        result = node
        if getattr(module, "inplace", False) is not True:
            with self.graph.inserting_before(node):
                copied = self.graph.call_method("clone", (self.now[target],))
            node.replace_input_with(self.now[target], copied)
            # Some return nothing, such as x[i] = y.
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
        """Return nodes for the first tensor of the memory and the parts of it, with the result written into them."""
        way = self._way_to(target)
        root = way[0]
        if any(self._way_to(one)[0] is not root for one in parts):
            # Comparing outputs tells whether it matters.
            return {}
        anew: dict[fx.Node, fx.Node] = {}
        with self.graph.inserting_after(result if self.order.get(result, -1) >= 0 else node):
            # Nodes are inserted in front of it, and so in their order.
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
        """Copy nodes that take views, from the first one that is there."""
        for one in way:
            if one not in anew:
                args, named = fx.map_arg(
                    self.watched.given[one], lambda given: anew.get(self._written_to(given), self.now.get(given, given))
                )
                anew[one] = self.graph.create_node(one.op, one.target, args, named)

    def _written_to(self, one: fx.Node) -> fx.Node:
        """Return what a node returned that it wrote to; the node itself if it wrote to nothing."""
        written, place = self.watched.written, self.watched.place
        while one in written and place.get(one) == place[written[one]]:
            one = written[one]
        return one

    def _way_to(self, one: fx.Node) -> list[fx.Node]:
        """Return the nodes from the first one of a memory to one that is a view of it."""
        one, memory = self._written_to(one), self.watched.memory
        given: list[fx.Node] = []
        fx.map_arg(self.watched.given[one], given.append)
        inner = [before for before in given if memory.get(before) == memory[one]]
        return [*(self._way_to(inner[0]) if inner else []), one]

"""Find the layer that class activation maps read, and the grid of its output, in a network that names none.

The rule: the last module of a pass whose output is a feature map (N, C, h, w), a feature map with channels last
(N, h, w, C), or tokens (N, prefix + h·w, C), with more than one cell, and whose cells the logits depend on. The last
condition matters for a class token: after the last block's attention nothing is read from the patches' tokens, so that
their gradients are zero. What modules inside of an attention module put out is left aside.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import nn

from heatproof.attribution._batches import accompany, leaf
from heatproof.attribution._hooks import fits_image, in_this_thread, prefix_tokens, split_tokens
from heatproof.attribution.registry import Explained
from heatproof.errors import NotApplicable, fault_of
from heatproof.models.adapter import as_check, hooks_of
from heatproof.models.network import find_layer
from heatproof.models.registry import InputFacts

# More than the modules of a block, whose last ones can be without influence on the logits.
LAST = 60


@dataclass(frozen=True)
class Layout:
    """A layer and the grid of its output.

    Attributes
    ----------
    name
        Of the submodule.
    form
        How its output is laid out: ``map`` (N, C, h, w), ``channels last`` (N, h, w, C) or ``tokens``
        (N, prefix + h·w, C).
    grid
        Rows and columns.
    prefix
        Tokens before those of the patches; 0 for feature maps.
    found
        Whether the rule found it; False for a named layer.
    """

    name: str
    form: Literal["map", "channels last", "tokens"]
    grid: tuple[int, int]
    prefix: int = 0
    found: bool = True

    def __str__(self) -> str:
        """Return the name, the grid and the tokens in words."""
        tokens = f" of tokens after {self.prefix} prefix token(s)" if self.form == "tokens" else ""
        named = "found by the rule" if self.found else "named"
        return f"{self.name}, {self.grid[0]}×{self.grid[1]}{tokens} ({named})"


def find_layout(network: nn.Module, images: torch.Tensor, name: str | None = None) -> Layout | None:
    """Return the layer for class activation maps and its layout, by one pass and one gradient; None if there is none.

    Parameters
    ----------
    network
        Images to logits.
    images
        (N, C, H, W), at least two, normalised.
    name
        A layer that the user named, whose layout is wanted; None applies the rule.
    """
    hooks = hooks_of(network)
    known: dict[Any, Layout | None] = {} if hooks is None else hooks.found
    if hooks is not None and hooks.few is not None and hooks.few.shape[1:] == images.shape[1:]:
        # Those of the check decide for all, so that neither batches nor jobs differ.
        images = hooks.few
    key = ("layout", tuple(images.shape[2:]), name)
    if key not in known:
        known[key] = _search(network, images[:2], name)
    return known[key]


@contextmanager
def grid_layer(explained: Explained, name: str | None = None) -> Iterator[tuple[nn.Module, nn.Module, str]]:
    """Give the output to explain, the module whose output (N, C, h, w) is that of the layer, and the layer's name.

    That module stands behind the layer while the context is open: what is read from it, or put in its place, is the
    layer's output with channels before the grid, and without prefix tokens.

    Parameters
    ----------
    explained
        The batch; the facts' layer is taken, or what the rule finds.
    name
        A layer named in an explainer's options, taken in place of the facts'.

    Raises
    ------
    NotApplicable
        If the model names no layer, and the rule finds none.
    HeatproofError
        If there is no layer of that name.
    """
    name = name or (explained.facts or InputFacts()).cam_layer
    if name is None:
        layout = find_layout(explained.network, accompany(explained).images)
        if layout is None:
            raise NotApplicable("the model names no layer with a spatial grid, and the rule finds none")
        name = layout.name
    layer = find_layer(explained.network, name, "model")
    probe, size, given = nn.Identity().eval(), tuple(explained.images.shape[2:]), prefix_tokens(explained.network)
    handle = layer.register_forward_hook(
        in_this_thread(lambda module, inputs, output: _through(probe, inputs, output, size, given))
    )
    try:
        with _once_in_a_pass(explained.network, layer, name):
            yield _beside(explained.output, probe), probe, name
    finally:
        handle.remove()


@contextmanager
def _once_in_a_pass(network: nn.Module, layer: nn.Module, name: str) -> Iterator[None]:
    """Refuse a layer that a pass calls several times: of its outputs, each with a gradient, only one would be read.

    A network that averages over a flipped copy of the image would get the map of the flipped one.
    """
    # Calls in a pass that is under way; checkpointing calls layers again behind it.
    calls: list[int] = []

    def count(*given: Any) -> None:
        if calls:
            calls[-1] += 1
            if calls[-1] > 1:
                raise NotApplicable(
                    f"the layer {name!r} is called several times in one pass: name another in cam_layer"
                )

    handles = [
        network.register_forward_pre_hook(in_this_thread(lambda *given: calls.append(0))),
        network.register_forward_hook(in_this_thread(lambda *given: calls.clear()), always_call=True),
        layer.register_forward_hook(in_this_thread(count)),
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _beside(network: nn.Module, probe: nn.Module) -> nn.Module:
    """Return the network with one module more, in which libraries look for the layer that they are given.

    No class with a forward of its own, so that the traceback of an error in the network does not pass through here.
    """
    holder = nn.Identity()
    holder.add_module("probe", probe)
    return nn.Sequential(network, holder).eval()


def _through(probe: nn.Module, inputs: tuple[Any, ...], output: Any, size: tuple[int, ...], given: int | None) -> Any:
    if not isinstance(output, torch.Tensor):
        # As it is; whoever reads it says what is wrong with an output without a grid.
        return probe(output)
    layout = _lay_out("", output, size, given)
    own = output.clone()
    if layout is None or layout.form == "map":
        shown = own
    elif layout.form == "channels last":
        shown = own.permute(0, 3, 1, 2)
    else:
        shown = own[:, layout.prefix :].mT.unflatten(2, layout.grid)
    values = seen = probe(shown)
    if layout is not None and layout.form == "channels last":
        values = seen.permute(0, 2, 3, 1)
    elif layout is not None and layout.form == "tokens":
        values = torch.cat([own[:, : layout.prefix], seen.flatten(2).mT], 1)
    return _go_on_with(inputs, output, values, read=seen is shown)


def _go_on_with(inputs: tuple[Any, ...], output: torch.Tensor, values: torch.Tensor, read: bool = True) -> torch.Tensor:
    """Write values into a layer's output, and return what the network is to go on with.

    The network keeps its own tensor, so that what it does to it in place reaches all that it calls by other names, such
    as a shortcut taken before an in-place ReLU. The values stay as they are, and their gradient is that of all later
    uses of the tensor. In place of a view that the layer takes, the network goes on with a copy: later uses of what it
    is a view of are none of the layer's output. Where the network writes to one and reads the other, outputs differ.

    Parameters
    ----------
    inputs
        Of the layer, which works in place if it puts out one of them.
    output, values
        Of one shape.
    read
        Whether the values are copies of the output, and not put in its place.
    """
    if values.shape != output.shape:
        return values
    if output._is_view() and not any(output is one for one in inputs):
        return values.clone()
    try:
        # The layer's own backward pass may need its output, which stays as it was if it is only read.
        with torch.autograd._unsafe_preserve_version_counter(output) if read else nullcontext():
            output.copy_(values)
    except RuntimeError as error:
        if fault_of(error):
            raise
        # A tensor that PyTorch lets nobody write to, such as the images: the network does not write to it either.
        return values.clone()
    return output


def _search(network: nn.Module, images: torch.Tensor, name: str | None) -> Layout | None:
    met: list[tuple[str, torch.Tensor]] = []
    inside = _inside_of_attention(network)
    # What a module puts out, at a version of that tensor, which later ones change in place; and a copy of it then.
    copies: dict[tuple[int, int], tuple[torch.Tensor, torch.Tensor]] = {}

    def keep(called: str) -> Any:
        def hook(module: nn.Module, inputs: Any, output: Any) -> Any:
            if not isinstance(output, torch.Tensor) or not output.requires_grad or len(output) != len(images):
                return None
            given = output
            if (id(output), output._version) not in copies:
                own = output.clone()
                given = _go_on_with(inputs, output, own)
                copies[id(given), given._version] = (given, own)
            met.append((called, copies[id(given), given._version][1]))
            return given

        return in_this_thread(hook)

    # A module that is registered twice is listed once, under the other of its names maybe.
    modules = [(name, find_layer(network, name, "model"))] if name else list(network.named_modules())[1:]
    handles = [module.register_forward_hook(keep(called)) for called, module in modules if name or module not in inside]
    try:
        # As a check: which explainer asks first, also after a kill, counts no more passes.
        with torch.enable_grad(), as_check():
            logits = network(leaf(images))
    finally:
        for handle in handles:
            handle.remove()
    times = Counter(called for called, _ in met)
    if not name:
        met = [(called, output) for called, output in met if times[called] == 1]
    candidates = _candidates(network, met, tuple(images.shape[2:]))
    if name:
        return replace(candidates[-1][0], found=False) if candidates else None
    candidates = candidates[-LAST:]
    if not candidates or not isinstance(logits, torch.Tensor) or not logits.requires_grad:
        return None
    tensors = [tensor for _, tensor in candidates]
    slopes = torch.autograd.grad(logits.logsumexp(-1).sum(), tensors, allow_unused=True)
    for (layout, _), slope in zip(reversed(candidates), reversed(slopes), strict=True):
        if slope is not None and bool((slope[:, layout.prefix :] != 0).any()):
            return layout
    return None


def _inside_of_attention(network: nn.Module) -> set[nn.Module]:
    owners = [module for module in network.modules() if "attention" in type(module).__name__.lower()]
    # An outermost module of such a name is a whole block or network, unless it computes attention itself.
    inner = [one for one in owners if not any(two is not one and two in set(one.modules()) for two in owners)]
    return {module for owner in inner for module in owner.modules() if module is not owner}


def _candidates(
    network: nn.Module, met: list[tuple[str, torch.Tensor]], size: tuple[int, ...]
) -> list[tuple[Layout, torch.Tensor]]:
    """Return the layouts of outputs in the order of the pass; of modules with one output, the outermost."""
    given = prefix_tokens(network)
    found: dict[int, tuple[Layout, torch.Tensor]] = {}
    for name, tensor in met:
        layout = _lay_out(name, tensor, size, given)
        if layout is None:
            continue
        before = found.get(id(tensor))
        if before is None or name.count(".") < before[0].name.count("."):
            found[id(tensor)] = (layout, tensor)
    return list(found.values())


def _lay_out(name: str, tensor: torch.Tensor, size: tuple[int, ...], given: int | None) -> Layout | None:
    shape = tuple(tensor.shape)
    if len(shape) == 4:
        if shape[2] * shape[3] > 1 and fits_image(shape[2:], size):
            return Layout(name, "map", shape[2:])
        if shape[1] * shape[2] > 1 and fits_image(shape[1:3], size):
            return Layout(name, "channels last", shape[1:3])
    if len(shape) == 3:
        split = split_tokens(shape[1], size, given)
        if split and math.prod(split[1]) > 1:
            return Layout(name, "tokens", split[1], split[0])
    return None

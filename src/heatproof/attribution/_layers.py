"""Find the layer that class activation maps read, and the grid of its output, in a network that names none.

The rule: the last module of a pass whose output is a feature map, with its channels first or last, or tokens
(N, T, C) of which h·w are patches, with more than one cell, and whose cells the logits depend on. The last condition
matters for a class token: after the last block's attention nothing is read from the patches' tokens, so that their
gradients are zero. Which axes are rows and columns, and which tokens are patches, is found by what moves them
(`heatproof.attribution._tokens`). What modules inside of an attention module put out is left aside.
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

from heatproof.attribution._batches import as_leaf, pad_single_image
from heatproof.attribution._hooks import in_this_thread, prefix_tokens
from heatproof.attribution._tokens import BandChanges, TokenGrid, measure_band_changes, noise_like
from heatproof.attribution.registry import ExplainContext
from heatproof.errors import NotApplicable, machine_fault
from heatproof.models._published import GridTap
from heatproof.models.adapter import counted_as_check, hooks_of
from heatproof.models.network import find_layer
from heatproof.models.registry import InputFacts

# More than the modules of a block, whose last ones can be without influence on the logits.
LAST = 60
# Their outputs are (N, C, h, w) by definition.
OF_MAPS = (nn.Conv2d, nn.BatchNorm2d, nn.MaxPool2d, nn.AvgPool2d, GridTap)


@dataclass(frozen=True)
class Layout:
    """A layer and the grid of its output.

    Attributes
    ----------
    name
        Of the submodule.
    grid
        Rows and columns.
    axes
        Those of rows and columns in a feature map of four; None for tokens (N, T, C).
    cells
        Index of the token of each cell, row by row; empty for feature maps.
    found
        Whether the rule found it; False for a named layer.
    """

    name: str
    grid: tuple[int, int]
    axes: tuple[int, ...] | None = None
    cells: tuple[int, ...] = ()
    found: bool = True

    @property
    def form(self) -> Literal["map", "channels last", "tokens"]:
        """How the output is laid out: ``map`` with channels before a side, ``channels last``, or ``tokens``."""
        if self.axes is None:
            return "tokens"
        return "channels last" if sorted(self.axes) == [1, 2] else "map"

    @property
    def prefix(self) -> int:
        """Tokens before the patches; 0 for feature maps."""
        return min(self.cells, default=0)

    def __str__(self) -> str:
        """Return the name, the grid and the tokens in words."""
        tokens = f" of tokens after {self.prefix} prefix token(s)" if self.form == "tokens" else ""
        named = "found by the rule" if self.found else "named"
        return f"{self.name}, {self.grid[0]}×{self.grid[1]}{tokens} ({named})"


@dataclass(frozen=True)
class LayerInspection:
    """What was found of a network for one size of images.

    Attributes
    ----------
    layout
        Of the layer for class activation maps; None if there is none.
    moved
        What moves tokens.
    open_tokens
        What is said of tokens that cannot be told apart; empty where there are none.
    """

    layout: Layout | None
    moved: BandChanges
    open_tokens: str = ""


def inspect_layers(network: nn.Module, images: torch.Tensor, name: str | None = None) -> LayerInspection:
    """Find the layer for class activation maps, its layout, and what moves tokens.

    It takes a pass and a gradient of two images of noise, and a pass of two for each of at most 14 bands.

    Parameters
    ----------
    network
        Images to logits.
    images
        (N, C, H, W), of whose size the noise is.
    name
        A layer that the user named, whose layout is wanted; None applies the rule.
    """
    hooks = hooks_of(network)
    known: dict[Any, LayerInspection] = {} if hooks is None else hooks.cache
    key = ("layout", tuple(images.shape[1:]), name)
    if key not in known:
        known[key] = _search(network, noise_like(images), name)
    return known[key]


def find_layout(network: nn.Module, images: torch.Tensor, name: str | None = None) -> Layout | None:
    """Return the layer for class activation maps and its layout; None if there is none. `inspect_layers` has the parameters."""
    return inspect_layers(network, images, name).layout


def locate_attended_tokens(context: ExplainContext, count: int) -> TokenGrid | None:
    """Return where the tokens lie in the image between which a network attends; None where that is open."""
    looked = inspect_layers(context.network, pad_single_image(context).images)
    return looked.moved.locate_attended_tokens(count, prefix_tokens(context.network))


@contextmanager
def grid_layer(context: ExplainContext, name: str | None = None) -> Iterator[tuple[nn.Module, nn.Module, str]]:
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
    name = name or (context.facts or InputFacts()).cam_layer
    layout = _layout_of(context, name)
    name = layout.name
    layer = find_layer(context.network, name, "model")
    probe = nn.Identity().eval()
    handle = layer.register_forward_hook(
        in_this_thread(lambda module, inputs, output: _through(probe, inputs, output, layout))
    )
    try:
        with _once_in_a_pass(context.network, layer, name):
            yield _beside(context.output, probe), probe, name
    finally:
        handle.remove()


def _layout_of(context: ExplainContext, name: str | None) -> Layout:
    # A layer that was named is read as it is; whoever reads it says what is wrong with an output without a grid.
    as_it_is = Layout(str(name), (0, 0), (2, 3), found=False)
    if name and _makes_maps(find_layer(context.network, name, "model")):
        return as_it_is
    looked = inspect_layers(context.network, pad_single_image(context).images, name)
    if looked.layout is None and looked.open_tokens:
        raise NotApplicable(looked.open_tokens)
    if looked.layout is None and name is None:
        raise NotApplicable("the model names no layer with a spatial grid, and the rule finds none")
    return looked.layout or as_it_is


def _makes_maps(layer: nn.Module) -> bool:
    """Tell whether a layer is made of what torch defines on maps, beside activations."""
    leaves = [module for module in layer.modules() if not list(module.children())]
    maps = [isinstance(module, OF_MAPS) for module in leaves]
    others = [one for one, is_map in zip(leaves, maps, strict=True) if not is_map]
    return any(maps) and all(isinstance(one, nn.Identity | nn.ReLU | nn.GELU | nn.SiLU | nn.Dropout) for one in others)


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


def _through(probe: nn.Module, inputs: tuple[Any, ...], output: Any, layout: Layout) -> Any:
    if not isinstance(output, torch.Tensor):
        # As it is; whoever reads it says what is wrong with an output without a grid.
        return probe(output)
    own = output.clone()
    if layout.axes is not None:
        (channels,) = {1, 2, 3} - set(layout.axes)
        order = (0, channels, *layout.axes)
        shown = own if layout.axes == (2, 3) else own.permute(order)
        seen = probe(shown)
        values = seen if seen is shown and shown is own else seen.permute([order.index(axis) for axis in range(4)])
    else:
        cells = torch.tensor(layout.cells, device=output.device)
        shown = own[:, cells].mT.unflatten(2, layout.grid)
        seen = probe(shown)
        values = own.index_copy(1, cells, seen.flatten(2).mT)
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
        if machine_fault(error):
            raise
        # A tensor that PyTorch lets nobody write to, such as the images: the network does not write to it either.
        return values.clone()
    return output


def _search(network: nn.Module, images: torch.Tensor, name: str | None, begins: bool = False) -> LayerInspection:
    """Look for the layer in a pass.

    Where `begins`, gradients begin at what modules put out, because the network cuts them off before.
    """
    met: list[tuple[str, torch.Tensor]] = []
    maps: set[tuple[int, ...]] = set()
    inside = _inside_of_attention(network)
    # What a module puts out, at a version of that tensor, which later ones change in place; and a copy of it then.
    copies: dict[tuple[int, int], tuple[torch.Tensor, torch.Tensor]] = {}

    def keep(called: str) -> Any:
        def hook(module: nn.Module, inputs: Any, output: Any) -> Any:
            if not isinstance(output, torch.Tensor) or not output.is_floating_point() or len(output) != len(images):
                return None
            if not (output.requires_grad or begins):
                return None
            given = output
            if (id(output), output._version) not in copies:
                own = output.clone()
                own = own if own.requires_grad else own.detach().requires_grad_()
                given = _go_on_with(inputs, output, own)
                copies[id(given), given._version] = (given, own)
            met.append((called, copies[id(given), given._version][1]))
            if isinstance(module, OF_MAPS):
                maps.add(tuple(output.shape))
            return given

        return in_this_thread(hook)

    # A module that is registered twice is listed once, under the other of its names maybe.
    modules = {name: find_layer(network, name, "model")} if name else dict(list(network.named_modules())[1:])
    handles = [
        module.register_forward_hook(keep(called)) for called, module in modules.items() if name or module not in inside
    ]
    try:
        # As a check: which explainer asks first, also after a kill, counts no more passes.
        with torch.enable_grad(), counted_as_check():
            logits = network(as_leaf(images))
    finally:
        for handle in handles:
            handle.remove()
    if not begins and isinstance(logits, torch.Tensor) and not logits.requires_grad:
        # Methods that need no gradient, such as Score-CAM, read a layer of this network too.
        return _search(network, images, name, begins=True)
    times = Counter(called for called, _ in met)
    outputs = _outermost([one for one in met if name or times[one[0]] == 1])[-LAST:]
    moved = measure_band_changes(network, images, {called: modules[called] for called, _ in outputs})
    if not outputs or not isinstance(logits, torch.Tensor) or not logits.requires_grad:
        return LayerInspection(None, moved)
    given, open_tokens = prefix_tokens(network), ""
    tensors = [tensor for _, tensor in outputs]
    slopes = torch.autograd.grad(logits.logsumexp(-1).sum(), tensors, allow_unused=True)
    for (called, tensor), slope in zip(reversed(outputs), reversed(slopes), strict=True):
        if not name and (slope is None or not bool((slope != 0).any())):
            continue
        # Where there are as many channels as rows or columns, axes can be exchanged behind what torch calls a map.
        told = tuple(tensor.shape) in maps and (
            isinstance(modules[called], OF_MAPS) or tensor.shape[1] not in tensor.shape[2:]
        )
        layout = _lay_out(called, tensor, moved, given, told)
        if layout is None and tensor.ndim == 3:
            open_tokens = open_tokens or describe_unlocated_tokens(tensor.shape[1], called)
        elif layout and (name or layout.axes or bool((slope[:, list(layout.cells)] != 0).any())):
            return LayerInspection(replace(layout, found=not name), moved)
    return LayerInspection(None, moved, open_tokens)


def describe_unlocated_tokens(tokens: int, layer: str = "") -> str:
    """Say that tokens cannot be told apart, and what helps."""
    where = f" of the layer {layer!r}" if layer else ""
    return (
        f"which of the {tokens} tokens{where} are patches, and where these lie, does not show "
        "in what regions of an image move: set `num_prefix_tokens` on the model, or name another layer in cam_layer"
    )


def _inside_of_attention(network: nn.Module) -> set[nn.Module]:
    owners = [module for module in network.modules() if "attention" in type(module).__name__.lower()]
    # An outermost module of such a name is a whole block or network, unless it computes attention itself.
    inner = [one for one in owners if not any(two is not one and two in set(one.modules()) for two in owners)]
    return {module for owner in inner for module in owner.modules() if module is not owner}


def _outermost(met: list[tuple[str, torch.Tensor]]) -> list[tuple[str, torch.Tensor]]:
    """Return outputs that can have cells in the order of the pass; of modules with one output, the outermost."""
    found: dict[int, tuple[str, torch.Tensor]] = {}
    for name, tensor in met:
        cells = math.prod(tensor.shape[2:]) if tensor.ndim == 4 else tensor.shape[1] if tensor.ndim == 3 else 0
        before = found.get(id(tensor))
        if cells > 1 and (before is None or name.count(".") < before[0].count(".")):
            found[id(tensor)] = (name, tensor)
    return list(found.values())


def _lay_out(name: str, tensor: torch.Tensor, moved: BandChanges, given: int | None, is_map: bool) -> Layout | None:
    if name not in moved.layers:
        return None
    if tensor.ndim == 3:
        reading = moved.locate_tokens(tensor.shape[1], moved.layers[name][1,], given)
        return None if reading is None else Layout(name, reading.grid, cells=reading.cells)
    axes = moved.locate_map_axes(name)
    possible = list(moved.layers[name])
    if axes is None and is_map and (2, 3) in possible:
        # What torch calls a map, where all of its cells see the whole image.
        axes = 2, 3
    if axes is None and len(possible) == 1:
        axes = possible[0]
    return None if axes is None else Layout(name, (tensor.shape[axes[0]], tensor.shape[axes[1]]), axes)

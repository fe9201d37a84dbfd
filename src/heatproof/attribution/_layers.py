"""Find the layer for class activation maps, and the grid of its output, in a network that does not name one.

The rule chooses the last module of a pass with these properties:

- its output is a feature map, with channels first or last, or tokens (N, T, C) of which h·w are patches;
- its grid has more than one cell;
- the logits depend on its cells. In a network with a class token, the patch tokens after the last block's attention are
  not read, so their gradients are zero;
- it is not inside an attention module.

`heatproof.attribution._tokens` finds which axes are rows and columns, and which tokens are patches.
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

# Number of modules to examine from the end: more than a block has, because the logits may not depend on the last ones.
LAST = 60
# The outputs of these modules are (N, C, h, w) by definition.
OF_MAPS = (nn.Conv2d, nn.BatchNorm2d, nn.MaxPool2d, nn.AvgPool2d, GridTap)


@dataclass(frozen=True)
class Layout:
    """A layer and the grid of its output.

    Attributes
    ----------
    name
        Name of the submodule.
    grid
        Number of rows and columns.
    axes
        Axes of the rows and the columns in a feature map of four axes; None for tokens (N, T, C).
    cells
        Index of the token of each cell, row by row; empty for feature maps.
    found
        Whether the rule found the layer; False if the model or the user named it.
    """

    name: str
    grid: tuple[int, int]
    axes: tuple[int, ...] | None = None
    cells: tuple[int, ...] = ()
    found: bool = True

    @property
    def form(self) -> Literal["map", "channels last", "tokens"]:
        """Layout of the output: ``map`` (channels before the columns or the rows), ``channels last`` or ``tokens``."""
        if self.axes is None:
            return "tokens"
        return "channels last" if sorted(self.axes) == [1, 2] else "map"

    @property
    def prefix(self) -> int:
        """Number of tokens before the patches; 0 for feature maps."""
        return min(self.cells, default=0)

    def __str__(self) -> str:
        """Describe the layer, its grid and its tokens."""
        tokens = f" of tokens after {self.prefix} prefix token(s)" if self.form == "tokens" else ""
        named = "found by the rule" if self.found else "named"
        return f"{self.name}, {self.grid[0]}×{self.grid[1]}{tokens} ({named})"


@dataclass(frozen=True)
class LayerInspection:
    """Result of `inspect_layers` for one network and one size of images.

    Attributes
    ----------
    layout
        Layer for class activation maps; None if there is none.
    changes
        Changes of layers and tokens when bands of the image are replaced.
    unlocated_reason
        Reason for which the tokens of a layer could not be located in the image; empty if there is no such layer.
    """

    layout: Layout | None
    moved: BandChanges
    open_tokens: str = ""


def inspect_layers(network: nn.Module, images: torch.Tensor, name: str | None = None) -> LayerInspection:
    """Find the layer for class activation maps and its layout, and measure which bands of the image change tokens.

    This takes a pass and a gradient of two noise images, and a pass of two images for each of at most 14 bands. Results
    are cached for each network, image size and name.

    Parameters
    ----------
    network
        Images to logits.
    images
        (N, C, H, W); the noise has their size.
    name
        Name of the layer to describe; for None, the rule of this module finds the layer.
    """
    hooks = hooks_of(network)
    known: dict[Any, LayerInspection] = {} if hooks is None else hooks.found
    key = ("layout", tuple(images.shape[1:]), name)
    if key not in known:
        known[key] = _search(network, noise_like(images), name)
    return known[key]


def find_layout(network: nn.Module, images: torch.Tensor, name: str | None = None) -> Layout | None:
    """Return the layer for class activation maps and its layout; None if there is none.

    See `inspect_layers` for the parameters.
    """
    return inspect_layers(network, images, name).layout


def locate_attended_tokens(context: ExplainContext, count: int) -> TokenGrid | None:
    """Return the positions in the image of the `count` tokens that attend to each other; None if they are unclear."""
    looked = inspect_layers(context.network, pad_single_image(context).images)
    return looked.moved.locate_attended_tokens(count, prefix_tokens(context.network))


@contextmanager
def grid_layer(context: ExplainContext, name: str | None = None) -> Iterator[tuple[nn.Module, nn.Module, str]]:
    """Insert a probe behind the layer for class activation maps, for the duration of a with statement.

    The output of the probe is the output of the layer as a feature map (N, C, h, w): channels come before the grid, and
    prefix tokens are left out. Hooks on the probe can read or replace it.

    Parameters
    ----------
    context
        The batch. Its `facts` name the layer; if they do not, the rule of this module finds it.
    name
        Name of a layer in the options of an explainer, which takes precedence over the facts.

    Yields
    ------
    output
        The module whose output is explained, with the probe as an additional submodule.
    probe
        The probe.
    name
        Name of the layer.

    Raises
    ------
    NotApplicable
        If no layer is named and the rule finds none, or the layer runs several times in a pass.
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
    # A named layer is read as it is; explainers raise an error if its output has no grid.
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
    """Return whether a layer consists of torch's modules for feature maps, and activations."""
    leaves = [module for module in layer.modules() if not list(module.children())]
    maps = [isinstance(module, OF_MAPS) for module in leaves]
    others = [one for one, is_map in zip(leaves, maps, strict=True) if not is_map]
    return any(maps) and all(isinstance(one, nn.Identity | nn.ReLU | nn.GELU | nn.SiLU | nn.Dropout) for one in others)


@contextmanager
def _once_in_a_pass(network: nn.Module, layer: nn.Module, name: str) -> Iterator[None]:
    """Require that each pass calls a layer once; otherwise explainers would read only one of its outputs.

    For example, a network that averages over a flipped copy of the image would get the map of the flipped copy.
    """
    # One counter for a pass in progress; empty after it, when checkpointing calls layers again.
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
    """Return a module with the output of the network that has the probe as a submodule, where libraries look for it.

    It is built of torch's modules, so that the traceback of an error in the network does not pass through this module.
    """
    holder = nn.Identity()
    holder.add_module("probe", probe)
    return nn.Sequential(network, holder).eval()


def _through(probe: nn.Module, inputs: tuple[Any, ...], output: Any, layout: Layout) -> Any:
    if not isinstance(output, torch.Tensor):
        # Explainers raise an error for an output that is not a tensor.
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
    """Write values into the output tensor of a layer, and return the tensor with which the network continues.

    The network continues with its own tensor, so that later in-place operations on it also reach other references to
    it, such as a shortcut that was taken before an in-place ReLU. `values` is not changed by them, and its gradient is
    that of all later uses of the tensor. If the output is a view, the network continues with a copy of `values`,
    because later uses of the base tensor do not use the layer's output. If the network then writes to one of both and
    reads the other, its outputs differ, which `require_unaltered_outputs` finds.

    Parameters
    ----------
    inputs
        Inputs of the layer; it works in place if its output is one of them.
    output
        Output of the layer.
    values
        Tensor of the same shape.
    read
        Whether `values` is a copy of `output`; False if it replaces it.
    """
    if values.shape != output.shape:
        return values
    if output._is_view() and not any(output is one for one in inputs):
        return values.clone()
    try:
        # The backward pass of the layer may need its output, which copying equal values into it leaves unchanged.
        with torch.autograd._unsafe_preserve_version_counter(output) if read else nullcontext():
            output.copy_(values)
    except RuntimeError as error:
        if machine_fault(error):
            raise
        # PyTorch does not allow writing to this tensor, such as the images, so the network does not write to it either.
        return values.clone()
    return output


def _search(network: nn.Module, images: torch.Tensor, name: str | None, begins: bool = False) -> LayerInspection:
    """Find the layer by a pass and a gradient.

    With `begins`, gradients start at the outputs of modules, for networks that no gradient passes as a whole.
    """
    met: list[tuple[str, torch.Tensor]] = []
    maps: set[tuple[int, ...]] = set()
    inside = _inside_of_attention(network)
    # For each output and version of the tensor, the tensor and a copy, because later modules may change it in place.
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

    # `named_modules` lists a module that is registered twice only once, possibly not under `name`.
    modules = {name: find_layer(network, name, "model")} if name else dict(list(network.named_modules())[1:])
    handles = [
        module.register_forward_hook(keep(called)) for called, module in modules.items() if name or module not in inside
    ]
    try:
        # Counted as a check, so that the passes of an explainer do not depend on which explainer inspects layers first.
        with torch.enable_grad(), counted_as_check():
            logits = network(as_leaf(images))
    finally:
        for handle in handles:
            handle.remove()
    if not begins and isinstance(logits, torch.Tensor) and not logits.requires_grad:
        # Explainers that need no gradient, such as Score-CAM, can still read a layer of this network.
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
        # If there are as many channels as rows or columns, a later module may have exchanged the axes of torch's map.
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
    """Return the reason for which tokens are not located, with the remedy."""
    where = f" of the layer {layer!r}" if layer else ""
    return (
        f"which of the {tokens} tokens{where} are patches, and where these lie, does not show "
        "in what regions of an image move: set `num_prefix_tokens` on the model, or name another layer in cam_layer"
    )


def _inside_of_attention(network: nn.Module) -> set[nn.Module]:
    owners = [module for module in network.modules() if "attention" in type(module).__name__.lower()]
    # An outermost module with such a name is a complete block or network, unless it computes attention itself.
    inner = [one for one in owners if not any(two is not one and two in set(one.modules()) for two in owners)]
    return {module for owner in inner for module in owner.modules() if module is not owner}


def _outermost(met: list[tuple[str, torch.Tensor]]) -> list[tuple[str, torch.Tensor]]:
    """Return the outputs that can have cells, in the order of the pass.

    If several modules return the same tensor, the outermost one counts.
    """
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
        # All cells depend on the complete image, so the axes follow from the type of the module.
        axes = 2, 3
    if axes is None and len(possible) == 1:
        axes = possible[0]
    return None if axes is None else Layout(name, (tensor.shape[axes[0]], tensor.shape[axes[1]]), axes)

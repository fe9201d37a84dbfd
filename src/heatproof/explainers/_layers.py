"""Find the layer for class activation maps, and the grid of its output, in a network that does not name one.

The rule chooses the last module of a pass with these properties:

- its output is a feature map, with channels first or last, or tokens (N, T, C) of which h·w are patches;
- its grid has more than one cell;
- the logits depend on its cells. In a network with a class token, the patch tokens after the last block's attention are
  not read, so their gradients are zero;
- it is not inside an attention module;
- for a target function of outputs that still have positions, as in segmentation and detection, a convolution or a
  linear layer is between it and the outputs. Otherwise it is the outputs themselves.

`heatproof.explainers._tokens` finds which axes are rows and columns, and which tokens are patches.
"""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import nn

from heatproof.core.batch import Batch
from heatproof.core.hooks import counted_as_check, hooks_of
from heatproof.core.input_facts import InputFacts
from heatproof.core.layers import GridTap, find_layer
from heatproof.errors import HeatproofError, NotApplicable, machine_fault
from heatproof.explainers._batches import as_leaf, pad_single_image
from heatproof.explainers._cells import CellRecorder, Cells, follow_cells
from heatproof.explainers._hooks import in_this_thread, prefix_tokens
from heatproof.explainers._output_paths import OutputPaths
from heatproof.explainers._tokens import BandChanges, TokenGrid, measure_band_changes, noise_like

# Number of modules to examine from the end: more than a block has, because the logits may not depend on the last ones.
EXAMINED_MODULES = 60
# The outputs of these modules are (N, C, h, w) by definition.
FEATURE_MAP_MODULES = (nn.Conv2d, nn.BatchNorm2d, nn.MaxPool2d, nn.AvgPool2d, GridTap)


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
    is_chosen
        Whether the rule chose the layer; False if the model or the user named it.
    is_bypassed
        Whether a target function also depends on the images in ways that do not pass this layer, such as other scales.
    """

    name: str
    grid: tuple[int, int]
    axes: tuple[int, ...] | None = None
    cells: tuple[int, ...] = ()
    is_chosen: bool = True
    is_bypassed: bool = False

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
        named = "found by the rule" if self.is_chosen else "named"
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
    changes: BandChanges
    unlocated_reason: str = ""


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
    cache: dict[Any, LayerInspection] = {} if hooks is None else hooks.cache
    key = ("layout", tuple(images.shape[1:]), name)
    if key not in cache:
        cache[key] = _search_layer(network, noise_like(images), name)
    return cache[key]


def find_layout(network: nn.Module, images: torch.Tensor) -> Layout | None:
    """Return the layer for class activation maps and its layout; None if there is none.

    See `inspect_layers` for the parameters.
    """
    return inspect_layers(network, images).layout


def locate_attended_tokens(context: Batch, count: int) -> TokenGrid | None:
    """Return the positions in the image of the `count` tokens that attend to each other; None if they are unclear."""
    inspection = inspect_layers(context.network, pad_single_image(context).images)
    return inspection.changes.locate_attended_tokens(count, prefix_tokens(context.network))


class GridProbe(nn.Identity):
    """Module behind a layer, whose input and output are the layer's output as a feature map (N, C, h, w).

    Attributes
    ----------
    cells
        Where in the image the cells of the layer lie; None before the first pass, or where it cannot be followed.
    """

    cells: Cells | None = None


@contextmanager
def grid_layer(context: Batch, name: str | None = None) -> Iterator[tuple[nn.Module, GridProbe, str]]:
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
    probe = GridProbe().eval()
    recorder = CellRecorder(context.images.shape[2:])
    names_of_maps: list[str] = []

    def run(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> Any:
        if not isinstance(output, torch.Tensor):
            raise HeatproofError(describe_container(name, output, names_of_maps))
        nonlocal layout
        layout = _with_padded_tokens(layout, output, recorder)
        cells = recorder.locate(output, _grid_of(output, layout))
        probe.cells = probe.cells or cells
        return _run_probe(probe, inputs, output, layout)

    handle = layer.register_forward_hook(in_this_thread(run))
    try:
        with (
            _record_maps_below(layer, name, names_of_maps),
            _require_one_call(context.network, layer, name),
            follow_cells(context.network, recorder),
        ):
            yield _with_probe(context.output, probe), probe, name
    finally:
        handle.remove()


def _with_padded_tokens(layout: Layout, output: torch.Tensor, recorder: CellRecorder) -> Layout:
    """Return the layout with all rows and columns of tokens, if the network added some of them around the image.

    Tokens that read little but a padding hardly change with the image, so that they look like other tokens.
    """
    counts = recorder.counts(output)
    if layout.axes is not None or output.ndim != 3 or counts is None:
        return layout
    tokens = output.shape[1]
    if len(layout.cells) == tokens or math.prod(counts) != tokens:
        return layout
    return replace(layout, grid=counts, cells=tuple(range(tokens)))


@contextmanager
def _record_maps_below(layer: nn.Module, name: str, names_of_maps: list[str]) -> Iterator[None]:
    """Record the names of the submodules of a layer that put out feature maps, in the order of a pass."""

    def hook_of(path: str) -> Any:
        def record(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
            if getattr(output, "ndim", 0) == 4 and path not in names_of_maps:
                names_of_maps.append(path)

        return in_this_thread(record)

    paths = {f"{name}.{path}": module for path, module in layer.named_modules() if path}
    handles = [module.register_forward_hook(hook_of(path)) for path, module in paths.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def describe_container(name: str, output: Any, names_of_maps: Sequence[str]) -> str:
    """Return the sentence for a layer that does not put out one tensor, with the last outermost maps below it."""
    outer = [path for path in names_of_maps if path.rpartition(".")[0] not in names_of_maps]
    below = ", ".join(map(repr, outer[-3:]))
    remedy = f"name one below it, such as {below}" if below else "name another"
    kind = "several tensors" if isinstance(output, Mapping | list | tuple) else "no tensor"
    return f"The layer {name!r} puts out {kind} (a {type(output).__name__}), and a map needs one: {remedy}."


def _grid_of(output: Any, layout: Layout) -> tuple[int, int]:
    axes = layout.axes
    if axes is None or getattr(output, "ndim", 0) != 4:
        return layout.grid
    return output.shape[axes[0]], output.shape[axes[1]]


def _layout_of(context: Batch, name: str | None) -> Layout:
    # A named layer is read as it is; explainers raise an error if its output has no grid.
    unchanged = Layout(str(name), (0, 0), (2, 3), is_chosen=False)
    if name and _makes_maps(find_layer(context.network, name, "model")):
        return unchanged
    inspection = inspect_layers(context.network, pad_single_image(context).images, name)
    if inspection.layout is None and inspection.unlocated_reason:
        raise NotApplicable(inspection.unlocated_reason)
    if inspection.layout is None and name is None:
        raise NotApplicable("the model names no layer with a spatial grid, and none was found")
    if inspection.layout is not None and inspection.layout.is_bypassed:
        warnings.warn(
            f"Class activation maps read the layer {inspection.layout.name!r}, and the target also depends on the "
            "image in ways that do not pass this layer, such as other scales: name the layer that you mean in layer.",
            stacklevel=2,
        )
    return inspection.layout or unchanged


def _makes_maps(layer: nn.Module) -> bool:
    """Return whether a layer consists of torch's modules for feature maps, and activations."""
    leaves = [module for module in layer.modules() if not list(module.children())]
    maps = [isinstance(module, FEATURE_MAP_MODULES) for module in leaves]
    other_modules = [module for module, is_map in zip(leaves, maps, strict=True) if not is_map]
    return any(maps) and all(
        isinstance(module, nn.Identity | nn.ReLU | nn.GELU | nn.SiLU | nn.Dropout) for module in other_modules
    )


@contextmanager
def _require_one_call(network: nn.Module, layer: nn.Module, name: str) -> Iterator[None]:
    """Require that each pass calls a layer once; otherwise explainers would read only one of its outputs.

    For example, a network that averages over a flipped copy of the image would get the map of the flipped copy.
    """
    # One counter for a pass in progress; empty after it, when checkpointing calls layers again.
    calls: list[int] = []

    def count(*arguments: Any) -> None:
        if calls:
            calls[-1] += 1
            if calls[-1] > 1:
                raise NotApplicable(
                    f"the layer {name!r} is called several times in one pass: name another in cam_layer"
                )

    handles = [
        network.register_forward_pre_hook(in_this_thread(lambda *arguments: calls.append(0))),
        network.register_forward_hook(in_this_thread(lambda *arguments: calls.clear()), always_call=True),
        layer.register_forward_hook(in_this_thread(count)),
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _with_probe(network: nn.Module, probe: nn.Module) -> nn.Module:
    """Return a module with the output of the network that has the probe as a submodule, where libraries look for it.

    It is built of torch's modules, so that the traceback of an error in the network does not pass through this module.
    """
    holder = nn.Identity()
    holder.add_module("probe", probe)
    return nn.Sequential(network, holder).eval()


def _run_probe(probe: nn.Module, inputs: tuple[Any, ...], output: Any, layout: Layout) -> Any:
    copied = output.clone()
    if layout.axes is not None:
        (channels,) = {1, 2, 3} - set(layout.axes)
        order = (0, channels, *layout.axes)
        probe_input = copied if layout.axes == (2, 3) else copied.permute(order)
        probe_output = probe(probe_input)
        if probe_output is probe_input and probe_input is copied:
            values = probe_output
        else:
            values = probe_output.permute([order.index(axis) for axis in range(4)])
    else:
        cells = torch.tensor(layout.cells, device=output.device)
        probe_input = copied[:, cells].mT.unflatten(2, layout.grid)
        probe_output = probe(probe_input)
        values = copied.index_copy(1, cells, probe_output.flatten(2).mT)
    return _write_output(inputs, output, values, read=probe_output is probe_input)


def _write_output(
    inputs: tuple[Any, ...], output: torch.Tensor, values: torch.Tensor, read: bool = True
) -> torch.Tensor:
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
    if output._is_view() and not any(output is value for value in inputs):
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


def _search_layer(
    network: nn.Module, images: torch.Tensor, name: str | None, starts_at_outputs: bool = False
) -> LayerInspection:
    """Find the layer by a pass and a gradient.

    With `starts_at_outputs`, gradients start at the outputs of modules, for networks without a gradient.
    """
    outputs_by_name: list[tuple[str, torch.Tensor]] = []
    feature_map_shapes: set[tuple[int, ...]] = set()
    inside = _inside_of_attention(network)
    # For each output and version of the tensor, the tensor and a copy, because later modules may change it in place.
    copies: dict[tuple[int, int], tuple[torch.Tensor, torch.Tensor]] = {}

    def hook_of(layer_name: str) -> Any:
        def hook(module: nn.Module, inputs: Any, output: Any) -> Any:
            if not isinstance(output, torch.Tensor) or not output.is_floating_point() or len(output) != len(images):
                return None
            if not (output.requires_grad or starts_at_outputs):
                return None
            returned = output
            if (id(output), output._version) not in copies:
                copied = output.clone()
                copied = copied if copied.requires_grad else copied.detach().requires_grad_()
                returned = _write_output(inputs, output, copied)
                copies[id(returned), returned._version] = (returned, copied)
            outputs_by_name.append((layer_name, copies[id(returned), returned._version][1]))
            if isinstance(module, FEATURE_MAP_MODULES):
                feature_map_shapes.add(tuple(output.shape))
            return returned

        return in_this_thread(hook)

    # `named_modules` lists a module that is registered twice only once, possibly not under `name`.
    modules = {name: find_layer(network, name, "model")} if name else dict(list(network.named_modules())[1:])
    handles = [
        module.register_forward_hook(hook_of(layer_name))
        for layer_name, module in modules.items()
        if name or module not in inside
    ]
    paths, leaf = OutputPaths(network), as_leaf(images)
    try:
        # Counted as a check, so that the passes of an explainer do not depend on which explainer inspects layers first.
        with torch.enable_grad(), counted_as_check(), paths:
            logits = network(leaf)
    finally:
        for handle in handles:
            handle.remove()
    if not starts_at_outputs and isinstance(logits, torch.Tensor) and not logits.requires_grad:
        # Explainers that need no gradient, such as Score-CAM, can still read a layer of this network.
        return _search_layer(network, images, name, starts_at_outputs=True)
    calls = Counter(layer_name for layer_name, _ in outputs_by_name)
    outputs = _outermost([item for item in outputs_by_name if name or calls[item[0]] == 1])[-EXAMINED_MODULES:]
    changes = measure_band_changes(network, images, {layer_name: modules[layer_name] for layer_name, _ in outputs})
    if not outputs or not isinstance(logits, torch.Tensor) or not logits.requires_grad:
        return LayerInspection(None, changes)
    declared, unlocated_reason = prefix_tokens(network), ""
    tensors = [tensor for _, tensor in outputs]
    gradients = torch.autograd.grad(logits.logsumexp(-1).sum(), tensors, allow_unused=True)
    paths.follow(logits)
    for (layer_name, tensor), gradient in zip(reversed(outputs), reversed(gradients), strict=True):
        if not name and (gradient is None or not bool((gradient != 0).any())):
            continue
        if not name and paths.are_outputs(tensor):
            continue
        # If there are as many channels as rows or columns, a later module may have exchanged the axes of torch's map.
        is_map = tuple(tensor.shape) in feature_map_shapes and (
            isinstance(modules[layer_name], FEATURE_MAP_MODULES) or tensor.shape[1] not in tensor.shape[2:]
        )
        layout = _lay_out(layer_name, tensor, changes, declared, is_map)
        if layout is None and tensor.ndim == 3:
            unlocated_reason = unlocated_reason or describe_unlocated_tokens(tensor.shape[1], layer_name)
        elif layout and (name or layout.axes or bool((gradient[:, list(layout.cells)] != 0).any())):
            is_bypassed = not name and paths.bypass(tensor, logits, leaf)
            return LayerInspection(replace(layout, is_chosen=not name, is_bypassed=is_bypassed), changes)
    return LayerInspection(None, changes, unlocated_reason)


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
    inner = [
        outer
        for outer in owners
        if not any(module is not outer and module in set(outer.modules()) for module in owners)
    ]
    return {module for owner in inner for module in owner.modules() if module is not owner}


def _outermost(outputs: list[tuple[str, torch.Tensor]]) -> list[tuple[str, torch.Tensor]]:
    """Return the outputs that can have cells, in the order of the pass.

    If several modules return the same tensor, the outermost one counts.
    """
    outermost: dict[int, tuple[str, torch.Tensor]] = {}
    for name, tensor in outputs:
        cells = math.prod(tensor.shape[2:]) if tensor.ndim == 4 else tensor.shape[1] if tensor.ndim == 3 else 0
        previous = outermost.get(id(tensor))
        if cells > 1 and (previous is None or name.count(".") < previous[0].count(".")):
            outermost[id(tensor)] = (name, tensor)
    return list(outermost.values())


def _lay_out(
    name: str, tensor: torch.Tensor, changes: BandChanges, declared: int | None, is_map: bool
) -> Layout | None:
    if name not in changes.layers:
        return None
    if tensor.ndim == 3:
        token_grid = changes.locate_tokens(tensor.shape[1], changes.layers[name][1,], declared)
        return None if token_grid is None else Layout(name, token_grid.grid, cells=token_grid.cells)
    axes = changes.locate_map_axes(name)
    candidates = list(changes.layers[name])
    if axes is None and is_map and (2, 3) in candidates:
        # All cells depend on the complete image, so the axes follow from the type of the module.
        axes = 2, 3
    if axes is None and len(candidates) == 1:
        axes = candidates[0]
    return None if axes is None else Layout(name, (tensor.shape[axes[0]], tensor.shape[axes[1]]), axes)

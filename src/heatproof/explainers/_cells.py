"""Where in the image the cells of a layer, or the patch tokens of a network, lie.

A mode follows the images through the functions that a network calls in a pass, and notes for each tensor, along the
height and along the width: the number of cells, their stride in pixels, the pixel where the first cell begins, and the
pixels that the cells read. Convolutions, pools, paddings, crops and slices change these; other functions pass on those
of their inputs. Cells are enlarged bilinearly at these positions. The first and last cells extend to the border of the
pixels that are read, and a pixel that no cell reads is 0.

If the path to a tensor cannot be followed, such as through a scripted module, the grid is stretched over the image.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

from heatproof.explainers._hooks import in_this_thread, tensors_in


@dataclass(frozen=True)
class AxisCells:
    """Cells along one axis of the image, in pixels.

    Attributes
    ----------
    count
        Number of cells.
    stride
        Distance of two neighbours, which is also the extent of a cell.
    start
        Pixel where the first cell begins; negative in a padding.
    field_start, field
        Begin and extent of the pixels that the first cell reads; beyond the borders of earlier layers, these are
        paddings.
    limits
        Begin and end of the pixels that earlier layers read.
    before_padding
        The cells before a padding that no window has read yet; None without one.
    """

    count: int
    stride: float = 1.0
    start: float = 0.0
    field_start: float = 0.0
    field: float = 1.0
    limits: tuple[float, float] = (-math.inf, math.inf)
    before_padding: AxisCells | None = None

    @property
    def read(self) -> tuple[float, float]:
        """First pixel that any of the cells reads, and the end of the last one."""
        end = self.field_start + (self.count - 1) * self.stride + self.field
        return max(self.field_start, self.limits[0]), min(end, self.limits[1])

    def slide(self, count: int, kernel: int, stride: int, padding: int, dilation: int = 1) -> AxisCells:
        """Return the cells that windows over these cells make, as in a convolution or a pool.

        Windows with strides that divide the cells make cells that cover the same pixels, although the windows' centres
        may be off by half a cell. Otherwise, a cell lies around the centre of its window.
        """
        extent = dilation * (kernel - 1) + 1
        unpadded = self.before_padding or self
        # Paddings before the first and after the last cell; a padding of its own kind counts as the window's.
        first = round((unpadded.start - self.start) / self.stride)
        last = self.count - unpadded.count - first
        unread = self.count + 2 * padding - ((count - 1) * stride + extent)
        start = self.start + (extent / 2 - padding - stride / 2) * self.stride
        if count * stride == unpadded.count and unread <= last + padding:
            start = unpadded.start
        elif count * stride == self.count and unread <= padding:
            start = self.start
        return AxisCells(
            count,
            self.stride * stride,
            start,
            self.field_start - padding * self.stride,
            self.field + (extent - 1) * self.stride,
            self.read,
        )

    def pad(self, first: int, last: int) -> AxisCells:
        """Return the cells with a padding, or with a crop where a number is negative."""
        padded = self.narrow(-first, self.count + first + last)
        return replace(padded, before_padding=self.before_padding or self) if first >= 0 and last >= 0 else padded

    def narrow(self, start: int, count: int, step: int = 1) -> AxisCells:
        """Return `count` of the cells from `start` on; with a step, cells between are read by the one before."""
        # Slices of a space-to-depth rearrangement start at the first or the second cell of the same cell.
        first = start // step * step
        return AxisCells(
            count,
            self.stride * step,
            self.start + first * self.stride,
            self.field_start + first * self.stride,
            self.field + (step - 1) * self.stride,
            self.read,
        )

    def rescale(self, count: int) -> AxisCells:
        """Return the same pixels divided into another number of cells."""
        if count == self.count:
            return self
        ratio = self.count / count
        stride = self.stride * ratio
        field = self.field + (self.count - 1) * self.stride - (count - 1) * stride
        return AxisCells(count, stride, self.start, self.field_start, max(stride, field), self.read)

    def merge(self, other: AxisCells) -> AxisCells:
        """Return the cells of a sum of tensors: those of the branch that reads more, and all that is read."""
        wider = self if self.field >= other.field else other
        first, end = min(self.read[0], other.read[0]), max(self.read[1], other.read[1])
        # The field must contain both, because it bounds what is read.
        start = min(self.field_start, other.field_start)
        fields_end = max(cells.field_start + cells.field for cells in (self, other))
        return replace(wider, field_start=start, field=fields_end - start, limits=(first, end))

    def weights(self, length: int) -> torch.Tensor:
        """Return the share (length, cells) of each cell in each pixel."""
        pixels = torch.arange(length, dtype=torch.float64) + 0.5
        positions = ((pixels - self.start) / self.stride - 0.5).clamp(0, self.count - 1)
        shares = (1 - (positions[:, None] - torch.arange(self.count)).abs()).clamp(min=0)
        first, end = self.read
        return shares * ((pixels > first) & (pixels < end))[:, None]

    def covers(self, length: int) -> bool:
        """Return whether the cells divide the image, and all of it is read."""
        first, end = self.read
        return self.start == 0 and self.count * self.stride == length and first <= 0 and end >= length


Cells = tuple[AxisCells, AxisCells]


def enlarge(values: torch.Tensor, size: Sequence[int], cells: Cells | None) -> torch.Tensor:
    """Enlarge the values of cells to the size of the image, bilinearly.

    Parameters
    ----------
    values
        (N, C, h, w).
    size
        Height and width of the image.
    cells
        Where the cells lie; None stretches them over the image.

    Returns
    -------
    torch.Tensor
        (N, C, H, W).
    """
    size = (int(size[0]), int(size[1]))
    if cells is None or all(axis.covers(length) for axis, length in zip(cells, size, strict=True)):
        return nn.functional.interpolate(values, size, mode="bilinear", align_corners=False)
    # Pooled values are fewer than the cells, and lie over the same pixels.
    counts = (int(values.shape[2]), int(values.shape[3]))
    pooled = [axis.rescale(count) for axis, count in zip(cells, counts, strict=True)]
    rows, columns = (axis.weights(length).to(values) for axis, length in zip(pooled, size, strict=True))
    return rows @ values @ columns.mT


class CellRecorder(TorchFunctionMode):
    """Mode that follows the cells of images through a pass.

    Parameters
    ----------
    size
        Height and width of the images that are explained.
    """

    def __init__(self, size: Sequence[int]) -> None:
        super().__init__()
        self.size = (int(size[0]), int(size[1]))
        self._cells: Any = WeakTensorKeyDictionary()

    def follow(self, images: torch.Tensor) -> torch.Tensor:
        """Follow images (N, C, H, W), which a network may get in another size, and return them."""
        if images.ndim == 4:
            counts = int(images.shape[2]), int(images.shape[3])
            height, width = (length / count for length, count in zip(self.size, counts, strict=True))
            self._cells[images] = (
                AxisCells(counts[0], stride=height, field=height),
                AxisCells(counts[1], stride=width, field=width),
            )
        return images

    def locate(self, tensor: Any, grid: Sequence[int]) -> Cells | None:
        """Return where the cells of a tensor lie; None if it was not followed, or has another grid."""
        cells: Cells | None = self._cells.get(tensor) if isinstance(tensor, torch.Tensor) else None
        # An output without rows and columns has a grid of zeros.
        if cells is None or any(not count or axis.count % int(count) for axis, count in zip(cells, grid, strict=True)):
            return None
        # Functions such as reshape made several cells to one.
        return cells[0].rescale(int(grid[0])), cells[1].rescale(int(grid[1]))

    def counts(self, tensor: torch.Tensor) -> tuple[int, int] | None:
        """Return the numbers of rows and columns of a tensor's cells; None if it was not followed."""
        cells: Cells | None = self._cells.get(tensor)
        return None if cells is None else (cells[0].count, cells[1].count)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Call the function, and note the cells of what it returns."""
        keywords = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if name in ("size", "dim", "__len__"):
            return func(*args, **keywords)
        inputs = [self._cells[value] for value in tensors_in([*args, *keywords.values()]) if value in self._cells]
        output = func(*args, **keywords)
        if name == "__iter__":
            parts = list(output)
            self._cells.update(dict.fromkeys(parts, inputs[0]) if inputs else {})
            return iter(parts)
        if inputs:
            results = [value for value in tensors_in([output]) if value.ndim > 1]
            for value in results:
                self._cells[value] = self._cells_after(name, args, keywords, inputs, value)
        return output

    def _cells_after(
        self, name: str, args: tuple[Any, ...], keywords: dict[str, Any], inputs: list[Cells], output: torch.Tensor
    ) -> Cells:
        tensor = args[0] if args else keywords.get("input")
        cells = self._cells.get(tensor) if isinstance(tensor, torch.Tensor) else None
        rule = RULES.get(name)
        if rule is not None and isinstance(tensor, torch.Tensor) and cells is not None:
            axes = _axes_of(tensor, cells)
            if axes is not None:
                followed = tuple(axis.rescale(tensor.shape[index]) for axis, index in zip(cells, axes, strict=True))
                return rule((followed[0], followed[1]), axes, args, keywords, output)
        merged = inputs[0]
        for more in inputs[1:]:
            merged = (_merge(merged[0], more[0]), _merge(merged[1], more[1]))
        return merged


def _merge(first: AxisCells, second: AxisCells) -> AxisCells:
    if first == second:
        return first
    if first.count != second.count or first.stride != second.stride:
        # One is pooled, as in a gate of channels or the keys of attention.
        return first if first.count >= second.count else second
    return first.merge(second)


def _axes_of(tensor: torch.Tensor, cells: Cells) -> tuple[int, int] | None:
    """Return the axes of rows and columns in a tensor of four axes; None if its shape is not that of the cells."""
    if tensor.ndim != 4:
        return None
    counts = cells[0].count, cells[1].count
    for axes in ((2, 3), (1, 2)):
        shape = tensor.shape[axes[0]], tensor.shape[axes[1]]
        if shape == counts:
            return axes
    for axes in ((2, 3), (1, 2)):
        shape = tensor.shape[axes[0]], tensor.shape[axes[1]]
        if all(number and count % number == 0 for count, number in zip(counts, shape, strict=True)):
            return axes
    return None


def _pair(value: Any) -> tuple[Any, Any]:
    values = tuple(value) if isinstance(value, list | tuple) else (value, value)
    return (values[0], values[0]) if len(values) == 1 else (values[0], values[1])


def _argument(args: tuple[Any, ...], keywords: Mapping[str, Any], position: int, name: str, default: Any) -> Any:
    value = args[position] if len(args) > position else keywords.get(name, default)
    return default if value is None or (isinstance(value, list | tuple) and not value) else value


Rule = Callable[[Cells, tuple[int, int], tuple[Any, ...], Mapping[str, Any], torch.Tensor], Cells]


def _convolve(
    cells: Cells, axes: tuple[int, int], args: tuple[Any, ...], keywords: Mapping[str, Any], output: torch.Tensor
) -> Cells:
    kernel = _argument(args, keywords, 1, "weight", None).shape[2:]
    stride, dilation = (_pair(_argument(args, keywords, *which, 1)) for which in ((3, "stride"), (5, "dilation")))
    padding = _argument(args, keywords, 4, "padding", 0)
    if isinstance(padding, str):
        is_same = padding == "same"
        padding = [width * (side - 1) // 2 if is_same else 0 for width, side in zip(dilation, kernel, strict=True)]
    return _slide(cells, output, kernel, stride, _pair(padding), dilation)


def _pool(
    cells: Cells, axes: tuple[int, int], args: tuple[Any, ...], keywords: Mapping[str, Any], output: torch.Tensor
) -> Cells:
    kernel = _pair(_argument(args, keywords, 1, "kernel_size", 1))
    stride = _pair(_argument(args, keywords, 2, "stride", kernel))
    return _slide(cells, output, kernel, stride, _pair(_argument(args, keywords, 3, "padding", 0)), (1, 1))


def _slide(
    cells: Cells, output: torch.Tensor, kernel: Sequence[int], stride: Sequence[int], padding: Any, dilation: Any
) -> Cells:
    rows, columns = (
        cells[axis].slide(int(output.shape[2 + axis]), kernel[axis], stride[axis], padding[axis], dilation[axis])
        for axis in (0, 1)
    )
    return rows, columns


def _unfold(
    cells: Cells, axes: tuple[int, int], args: tuple[Any, ...], keywords: Mapping[str, Any], output: torch.Tensor
) -> Cells:
    """Follow `torch.nn.functional.unfold`, whose output has one axis for all windows."""
    values = [
        _pair(_argument(args, keywords, position, name, default))
        for position, name, default in (
            (1, "kernel_size", 1),
            (2, "dilation", 1),
            (3, "padding", 0),
            (4, "stride", 1),
        )
    ]
    windows = []
    for axis, kernel, dilation, padding, stride in zip(cells, *values, strict=True):
        count = (axis.count + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
        windows.append(axis.slide(count, kernel, stride, padding, dilation))
    return windows[0], windows[1]


def _pad(
    cells: Cells, axes: tuple[int, int], args: tuple[Any, ...], keywords: Mapping[str, Any], output: torch.Tensor
) -> Cells:
    widths = list(_argument(args, keywords, 1, "pad", [0]))
    padded = []
    for axis, index in zip(cells, axes, strict=True):
        position = 2 * (3 - index)
        first, last = widths[position : position + 2] if len(widths) > position + 1 else (0, 0)
        padded.append(axis.pad(first, last) if first or last else axis)
    return padded[0], padded[1]


def _slice(
    cells: Cells, axes: tuple[int, int], args: tuple[Any, ...], keywords: Mapping[str, Any], output: torch.Tensor
) -> Cells:
    index = args[1] if isinstance(args[1], tuple) else (args[1],)
    if Ellipsis in [part for part in index if not isinstance(part, torch.Tensor)]:
        split = index.index(Ellipsis)
        index = (*index[:split], *[slice(None)] * (5 - len(index)), *index[split + 1 :])
    if any(not isinstance(part, slice) for part in index):
        return cells
    sliced = list(cells)
    for axis, position in enumerate(axes):
        if position < len(index):
            start, stop, step = index[position].indices(cells[axis].count)
            count = len(range(start, stop, step))
            if (start, count, step) != (0, cells[axis].count, 1) and count:
                sliced[axis] = cells[axis].narrow(start, count, step)
    return sliced[0], sliced[1]


def _narrow(
    cells: Cells, axes: tuple[int, int], args: tuple[Any, ...], keywords: Mapping[str, Any], output: torch.Tensor
) -> Cells:
    dim, start = _argument(args, keywords, 1, "dim", 0) % 4, int(_argument(args, keywords, 2, "start", 0))
    narrowed = [
        axis.narrow(start % (axis.count or 1), int(output.shape[dim])) if index == dim else axis
        for axis, index in zip(cells, axes, strict=True)
    ]
    return narrowed[0], narrowed[1]


def _resize(
    cells: Cells, axes: tuple[int, int], args: tuple[Any, ...], keywords: Mapping[str, Any], output: torch.Tensor
) -> Cells:
    return cells[0].rescale(int(output.shape[2])), cells[1].rescale(int(output.shape[3]))


# By the name of a function; each has the tensor as its first argument.
RULES: dict[str, Rule] = {
    "conv2d": _convolve,
    "max_pool2d": _pool,
    "max_pool2d_with_indices": _pool,
    "avg_pool2d": _pool,
    "lp_pool2d": lambda cells, axes, args, keywords, output: _pool(cells, axes, (args[0], *args[2:]), keywords, output),
    "unfold": _unfold,
    "pad": _pad,
    "__getitem__": _slice,
    "narrow": _narrow,
    **dict.fromkeys(
        (
            "adaptive_avg_pool2d",
            "adaptive_max_pool2d",
            "adaptive_max_pool2d_with_indices",
            "interpolate",
            "pixel_shuffle",
            "pixel_unshuffle",
            "conv_transpose2d",
        ),
        _resize,
    ),
}


@contextmanager
def follow_cells(network: nn.Module, recorder: CellRecorder) -> Iterator[CellRecorder]:
    """Follow the cells in the first pass of a network within a with statement."""
    began: list[bool] = []

    def begin(*arguments: Any) -> None:
        if not began:
            recorder.__enter__()
        began.append(True)

    def end(*arguments: Any) -> None:
        if len(began) == 1:
            recorder.__exit__(None, None, None)
            began.append(False)

    handles = [
        network.register_forward_pre_hook(in_this_thread(begin)),
        network.register_forward_hook(in_this_thread(end), always_call=True),
    ]
    try:
        with follow_inputs(network, recorder):
            yield recorder
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def follow_inputs(network: nn.Module, recorder: CellRecorder) -> Iterator[CellRecorder]:
    """Follow the images that a network gets within a with statement; the caller enters the recorder."""

    def follow(module: nn.Module, inputs: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        for value in tensors_in([*inputs, *keywords.values()]):
            recorder.follow(value)

    handle = network.register_forward_pre_hook(in_this_thread(follow), with_kwargs=True)
    try:
        yield recorder
    finally:
        handle.remove()

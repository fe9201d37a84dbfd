"""Find which part of the image each token of a network, or each cell of a feature map, stands for.

The rule: bands of an image of noise are replaced, one at a time, and what they move tells. A row of patches is moved by
the bands that cross it; a class token or a register is moved by none, or by all of them alike. Of all readings of T
tokens as rows × columns of patches beside a few others, that one counts which explains the changes best. What divides
T, and the image's shape, decide nothing.

Where no tokens have met yet, as in a patch embedding, what moves is exact; later tensors with as many tokens keep that
reading unless their own changes contradict it. Where all tokens are mixed already, the size of the changes tells.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.overrides import TorchFunctionMode

from heatproof.attribution._hooks import in_this_thread
from heatproof.models.adapter import counted_as_check

Array = NDArray[Any]

# Of the noise, in units of normalised images.
WIDEST = 2.0
# Images in a pass: that of noise, and the copy.
PAIR = 2
# In which the image is cut along its height, and along its width.
BANDS = 7
# Tokens that are no patches though something moves them: a class token, one for distillation, and registers.
MOST_OTHERS = 16
# Parts of the changes, each with its place in the image, that a reading has to explain: of tokens by itself, of a
# feature map, and of later tokens where the reading is that of earlier ones. Over 20 architectures of timm with random
# weights, right readings explain 0.35 to 1, 0.06 to 1 and 0.35 to 1; of channels taken for places, less than 0.01.
OF_TOKENS, OF_MAP, OF_LATER = 0.5, 0.05, 0.02
# Of the changes along each side, where no tokens have met: of rows read to and fro, columns explain 0.1 to 0.36.
OF_SIDE = 0.4
# By what part of its own the best reading has to explain more than the second.
MARGIN = 0.02
# Part of what the best reading explains that one of earlier tokens may explain and be kept.
KEPT = 0.5
# What is explained by chance is 1 over the number of changes; a reading explains at least so many times as much.
CHANCE = 10
# Part of pairs of a patch and a band that do not move each other where no tokens have met.
UNMIXED = 0.25
# Functions between tokens, and the axis of the tokens in their first argument.
ATTENTION = {"softmax": -1, "scaled_dot_product_attention": -2, "multi_head_attention_forward": 0}
# Rounding, in steps of the precision, that is no change.
STEPS = 8


@dataclass(frozen=True)
class TokenGrid:
    """Where the tokens, or the positions of a feature map, lie in the image.

    Attributes
    ----------
    grid
        Rows and columns.
    cells
        Index of the token of each cell, row by row.
    """

    grid: tuple[int, int]
    cells: tuple[int, ...]


@dataclass
class BandChanges:
    """What each band of the image moves in one pass.

    Attributes
    ----------
    size
        Height and width of the image.
    layers
        By name of the module: the squared change (bands, positions…) for each pair of axes of its output that can be
        rows and columns, summed over the other; of tokens, the key is (1,).
    tokens
        By number of tokens, (bands, tokens): of the tensor of the pass in which most tokens and bands do not move each
        other.
    attended
        By number of tokens, (bands, tokens): of the last tensor before the first attention between so many.
    """

    size: tuple[int, int]
    layers: dict[str, dict[tuple[int, ...], Array]] = field(default_factory=dict)
    tokens: dict[int, Array] = field(default_factory=dict)
    attended: dict[int, Array] = field(default_factory=dict)

    def locate_attended_tokens(self, count: int, declared: int | None = None) -> TokenGrid | None:
        """Return where the tokens lie between which there is attention, as `locate_tokens` does."""
        return self.locate_tokens(count, self.attended.get(count), declared)

    def locate_tokens(self, count: int, own: Array | None = None, declared: int | None = None) -> TokenGrid | None:
        """Return where tokens lie; None where that is open.

        Parameters
        ----------
        count
            Number of tokens.
        own
            What moves them in the tensor that is read, (bands, tokens); None for any with so many.
        declared
            Number of tokens before the patches that the network says: a claim, which counts where nothing else tells.
        """
        first = self.tokens.get(count)
        own = first if own is None else own
        if own is None:
            return None
        spread = _Spread(own, self.size)
        candidates = spread.ranked()
        if first is not None and own is not first:
            earlier = _Spread(first, self.size)
            ranked = earlier.ranked()
            known = _clearest(ranked, OF_TOKENS)
            if earlier.is_unmixed and ranked and not ranked[0].is_on_both_sides and not spread.is_unmixed:
                # What is exact lies on no grid, so that mixed changes show none.
                return None
            least = max(OF_LATER, spread.chance, KEPT * candidates[0].explained) if candidates else 0
            # They can have been put in another order.
            least = OF_TOKENS if spread.is_unmixed else least
            if known and candidates and spread.judge(known.grid, known.cells).explained >= least:
                return known
        clear = _clearest(candidates, OF_TOKENS)
        if clear or declared is None or spread.is_unmixed:
            return clear
        return _clearest(spread.ranked(declared), OF_LATER) or _square_patches(count, declared, self.size)

    def locate_map_axes(self, name: str) -> tuple[int, ...] | None:
        """Return the axes of rows and columns in a module's output of four; None where that is open."""
        found = []
        for axes, change in self.layers[name].items():
            shape = change.shape[1:]
            positions = np.arange(shape[0] * shape[1]).reshape(shape)
            spread = _Spread(change.reshape(len(change), -1), self.size)
            for order, cells in ((axes, positions), (axes[::-1], positions.T)):
                high, wide = map(int, cells.shape)
                judged = spread.judge((high, wide), cells.flatten())
                if judged.is_on_both_sides and judged.explained >= max(OF_MAP, spread.chance):
                    found.append((sum(judged.sides) / cells.size, order))
        found.sort(reverse=True)
        stands_out = len(found) == 1 or (found and found[1][0] <= (1 - MARGIN) * found[0][0])
        return found[0][1] if stands_out else None


def measure_band_changes(network: nn.Module, images: torch.Tensor, modules: Mapping[str, nn.Module]) -> BandChanges:
    """Pass an image of noise beside a copy in which one band is replaced, for each band, and return what they move.

    In pairs, as no batch is smaller: a network may take as much memory as there is.

    Parameters
    ----------
    network
        Images to logits.
    images
        (N, C, H, W), of whose size the noise is.
    modules
        Those whose outputs are read, by name.
    """
    moved, (base, *banded) = BandChanges((images.shape[2], images.shape[3])), _banded(images)
    layers: dict[tuple[str, tuple[int, ...]], list[Array]] = {}

    def keep(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            if isinstance(output, torch.Tensor) and output.ndim in (3, 4) and len(output) == PAIR:
                for axes, change in _changes(output, moved.size):
                    layers.setdefault((name, axes), []).append(change)

        return in_this_thread(hook)

    handles = [module.register_forward_hook(keep(name)) for name, module in modules.items()]
    passes = []
    try:
        # As a check: which explainer asks first, also after a kill, counts no more passes.
        with torch.no_grad(), counted_as_check():
            for one in banded:
                with _Tokens() as mode:
                    network(torch.stack([base, one]))
                passes.append(mode.steps)
    finally:
        for handle in handles:
            handle.remove()
    for (name, axes), changes in layers.items():
        if len(changes) == len(banded) and len({each.shape for each in changes}) == 1:
            moved.layers.setdefault(name, {})[axes] = np.concatenate(changes)
    _add_tokens(moved, passes)
    return moved


def _add_tokens(moved: BandChanges, passes: Sequence[Sequence[tuple[int, Array | None]]]) -> None:
    """Add what moves tokens: of the tensor in which most of them are not moved, and of the one before attention."""
    still: dict[int, float] = {}
    last: dict[int, Array] = {}
    for steps in zip(*passes, strict=False):
        counts, changes = {count for count, _ in steps}, [change for _, change in steps if change is not None]
        (count, *others) = counts
        if others:
            # What it computes depends on what the image shows.
            return
        if not changes:
            if count in last:
                moved.attended.setdefault(count, last[count])
            continue
        change = np.concatenate(changes)
        share = float((change == 0).mean())
        if share < 1:
            last[count] = change
        if still.get(count, -1.0) < share < 1:
            still[count], moved.tokens[count] = share, change


class _Tokens(TorchFunctionMode):
    """Mode that keeps the number of tokens and what has changed of each, and None for the change at attention."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[tuple[int, Array | None]] = []

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Look at tokens that a function returns."""
        attends = ATTENTION.get(getattr(func, "__name__", "").strip("_"))
        if attends is not None and args and args[0].ndim > 2:
            self.steps.append((args[0].shape[attends], None))
        output = func(*args, **(kwargs or {}))
        for one in output if isinstance(output, tuple | list) else (output,):
            if isinstance(one, torch.Tensor) and one.ndim == 3 and one.is_floating_point():
                self._look(one)
        return output

    def _look(self, tensor: torch.Tensor) -> None:
        if len(tensor) != PAIR and tensor.shape[1] == PAIR:
            # Some libraries have tokens first.
            tensor = tensor.transpose(0, 1)
        if len(tensor) == PAIR and tensor.shape[1] > 1:
            self.steps.append((tensor.shape[1], _change(tensor, 2)))


def _cuts(length: int) -> list[int]:
    bands = min(BANDS, length)
    return [round(index * length / bands) for index in range(bands + 1)]


def noise_like(images: torch.Tensor) -> torch.Tensor:
    """Return two images of noise (2, C, H, W), the same for all images (N, C, H, W) of one size.

    What images show, a blank one too, decides nothing then. The noise is as wide as images that are normalised.
    """
    shape, generator = (2, *images.shape[1:]), torch.Generator().manual_seed(0)
    drawn = torch.rand(shape, generator=generator, dtype=torch.float64)
    return (drawn * 2 * WIDEST - WIDEST).to(images)


def _banded(images: torch.Tensor) -> torch.Tensor:
    """Return an image of noise, and copies of which one band each has other noise: of rows, then of columns."""
    base, other = noise_like(images)
    made = [base]
    for axis in (1, 2):
        cuts = _cuts(images.shape[axis + 1])
        for start, stop in itertools.pairwise(cuts):
            one = base.clone()
            one.narrow(axis, start, stop - start).copy_(other.narrow(axis, start, stop - start))
            made.append(one)
    return torch.stack(made)


def _change(tensor: torch.Tensor, channels: int) -> Array:
    """Return the squared change from the first image, summed over channels; 0 where it is rounding."""
    least = STEPS * torch.finfo(tensor.dtype).eps
    values = tensor.detach().to(torch.float64 if tensor.dtype == torch.float64 else torch.float32)
    # A channel that is not finite hides no other.
    change = (values[1:] - values[:1]).nan_to_num(0, 0, 0).square().sum(channels)
    change = change * (change > least**2 * values[:1].nan_to_num(0, 0, 0).square().sum(channels))
    return change.cpu().double().nan_to_num(0, 0, 0).numpy()


def _changes(output: torch.Tensor, size: tuple[int, int]) -> Iterator[tuple[tuple[int, ...], Array]]:
    if output.ndim == 3:
        yield (1,), _change(output, 2)
        return
    for channels, rows, columns in ((1, 2, 3), (3, 1, 2), (2, 1, 3)):
        shape = output.shape[rows], output.shape[columns]
        # No grid is finer than the image.
        if shape[0] * shape[1] > 1 and (_is_within(shape, size) or _is_within(shape[::-1], size)):
            yield (rows, columns), _change(output, channels)


def _is_within(grid: tuple[int, int], size: tuple[int, int]) -> bool:
    return grid[0] <= size[0] and grid[1] <= size[1]


@dataclass(frozen=True)
class _Judged(TokenGrid):
    """A reading, the part of all changes with a place that it explains, and how much of them along each side.

    Along both sides it has to be more than chance.
    """

    explained: float
    sides: tuple[float, float]
    is_on_both_sides: bool


class _Spread:
    """How the changes of each token are spread over the bands, beside how those of all are."""

    def __init__(self, change: Array, size: tuple[int, int]) -> None:
        self.size, self.count, bands = size, change.shape[1], len(_cuts(size[0])) - 1
        self.moving = np.flatnonzero(change.sum(0) > 0)
        moving = change[:, self.moving]
        self.is_unmixed = bool(moving.size) and float((moving == 0).mean()) > UNMIXED
        parts = [moving[:bands], moving[bands:]]
        shares = [part / np.maximum(part.sum(0), np.finfo(float).tiny) for part in parts]
        self.located = [share - share.mean(1, keepdims=True) for share in shares] if moving.size else []
        self.norms = [float((one**2).sum()) for one in self.located]
        self.norm, changes = sum(self.norms), [max(one.size - len(one) - one.shape[1], 1) for one in self.located]
        self.chances = [CHANCE / count for count in changes]
        self.chance = CHANCE / max(sum(changes), 1)
        self._agreement: dict[tuple[int, int], tuple[Array, float]] = {}

    def agreement(self, axis: int, cells: int) -> tuple[Array, float]:
        """Return how moving tokens agree with each of so many rows or columns, (cells, tokens), and the squares."""
        if (axis, cells) not in self._agreement:
            cuts, edges = np.array(_cuts(self.size[axis])), np.linspace(0, self.size[axis], cells + 1)
            ends = np.minimum(cuts[1:, None], edges[1:]), np.maximum(cuts[:-1, None], edges[:-1])
            inside = (ends[0] - ends[1]).clip(0) * cells / self.size[axis]
            inside -= inside.mean(1, keepdims=True)
            squares = float((inside**2).sum()) if cells > 1 else np.inf
            self._agreement[axis, cells] = inside.T @ self.located[axis], squares
        return self._agreement[axis, cells]

    def explain(self, grid: tuple[int, int], rows: Array, columns: Array, tokens: Array) -> tuple[float, float]:
        """Return what is explained along each side where moving tokens lie in these rows and columns."""
        of_rows, of_columns = self.agreement(0, grid[0]), self.agreement(1, grid[1])
        high = max(float(of_rows[0][rows, tokens].sum()), 0.0)
        wide = max(float(of_columns[0][columns, tokens].sum()), 0.0)
        return high**2 / (of_rows[1] * grid[1]), wide**2 / (of_columns[1] * grid[0])

    def judge(self, grid: tuple[int, int], cells: Sequence[int] | Array) -> _Judged:
        """Judge a reading of all tokens."""
        cells = np.asarray(cells)
        if not self.norm:
            return _Judged(grid, (), 0.0, (0.0, 0.0), False)
        inside = np.isin(cells, self.moving)
        rows, columns = (index[inside] for index in np.divmod(np.arange(len(cells)), grid[1]))
        sides = self.explain(grid, rows, columns, np.searchsorted(self.moving, cells[inside]))
        return self._judged(grid, cells, sides)

    def _judged(self, grid: tuple[int, int], cells: Array, sides: tuple[float, float], of_side: float = 0.0) -> _Judged:
        both = all(
            side > max(chance, of_side) * norm
            for side, chance, norm, along in zip(sides, self.chances, self.norms, grid, strict=True)
            if along > 1
        )
        return _Judged(grid, tuple(cells.tolist()), sum(sides) / self.norm, sides, both)

    def ranked(self, prefix: int | None = None) -> list[_Judged]:
        """Judge readings of moving tokens as a grid, row by row or column by column, and return the two best.

        Parameters
        ----------
        prefix
            Tokens before the patches, where all behind them are patches; None tries all numbers before and behind.
        """
        count = len(self.moving)
        patches = range(max(2, count - MOST_OTHERS), count + 1) if prefix is None else (self.count - prefix,)
        found = []
        for place in (np.arange(number) for number in patches if 2 <= number <= count and self.norm):
            firsts = range(count - len(place) + 1) if prefix is None else (count - len(place),)
            for grid in _grids(len(place), self.size):
                orders = [np.divmod(place, grid[1])]
                if min(grid) > 1:
                    orders.append(np.divmod(place, grid[0])[::-1])
                for by_column, (row, column) in enumerate(orders):
                    for first in firsts:
                        sides = self.explain(grid, row, column, place + first)
                        found.append((sum(sides), grid, by_column, first, sides))
        made = []
        for _, grid, by_column, first, sides in sorted(found, key=lambda one: -one[0])[:2]:
            cells = self.moving[first : first + grid[0] * grid[1]]
            cells = cells.reshape(grid[::-1]).T.flatten() if by_column else cells
            made.append(self._judged(grid, cells, sides, OF_SIDE if self.is_unmixed else 0.0))
        return made


def _grids(cells: int, size: tuple[int, int]) -> Iterator[tuple[int, int]]:
    for rows in range(1, min(cells, size[0]) + 1):
        if cells % rows == 0 and cells // rows <= size[1]:
            yield rows, cells // rows


def _clearest(candidates: list[_Judged], least: float) -> TokenGrid | None:
    """Return the first reading if it explains enough, and more than the second by the margin."""
    if not candidates or candidates[0].explained < least or not candidates[0].is_on_both_sides:
        return None
    if len(candidates) > 1 and candidates[1].explained > (1 - MARGIN) * candidates[0].explained:
        return None
    return candidates[0]


def _square_patches(count: int, prefix: int, size: tuple[int, int]) -> TokenGrid | None:
    rows = round(((count - prefix) * size[0] / size[1]) ** 0.5) if count > prefix else 0
    if not rows or (count - prefix) % rows:
        return None
    return TokenGrid((rows, (count - prefix) // rows), tuple(range(prefix, count)))

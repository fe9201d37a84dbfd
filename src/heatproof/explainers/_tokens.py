"""Find the position in the image of each token of a network, or of each cell of a feature map.

The rule replaces bands of a noise image one at a time and measures how tokens change. A row of patches changes with the
bands that cross it; a class token or a register changes with none of them, or with all of them alike. Each assignment
of T tokens to a grid of rows × columns of patches and a few other tokens is a candidate; the rule chooses the candidate
that explains the changes best. Divisors of T and the shape of the image do not matter.

Before tokens are mixed, as in a patch embedding, changes are exact; later tensors with the same number of tokens keep
that grid unless their changes contradict it. After tokens are mixed, the size of the changes decides.
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

from heatproof.core.hooks import counted_as_check
from heatproof.explainers._hooks import in_this_thread

Array = NDArray[Any]

# Largest absolute value of the noise, in units of normalised images.
NOISE_LIMIT = 2.0
# Number of images in a pass: the noise image and a copy with a replaced band.
IMAGES_PER_PASS = 2
# Number of bands along the height, and along the width.
BANDS = 7
# Largest number of tokens that change but are not patches: class and distillation tokens, and registers.
MAX_OTHER_TOKENS = 16
# Share of the located changes that a grid must explain: for tokens on their own, for a feature map, and for later
# tokens with the grid of earlier ones. Over 20 architectures of timm with random weights, correct grids explain 0.35 to
# 1, 0.06 to 1 and 0.35 to 1; channels mistaken for positions explain less than 0.01.
TOKENS_EXPLAINED, MAP_EXPLAINED, LATER_EXPLAINED = 0.5, 0.05, 0.02
# The same share along each side before tokens are mixed: for rows read in alternating directions, columns explain 0.1
# to 0.36.
SIDE_EXPLAINED = 0.4
# Share of its explained changes by which the best candidate must exceed the second.
MARGIN = 0.02
# The grid of earlier tokens stays if it explains this share of what the best candidate explains.
EARLIER_SHARE = 0.5
# By chance, a grid explains 1 / number of changes; a candidate must explain this multiple of it.
CHANCE_FACTOR = 10
# Share of pairs of a patch and a band without a change, above which tokens are not mixed.
UNMIXED = 0.25
# Functions that mix tokens, and the axis of the tokens in their first argument.
ATTENTION = {"softmax": -1, "scaled_dot_product_attention": -2, "multi_head_attention_forward": 0}
# Changes below this number of machine epsilons are rounding.
ROUNDING_STEPS = 8


@dataclass(frozen=True)
class TokenGrid:
    """Grid of the tokens, or of the positions of a feature map, in the image.

    Attributes
    ----------
    grid
        Number of rows and columns.
    cells
        Index of the token of each cell, row by row.
    """

    grid: tuple[int, int]
    cells: tuple[int, ...]


@dataclass
class BandChanges:
    """Squared changes of the tensors of a pass when each band of the image is replaced.

    Attributes
    ----------
    size
        Height and width of the image.
    layers
        For each module by name, and for each pair of axes of its output that can be rows and columns, the changes
        (bands, positions…), summed over the remaining axis. The key for tokens is (1,).
    tokens
        For each number of tokens, the changes (bands, tokens) of the tensor in which most pairs of a token and a band
        have no change.
    attended
        For each number of tokens, the changes (bands, tokens) of the last tensor before the first attention between
        that many tokens.
    """

    size: tuple[int, int]
    layers: dict[str, dict[tuple[int, ...], Array]] = field(default_factory=dict)
    tokens: dict[int, Array] = field(default_factory=dict)
    attended: dict[int, Array] = field(default_factory=dict)

    def locate_attended_tokens(self, count: int, declared: int | None = None) -> TokenGrid | None:
        """Return the grid of the tokens that attend to each other; see `locate_tokens`."""
        return self.locate_tokens(count, self.attended.get(count), declared)

    def locate_tokens(self, count: int, changes: Array | None = None, declared: int | None = None) -> TokenGrid | None:
        """Return the grid of tokens; None if it is unclear.

        Parameters
        ----------
        count
            Number of tokens.
        changes
            (bands, tokens), the changes of the tensor to locate; None for any tensor with this number of tokens.
        declared
            Number of prefix tokens that the network declares. It is used only if the changes do not decide.
        """
        earliest = self.tokens.get(count)
        changes = earliest if changes is None else changes
        if changes is None:
            return None
        distribution = _Distribution(changes, self.size)
        candidates = distribution.rank_candidates()
        if earliest is not None and changes is not earliest:
            earlier_distribution = _Distribution(earliest, self.size)
            earlier_candidates = earlier_distribution.rank_candidates()
            earlier_grid = _clear_winner(earlier_candidates, TOKENS_EXPLAINED)
            on_no_grid = bool(earlier_candidates) and not earlier_candidates[0].is_on_both_sides
            if earlier_distribution.is_unmixed and on_no_grid and not distribution.is_unmixed:
                # The exact changes lie on no grid, so the mixed ones cannot show one.
                return None
            minimum = (
                max(LATER_EXPLAINED, distribution.chance, EARLIER_SHARE * candidates[0].explained) if candidates else 0
            )
            # Tokens that are not mixed can have been put in another order.
            minimum = TOKENS_EXPLAINED if distribution.is_unmixed else minimum
            if (
                earlier_grid
                and candidates
                and distribution.evaluate(earlier_grid.grid, earlier_grid.cells).explained >= minimum
            ):
                return earlier_grid
        grid = _clear_winner(candidates, TOKENS_EXPLAINED)
        if grid or declared is None or distribution.is_unmixed:
            return grid
        return _clear_winner(distribution.rank_candidates(declared), LATER_EXPLAINED) or _square_patches(
            count, declared, self.size
        )

    def locate_map_axes(self, name: str) -> tuple[int, ...] | None:
        """Return the axes of rows and columns in a module's output of four axes; None if they are unclear."""
        candidates = []
        for axes, change in self.layers[name].items():
            shape = change.shape[1:]
            positions = np.arange(shape[0] * shape[1]).reshape(shape)
            distribution = _Distribution(change.reshape(len(change), -1), self.size)
            for order, cells in ((axes, positions), (axes[::-1], positions.T)):
                rows, columns = map(int, cells.shape)
                candidate = distribution.evaluate((rows, columns), cells.flatten())
                if candidate.is_on_both_sides and candidate.explained >= max(MAP_EXPLAINED, distribution.chance):
                    candidates.append((sum(candidate.sides) / cells.size, order))
        candidates.sort(reverse=True)
        stands_out = len(candidates) == 1 or (candidates and candidates[1][0] <= (1 - MARGIN) * candidates[0][0])
        return candidates[0][1] if stands_out else None


def measure_band_changes(network: nn.Module, images: torch.Tensor, modules: Mapping[str, nn.Module]) -> BandChanges:
    """Measure the changes of tokens and modules when each band of a noise image is replaced.

    Each pass has two images, the noise image and a copy with one replaced band, the smallest batch that explainers use,
    because memory may suffice for no more.

    Parameters
    ----------
    network
        Images to logits.
    images
        (N, C, H, W); the noise has their size.
    modules
        Modules whose outputs are measured, by name.
    """
    result, (base, *replaced) = BandChanges((images.shape[2], images.shape[3])), _noise_with_bands(images)
    layers: dict[tuple[str, tuple[int, ...]], list[Array]] = {}

    def hook_of(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            if isinstance(output, torch.Tensor) and output.ndim in (3, 4) and len(output) == IMAGES_PER_PASS:
                for axes, change in _changes_by_axes(output, result.size):
                    layers.setdefault((name, axes), []).append(change)

        return in_this_thread(hook)

    handles = [module.register_forward_hook(hook_of(name)) for name, module in modules.items()]
    passes = []
    try:
        # Counted as a check, so that the passes of an explainer do not depend on which explainer inspects layers first.
        with torch.no_grad(), counted_as_check():
            for image in replaced:
                with _TokenRecorder() as mode:
                    network(torch.stack([base, image]))
                passes.append(mode.steps)
    finally:
        for handle in handles:
            handle.remove()
    for (name, axes), changes in layers.items():
        if len(changes) == len(replaced) and len({change.shape for change in changes}) == 1:
            result.layers.setdefault(name, {})[axes] = np.concatenate(changes)
    _add_token_changes(result, passes)
    return result


def _add_token_changes(result: BandChanges, passes: Sequence[Sequence[tuple[int, Array | None]]]) -> None:
    """Add the changes of the tensor with the fewest changed tokens, and of the last tensor before attention."""
    unchanged_shares: dict[int, float] = {}
    latest: dict[int, Array] = {}
    for steps in zip(*passes, strict=False):
        counts, changes = {count for count, _ in steps}, [change for _, change in steps if change is not None]
        (count, *more_counts) = counts
        if more_counts:
            # The number of tokens depends on the content of the image.
            return
        if not changes:
            if count in latest:
                result.attended.setdefault(count, latest[count])
            continue
        change = np.concatenate(changes)
        share = float((change == 0).mean())
        if share < 1:
            latest[count] = change
        if unchanged_shares.get(count, -1.0) < share < 1:
            unchanged_shares[count], result.tokens[count] = share, change


class _TokenRecorder(TorchFunctionMode):
    """Mode that records the number of tokens and their changes for each tensor, and None as the change at attention."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[tuple[int, Array | None]] = []

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Record the changes of the tokens that a function returns."""
        token_axis = ATTENTION.get(getattr(func, "__name__", "").strip("_"))
        if token_axis is not None and args and args[0].ndim > 2:
            self.steps.append((args[0].shape[token_axis], None))
        output = func(*args, **(kwargs or {}))
        for tensor in output if isinstance(output, tuple | list) else (output,):
            if isinstance(tensor, torch.Tensor) and tensor.ndim == 3 and tensor.is_floating_point():
                self._record(tensor)
        return output

    def _record(self, tensor: torch.Tensor) -> None:
        if len(tensor) != IMAGES_PER_PASS and tensor.shape[1] == IMAGES_PER_PASS:
            # In some libraries tokens are the first axis.
            tensor = tensor.transpose(0, 1)
        if len(tensor) == IMAGES_PER_PASS and tensor.shape[1] > 1:
            self.steps.append((tensor.shape[1], _squared_change(tensor, 2)))


def _band_limits(length: int) -> list[int]:
    bands = min(BANDS, length)
    return [round(index * length / bands) for index in range(bands + 1)]


def noise_like(images: torch.Tensor) -> torch.Tensor:
    """Return two noise images (2, C, H, W), the same for all images (N, C, H, W) of one size.

    With noise, results do not depend on the content of images, which may be blank. Its range is that of normalised
    images.
    """
    shape, generator = (2, *images.shape[1:]), torch.Generator().manual_seed(0)
    drawn = torch.rand(shape, generator=generator, dtype=torch.float64)
    return (drawn * 2 * NOISE_LIMIT - NOISE_LIMIT).to(images)


def _noise_with_bands(images: torch.Tensor) -> torch.Tensor:
    """Return a noise image, and a copy for each band with other noise in it: bands of rows, then of columns."""
    base, other_noise = noise_like(images)
    images_of_bands = [base]
    for axis in (1, 2):
        limits = _band_limits(images.shape[axis + 1])
        for start, stop in itertools.pairwise(limits):
            image = base.clone()
            image.narrow(axis, start, stop - start).copy_(other_noise.narrow(axis, start, stop - start))
            images_of_bands.append(image)
    return torch.stack(images_of_bands)


def _squared_change(tensor: torch.Tensor, channels: int) -> Array:
    """Return the squared change from the first image, summed over channels; 0 if it is rounding."""
    minimum = ROUNDING_STEPS * torch.finfo(tensor.dtype).eps
    values = tensor.detach().to(torch.float64 if tensor.dtype == torch.float64 else torch.float32)
    # A channel that is not finite must not hide the others.
    change = (values[1:] - values[:1]).nan_to_num(0, 0, 0).square().sum(channels)
    change = change * (change > minimum**2 * values[:1].nan_to_num(0, 0, 0).square().sum(channels))
    return change.cpu().double().nan_to_num(0, 0, 0).numpy()


def _changes_by_axes(output: torch.Tensor, size: tuple[int, int]) -> Iterator[tuple[tuple[int, ...], Array]]:
    if output.ndim == 3:
        yield (1,), _squared_change(output, 2)
        return
    for channels, rows, columns in ((1, 2, 3), (3, 1, 2), (2, 1, 3)):
        shape = output.shape[rows], output.shape[columns]
        # A grid cannot be finer than the image.
        if shape[0] * shape[1] > 1 and (_is_within(shape, size) or _is_within(shape[::-1], size)):
            yield (rows, columns), _squared_change(output, channels)


def _is_within(grid: tuple[int, int], size: tuple[int, int]) -> bool:
    return grid[0] <= size[0] and grid[1] <= size[1]


@dataclass(frozen=True)
class _Candidate(TokenGrid):
    """A candidate grid and how well it explains the located changes.

    Attributes
    ----------
    explained
        Share of the squared changes that the grid explains.
    sides
        Squared changes that it explains along the height and along the width.
    is_on_both_sides
        Whether it explains more than chance along both sides.
    """

    explained: float
    sides: tuple[float, float]
    is_on_both_sides: bool


class _Distribution:
    """Distribution of the changes of each token over the bands, relative to the mean distribution of all tokens.

    Attributes
    ----------
    size
        Height and width of the image.
    changing
        Indices of the tokens that change at all.
    is_unmixed
        Whether tokens are not mixed yet: many pairs of a token and a band have no change.
    located
        For the height and the width, (bands, tokens): the share of a token's changes in each band minus the mean share.
    norm, norms
        Sum of the squares of `located`, in total and for each side.
    chance, chances
        Share of the squares that a candidate must exceed, in total and for each side.
    """

    def __init__(self, change: Array, size: tuple[int, int]) -> None:
        self.size, self.count, bands = size, change.shape[1], len(_band_limits(size[0])) - 1
        self.changing = np.flatnonzero(change.sum(0) > 0)
        changing = change[:, self.changing]
        self.is_unmixed = bool(changing.size) and float((changing == 0).mean()) > UNMIXED
        parts = [changing[:bands], changing[bands:]]
        shares = [part / np.maximum(part.sum(0), np.finfo(float).tiny) for part in parts]
        self.located = [share - share.mean(1, keepdims=True) for share in shares] if changing.size else []
        self.norms = [float((share**2).sum()) for share in self.located]
        self.norm = sum(self.norms)
        changes = [max(share.size - len(share) - share.shape[1], 1) for share in self.located]
        self.chances = [CHANCE_FACTOR / count for count in changes]
        self.chance = CHANCE_FACTOR / max(sum(changes), 1)
        self._agreement: dict[tuple[int, int], tuple[Array, float]] = {}

    def agreement(self, axis: int, cells: int) -> tuple[Array, float]:
        """Return the inner products of rows or columns with the changing tokens, (cells, tokens), and the squared norm.

        Parameters
        ----------
        axis
            0 for rows, 1 for columns.
        cells
            Number of rows or columns.
        """
        if (axis, cells) not in self._agreement:
            limits, edges = np.array(_band_limits(self.size[axis])), np.linspace(0, self.size[axis], cells + 1)
            ends = np.minimum(limits[1:, None], edges[1:]), np.maximum(limits[:-1, None], edges[:-1])
            inside = (ends[0] - ends[1]).clip(0) * cells / self.size[axis]
            inside -= inside.mean(1, keepdims=True)
            # A side of one cell, or of one band, shows no position.
            squares = float((inside**2).sum()) if cells > 1 and len(inside) > 1 else np.inf
            self._agreement[axis, cells] = inside.T @ self.located[axis], squares
        return self._agreement[axis, cells]

    def explain(self, grid: tuple[int, int], rows: Array, columns: Array, tokens: Array) -> tuple[float, float]:
        """Return the squared changes along each side that a position of the changing tokens explains."""
        of_rows, of_columns = self.agreement(0, grid[0]), self.agreement(1, grid[1])
        high = max(float(of_rows[0][rows, tokens].sum()), 0.0)
        wide = max(float(of_columns[0][columns, tokens].sum()), 0.0)
        return high**2 / (of_rows[1] * grid[1]), wide**2 / (of_columns[1] * grid[0])

    def evaluate(self, grid: tuple[int, int], cells: Sequence[int] | Array) -> _Candidate:
        """Return how well a grid of all tokens explains the changes."""
        cells = np.asarray(cells)
        if not self.norm:
            return _Candidate(grid, (), 0.0, (0.0, 0.0), False)
        inside = np.isin(cells, self.changing)
        rows, columns = (index[inside] for index in np.divmod(np.arange(len(cells)), grid[1]))
        sides = self.explain(grid, rows, columns, np.searchsorted(self.changing, cells[inside]))
        return self._candidate(grid, cells, sides)

    def _candidate(
        self, grid: tuple[int, int], cells: Array, sides: tuple[float, float], of_side: float = 0.0
    ) -> _Candidate:
        on_both_sides = all(
            side > max(chance, of_side) * norm
            for side, chance, norm, cells_along in zip(sides, self.chances, self.norms, grid, strict=True)
            if cells_along > 1
        )
        return _Candidate(grid, tuple(cells.tolist()), sum(sides) / self.norm, sides, on_both_sides)

    def rank_candidates(self, prefix: int | None = None) -> list[_Candidate]:
        """Return the two best grids of the changing tokens, row by row or column by column.

        Parameters
        ----------
        prefix
            Number of tokens before the patches, which are then all remaining tokens; None tries all numbers of tokens
            before and after the patches.
        """
        count = len(self.changing)
        patches = range(max(2, count - MAX_OTHER_TOKENS), count + 1) if prefix is None else (self.count - prefix,)
        evaluated = []
        for positions in (np.arange(number) for number in patches if 2 <= number <= count and self.norm):
            firsts = range(count - len(positions) + 1) if prefix is None else (count - len(positions),)
            for grid in _grids(len(positions), self.size):
                orders = [np.divmod(positions, grid[1])]
                if min(grid) > 1:
                    orders.append(np.divmod(positions, grid[0])[::-1])
                for by_column, (row, column) in enumerate(orders):
                    for first in firsts:
                        sides = self.explain(grid, row, column, positions + first)
                        evaluated.append((sum(sides), grid, by_column, first, sides))
        best = []
        for _, grid, by_column, first, sides in sorted(evaluated, key=lambda entry: -entry[0])[:2]:
            cells = self.changing[first : first + grid[0] * grid[1]]
            cells = cells.reshape(grid[::-1]).T.flatten() if by_column else cells
            best.append(self._candidate(grid, cells, sides, SIDE_EXPLAINED if self.is_unmixed else 0.0))
        return best


def _grids(cells: int, size: tuple[int, int]) -> Iterator[tuple[int, int]]:
    for rows in range(1, min(cells, size[0]) + 1):
        if cells % rows == 0 and cells // rows <= size[1]:
            yield rows, cells // rows


def _clear_winner(candidates: list[_Candidate], minimum: float) -> TokenGrid | None:
    """Return the first candidate if it explains enough, and more than the second by the margin."""
    if not candidates or candidates[0].explained < minimum or not candidates[0].is_on_both_sides:
        return None
    if len(candidates) > 1 and candidates[1].explained > (1 - MARGIN) * candidates[0].explained:
        return None
    return candidates[0]


def _square_patches(count: int, prefix: int, size: tuple[int, int]) -> TokenGrid | None:
    rows = round(((count - prefix) * size[0] / size[1]) ** 0.5) if count > prefix else 0
    if not rows or (count - prefix) % rows:
        return None
    return TokenGrid((rows, (count - prefix) // rows), tuple(range(prefix, count)))

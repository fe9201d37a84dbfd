"""Batched solver of ROAD's linear systems: conjugate gradients with a multigrid preconditioner.

Multiplied by twelve, the equations are those of a graph Laplacian. Neighbours that share a side have weight 2, diagonal
ones weight 1, and known pixels are fixed values. Rows at the border, whose weights are divided by a smaller sum, are
then symmetric as well. In the interior, the stencil is (1, 2, 1) ⊗ (1, 2, 1) minus its centre. A plain Jacobi sweep
therefore reduces every oscillating error to a third (eigenvalues from 2/3 to 4/3), and no other smoother is worth its
time. Coarse grids take every second pixel. Interpolation is bilinear, zero at known pixels and damped next to them.
The coarse equations are the Galerkin products, so that all grids take account of any set of known pixels, down to a
single one.

Arrays of a grid have a frame of zeros, one pixel wide, which avoids special cases at the border. All workspace is
reused between calls, because on a CPU allocating memory costs more time than the arithmetic in it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from heatproof.errors import HeatproofError

SMALLEST_GRID = 64
NEGLIGIBLE = 1e-4
RIDGE = 1e-5
ROUNDS = 6
CYCLES = 40
# Over blobs, scattered pixels, stripes, mazes and single known pixels, the error was at most 2.7 times the output of a
# cycle.
SAFETY = 4.0
# A round updates the residual instead of recomputing it; in float32, it drifts by about 4e-6 of its initial value.
REDUCTION = 1e-4
OFFSETS = tuple((down, right) for down in (-1, 0, 1) for right in (-1, 0, 1))
CENTRE = OFFSETS.index((0, 0))


def inner(framed: Tensor) -> Tensor:
    """Return a view without the frame."""
    return framed[..., 1:-1, 1:-1]


def framed_zeros(like: Tensor, *shape: int) -> Tensor:
    """Return zeros with a frame around the last two axes."""
    return like.new_zeros((*shape[:-2], shape[-2] + 2, shape[-1] + 2))


class Grid:
    """One grid of the multigrid hierarchy: N systems with C right-hand sides each, and its workspace.

    Attributes
    ----------
    right, solution
        (N, C, h + 2, w + 2), framed: input and output of a cycle.
    diagonal
        (N or 1, 1, h, w): divisor of the smoother.
    inverse
        (N, 1, h + 2, w + 2), framed: one over the diagonal; zero where nothing is unknown.
    spread
        (N, 1, h + 2, w + 2), framed: factor after the bilinear interpolation from the next coarser grid.
    """

    diagonal: Tensor

    def __init__(self, like: Tensor, systems: int, channels: int, height: int, width: int) -> None:
        self.size = height, width
        self.coarse_size = (height + 1) // 2, (width + 1) // 2
        shape = systems, channels, height, width
        self.right, self.solution, self.first, self.second = (framed_zeros(like, *shape) for _ in range(4))
        self.inverse, self.spread = (framed_zeros(like, systems, 1, height, width) for _ in range(2))
        self.half = like.new_zeros(systems, channels, self.coarse_size[0], width + 2)
        combs, self.comb_of = _combs(like, *self.coarse_size)
        self.combs = framed_zeros(like, 1, 9, height, width)
        for comb in range(9):
            self.interpolate(combs[:, [comb] * channels], self.first[:1])
            self.combs[:, comb] = self.first[:1, 0]
        self.first.zero_()

    def neighbours(self, values: Tensor, out: Tensor) -> None:
        """Write (diagonal - matrix) times framed values into the inner part of `out`."""
        raise NotImplementedError

    def set_smoother(self, diagonal: Tensor, inverse: Tensor, row_sums: Tensor) -> None:
        """Store the divisor of the smoother, and derive the interpolation from the row sums of the matrix."""
        self.diagonal = diagonal
        inner(self.inverse).copy_(inverse)
        spread = (row_sums * inverse).clamp_(0, 1).mul_(-0.5).add_(1)
        spread[..., ::2, ::2] = 1
        inner(self.spread).copy_(spread.mul_(inverse > 0))

    def galerkin(self, columns: Tensor, out: Tensor) -> None:
        """Write minus the coarse equations into `out` (N, 9, h', w'), computed from nine combs of unit vectors.

        Points of one comb are three apart, so that their columns of the coarse matrix do not overlap. `columns` is
        workspace of the same shape.
        """
        channels = self.right.shape[1]
        for low in range(0, 9, channels):
            high = min(low + channels, 9)
            probe, image = self.solution[:, : high - low], self.first[:, : high - low]
            torch.mul(self.combs[:, low:high], self.spread, out=probe)
            self.neighbours(probe, image)
            inner(image).addcmul_(inner(probe), self.diagonal, value=-1)
            image.mul_(self.spread)
            self.restrict(image, columns[:, low:high])
        torch.gather(columns, 1, self.comb_of.expand_as(columns), out=out)

    def restrict(self, fine: Tensor, out: Tensor) -> None:
        """Sum framed values, already multiplied by `spread`, on the coarse grid: the transposed interpolation."""
        (height, width), (rows, columns) = self.size, self.coarse_size
        half = self.half[:, : fine.shape[1]]
        torch.add(fine[..., 1 : 2 * rows : 2, :], fine[..., 0 : 2 * rows - 1 : 2, :], alpha=0.5, out=half)
        half.add_(fine[..., 2 : 2 * rows + 1 : 2, :], alpha=0.5)
        if height % 2 == 0:
            half[..., -1, :].add_(fine[..., height, :], alpha=0.5)
        torch.add(half[..., 1 : 2 * columns : 2], half[..., 0 : 2 * columns - 1 : 2], alpha=0.5, out=out)
        out.add_(half[..., 2 : 2 * columns + 1 : 2], alpha=0.5)
        if width % 2 == 0:
            out[..., -1].add_(half[..., width], alpha=0.5)

    def interpolate(self, coarse: Tensor, out: Tensor) -> None:
        """Write interpolated coarse values into the inner part of `out`, without the factor `spread`; both framed."""
        (height, width), (rows, columns) = self.size, self.coarse_size
        half = self.half[: len(coarse), :, :, 1 : width + 1]
        coarse, fine = inner(coarse), inner(out)
        half[..., ::2] = coarse
        torch.lerp(coarse[..., :-1], coarse[..., 1:], 0.5, out=half[..., 1 : 2 * columns - 2 : 2])
        if width % 2 == 0:
            half[..., -1] = coarse[..., -1]
        fine[..., ::2, :] = half
        torch.lerp(half[..., :-1, :], half[..., 1:, :], 0.5, out=fine[..., 1 : 2 * rows - 2 : 2, :])
        if height % 2 == 0:
            fine[..., -1, :] = half[..., -1, :]


class PixelGrid(Grid):
    """Finest grid; all systems have the same stencil and differ in the unknown pixels."""

    def __init__(self, like: Tensor, systems: int, channels: int, height: int, width: int) -> None:
        super().__init__(like, systems, channels, height, width)
        self.scratch = torch.zeros_like(self.right)
        self.mask = torch.zeros_like(self.inverse)
        ones, sums = (framed_zeros(like, 1, 1, height, width) for _ in range(2))
        inner(ones).fill_(1)
        self.neighbours(ones, sums)
        self.weights = inner(sums).clone()
        self.weights_and_centre = self.weights + 4

    def smooth(self, values: Tensor, out: Tensor) -> None:
        """Write the (1, 2, 1) ⊗ (1, 2, 1) sums of framed values into the inner part of `out`."""
        scratch = self.scratch[: len(values), : values.shape[1]]
        torch.add(values[..., 1:, :], values[..., :-1, :], out=scratch[..., :-1, :])
        torch.add(scratch[..., 1:-1, :], scratch[..., :-2, :], out=out[..., 1:-1, :])
        torch.add(out[..., 1:-1, 1:], out[..., 1:-1, :-1], out=scratch[..., 1:-1, :-1])
        torch.add(scratch[..., 1:-1, 1:-1], scratch[..., 1:-1, :-2], out=inner(out))

    def neighbours(self, values: Tensor, out: Tensor) -> None:
        """Write (diagonal - matrix) times framed values into the inner part of `out`, not masked."""
        self.smooth(values, out)
        inner(out).sub_(inner(values), alpha=4)

    def laplacian(self, values: Tensor, out: Tensor) -> None:
        """Write minus the matrix times framed values into the inner part of `out`, not masked."""
        self.smooth(values, out)
        inner(out).addcmul_(inner(values), self.weights_and_centre, value=-1)

    def set_unknown(self, unknown: Tensor) -> None:
        """Build the equations for the unknown pixels (N, 1, h, w): one where unknown, zero elsewhere."""
        inner(self.mask).copy_(unknown)
        sums = self.first[:, :1]
        self.laplacian(self.mask, sums)
        self.set_smoother(self.weights, unknown / self.weights, inner(sums).neg_())

    def set_residual(self, values: Tensor) -> None:
        """Write into `right` the weighted sum of the differences between each unknown pixel and its neighbours.

        The values are (N, C, h, w). Where they are smooth, the inverse is large, and in float32 differences keep what
        sums would lose.
        """
        out, down, across, steps = (inner(work) for work in (self.right, self.first, self.second, self.scratch))
        second_difference(values, -2, steps, down)
        second_difference(values, -1, steps, across)
        second_difference(across, -2, steps, out)
        out.add_(down, alpha=4).add_(across, alpha=4)
        for border in (0, -1):
            out[..., border].sub_(down[..., border])
            out[..., border, :].sub_(across[..., border, :])
        self.right.mul_(self.mask)


class CoarseGrid(Grid):
    """Coarser grid, with a separate stencil at every point of every system."""

    def __init__(self, like: Tensor, systems: int, channels: int, height: int, width: int) -> None:
        super().__init__(like, systems, channels, height, width)
        self.off, self.work = (like.new_zeros(systems, 9, height, width) for _ in range(2))

    def set_equations(self, finer: Grid) -> None:
        """Compute the equations from those of the next finer grid."""
        off, centre = self.off, slice(CENTRE, CENTRE + 1)
        finer.galerkin(self.work, off)
        diagonal, row_sums = off[:, centre].neg(), off.sum(1, keepdim=True).neg_()
        # Coarse points that depend on the same few unknown pixels have positive couplings, which make a Jacobi sweep
        # overshoot. Added to its divisor, they keep the eigenvalues below 2 and the cycle positive definite.
        divisor = torch.clamp(off, max=0, out=self.work).sum(1, keepdim=True).neg_()
        off[:, centre] = divisor - diagonal
        self.set_smoother(divisor, torch.where(diagonal > NEGLIGIBLE, 1 / divisor, 0), row_sums)

    def neighbours(self, values: Tensor, out: Tensor) -> None:
        """Write (diagonal - matrix) times framed values into the inner part of `out`."""
        (height, width), target = self.size, inner(out)
        for index, (down, right) in enumerate(OFFSETS):
            shifted = values[..., 1 + down : 1 + down + height, 1 + right : 1 + right + width]
            weights = self.off[:, index : index + 1]
            if index == 0:
                torch.mul(shifted, weights, out=target)
            else:
                target.addcmul_(shifted, weights)

    def dense_inverse(self) -> Tensor:
        """Return the inverse matrices (N, h w, h w) of the smallest grid, zero at points without unknowns."""
        points = self.size[0] * self.size[1]
        unit = framed_zeros(self.spread, 1, points, *self.size)
        eye = torch.eye(points, dtype=unit.dtype, device=unit.device)
        inner(unit).copy_(eye.view(1, points, *self.size))
        product = framed_zeros(self.spread, len(self.spread), points, *self.size)
        self.neighbours(unit, product)
        matrix = (inner(unit) * self.diagonal - inner(product)).flatten(2)
        alive = (inner(self.inverse) > 0).flatten(1).to(unit)
        both = alive[:, :, None] * alive[:, None, :]
        # Points that depend on the same unknowns make the matrix singular; interpolation removes that direction.
        ridge = torch.where(alive > 0, RIDGE * matrix.diagonal(dim1=1, dim2=2), 1)
        inverse = torch.linalg.inv_ex(matrix * both + torch.diag_embed(ridge))[0] * both
        return (inverse + inverse.mT) / 2


def _combs(like: Tensor, height: int, width: int) -> tuple[Tensor, Tensor]:
    """Return nine framed combs (1, 9, h + 2, w + 2), and the number of the comb of each neighbour (9, h, w).

    Comb 3 a + b has ones at the rows that are a modulo 3 and the columns that are b modulo 3.
    """
    combs = framed_zeros(like, 1, 9, height, width)
    for comb in range(9):
        inner(combs)[0, comb, comb // 3 :: 3, comb % 3 :: 3] = 1
    row, column = torch.arange(height, device=like.device)[:, None], torch.arange(width, device=like.device)
    return combs, torch.stack([(row + down) % 3 * 3 + (column + right) % 3 for down, right in OFFSETS])


class Multigrid:
    """Solver for N systems of C right-hand sides on H × W pixels; its workspace is reused between calls.

    Parameters
    ----------
    like
        Tensor that has the dtype and the device of the computation.
    systems, channels, height, width
        N, C, H, W.
    """

    def __init__(self, like: Tensor, systems: int, channels: int, height: int, width: int) -> None:
        self.pixels = PixelGrid(like, systems, channels, height, width)
        self.direction, self.change = (torch.zeros_like(self.pixels.right) for _ in range(2))
        self.coarse: list[CoarseGrid] = []
        size = self.pixels.coarse_size
        while True:
            self.coarse.append(CoarseGrid(like, systems, channels, *size))
            if size[0] * size[1] <= SMALLEST_GRID:
                break
            size = self.coarse[-1].coarse_size

    def set_unknown(self, unknown: Tensor) -> None:
        """Build the equations of all grids for the unknown pixels (N, H, W) bool."""
        self.pixels.set_unknown(unknown.unsqueeze(1).to(self.pixels.right))
        finer: Grid = self.pixels
        for grid in self.coarse:
            grid.set_equations(finer)
            finer = grid
        self.coarsest_inverse = self.coarse[-1].dense_inverse()

    def solve(self, values: Tensor, unknown: Tensor, limits: Tensor) -> int:
        """Solve for the unknown pixels in place.

        Parameters
        ----------
        values
            (N, C, H, W): the known pixels, and initial guesses of the unknown ones.
        unknown
            (N, H, W) bool; each system with unknown pixels must have a known pixel as well.
        limits
            (N,): largest error of each system.

        Returns
        -------
        int
            Number of cycles.

        Raises
        ------
        HeatproofError
            If the bound on the error does not fall below the limits.
        """
        self.set_unknown(unknown)
        limits = limits.view(-1, 1, 1, 1)
        unsolved = torch.ones_like(limits, dtype=torch.bool)
        cycles = 0
        for _ in range(ROUNDS):
            self.pixels.set_residual(values)
            solution, bounds = self._round(limits, unsolved)
            cycles += solution
            values.add_(inner(self.change))
            unsolved = unsolved & ~(bounds <= limits)
            if not unsolved.any():
                return cycles
        worst = (bounds / limits).argmax()
        raise HeatproofError(
            f"ROAD's linear system was not solved: after {cycles} cycles the error is bounded by "
            f"{bounds.flatten()[worst]:.1e}, but the tolerance is {limits.flatten()[worst]:.1e}: raise the tolerance."
        )

    def _round(self, limits: Tensor, running: Tensor) -> tuple[int, Tensor]:
        """Write the correction for the residual in `pixels.right` into `change`; return cycles and (N, 1, 1, 1) bounds.

        Solved systems are no longer changed, so that no system depends on the others.
        """
        grid, direction, change = self.pixels, self.direction, self.change
        direction.zero_()
        change.zero_()
        energy = direction.new_zeros(*direction.shape[:2], 1, 1)
        bounds, targets = torch.full_like(limits, torch.inf), limits
        for cycle in range(CYCLES):
            step = self.cycle(grid, *self.coarse)
            bound = torch.abs(step, out=grid.first).amax((1, 2, 3), keepdim=True).mul_(SAFETY)
            if cycle == 0:
                targets = torch.maximum(limits, bound * REDUCTION)
            bounds = torch.where(running, bound, bounds)
            previous, energy = energy, dots(grid.right, step, grid.first)
            torch.addcmul(step, direction, ratio(energy, previous), out=direction)
            grid.laplacian(direction, grid.first)
            length = torch.where(running, ratio(energy, dots(direction, grid.first, grid.second)), 0)
            change.addcmul_(direction, length, value=-1)
            grid.right.addcmul_(grid.first, length, value=-1)
            running = running & ~(bound <= targets)
            if not running.any():
                break
        return cycle + 1, bounds

    def cycle(self, grid: Grid, *coarser: Grid) -> Tensor:
        """Return `grid.solution`: approximately the inverse matrix times `grid.right`, by one symmetric V-cycle."""
        solution, work = grid.solution, grid.first
        if not coarser:
            right = inner(grid.right).flatten(2)
            inner(solution).copy_((right @ self.coarsest_inverse).unflatten(2, grid.size))
            return solution
        torch.mul(grid.right, grid.inverse, out=solution)
        grid.neighbours(solution, work)
        work.mul_(grid.spread)
        grid.restrict(work, inner(coarser[0].right))
        grid.interpolate(self.cycle(*coarser), work)
        torch.addcmul(solution, work, grid.spread, out=work)
        grid.neighbours(work, grid.second)
        return solution.addcmul_(grid.second, grid.inverse)


def dots(first: Tensor, second: Tensor, work: Tensor) -> Tensor:
    """Return the inner products (N, C, 1, 1) of two tensors (N, C, h, w)."""
    return torch.mul(first, second, out=work).sum((2, 3), keepdim=True)


def ratio(above: Tensor, below: Tensor) -> Tensor:
    """Return the quotient, or zero where the divisor is zero."""
    return torch.where(below == 0, 0, above / below)


def second_difference(values: Tensor, axis: int, steps: Tensor, out: Tensor) -> None:
    """Write the sum of the differences to both neighbours along an axis, none beyond the border; `steps` is scratch."""
    last = values.shape[axis] - 1
    steps = torch.sub(values.narrow(axis, 1, last), values.narrow(axis, 0, last), out=steps.narrow(axis, 0, last))
    out.narrow(axis, 0, last).copy_(steps)
    out.select(axis, last).zero_()
    out.narrow(axis, 1, last).sub_(steps)

"""Multigrid V-cycle for ROAD's linear system, on padded planes, for many images at once.

A plane of height h and width w lies in memory as (h + 2) × (w + 2) values with a border of zeros, flattened: the
neighbour at offset (i, j) is then the element i (w + 2) + j further on, and every operation runs over one contiguous
stretch. The *core* is the stretch from the first to the last pixel; the border elements within it are held at zero by
the masks.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

# Weights of ROAD times 12: a neighbour that shares a side counts 2, a diagonal one 1, so that [1 2 1]ᵀ [1 2 1] minus 4
# at the centre is the sum over all neighbours, and four additions yield it.
CENTRE = 4.0
COARSEST = 260
# Jacobi damping below the finest grid, where the stencil tends to that of bilinear elements (eigenvalues up to 3/2).
DAMPING = 0.85
_OFFSETS = [(i, j) for i in (-1, 0, 1) for j in (-1, 0, 1)]


def pad(planes: torch.Tensor) -> torch.Tensor:
    """Return (..., H, W) as (..., (H + 2)(W + 2)) with a border of zeros."""
    return torch.nn.functional.pad(planes, (1, 1, 1, 1)).flatten(-2)


def total_weights(height: int, width: int, device: torch.device) -> torch.Tensor:
    """Return 12 times the summed weights of the neighbours that exist, padded and flattened, float64."""
    ones = pad(torch.ones(1, 1, height, width, dtype=torch.float64, device=device))
    sums = torch.zeros_like(ones)
    _core(sums, width).copy_(box(ones, width)).sub_(CENTRE * _core(ones, width)).mul_(_core(ones, width))
    return sums


def _core(planes: torch.Tensor, width: int) -> torch.Tensor:
    return planes[..., width + 3 : planes.shape[-1] - width - 3]


def box(planes: torch.Tensor, width: int, buffers: list[torch.Tensor] | None = None) -> torch.Tensor:
    """Return [1 2 1]ᵀ [1 2 1] around every element of the core."""
    stride = width + 2
    if buffers is None:
        buffers = [torch.empty_like(planes), torch.empty_like(planes)]
    size = planes.shape[-1]
    first, second = buffers
    a = torch.add(planes[..., :-1], planes[..., 1:], out=first[..., : size - 1])
    b = torch.add(a[..., :-1], a[..., 1:], out=second[..., : size - 2])
    c = torch.add(b[..., :-stride], b[..., stride:], out=first[..., : size - 2 - stride])
    return torch.add(c[..., :-stride], c[..., stride:], out=second[..., : size - 2 - 2 * stride])


def defect(values: torch.Tensor, weights: torch.Tensor, width: int) -> torch.Tensor:
    """Return 12 times (weighted sum of the neighbours minus own value), which is zero where an image is imputed."""
    out = torch.zeros_like(values)
    core = _core(values, width)
    torch.sub(box(values, width), (_core(weights, width) + CENTRE) * core, out=_core(out, width))
    return out


@dataclass
class _Grid:
    height: int
    width: int
    # (1, 1, P) 1 within the image; times 2 in the last row or column if only one coarse point is beside it.
    spread: torch.Tensor
    # (N, 1, P): `spread` where unknown.
    lift: torch.Tensor = field(init=False)
    # Core of the Jacobi factor, damping included.
    factor: torch.Tensor = field(init=False)
    # Cores of the nine coefficients, minus the matrix's entries; the finest grid has none.
    planes: list[torch.Tensor] | None = None
    buffers: dict[tuple[str, int, int], torch.Tensor] = field(default_factory=dict)

    def buffer(self, name: str, images: int, channels: int) -> torch.Tensor:
        """Return a plane set kept for one use, whose border outside the core stays zero."""
        key = (name, images, channels)
        if key not in self.buffers:
            self.buffers[key] = torch.zeros(
                (images, channels, self.spread.shape[-1]), dtype=torch.float32, device=self.spread.device
            )
        return self.buffers[key]

    def core(self, planes: torch.Tensor) -> torch.Tensor:
        return _core(planes, self.width)

    def square(self, planes: torch.Tensor) -> torch.Tensor:
        return planes.view(*planes.shape[:-1], self.height + 2, self.width + 2)


class Multigrid:
    """An approximate inverse of 12 times ROAD's symmetric operator on the unknown pixels; itself symmetric.

    The grids hold every second point. Values are carried between them bilinearly, zero at known pixels, and the coarse
    operators are the exact products (Galerkin) with that carrying, so that every pattern of known pixels is felt on
    all grids. One Jacobi sweep before and one after; the coarsest grid is solved by its inverse.
    """

    def __init__(self, height: int, width: int, device: torch.device) -> None:
        self.grids: list[_Grid] = []
        while True:
            rows, columns = torch.ones(height), torch.ones(width)
            if height > 1 and height % 2 == 0:
                rows[-1] = 2
            if width > 1 and width % 2 == 0:
                columns[-1] = 2
            self.grids.append(_Grid(height, width, pad(torch.outer(rows, columns)[None, None]).to(device)))
            if (height + 2) * (width + 2) <= COARSEST:
                break
            height, width = (height + 1) // 2, (width + 1) // 2
        finest = self.grids[0]
        self.weights = total_weights(finest.height, finest.width, device)
        self._weights = finest.core(self.weights.float()).contiguous()
        self._diagonal = self._weights + CENTRE
        self._combs = [self._comb(grid) for grid in self.grids]

    def _comb(self, grid: _Grid) -> tuple[torch.Tensor, torch.Tensor]:
        """Nine sets of points three apart, and which set holds each neighbour of each point."""
        device = grid.spread.device
        i = torch.arange(grid.height + 2, device=device)[:, None]
        j = torch.arange(grid.width + 2, device=device)[None]
        colour = ((i % 3) * 3 + j % 3).flatten()
        inside = (grid.spread[0, 0] > 0).float()
        combs = torch.stack([(colour == k) * inside for k in range(9)])[None]
        owner = torch.stack([((((i + a) % 3) * 3) + (j + b) % 3).flatten() for a, b in _OFFSETS])[None]
        return combs, owner

    def set_unknown(self, unknown: torch.Tensor) -> None:
        """Take new unknown pixels (N, 1, P), float32 0 or 1; the coarse operators stay until `coarsen`."""
        grid = self.grids[0]
        self._unknown = grid.core(unknown).contiguous()
        grid.factor = self._unknown / self._weights.clamp(min=1)

    def coarsen(self, unknown: torch.Tensor) -> None:
        """Form the coarse operators for these unknown pixels.

        They serve as well while more pixels become unknown, as values are carried to the pixels of this set only.
        """
        self.grids[0].lift = unknown * self.grids[0].spread
        for fine, coarse, (combs, owner) in zip(self.grids, self.grids[1:], self._combs[1:], strict=False):
            images = fine.lift.shape[0]
            lifted = self._prolong(coarse, fine, combs.expand(images, -1, -1).contiguous())
            moved = torch.zeros_like(lifted)
            fine.core(moved).copy_(self.apply(fine, lifted))
            products = torch.zeros_like(combs).repeat(images, 1, 1)
            self._restrict(fine, coarse, moved, products)
            last = products.gather(1, owner.expand(images, -1, -1))
            coarse.planes = [-coarse.core(last[:, k : k + 1]).contiguous() for k in range(9)]
            diagonal = last[:, 4:5]
            # Points that hang on the same few pixels have positive couplings, which would let a sweep overshoot. Added
            # to the diagonal, they keep every eigenvalue of the undamped sweep below 2 and the cycle definite.
            bound = last.clamp(min=0).sum(dim=1, keepdim=True)
            known = diagonal <= 0
            coarse.lift = coarse.spread * ~known
            coarse.factor = coarse.core(torch.where(known, 0.0, DAMPING / bound.masked_fill(known, 1.0))).contiguous()
        if len(self.grids) == 1:
            combs, owner = self._combs[0]
            fine = self.grids[0]
            images = fine.lift.shape[0]
            inside = combs * (fine.lift > 0)
            products = torch.zeros_like(inside)
            fine.core(products).copy_(self.apply(fine, inside))
            last = products.gather(1, owner.expand(images, -1, -1)) * (fine.lift > 0)
        self._invert(last)

    def _invert(self, planes: torch.Tensor) -> None:
        grid = self.grids[-1]
        images, _, size = planes.shape
        dense = torch.zeros(images, size, size, dtype=torch.float64, device=planes.device)
        for k, (a, b) in enumerate(_OFFSETS):
            shift = a * (grid.width + 2) + b
            line = dense.diagonal(shift, 1, 2)
            line.copy_(planes[:, k, max(0, -shift) : size - max(0, shift)])
        dense = (dense + dense.mT) / 2
        diagonal = dense.diagonal(0, 1, 2)
        diagonal += (diagonal <= 0).double()
        # Far below what matters to a preconditioner; single precision upstream may leave an eigenvalue just below 0.
        diagonal += 1e-6 * diagonal.amax(dim=1, keepdim=True)
        factor = torch.linalg.cholesky_ex(dense).L
        self._inverse = torch.cholesky_inverse(factor).float()

    def apply(self, grid: _Grid, x: torch.Tensor) -> torch.Tensor:
        """Return the core of the operator's product with x, which is zero at known pixels."""
        images, channels, _ = x.shape
        core = grid.core(x)
        if grid.planes is None:
            buffers = [grid.buffer("box a", images, channels), grid.buffer("box b", images, channels)]
            out = box(x, grid.width, buffers).neg_()
            return out.addcmul_(core, self._diagonal).mul_(self._unknown)
        out = grid.core(grid.buffer("product", images, channels))
        out.zero_()
        return self._accumulate(grid, x, out).neg_()

    def _accumulate(self, grid: _Grid, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """Subtract the product of a coarse operator with x from a core."""
        start, stride, size = grid.width + 3, grid.width + 2, out.shape[-1]
        assert grid.planes is not None
        for plane, (a, b) in zip(grid.planes, _OFFSETS, strict=True):
            at = start + a * stride + b
            out.addcmul_(plane, x[..., at : at + size])
        return out

    def _prolong(self, coarse: _Grid, fine: _Grid, x: torch.Tensor) -> torch.Tensor:
        images, channels, _ = x.shape
        source = coarse.square(x)
        h, w = fine.height, fine.width
        out = fine.buffer("lifted", images, channels)
        target = fine.square(out)
        rows = source[..., 1 : coarse.height + 1, 1:-1]
        odd, even = h // 2, (h + 1) // 2
        columns_odd, columns_even = w // 2, (w + 1) // 2
        key = ("wide", images, channels)
        if key not in fine.buffers:
            fine.buffers[key] = x.new_zeros(images, channels, coarse.height + 1, w)
        wide = fine.buffers[key]
        wide[..., : coarse.height, 0::2] = rows[..., :columns_even]
        right = source[..., 1 : coarse.height + 1, 2 : 2 + columns_odd]
        between = torch.add(rows[..., :columns_odd], right)
        wide[..., : coarse.height, 1::2] = between.mul_(0.5)
        target[..., 1 : h + 1 : 2, 1:-1] = wide[..., :even, :]
        middle = torch.add(wide[..., :odd, :], wide[..., 1 : odd + 1, :])
        target[..., 2 : h + 1 : 2, 1:-1] = middle.mul_(0.5)
        return out.mul_(fine.lift)

    def _restrict(self, fine: _Grid, coarse: _Grid, r: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        source = fine.square(r.mul_(fine.lift))
        h, w = coarse.height, coarse.width
        outer = torch.add(source[..., 0 : 2 * h - 1 : 2, :], source[..., 2 : 2 * h + 1 : 2, :])
        rows = torch.add(source[..., 1 : 2 * h : 2, :], outer, alpha=0.5)
        across = torch.add(rows[..., 0 : 2 * w - 1 : 2], rows[..., 2 : 2 * w + 1 : 2])
        torch.add(rows[..., 1 : 2 * w : 2], across, alpha=0.5, out=coarse.square(out)[..., 1 : h + 1, 1 : w + 1])
        return out

    def __call__(self, residual: torch.Tensor) -> torch.Tensor:
        """Return the approximate solution for a residual (N, C, P); the next call overwrites it."""
        return self._cycle(0, residual)

    def _cycle(self, level: int, b: torch.Tensor) -> torch.Tensor:
        grid = self.grids[level]
        images, channels, _ = b.shape
        x = grid.buffer("solution", images, channels)
        if level == len(self.grids) - 1:
            torch.matmul(b, self._inverse, out=x)
            return x
        coarse = self.grids[level + 1]
        b_core, x_core = grid.core(b), grid.core(x)
        torch.mul(grid.factor, b_core, out=x_core)
        r = grid.buffer("residual", images, channels)
        if grid.planes is None:
            torch.sub(b_core, self.apply(grid, x), out=grid.core(r))
        else:
            self._accumulate(grid, x, grid.core(r).copy_(b_core))
        down = self._restrict(grid, coarse, r, coarse.buffer("down", images, channels))
        x += self._prolong(coarse, grid, self._cycle(level + 1, down))
        if grid.planes is None:
            buffers = [grid.buffer("box a", images, channels), grid.buffer("box b", images, channels)]
            sums = box(x, grid.width, buffers).add_(b_core).sub_(x_core, alpha=CENTRE)
            torch.mul(sums, grid.factor, out=x_core)
        else:
            self._accumulate(grid, x, grid.core(r).copy_(b_core))
            x_core.addcmul_(grid.core(r), grid.factor)
        return x

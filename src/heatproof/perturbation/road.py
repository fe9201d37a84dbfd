"""ROAD's noisy linear imputation: removed pixels become weighted means of their neighbours.

Rong, Leemann, Borisov, Kasneci, Kasneci (2022), "A Consistent and Efficient Evaluation Strategy for Attribution
Methods", ICML, section 4.2. Each removed pixel is the mean of its eight neighbours, of which the four that share a side
weigh 1/6 and the four diagonal ones 1/12; at the border the weights of the neighbours that exist are divided by their
sum. Removed neighbours are unknown as well, so a linear system is solved, the same for all channels.

The system is symmetric once every row is multiplied by its sum of weights, and is solved by conjugate gradients with a
multigrid preconditioner, for a batch of images at once. The steps of a sequence start from one another. The state is
held in double precision, and every result is accepted on the residual of that state.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from heatproof.errors import HeatproofError
from heatproof.perturbation._multigrid import Multigrid, defect, pad
from heatproof.randomness import torch_generator

TOLERANCE = 1e-6
# One image of 224 × 224 in colour: more at once leaves the processor's cache, fewer small ones leave it idle.
_VALUES_AT_ONCE = 200_000
_ITERATIONS = 60
# The coarse operators are formed anew when there are more unknown, or fewer known, pixels than this, relatively.
_MORE_UNKNOWN, _FEWER_KNOWN = 1.05, 0.97


def impute(images: torch.Tensor, removed: torch.Tensor, *, tolerance: float = TOLERANCE) -> torch.Tensor:
    """Fill removed pixels by linear imputation, without noise.

    Parameters
    ----------
    images
        (N, C, H, W), in any unit; kept pixels are returned as they are.
    removed
        (N, H, W) bool, true where a pixel is to be imputed, in all channels.
    tolerance
        The largest estimated error of an imputed value, in the units of the images.

    Returns
    -------
    torch.Tensor
        (N, C, H, W), of the type and layout of `images`. An image without any kept pixel, for which the system has no
        single solution, is filled with its own mean per channel.

    Raises
    ------
    HeatproofError
        The shapes disagree, the images hold a value that is not finite, or a system cannot be solved to `tolerance`.
    """
    first_removed = (~removed).long()
    return next(_sequence(images, first_removed, 1, tolerance))


def impute_sequence(
    images: torch.Tensor,
    first_removed: torch.Tensor,
    steps: int,
    *,
    noise: float = 0.01,
    seed: int,
    image_ids: Sequence[str],
    tolerance: float = TOLERANCE,
) -> Iterator[torch.Tensor]:
    """Yield the imputed images of each step of a sequence in which more and more pixels are removed.

    Parameters
    ----------
    images
        (N, C, H, W), in any unit.
    first_removed
        (N, H, W) integers: a pixel is removed at step s if its value is at most s.
    steps
        How many steps, counted from 0.
    noise
        Standard deviation of the Gaussian noise added to removed pixels, in the units of the images.
    seed, image_ids
        Seed the noise, which is drawn once for each image and is the same at every step.
    tolerance
        As in `impute`.

    Yields
    ------
    torch.Tensor
        (N, C, H, W), steps 0 .. `steps` - 1 in order; a new tensor each.

    Raises
    ------
    HeatproofError
        As in `impute`.
    """
    if noise == 0:
        yield from _sequence(images, first_removed, steps, tolerance)
        return
    draws = torch.stack(
        [torch.randn(images.shape[1:], generator=torch_generator(seed, "ROAD noise", name)) for name in image_ids]
    )
    draws = draws.to(images).mul_(noise)
    for step, imputed in enumerate(_sequence(images, first_removed, steps, tolerance)):
        yield imputed.add_(draws * (first_removed <= step)[:, None])


def _sequence(
    images: torch.Tensor, first_removed: torch.Tensor, steps: int, tolerance: float
) -> Iterator[torch.Tensor]:
    if images.ndim != 4 or first_removed.shape != (images.shape[0], *images.shape[2:]):
        raise HeatproofError(
            f"Images of shape {tuple(images.shape)} need removed pixels of shape (N, H, W), "
            f"not {tuple(first_removed.shape)}."
        )
    if not bool(torch.isfinite(images).all()):
        raise HeatproofError("An image holds a value that is not finite; mend the data before imputing.")
    first_removed = first_removed.to(images.device)
    count = len(images)
    if images.device.type == "cpu":
        count = max(1, _VALUES_AT_ONCE // max(1, images[0].numel())) if len(images) else 1
    solvers = []
    for start in range(0, len(images), max(1, count)):
        part = slice(start, start + count)
        grid = Multigrid(*images.shape[2:], images.device)
        solvers.append((part, _Solver(images[part], first_removed[part], tolerance, grid)))
    for step in range(steps):
        out = torch.empty_like(images)
        for part, solver in solvers:
            out[part] = solver.step(step)
        yield out


class _Solver:
    """The imputed values of some images, carried from step to step."""

    def __init__(self, images: torch.Tensor, first_removed: torch.Tensor, tolerance: float, grid: Multigrid) -> None:
        self.shape = images.shape
        self.first_removed = pad(first_removed[:, None])
        self.inside = pad(torch.ones_like(first_removed[:1, None]).bool())
        self.values = pad(images.double())
        self.means = images.double().mean(dim=(2, 3), keepdim=True)
        self.tolerance = tolerance
        self.grid = grid
        self.defect = defect(self.values, grid.weights, self.shape[3])
        # Counts of unknown and known pixels when the coarse operators were last formed.
        self.formed: torch.Tensor | None = None

    def step(self, step: int) -> torch.Tensor:
        height, width = self.shape[2:]
        removed = (self.first_removed <= step) & self.inside
        unknown = removed.sum(dim=(1, 2))
        whole = unknown == height * width
        removed = removed & ~whole[:, None, None]
        self._solve(removed, torch.stack([unknown, height * width - unknown]))
        result = self.values.view(*self.shape[:2], height + 2, width + 2)[..., 1:-1, 1:-1]
        return torch.where(whole[:, None, None, None], self.means, result)

    def _solve(self, removed: torch.Tensor, counts: torch.Tensor) -> None:
        if not bool(removed.any()):
            return
        mask = removed.float()
        self.grid.set_unknown(mask)
        formed = self.formed
        if formed is None or bool(
            ((counts[0] > _MORE_UNKNOWN * formed[0]) | (counts[1] < _FEWER_KNOWN * formed[1])).any()
        ):
            self.grid.coarsen(mask)
            self.formed = counts
        self._iterate(mask)

    def _iterate(self, mask: torch.Tensor) -> None:
        grid = self.grid
        finest = grid.grids[0]
        budget = _ITERATIONS
        while budget > 0:
            # Accepted when the correction that a cycle makes to the state's own residual is below the tolerance.
            r = (self.defect * mask).float()
            x = torch.zeros_like(r)
            ap = torch.zeros_like(r)
            p = rz = None
            inner = 0
            while budget > 0:
                z = grid(r)
                open_images = z.abs().amax(dim=(1, 2)) > 0.2 * self.tolerance
                if not bool(open_images.any()):
                    break
                going = open_images[:, None, None]
                new = torch.linalg.vecdot(r, z)[..., None]
                p = z.clone() if p is None else p.mul_(new / rz).add_(z)
                rz = new
                finest.core(ap).copy_(grid.apply(finest, p))
                alpha = torch.where(going, new / torch.linalg.vecdot(p, ap)[..., None], 0.0).nan_to_num_(0.0, 0.0, 0.0)
                x.addcmul_(p, alpha)
                r.addcmul_(ap, -alpha)
                inner += 1
                budget -= 1
            self.values += x + z
            self.defect = defect(self.values, grid.weights, self.shape[3])
            # Either z was made from the state's own residual, or that residual must bear out the one carried along.
            if inner == 0:
                return
            if bool(((self.defect * mask).norm(dim=(1, 2)) <= 1.5 * r.norm(dim=(1, 2))).all()):
                return
        raise HeatproofError(
            f"ROAD's linear system is not solved to {self.tolerance:g} after {_ITERATIONS} iterations; "
            "raise the tolerance, or give images of smaller values."
        )

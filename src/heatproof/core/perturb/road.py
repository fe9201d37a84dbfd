"""ROAD's noisy linear imputation: removed pixels become weighted means of their neighbours.

Rong, Leemann, Borisov, Kasneci, Kasneci (2022), "A Consistent and Efficient Evaluation Strategy for Attribution
Methods", ICML, section 4.2. Each removed pixel is the mean of its eight neighbours: the four that share a side have
weight 1/6, the four diagonal ones 1/12; at the border, the weights of the existing neighbours are divided by their
sum. Removed neighbours are unknown as well, which gives one linear system per mask, the same for all channels. Here,
the systems of many masks are solved at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from heatproof.core.perturb._multigrid import Multigrid
from heatproof.core.randomness import counter_normal
from heatproof.errors import HeatproofError

TOLERANCE = 2e-6
SMALLEST_TOLERANCE = 5e-7
NOISE = 0.01
# Values that are solved at once: on a CPU, as many per thread as fit in its caches with the workspace; on other
# devices, as many as keep the device busy.
VALUES_ON_CPU = 1_000_000
VALUES_ELSEWHERE = 16_000_000
# With fewer values, operations are so short that threads would mostly wait for the interpreter's lock.
VALUES_IN_THREADS = 400_000


def impute(images: Tensor, removed: Tensor, *, tolerance: float = TOLERANCE) -> Tensor:
    """Impute removed pixels linearly, without noise.

    Parameters
    ----------
    images
        (N, C, H, W), in any unit; known pixels are returned unchanged.
    removed
        (N, H, W) bool, true where a pixel is imputed, in all channels.
    tolerance
        Largest error, as a fraction of the image's largest absolute value, at least 5e-7. A bound that is computed from
        the residual of every image ensures it; the actual error is usually a tenth of it.

    Returns
    -------
    Tensor
        (N, C, H, W), with the dtype of `images`. An image without any known pixel, for which the system has no unique
        solution, is filled with its own mean per channel.

    Raises
    ------
    HeatproofError
        If the shapes do not match, the images contain a value that is not finite, `tolerance` is too small, or a system
        is not solved to the tolerance.

    Examples
    --------
    >>> removed = torch.zeros(1, 8, 8, dtype=torch.bool)
    >>> removed[:, 2:4, 2:4] = True
    >>> impute(torch.ones(1, 3, 8, 8), removed).shape
    torch.Size([1, 3, 8, 8])
    """
    images, removed = images.detach(), removed.to(images.device)
    solver = _Solver(images, removed, tolerance)
    filled = solver.fill(solver.images, removed.unsqueeze(1)).squeeze(1).to(images.dtype)
    return torch.where(removed.unsqueeze(1), filled, images)


def impute_sequence(
    images: Tensor,
    first_removed: Tensor,
    steps: int,
    *,
    noise: float = NOISE,
    seed: int,
    image_ids: Sequence[str],
    tolerance: float = TOLERANCE,
) -> Iterator[Tensor]:
    """Yield the imputed images of each step of a nested removal sequence.

    Parameters
    ----------
    images
        (N, C, H, W), in any unit.
    first_removed
        (N, H, W) integers: a pixel is removed at step s if its value is at most s.
    steps
        Number of steps, which are counted from 0.
    noise
        Standard deviation of the Gaussian noise added to removed pixels, in the units of the images.
    seed, image_ids
        Seed the noise, which is drawn once for each image and is the same at every step.
    tolerance
        As in `impute`. The solver starts from an earlier step, so that results may differ from those of `impute` by the
        tolerance.

    Yields
    ------
    Tensor
        (N, C, H, W), steps 0 .. `steps` - 1 in order; each is a new tensor.

    Raises
    ------
    HeatproofError
        As in `impute`.

    Notes
    -----
    On a CPU, no bit of the result of an image depends on other images, on their order or on the number of threads.
    Some steps are computed ahead, up to 4 MB per image or one step. Between steps, PyTorch's number of threads is
    unchanged.
    """
    images, first_removed = images.detach(), first_removed.to(images.device)
    solver = _Solver(images, first_removed, tolerance)
    added: Tensor | float = 0.0
    if noise:
        shape, device, dtype = images.shape[1:], images.device, images.dtype
        added = noise * counter_normal(seed, "ROAD noise", image_ids, shape, device=device, dtype=dtype)
    filled = solver.images
    for low in range(0, steps, solver.steps_per_call):
        step = torch.arange(low, min(low + solver.steps_per_call, steps), device=images.device)
        removed = first_removed.unsqueeze(1) <= step[:, None, None]
        solved = solver.fill(filled, removed)
        for values, holes in zip(solved.unbind(1), removed.unsqueeze(2).unbind(1), strict=True):
            yield torch.where(holes, values.to(images.dtype) + added, images)
        # A copy, and no reference to the source, because the next steps need as much memory again.
        filled = solved[:, -1].clone()
        del solved, values


class _Solver:
    """Impute images in slices that suit the device; the workspace is reused between calls.

    On a CPU, a slice contains steps of one image and is solved by one thread, and its number of steps follows from the
    size of the image. Therefore, no bit of a result depends on other images or on the number of threads. On other
    devices, a slice contains many images.
    """

    def __init__(self, images: Tensor, pixels: Tensor, tolerance: float) -> None:
        if images.ndim != 4 or pixels.shape != (images.shape[0], *images.shape[2:]):
            raise HeatproofError(
                f"Images of shape {tuple(images.shape)} need removed pixels of shape (N, H, W), "
                f"not {tuple(pixels.shape)}."
            )
        if tolerance < SMALLEST_TOLERANCE:
            raise HeatproofError(
                f"ROAD's tolerance {tolerance:g} is finer than single precision: give {SMALLEST_TOLERANCE:g} or more."
            )
        self.images = images.detach().float().contiguous()
        largest = self.images.abs().amax((1, 2, 3))
        if not largest.isfinite().all():
            raise HeatproofError("An image has a value that is not finite: fix the data before imputing.")
        self.limits = largest * tolerance
        self.on_cpu = images.device.type == "cpu"
        self.slice_size = max(1, (VALUES_ON_CPU if self.on_cpu else VALUES_ELSEWHERE) // images.shape[1:].numel())
        self.workspaces: dict[tuple[int, int], Multigrid] = {}

    @property
    def steps_per_call(self) -> int:
        """Number of steps that one call of `fill` should solve."""
        return self.slice_size if self.on_cpu else max(1, self.slice_size // max(1, len(self.images)))

    @torch.no_grad()
    def fill(self, guesses: Tensor, removed: Tensor) -> Tensor:
        """Solve k steps of every image.

        Parameters
        ----------
        guesses
            (N, C, H, W) float32: the known pixels, and initial guesses of the removed ones.
        removed
            (N, k, H, W) bool.

        Returns
        -------
        Tensor
            (N, k, C, H, W) float32.
        """
        count, steps = removed.shape[:2]
        filled = guesses.unsqueeze(1).repeat(1, steps, 1, 1, 1)
        systems, unknown = filled.flatten(0, 1), removed.flatten(0, 1)
        owners = torch.arange(count, device=filled.device).repeat_interleave(steps)
        size = min(self.slice_size, steps) if self.on_cpu else self.slice_size
        slices = [slice(low, low + size) for low in range(0, len(systems), size)]
        parallel = self.on_cpu and size * systems[:1].numel() >= VALUES_IN_THREADS
        workers = min(torch.get_num_threads() if parallel else 1, len(slices))

        def work(worker: int) -> None:
            # Inference mode is per thread, and a tensor made in it can be changed only in it.
            with torch.inference_mode():
                for part in slices[worker::workers]:
                    self._solve(worker, systems[part], unknown[part], owners[part])

        if not self.on_cpu:
            list(map(work, range(workers)))
        elif workers:
            _run_in_threads(work, workers)
        return filled

    def _solve(self, worker: int, values: Tensor, unknown: Tensor, owners: Tensor) -> None:
        all_unknown = unknown.flatten(1).all(1)
        if all_unknown.any():
            values[all_unknown] = self.images[owners[all_unknown]].mean((2, 3), keepdim=True)
            unknown = unknown & ~all_unknown[:, None, None]
        padded = values
        if 1 in values.shape[2:]:
            # A single row or column is doubled, which preserves the equations: the sweeps need two dimensions.
            times = [1 + (length == 1) for length in values.shape[2:]]
            padded, unknown = values.repeat(1, 1, *times), unknown.repeat(1, *times)
        key = worker, len(values)
        if key not in self.workspaces:
            self.workspaces[key] = Multigrid(padded, *padded.shape)
        self.workspaces[key].solve(padded, unknown, self.limits[owners])
        if padded is not values:
            values.copy_(padded[..., : values.shape[2], : values.shape[3]])


def _run_in_threads(work: Callable[[int], None], workers: int) -> None:
    """Run `work` for workers 0, 1, ... in parallel threads, each with one PyTorch thread.

    Slices are solved in parallel, instead of dividing each small operation over all threads, which would wait for one
    another at its end. A single worker runs in a thread as well, so that all workers start from the same state.
    """
    threads = torch.get_num_threads()
    try:
        with ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            list(pool.map(work, range(workers)))
    finally:
        # The number of threads is partly global.
        torch.set_num_threads(threads)

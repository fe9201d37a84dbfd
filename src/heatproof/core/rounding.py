"""Rounding of logits: how much they may differ between two passes, and how much they do."""

from __future__ import annotations

from collections.abc import Iterable

import torch

# Tolerance for the logits of an image alone and in a batch, as a share of the logits' spread, because float sums depend
# on the batch size. Over 45 networks of 40 families of torchvision and timm, the largest differences were 3e-15, 1e-6,
# 7e-4 and 2e-3, and two passes of the same size never differed on a CPU (benchmarks/rounding.py); GPUs choose
# algorithms by the batch size.
TOLERANCE = {torch.float64: 1e-7, torch.float32: 2e-4, torch.float16: 1e-2, torch.bfloat16: 6e-2}
TF32 = 1e-2


def rounding_tolerance(
    logits: torch.Tensor, precisions: Iterable[torch.dtype], device: torch.device, share: float = 1.0
) -> float:
    """Return how much logits (B, K) may differ between two passes that compute in these precisions.

    Parameters
    ----------
    logits
        Logits of a few images.
    precisions
        Precisions of the weights and of the computations in a pass.
    device
        Device of the passes.
    share
        Factor of the tolerance.

    Returns
    -------
    float
        Tolerance in the unit of the logits, at least 0.
    """
    precisions = set(precisions)
    least, eps = max(TOLERANCE[first] for first in precisions), max(torch.finfo(first).eps for first in precisions)
    if torch.backends.cuda.matmul.allow_tf32 and device.type == "cuda":
        least = max(least, TF32)
    finite = logits[logits.isfinite()]
    if not len(finite):
        return 0.0
    # A single number per image is compared with zero.
    spread = finite.abs().max() if logits.shape[1:] == (1,) else finite.max() - finite.min()
    return share * least * float(spread) + 8 * eps * float(finite.abs().max())


def difference_of_images(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Return the largest difference (B,) per image between two tensors (B, K); infinite if only one is NaN."""
    alike = (first == second) | (first.isnan() & second.isnan())
    return (first - second).abs().nan_to_num(nan=float("inf")).masked_fill(alike, 0).flatten(1).amax(1)


def largest_difference(first: torch.Tensor, second: torch.Tensor) -> float:
    """Return the largest difference between two tensors of the same shape; infinite if only one is NaN."""
    return float(difference_of_images(first[None], second[None]))

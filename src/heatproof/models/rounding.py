"""By how much the logits of a network may differ between two passes, and by how much they do."""

from __future__ import annotations

from collections.abc import Iterable

import torch

# By how much of the logits' spread an image's logits may differ alone and in company, as float sums depend on the size
# of a batch. Over 45 networks of 40 families of torchvision and timm the largest were 3e-15, 1e-6, 7e-4 and 2e-3, and
# two passes of one size never differed on a CPU (benchmarks/rounding.py); GPUs choose algorithms by the size.
TOLERANCE = {torch.float64: 1e-7, torch.float32: 2e-4, torch.float16: 1e-2, torch.bfloat16: 6e-2}
TF32 = 1e-2


def rounding(logits: torch.Tensor, kinds: Iterable[torch.dtype], device: torch.device, share: float = 1.0) -> float:
    """Return by how much logits (B, K) may differ between two passes that compute in these precisions.

    Parameters
    ----------
    logits
        Of a few images.
    kinds
        Precisions of the weights, and of what a pass computes.
    device
        Where it computes.
    share
        Of the tolerance.
    """
    kinds = set(kinds)
    least, eps = max(TOLERANCE[one] for one in kinds), max(torch.finfo(one).eps for one in kinds)
    if torch.backends.cuda.matmul.allow_tf32 and device.type == "cuda":
        least = max(least, TF32)
    finite = logits[logits.isfinite()]
    if not len(finite):
        return 0.0
    # Of one number for each image, zero is the other one.
    spread = finite.abs().max() if logits.shape[1:] == (1,) else finite.max() - finite.min()
    return share * least * float(spread) + 8 * eps * float(finite.abs().max())


def difference_of_images(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Return the largest difference (B,) for each image of two tensors (B, K); infinite where only one is a number."""
    alike = (one == other) | (one.isnan() & other.isnan())
    return (one - other).abs().nan_to_num(nan=float("inf")).masked_fill(alike, 0).flatten(1).amax(1)


def largest_difference(one: torch.Tensor, other: torch.Tensor) -> float:
    """Return the largest difference of two tensors of one shape; infinite where only one has a number."""
    return float(difference_of_images(one[None], other[None]))

"""Max-sensitivity: largest change of a map under small changes of the image."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from captum.metrics import sensitivity_max

from heatproof.core.randomness import counter_uniform
from heatproof.errors import HeatproofError

Explain = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def max_sensitivity(
    explain: Explain,
    images: torch.Tensor,
    targets: torch.Tensor,
    image_ids: Sequence[str],
    seed: int,
    *,
    radius: float = 0.02,
    samples: int = 10,
    norm: float = 2.0,
    batch_size: int = 64,
    intact: torch.Tensor | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the largest relative change of a map under small random changes of its image (captum `sensitivity_max`).

    max over samples of ‖Φ(x + δ) − Φ(x)‖ ÷ ‖Φ(x)‖, with every value of δ drawn uniformly from [-radius, radius). Yeh et
    al., "On the (in)fidelity and sensitivity of explanations", 2019 (SENS_MAX), which captum divides by the norm of the
    map, so that maps of any unit can be compared. The draws depend only on the seed and the image's id, and the target
    stays that of the intact image. More samples can only raise the score: compare scores with equal `samples`.

    Parameters
    ----------
    explain
        Function from images (M, C, H, W) and targets (M,) to maps (M, H, W), which may compute gradients. It is called
        with all N images in order, each k times in a row, M = N × k: an explainer that draws by image id gets the ids
        as ``numpy.repeat(image_ids, M // N)``, and then draws the same for an image and its changed copies.
    images
        (N, C, H, W), normalised.
    targets
        (N,) int64, the explained class.
    image_ids
        N strings, which seed the changes.
    seed
        Seed of the workflow.
    radius
        Largest change, in units of the normalised image, at least 0.
    samples
        Number of changed copies of each image, all of which are explained.
    norm
        Order of the norm of a map as a vector of its pixels, at least 1; 2 is captum's default, Frobenius.
    batch_size
        The largest number of images in a call of `explain`; N if that is more.
    intact
        (N, H, W), the maps of the unchanged images; None computes them with `explain`.

    Returns
    -------
    score : numpy.ndarray
        (N,) float64 in [0, ∞), lower is better; NaN where it is undefined.
    valid : numpy.ndarray
        (N,) bool: false where the map of the intact image is zero everywhere.

    Raises
    ------
    HeatproofError
        If a map has a value that is not finite or the wrong shape, or an option is out of its range.

    Examples
    --------
    >>> images, targets = torch.rand(2, 3, 8, 8), torch.tensor([0, 1])
    >>> score, valid = max_sensitivity(lambda x, targets: x.mean(1), images, targets, ["a", "b"], seed=0)
    >>> score.shape, valid.tolist()
    ((2,), [True, True])
    """
    if radius < 0 or samples < 1 or norm < 1:
        raise HeatproofError(
            f"Max-sensitivity cannot use radius {radius}, {samples} samples and norm {norm}: the radius has to be at "
            "least 0, the samples and the norm at least 1."
        )
    count = len(images)
    if count == 0:
        return np.empty(0), np.empty(0, dtype=bool)
    shape, drawn = images.shape[1:], 0

    def perturb(repeated: torch.Tensor) -> torch.Tensor:
        # Continues where the last call ended, because captum decides how the samples are divided into calls.
        nonlocal drawn
        each, start = len(repeated) // count, drawn * shape.numel()
        drawn += each
        uniform = counter_uniform(
            seed, "max sensitivity", image_ids, (each, *shape), start=start, device=repeated.device
        )
        return repeated + ((uniform.flatten(0, 1) * 2 - 1) * radius).to(repeated)

    def maps_of(changed: torch.Tensor) -> torch.Tensor:
        # captum leaves the targets of a single image unchanged, so they are repeated here.
        repeated = targets.repeat_interleave(len(changed) // count)
        # captum disables gradients, which users' explainers may need.
        with torch.enable_grad():
            return _checked(explain(changed, repeated), changed, image_ids)

    maps = maps_of(images) if intact is None else _checked(intact, images, image_ids)

    def explanation(argument: torch.Tensor | tuple[torch.Tensor, ...]) -> tuple[torch.Tensor]:
        # captum requests the intact images in a tuple; their maps are already available.
        return (maps if isinstance(argument, tuple) else maps_of(argument),)

    score = sensitivity_max(
        explanation,
        images,
        perturb_func=perturb,
        n_perturb_samples=samples,
        norm_ord=norm,
        max_examples_per_batch=min(max(batch_size, count), count * samples),
    ).numpy()
    # captum divides by 1 where the norm is 0.
    valid = (torch.linalg.vector_norm(maps.flatten(1), norm, dim=1) > 0).numpy()
    return np.where(valid, score, np.nan), valid


def _checked(maps: torch.Tensor, images: torch.Tensor, image_ids: Sequence[str]) -> torch.Tensor:
    """Return checked maps on the CPU, in float64 so that norms of tiny values do not underflow."""
    expected = (len(images), *images.shape[-2:])
    if tuple(maps.shape) != expected:
        raise HeatproofError(
            f"The explainer returned maps of shape {tuple(maps.shape)}, but {expected} was expected: one value per "
            "pixel, summed over channels."
        )
    maps = maps.detach().cpu().double().contiguous()
    finite = maps.isfinite().flatten(1).all(1)
    if not finite.all():
        row = int((~finite).nonzero()[0]) * len(image_ids) // len(images)
        raise HeatproofError(
            f"The attribution map of image {image_ids[row]!r}, or of a slightly changed copy, has a value that is not "
            "finite: check the explainer."
        )
    return maps

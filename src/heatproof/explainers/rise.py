"""RISE: attribution from the outputs of randomly masked images (Petsiuk et al. 2018)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated, Literal

from heatproof.core.batch import Batch
from heatproof.core.grids import AnyGrid, grid_shape, patch_count
from heatproof.core.lazy import torch
from heatproof.core.options import Bounds, Count, PatchGrid
from heatproof.core.randomness import counter_integers, counter_uniform
from heatproof.explainers._batches import draw_uniform_images, pad_single_image_passes, require
from heatproof.explainers._superpixels import index_patches, require_cells
from heatproof.explainers.registry import BaselineName, explainer

# Number of masks that are enlarged at once, to bound memory. It is constant, so that the order of summation does not
# depend on the batch size.
BLOCK = 128

Share = Annotated[float, Bounds(above=0, most=1)]
OutputKind = Literal["probability", "logit"]


@explainer(
    "rise",
    family="perturbation",
    signed=False,
    exempt={
        "explains_probabilities_or_says_no": "its option `output` says what it reads",
        "draws_by_image": "all images share the masks of a seed",
    },
)
def rise(
    context: Batch,
    *,
    masks: Count = 500,
    cells: PatchGrid = 8,
    probability: Share = 0.5,
    output: OutputKind = "probability",
    baseline: BaselineName = None,
) -> dict[str, torch.Tensor]:
    """RISE with masked pixels set to zero (after normalisation), or blended into a baseline.

    Petsiuk, Das and Saenko, "RISE", 2018, equation 6: the mean of the masks weighted by the outputs of the model,
    divided by the probability that a pixel is kept. The masks are drawn once and are the same for all images.

    Parameters
    ----------
    context
        The batch.
    masks
        Number of masks, with one network pass each. The paper takes 4000 to 8000; 500 keep a first run short. On digits
        of 32 pixels, the Spearman correlation with the ranks from 8000 masks is 0.6 to 0.7 for 500 masks, and 0.8 to
        0.9 for 2000.
    cells
        Number of cells along a side, or rows and columns, of the coarse random grid that is enlarged to a mask. The
        paper takes 7 for 224 pixels; 8 divides 32.
    probability
        Probability that a cell of the grid is kept.
    output
        ``"probability"`` weights masks by the softmax probability of the target, as the paper does; ``"logit"`` by its
        logit. Both are read from the network itself, whichever output other explainers attribute.
    baseline
        Baseline into which masked pixels are blended, as in `heatproof.explainers.path.integrated_gradients`.

    Returns
    -------
    dict
        ``rise``: (N, H, W), not negative (any sign for logits), in units of `output`, higher is more relevant.

    Raises
    ------
    HeatproofError
        If an option is out of its range.
    """
    fill = None if baseline is None else context.baseline(baseline)
    return {"rise": _rise(context, fill, masks, cells, probability, output)}


@explainer(
    "rise_uniform",
    family="perturbation",
    signed=False,
    exempt={
        "explains_probabilities_or_says_no": "its option `output` says what it reads",
    },
)
def rise_uniform(
    context: Batch,
    *,
    masks: Count = 500,
    cells: PatchGrid = 8,
    probability: Share = 0.5,
    output: OutputKind = "probability",
    low: float = -1.0,
    high: float = 1.0,
) -> dict[str, torch.Tensor]:
    """RISE with masked pixels blended into a uniform random baseline, drawn per image.

    Parameters
    ----------
    context
        The batch.
    masks, cells, probability, output
        See `rise`; the masks are the same.
    low, high
        Range of the baseline's values, in normalised units.

    Returns
    -------
    dict
        ``rise_uniform``: (N, H, W), not negative (any sign for logits), higher is more relevant.

    Raises
    ------
    HeatproofError
        If an option is out of its range.
    """
    baselines = draw_uniform_images(context, "rise_uniform baseline", low, high)
    return {"rise_uniform": _rise(context, baselines, masks, cells, probability, output)}


@explainer(
    "rise_grid",
    family="perturbation",
    signed=False,
    exempt={
        "explains_probabilities_or_says_no": "its option `output` says what it reads",
        "draws_by_image": "all images share the masks of a seed",
    },
)
def rise_grid(
    context: Batch,
    *,
    masks: Count = 500,
    cells: PatchGrid = 8,
    probability: Share = 0.5,
    output: OutputKind = "probability",
) -> dict[str, torch.Tensor]:
    """RISE with masks of complete grid patches, neither smoothed nor shifted.

    The masks of Petsiuk et al. blend neighbouring cells and are not aligned with the patches that patch drops delete;
    these masks delete complete patches of a grid.

    Parameters
    ----------
    context
        The batch.
    masks, probability, output
        See `rise`.
    cells
        Number of patches along a side, or rows and columns. If they do not divide the image, sides of patches differ by
        a pixel.

    Returns
    -------
    dict
        ``rise_grid``: (N, H, W), not negative (any sign for logits), constant in each patch, higher is more relevant.

    Raises
    ------
    HeatproofError
        If an option is out of its range.
    """
    return {"rise_grid": _rise(context, None, masks, cells, probability, output, aligned=True)}


def _rise(
    context: Batch,
    baselines: torch.Tensor | None,
    count: int,
    cells: AnyGrid,
    probability: float,
    output: str,
    *,
    aligned: bool = False,
) -> torch.Tensor:
    images = context.images
    height, width = images.shape[2:]
    require(count >= 1, f"RISE needs at least 1 mask, not {count}.")
    require_cells("RISE", cells, (height, width))
    require(0 < probability <= 1, f"RISE needs a probability above 0 and at most 1, not {probability}.")
    require(output in ("probability", "logit"), f"RISE's output is 'probability' or 'logit', not {output!r}.")
    with torch.no_grad():
        maps = images.new_zeros(len(images), height * width)
        for block in (_aligned_masks if aligned else _masks)(context, count, cells, probability):
            maps += _outputs_of_masked(context, baselines, block, output) @ block.flatten(1)
        maps /= count * probability
    return maps.unflatten(1, (height, width))


def _masks(context: Batch, count: int, cells: AnyGrid, probability: float) -> Iterator[torch.Tensor]:
    """Yield blocks of masks (at most `BLOCK`, H, W), 1 = kept: enlarged random grids with random shifts."""
    size = context.images.shape[2:]
    shape = grid_shape(cells)
    steps = [math.ceil(length / side) for length, side in zip(size, shape, strict=True)]
    seed, images = context.seed, context.images
    drawn = counter_uniform(seed, "rise masks", [""], (count, 1, *shape), device=images.device)[0]
    grids = (drawn < probability).to(images)
    rows, columns = (
        counter_integers(seed, f"rise shifts along {axis}", [""], (count, 1), step, device=images.device)[0]
        + torch.arange(length, device=images.device)
        for axis, step, length in zip(("rows", "columns"), steps, size, strict=True)
    )
    enlarged = [(side + 1) * step for side, step in zip(shape, steps, strict=True)]
    for start in range(0, count, BLOCK):
        part = slice(start, start + BLOCK)
        large = torch.nn.functional.interpolate(grids[part], enlarged, mode="bilinear", align_corners=False)[:, 0]
        which = torch.arange(len(large), device=grids.device)
        yield large[which[:, None, None], rows[part, :, None], columns[part, None, :]]


def _aligned_masks(context: Batch, count: int, cells: AnyGrid, probability: float) -> Iterator[torch.Tensor]:
    """Yield blocks of masks (at most `BLOCK`, H, W), 1 = kept, constant within each patch of the grid."""
    images = context.images
    drawn = counter_uniform(context.seed, "rise_grid masks", [""], (count, patch_count(cells)), device=images.device)[0]
    masks_of_patches = (drawn < probability).to(images)
    patches = index_patches(tuple(images.shape[2:]), cells).to(images.device)
    for start in range(0, count, BLOCK):
        yield masks_of_patches[start : start + BLOCK, patches]


def _outputs_of_masked(
    context: Batch, baselines: torch.Tensor | None, masks: torch.Tensor, output: str
) -> torch.Tensor:
    """Return the outputs of the network for each image and mask, (N, masks)."""
    from heatproof.core.output_reader import probabilities

    if output == "probability":
        context.require("probability", "set output: logit")
    images = context.images
    # Passes have equal numbers of masks, and as many images as then fit into the batch size.
    masks_per_pass = math.ceil(len(masks) / math.ceil(len(masks) / context.batch_size))
    images_per_pass = max(1, context.batch_size // masks_per_pass)
    channels_last = images.is_contiguous(memory_format=torch.channels_last) and not images.is_contiguous()
    buffer = torch.empty(
        (images_per_pass * masks_per_pass, *images.shape[1:]),
        dtype=images.dtype,
        device=images.device,
        memory_format=torch.channels_last if channels_last else torch.contiguous_format,
    )
    network = pad_single_image_passes(context.network)
    outputs_of_images = images.new_empty(len(images), len(masks))
    for first_row in range(0, len(images), images_per_pass):
        rows = slice(first_row, first_row + images_per_pass)
        targets = context.targets[rows, None, None]
        for first_mask in range(0, len(masks), masks_per_pass):
            columns = slice(first_mask, first_mask + masks_per_pass)
            masks_of_pass = masks[None, columns, None]
            masked = buffer[: len(targets) * masks_of_pass.shape[1]]
            pairs = masked.unflatten(0, (len(targets), -1))
            if baselines is None:
                torch.mul(images[rows, None], masks_of_pass, out=pairs)
            else:
                torch.lerp(baselines[rows, None], images[rows, None], masks_of_pass, out=pairs)
            logits = network(masked).unflatten(0, (len(targets), -1))
            values = probabilities(logits, context.task, -1) if output == "probability" else logits
            outputs_of_images[rows, columns] = values.gather(-1, targets.expand(-1, masks_of_pass.shape[1], 1))[..., 0]
    return outputs_of_images

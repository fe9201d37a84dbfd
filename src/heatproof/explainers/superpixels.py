"""Explainers of captum that replace regions of the image by a baseline."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import numpy as np

from heatproof.core.batch import Batch
from heatproof.core.grids import AnyGrid, patch_count
from heatproof.core.lazy import torch
from heatproof.core.options import Bounds, PatchGrid, PatchGridBounds
from heatproof.core.randomness import derive_seed
from heatproof.core.shares import count_of_share
from heatproof.explainers._batches import pad_single_image_passes, require, split_batch
from heatproof.explainers._superpixels import Segments, index_patches, index_segments
from heatproof.explainers.registry import BaselineName, explainer

Share = Annotated[float, Bounds(above=0, most=1)]
# Two masks are fixed in KernelSHAP: the one that keeps all superpixels, and the one that keeps none.
Masks = Annotated[int, Bounds(least=3)]
Cells = Annotated[int | tuple[int, int], Bounds(least=2, most=1024), PatchGridBounds(least=2)]


@explainer("occlusion", family="superpixels", ablates=True)
def occlusion(
    context: Batch, *, window: Share = 0.25, stride: Share = 0.125, baseline: BaselineName = None
) -> dict[str, torch.Tensor]:
    """Drop of the output under a sliding square of a baseline, averaged per pixel (captum `Occlusion`).

    Zeiler and Fergus, "Visualizing and understanding convolutional networks", 2014, section 4.2.

    Parameters
    ----------
    context
        The batch.
    window, stride
        Side of the square, and distance between adjacent squares, as shares of the image's sides, so that the number of
        network passes (50 by default) does not depend on the image size.
    baseline
        As in `heatproof.explainers.path.integrated_gradients`.

    Returns
    -------
    dict
        ``occlusion``: (N, H, W), any sign, in units of the output, higher is more relevant.

    Raises
    ------
    HeatproofError
        If an option is out of its range, or `stride` is larger than `window`, so that squares would skip pixels.
    """
    from captum.attr import Occlusion

    require(0 < window <= 1, f"Occlusion needs a window above 0 and at most 1, not {window}.")
    require(0 < stride <= window, f"Occlusion needs a stride above 0 and at most its window {window}, not {stride}.")
    channels, *size = context.images.shape[1:]
    sides, steps = ([max(1, count_of_share(share, length)) for length in size] for share in (window, stride))
    method = Occlusion(pad_single_image_passes(context.output))
    maps = [
        _mean_of_channels(
            method.attribute(
                part.images,
                sliding_window_shapes=(channels, *sides),
                strides=(channels, *steps),
                baselines=part.baseline(baseline),
                target=part.targets,
                perturbations_per_eval=_masks_per_pass(part),
            )
        )
        for part in split_batch(context)
    ]
    return {"occlusion": torch.cat(maps)}


@explainer("feature_ablation", family="superpixels", ablates=True)
def feature_ablation(context: Batch, *, grid: PatchGrid = 8, baseline: BaselineName = None) -> dict[str, torch.Tensor]:
    """Drop of the output when a baseline replaces one patch of a grid (captum `FeatureAblation`).

    With the grid and baseline of the patch drops that IDSDS correlates maps with, the maps are the drops themselves: an
    upper bound that does not compete.

    Parameters
    ----------
    context
        The batch.
    grid
        Number of patches along a side, or of rows and columns. One network pass for each patch, and one for the image.
    baseline
        As in `heatproof.explainers.path.integrated_gradients`.

    Returns
    -------
    dict
        ``feature_ablation``: (N, H, W), any sign, in units of the output, higher is more relevant.

    Raises
    ------
    HeatproofError
        If a side of the image has fewer pixels than the grid has patches along it.
    """
    from captum.attr import FeatureAblation

    patches = index_patches(tuple(context.images.shape[2:]), grid).to(context.images.device)
    method = FeatureAblation(pad_single_image_passes(context.output))
    maps = [
        _mean_of_channels(
            method.attribute(
                part.images,
                baselines=part.baseline(baseline),
                target=part.targets,
                feature_mask=patches[None, None].expand(1, *part.images.shape[1:]),
                perturbations_per_eval=_masks_per_pass(part),
            )
        )
        for part in split_batch(context)
    ]
    return {"feature_ablation": torch.cat(maps)}


@explainer("lime", family="superpixels")
def lime(
    context: Batch,
    *,
    masks: Masks = 500,
    segments: Segments = "grid",
    cells: Cells = 8,
    kernel_width: Annotated[float, Bounds(above=0)] = 0.25,
    alpha: Annotated[float, Bounds(above=0)] = 1.0,
    baseline: BaselineName = None,
) -> dict[str, torch.Tensor]:
    """LIME: ridge regression of the output on the superpixels that are kept (captum `Lime`).

    Ribeiro, Singh and Guestrin, "Why should I trust you?", 2016, section 3, equation 2. Each superpixel is kept with
    probability 1/2. The weight of a masked image is exp(−d² / 2 w²), with the cosine distance d between it and the
    image, and the kernel width w. captum's default regression is a lasso, which sets most superpixels to zero.

    Parameters
    ----------
    context
        The batch.
    masks
        Number of masked images, one network pass each.
    segments
        ``"grid"``: patches of a regular grid; ``"slic"``: superpixels of scikit-image's SLIC (an optional extra).
    cells
        Number of cells along a side of the grid, or rows and columns. SLIC makes about as many superpixels as the grid
        has cells.
    kernel_width, alpha
        Width of the kernel, and strength of the ridge penalty.
    baseline
        As in `heatproof.explainers.path.integrated_gradients`.

    Returns
    -------
    dict
        ``lime``: (N, H, W), any sign, in units of the output, each pixel with its superpixel's coefficient, higher is
        more relevant.

    Raises
    ------
    HeatproofError
        If an option is out of its range, or `segments` is ``"slic"`` and scikit-image is not installed.
    """
    from captum.attr import Lime
    from captum.attr._core.lime import get_exp_kernel_similarity_function

    require(kernel_width > 0, f"LIME needs a kernel width above 0, not {kernel_width}.")
    require(alpha > 0, f"LIME needs an alpha above 0, not {alpha}.")

    def make(network: Any) -> Any:
        from sklearn.linear_model import Ridge

        return Lime(network, _Regression(Ridge(alpha)), get_exp_kernel_similarity_function("cosine", kernel_width))

    return {"lime": _regress_masks(context, "lime", make, masks, segments, cells, baseline)}


@explainer(
    "kernel_shap",
    family="superpixels",
    sums_to="the output at the image minus the output at the baseline, over superpixels",
)
def kernel_shap(
    context: Batch,
    *,
    masks: Masks = 500,
    segments: Segments = "grid",
    cells: Cells = 8,
    baseline: BaselineName = None,
) -> dict[str, torch.Tensor]:
    """KernelSHAP: Shapley values of superpixels, by regression (captum `KernelShap`).

    Lundberg and Lee, "A unified approach to interpreting model predictions", 2017, theorem 2. The values of the
    superpixels sum to the output at the image minus the output at the baseline.

    Parameters
    ----------
    context
        The batch.
    masks
        Number of masked images, including the image and the baseline; one network pass each.
    segments, cells, baseline
        See `lime`.

    Returns
    -------
    dict
        ``kernel_shap``: (N, H, W), any sign, in units of the output, each pixel with its superpixel's value, higher is
        more relevant.

    Raises
    ------
    HeatproofError
        If an option is out of its range, or `segments` is ``"slic"`` and scikit-image is not installed.
    """
    from captum.attr import KernelShap

    def make(network: Any) -> Any:
        from sklearn.linear_model import LinearRegression

        method = KernelShap(network)
        method.interpretable_model = _Regression(LinearRegression())
        return method

    return {"kernel_shap": _regress_masks(context, "kernel_shap", make, masks, segments, cells, baseline)}


class _Regression:
    """Regression in float64, because captum's float32 models cannot represent KernelSHAP's weights."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def fit(self, samples: Any) -> None:
        ((masks, outputs, weights),) = samples
        self.device = masks.device
        # KernelSHAP's first two masks keep all superpixels, and none.
        self.extreme_outputs = outputs.flatten()[:2]
        masks, outputs, weights = (values.cpu().numpy().astype(np.float64) for values in (masks, outputs, weights))
        self.model.fit(masks, outputs, sample_weight=weights)

    def representation(self) -> torch.Tensor:
        return torch.from_numpy(self.model.coef_).float().to(self.device)


def _regress_masks(
    context: Batch,
    name: str,
    make: Callable[[Any], Any],
    masks: int,
    segments: str,
    cells: AnyGrid,
    baseline: str | None,
) -> torch.Tensor:
    require(masks >= 3, f"{name} needs at least 3 masks, not {masks}.")
    require(patch_count(cells) >= 2, f"{name} needs at least 2 cells a side, not {cells}.")
    method = make(pad_single_image_passes(context.output))
    all_segments = index_segments(context, segments, cells)
    maps, sums = [], []
    baseline_images = context.baseline(baseline)
    for image, baseline_image, target, segment_of_pixel, image_id in zip(
        context.images, baseline_images, context.targets.tolist(), all_segments, context.image_ids, strict=True
    ):
        require(
            int(segment_of_pixel.max()) > 0,
            f"The image {image_id!r} is a single superpixel: take segments: grid for {name}.",
        )
        # captum draws masks one by one on the CPU, from the global generator and in the default dtype.
        with torch.random.fork_rng(devices=[]), _float32_by_default():
            torch.default_generator.manual_seed(derive_seed(context.seed, f"{name} masks", image_id))
            values = method.attribute(
                image[None],
                baselines=baseline_image[None],
                target=target,
                feature_mask=segment_of_pixel[None, None],
                n_samples=masks,
                perturbations_per_eval=context.batch_size,
                return_input_shape=False,
            )
        maps.append(values.reshape(-1)[segment_of_pixel])
        sums.append(torch.stack([method.interpretable_model.extreme_outputs.diff().neg()[0], values.sum()]))
    if name == "kernel_shap":
        context.note_sum(*torch.stack(sums, 1))
    return torch.stack(maps)


@contextmanager
def _float32_by_default() -> Iterator[None]:
    previous = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        yield
    finally:
        torch.set_default_dtype(previous)


def _masks_per_pass(part: Batch) -> int:
    return max(1, part.batch_size // len(part.image_ids))


def _mean_of_channels(values: torch.Tensor) -> torch.Tensor:
    # Channels are deleted together, and captum attributes the complete drop to each of them.
    return values.detach().mean(1)

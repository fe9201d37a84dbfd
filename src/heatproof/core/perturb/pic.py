"""Images for performance information curves, the outputs of a network for them, and their entropies."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from fractions import Fraction
from io import BytesIO
from itertools import islice
from math import ceil

import numpy as np
import torch
from PIL import Image, features
from scipy.interpolate import LinearNDInterpolator
from scipy.spatial import Delaunay

from heatproof.core.batch import Batch, PerturbedImages
from heatproof.core.randomness import numpy_generator
from heatproof.core.sequences import check_ranking, pixel_ranking
from heatproof.core.shares import exact_share
from heatproof.core.threads import numeric_pool
from heatproof.errors import HeatproofError

THRESHOLDS = (0.005, 0.01, 0.02, 0.03, 0.04, 0.05, 0.07, 0.1, 0.13, 0.21, 0.34, 0.5, 0.75)
MASKS = ("rank", "quantile")
# Far above the rounding of a normalisation in float32, far below a grey level.
NEAR_LEVEL = 1e-3
OUTSIDE = 0.05

Variant = tuple[np.ndarray, int]


def random_mask(height: int, width: int, seed: int, pixels: int = 10) -> np.ndarray:
    """Draw the pixels that are known in every image, the same for all images.

    Parameters
    ----------
    height, width
        Size of the images in pixels.
    seed
        Seed of the workflow.
    pixels
        Number of pixels, which are all different.

    Returns
    -------
    numpy.ndarray
        (H, W) bool. The four corners, which are always known, are not drawn; `interpolate` adds them.

    Raises
    ------
    HeatproofError
        If the images have fewer pixels.
    """
    if not 0 <= pixels <= height * width:
        raise HeatproofError(f"{pixels} random pixels are more than an image of {height}×{width} has: keep fewer.")
    generator = numpy_generator(seed, "PIC random mask", f"{height}x{width}")
    mask = np.zeros(height * width, dtype=bool)
    mask[generator.choice(height * width, size=pixels, replace=False)] = True
    return mask.reshape(height, width)


def counts_above_quantile(pixels: int, thresholds: Sequence[float] = THRESHOLDS) -> np.ndarray:
    """Return the number of pixels at or above the quantile ``1 - t`` of a map without ties.

    Parameters
    ----------
    pixels
        Number of pixels of the map.
    thresholds
        K values in (0, 1].

    Returns
    -------
    numpy.ndarray
        (K,) int64, at least 1.

    Raises
    ------
    HeatproofError
        If the thresholds are not increasing within (0, 1].
    """
    values = [float(t) for t in thresholds]
    if not values or values != sorted(set(values)) or not 0 < values[0] <= values[-1] <= 1:
        raise HeatproofError(f"Thresholds must be increasing, above 0 and at most 1, not {values}.")
    return np.array([pixels - ceil(_rank_of_quantile(t, pixels)) for t in thresholds], dtype=np.int64)


def rank_masks(ranking: np.ndarray, height: int, width: int, thresholds: Sequence[float] = THRESHOLDS) -> np.ndarray:
    """Select the first pixels of a ranking, as many as the quantile rule selects for a map without ties.

    Parameters
    ----------
    ranking
        (H × W,) int64, most salient first.
    height, width
        Size of the image in pixels.
    thresholds
        K shares, as in `counts_above_quantile`.

    Returns
    -------
    numpy.ndarray
        (K, H, W) bool, nested.
    """
    rank = np.empty(height * width, dtype=np.int64)
    rank[ranking] = np.arange(height * width)
    return (rank < counts_above_quantile(height * width, thresholds)[:, None]).reshape(-1, height, width)


def quantile_masks(one_map: np.ndarray, thresholds: Sequence[float] = THRESHOLDS) -> np.ndarray:
    """Select the pixels at or above a quantile of the map (the published rule, which includes all ties).

    Parameters
    ----------
    one_map
        (H, W).
    thresholds
        K shares, as in `counts_above_quantile`.

    Returns
    -------
    numpy.ndarray
        (K, H, W) bool. For a constant map, every threshold selects all pixels.
    """
    counts_above_quantile(one_map.size, thresholds)
    rising = np.sort(one_map, axis=None)
    ranks = [_rank_of_quantile(t, one_map.size) for t in thresholds]
    # A quantile between two pixels selects the upper one.
    return np.stack([one_map >= rising[ceil(rank)] for rank in ranks])


def _rank_of_quantile(threshold: float, pixels: int) -> Fraction:
    """Return where the quantile ``1 - threshold`` lies among pixels in rising order, 0 for the first one."""
    return (1 - exact_share(threshold)) * (pixels - 1)


def interpolate(image: np.ndarray, visible: np.ndarray) -> np.ndarray:
    """Interpolate linearly between known pixels, on their Delaunay triangulation.

    The result equals ``scipy.interpolate.griddata(..., method="linear")`` on each channel, but needs one triangulation.

    Parameters
    ----------
    image
        (H, W, C) float32.
    visible
        (H, W) bool, known pixels; the four corners are always known.

    Returns
    -------
    numpy.ndarray
        (H, W, C) float32. A pixel outside of all triangles gets the channel's mean.
    """
    visible = visible.copy()
    visible[np.ix_([0, -1], [0, -1])] = True
    filled = image.copy()
    missing = ~visible
    if not missing.any():
        return filled
    if 1 in missing.shape:
        # Pixels in a line have no triangles, and linear interpolation needs none: both ends are known.
        filled[missing] = _interpolated_line(image.reshape(visible.size, -1), visible.ravel())
        return filled
    # In row order, because the triangulation of a grid is not unique, and depends on the order of the points.
    triangles = Delaunay(np.argwhere(visible).astype(np.float64))
    values = LinearNDInterpolator(triangles, image[visible])(np.argwhere(missing).astype(np.float64))
    filled[missing] = np.where(np.isnan(values), image.mean(axis=(0, 1)), values)
    return filled


def _interpolated_line(image: np.ndarray, visible: np.ndarray) -> np.ndarray:
    """Return the values (missing pixels, C) between the known pixels (P,) of a line of pixels (P, C)."""
    missing_at, visible_at = np.flatnonzero(~visible), np.flatnonzero(visible)
    return np.stack([np.interp(missing_at, visible_at, channel[visible_at]) for channel in image.T], axis=1)


def entropy_unsupported_reason(channels: int) -> str | None:
    """Return why images with this number of channels have no entropy; None if they have one."""
    reason = f"An image has {channels} channels: SIC and AIC need one or three, as WebP does."
    return None if channels in (1, 3) else reason


def entropy(image: np.ndarray) -> int:
    """Return the size in bytes of an image as lossless WebP, the entropy estimate of Kapishnikov et al.

    Parameters
    ----------
    image
        (H, W, C) in [0, 1], one or three channels; grey levels are rounded down, as published.

    Returns
    -------
    int
        Size in bytes, which depends on the version of libwebp; see `encoder`.

    Raises
    ------
    HeatproofError
        If the number of channels is neither one nor three, or Pillow lacks WebP.
    """
    if reason := entropy_unsupported_reason(image.shape[-1]):
        raise HeatproofError(reason)
    encoder()
    levels = (image * np.float32(255)).astype(np.uint8)
    file, encoded = BytesIO(), Image.fromarray(levels[..., 0] if levels.shape[-1] == 1 else levels)
    encoded.save(file, format="webp", lossless=True, quality=100)
    return file.tell()


def encoder() -> str:
    """Return name and version of the encoder on which entropies depend.

    Raises
    ------
    HeatproofError
        If Pillow was built without WebP.
    """
    version = features.version("webp")
    if version is None:
        raise HeatproofError("Pillow was built without WebP, which SIC and AIC need: install Pillow from PyPI.")
    return f"libwebp {version}"


def denormalise(
    images: torch.Tensor, image_ids: Sequence[str], mean: Sequence[float], std: Sequence[float]
) -> np.ndarray:
    """Undo the normalisation of images.

    Values next to a grey level of 8 bits are set to it. Entropies round down, and a level that normalisation has
    lowered by one part in ten million would otherwise become the level below.

    Parameters
    ----------
    images
        (N, C, H, W), normalised.
    image_ids
        N strings, for messages.
    mean, std
        C values each, with which the images were normalised.

    Returns
    -------
    numpy.ndarray
        (N, H, W, C) float32 in [0, 1].

    Raises
    ------
    HeatproofError
        If mean and std do not fit: their number is wrong, or an image is far outside [0, 1].
    """
    channels = images.shape[1]
    if len(mean) != channels or len(std) != channels:
        raise HeatproofError(
            f"Images of {channels} channels need {channels} values of mean and of std: give those of the normalisation."
        )
    restored = images.detach().cpu().float().permute(0, 2, 3, 1).numpy() * np.asarray(std, dtype=np.float32)
    restored += np.asarray(mean, dtype=np.float32)
    wrong = ~((restored >= -OUTSIDE) & (restored <= 1 + OUTSIDE)).all(axis=(1, 2, 3))
    if wrong.any():
        at = np.flatnonzero(wrong)[0]
        raise HeatproofError(
            f"Image {image_ids[at]!r} times std plus mean runs from {restored[at].min():.2f} to "
            f"{restored[at].max():.2f}, far outside 0 to 1: give the mean and std that the images were normalised with."
        )
    restored = np.clip(restored, 0, 1)
    level = np.rint(restored * np.float32(255))
    return np.where(np.abs(restored * np.float32(255) - level) < NEAR_LEVEL, level / np.float32(255), restored)


def pic_variants(
    batch: Batch,
    maps: np.ndarray,
    *,
    mean: Sequence[float],
    std: Sequence[float],
    thresholds: Sequence[float] = THRESHOLDS,
    ranking: np.ndarray | None = None,
    random_mask: np.ndarray | None = None,
    masks: str = "rank",
) -> tuple[Iterator[PerturbedImages], int, list[int]]:
    """Make images in which only the most salient pixels are known (Kapishnikov et al. 2019, section 4).

    Both curves, SIC and AIC, come from a network's outputs for these images: exactly N × (K + 2) images pass through
    the network, and as many are encoded. They are made in as many threads as PyTorch has; the numbers do not depend on
    the number of threads.

    Parameters
    ----------
    batch
        N images with their network, of one or three channels; their ids order equal values of a map.
    maps
        (N, H, W), higher is more salient; the published metric is meant for maps of absolute values.
    mean, std
        C values each, with which the images were normalised.
    thresholds
        K shares of known pixels, increasing.
    ranking
        (N, H × W) int64: pixels, most salient first, instead of the order of the maps.
    random_mask
        (H, W) bool, pixels that are known in every image; None for ten random pixels.
    masks
        ``rank`` selects exactly the required number of pixels, ``quantile`` all that tie with the last, as published.

    Returns
    -------
    batches, variants
        Arguments of `read_variants`, whose arrays are then over the V = K + 2 variants: completely blurred, thresholds,
        original.
    entropies
        List that is filled while the batches are made: the size of each variant in bytes, V for each of the N images.

    Raises
    ------
    HeatproofError
        If maps, thresholds, masks, mean or std do not fit the images.
    """
    images, image_ids, device = batch.images, batch.image_ids, batch.device
    if maps.shape != (len(images), *images.shape[-2:]):
        raise HeatproofError(
            f"Maps {maps.shape} do not belong to {len(images)} images of {images.shape[-2]}×{images.shape[-1]}."
        )
    masks_of_images = _checked_masks(maps, image_ids, thresholds, batch.seed, ranking, random_mask, masks)
    rendered = denormalise(images, image_ids, mean, std)
    variants = len(thresholds) + 2
    sizes: list[int] = []

    def batches() -> Iterator[PerturbedImages]:
        stream = _variants(rendered, masks_of_images)
        while chunk := list(islice(stream, batch.batch_size)):
            stacked = torch.from_numpy(np.stack([image for image, _ in chunk])).permute(0, 3, 1, 2).to(device)
            variant = torch.arange(len(sizes), len(sizes) + len(chunk), device=device)
            sizes.extend(size for _, size in chunk)
            row = variant // variants
            scale = [
                torch.as_tensor(np.asarray(values, np.float32), device=device).reshape(-1, 1, 1)
                for values in (mean, std)
            ]
            perturbed = ((stacked - scale[0]) / scale[1]).to(images.dtype)
            # The original passes unchanged, without the rounding of denormalising and normalising.
            intact = variant % variants == variants - 1
            perturbed[intact] = images[row[intact].to(images.device)].to(device)
            yield batch.match_layout(perturbed), row

    return batches(), variants, sizes


def _checked_masks(
    maps: np.ndarray,
    image_ids: Sequence[str],
    thresholds: Sequence[float],
    seed: int,
    ranking: np.ndarray | None,
    always: np.ndarray | None,
    masks: str,
) -> Iterator[np.ndarray]:
    """Yield, per image, the masks (K + 1, H, W) of known pixels: the random ones only, then one per threshold."""
    count, height, width = maps.shape
    if masks not in MASKS:
        raise HeatproofError(f"masks is {masks!r}: take one of {', '.join(MASKS)}.")
    if masks == "quantile" and ranking is not None:
        raise HeatproofError("Quantile masks use the values of maps, not a ranking: leave one of the two out.")
    finite = np.isfinite(maps).all(axis=(1, 2))
    if not finite.all():
        raise HeatproofError(
            f"The map of image {image_ids[np.flatnonzero(~finite)[0]]!r} has a value that is not finite: leave it out."
        )
    if ranking is not None:
        check_ranking(ranking, count, height * width, image_ids)
    always = random_mask(height, width, seed) if always is None else np.asarray(always)
    if always.shape != (height, width):
        raise HeatproofError(f"A random mask {always.shape} does not fit images of {height}×{width}.")
    always = always.astype(bool)
    counts_above_quantile(height * width, thresholds)

    def selected(at: int) -> np.ndarray:
        if masks == "quantile":
            return quantile_masks(maps[at], thresholds)
        row = slice(at, at + 1)
        order = pixel_ranking(maps[row], image_ids[row], seed) if ranking is None else ranking[row]
        return rank_masks(order[0], height, width, thresholds)

    return (np.concatenate([always[None], selected(at) | always]) for at in range(count))


def _variants(rendered: np.ndarray, masks_of_images: Iterable[np.ndarray]) -> Iterator[Variant]:
    """Yield each interpolated image with its entropy, image by image, in the order of variants."""

    def variant(image: np.ndarray, mask: np.ndarray | None) -> Variant:
        filled = image if mask is None else interpolate(image, mask)
        return filled, entropy(filled)

    ready: deque[list[Future[Variant]]] = deque()
    with numeric_pool(torch.get_num_threads()) as pool:
        for image, masks in zip(rendered, masks_of_images, strict=True):
            ready.append([pool.submit(variant, image, mask) for mask in (*masks, None)])
            # One image ahead, so that the threads work during network passes, and memory does not grow with N.
            if len(ready) > 1:
                yield from (future.result() for future in ready.popleft())
        while ready:
            yield from (future.result() for future in ready.popleft())

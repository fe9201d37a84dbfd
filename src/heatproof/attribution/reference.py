"""Reference maps that know no model: what any explainer has to beat."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heatproof.attribution._parts import draw_per_image
from heatproof.attribution.registry import Explained, explainer

if TYPE_CHECKING:
    import torch


@explainer("random", uses_model=False)
def random(explained: Explained) -> dict[str, torch.Tensor]:
    """Uniform noise in [-1, 1), drawn for each image.

    Returns
    -------
    dict
        ``random``: (N, H, W), any sign.
    """
    import torch

    size = explained.images.shape[2:]
    drawn = draw_per_image(explained, "random map", lambda generator: torch.rand(size, generator=generator))
    return {"random": drawn * 2 - 1}


@explainer("edges", signed=False, uses_model=False)
def edges(explained: Explained) -> dict[str, torch.Tensor]:
    """Magnitude of the Sobel gradient of the image's channel mean (scipy).

    The images are taken as normalised, and repeated beyond their borders. An edge detector as a reference: Adebayo
    et al., "Sanity checks for saliency maps", 2018, section 5.

    Returns
    -------
    dict
        ``edges``: (N, H, W), not negative, higher is a stronger edge.
    """
    import numpy as np
    import torch
    from scipy.ndimage import generic_gradient_magnitude, sobel

    # One image at a time: over a stack, scipy would smooth across neighbouring images.
    grey = explained.images.detach().mean(1).cpu().numpy()
    maps = np.stack([generic_gradient_magnitude(image, sobel, mode="nearest") for image in grey])
    return {"edges": torch.from_numpy(maps).to(explained.images)}

"""Explainers that take one gradient of the output: saliency and input × gradient."""

from __future__ import annotations

from heatproof.core.batch import Batch
from heatproof.core.lazy import torch
from heatproof.explainers._batches import as_leaf, pad_single_image_passes, split_batch
from heatproof.explainers.registry import explainer


@explainer("saliency", family="gradient")
def saliency(context: Batch) -> dict[str, torch.Tensor]:
    """Signed gradient of the target output with respect to the image (captum `Saliency`).

    Its unit is that of the output per normalised pixel value. Simonyan, Vedaldi and Zisserman, "Deep inside
    convolutional networks", 2014, section 3, take the absolute value, which is the ``abs`` row of the tables here.

    Parameters
    ----------
    context
        The batch.

    Returns
    -------
    dict
        ``saliency``: (N, H, W), any sign, higher is more relevant.
    """
    from captum.attr import Saliency

    method = Saliency(pad_single_image_passes(context.output))
    maps = [
        method.attribute(as_leaf(part.images), target=part.targets, abs=False).detach().sum(1)
        for part in split_batch(context)
    ]
    return {"saliency": torch.cat(maps)}


@explainer("input_x_gradient", family="gradient")
def input_x_gradient(context: Batch) -> dict[str, torch.Tensor]:
    """Input × gradient (captum `InputXGradient`).

    Its unit is that of the output. Shrikumar et al., "Not just a black box", 2016, section 2.

    Parameters
    ----------
    context
        The batch.

    Returns
    -------
    dict
        ``input_x_gradient``: (N, H, W), any sign, higher is more relevant.
    """
    return {"input_x_gradient": torch.cat([multiply_by_gradient(part).sum(1) for part in split_batch(context)])}


def multiply_by_gradient(part: Batch) -> torch.Tensor:
    """Return input × gradient, (N, C, H, W), in one network pass."""
    from captum.attr import InputXGradient

    return (
        InputXGradient(pad_single_image_passes(part.output))
        .attribute(as_leaf(part.images), target=part.targets)
        .detach()
    )

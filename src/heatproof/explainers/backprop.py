"""Explainers that modify the backward pass of ReLUs: guided backprop and deconvolution."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from heatproof.core.batch import Batch
from heatproof.core.lazy import torch
from heatproof.errors import NotApplicable
from heatproof.explainers._batches import as_leaf, pad_single_image, pad_single_image_passes, require, split_batch
from heatproof.explainers._hooks import in_this_thread
from heatproof.explainers._unaltered import require_unaltered_outputs
from heatproof.explainers.registry import explainer

# Differences below this share of the largest gradient are rounding.
ROUNDING = 1e-6


@explainer("guided_backprop", family="backprop", applies_to={"relu"})
def guided_backprop(context: Batch) -> dict[str, torch.Tensor]:
    """Gradient with only positive values passed back through active ReLUs.

    Springenberg et al., "Striving for simplicity", 2015, section 3.4. The rule applies to every ReLU that the network
    calls: as a module, a function or a method, in place or not, and as other functions that compute a ReLU, such as
    ``clamp(min=0)``. Activations with an upper bound or a negative slope keep their gradient.

    Parameters
    ----------
    context
        The batch.

    Returns
    -------
    dict
        ``guided_backprop``: (N, H, W), any sign, in units of the output per normalised pixel value, higher is more
        relevant.

    Raises
    ------
    NotApplicable
        If no gradient passes through a ReLU of the network, or a gradient passes through a ReLU that no rule reaches,
        such as one in a scripted part. A custom operator (``torch.library.custom_op``) counts as one, because its
        content cannot be read.
    """
    return {"guided_backprop": _modified_gradients(context, "guided", "guided backprop")}


@explainer(
    "deconvolution",
    family="backprop",
    applies_to={"relu"},
    exempt={
        "follows_the_image": "its rule for ReLUs reads the gradient alone, and no pixel without max-pooling",
        "finds_the_evidence": "its rule for ReLUs reads the gradient alone, and no pixel without max-pooling",
    },
)
def deconvolution(context: Batch) -> dict[str, torch.Tensor]:
    """Gradient with only positive values passed back through all ReLUs.

    Zeiler and Fergus, "Visualizing and understanding convolutional networks", 2014, section 2.1. The rule applies to
    the same ReLUs as that of `guided_backprop`.

    Parameters
    ----------
    context
        The batch.

    Returns
    -------
    dict
        ``deconvolution``: (N, H, W), any sign, in units of the output per normalised pixel value, higher is more
        relevant.

    Raises
    ------
    NotApplicable
        As for `guided_backprop`.
    """
    return {"deconvolution": _modified_gradients(context, "deconvolution", "deconvolution")}


@explainer("guided_grad_cam", family="backprop", needs={"cam_layer"}, applies_to={"relu"})
def guided_grad_cam(context: Batch) -> dict[str, torch.Tensor]:
    """Guided backprop times bilinearly upsampled Grad-CAM, as captum's `GuidedGradCam` defines it.

    Selvaraju et al., "Grad-CAM", 2017, section 3.2.

    Parameters
    ----------
    context
        The batch.

    Returns
    -------
    dict
        ``guided_grad_cam``: (N, H, W), any sign, higher is more relevant.

    Raises
    ------
    NotApplicable
        As for `guided_backprop`, or if the network has no layer with a spatial grid.
    """
    guided = _modified_gradients(context, "guided", "guided backprop", compares_with_gradient=False)
    return {"guided_grad_cam": guided * torch.cat(list(_grad_cams(context)))[:, 0]}


def _grad_cams(context: Batch) -> Iterator[torch.Tensor]:
    """Yield the Grad-CAM (N, 1, H, W) of each part of a batch."""
    from heatproof.explainers._cells import enlarge
    from heatproof.explainers._layers import grid_layer

    with grid_layer(context) as (output, layer, name), torch.enable_grad():
        activations: list[torch.Tensor] = []
        gradients: list[torch.Tensor] = []

        def record(module: torch.nn.Module, inputs: object, grid: torch.Tensor) -> None:
            require(
                getattr(grid, "ndim", 0) == 4,
                f"The layer {name!r} does not put out (N, channels, height, width), which class "
                "activation maps need: name another in cam_layer.",
            )
            # Cloned at once, because later layers may write into it; the gradient is still that of the layer's output.
            activations.append(grid.detach().clone())
            grid.register_hook(gradients.append)

        handle = layer.register_forward_hook(in_this_thread(record))
        try:
            for part in split_batch(context):
                padded, count = pad_single_image(part), len(part.image_ids)
                inputs_of_pass = as_leaf(padded.images)
                outputs = output(inputs_of_pass.clone())
                torch.autograd.grad(outputs.gather(1, padded.targets[:, None]).sum(), inputs_of_pass)
                weighted = gradients.pop().mean((2, 3), keepdim=True) * activations.pop()
                cam = weighted.sum(1, keepdim=True).relu()[:count]
                yield enlarge(cam, part.images.shape[2:], layer.cells)
        finally:
            handle.remove()


def _modified_gradients(
    context: Batch, kind: Literal["guided", "deconvolution"], name: str, compares_with_gradient: bool = True
) -> torch.Tensor:
    """Return the gradients (N, H, W) under a rule for ReLUs, summed over channels."""
    from heatproof.explainers._relus import ReluRules

    rules, maps = ReluRules(kind), []
    for part in split_batch(context):
        padded, count = pad_single_image(part), len(part.image_ids)
        inputs = as_leaf(padded.images)
        with rules, torch.enable_grad():
            outputs = part.output(inputs.clone())
        require_unaltered_outputs(part, padded.images, outputs)
        rules.watch_bypasses(outputs)
        gradient = rules.gradient(outputs.gather(1, padded.targets[:, None]).sum(), inputs)
        if rules.was_bypassed:
            raise NotApplicable(
                f"{name} cannot reach a ReLU of this network that runs in another thread, in a part that is scripted "
                "or compiled, in a torch.autograd.Function, or in a custom operator, whose content it cannot read: "
                "pass the model as it was before"
            )
        maps.append(gradient.detach().sum(1)[:count])
    if not rules.was_applied:
        raise NotApplicable(f"{name} equals the plain gradient on this network, because it calls no ReLU")
    stacked = torch.cat(maps)
    if context.figures is not None and compares_with_gradient:
        _require_difference(context, stacked, name)
    return stacked


def _require_difference(context: Batch, maps: torch.Tensor, name: str) -> None:
    from captum.attr import Saliency

    method = Saliency(pad_single_image_passes(context.output))
    gradients = [
        method.attribute(as_leaf(part.images), target=part.targets, abs=False) for part in split_batch(context)
    ]
    plain = torch.cat([gradient.detach().sum(1) for gradient in gradients])
    scale = plain.abs().amax((1, 2)).clamp_min(1e-30)
    context.note("difference_from_gradient", (maps - plain).abs().amax((1, 2)) / scale)
    if context.figures is not None and context.figures["difference_from_gradient"].value <= ROUNDING:
        raise NotApplicable(f"{name} equals the plain gradient on this network, because no ReLU changes it")

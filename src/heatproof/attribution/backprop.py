"""Explainers that modify the backward pass of ReLUs: guided backprop and deconvolution."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from heatproof.attribution._batches import accompany, leaf, never_alone, parts, require
from heatproof.attribution.registry import Explained, explainer
from heatproof.errors import NotApplicable

if TYPE_CHECKING:
    import torch

# Largest difference, as a share of the largest gradient, that is rounding.
SAME = 1e-6


@explainer("guided_backprop", family="backprop", applies_to={"relu"})
def guided_backprop(explained: Explained) -> dict[str, torch.Tensor]:
    """Gradient with only positive values passed back through active ReLUs (captum `GuidedBackprop`).

    Springenberg et al., "Striving for simplicity", 2015, section 3.4. Only ReLUs that are modules are changed: one
    that is called as a function gives its plain gradient.

    Returns
    -------
    dict
        ``guided_backprop``: (N, H, W), any sign, in units of the output per normalised pixel value, higher is more
        relevant.

    Raises
    ------
    NotApplicable
        If the network has no ReLU module.
    """
    from captum.attr import GuidedBackprop

    return {"guided_backprop": _through_relus(explained, GuidedBackprop, "guided backprop")}


@explainer(
    "deconvolution",
    family="backprop",
    applies_to={"relu"},
    exempt={
        "follows_the_image": "its rule for ReLUs reads the gradient alone, and no pixel without max-pooling",
        "finds_the_evidence": "its rule for ReLUs reads the gradient alone, and no pixel without max-pooling",
    },
)
def deconvolution(explained: Explained) -> dict[str, torch.Tensor]:
    """Gradient with only positive values passed back through all ReLUs (captum `Deconvolution`).

    Zeiler and Fergus, "Visualizing and understanding convolutional networks", 2014, section 2.1. Only ReLUs that are
    modules are changed.

    Returns
    -------
    dict
        ``deconvolution``: (N, H, W), any sign, in units of the output per normalised pixel value, higher is more
        relevant.

    Raises
    ------
    NotApplicable
        If the network has no ReLU module.
    """
    from captum.attr import Deconvolution

    return {"deconvolution": _through_relus(explained, Deconvolution, "deconvolution")}


@explainer("guided_grad_cam", family="backprop", needs={"cam_layer"}, applies_to={"relu"})
def guided_grad_cam(explained: Explained) -> dict[str, torch.Tensor]:
    """Guided backprop times bilinearly upsampled Grad-CAM (captum `GuidedGradCam`).

    Selvaraju et al., "Grad-CAM", 2017, section 3.2.

    Returns
    -------
    dict
        ``guided_grad_cam``: (N, H, W), any sign, higher is more relevant.

    Raises
    ------
    NotApplicable
        If the network has no ReLU module, or no layer with a spatial grid.
    """
    import torch
    from captum.attr import GuidedGradCam

    from heatproof.attribution._hooks import hookable
    from heatproof.attribution._layers import grid_layer

    _require_relus(explained.network, "guided backprop")
    maps = []
    grids: list[bool] = []
    with grid_layer(explained) as (output, layer, name), hookable(output), torch.enable_grad():
        handle = layer.register_forward_hook(lambda *called: grids.append(getattr(called[-1], "ndim", 0) == 4))
        try:
            method = GuidedGradCam(output, layer)
            for part in parts(explained):
                both = accompany(part)
                maps_of_both = method.attribute(leaf(both.images), target=both.targets, interpolate_mode="bilinear")
                require(
                    all(grids),
                    f"The layer {name!r} does not put out (N, channels, height, width), which class "
                    "activation maps need: name another in cam_layer.",
                )
                maps.append(maps_of_both[: len(part.image_ids)].detach().sum(1))
        finally:
            handle.remove()
    return {"guided_grad_cam": torch.cat(maps)}


def _through_relus(explained: Explained, captum_class: type, name: str) -> torch.Tensor:
    import torch

    from heatproof.attribution._hooks import hookable

    _require_relus(explained.network, name)
    method: Any = captum_class(never_alone(explained.output))
    with hookable(explained.output), torch.enable_grad():
        maps = [method.attribute(leaf(part.images), target=part.targets).detach().sum(1) for part in parts(explained)]
    stacked = torch.cat(maps)
    if explained.figures is not None:
        _require_difference(explained, stacked, name)
    return stacked


def _require_difference(explained: Explained, maps: torch.Tensor, name: str) -> None:
    import torch
    from captum.attr import Saliency

    method = Saliency(never_alone(explained.output))
    gradients = [method.attribute(leaf(part.images), target=part.targets, abs=False) for part in parts(explained)]
    plain = torch.cat([gradient.detach().sum(1) for gradient in gradients])
    scale = plain.abs().amax((1, 2)).clamp_min(1e-30)
    explained.note("difference_from_gradient", (maps - plain).abs().amax((1, 2)) / scale)
    if explained.figures is not None and explained.figures["difference_from_gradient"].value <= SAME:
        raise NotApplicable(f"{name} equals the plain gradient on this network, none of whose ReLU modules takes part")


def _require_relus(network: Any, name: str) -> None:
    import torch

    if not any(isinstance(module, torch.nn.ReLU) for module in network.modules()):
        raise NotApplicable(f"{name} equals the plain gradient on this network, which has no ReLU modules")

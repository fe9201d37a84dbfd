"""Class activation maps, through torchcam.

Every map reads the layer that the model's input facts name, is not negative (torchcam applies the ReLU of the
papers), is not rescaled, and is enlarged to the image's size bilinearly.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

from heatproof.attribution._parts import accompany, draw_per_image, leaf, parts, require
from heatproof.attribution.registry import Explained, explainer
from heatproof.bounds import Bounds, Count
from heatproof.errors import NotApplicable
from heatproof.models.registry import InputFacts

if TYPE_CHECKING:
    import torch


@explainer("grad_cam", signed=False, needs={"cam_layer"})
def grad_cam(explained: Explained) -> dict[str, torch.Tensor]:
    """Grad-CAM: channels weighted by their mean gradient (torchcam `GradCAM`).

    Selvaraju et al., "Grad-CAM", 2017, equations 1 and 2.

    Returns
    -------
    dict
        ``grad_cam``: (N, H, W), not negative, higher is more relevant.

    Raises
    ------
    NotApplicable
        If the model names no layer with a spatial grid.
    """
    from torchcam.methods import GradCAM

    return {"grad_cam": _extract(explained, GradCAM)}


@explainer("grad_cam_pp", signed=False, needs={"cam_layer"})
def grad_cam_pp(explained: Explained) -> dict[str, torch.Tensor]:
    """Grad-CAM++: channels weighted by their positive gradients (torchcam `GradCAMpp`).

    Chattopadhyay et al., "Grad-CAM++", 2018, section 3. torchcam 0.5 leaves out the division in the paper's
    coefficients alpha (it divides a temporary copy): a channel's weight is the sum of its positive gradients cubed.

    Returns
    -------
    dict
        ``grad_cam_pp``: (N, H, W), not negative, higher is more relevant.

    Raises
    ------
    NotApplicable
        If the model names no layer with a spatial grid.
    """
    from torchcam.methods import GradCAMpp

    return {"grad_cam_pp": _extract(explained, GradCAMpp)}


@explainer("xgrad_cam", signed=False, needs={"cam_layer"})
def xgrad_cam(explained: Explained) -> dict[str, torch.Tensor]:
    """XGrad-CAM: channels weighted by gradients in proportion to their activations (torchcam `XGradCAM`).

    Fu et al., "Axiom-based Grad-CAM", 2020, section 3.

    Returns
    -------
    dict
        ``xgrad_cam``: (N, H, W), not negative, higher is more relevant.

    Raises
    ------
    NotApplicable
        If the model names no layer with a spatial grid.
    """
    from torchcam.methods import XGradCAM

    return {"xgrad_cam": _extract(explained, XGradCAM)}


@explainer("layer_cam", signed=False, needs={"cam_layer"})
def layer_cam(explained: Explained) -> dict[str, torch.Tensor]:
    """Layer-CAM: activations weighted by their own positive gradients (torchcam `LayerCAM`).

    Jiang et al., "LayerCAM", 2021, section 3.

    Returns
    -------
    dict
        ``layer_cam``: (N, H, W), not negative, higher is more relevant.

    Raises
    ------
    NotApplicable
        If the model names no layer with a spatial grid.
    """
    from torchcam.methods import LayerCAM

    return {"layer_cam": _extract(explained, LayerCAM)}


@explainer("smooth_grad_cam_pp", signed=False, needs={"cam_layer"})
def smooth_grad_cam_pp(
    explained: Explained, *, samples: Count = 4, stdev: Annotated[float, Bounds(above=0)] = 0.3
) -> dict[str, torch.Tensor]:
    """Smooth Grad-CAM++: Grad-CAM++ weights from noisy copies of the image (torchcam `SmoothGradCAMpp`).

    Omeiza et al., "Smooth Grad-CAM++", 2019, section 3. torchcam 0.5 averages over the noisy copies only in the
    coefficients alpha; the first derivative and the activations that they multiply are those of the last copy,
    where the paper has the mean derivative and the image's own activations.

    Parameters
    ----------
    explained
        The batch.
    samples
        Noisy copies of each image, one network pass each.
    stdev
        Standard deviation of the Gaussian noise, in normalised units; it and `samples` are torchcam's defaults.

    Returns
    -------
    dict
        ``smooth_grad_cam_pp``: (N, H, W), not negative, higher is more relevant.

    Raises
    ------
    NotApplicable
        If the model names no layer with a spatial grid.
    HeatproofError
        If `samples` is below 1 or `stdev` not above 0.
    """
    from torchcam.methods import SmoothGradCAMpp

    require(samples >= 1, f"Smooth Grad-CAM++ needs at least 1 sample, not {samples}.")
    require(stdev > 0, f"Smooth Grad-CAM++ needs a standard deviation above 0, not {stdev}.")

    def draw(extractor: Any, part: Explained) -> None:
        extractor._distrib = _NoisePerImage(part, samples, stdev)

    return {"smooth_grad_cam_pp": _extract(explained, SmoothGradCAMpp, draw, num_samples=samples, std=stdev)}


@explainer("score_cam", signed=False, needs={"cam_layer"})
def score_cam(explained: Explained) -> dict[str, torch.Tensor]:
    """Score-CAM: channels weighted by what the output gains where they are active (torchcam `ScoreCAM`).

    Wang et al., "Score-CAM", 2020, section 3.2: the image is multiplied by each channel, enlarged and scaled to
    [0, 1], and the softmax over channels of the target's outputs weighs them. One network pass a channel of the layer.

    Returns
    -------
    dict
        ``score_cam``: (N, H, W), not negative, higher is more relevant.

    Raises
    ------
    NotApplicable
        If the model names no layer with a spatial grid.
    """
    from torchcam.methods import ScoreCAM

    return {"score_cam": _extract(explained, ScoreCAM, batch_size=max(2, explained.batch_size))}


class _NoisePerImage:
    """Stands in for the distribution that torchcam samples for a whole batch from the global generator."""

    def __init__(self, part: Explained, samples: int, stdev: float) -> None:
        import torch

        shape = part.images.shape[1:]
        drawn = draw_per_image(
            part,
            "noise of smooth_grad_cam_pp",
            lambda generator: torch.stack(
                [torch.normal(0.0, stdev, shape, generator=generator) for _ in range(samples)]
            ),
        )
        self.left = list(drawn.unbind(1))

    def sample(self, size: torch.Size) -> torch.Tensor:
        return self.left.pop(0)


def _extract(
    explained: Explained,
    extractor_class: type,
    prepare: Callable[[Any, Explained], None] | None = None,
    **arguments: Any,
) -> torch.Tensor:
    """Return the maps (N, H, W) of one torchcam extractor, which `prepare` may adjust to each network pass."""
    import torch
    from torch.nn.functional import interpolate

    from heatproof.attribution._modules import Together
    from heatproof.models.network import find_layer

    class Watched(extractor_class):
        """Keeps the weights, which torchcam throws away."""

        def _get_weights(self, *arguments: Any, **options: Any) -> list[torch.Tensor]:
            self.weights = super()._get_weights(*arguments, **options)
            return self.weights

    facts = explained.facts or InputFacts()
    if facts.cam_layer is None:
        raise NotApplicable(facts.cam_reason)
    layer = find_layer(explained.network, facts.cam_layer, "model")
    # Score-CAM runs the network itself, and its last pass can be one image.
    output = Together(explained.output)
    maps = []
    for part in parts(explained):
        count, part = len(part.image_ids), accompany(part)
        with Watched(output, layer, **arguments) as extractor, torch.enable_grad():
            if prepare:
                prepare(extractor, part)
            scores = output(leaf(part.images))
            _require_grid(extractor.hook_a[0], facts.cam_layer)
            (cam,) = extractor(part.targets.tolist(), scores, normalized=False)
            activations, weights = extractor.hook_a[0], extractor.weights[0]
            # torchcam sums with nansum: an undefined channel would pass for an irrelevant one.
            undefined = (weights.reshape(*weights.shape, *[1] * (4 - weights.ndim)) * activations).isnan().any(1)
            cam = cam.masked_fill(undefined, torch.nan)
        size = part.images.shape[2:]
        maps.append(interpolate(cam[:count, None].float(), size, mode="bilinear", align_corners=False)[:, 0])
    return torch.cat(maps).detach()


def _require_grid(activations: torch.Tensor | None, name: str) -> None:
    require(
        activations is not None and activations.ndim == 4,
        f"The layer {name!r} does not put out (N, channels, height, width), which class activation maps need: name "
        "another in cam_layer.",
    )

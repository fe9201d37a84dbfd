"""Class activation maps: those of torchcam, and HiResCAM.

Every map reads the layer that the model's input facts name; if they name none, a rule finds the layer. Maps are not
rescaled, and are enlarged bilinearly to the size of the image. All maps but those of HiResCAM are not negative, because
torchcam applies the ReLU of the papers. Tokens, and features with channels last, are converted to feature maps first.

The layers of different networks have different grids, such as 8 × 8 and 2 × 2 for the same image, and a map with fewer
cells scores differently for this reason alone. To compare networks on one grid, the option `grid` of every CAM pools
its map to that many cells along a side before it is enlarged. The default is the grid of the layer; with a grid finer
than that of the layer, the explainer is not applicable.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from heatproof.core.batch import Batch
from heatproof.core.grids import AnyGrid, grid_shape
from heatproof.core.lazy import torch
from heatproof.core.options import Bounds, Count, PatchGrid
from heatproof.core.randomness import counter_normal
from heatproof.errors import NotApplicable
from heatproof.explainers._batches import (
    as_leaf,
    draw_per_image,
    pad_single_image,
    pad_single_image_passes,
    require,
    split_batch,
)
from heatproof.explainers._unaltered import require_unaltered_outputs
from heatproof.explainers.registry import explainer


@explainer("grad_cam", family="cam", signed=False, needs={"cam_layer"})
def grad_cam(context: Batch, *, grid: PatchGrid | None = None) -> dict[str, torch.Tensor]:
    """Grad-CAM: channels weighted by their mean gradient (torchcam `GradCAM`).

    Selvaraju et al., "Grad-CAM", 2017, equations 1 and 2.

    Parameters
    ----------
    context
        The batch.
    grid
        Number of cells along a side, or rows and columns, to which the map is pooled before it is enlarged; None keeps
        the grid of the layer.

    Returns
    -------
    dict
        ``grad_cam``: (N, H, W), not negative, higher is more relevant.

    Raises
    ------
    NotApplicable
        If the network has no layer with a spatial grid, or `grid` is finer than the grid of the layer.
    """
    from torchcam.methods import GradCAM

    return {"grad_cam": _extract(context, GradCAM, grid)}


@explainer("grad_cam_pp", family="cam", signed=False, needs={"cam_layer"})
def grad_cam_pp(context: Batch, *, grid: PatchGrid | None = None) -> dict[str, torch.Tensor]:
    """Grad-CAM++: channels weighted by their positive gradients (torchcam `GradCAMpp`).

    Chattopadhyay et al., "Grad-CAM++", 2018, section 3. torchcam 0.5 leaves out the division in the paper's
    coefficients alpha (it divides a temporary copy): a channel's weight is the sum of its positive gradients cubed.

    Parameters
    ----------
    context
        The batch.
    grid
        Number of cells along a side, or rows and columns, to which the map is pooled before it is enlarged; None keeps
        the grid of the layer.

    Returns
    -------
    dict
        ``grad_cam_pp``: (N, H, W), not negative, higher is more relevant.

    Raises
    ------
    NotApplicable
        If the network has no layer with a spatial grid, or `grid` is finer than the grid of the layer.
    """
    from torchcam.methods import GradCAMpp

    return {"grad_cam_pp": _extract(context, GradCAMpp, grid)}


@explainer("xgrad_cam", family="cam", signed=False, needs={"cam_layer"})
def xgrad_cam(context: Batch, *, grid: PatchGrid | None = None) -> dict[str, torch.Tensor]:
    """XGrad-CAM: channels weighted by gradients in proportion to their activations (torchcam `XGradCAM`).

    Fu et al., "Axiom-based Grad-CAM", 2020, section 3.

    Parameters
    ----------
    context
        The batch.
    grid
        Number of cells along a side, or rows and columns, to which the map is pooled before it is enlarged; None keeps
        the grid of the layer.

    Returns
    -------
    dict
        ``xgrad_cam``: (N, H, W), not negative, higher is more relevant.

    Raises
    ------
    NotApplicable
        If the network has no layer with a spatial grid, or `grid` is finer than the grid of the layer.
    """
    from torchcam.methods import XGradCAM

    return {"xgrad_cam": _extract(context, XGradCAM, grid)}


@explainer("layer_cam", family="cam", signed=False, needs={"cam_layer"})
def layer_cam(context: Batch, *, grid: PatchGrid | None = None) -> dict[str, torch.Tensor]:
    """Layer-CAM: activations weighted by their own positive gradients (torchcam `LayerCAM`).

    Jiang et al., "LayerCAM", 2021, section 3.

    Parameters
    ----------
    context
        The batch.
    grid
        Number of cells along a side, or rows and columns, to which the map is pooled before it is enlarged; None keeps
        the grid of the layer.

    Returns
    -------
    dict
        ``layer_cam``: (N, H, W), not negative, higher is more relevant.

    Raises
    ------
    NotApplicable
        If the network has no layer with a spatial grid, or `grid` is finer than the grid of the layer.
    """
    from torchcam.methods import LayerCAM

    return {"layer_cam": _extract(context, LayerCAM, grid)}


@explainer("smooth_grad_cam_pp", family="cam", signed=False, needs={"cam_layer"})
def smooth_grad_cam_pp(
    context: Batch,
    *,
    samples: Count = 4,
    stdev: Annotated[float, Bounds(above=0)] = 0.3,
    grid: PatchGrid | None = None,
) -> dict[str, torch.Tensor]:
    """Smooth Grad-CAM++: Grad-CAM++ weights from noisy copies of the image (torchcam `SmoothGradCAMpp`).

    Omeiza et al., "Smooth Grad-CAM++", 2019, section 3. torchcam 0.5 averages over the noisy copies only in the
    coefficients alpha; the first derivative and the activations that they multiply are those of the last copy,
    where the paper has the mean derivative and the image's own activations.

    Parameters
    ----------
    context
        The batch.
    samples
        Number of noisy copies of each image, with one network pass each.
    stdev
        Standard deviation of the Gaussian noise, in normalised units. The defaults of it and of `samples` are
        torchcam's.
    grid
        Number of cells along a side, or rows and columns, to which the map is pooled before it is enlarged; None keeps
        the grid of the layer.

    Returns
    -------
    dict
        ``smooth_grad_cam_pp``: (N, H, W), not negative, higher is more relevant.

    Raises
    ------
    NotApplicable
        If the network has no layer with a spatial grid, or `grid` is finer than the grid of the layer.
    HeatproofError
        If `samples` is below 1 or `stdev` not above 0.
    """
    from torchcam.methods import SmoothGradCAMpp

    require(samples >= 1, f"Smooth Grad-CAM++ needs at least 1 sample, not {samples}.")
    require(stdev > 0, f"Smooth Grad-CAM++ needs a standard deviation above 0, not {stdev}.")

    def draw(extractor: Any, part: Batch) -> None:
        extractor._distrib = _NoisePerImage(part, "noise of smooth_grad_cam_pp", stdev)

    return {"smooth_grad_cam_pp": _extract(context, SmoothGradCAMpp, grid, draw, num_samples=samples, std=stdev)}


@explainer("score_cam", family="cam", signed=False, needs={"cam_layer"})
def score_cam(context: Batch, *, grid: PatchGrid | None = None) -> dict[str, torch.Tensor]:
    """Score-CAM: channels weighted by the output on the image masked by each channel (torchcam `ScoreCAM`).

    Wang et al., "Score-CAM", 2020, section 3.2: the image is multiplied by each channel, enlarged and scaled to
    [0, 1]. The weights are the softmax over channels of the target's outputs. An image takes one network pass for each
    channel of the layer.

    Parameters
    ----------
    context
        The batch.
    grid
        Number of cells along a side, or rows and columns, to which the map is pooled before it is enlarged; None keeps
        the grid of the layer.

    Returns
    -------
    dict
        ``score_cam``: (N, H, W), not negative, higher is more relevant.

    Raises
    ------
    NotApplicable
        If the network has no layer with a spatial grid, or `grid` is finer than the grid of the layer.
    """
    from torchcam.methods import ScoreCAM

    return {"score_cam": _extract(context, ScoreCAM, grid, batch_size=max(2, context.batch_size))}


@explainer("ss_cam", family="cam", signed=False, needs={"cam_layer"})
def ss_cam(
    context: Batch,
    *,
    samples: Count = 35,
    stdev: Annotated[float, Bounds(above=0)] = 2.0,
    grid: PatchGrid | None = None,
) -> dict[str, torch.Tensor]:
    """SS-CAM: Score-CAM weights averaged over noisy copies of each channel (torchcam `SSCAM`).

    Wang et al., "SS-CAM: Smoothed Score-CAM for sharper visual feature localization", 2020, section 3: Gaussian noise
    is added to the channel, enlarged and scaled to [0, 1], by which the image is multiplied. An image takes 2 network
    passes, and `samples` for each channel of the layer.

    Parameters
    ----------
    context
        The batch.
    samples
        Number of noisy copies of each channel.
    stdev
        Standard deviation of the Gaussian noise, in units of the scaled channel. The defaults of it and of `samples`
        are torchcam's.
    grid
        Number of cells along a side, or rows and columns, to which the map is pooled before it is enlarged; None keeps
        the grid of the layer.

    Returns
    -------
    dict
        ``ss_cam``: (N, H, W), not negative, higher is more relevant.

    Raises
    ------
    NotApplicable
        If the network has no layer with a spatial grid, or `grid` is finer than the grid of the layer.
    HeatproofError
        If `samples` is below 1 or `stdev` not above 0.
    """
    from torchcam.methods import SSCAM

    require(samples >= 1, f"SS-CAM needs at least 1 sample, not {samples}.")
    require(stdev > 0, f"SS-CAM needs a standard deviation above 0, not {stdev}.")

    def draw(extractor: Any, part: Batch) -> None:
        extractor._distrib = _NoisePerImage(part, "noise of ss_cam", stdev)

    options = {"batch_size": max(2, context.batch_size), "num_samples": samples, "std": stdev}
    return {"ss_cam": _extract(context, SSCAM, grid, draw, **options)}


@explainer("is_cam", family="cam", signed=False, needs={"cam_layer"})
def is_cam(context: Batch, *, samples: Count = 10, grid: PatchGrid | None = None) -> dict[str, torch.Tensor]:
    """IS-CAM: Score-CAM weights averaged along a path to each channel (torchcam `ISCAM`).

    Naidu et al., "IS-CAM: Integrated Score-CAM for axiomatic-based explanations", 2020, section 3. torchcam 0.5
    multiplies the masked image by the running sum of 1/n, 2/n, ... over n `samples`, so that the path ends at
    (n + 1) / 2 times the masked image. An image takes 2 network passes, and `samples` for each channel of the layer.

    Parameters
    ----------
    context
        The batch.
    samples
        Number of points of the path for each channel; the default is torchcam's.
    grid
        Number of cells along a side, or rows and columns, to which the map is pooled before it is enlarged; None keeps
        the grid of the layer.

    Returns
    -------
    dict
        ``is_cam``: (N, H, W), not negative, higher is more relevant.

    Raises
    ------
    NotApplicable
        If the network has no layer with a spatial grid, or `grid` is finer than the grid of the layer.
    HeatproofError
        If `samples` is below 1.
    """
    from torchcam.methods import ISCAM

    require(samples >= 1, f"IS-CAM needs at least 1 sample, not {samples}.")
    return {"is_cam": _extract(context, ISCAM, grid, batch_size=max(2, context.batch_size), num_samples=samples)}


@explainer("hires_cam", family="cam", needs={"cam_layer"})
def hires_cam(context: Batch, *, grid: PatchGrid | None = None) -> dict[str, torch.Tensor]:
    """HiResCAM: activations times their gradients, summed over channels.

    Draelos and Carin, "Use HiResCAM instead of Grad-CAM for faithful explanations of convolutional neural networks",
    2020, section 3. It has no ReLU. If only global average pooling and a linear layer follow the layer, and its cells
    divide the image, the sum of a map is the output without its bias, times the number of pixels of the image for each
    cell. It takes one network pass and one gradient.

    Parameters
    ----------
    context
        The batch.
    grid
        Number of cells along a side, or rows and columns, to which the map is pooled before it is enlarged; None keeps
        the grid of the layer.

    Returns
    -------
    dict
        ``hires_cam``: (N, H, W), any sign, in units of the output, higher is more relevant.

    Raises
    ------
    NotApplicable
        If the network has no layer with a spatial grid, or `grid` is finer than the grid of the layer.
    """
    from heatproof.explainers._layers import grid_layer

    maps, compared_passes, outputs_of_layer = [], [], []
    with grid_layer(context) as (output, layer, name):
        layer.register_forward_hook(lambda module, inputs, features: outputs_of_layer.append(features))
        for part in split_batch(context):
            padded = pad_single_image(part)
            outputs_of_layer.clear()
            with torch.enable_grad():
                outputs = output(as_leaf(padded.images))
            features: Any = outputs_of_layer[0] if outputs_of_layer else None
            _require_grid(features, name)
            (gradients,) = torch.autograd.grad(outputs.gather(1, padded.targets[:, None]).sum(), features)
            cam = (features.detach() * gradients).sum(1, keepdim=True)[: len(part.image_ids)]
            maps.append(_enlarge(cam, part.images, grid, layer, name))
            compared_passes.append((padded, outputs.detach()))
    for padded, outputs in compared_passes:
        require_unaltered_outputs(padded, padded.images, outputs)
    return {"hires_cam": torch.cat(maps)}


class _NoisePerImage:
    """Distribution that draws noise by image; torchcam's draws for a batch from the global generator."""

    def __init__(self, part: Batch, purpose: str, stdev: float) -> None:
        self.draw = lambda shape, start: stdev * draw_per_image(part, counter_normal, purpose, shape, start)
        self.drawn = 0

    def sample(self, size: torch.Size) -> torch.Tensor:
        # Continues after the last sample, because all samples of all channels at once would need too much memory.
        shape, start = size[1:], self.drawn
        self.drawn += shape.numel()
        return self.draw(shape, start)


def _extract(
    context: Batch,
    extractor_class: type,
    grid: AnyGrid | None,
    prepare: Callable[[Any, Batch], None] | None = None,
    **arguments: Any,
) -> torch.Tensor:
    """Return the maps (N, H, W) of a torchcam extractor, which `prepare` may change before each network pass."""
    from heatproof.explainers._cells import enlarge
    from heatproof.explainers._layers import grid_layer

    class WeightRecorder(extractor_class):
        """Extractor that stores the channel weights, which torchcam discards."""

        def _get_weights(self, *arguments: Any, **options: Any) -> list[torch.Tensor]:
            self.weights = super()._get_weights(*arguments, **options)
            return self.weights

        def _upsample(self, activation: torch.Tensor) -> torch.Tensor:
            return enlarge(activation, self._input.shape[2:], layer.cells)

    maps, are_negative, compared_passes = [], [], []
    with grid_layer(context) as (explained_output, layer, name):
        # Score-CAM runs the network itself, and its last pass can have a single image.
        output = pad_single_image_passes(explained_output)
        for part in split_batch(context):
            count, part = len(part.image_ids), pad_single_image(part)
            with WeightRecorder(output, layer, **arguments) as extractor, torch.enable_grad():
                if prepare:
                    prepare(extractor, part)
                scores = output(as_leaf(part.images))
                _require_grid(extractor.hook_a[0], name)
                (cam,) = extractor(part.targets.tolist(), scores, normalized=False)
                activations, weights = extractor.hook_a[0], extractor.weights[0]
                # torchcam sums with nansum, in which an undefined channel would look irrelevant.
                weighted = weights.reshape(*weights.shape, *[1] * (4 - weights.ndim)) * activations
                cam = cam.masked_fill(weighted.isnan().any(1), torch.nan)
                before_relu = weighted.sum(1)[:count].flatten(1)
                are_negative.append((before_relu <= 0).all(1) & (before_relu < 0).any(1))
            maps.append(_enlarge(cam[:count, None], part.images, grid, layer, name))
            compared_passes.append((part, scores.detach()))
    for part, scores in compared_passes:
        require_unaltered_outputs(part, part.images, scores)
    if context.figures is not None and bool(torch.cat(are_negative).all()):
        raise NotApplicable(
            "each of its maps is negative everywhere, and therefore zero after the ReLU: try hires_cam or another layer"
        )
    return torch.cat(maps).detach()


def _enlarge(cams: torch.Tensor, images: torch.Tensor, grid: AnyGrid | None, layer: Any, name: str) -> torch.Tensor:
    """Pool maps (N, 1, h, w) of a layer to the option `grid`, and enlarge them to the size of the images, (N, H, W)."""
    from heatproof.explainers._cells import enlarge

    if grid is not None:
        rows, columns = grid_shape(grid)
        if rows > cams.shape[2] or columns > cams.shape[3]:
            raise NotApplicable(
                f"the layer {name!r} has a grid of {cams.shape[2]} × {cams.shape[3]}, and pooling to {rows} × "
                f"{columns} cannot refine it"
            )
        cams = torch.nn.functional.adaptive_avg_pool2d(cams, (rows, columns))
    return enlarge(cams.float(), images.shape[2:], layer.cells)[:, 0]


def _require_grid(activations: Any, name: str) -> None:
    require(
        isinstance(activations, torch.Tensor) and activations.ndim == 4,
        f"The layer {name!r} does not put out (N, channels, height, width), which class activation maps need: name "
        "another in cam_layer.",
    )

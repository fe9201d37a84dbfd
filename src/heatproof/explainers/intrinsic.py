"""Explainers of intrinsically interpretable networks: BagNet and B-cos."""

from __future__ import annotations

from heatproof.core.batch import Batch
from heatproof.core.lazy import torch
from heatproof.errors import NotApplicable
from heatproof.explainers._batches import as_leaf, pad_single_image_passes, split_batch
from heatproof.explainers.registry import Tolerance, explainer

# Default of the largest difference between the sum of a map and the logit, as a share of the largest logit.
TOLERANCE = 1e-3


@explainer("bagnet", family="intrinsic", applies_to={"bagnet"}, sums_to="the target's logit")
def bagnet(context: Batch, *, tolerance: Tolerance = None) -> dict[str, torch.Tensor]:
    """Patch logits of a BagNet, each spread evenly over its receptive field; the map sums to the logit.

    Brendel and Bethge, "Approximating CNNs with bag-of-local-features models", 2019, section 2. It applies to any
    network without padding that has a submodule `patches`, whose output (N, K, h, w) has the logits as its mean, and
    the integers `patch_size` and `patch_stride` in pixels.

    Parameters
    ----------
    context
        The batch.
    tolerance
        As in `heatproof.explainers.relevance.lrp`.

    Returns
    -------
    dict
        ``bagnet``: (N, H, W), any sign, units of the logit, higher is more relevant.

    Raises
    ------
    NotApplicable
        If the network has no patch logits, or probabilities are explained.
    """
    network = context.network
    if not all(hasattr(network, name) for name in ("patches", "patch_size", "patch_stride")):
        raise NotApplicable("the network's logits are not a mean of patch logits, as BagNet's are")
    _require_logits(context)
    size, stride = network.patch_size, network.patch_stride
    patch_logits: list[torch.Tensor] = []
    handle = network.patches.register_forward_hook(lambda module, inputs, output: patch_logits.append(output))
    maps = []
    try:
        for part in split_batch(context):
            patch_logits.clear()
            with torch.no_grad():
                pad_single_image_passes(network)(part.images)
            rows = torch.arange(len(part.targets), device=part.targets.device)
            logits = patch_logits[0][rows, part.targets][:, None]
            share = logits / (size**2 * logits.shape[2] * logits.shape[3])
            spread = torch.nn.functional.conv_transpose2d(share, share.new_ones(1, 1, size, size), stride=stride)[:, 0]
            height, width = part.images.shape[2] - spread.shape[1], part.images.shape[3] - spread.shape[2]
            # Rows and columns that no patch covers do not contribute to the logit.
            maps.append(torch.nn.functional.pad(spread, (0, width, 0, height)))
            _note_conservation(part, maps[-1], patch_logits[0].mean((2, 3)), tolerance)
    finally:
        handle.remove()
    return {"bagnet": torch.cat(maps)}


@explainer("bcos", family="intrinsic", applies_to={"bcos"}, sums_to="the target's logit")
def bcos(context: Batch, *, tolerance: Tolerance = None) -> dict[str, torch.Tensor]:
    """Contributions W(x)x of a B-cos network; the map sums to the logit.

    Böhle et al., "B-cos networks: alignment is all we need for interpretability", 2022, section 3. It applies to any
    network with two methods: `encode` returns encoded images, the input of the first layer, which the network also
    accepts; `linear` returns a context manager in which the gradient at the encoded images is W(x).

    Parameters
    ----------
    context
        The batch.
    tolerance
        As in `heatproof.explainers.relevance.lrp`.

    Returns
    -------
    dict
        ``bcos``: (N, H, W), any sign, units of the logit, higher is more relevant.

    Raises
    ------
    NotApplicable
        If the network lacks these methods, or probabilities are explained.
    """
    network = context.network
    if not all(hasattr(network, name) for name in ("encode", "linear")):
        raise NotApplicable("the network is not a linear function of each image, as B-cos networks are")
    _require_logits(context)
    maps = []
    for part in split_batch(context):
        with network.linear(), torch.enable_grad():
            encoded = as_leaf(network.encode(part.images))
            logits = pad_single_image_passes(network)(encoded)
            weights = torch.autograd.grad(logits.gather(1, part.targets[:, None]).sum(), encoded)[0]
        maps.append((weights * encoded.detach()).sum(1))
        _note_conservation(part, maps[-1], logits.detach(), tolerance)
    return {"bcos": torch.cat(maps)}


def _note_conservation(part: Batch, maps: torch.Tensor, logits: torch.Tensor, tolerance: Tolerance) -> None:
    expected = logits.gather(1, part.targets[:, None])[:, 0]
    part.note_sum(expected)
    missed = (maps.sum((1, 2)) - expected).abs()
    part.note("conservation_error", missed / logits.abs().amax(1), TOLERANCE if tolerance is None else tolerance)


def _require_logits(context: Batch) -> None:
    context.require_network_outputs()
    if context.output is not context.network:
        raise NotApplicable("the contributions sum to the logits, not to their softmax")

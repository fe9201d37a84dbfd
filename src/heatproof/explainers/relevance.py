"""Layer-wise relevance propagation (LRP), by zennit."""

from __future__ import annotations

from collections.abc import Callable

from heatproof.core.batch import Batch
from heatproof.core.lazy import torch
from heatproof.errors import NotApplicable
from heatproof.explainers._batches import as_leaf, pad_single_image, split_batch
from heatproof.explainers._unaltered import require_unaltered_outputs
from heatproof.explainers.registry import EXPLAINERS, Tolerance, explainer, require_library

# Default of the largest difference between the sum of a map and the logit, as a share of the largest logit.
TOLERANCE = 1e-3


@explainer(
    "lrp", family="relevance", library=("zennit", "lrp"), applies_to={"convolutional"}, sums_to="the target's logit"
)
def lrp(context: Batch, *, tolerance: Tolerance = None) -> dict[str, torch.Tensor]:
    """Layer-wise relevance propagation of the target's logit (zennit's `EpsilonPlusFlat`).

    Bach et al., "On pixel-wise explanations for non-linear classifier decisions by layer-wise relevance
    propagation", 2015; the composite (epsilon rule in linear layers, z-plus in convolutions, flat in the first one)
    is that of Kohlbrenner et al., "Towards best practice in explaining neural network decisions with LRP", 2020. Every
    convolution that reads the image is a first one, in each of its calls.

    Batch norms are merged into the convolutions before them. Residual sums share relevance in proportion to their
    terms, or equally if these add up to zero. Biases take no relevance. If no input raises an output of a convolution,
    all inputs share its relevance in proportion to their absolute values, so that a map sums to the logit; zennit's
    z-plus rule drops that relevance, up to 0.002 of a logit on the networks of this project. A gate for each channel,
    as in squeeze and excitation, takes no relevance (Arras et al., "Explaining recurrent neural network predictions in
    sentiment analysis", 2017, section 3), and neither does a number by which features are multiplied or divided.
    Average pooling shares relevance in proportion to its inputs, as zennit's rule for pooling modules does; functions,
    means and sums over positions have the same rule as the modules.

    The rules are applied to a copy of the network, traced by torch.fx and rewritten without in-place operations: all
    references to a tensor read what these operations would write to it. In every batch, the logits of the copy are
    compared with those of the network.

    Parameters
    ----------
    context
        The batch.
    tolerance
        Largest difference between the sum of a map and the logit with which the explainer is applicable, as a share of
        the image's largest logit. Null for 0.001.

    Returns
    -------
    dict
        ``lrp``: (N, H, W), any sign, in logits, higher is more relevant.

    Raises
    ------
    NotApplicable
        If probabilities are explained, the network cannot be traced, the traced network returns other logits
        than the network, or the sum of a map differs from the logit by more than `tolerance`.
    HeatproofError
        If zennit is not installed.
    """
    require_library(EXPLAINERS["lrp"])
    from zennit.attribution import Gradient

    from heatproof.explainers._lrp_canonizer import canonise, composite

    if context.output is not context.network:
        raise NotApplicable("LRP distributes a logit, and attribution.output is probability")
    context.require_network_outputs()
    network = canonise(context.network, pad_single_image(context).images[:2])
    maps = []
    with Gradient(network, composite=composite(network)) as attributor, torch.enable_grad():
        for part in split_batch(context):
            padded = pad_single_image(part)
            logits, relevance = attributor(as_leaf(padded.images), _select_targets(padded.targets, context.network))
            count = len(part.image_ids)
            unaltered = require_unaltered_outputs(part, padded.images, logits)
            maps.append(relevance.detach().sum(1)[:count])
            _require_conservation(part, maps[-1], unaltered[:count], tolerance)
    return {"lrp": torch.cat(maps)}


def _select_targets(targets: torch.Tensor, network: torch.nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a function that sets all logits but those of the targets to zero; relevance starts at its result."""
    from heatproof.core.hooks import hooks_of

    def select(logits: torch.Tensor) -> torch.Tensor:
        hooks = hooks_of(network)
        # A single logit z is read as [-z/2, z/2], which no rule covers: the relevance of z is that of the half.
        scale = logits.new_tensor([-2, 2]) if hooks is not None and hooks.reader.has_one_logit else 1
        return scale * logits * torch.nn.functional.one_hot(targets, logits.shape[1])

    return select


def _require_conservation(part: Batch, maps: torch.Tensor, logits: torch.Tensor, tolerance: Tolerance) -> None:
    lost = (maps.sum((1, 2)) - logits.gather(1, part.targets[:, None])[:, 0]).abs() / logits.abs().amax(1)
    part.note_sum(logits.gather(1, part.targets[:, None])[:, 0])
    limit = TOLERANCE if tolerance is None else tolerance
    part.note("conservation_error", lost, limit)
    if not (lost <= limit).all():
        raise NotApplicable(
            f"the sums of LRP's maps differ from the logits by {lost.max():.2g} of the largest logit, above "
            f"{limit:g}: the network has an operation that no rule covers"
        )

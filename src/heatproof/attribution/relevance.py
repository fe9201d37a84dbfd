"""Layer-wise relevance propagation (LRP), by zennit."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from heatproof.attribution._batches import as_leaf, pad_single_image, split_batch
from heatproof.attribution._plain import require_unaltered_outputs
from heatproof.attribution.registry import EXPLAINERS, ExplainContext, Tolerance, explainer, require_library
from heatproof.errors import NotApplicable

if TYPE_CHECKING:
    import torch

# Largest share of the largest logit that may be lost or made on the way, unless told otherwise.
TOLERANCE = 1e-3


@explainer(
    "lrp", family="relevance", library=("zennit", "lrp"), applies_to={"convolutional"}, sums_to="the target's logit"
)
def lrp(context: ExplainContext, *, tolerance: Tolerance = None) -> dict[str, torch.Tensor]:
    """Layer-wise relevance propagation of the target's logit (zennit's `EpsilonPlusFlat`).

    Bach et al., "On pixel-wise explanations for non-linear classifier decisions by layer-wise relevance
    propagation", 2015; the composite (epsilon rule in linear layers, z-plus in convolutions, flat in the first one)
    is that of Kohlbrenner et al., "Towards best practice in explaining neural network decisions with LRP", 2020.
    First is each convolution that reads the image, and each call of it.
    Batch norms are merged into the convolutions before them, and residual sums share relevance in proportion to
    their terms, equally where these add up to zero. Biases take no relevance, and where no input raises a
    convolution's output, all share its relevance in proportion to their size, so that a map sums to the logit:
    zennit's z-plus rule drops that relevance, up to 0.002 of a logit on our networks. A gate for each channel, as
    in squeeze and excitation, takes no relevance either (Arras et al., "Explaining recurrent neural network
    predictions in sentiment analysis", 2017, section 3), and neither does a number that features are multiplied
    with or divided by. Modules of pooling share relevance in proportion to their inputs; a mean over positions that
    is no module shares it equally.

    Rules are put into a copy of the network that torch.fx traced, without operations in place: what they write is read
    by all names of the tensor that they write to. Its logits are compared with the network's own in every batch.

    Parameters
    ----------
    explained
        The batch.
    tolerance
        Largest difference between the sum of a map and the logit on which it applies, as a share of the image's
        largest logit. 0.001 for null.

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
    import torch

    require_library(EXPLAINERS["lrp"])
    from zennit.attribution import Gradient

    from heatproof.attribution._lrp_canonizer import canonise, composite

    if context.output is not context.network:
        raise NotApplicable("LRP distributes a logit, and attribution.output asks for probabilities")
    context.require_network_outputs()
    network = canonise(context.network, pad_single_image(context).images[:2])
    maps = []
    with Gradient(network, composite=composite(network)) as attributor, torch.enable_grad():
        for part in split_batch(context):
            both = pad_single_image(part)
            logits, relevance = attributor(as_leaf(both.images), _only(both.targets, context.network))
            count = len(part.image_ids)
            own = require_unaltered_outputs(part, both.images, logits)
            maps.append(relevance.detach().sum(1)[:count])
            _require_conservation(part, maps[-1], own[:count], tolerance)
    return {"lrp": torch.cat(maps)}


def _only(targets: torch.Tensor, network: torch.nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a function that keeps only the targets' logits, from which relevance is propagated."""
    import torch

    from heatproof.models.adapter import hooks_of

    def keep(logits: torch.Tensor) -> torch.Tensor:
        hooks = hooks_of(network)
        # One logit z is read as [-z/2, z/2], and has no rule of its own: its relevance is that of the half.
        scale = logits.new_tensor([-2, 2]) if hooks is not None and hooks.has_one_logit else 1
        return scale * logits * torch.nn.functional.one_hot(targets, logits.shape[1])

    return keep


def _require_conservation(part: ExplainContext, maps: torch.Tensor, logits: torch.Tensor, tolerance: Tolerance) -> None:
    lost = (maps.sum((1, 2)) - logits.gather(1, part.targets[:, None])[:, 0]).abs() / logits.abs().amax(1)
    part.note_sum(logits.gather(1, part.targets[:, None])[:, 0])
    limit = TOLERANCE if tolerance is None else tolerance
    part.note("conservation_error", lost, limit)
    if not (lost <= limit).all():
        raise NotApplicable(
            f"LRP's maps and the logits that they should sum to differ by {lost.max():.2g} of the largest logit, above "
            f"{limit:g}: the network has an operation that no rule covers"
        )

"""Compare what a network puts out while an explainer alters its pass with what it puts out by itself.

A rule, a hook or a copy of the network can change what it computes, and a map of that is of another function. Sums that
a map should have do not tell, as they are those of the altered outputs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from heatproof.attribution._batches import pad_single_image_passes
from heatproof.attribution.registry import ExplainContext
from heatproof.errors import NotApplicable

if TYPE_CHECKING:
    import torch

# Of the tolerance for one network in two passes (`heatproof.models.rounding.TOLERANCE`): attention that is taken apart
# and batch norms that are merged into convolutions round otherwise than the network, 0.001 of the spread in float32.
SHARE = 5.0


def require_unaltered_outputs(context: ExplainContext, images: torch.Tensor, outputs: torch.Tensor) -> torch.Tensor:
    """Pass images once more, as a check, and compare outputs of an altered pass with the network's own.

    To be called for every batch, outside of what alters passes.

    Parameters
    ----------
    explained
        The batch; the largest difference is noted.
    images
        (B, C, H, W) that the altered pass was given: the batch, its copies or its baselines.
    outputs
        (B, K) that it returned.

    Returns
    -------
    torch.Tensor
        (B, K), the network's own.

    Raises
    ------
    NotApplicable
        If they differ by more than rounding.
    """
    import torch

    from heatproof.models.adapter import counted_as_check, hooks_of
    from heatproof.models.rounding import difference_of_images, rounding_tolerance

    with counted_as_check(), torch.no_grad():
        own = pad_single_image_passes(context.output)(images.detach())
    hooks = hooks_of(context.network)
    met = {own.dtype} if hooks is None else {own.dtype, *hooks.precisions}
    allowed = rounding_tolerance(own, met, own.device, SHARE)
    difference = difference_of_images(outputs.detach().to(own.dtype), own)
    # As a share of the spread, but where that is as small as a rounding of the values.
    spread = max(float(own.max() - own.min()), torch.finfo(own.dtype).tiny)
    limit = allowed / spread
    context.note("difference_from_network", difference / spread, limit)
    if not (difference <= allowed).all():
        raise NotApplicable(
            "the pass that it alters returns other outputs than the network, by "
            f"{float(difference.max()) / spread:.2g} of their spread, above {limit:.2g}: leave out hooks that change "
            "what passes and branches that depend on it, or take a method that alters no pass, such as "
            "integrated_gradients"
        )
    return own

"""Compare the outputs of a pass that an explainer alters with those of the unaltered network.

A rule, a hook or a copy of the network can change its outputs, and a map would then explain another function. The sums
that a map should have do not show this, because they are computed from the altered outputs.
"""

from __future__ import annotations

from heatproof.core.batch import Batch
from heatproof.core.lazy import torch
from heatproof.errors import NotApplicable
from heatproof.explainers._batches import pad_single_image_passes

# Multiple of the tolerance for two passes of one network (`heatproof.core.rounding.TOLERANCE`). Decomposed attention
# and batch norms merged into convolutions round differently, by up to 0.001 of the spread of the outputs in float32.
TOLERANCE_FACTOR = 5.0


def require_unaltered_outputs(context: Batch, images: torch.Tensor, outputs: torch.Tensor) -> torch.Tensor:
    """Require that the outputs of an altered pass equal those of the unaltered network, up to rounding.

    An explainer that alters passes calls this for every batch, after it has removed its hooks and left its modes. The
    additional pass is counted as a check.

    Parameters
    ----------
    context
        The batch; it records the figure ``difference_from_network``.
    images
        (B, C, H, W), the input of the altered pass: the images, copies of them, or baselines.
    outputs
        (B, K), the outputs of the altered pass.

    Returns
    -------
    torch.Tensor
        (B, K), the outputs of the unaltered network.

    Raises
    ------
    NotApplicable
        If the outputs differ by more than rounding.
    """
    from heatproof.core.hooks import counted_as_check, hooks_of
    from heatproof.core.rounding import difference_of_images, rounding_tolerance

    with counted_as_check(), torch.no_grad():
        unaltered = pad_single_image_passes(context.output)(images.detach())
    hooks = hooks_of(context.network)
    dtypes = {unaltered.dtype} if hooks is None else {unaltered.dtype, *hooks.precisions}
    allowed = rounding_tolerance(unaltered, dtypes, unaltered.device, TOLERANCE_FACTOR)
    difference = difference_of_images(outputs.detach().to(unaltered.dtype), unaltered)
    # Differences are shares of the spread of the outputs; `tiny` avoids a division by zero.
    spread = max(float(unaltered.max() - unaltered.min()), torch.finfo(unaltered.dtype).tiny)
    limit = allowed / spread
    context.note("difference_from_network", difference / spread, limit)
    if not (difference <= allowed).all():
        raise NotApplicable(
            "its altered pass changes the outputs of the network by "
            f"{float(difference.max()) / spread:.2g} of their spread, above {limit:.2g}: remove hooks that change "
            "activations and branches that depend on them, or use a method that alters no pass, such as "
            "integrated_gradients"
        )
    return unaltered

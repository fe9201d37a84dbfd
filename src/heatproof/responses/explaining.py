"""Recompute maps of perturbed images, for responses that need them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from heatproof.attribution.make import explained_on, facts_of, find_function, stack_maps
from heatproof.responses.base import Batch, Explain, Method, Session

if TYPE_CHECKING:
    from heatproof.specs.jobs import ResponseSpec


def method_maps(
    spec: ResponseSpec, network: torch.nn.Module, explainer: str, method: Method, batch: Batch, session: Session
) -> Explain:
    """Return a function from images and targets to maps of one method.

    Parameters
    ----------
    spec
        Of a response along maps: has the ``explainers``, the model's ``facts`` and the ``output`` that is explained.
    network
        Images (B, C, H, W) to logits (B, K), in eval mode.
    explainer, method
        Name of the explainer, and which of its maps.
    batch
        The N images that are changed: images (k N, C, H, W) are k copies of each, one after another, and share its
        draws.
    session
        Device, batch size and dataset, whose training images are baselines of some explainers.

    Returns
    -------
    callable
        Images (k N, C, H, W) and targets (k N,) to maps (k N, H, W) float32 on the CPU.
    """
    entry = next(entry for entry in spec["explainers"] if entry["name"] == explainer)
    function, known = find_function(entry), network if entry["uses_model"] else None
    explained_of = explained_on(known, facts_of(spec["facts"]), session.dataset, spec, entry, session.batch_size)

    def explain(images: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        explained = explained_of(
            images=images.to(session.device).contiguous(memory_format=torch.channels_last),
            targets=targets.to(session.device),
            image_ids=tuple(name for name in batch.ids for _ in range(len(images) // len(batch.ids))),
        )
        maps = stack_maps(function(explained, **entry["options"]), entry, explained)
        return torch.from_numpy(method.of(maps))

    return explain

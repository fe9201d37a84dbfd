"""Recompute maps of perturbed images, for responses that need them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from heatproof.attribution.make import Fill, Probabilities, background_of, find_function, stack_maps
from heatproof.attribution.registry import Explained
from heatproof.data.registry import Dataset
from heatproof.models.registry import InputFacts
from heatproof.responses.base import Batch, Explain, Method, Session

if TYPE_CHECKING:
    from heatproof.specs.jobs import ResponseSpec


def method_maps(
    spec: ResponseSpec,
    network: torch.nn.Module,
    dataset: Dataset,
    explainer: str,
    method: Method,
    batch: Batch,
    session: Session,
) -> Explain:
    """Return a function from images and targets to maps of one method.

    Parameters
    ----------
    spec
        Of a response along maps: has the ``explainers``, the model's ``facts`` and the ``output`` that is explained.
    network
        Images (B, C, H, W) to logits (B, K), in eval mode.
    dataset
        Its training images are baselines of some explainers.
    explainer, method
        Name of the explainer, and which of its maps.
    batch
        The N images that are changed: images (k N, C, H, W) are k copies of each, one after another, and share its
        draws.
    session
        Device, batch size and seed.

    Returns
    -------
    callable
        Images (k N, C, H, W) and targets (k N,) to maps (k N, H, W) float32 on the CPU.
    """
    entry = next(entry for entry in spec["explainers"] if entry["name"] == explainer)
    function = find_function(entry)
    known = bool(entry["uses_model"])
    given: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in spec["facts"].items()}
    facts = InputFacts(**given)
    background = background_of(dataset, facts, session.seed)
    fill = Fill(dataset, facts, entry.get("grid"))
    output = Probabilities(network).eval() if spec["output"] == "probability" else network

    def explain(images: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        copies = len(images) // len(batch.ids)
        explained = Explained(
            network=network if known else None,
            output=output if known else None,
            facts=facts if known else None,
            images=images.to(session.device).contiguous(memory_format=torch.channels_last),
            targets=targets.to(session.device),
            image_ids=tuple(name for name in batch.ids for _ in range(copies)),
            seed=session.seed,
            batch_size=session.batch_size,
            background=background,
            fill=fill,
        )
        maps = stack_maps(function(explained, **entry["options"]), entry, explained)
        return torch.from_numpy(method.of(maps))

    return explain

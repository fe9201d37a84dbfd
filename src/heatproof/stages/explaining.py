"""Maps of changed images: for metrics that explain again what they have perturbed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from heatproof.attribution.make import Background, Probabilities, find_function, stack_maps
from heatproof.attribution.registry import Explained
from heatproof.data.registry import Dataset
from heatproof.models.registry import InputFacts


def method_maps(
    explainer: Mapping[str, Any],
    method: Mapping[str, Any],
    network: torch.nn.Module,
    dataset: Dataset,
    spec: Mapping[str, Any],
    image_ids: Sequence[str],
    batch_size: int,
    device: torch.device,
) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """Return a function from images and targets to the maps of one method.

    Parameters
    ----------
    explainer, method
        From a spec of the curves: the explainer with its options, and which of its maps, raw or absolute.
    network
        Images (B, C, H, W) to logits (B, K), in eval mode.
    dataset
        Its training images are baselines of some explainers.
    spec
        Has the model's ``facts``, the ``output`` that is explained, and the ``seed``.
    image_ids
        N strings: images (k N, C, H, W) are k copies of each, one after another, and share its draws.
    batch_size, device
        As in the attribution stage.

    Returns
    -------
    callable
        Images (k N, C, H, W) and targets (k N,) to maps (k N, H, W) float32 on the CPU.
    """
    function = find_function(explainer)
    known = bool(explainer["uses_model"])
    given: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in spec["facts"].items()}
    facts = InputFacts(**given)
    background = Background(dataset, facts, spec["seed"]) if "train" in dataset.splits else None
    output = Probabilities(network).eval() if spec["output"] == "probability" else network

    def explain(images: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        copies = len(images) // len(image_ids)
        explained = Explained(
            network=network if known else None,
            output=output if known else None,
            facts=facts if known else None,
            images=images.to(device).contiguous(memory_format=torch.channels_last),
            targets=targets.to(device),
            image_ids=tuple(name for name in image_ids for _ in range(copies)),
            seed=spec["seed"],
            batch_size=batch_size,
            background=background,
        )
        maps = stack_maps(function(explained, **explainer["options"]), explainer, explained)[:, method["index"]]
        found = torch.from_numpy(maps)
        return found.abs() if method["transform"] == "abs" else found

    return explain

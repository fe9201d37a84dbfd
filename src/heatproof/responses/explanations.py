"""Maps that are made again of changed images: the response of max-sensitivity, and what any such response calls."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from heatproof.options import Bounds, Count
from heatproof.responses.base import Arrays, Asking, Batch, Explain, MapResponse, Method, ScoredImages, Session

if TYPE_CHECKING:
    import torch

    from heatproof.specs.jobs import ResponseSpec


def change_options(
    *,
    radius: Annotated[float, Bounds(least=0)] = 0.02,
    samples: Count = 10,
    norm: Annotated[float, Bounds(least=1)] = 2.0,
) -> None:
    """Options of `heatproof.perturbation.sensitivity.max_sensitivity`."""


class Explanations(MapResponse):
    """Largest relative change of a map under random changes of its image."""

    kind = "explanations"
    argument = "changes"
    quantities = ("change",)
    explains = True
    options = staticmethod(change_options)
    executors = ("heatproof.perturbation.sensitivity",)

    def points(self, size: tuple[int, int]) -> int:
        """Return 1."""
        return 1

    def answer(self, session: Session, batch: Batch, maps: np.ndarray, explain: Explain | None) -> Asking:
        """Explain the changed images, and return the relative changes of the maps."""
        given = (explain, batch.images, batch.labels, batch.ids, session.seed)
        more = {"batch_size": session.batch_size, "intact": import_module("torch").from_numpy(maps)}
        changes, _ = yield partial(self.executor("max_sensitivity"), *given, **self.settings, **more)
        # A map of zeros has no relative change. A store holds no NaN where something was computed: -1 stands for it.
        return {"change": np.where(np.isfinite(changes), changes, -1.0)[:, None]}

    def as_argument(self, quantities: Arrays, images: ScoredImages) -> np.ndarray:
        """Return the changes (N,), NaN where there is none."""
        change = quantities["change"][:, 0]
        return np.where(change < 0, np.nan, change)

    def lacks(self, session: Session) -> str | None:
        """Return that the argument `explain` is missing, if it is."""
        return "`explain`, which makes maps of changed images" if session.explain is None else None


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
    import torch

    # Found by name: metrics read this module, and do not depend on the code of explainers.
    make: Any = import_module("heatproof.attribution.make")
    entry = next(entry for entry in spec["explainers"] if entry["name"] == explainer)
    function, known = make.find_function(entry), network if entry["uses_model"] else None
    facts = make.facts_of(spec["facts"])
    explained_of = make.explained_on(known, facts, session.dataset, spec, entry, session.batch_size)

    def explain(images: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        explained = explained_of(
            images=images.to(session.device).contiguous(memory_format=torch.channels_last),
            targets=targets.to(session.device),
            image_ids=tuple(name for name in batch.ids for _ in range(len(images) // len(batch.ids))),
        )
        maps = make.stack_maps(function(explained, **entry["options"]), entry, explained)
        return torch.from_numpy(method.of(maps))

    return explain

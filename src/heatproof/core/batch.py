"""A batch of images with the network that they pass through: the input of explainers, responses and metrics.

This module can be imported without torch, because the registries of explainers and metrics import it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from heatproof.core.lazy import torch
from heatproof.core.methods import Maps, Method, as_maps
from heatproof.core.tasks import CALLABLE, Need, unsupported_reason
from heatproof.errors import HeatproofError, NotApplicable

if TYPE_CHECKING:
    from heatproof.core.adaptive_batch_size import Attempt
    from heatproof.core.input_facts import InputFacts
    from heatproof.core.network import Network

Arrays = Mapping[str, np.ndarray]
# Perturbed images (B, C, H, W), and the rows (B,) of the batch to which they belong: one pass.
PerturbedImages = tuple["torch.Tensor", "torch.Tensor"]
# Stands for the baseline of the patch drops; the plan replaces it by the name of that baseline.
SAME_AS_DROPS = "same"


class ApplicabilityFigure(NamedTuple):
    """Number that an explainer measures in its applicability check.

    Attributes
    ----------
    value
        Maximum or mean over the images.
    limit
        Above this value the explainer is not applicable; None for no limit.
    images
        Number of images that were measured.
    """

    value: float
    limit: float | None = None
    images: int = 0


class MapSums(NamedTuple):
    """Sums that an explainer promises for the maps of N images.

    Attributes
    ----------
    expected
        (N,), the sums that the maps should have.
    actual
        (N,), the sums that they have; None for the sums over their pixels.
    """

    expected: torch.Tensor
    actual: torch.Tensor | None


@dataclass(frozen=True)
class Batch:
    """N images with their targets, ids and network: the input of explainers, responses and metrics.

    Attributes
    ----------
    network
        Classifier in eval mode, float32: images (N, C, H, W) to logits (N, K). None for reference maps, and where
        stored arrays are scored.
    output
        Module whose output at the target is explained: `network` (logits, the default), or `network` followed by
        softmax.
    facts
        Input format of the model; None for reference maps.
    images
        (N, C, H, W) float32, normalised as the network expects.
    targets
        (N,) int64, the class to explain and to score for each image; or (N, T), several classes whose outputs are read.
    image_ids
        N strings; random numbers for an image are seeded with its string.
    seed
        The workflow's seed.
    batch_size
        Largest number of images in one network pass.
    background
        ``background(count)`` returns `count` training images (count, C, H, W), normalised, drawn once from the seed;
        None if there are no training images.
    figures
        Figures that `note` records during the applicability check; None outside the check.
    named_baseline
        ``named_baseline(batch, name)`` returns the images (N, C, H, W) of a baseline; None if only the zero baseline
        is available.
    sums
        Sums that `note_sum` records, by name of the map; None if they are not requested, so that an explainer need
        not compute them.
    global_seed
        Seed of the global random states of torch, NumPy and Python while the batch is explained, from which methods of
        callers and of other libraries may draw; None leaves the states as they are.
    maps, methods
        (N, maps, H, W) of one explainer, and the methods that are read from them, for what is computed along maps.
    intact
        Outputs for the intact images (`heatproof.core.passes.intact_responses`), for responses that need them.
    inputs
        Further inputs that only callers of `heatproof.evaluate` have, by option name.
    dataset, first
        Dataset of the images, and the index of the first one in the evaluation split; None outside of the workflow.
    size
        Height and width of maps in pixels, where there are no images.
    stated_task
        Task of the network, where there is no network.
    """

    network: Any
    output: Any
    facts: InputFacts | None
    images: torch.Tensor
    targets: torch.Tensor
    image_ids: Sequence[str]
    seed: int
    batch_size: int = 64
    background: Callable[[int], torch.Tensor] | None = None
    figures: dict[str, ApplicabilityFigure] | None = None
    named_baseline: Callable[[Batch, str], torch.Tensor] | None = None
    sums: dict[str, list[MapSums]] | None = None
    global_seed: int | None = None
    maps: Maps | np.ndarray | None = None
    methods: Sequence[Method] = ()
    intact: Arrays | None = None
    inputs: Mapping[str, Any] = field(default_factory=dict)
    dataset: Any = None
    first: int = 0
    size: tuple[int, int] = (0, 0)
    stated_task: str = "multiclass"

    # ---- the network -------------------------------------------------------------------------------------------------

    @cached_property
    def adapted(self) -> Network:
        """The network as heatproof adapted it: the object that runs and counts its passes."""
        from heatproof.core.network import Network

        return Network.of(self.network, None if self.images is None else self.images.device)

    @property
    def passes(self) -> int:
        """Number of images that went through the network for results; 0 without a network."""
        return 0 if self.network is None else self.adapted.passes

    def attempts(self, name: str) -> Iterator[Attempt]:
        """Yield attempts with fewer and fewer images in a pass, until memory suffices; see `Network.attempts`."""
        from heatproof.core.adaptive_batch_size import AdaptiveBatchSize

        if self.network is None:
            return AdaptiveBatchSize(name).attempts(self.batch_size)
        return self.adapted.attempts(name, self.batch_size)

    @property
    def device(self) -> torch.device:
        """Device of the network; without a network, that of the images."""
        return self.images.device if self.network is None else self.adapted.device

    @property
    def task(self) -> str:
        """Task of the network: one of `heatproof.core.tasks.TASKS`, or ``callable``; known after the first pass."""
        return self.stated_task if self.network is None else self.adapted.task

    # ---- the images --------------------------------------------------------------------------------------------------

    def take(self, rows: slice) -> Batch:
        """Return the batch of consecutive images."""
        return replace(
            self,
            images=self.images[rows],
            targets=self.targets[rows],
            image_ids=self.image_ids[rows],
            maps=None if self.maps is None else as_maps(self.maps).take_images(range(len(self.images))[rows]),
            intact=None if self.intact is None else {name: values[rows] for name, values in self.intact.items()},
            first=self.first + (rows.start or 0),
        )

    def chunks(self) -> Iterator[tuple[slice, torch.Tensor, Sequence[str]]]:
        """Yield rows, images and ids of consecutive chunks of `batch_size` images, on the network's device.

        All variants of the images of a chunk fill complete batches, and baselines are computed once per chunk.
        """
        for start in range(0, len(self.images), self.batch_size):
            rows = slice(start, min(start + self.batch_size, len(self.images)))
            yield rows, self.images[rows].to(self.device), self.image_ids[rows]

    def match_layout(self, perturbed: torch.Tensor) -> torch.Tensor:
        """Return perturbed images in the memory layout of the images."""
        from heatproof.core.network import layout_of

        return perturbed.contiguous(memory_format=layout_of(self.images))

    def intact_images(self) -> Iterator[PerturbedImages]:
        """Yield the images as they are, in batches for `heatproof.core.passes.read_outputs`."""
        for rows, chunk, _ in self.chunks():
            yield self.match_layout(chunk), torch.arange(rows.start, rows.stop, device=self.device)

    # ---- targets -----------------------------------------------------------------------------------------------------

    @property
    def labels(self) -> np.ndarray:
        """The targets as an array in main memory."""
        targets: Any = self.targets
        return targets.cpu().numpy() if hasattr(targets, "cpu") else np.asarray(targets)

    def with_target(self, target: str | int) -> Batch:
        """Return the batch whose targets are replaced by the class that a run explains and scores.

        Parameters
        ----------
        target
            ``label``, ``predicted``, or a class number.
        """
        if target == "label":
            return self
        if target == "predicted":
            return replace(self, targets=self.both_targets[:, 1].to(self.targets))
        return replace(self, targets=torch.full_like(self.targets, int(target)))

    @cached_property
    def both_targets(self) -> torch.Tensor:
        """The target and the class predicted for the intact image, (N, 2) int64; without classes, the target twice."""
        assert self.intact is not None, "a response that reads the predicted class must set `needs_intact`"
        targets, predicted = self.targets.cpu(), torch.from_numpy(self.intact["predicted"])
        return torch.stack([targets, torch.where(predicted < 0, targets, predicted)], dim=1)

    # ---- what explainers ask for, and record -------------------------------------------------------------------------

    def require(self, need: Need, remedy: str = "") -> None:
        """Require that the network gives a probability or a decision for a target.

        Raises
        ------
        NotApplicable
            If the task of the network gives neither.
        """
        if reason := unsupported_reason(self.task, need, remedy):
            raise NotApplicable(reason)

    def require_network_outputs(self) -> None:
        """Require that targets are outputs of the network, for rules that begin at its last layer.

        Raises
        ------
        NotApplicable
            If a callable target computes what is explained from its outputs.
        """
        if self.task == CALLABLE:
            raise NotApplicable("its rules start at one output of the network, and the target is a function of outputs")

    def baseline(self, name: str | None) -> torch.Tensor:
        """Return the baseline images (N, C, H, W) of the batch; for None, zero after normalisation.

        Raises
        ------
        HeatproofError
            If a baseline is named and only the zero baseline is available.
        """
        if name is None:
            return torch.zeros_like(self.images)
        if self.named_baseline is None or name == SAME_AS_DROPS:
            raise HeatproofError(f"The baseline {name!r} is known in a run alone: leave it out, for zero.")
        return self.named_baseline(self, name)

    def note(self, name: str, values: torch.Tensor, limit: float | None = None, mean: bool = False) -> None:
        """Record the maximum or mean of a figure over images in the applicability check; else do nothing.

        Parameters
        ----------
        name
            Name of the figure, such as ``convergence_delta``.
        values
            (N,), one value for each image.
        limit
            If the figure is above this limit, the explainer is not applicable.
        mean
            Whether to record the mean of all images instead of the maximum.
        """
        if self.figures is None:
            return
        previous = self.figures.get(name, ApplicabilityFigure(0.0))
        images = previous.images + len(values)
        if mean:
            value = (previous.value * previous.images + float(values.double().sum())) / images
        else:
            value = max(previous.value, float(values.max()))
        self.figures[name] = ApplicabilityFigure(value, limit, images)

    def note_sum(self, expected: torch.Tensor, actual: torch.Tensor | None = None, of: str = "") -> None:
        """Record the sums that the maps of these images should have; `heatproof.explain` compares them with the maps.

        An explainer that splits its batch calls this method once for each part, in the order of the images.

        Parameters
        ----------
        expected
            (N,), in units of the output.
        actual
            (N,), the sum of each map, if that is not the sum over pixels: for superpixels, whose pixels all have the
            superpixel's value, the sum over superpixels.
        of
            Name of the map; by default the first one.
        """
        if self.sums is not None:
            self.sums.setdefault(of, []).append(MapSums(expected.detach(), None if actual is None else actual.detach()))

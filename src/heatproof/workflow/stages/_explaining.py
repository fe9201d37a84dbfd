"""What explainers are called with in a job: the output that they explain, baselines, and their options."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import torch

from heatproof.core.batch import Batch
from heatproof.core.batches import READ_LOCK
from heatproof.core.dataset import Dataset
from heatproof.core.grids import Grid
from heatproof.core.hooks import reader_of
from heatproof.core.input_facts import InputFacts
from heatproof.core.methods import Method, MethodSpec
from heatproof.core.normalise import normalise
from heatproof.core.options import DefaultCount
from heatproof.core.output_reader import probabilities
from heatproof.core.perturb.baselines import baseline_images
from heatproof.core.perturb.dataset_mean import dataset_options
from heatproof.core.randomness import numpy_generator
from heatproof.errors import DamagedInput, HeatproofError
from heatproof.explainers.plain_functions import PLAIN_ARGUMENTS, as_explainer, positional_arguments_of
from heatproof.explainers.registry import EXPLAINERS, Explainer

# A reference map sees the image as most networks do: centred, and scaled to about one.
NEUTRAL_FACTS = InputFacts()


class Probabilities(torch.nn.Module):
    """A network followed by softmax, or by sigmoids for a multi-label network, to explain probabilities."""

    def __init__(self, network: torch.nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return probabilities (N, K)."""
        reader = reader_of(self.network)
        return probabilities(self.network(images), "multiclass" if reader is None else reader.task)


class Background:
    """Normalised training images as baselines, in an order that is drawn once from the seed."""

    def __init__(self, dataset: Dataset, facts: InputFacts, seed: int) -> None:
        self.dataset = dataset
        self.facts = facts
        self.order = numpy_generator(seed, "background").permutation(len(dataset.splits["train"]))
        self.images: torch.Tensor | None = None

    def __call__(self, count: int) -> torch.Tensor:
        """Return the first `count` images, (count, C, H, W); all images if a `DefaultCount` exceeds them.

        Raises
        ------
        HeatproofError
            If the training split has fewer than `count`.
        """
        if isinstance(count, DefaultCount):
            count = min(count, len(self.order))
        if count > len(self.order):
            raise HeatproofError(
                f"{count} baselines are requested, but there are only {len(self.order)} training images: lower "
                "the explainer's option baselines."
            )
        if self.images is None or len(self.images) < count:
            try:
                with READ_LOCK:
                    chosen = [self.dataset.images("train", index, index + 1) for index in self.order[:count].tolist()]
            except HeatproofError as error:
                raise DamagedInput(str(error)) from error
            self.images = normalise(np.concatenate(chosen), self.facts)
        return self.images[:count]


def with_baselines(batch: Batch, grid: Grid | None) -> Batch:
    """Return a batch with the baselines that an explainer can ask for: training images, and baselines by name.

    Options of baselines that depend on the dataset, such as its mean colour, are computed once.
    """
    dataset, facts = batch.dataset, batch.facts or NEUTRAL_FACTS
    options_of = cache(lambda name: dataset_options(name, None, dataset, facts))

    def named_baseline(context: Batch, name: str) -> torch.Tensor:
        return baseline_images(name, context.images, context.image_ids, context.seed, options_of(name), grid)

    background = Background(dataset, facts, batch.seed) if len(dataset.splits.get("train", ())) else None
    return replace(batch, background=background, named_baseline=named_baseline)


def open_method(spec: MethodSpec) -> Method:
    """Return the method of a job, ready to be called; only the module that registers its explainer is imported."""
    function = EXPLAINERS.load_callable(spec.kind, spec.module)
    called = as_explainer(function, spec.name) if positional_arguments_of(function) == PLAIN_ARGUMENTS else function
    explainer = Explainer(spec.name, called, dict(spec.maps), uses_model=spec.uses_model, needs=frozenset(spec.needs))
    return Method(spec.name, explainer, spec.options)

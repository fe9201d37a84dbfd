"""Stage `attribute`: compute attribution maps and store them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from heatproof.attribution.explaining import MapMaker, check_applicability, explain_batch
from heatproof.attribution.own import PLAIN_ARGUMENTS, as_explainer, positional_arguments_of
from heatproof.attribution.registry import (
    EXPLAINERS,
    ApplicabilityFigure,
    ExplainContext,
    ExplainerSpec,
    StoredExplainer,
)
from heatproof.base.batches import READ_LOCK, prefetch, track
from heatproof.base.grids import Grid
from heatproof.base.options import DefaultCount
from heatproof.base.provenance import digest
from heatproof.base.randomness import numpy_generator
from heatproof.base.specs import Runtime
from heatproof.data.checks import check_target, open_dataset
from heatproof.data.few import probe_rows_of_split, read_rows
from heatproof.data.registry import Dataset
from heatproof.errors import DamagedInput, HeatproofError, NotApplicable
from heatproof.files.publishing import public
from heatproof.jobs.applicability import (
    ApplicabilityRecord,
    manifest_fields,
    read_applicability,
    restore_applicability,
    write_applicability,
)
from heatproof.jobs.shards import BACKGROUND_WRITES, EVALUATION, Origin, Shard, open_shard
from heatproof.models.adapter import CountPasses, check_loaded, reader_of
from heatproof.models.memory import AdaptiveBatchSize, batch_size_file, batch_size_of
from heatproof.models.network import configure_torch, find_layer, load_network, normalise, reader_of_dataset
from heatproof.models.output_reader import probabilities
from heatproof.models.registry import InputFacts
from heatproof.perturbation.baselines import baseline_images
from heatproof.perturbation.dataset_mean import dataset_options, mean_split, needs_dataset
from heatproof.stores.manifest import comparison_passes
from heatproof.stores.sources import images_of
from heatproof.stores.stored_maps import encode_maps, map_arrays

if TYPE_CHECKING:
    from heatproof.stages.attribute import MapInputs, MapsStage

log = logging.getLogger(__name__)

# A reference map sees the image as most networks do: centred, and scaled to about one.
NEUTRAL = InputFacts()


class Probabilities(torch.nn.Module):
    """A network followed by softmax, or sigmoids of its labels, for attribution of probabilities."""

    def __init__(self, network: torch.nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return probabilities (N, K)."""
        reader = reader_of(self.network)
        return probabilities(self.network(images), "multiclass" if reader is None else reader.task)


class Background:
    """Normalised training images for use as baselines, in an order drawn once from the seed."""

    def __init__(self, dataset: Dataset, facts: InputFacts, seed: int) -> None:
        self.dataset = dataset
        self.facts = facts
        self.order = numpy_generator(seed, "background").permutation(len(dataset.splits["train"]))
        self.images: torch.Tensor | None = None

    def __call__(self, count: int) -> torch.Tensor:
        """Return the first `count` of them, (count, C, H, W); all, where it is a default and there are fewer.

        Raises
        ------
        HeatproofError
            If the training split has fewer.
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


def background_of(dataset: Dataset, facts: InputFacts, seed: int) -> Background | None:
    """Return the training images for use as baselines; None where a dataset has none."""
    return Background(dataset, facts, seed) if len(dataset.splits.get("train", ())) else None


class NamedBaselines:
    """Images of a baseline by name, with what the dataset decides of it, such as its mean colour, found once."""

    def __init__(self, dataset: Dataset, facts: InputFacts, grid: Grid | None) -> None:
        self.dataset, self.facts, self.grid = dataset, facts, grid
        self.options: dict[str, dict[str, Any]] = {}

    def __call__(self, explained: ExplainContext, name: str) -> torch.Tensor:
        """Return the baseline images (N, C, H, W) of a batch."""
        if name not in self.options:
            self.options[name] = dataset_options(name, None, self.dataset, self.facts)
        given = (explained.images, explained.image_ids, explained.seed)
        return baseline_images(name, *given, self.options[name], self.grid)


def context_factory(
    network: torch.nn.Module | None,
    facts: InputFacts,
    dataset: Dataset,
    *,
    output: str,
    seed: int,
    grid: Grid | None,
    batch_size: int,
) -> Callable[..., ExplainContext]:
    """Return a function that makes the input of an explainer from images, targets and ids.

    Parameters
    ----------
    network
        Images to logits; None for a reference map.
    facts
        Input format of the images.
    dataset
        Its training images are baselines of some explainers.
    output
        ``logit`` or ``probability``: what is explained.
    seed
        The workflow's seed.
    grid
        Grid of the patches that the explainer's baseline fills, if it has one.
    batch_size
        Largest number of images in one network pass.
    """
    return partial(
        ExplainContext,
        network=network,
        output=Probabilities(network).eval() if network is not None and output == "probability" else network,
        facts=None if network is None else facts,
        seed=seed,
        batch_size=batch_size,
        background=background_of(dataset, facts, seed),
        named_baseline=NamedBaselines(dataset, facts, grid),
    )


def attribute(job: MapsStage, runtime: Runtime) -> None:
    """Compute one shard of the maps of the job's explainers; images already in the shard are kept.

    An explainer that does not apply to the model is published as a gap with its reason.

    Raises
    ------
    HeatproofError
        If a map has a value that is not finite, or an explainer does not return the maps that it announced.
    """
    device = configure_torch(runtime)
    dataset = open_dataset(job.inputs.dataset)
    model, weights = job.inputs.model, job.inputs.weights
    facts = model.facts if model else NEUTRAL
    size = dataset.images("evaluation", 0, 1).shape[-2:]
    batch_size = batch_size_of(runtime.batch_size, device)
    network: torch.nn.Module | None = None
    pieces: list[Shard] = []
    few, checked = probe_rows_of_split(dataset), None
    with BACKGROUND_WRITES:
        for entry in job.explainers:
            piece = _open(job, entry, dataset, size, few)
            pieces.append(piece)
            start, stop = piece.missing()
            if start >= stop and not piece.changed:
                log.info("%s: all %d images are in the store already", entry.name, stop - job.shard.images[0])
                restore_applicability(f"{piece.base}.gate.json", _gate_key(piece), piece.manifest)
                piece.publish(str(device))
                continue
            # Also where a job that was killed has left all batches in the journal: the manifest is to say what that job
            # found of the explainer, which is read, or found again.
            if network is None and model and weights:
                reader = reader_of_dataset(job.inputs.dataset, dataset, job.inputs.target)
                assert reader.classes is not None, "a dataset says how many outputs there are"
                network = load_network(model, reader.classes, weights, device, job.inputs.precision, reader)
            context = _ExplainerRun(job.inputs, entry, dataset, network, facts, batch_size, device)
            if network is not None and checked is None:
                checked = check_loaded(network, context.read(few))
            if network is not None:
                piece.provenance["check_passes"] = checked
            gap = None
            try:
                record = _pass_gate(piece, context, few)
                if checked is not None:
                    low, high = piece.requested
                    piece.provenance["check_passes"] = checked + comparison_passes(record, high - low)
                _explain(piece, context)
            except NotApplicable as reason:
                gap = str(reason)
                # With the traceback of one that fails.
                log.info("%s does not apply: %s", entry.name, gap, exc_info=reason.__cause__)
            piece.publish_behind(str(device), gap)
    # Only now: until the job ends well, Snakemake may remove what it published.
    for piece in pieces:
        piece.forget_journal()


def _stored(inputs: MapInputs) -> dict[str, Any]:
    return {"dtype": inputs.stored_as, "grid": inputs.patch_sums_grid}


def _open(job: MapsStage, entry: StoredExplainer, dataset: Dataset, size: tuple[int, ...], few: list[int]) -> Shard:
    inputs = job.inputs
    made_by: dict[str, Any] = {key: getattr(inputs, key) for key in ("weights", "output", "seed", "precision")}
    made_by |= {"dataset": asdict(inputs.dataset), "model": asdict(inputs.model) if inputs.model else None}
    made_by["explainer"] = {key: getattr(entry, key) for key in ("name", "kind", "options")}
    images = images_of(inputs.dataset.manifest)
    value_ranges = images.all_images_of(mean_split(dataset)) if _reads_training_images(entry) else []
    split = dataset.splits[EVALUATION]
    origin = Origin(
        entry.key,
        public(made_by),
        [inputs.weights] if inputs.weights else [],
        images=images,
        value_ranges=value_ranges,
        # The check is of the same few images, whatever the shard.
        manifest_ranges=[(EVALUATION, row, row + 1) for row in sorted(few)],
    )
    arrays = map_arrays(len(entry.maps), size, **_stored(inputs))
    return open_shard(job.shard, entry.store, origin, split, arrays, {"map": list(entry.maps)})


def _reads_training_images(entry: StoredExplainer) -> bool:
    """Tell whether maps follow from training images; of an explainer of the user's own, that is not known."""
    mean = needs_dataset(entry.options.get("baseline"), None)
    return mean or "baselines" in entry.options or not entry.module.startswith("heatproof.")


def _gate_key(piece: Shard) -> str:
    """Return what a record of the check is of: the store's key, the images that are checked, and what else decides."""
    return digest([piece.key, piece.images.data(*piece.manifest_ranges, *piece.value_ranges)])


def _require(entry: StoredExplainer, facts: InputFacts, network: torch.nn.Module | None) -> None:
    # An explainer that names a layer of its own finds it itself.
    needed = "cam_layer" in entry.needs and not entry.options.get("layer")
    if needed and facts.cam_layer is not None and network is not None:
        find_layer(network, facts.cam_layer, "model")


@dataclass
class _ExplainerRun:
    """One explainer on one network, applied to images of the evaluation split."""

    inputs: MapInputs
    entry: StoredExplainer
    dataset: Dataset
    network: torch.nn.Module | None
    facts: InputFacts
    batch_size: int
    device: torch.device

    def __post_init__(self) -> None:
        inputs, entry = self.inputs, self.entry
        self.maker = maker_of(entry)
        self.within_memory = AdaptiveBatchSize(entry.name, batch_size_file(entry.store), self.device)
        self.counter = CountPasses(self.network)
        self.target = check_target(inputs.target, self.dataset)
        how: dict[str, Any] = {
            "output": inputs.output,
            "seed": inputs.seed,
            "grid": entry.grid,
            "batch_size": self.batch_size,
        }
        self.make_context = context_factory(self.network, self.facts, self.dataset, **how)

    def read(self, rows: Sequence[int]) -> torch.Tensor:
        """Return images of the evaluation split, normalised for the network, in main memory."""
        if isinstance(rows, range):
            return normalise(self.dataset.images(EVALUATION, rows.start, rows.stop), self.facts)
        return normalise(read_rows(self.dataset, rows), self.facts)

    def explained(
        self, rows: Sequence[int], images: torch.Tensor, figures: dict[str, ApplicabilityFigure] | None = None
    ) -> ExplainContext:
        """Return the input of the explainer for images that were read from the evaluation split."""
        split = self.dataset.splits[EVALUATION]
        return self.make_context(
            images=images.to(self.device),
            targets=self.targets(rows, images),
            image_ids=tuple(split.ids[row] for row in rows),
            figures=figures,
        )

    def targets(self, rows: Sequence[int], images: torch.Tensor) -> torch.Tensor:
        """Return the class to explain (N,) of images that were read from the evaluation split."""
        labels = torch.from_numpy(self.dataset.splits[EVALUATION].labels[list(rows)]).to(self.device)
        if self.target == "label" or self.network is None:
            return labels
        if self.target == "predicted":
            with torch.no_grad():
                parts = images.to(self.device).split(self.batch_size)
                return torch.cat([self.network(part).argmax(1) for part in parts])
        return torch.full_like(labels, int(self.target))


def _pass_gate(piece: Shard, context: _ExplainerRun, few: list[int]) -> ApplicabilityRecord:
    """Check the explainer on a few images of the split, once for all shards, and return what was found of it."""
    path = f"{piece.base}.gate.json"
    record, cause = read_applicability(path, _gate_key(piece)), None
    if record is None:
        figures: dict[str, ApplicabilityFigure] = {}
        before, gap, count = context.counter.images, None, 0
        try:
            _require(context.entry, context.facts, context.network)
            explained = context.explained(few, context.read(few), figures)
            count = len(check_applicability(context.maker, explained, context.within_memory))
        except NotApplicable as reason:
            gap = str(reason)
            cause = reason.__cause__
        record = write_applicability(path, _gate_key(piece), count, figures, gap, context.counter.images - before)
    piece.provenance["gate"] = manifest_fields(record)
    if record["gap"]:
        raise NotApplicable(record["gap"]) from cause
    return record


def _explain(piece: Shard, context: _ExplainerRun) -> None:
    start, stop = piece.missing()
    # Waiting for images is part of what maps cost.
    size, began = context.batch_size, time.monotonic()
    for low, images in prefetch(
        lambda low: context.read(range(low, min(low + size, stop))),
        track(range(start, stop, size), context.entry.name, unit="batch"),
        context.device,
    ):
        passes = context.counter.images
        explained = context.explained(range(low, low + len(images)), images)
        values = encode_maps(explain_batch(context.maker, explained, context.within_memory), **_stored(context.inputs))
        piece.add(low, values, time.monotonic() - began, context.counter.images - passes)
        began = time.monotonic()


def maker_of(entry: ExplainerSpec) -> MapMaker:
    """Return what makes an explainer's maps; imports only the module that registers it."""
    function = EXPLAINERS.load_callable(entry.kind, entry.module)
    called = as_explainer(function, entry.name) if positional_arguments_of(function) == PLAIN_ARGUMENTS else function
    return MapMaker(entry.name, called, entry.options, entry.maps)

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

from heatproof.attribution.explaining import check_applicability, explain_batch
from heatproof.attribution.plain_functions import PLAIN_ARGUMENTS, as_explainer, positional_arguments_of
from heatproof.attribution.registry import EXPLAINERS, ApplicabilityFigure, ExplainContext, Explainer
from heatproof.base.batches import READ_LOCK, prefetch, track
from heatproof.base.grids import Grid
from heatproof.base.methods import Method, MethodSpec
from heatproof.base.options import DefaultCount
from heatproof.base.provenance import digest
from heatproof.base.randomness import numpy_generator
from heatproof.base.specs import Runtime
from heatproof.data.checks import check_target, open_dataset
from heatproof.data.probe_images import probe_rows_of_split, read_rows
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
from heatproof.models.adaptive_batch_size import AdaptiveBatchSize, batch_size_file, batch_size_of
from heatproof.models.first_images import check_loaded
from heatproof.models.hooks import hooks_of, reader_of
from heatproof.models.network import configure_torch, find_layer, load_network, normalise, reader_of_dataset
from heatproof.models.output_reader import probabilities
from heatproof.models.registry import InputFacts
from heatproof.perturbation.baselines import baseline_images
from heatproof.perturbation.dataset_mean import dataset_options, mean_split, needs_dataset
from heatproof.stores.manifest import comparison_passes
from heatproof.stores.source_files import images_of
from heatproof.stores.stored_maps import encode_maps, map_arrays

if TYPE_CHECKING:
    from heatproof.stages.attribute import MapInputs, MapsStage

log = logging.getLogger(__name__)

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


def background_of(dataset: Dataset, facts: InputFacts, seed: int) -> Background | None:
    """Return the training images of a dataset as baselines; None if it has none."""
    return Background(dataset, facts, seed) if len(dataset.splits.get("train", ())) else None


class NamedBaselines:
    """Images of baselines by name; options that depend on the dataset, such as its mean colour, are computed once."""

    def __init__(self, dataset: Dataset, facts: InputFacts, grid: Grid | None) -> None:
        self.dataset, self.facts, self.grid = dataset, facts, grid
        self.options: dict[str, dict[str, Any]] = {}

    def __call__(self, context: ExplainContext, name: str) -> torch.Tensor:
        """Return the baseline images (N, C, H, W) of a batch."""
        if name not in self.options:
            self.options[name] = dataset_options(name, None, self.dataset, self.facts)
        options = self.options[name]
        return baseline_images(name, context.images, context.image_ids, context.seed, options, self.grid)


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
    """Return a function that creates an `ExplainContext` from images, targets and ids.

    Parameters
    ----------
    network
        Images to logits; None for a reference map.
    facts
        Input format of the images.
    dataset
        Dataset whose training images are baselines of some explainers.
    output
        The output to explain, ``logit`` or ``probability``.
    seed
        The workflow's seed.
    grid
        Grid of the patches that the explainer's baseline fills; None if it has no named baseline.
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
    """Compute one shard of the maps of a job's explainers.

    Images that are in the shard already are not computed again. For an explainer that is not applicable to the model,
    the shard is published without maps, with the reason.

    Raises
    ------
    HeatproofError
        If the machine fails, or an image cannot be read.
    """
    device = configure_torch(runtime)
    dataset = open_dataset(job.inputs.dataset)
    model, weights = job.inputs.model, job.inputs.weights
    facts = model.facts if model else NEUTRAL_FACTS
    size = dataset.images("evaluation", 0, 1).shape[-2:]
    batch_size = batch_size_of(runtime.batch_size, device)
    network: torch.nn.Module | None = None
    shards: list[Shard] = []
    probe_rows, check_passes = probe_rows_of_split(dataset), None
    with BACKGROUND_WRITES:
        for entry in job.explainers:
            shard = _open_shard(job, entry, dataset, size, probe_rows)
            shards.append(shard)
            start, stop = shard.missing()
            if start >= stop and not shard.changed:
                log.info("%s: all %d images are in the store already", entry.name, stop - job.shard.images[0])
                restore_applicability(f"{shard.base}.gate.json", _applicability_key(shard), shard.manifest)
                shard.publish(str(device))
                continue
            # This also runs if a killed job left all batches in the journal, because the manifest needs the record of
            # the applicability check, which is read or computed again.
            if network is None and model and weights:
                reader = reader_of_dataset(job.inputs.dataset, dataset, job.inputs.target)
                assert reader.classes is not None, "a dataset declares its number of outputs"
                network = load_network(model, reader.classes, weights, device, job.inputs.precision, reader)
            run = _ExplainerRun(job.inputs, entry, dataset, network, facts, batch_size, device)
            if network is not None and check_passes is None:
                check_passes = check_loaded(network, run.read(probe_rows))
            if network is not None:
                shard.provenance["check_passes"] = check_passes
            reason = None
            try:
                record = _require_applicable(shard, run, probe_rows)
                if check_passes is not None:
                    low, high = shard.requested
                    shard.provenance["check_passes"] = check_passes + comparison_passes(record, high - low)
                _compute_maps(shard, run)
            except NotApplicable as error:
                reason = str(error)
                # Logs the traceback of an explainer that failed.
                log.info("%s does not apply: %s", entry.name, reason, exc_info=error.__cause__)
            shard.publish_behind(str(device), reason)
    # Not earlier, because Snakemake may remove what a job published until the job has ended without an error.
    for shard in shards:
        shard.forget_journal()


def _encoding(inputs: MapInputs) -> dict[str, Any]:
    return {"dtype": inputs.stored_as, "grid": inputs.patch_sums_grid}


def _open_shard(
    job: MapsStage, entry: MethodSpec, dataset: Dataset, size: tuple[int, ...], probe_rows: list[int]
) -> Shard:
    inputs = job.inputs
    settings: dict[str, Any] = {key: getattr(inputs, key) for key in ("weights", "output", "seed", "precision")}
    settings |= {"dataset": asdict(inputs.dataset), "model": asdict(inputs.model) if inputs.model else None}
    settings["explainer"] = {key: getattr(entry, key) for key in ("name", "kind", "options")}
    images = images_of(inputs.dataset.manifest)
    value_ranges = images.all_images_of(mean_split(dataset)) if _reads_training_images(entry) else []
    split = dataset.splits[EVALUATION]
    origin = Origin(
        entry.key,
        public(settings),
        [inputs.weights] if inputs.weights else [],
        images=images,
        value_ranges=value_ranges,
        # The applicability check reads the same sample of images for every shard.
        manifest_ranges=[(EVALUATION, row, row + 1) for row in sorted(probe_rows)],
    )
    arrays = map_arrays(len(entry.maps), size, **_encoding(inputs))
    return open_shard(job.shard, entry.store, origin, split, arrays, {"map": list(entry.maps)})


def _reads_training_images(entry: MethodSpec) -> bool:
    """Return whether maps depend on training images; for a user's explainer this is unknown, so True."""
    mean = needs_dataset(entry.options.get("baseline"), None)
    return mean or "baselines" in entry.options or not entry.module.startswith("heatproof.")


def _applicability_key(shard: Shard) -> str:
    """Return the key of the applicability check: of the store, the sample of images, and the training images."""
    return digest([shard.key, shard.images.data(*shard.manifest_ranges, *shard.value_ranges)])


def _require_layer(entry: MethodSpec, facts: InputFacts, network: torch.nn.Module | None) -> None:
    # An explainer with an option `layer` finds this layer itself.
    needed = "cam_layer" in entry.needs and not entry.options.get("layer")
    if needed and facts.cam_layer is not None and network is not None:
        find_layer(network, facts.cam_layer, "model")


@dataclass
class _ExplainerRun:
    """An explainer on a network, applied to images of the evaluation split."""

    inputs: MapInputs
    entry: MethodSpec
    dataset: Dataset
    network: torch.nn.Module | None
    facts: InputFacts
    batch_size: int
    device: torch.device

    def __post_init__(self) -> None:
        inputs, entry = self.inputs, self.entry
        self.method = open_method(entry)
        self.adaptive_size = AdaptiveBatchSize(entry.name, batch_size_file(entry.store), self.device)
        self.target = check_target(inputs.target, self.dataset)
        settings: dict[str, Any] = {
            "output": inputs.output,
            "seed": inputs.seed,
            "grid": entry.grid,
            "batch_size": self.batch_size,
        }
        self.make_context = context_factory(self.network, self.facts, self.dataset, **settings)

    @property
    def passes(self) -> int:
        """Number of images that went through the network for results; 0 without a network."""
        hooks = None if self.network is None else hooks_of(self.network)
        return 0 if hooks is None else hooks.passes

    def read(self, rows: Sequence[int]) -> torch.Tensor:
        """Return images of the evaluation split in main memory, normalised for the network."""
        if isinstance(rows, range):
            return normalise(self.dataset.images(EVALUATION, rows.start, rows.stop), self.facts)
        return normalise(read_rows(self.dataset, rows), self.facts)

    def context_of(
        self, rows: Sequence[int], images: torch.Tensor, figures: dict[str, ApplicabilityFigure] | None = None
    ) -> ExplainContext:
        """Return the input of the explainer for images that were read from these rows of the evaluation split."""
        split = self.dataset.splits[EVALUATION]
        return self.make_context(
            images=images.to(self.device),
            targets=self.targets(rows, images),
            image_ids=tuple(split.ids[row] for row in rows),
            figures=figures,
        )

    def targets(self, rows: Sequence[int], images: torch.Tensor) -> torch.Tensor:
        """Return the targets (N,) of images that were read from these rows of the evaluation split."""
        labels = torch.from_numpy(self.dataset.splits[EVALUATION].labels[list(rows)]).to(self.device)
        if self.target == "label" or self.network is None:
            return labels
        if self.target == "predicted":
            with torch.no_grad():
                parts = images.to(self.device).split(self.batch_size)
                return torch.cat([self.network(part).argmax(1) for part in parts])
        return torch.full_like(labels, int(self.target))


def _require_applicable(shard: Shard, run: _ExplainerRun, probe_rows: list[int]) -> ApplicabilityRecord:
    """Check the explainer on a sample of images, once for all shards, and return the record of the check.

    Raises
    ------
    NotApplicable
        If it is not applicable.
    """
    path = f"{shard.base}.gate.json"
    record, cause = read_applicability(path, _applicability_key(shard)), None
    if record is None:
        figures: dict[str, ApplicabilityFigure] = {}
        passes_before, reason, count = run.passes, None, 0
        try:
            _require_layer(run.entry, run.facts, run.network)
            context = run.context_of(probe_rows, run.read(probe_rows), figures)
            count = len(check_applicability(run.method, context, run.adaptive_size))
        except NotApplicable as error:
            reason = str(error)
            cause = error.__cause__
        record = write_applicability(
            path, _applicability_key(shard), count, figures, reason, run.passes - passes_before
        )
    shard.provenance["gate"] = manifest_fields(record)
    if record["gap"]:
        raise NotApplicable(record["gap"]) from cause
    return record


def _compute_maps(shard: Shard, run: _ExplainerRun) -> None:
    start, stop = shard.missing()
    # The cost of maps includes the time to wait for images.
    size, started = run.batch_size, time.monotonic()
    for low, images in prefetch(
        lambda low: run.read(range(low, min(low + size, stop))),
        track(range(start, stop, size), run.entry.name, unit="batch"),
        run.device,
    ):
        passes = run.passes
        context = run.context_of(range(low, low + len(images)), images)
        values = encode_maps(explain_batch(run.method, context, run.adaptive_size), **_encoding(run.inputs))
        shard.add(low, values, time.monotonic() - started, run.counter.images - passes)
        started = time.monotonic()


def open_method(spec: MethodSpec) -> Method:
    """Return the method of an explainer with its options; only the module that registers the explainer is imported."""
    function = EXPLAINERS.load_callable(spec.kind, spec.module)
    called = as_explainer(function, spec.name) if positional_arguments_of(function) == PLAIN_ARGUMENTS else function
    explainer = Explainer(spec.name, called, spec.maps, frozenset(spec.needs), spec.uses_model)
    return Method(spec.name, explainer, spec.options)

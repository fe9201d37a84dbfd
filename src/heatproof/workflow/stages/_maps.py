"""How a job computes a shard of the maps of an explainer."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from heatproof.core.adaptive_batch_size import batch_size_of
from heatproof.core.batch import ApplicabilityFigure, Batch
from heatproof.core.batches import prefetch, track
from heatproof.core.dataset import Dataset
from heatproof.core.first_images import check_loaded
from heatproof.core.input_facts import InputFacts
from heatproof.core.layers import find_layer
from heatproof.core.methods import Method, MethodSpec
from heatproof.core.network import Network
from heatproof.core.normalise import normalise
from heatproof.core.perturb.dataset_mean import mean_split, needs_dataset
from heatproof.core.provenance import digest
from heatproof.core.specs import Runtime
from heatproof.datasets.checks import check_target
from heatproof.datasets.probe_images import probe_rows_of_split, read_rows
from heatproof.datasets.reader import reader_of_dataset
from heatproof.errors import NotApplicable
from heatproof.explainers.explaining import check_applicability, explain_batches
from heatproof.models.network import load_network
from heatproof.store.manifest import comparison_passes
from heatproof.store.publishing import public
from heatproof.store.source_files import images_of
from heatproof.store.stored_maps import encode_maps, map_arrays
from heatproof.workflow.stages._applicability import (
    ApplicabilityRecord,
    manifest_fields,
    read_applicability,
    restore_applicability,
    write_applicability,
)
from heatproof.workflow.stages._batch_size_file import BatchSizeFile
from heatproof.workflow.stages._explaining import NEUTRAL_FACTS, Probabilities, open_method, with_baselines
from heatproof.workflow.stages._shards import EVALUATION, Origin, Shard, open_shard

if TYPE_CHECKING:
    from heatproof.workflow.stages.attribute import MapInputs, MapsStage

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class EvaluationImages:
    """Images of the evaluation split for the explainers of a job.

    Attributes
    ----------
    template
        The batch of these images without the images; its network is None for reference maps.
    inputs
        The settings on which all maps depend.
    device
        Device of the images.
    target
        The class that is explained: ``label``, ``predicted``, or a number.
    check_passes
        Number of images that the check of the network passed; None without a network.
    """

    template: Batch
    inputs: MapInputs
    device: torch.device
    target: str | int
    check_passes: int | None = None

    @classmethod
    def load(cls, inputs: MapInputs, dataset: Dataset, runtime: Runtime, device: torch.device) -> EvaluationImages:
        """Load the network, and check it on a few images."""
        nothing: Any = None
        template = Batch(
            network=None,
            output=None,
            facts=None,
            images=nothing,
            targets=nothing,
            image_ids=(),
            seed=inputs.seed,
            batch_size=batch_size_of(runtime.batch_size, device),
            dataset=dataset,
        )
        target = check_target(inputs.target, dataset)
        if not (inputs.model and inputs.weights):
            return cls(template, inputs, device, target)
        reader = reader_of_dataset(inputs.dataset, dataset, inputs.target)
        assert reader.classes is not None, "a dataset declares its number of outputs"
        module = load_network(inputs.model, reader.classes, inputs.weights, device, inputs.precision, reader)
        output = Probabilities(module).eval() if inputs.output == "probability" else module
        images = cls(replace(template, network=module, output=output, facts=inputs.model.facts), inputs, device, target)
        return replace(images, check_passes=check_loaded(module, images.read(probe_rows_of_split(dataset))))

    @property
    def facts(self) -> InputFacts:
        """Input format of the images."""
        return self.template.facts or NEUTRAL_FACTS

    @property
    def network(self) -> Network | None:
        """The network; None for reference maps."""
        return None if self.template.network is None else self.template.adapted

    def for_explainer(self, spec: MethodSpec) -> EvaluationImages:
        """Return the images with the baselines of an explainer, and with the batch size that fits it."""
        if self.network is not None:
            self.network.remember_batch_size(spec.name, BatchSizeFile(spec.store))
        return replace(self, template=with_baselines(self.template, spec.grid))

    def read(self, rows: Sequence[int]) -> torch.Tensor:
        """Return images in main memory, normalised for the network."""
        dataset = self.template.dataset
        if isinstance(rows, range):
            return normalise(dataset.images(EVALUATION, rows.start, rows.stop), self.facts)
        return normalise(read_rows(dataset, rows), self.facts)

    def batch(self, rows: Sequence[int], images: torch.Tensor) -> Batch:
        """Return the batch of images that were read from rows, with the targets of the run."""
        split = self.template.dataset.splits[EVALUATION]
        batch = replace(
            self.template,
            images=images.to(self.device),
            targets=torch.from_numpy(split.labels[list(rows)]).to(self.device),
            image_ids=tuple(split.ids[row] for row in rows),
            first=rows[0],
        )
        if self.network is None:
            return batch
        if self.target != "predicted":
            return batch.with_target(self.target)
        with torch.no_grad():
            parts = [self.network(part).argmax(1) for part in batch.images.split(batch.batch_size)]
        return replace(batch, targets=torch.cat(parts))


def open_maps(
    job: MapsStage, spec: MethodSpec, dataset: Dataset, size: tuple[int, ...], probe_rows: list[int]
) -> Shard:
    """Open the shard of a job for the maps of an explainer.

    Parameters
    ----------
    job
        The spec of the job.
    spec
        The explainer.
    dataset
        The dataset.
    size
        Height and width of its images.
    probe_rows
        Rows of the images on which it is checked whether the explainer is applicable.
    """
    inputs = job.inputs
    settings: dict[str, Any] = {key: getattr(inputs, key) for key in ("weights", "output", "seed", "precision")}
    settings |= {"dataset": asdict(inputs.dataset), "model": asdict(inputs.model) if inputs.model else None}
    settings["explainer"] = {key: getattr(spec, key) for key in ("name", "kind", "options")}
    images = images_of(inputs.dataset.manifest)
    value_ranges = images.all_images_of(mean_split(dataset)) if _reads_training_images(spec) else []
    split = dataset.splits[EVALUATION]
    origin = Origin(
        spec.key,
        public(settings),
        [inputs.weights] if inputs.weights else [],
        images=images,
        value_ranges=value_ranges,
        # The applicability check reads the same sample of images for every shard.
        manifest_ranges=[(EVALUATION, row, row + 1) for row in sorted(probe_rows)],
    )
    arrays = map_arrays(len(spec.maps), size, **_encoding(inputs))
    return open_shard(job.shard, spec.store, origin, split, arrays, {"map": spec.map_names})


def compute_maps(shard: Shard, spec: MethodSpec, images: EvaluationImages, probe_rows: list[int]) -> str | None:
    """Compute the missing maps of an explainer.

    Parameters
    ----------
    shard
        The shard; it gets the maps.
    spec
        The explainer.
    images
        Images of the evaluation split.
    probe_rows
        Rows of the images on which it is checked whether the explainer is applicable.

    Returns
    -------
    str or None
        The reason for which the explainer is not applicable; None if it is.
    """
    images, method = images.for_explainer(spec), open_method(spec)
    if images.check_passes is not None:
        shard.provenance["check_passes"] = images.check_passes
    try:
        record = _require_applicable(shard, spec, method, images, probe_rows)
        if images.check_passes is not None:
            low, high = shard.requested
            shard.provenance["check_passes"] = images.check_passes + comparison_passes(record, high - low)
        _add_maps(shard, method, images)
    except NotApplicable as error:
        # Logs the traceback of an explainer that failed.
        log.info("%s does not apply: %s", spec.name, error, exc_info=error.__cause__)
        return str(error)
    return None


def publish_complete(shard: Shard, device: str) -> None:
    """Publish a shard that has all maps already, and restore a lost record of the applicability check."""
    restore_applicability(_record_path(shard), _applicability_key(shard), shard.manifest)
    shard.publish(device)


def _encoding(inputs: MapInputs) -> dict[str, Any]:
    return {"dtype": inputs.stored_as, "grid": inputs.patch_sums_grid}


def _reads_training_images(spec: MethodSpec) -> bool:
    """Return whether maps depend on training images; for a user's explainer this is unknown, so True."""
    mean = needs_dataset(spec.options.get("baseline"), None)
    return mean or "baselines" in spec.options or not spec.module.startswith("heatproof.")


def _record_path(shard: Shard) -> str:
    return f"{shard.base}.gate.json"


def _applicability_key(shard: Shard) -> str:
    """Return the key of the applicability check: of the store, the sample of images, and the training images."""
    origin = shard.origin
    return digest([shard.key, origin.images.data(*origin.manifest_ranges, *origin.value_ranges)])


def _require_layer(spec: MethodSpec, facts: InputFacts, network: torch.nn.Module | None) -> None:
    # An explainer with an option `layer` finds this layer itself.
    needed = "cam_layer" in spec.needs and not spec.options.get("layer")
    if needed and facts.cam_layer is not None and network is not None:
        find_layer(network, facts.cam_layer, "model")


def _require_applicable(
    shard: Shard, spec: MethodSpec, method: Method, images: EvaluationImages, probe_rows: list[int]
) -> ApplicabilityRecord:
    """Check the explainer on a sample of images, once for all shards, and return the record of the check.

    Raises
    ------
    NotApplicable
        If it is not applicable.
    """
    path = _record_path(shard)
    record, cause = read_applicability(path, _applicability_key(shard)), None
    if record is None:
        figures: dict[str, ApplicabilityFigure] = {}
        network, reason, count = images.network, None, 0
        before = 0 if network is None else network.passes
        try:
            _require_layer(spec, images.facts, images.template.network)
            batch = images.batch(probe_rows, images.read(probe_rows))
            count = len(check_applicability(method, replace(batch, figures=figures)))
        except NotApplicable as error:
            reason = str(error)
            cause = error.__cause__
        passes = 0 if network is None else network.passes - before
        record = write_applicability(path, _applicability_key(shard), count, figures, reason, passes)
    shard.provenance["gate"] = manifest_fields(record)
    if record["gap"]:
        raise NotApplicable(record["gap"]) from cause
    return record


def _add_maps(shard: Shard, method: Method, images: EvaluationImages) -> None:
    start, stop = shard.missing()
    size = images.template.batch_size

    def batches() -> Iterator[Batch]:
        for low, read in prefetch(
            lambda low: images.read(range(low, min(low + size, stop))),
            track(range(start, stop, size), method.name, unit="batch"),
            images.device,
        ):
            yield images.batch(range(low, low + len(read)), read)

    # The cost of maps includes the time to wait for images.
    for maps in explain_batches(method, batches(), images.network):
        shard.add(start, encode_maps(maps.values, **_encoding(images.inputs)), maps.seconds, maps.passes)
        start += len(maps.values)

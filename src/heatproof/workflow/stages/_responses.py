"""What jobs of responses do: compute and store the outputs of a network for perturbed evaluation images.

One job computes a shard of one response. A map response has a store for each explainer of the job, with the explainer's
methods as a dimension, so that adding an explainer computes only its own store. The job reads the images, and runs the
network on the intact images, once for all explainers.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

import torch

from heatproof.core.adaptive_batch_size import batch_size_of
from heatproof.core.batch import Batch
from heatproof.core.batches import prefetch, track
from heatproof.core.dataset import Dataset
from heatproof.core.first_images import check_loaded
from heatproof.core.methods import Method, MethodSpec
from heatproof.core.normalise import normalise
from heatproof.core.passes import intact_responses
from heatproof.core.perturb.dataset_mean import dataset_options, mean_split, needs_dataset
from heatproof.core.specs import Runtime
from heatproof.core.tasks import task_provides
from heatproof.datasets.checks import check_target, open_dataset
from heatproof.datasets.probe_images import probe_rows_of_split, read_rows
from heatproof.datasets.reader import reader_of_dataset
from heatproof.errors import NotApplicable
from heatproof.metrics.responses.base import FirstBatch, Response, respond_batches, response_of
from heatproof.models.network import configure_torch, load_network
from heatproof.store.manifest import read_shard
from heatproof.store.publishing import public
from heatproof.store.source_files import images_of, ranges_of
from heatproof.store.stored_maps import stored_maps
from heatproof.store.zarr_store import ArraySpec
from heatproof.workflow.stages._batch_size_file import BatchSizeFile
from heatproof.workflow.stages._shards import BACKGROUND_WRITES, EVALUATION, ImageRange, Origin, Shard, open_shard

if TYPE_CHECKING:
    from heatproof.workflow.stages.responses import ResponseStage

log = logging.getLogger(__name__)


@dataclass
class ShardWork:
    """A shard to compute, and its name in the log: of a network response, or of a map response of one explainer."""

    name: str
    shard: Shard
    unsupported_reason: str | None
    spec: MethodSpec | None
    methods: Sequence[Method] = ()

    @property
    def is_pending(self) -> bool:
        """Whether to write the shard: images are missing, or are only in the journal of a job that was killed.

        Images of the journal alone are not enough to publish: the manifest also needs the checks of the network, which
        the killed job made and this job repeats.
        """
        start, stop = self.shard.missing()
        return self.unsupported_reason is None and (start < stop or self.shard.changed)

    def with_maps(self, batch: Batch, response: Response) -> Batch:
        """Return the batch with the explainer's maps and methods, for a map response."""
        if self.spec is None:
            return batch
        stop = batch.first + len(batch.image_ids)
        maps = stored_maps(self.spec.store + ".zarr", batch.first, stop, self.shard.layout.image_ids)
        batch = replace(batch, maps=maps, methods=self.methods)
        if not response.recomputes_maps:
            return batch
        # Imported here, because responses that recompute no maps do not need the explainers.
        from heatproof.workflow.stages._explaining import with_baselines

        return with_baselines(batch, self.spec.grid)


def store_responses(job: ResponseStage, runtime: Runtime) -> None:
    """Compute one shard of a response; images that are already in the shard are not computed again.

    A response that does not apply to the network or to the images is published as not applicable, with the reason.

    Raises
    ------
    HeatproofError
        If a map or a response has a value that is not finite, or maps are missing or damaged.
    """
    device, dataset, response = configure_torch(runtime), open_dataset(job.network.dataset), response_of(job.response)
    open_network = cache(lambda: _template(job, dataset, response, runtime, device))

    def first_batch() -> Batch:
        template = open_network()
        assert template.facts is not None, "a job knows the input format of the model"
        return replace(template, images=normalise(dataset.images(EVALUATION, 0, 1), template.facts))

    specs: Sequence[MethodSpec | None] = job.explainers or [None]
    all_work = [_open(job, spec, response, dataset, first_batch) for spec in specs]
    pending = [work for work in all_work if work.is_pending]
    for work in all_work:
        if not work.is_pending:
            if work.unsupported_reason is None:
                log.info("%s: all images are in the store already", work.name)
            work.shard.publish(str(device), work.unsupported_reason)
    with BACKGROUND_WRITES:
        if pending:
            _run(job, pending, response, open_network())
        for work in pending:
            work.shard.publish_behind(str(device), work.unsupported_reason)
    # The journal is removed last, because Snakemake removes the published files if the job fails before this point.
    for work in all_work:
        work.shard.forget_journal()


def _template(
    job: ResponseStage, dataset: Dataset, response: Response, runtime: Runtime, device: torch.device
) -> Batch:
    """Open the network of a job, and return the batch of its images without the images.

    The network runs in batches of one size. A map response needs the format with the layer for CAMs.
    """
    spec = job.network
    reader = reader_of_dataset(spec.dataset, dataset, spec.target)
    assert reader.classes is not None, "a dataset says how many outputs there are"
    module = load_network(spec.model, reader.classes, spec.weights, device, spec.precision, reader)
    if runtime.compile and not response.uses_hooks:
        module.compile()
    size = batch_size_of(runtime.batch_size, device)
    nothing: Any = None
    template = Batch(
        network=module,
        output=module,
        facts=job.facts or spec.model.facts,
        images=nothing,
        targets=nothing,
        image_ids=(),
        seed=spec.seed,
        batch_size=size,
        dataset=dataset,
    )
    if job.output == "probability":
        from heatproof.workflow.stages._explaining import Probabilities

        template = replace(template, output=Probabilities(module).eval())
    template.adapted.pad(size, BatchSizeFile(spec.weights))
    return template


def _open(
    job: ResponseStage, spec: MethodSpec | None, response: Response, dataset: Dataset, first: FirstBatch
) -> ShardWork:
    network = asdict(job.network)
    network.pop("upstream")
    # The report reads the settings, such as grid and baseline, from the top level of `made_by`.
    made_by = {**response.settings, **network, "response": asdict(job.response), **response.environment()}
    unsupported_reason, read_from = None, {}
    images, value_ranges, manifest_ranges = (
        images_of(job.network.dataset.manifest),
        set[ImageRange](),
        set[ImageRange](),
    )
    if needs_dataset(response.settings.get("baseline"), response.settings.get("baseline_options")):
        value_ranges.update(images.all_images_of(mean_split(dataset)))
    name, methods = None, list[Method]()
    if spec:
        maps = read_shard(spec.store, job.shard.number)
        unsupported_reason, read_from = maps["gap"], {f"{spec.store}.{job.shard.number}.json": maps["key"]}
        # A map response depends on all images on which the maps depend.
        value_ranges.update(images for images in ranges_of(maps) if images[0] != EVALUATION)
        manifest_ranges.update(
            image_range
            for image_range in ranges_of(maps)
            if image_range[0] == EVALUATION and image_range[1] != job.shard.images[0]
        )
        made_by["explainer"] = {key: getattr(spec, key) for key in ("name", "kind", "options")}
        name, methods = spec.name, spec.methods
        if response.recomputes_maps:
            from heatproof.workflow.stages._explaining import open_method

            opened = open_method(spec)
            methods = [replace(method, explainer=opened.explainer, options=opened.options) for method in methods]
    size = dataset.images(EVALUATION, 0, 1).shape[-2:]
    nothing: Any = None
    images_of_job = Batch(None, None, None, nothing, nothing, (), 0, dataset=dataset, size=size, methods=methods)
    contents = response.contents(images_of_job, job.network.dataset.name, first)
    arrays = {}
    for array, array_spec in response.array_specs.items():
        shape, dtype = tuple(contents.sizes[dim] for dim in array_spec.dims), array_spec.dtype_for(dataset.num_classes)
        arrays[array] = ArraySpec(array_spec.dims, shape, dtype, array_spec.chunk_by_image)
    upstream = list(response.environment().values())
    arguments = (spec or job).key, public(made_by), [job.network.weights], upstream, read_from
    origin = Origin(*arguments, images, sorted(value_ranges), sorted(manifest_ranges))
    store = job.store.format(explainer=name)
    shard = open_shard(job.shard, store, origin, dataset.splits[EVALUATION], arrays, contents.coordinates)
    return ShardWork(name or response.name, shard, unsupported_reason or contents.unsupported_reason, spec, methods)


def _run(job: ResponseStage, pending: Sequence[ShardWork], response: Response, template: Batch) -> None:
    dataset, facts, network = template.dataset, template.facts, template.adapted
    assert facts is not None, "a job knows the input format of the model"
    if "baseline" in (settings := response.settings):
        options = dataset_options(settings["baseline"], settings.get("baseline_options"), dataset, facts)
        response = replace(response, settings={**settings, "baseline_options": options})
    passes = check_loaded(template.network, normalise(read_rows(dataset, probe_rows_of_split(dataset)), facts))
    for work in pending:
        work.shard.provenance["check_passes"] = passes
        work.shard.without_probability = not task_provides(network.task, "probability")
    start, stop = min(work.shard.missing()[0] for work in pending), job.shard.images[1]
    target, split = check_target(job.network.target, dataset), dataset.splits[EVALUATION]
    size = template.batch_size
    in_turn: list[ShardWork] = []

    def batches() -> Iterator[Batch]:
        """Yield each batch of images once for each explainer that lacks some of them."""
        for low, images in prefetch(
            lambda low: normalise(dataset.images(EVALUATION, low, min(low + size, stop)), facts),
            track(range(start, stop, size), response.name, unit="batch"),
            network.device,
        ):
            rows = slice(low, low + len(images))
            targets, ids = torch.from_numpy(split.labels[rows]), list(split.ids[rows])
            batch = replace(template, images=images, targets=targets, image_ids=ids, first=low)
            if response.needs_intact or target == "predicted":
                batch = replace(batch, intact=intact_responses(batch))
            batch = batch.with_target(target)
            for work in pending:
                # The first missing image is usually the first one of the batch; after images were added, it can be a
                # later one, or lie behind the batch.
                begin = max(work.shard.missing()[0], low)
                if begin < low + len(images) and not work.unsupported_reason:
                    in_turn.append(work)
                    yield work.with_maps(batch.take(slice(begin - low, len(images))), response)

    for batch, arrays, seconds, passes in respond_batches(response, batches()):
        work = in_turn.pop()
        if isinstance(arrays, NotApplicable):
            # The response applies to the images, but not to the changed images.
            log.info("%s does not apply: %s", work.name, arrays, exc_info=arrays.__cause__)
            work.unsupported_reason = str(arrays)
        else:
            work.shard.add(batch.first, arrays, seconds, passes)

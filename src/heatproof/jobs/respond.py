"""Stage `respond`: compute and cache the responses of networks to perturbed evaluation images.

One job computes a shard of one response. A map response has a store for each explainer of the job, with the explainer's
methods as a dimension, so that adding an explainer computes only its own store. The job reads the images, and runs the
network on the intact images, once for all explainers.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from heatproof.base.batches import prefetch, track
from heatproof.base.methods import Method, MethodSpec
from heatproof.base.specs import Runtime
from heatproof.base.tasks import task_provides
from heatproof.data.checks import check_target, open_dataset
from heatproof.data.probe_images import probe_rows_of_split, read_rows
from heatproof.errors import NotApplicable
from heatproof.files.publishing import public
from heatproof.jobs.shards import BACKGROUND_WRITES, EVALUATION, ImageRange, Origin, Shard, open_shard
from heatproof.models.adaptive_batch_size import batch_size_of
from heatproof.models.first_images import check_loaded
from heatproof.models.hooks import reader_of
from heatproof.models.network import configure_torch, reader_of_dataset
from heatproof.perturbation.batching import intact_responses, open_network
from heatproof.perturbation.dataset_mean import dataset_options, mean_split, needs_dataset
from heatproof.responses.base import Batch, Explain, MethodMaps, NetworkRun, Response, response_of
from heatproof.stores.manifest import read_shard
from heatproof.stores.source_files import images_of, ranges_of
from heatproof.stores.store import ArraySpec
from heatproof.stores.stored_maps import stored_maps

if TYPE_CHECKING:
    from heatproof.stages.responses import ResponseStage

log = logging.getLogger(__name__)

# The explainers of a response that needs no maps.
NO_EXPLAINER: tuple[None, ...] = (None,)


@dataclass
class ShardWork:
    """A shard to compute: of a network response, or of a map response of one explainer."""

    shard: Shard
    unsupported_reason: str | None
    explainer: MethodSpec | None

    @property
    def is_pending(self) -> bool:
        """Whether to write the shard: images are missing, or are only in the journal of a job that was killed.

        Images of the journal alone are not enough to publish: the manifest also needs the checks of the network, which
        the killed job made and this job repeats.
        """
        start, stop = self.shard.missing()
        return self.unsupported_reason is None and (start < stop or self.shard.changed)

    def method_maps(self, low: int, high: int) -> MethodMaps | None:
        """Return the maps of images [low, high) for a map response, else None."""
        if not self.explainer:
            return None
        maps = stored_maps(self.explainer.store + ".zarr", low, high, self.shard.layout.image_ids)
        return MethodMaps(maps.values, self.explainer.methods, self.explainer.name)


def respond(job: ResponseStage, runtime: Runtime) -> None:
    """Compute one shard of a response; images that are already in the shard are not computed again.

    A response that does not apply to the network or to the images is published as not applicable, with the reason.

    Raises
    ------
    HeatproofError
        If a map or a response has a value that is not finite, or maps are missing or damaged.
    """
    network = job.network
    device, dataset, response = configure_torch(runtime), open_dataset(network.dataset), response_of(job.response)
    reader = reader_of_dataset(network.dataset, dataset, network.target)
    network_runtime = replace(runtime, compile=runtime.compile and not response.uses_hooks)
    network_run = NetworkRun(
        open_network=partial(open_network, network, reader, network_runtime, device),
        device=device,
        batch_size=batch_size_of(runtime.batch_size, device),
        seed=network.seed,
        facts=network.model.facts,
        dataset=dataset,
        dataset_name=network.dataset.name,
        explain=lambda method_maps, method, batch: explainer_of(job, network_run, method_maps.explainer, method, batch),
    )
    all_work = [_open(job, explainer, response, network_run) for explainer in (job.explainers or NO_EXPLAINER)]
    pending = [work for work in all_work if work.is_pending]
    for work in all_work:
        if not work.is_pending:
            if work.unsupported_reason is None:
                name = work.explainer.name if work.explainer else response.name
                log.info("%s: all images are in the store already", name)
            work.shard.publish(str(device), work.unsupported_reason)
    with BACKGROUND_WRITES:
        if pending:
            _run(job, pending, response, network_run)
        for work in pending:
            work.shard.publish_behind(str(device), work.unsupported_reason)
    # The journal is removed last, because Snakemake removes the published files if the job fails before this point.
    for work in all_work:
        work.shard.forget_journal()


def _open(job: ResponseStage, explainer: MethodSpec | None, response: Response, network_run: NetworkRun) -> ShardWork:
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
        value_ranges.update(images.all_images_of(mean_split(network_run.dataset)))
    name, methods = None, []
    if explainer:
        maps = read_shard(explainer.store, job.shard.number)
        unsupported_reason, read_from = maps["gap"], {f"{explainer.store}.{job.shard.number}.json": maps["key"]}
        # A map response depends on all images on which the maps depend.
        value_ranges.update(one for one in ranges_of(maps) if one[0] != EVALUATION)
        manifest_ranges.update(one for one in ranges_of(maps) if one[0] == EVALUATION and one[1] != job.shard.images[0])
        made_by["explainer"] = {key: getattr(explainer, key) for key in ("name", "kind", "options")}
        name, methods = explainer.name, [method.name for method in explainer.methods]
    size = network_run.dataset.images("evaluation", 0, 1).shape[-2:]
    contents = response.contents(network_run, size, methods)
    classes, arrays = network_run.dataset.num_classes, {}
    for array, spec in response.array_specs.items():
        shape = tuple(contents.sizes[dim] for dim in spec.dims)
        arrays[array] = ArraySpec(spec.dims, shape, spec.dtype_for(classes), spec.chunk_by_image)
    upstream = list(response.environment().values())
    arguments = (explainer or job).key, public(made_by), [job.network.weights], upstream, read_from
    origin = Origin(*arguments, images, sorted(value_ranges), sorted(manifest_ranges))
    store = job.store.format(explainer=name)
    shard = open_shard(job.shard, store, origin, network_run.dataset.splits["evaluation"], arrays, contents.coordinates)
    return ShardWork(shard, unsupported_reason or contents.unsupported_reason, explainer)


def _run(job: ResponseStage, pending: Sequence[ShardWork], response: Response, network_run: NetworkRun) -> None:
    dataset, size, network = network_run.dataset, network_run.batch_size, network_run.network
    split = dataset.splits["evaluation"]
    if "baseline" in (settings := response.settings):
        baseline_arguments = (settings["baseline"], settings.get("baseline_options"), dataset, job.network.model.facts)
        response = replace(response, settings={**settings, "baseline_options": dataset_options(*baseline_arguments)})
    target = check_target(job.network.target, dataset)
    start, stop = min(work.shard.missing()[0] for work in pending), job.shard.images[1]
    probe_images = network_run.normalised(read_rows(dataset, probe_rows_of_split(dataset)))
    passes = check_loaded(network.network, probe_images.to(network_run.device))
    reader = reader_of(network.network)
    for work in pending:
        work.shard.provenance["check_passes"] = passes
        work.shard.without_probability = reader is not None and not task_provides(reader.task, "probability")
    # The seconds of reading and of the intact images count for the first explainer of a batch.
    began = time.monotonic()
    for low, images in prefetch(
        lambda low: network_run.normalised(dataset.images("evaluation", low, min(low + size, stop))),
        track(range(start, stop, size), response.name, unit="batch"),
        network_run.device,
    ):
        high = low + len(images)
        full_batch = Batch(images, torch.from_numpy(split.labels[low:high]), list(split.ids[low:high]), low)
        if response.needs_intact or target == "predicted":
            full_batch = replace(full_batch, intact=intact_responses(network_run.query(full_batch)))
        full_batch = full_batch.with_target(target)
        for work in pending:
            # The first missing image is usually the first one of the batch; after images were added, it can be a later
            # one, or lie behind the batch.
            begin = max(work.shard.missing()[0], low)
            if begin >= high or work.unsupported_reason:
                continue
            before = network.images
            try:
                arrays = response.run(network_run, full_batch.from_row(begin - low), work.method_maps(begin, high))
            except NotApplicable as reason:
                # The response applies to the images, but not to the changed images.
                name = work.explainer.name if work.explainer else response.name
                log.info("%s does not apply: %s", name, reason, exc_info=reason.__cause__)
                work.unsupported_reason = str(reason)
            else:
                work.shard.add(begin, arrays, time.monotonic() - began, network.images - before)
                began = time.monotonic()


def explainer_of(job: ResponseStage, network_run: NetworkRun, name: str, method: Method, batch: Batch) -> Explain:
    """Return a function from images and targets to maps of one method.

    Parameters
    ----------
    job
        Job of a map response, with the explainers, the model's input format, and the output that is explained.
    network_run
        Network, device, batch size and dataset, whose training images are baselines of some explainers.
    name, method
        Name of the explainer, and the method that selects one of its maps.
    batch
        The N original images. The function receives images (k N, C, H, W), k changed copies of each one after another,
        which share the random draws of the original.

    Returns
    -------
    callable
        Images (k N, C, H, W) and targets (k N,) to maps (k N, H, W) float32 on the CPU.
    """
    # Imported here, because responses that recompute no maps do not need the explainers.
    from heatproof.attribution.explaining import explain_batch
    from heatproof.jobs.attribute import context_factory, open_method

    entry = next(entry for entry in job.explainers if entry.name == name)
    opened, network = open_method(entry), network_run.network.network if entry.uses_model else None
    assert job.facts is not None, "a response along maps has the format with the layer for CAMs"
    how: dict[str, Any] = {"output": job.output, "seed": job.network.seed, "grid": entry.grid}
    make_context = context_factory(network, job.facts, network_run.dataset, **how, batch_size=network_run.batch_size)

    def explain(images: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        context = make_context(
            images=images.to(network_run.device).contiguous(memory_format=torch.channels_last),
            targets=targets.to(network_run.device),
            image_ids=tuple(one for one in batch.ids for _ in range(len(images) // len(batch.ids))),
        )
        return torch.from_numpy(method.select_maps(explain_batch(opened, context)))

    return explain

"""Stage `respond`: compute and cache the responses of networks to perturbed evaluation images.

One job makes a shard of one response. A response along maps has a store for each explainer of the job, with its methods
as a dimension, so that a method that is added later computes its own share and no more; images are read, and run
intact, once for all of them.
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
from heatproof.base.methods import Method
from heatproof.base.specs import Runtime
from heatproof.base.tasks import task_provides
from heatproof.data.checks import check_target, open_dataset
from heatproof.data.few import probe_rows_of_split, read_rows
from heatproof.errors import NotApplicable
from heatproof.files.publishing import public
from heatproof.jobs.shards import BACKGROUND_WRITES, EVALUATION, ImageRange, Origin, Shard, open_shard
from heatproof.models.adapter import check_loaded, reader_of
from heatproof.models.memory import batch_size_of
from heatproof.models.network import configure_torch, reader_of_dataset
from heatproof.perturbation.batching import intact_responses, open_network
from heatproof.perturbation.dataset_mean import dataset_options, mean_split, needs_dataset
from heatproof.responses.base import Batch, Explain, MethodMaps, NetworkRun, Response, response_of
from heatproof.stores.manifest import read_shard
from heatproof.stores.sources import images_of, ranges_of
from heatproof.stores.store import ArraySpec
from heatproof.stores.stored_maps import stored_maps

if TYPE_CHECKING:
    from heatproof.stages.responses import ResponseExplainer, ResponseStage

log = logging.getLogger(__name__)

# Of a response that needs no maps.
NO_EXPLAINER: tuple[None, ...] = (None,)


@dataclass
class Work:
    """A shard to compute: of a network response, or of a map response of one explainer."""

    piece: Shard
    unsupported_reason: str | None
    explainer: ResponseExplainer | None

    @property
    def todo(self) -> bool:
        """Whether the shard is to be written: images are missing, or a job that was killed left them in the journal.

        The manifest of those is to say what that job found of the network, which is found again.
        """
        start, stop = self.piece.missing()
        return self.unsupported_reason is None and (start < stop or self.piece.changed)

    def method_maps(self, low: int, high: int) -> MethodMaps | None:
        """Return the maps of images [low, high) for a map response, else None."""
        if not self.explainer:
            return None
        maps = stored_maps(self.explainer.maps_store + ".zarr", low, high, self.piece.layout.image_ids)
        return MethodMaps(maps.values, self.explainer.methods, self.explainer.name)


def respond(job: ResponseStage, runtime: Runtime) -> None:
    """Compute one shard of a response; images already in the shard are kept.

    What does not apply, to the network or to the images, is published as a gap with its reason.

    Raises
    ------
    HeatproofError
        If a map or a response has a value that is not finite, or maps are missing or damaged.
    """
    network = job.network
    device, dataset, response = configure_torch(runtime), open_dataset(network.dataset), response_of(job.response)
    reader = reader_of_dataset(network.dataset, dataset, network.target)
    how = replace(runtime, compile=runtime.compile and not response.uses_hooks)
    network_run = NetworkRun(
        open_network=partial(open_network, network, reader, how, device),
        device=device,
        batch_size=batch_size_of(runtime.batch_size, device),
        seed=network.seed,
        facts=network.model.facts,
        dataset=dataset,
        dataset_name=network.dataset.name,
        explain=lambda method_maps, method, batch: explainer_of(job, network_run, method_maps.explainer, method, batch),
    )
    every = [_open(job, explainer, response, network_run) for explainer in (job.explainers or NO_EXPLAINER)]
    todo = [work for work in every if work.todo]
    for work in every:
        if not work.todo:
            if work.unsupported_reason is None:
                name = work.explainer.name if work.explainer else response.name
                log.info("%s: all images are in the store already", name)
            work.piece.publish(str(device), work.unsupported_reason)
    with BACKGROUND_WRITES:
        if todo:
            _run(job, todo, response, network_run)
        for work in todo:
            work.piece.publish_behind(str(device), work.unsupported_reason)
    # Only now: until the job ends well, Snakemake may remove what it published.
    for work in every:
        work.piece.forget_journal()


def _open(job: ResponseStage, explainer: ResponseExplainer | None, response: Response, network_run: NetworkRun) -> Work:
    network = asdict(job.network)
    network.pop("upstream")
    # Pages look for the settings, such as grid and baseline, beside the other facts.
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
        maps = read_shard(explainer.maps_store, job.shard.number)
        unsupported_reason, read_from = maps["gap"], {f"{explainer.maps_store}.{job.shard.number}.json": maps["key"]}
        # What maps follow from, responses along them do.
        value_ranges.update(one for one in ranges_of(maps) if one[0] != EVALUATION)
        manifest_ranges.update(one for one in ranges_of(maps) if one[0] == EVALUATION and one[1] != job.shard.images[0])
        made_by["explainer"] = {key: getattr(explainer, key) for key in ("name", "kind", "options")}
        name, methods = explainer.name, [method.name for method in explainer.methods]
    size = network_run.dataset.images("evaluation", 0, 1).shape[-2:]
    contents = response.contents(network_run, size, methods)
    classes, arrays = network_run.dataset.num_classes, {}
    for array, array_specs in response.array_specs.items():
        shape = tuple(contents.sizes[dim] for dim in array_specs.dims)
        arrays[array] = ArraySpec(array_specs.dims, shape, array_specs.dtype_for(classes), array_specs.chunk_by_image)
    upstream = list(response.environment().values())
    of = (explainer or job).key, public(made_by), [job.network.weights], upstream, read_from
    origin = Origin(*of, images, sorted(value_ranges), sorted(manifest_ranges))
    store = job.store.format(explainer=name)
    piece = open_shard(job.shard, store, origin, network_run.dataset.splits["evaluation"], arrays, contents.coordinates)
    return Work(piece, unsupported_reason or contents.unsupported_reason, explainer)


def _run(job: ResponseStage, todo: Sequence[Work], response: Response, network_run: NetworkRun) -> None:
    dataset, size, network = network_run.dataset, network_run.batch_size, network_run.network
    split = dataset.splits["evaluation"]
    if "baseline" in (settings := response.settings):
        given = (settings["baseline"], settings.get("baseline_options"), dataset, job.network.model.facts)
        response = replace(response, settings={**settings, "baseline_options": dataset_options(*given)})
    target = check_target(job.network.target, dataset)
    start, stop = min(work.piece.missing()[0] for work in todo), job.shard.images[1]
    few = network_run.normalised(read_rows(dataset, probe_rows_of_split(dataset)))
    passes = check_loaded(network.network, few.to(network_run.device))
    reader = reader_of(network.network)
    for work in todo:
        work.piece.provenance["check_passes"] = passes
        work.piece.lacks_probability = reader is not None and not task_provides(reader.task, "probability")
    # Reading and the intact images are paid by the first explainer of a batch.
    began = time.monotonic()
    for low, images in prefetch(
        lambda low: network_run.normalised(dataset.images("evaluation", low, min(low + size, stop))),
        track(range(start, stop, size), response.name, unit="batch"),
        network_run.device,
    ):
        high = low + len(images)
        whole = Batch(images, torch.from_numpy(split.labels[low:high]), list(split.ids[low:high]), low)
        if response.needs_intact or target == "predicted":
            whole = replace(whole, intact=intact_responses(network_run.query(whole)))
        whole = whole.with_target(target)
        for work in todo:
            # As a rule with the first image of the batch; where images were added, within it or after it.
            begin = max(work.piece.missing()[0], low)
            if begin >= high or work.unsupported_reason:
                continue
            before = network.images
            try:
                arrays = response.run(network_run, whole.from_row(begin - low), work.method_maps(begin, high))
            except NotApplicable as reason:
                # It applied to the images, and does not to what they are changed to.
                name = work.explainer.name if work.explainer else response.name
                log.info("%s does not apply: %s", name, reason, exc_info=reason.__cause__)
                work.unsupported_reason = str(reason)
            else:
                work.piece.add(begin, arrays, time.monotonic() - began, network.images - before)
                began = time.monotonic()


def explainer_of(job: ResponseStage, network_run: NetworkRun, name: str, method: Method, batch: Batch) -> Explain:
    """Return a function from images and targets to maps of one method.

    Parameters
    ----------
    job
        Of a response along maps: has the explainers, the model's input format, and the output that is explained.
    session
        Network, device, batch size and dataset, whose training images are baselines of some explainers.
    name, method
        Name of the explainer, and which of its maps.
    batch
        The N images that are changed: images (k N, C, H, W) are k copies of each, one after another, and share its
        draws.

    Returns
    -------
    callable
        Images (k N, C, H, W) and targets (k N,) to maps (k N, H, W) float32 on the CPU.
    """
    # Here, because responses that explain nothing need not load it.
    from heatproof.attribution.explaining import explain_batch
    from heatproof.jobs.attribute import context_factory, maker_of

    entry = next(entry for entry in job.explainers if entry.name == name)
    maker, known = maker_of(entry), network_run.network.network if entry.uses_model else None
    assert job.facts is not None, "a response along maps has the format with the layer for CAMs"
    how: dict[str, Any] = {"output": job.output, "seed": job.network.seed, "grid": entry.grid}
    make_context = context_factory(known, job.facts, network_run.dataset, **how, batch_size=network_run.batch_size)

    def explain(images: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        context = make_context(
            images=images.to(network_run.device).contiguous(memory_format=torch.channels_last),
            targets=targets.to(network_run.device),
            image_ids=tuple(one for one in batch.ids for _ in range(len(images) // len(batch.ids))),
        )
        return torch.from_numpy(method.of(explain_batch(maker, context)))

    return explain

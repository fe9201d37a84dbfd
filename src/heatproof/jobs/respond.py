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
from heatproof.base.tasks import gives
from heatproof.data.checks import check_target, open_dataset
from heatproof.data.few import few_of_split, read_rows
from heatproof.errors import NotApplicable
from heatproof.files.publishing import public
from heatproof.jobs.shards import EVALUATION, WRITING, Origin, Range, Shard, open_shard
from heatproof.models.adapter import check_loaded, reader_of
from heatproof.models.memory import batch_size_of
from heatproof.models.network import reader_of_dataset, use_machine
from heatproof.perturbation.batching import intact_responses, open_network
from heatproof.perturbation.dataset_mean import dataset_options, mean_split, needs_dataset
from heatproof.responses.base import Along, Batch, Explain, Response, Session, response_of
from heatproof.stores.manifest import read_shard
from heatproof.stores.sources import images_of, ranges_of
from heatproof.stores.store import ArraySpec
from heatproof.stores.stored_maps import stored_maps

if TYPE_CHECKING:
    from heatproof.stages.responses import ExplainedResponse, RunResponse

log = logging.getLogger(__name__)

# Of a response that needs no maps.
NO_EXPLAINER: tuple[None, ...] = (None,)


@dataclass
class Work:
    """A shard to compute: of a network response, or of a map response of one explainer."""

    piece: Shard
    gap: str | None
    explainer: ExplainedResponse | None

    @property
    def todo(self) -> bool:
        """Whether the shard is to be written: images are missing, or a job that was killed left them in the journal.

        The manifest of those is to say what that job found of the network, which is found again.
        """
        start, stop = self.piece.missing()
        return self.gap is None and (start < stop or self.piece.changed)

    def along(self, low: int, high: int) -> Along | None:
        """Return the maps of images [low, high) for a map response, else None."""
        if not self.explainer:
            return None
        maps = stored_maps(self.explainer.maps_store + ".zarr", low, high, self.piece.layout.image_ids)
        return Along(maps.values, self.explainer.methods, self.explainer.name)


def respond(job: RunResponse, runtime: Runtime) -> None:
    """Compute one shard of a response; images already in the shard are kept.

    What does not apply, to the network or to the images, is published as a gap with its reason.

    Raises
    ------
    HeatproofError
        If a map or a response has a value that is not finite, or maps are missing or damaged.
    """
    network = job.network
    device, dataset, response = use_machine(runtime), open_dataset(network.dataset), response_of(job.response)
    reader = reader_of_dataset(network.dataset, dataset, network.target)
    how = replace(runtime, compile=runtime.compile and not response.looks_inside)
    session = Session(
        open_network=partial(open_network, network, reader, how, device),
        device=device,
        batch_size=batch_size_of(runtime.batch_size, device),
        seed=network.seed,
        facts=network.model.facts,
        dataset=dataset,
        dataset_name=network.dataset.name,
        explain=lambda along, method, batch: explainer_of(job, session, along.explainer, method, batch),
    )
    every = [_open(job, explainer, response, session) for explainer in (job.explainers or NO_EXPLAINER)]
    todo = [work for work in every if work.todo]
    for work in every:
        if not work.todo:
            if work.gap is None:
                name = work.explainer.name if work.explainer else response.name
                log.info("%s: all images are in the store already", name)
            work.piece.publish(str(device), work.gap)
    with WRITING:
        if todo:
            _run(job, todo, response, session)
        for work in todo:
            work.piece.publish_behind(str(device), work.gap)
    # Only now: until the job ends well, Snakemake may remove what it published.
    for work in every:
        work.piece.forget_journal()


def _open(job: RunResponse, explainer: ExplainedResponse | None, response: Response, session: Session) -> Work:
    network = asdict(job.network)
    network.pop("upstream")
    # Pages look for the settings, such as grid and baseline, beside the other facts.
    made_by = {**response.settings, **network, "response": asdict(job.response), **response.environment()}
    gap, read_from = None, {}
    images, also, beside = images_of(job.network.dataset.manifest), set[Range](), set[Range]()
    if needs_dataset(response.settings.get("baseline"), response.settings.get("baseline_options")):
        also.update(images.whole(mean_split(session.dataset)))
    name, methods = None, []
    if explainer:
        maps = read_shard(explainer.maps_store, job.shard.number)
        gap, read_from = maps["gap"], {f"{explainer.maps_store}.{job.shard.number}.json": maps["key"]}
        # What maps follow from, responses along them do.
        also.update(one for one in ranges_of(maps) if one[0] != EVALUATION)
        beside.update(one for one in ranges_of(maps) if one[0] == EVALUATION and one[1] != job.shard.images[0])
        made_by["explainer"] = {key: getattr(explainer, key) for key in ("name", "kind", "options")}
        name, methods = explainer.name, [method.name for method in explainer.methods]
    size = session.dataset.images("evaluation", 0, 1).shape[-2:]
    contents = response.contents(session, size, methods)
    classes, arrays = session.dataset.num_classes, {}
    for array, holds in response.holds.items():
        shape = tuple(contents.sizes[dim] for dim in holds.dims)
        arrays[array] = ArraySpec(holds.dims, shape, holds.dtype_for(classes), holds.chunk_by_image)
    upstream = list(response.environment().values())
    of = (explainer or job).key, public(made_by), [job.network.weights], upstream, read_from
    origin = Origin(*of, images, sorted(also), sorted(beside))
    store = job.store.format(explainer=name)
    piece = open_shard(job.shard, store, origin, session.dataset.splits["evaluation"], arrays, contents.coordinates)
    return Work(piece, gap or contents.gap, explainer)


def _run(job: RunResponse, todo: Sequence[Work], response: Response, session: Session) -> None:
    dataset, size, network = session.dataset, session.batch_size, session.network
    split = dataset.splits["evaluation"]
    if "baseline" in (settings := response.settings):
        given = (settings["baseline"], settings.get("baseline_options"), dataset, job.network.model.facts)
        response = replace(response, settings={**settings, "baseline_options": dataset_options(*given)})
    target = check_target(job.network.target, dataset)
    start, stop = min(work.piece.missing()[0] for work in todo), job.shard.images[1]
    few = session.normalised(read_rows(dataset, few_of_split(dataset)))
    passes = check_loaded(network.network, few.to(session.device))
    reader = reader_of(network.network)
    for work in todo:
        work.piece.provenance["check_passes"] = passes
        work.piece.lacks_probability = reader is not None and not gives(reader.task, "probability")
    # Reading and the intact images are paid by the first explainer of a batch.
    began = time.monotonic()
    for low, images in prefetch(
        lambda low: session.normalised(dataset.images("evaluation", low, min(low + size, stop))),
        track(range(start, stop, size), response.name, unit="batch"),
        session.device,
    ):
        high = low + len(images)
        whole = Batch(images, torch.from_numpy(split.labels[low:high]), list(split.ids[low:high]), low)
        if response.needs_intact or target == "predicted":
            whole = replace(whole, intact=intact_responses(session.query(whole)))
        whole = whole.aimed_at(target)
        for work in todo:
            # As a rule with the first image of the batch; where images were added, within it or after it.
            begin = max(work.piece.missing()[0], low)
            if begin >= high or work.gap:
                continue
            before = network.images
            try:
                arrays = response.run(session, whole.since(begin - low), work.along(begin, high))
            except NotApplicable as reason:
                # It applied to the images, and does not to what they are changed to.
                name = work.explainer.name if work.explainer else response.name
                log.info("%s does not apply: %s", name, reason, exc_info=reason.__cause__)
                work.gap = str(reason)
            else:
                work.piece.add(begin, arrays, time.monotonic() - began, network.images - before)
                began = time.monotonic()


def explainer_of(job: RunResponse, session: Session, name: str, method: Method, batch: Batch) -> Explain:
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
    from heatproof.jobs.attribute import explained_on, maker_of

    entry = next(entry for entry in job.explainers if entry.name == name)
    maker, known = maker_of(entry), session.network.network if entry.uses_model else None
    assert job.facts is not None, "a response along maps has the format with the layer for CAMs"
    how: dict[str, Any] = {"output": job.output, "seed": job.network.seed, "grid": entry.grid}
    explained_of = explained_on(known, job.facts, session.dataset, **how, batch_size=session.batch_size)

    def explain(images: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        explained = explained_of(
            images=images.to(session.device).contiguous(memory_format=torch.channels_last),
            targets=targets.to(session.device),
            image_ids=tuple(one for one in batch.ids for _ in range(len(images) // len(batch.ids))),
        )
        return torch.from_numpy(method.of(explain_batch(maker, explained)))

    return explain

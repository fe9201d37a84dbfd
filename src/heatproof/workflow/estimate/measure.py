"""Time stages of a plan on its first few images, in this process."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, cast

from heatproof.core.lazy import torch
from heatproof.core.specs import PRETRAINED, FinetuningSettings, NetworkName, ShardRange
from heatproof.datasets.checks import open_dataset
from heatproof.datasets.rows import unwrap_rows
from heatproof.errors import HeatproofError
from heatproof.store.reading import read_json
from heatproof.workflow.plan.folder import Folder
from heatproof.workflow.plan.graph import Graph, Job
from heatproof.workflow.plan.validate import Plan
from heatproof.workflow.stages.weights import weights_of

if TYPE_CHECKING:
    from heatproof.workflow.stages.score import Score
    from heatproof.workflow.stages.shards import ShardStage

STEPS = 3


class TimedNetwork(NamedTuple):
    """Seconds per image of a forward pass and of a gradient, height and width, and number of images of each split."""

    forward: float
    gradient: float
    size: tuple[int, int]
    splits: dict[str, int]


class TimedSteps(NamedTuple):
    """Seconds per image for training, validating and reading."""

    train: float
    validate: float
    read: float


@dataclass
class JobCost:
    """The cost of one kind of job.

    Attributes
    ----------
    fixed
        Seconds that do not depend on the number of images: imports, weights, applicability check, writing.
    per_image
        Seconds per image, by explainer if the job has several, otherwise by the name of the stage.
    bytes_per_image
        Bytes on disk per image.
    metadata_files
        Number of files of its stores that do not depend on the number of shards.
    """

    fixed: float
    per_image: dict[str, float] = field(default_factory=dict)
    bytes_per_image: float = 0.0
    metadata_files: int = 0

    def scaled(self, ratio: float) -> JobCost:
        """Return the cost with a network whose passes take `ratio` times as long."""
        return replace(self, per_image={name: seconds * ratio for name, seconds in self.per_image.items()})

    def seconds(self, images: float, names: list[str] | None = None) -> float:
        """Return the seconds of a job for a number of images, with all explainers or some."""
        chosen = self.per_image if names is None else {name: self.per_image.get(name, 0.0) for name in names}
        return self.fixed + images * sum(chosen.values())


class Bench:
    """Times jobs of a plan on its first few images, in a temporary folder."""

    def __init__(self, plan: Plan, folder: Path, images: int, report_progress: Callable[[str], None]) -> None:
        began = time.process_time()
        # Every job imports them. This process has not imported them yet, unless the config needed them.
        from heatproof.models.network import configure_torch

        self.start_up = time.process_time() - began
        self.plan = replace(plan, results=Folder(str(folder / "results")))
        self.images, self.report_progress = images, report_progress
        self.runtime = plan.runtime()
        self.device = configure_torch(self.runtime)

    @property
    def device_name(self) -> str:
        """The name of the device."""
        return torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else self.device.type

    def seconds(self, work: Callable[[], object], what: str) -> float:
        """Return the seconds that a function takes; on a CPU with one thread, those of the processor.

        Raises
        ------
        HeatproofError
            If the function fails; the message has its error.
        """
        # Processor time excludes other programs.
        clock = time.process_time if self.device.type == "cpu" and self.runtime.threads == 1 else time.perf_counter
        began = clock()
        try:
            work()
        except Exception as error:
            raise HeatproofError(f"{what} fails on the first {self.images} images: {error}") from error
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return clock() - began

    def shard(self, job: Job) -> JobCost:
        """Run a job that makes shards of stores, and return its cost, with that of each store from its manifest."""
        spec = replace(cast("ShardStage", job.spec), shard=ShardRange(0, self.images, (0, self.images)))
        began = time.perf_counter()
        seconds = self.seconds(partial(spec.run, self.runtime), job.stage)
        share = seconds / (time.perf_counter() - began)
        cost = JobCost(seconds, metadata_files=_metadata_files(job))
        names = [entry.name for entry in getattr(spec, "explainers", ())] or [job.stage]
        for name, product in zip(names, job.products, strict=True):
            manifest = read_json(product.manifest)
            if manifest is None or manifest["gap"]:
                continue
            cost.per_image[name] = manifest["seconds"] * share / self.images
            cost.bytes_per_image += sum(facts["bytes"] for facts in manifest["files"]) / self.images
            cost.fixed -= manifest["seconds"] * share
        cost.fixed = self.start_up + max(cost.fixed, 0.0)
        return cost

    def network(self, dataset: str, model: str) -> TimedNetwork:
        """Write random weights of a model to the files of all its weights, and time its gradient."""
        from heatproof.core.adaptive_batch_size import batch_size_of
        from heatproof.core.normalise import normalise
        from heatproof.datasets.reader import reader_of_dataset
        from heatproof.models.network import build_network, save_weights

        dataset_spec, model_spec = self.plan.dataset_spec(dataset), self.plan.model_spec(model)
        data = open_dataset(dataset_spec)
        reader = reader_of_dataset(dataset_spec, data, self.plan.config["target"])
        network = build_network(model_spec, reader.classes or 1, reader=reader)
        for weights in dict.fromkeys([PRETRAINED, *self.plan.weights]):
            path = self.plan.results.weights.format(dataset=dataset, model=model, weights=weights)
            save_weights(network.state_dict(), path)
        network = network.to(self.device).eval().requires_grad_(False)
        count = min(self.images, batch_size_of(self.runtime.batch_size, self.device))
        images = normalise(data.images("evaluation", 0, count), model_spec.facts).to(self.device)

        def gradient() -> None:
            leaf = images.clone().requires_grad_()
            torch.autograd.grad(network(leaf).sum(), leaf)

        def forward() -> None:
            with torch.no_grad():
                network(images)

        # The first passes take longer.
        passes = min(self.seconds(forward, f"a pass of {model}") for _ in range(3))
        seconds = min(self.seconds(gradient, f"a gradient of {model}") for _ in range(3))
        height, width = images.shape[-2:]
        splits = {name: len(data.splits[name]) for name in ("train", "validation")}
        return TimedNetwork(passes / count, seconds / count, (height, width), splits)

    def training(self, dataset: str, model: str, weights: str) -> TimedSteps:
        """Time some steps of the training of certain weights."""
        from heatproof.core.normalise import normalise
        from heatproof.datasets.reader import reader_of_dataset
        from heatproof.models.network import build_network
        from heatproof.training.in_domain import use_complete_output
        from heatproof.training.loop import Examples, fit, validate

        # A saved epoch belongs to its training.
        trained = self.plan.saved_epochs[weights][0] if weights in self.plan.saved_epochs else weights
        spec = weights_of(Graph(self.plan), NetworkName(dataset, model, trained))
        # For a fetched checkpoint, the time of a finetuning.
        task = self.plan.trained_on(dataset).task
        default_settings = FinetuningSettings(**self.plan.training_settings(self.plan.models[model].finetuning, task))
        schedule = replace(getattr(spec, "training", default_settings), epochs=1)
        dataset_spec, model_spec = self.plan.trained_on(dataset), self.plan.trained_spec(model)
        data = unwrap_rows(open_dataset(dataset_spec))
        reader = reader_of_dataset(dataset_spec, data)
        network = build_network(model_spec, reader.classes or 1, reader=reader).to(self.device)
        # Without training images, evaluation images serve for the timing. The batch is small if few images are timed.
        split = "train" if len(data.splits["train"]) else "evaluation"
        size = min(schedule.batch_size, len(data.splits[split]), 8 * self.images)
        began = time.perf_counter()
        images = normalise(data.images(split, 0, size), model_spec.facts)
        read = (time.perf_counter() - began) / size
        labels = torch.from_numpy(data.splits[split].labels[:size])
        if dataset_spec.task == "regression":
            labels = labels.float()
        if getattr(spec, "ignores_labels", False):
            use_complete_output(network.eval(), [Examples(images, labels)], size)
            with torch.no_grad():
                labels = network(images.to(self.device)).cpu()
        # `fit` needs images to validate on; one is enough.
        examples = Examples(images.repeat(STEPS, 1, 1, 1), torch.cat([labels] * STEPS))
        single = Examples(images[:1], labels[:1])
        fit(network, Examples(images, labels), single, schedule, 0)
        train = self.seconds(lambda: fit(network, examples, single, schedule, 0), f"the training of {model}")
        validation = self.seconds(
            lambda: validate(network, examples, schedule.batch_size, schedule.loss), f"the validation of {model}"
        )
        return TimedSteps(train / (size * STEPS), validation / (size * STEPS), read)

    def scores(self, dataset: str, model: str, metrics: list[str]) -> JobCost:
        """Return the mean cost of scoring some metrics on existing stores."""
        total, slopes = 0.0, 0.0
        for metric in metrics:
            where = self.plan.case(dataset, model, self.plan.weights[-1], metric).where
            spec = replace(cast("Score", Graph(self.plan).spec("score", **where)), shard_size=self.images)
            # The first takes longer, because it imports libraries.
            jobs = [replace(spec, images=images) for images in (1, 1, self.images)]
            _, least, more = (self.seconds(partial(job.run, self.runtime), metric) for job in jobs)
            total += least
            slopes += max(more - least, 0.0) / max(self.images - 1, 1)
        count = max(len(metrics), 1)
        return JobCost(self.start_up + total / count, {"score": slopes / count})


def _metadata_files(job: Job) -> int:
    """Return how many files of the stores of a job are not the shards that it has made."""
    stores = {Path(file.partition(".zarr/")[0] + ".zarr") for file in job.outputs if ".zarr/" in file}
    written = sum(path.is_file() for store in stores for path in store.rglob("*"))
    written += sum(store.with_suffix(".gate.json").exists() for store in stores)
    return written - sum(".zarr/" in file and Path(file).is_file() for file in job.outputs)

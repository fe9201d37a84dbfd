"""Child process of `heatproof estimate`: run a job of the workflow, or time a network or training steps.

It prints one line of JSON: the results, the seconds of processor time, and the peak memory of process and device.
"""

from __future__ import annotations

import json
import resource
import sys
import time
import timeit
from dataclasses import dataclass, replace
from pkgutil import resolve_name
from typing import Any, TypedDict

from heatproof.core.from_json import as_type
from heatproof.core.lazy import torch
from heatproof.core.signals import end_with_parent
from heatproof.core.specs import DatasetSpec, FinetuningSettings, Runtime, TrainingSettings
from heatproof.datasets.checks import open_dataset
from heatproof.datasets.rows import unwrap_rows
from heatproof.models.registry import ModelSpec

STEPS = 3


class TimedPass(TypedDict):
    """Seconds per image of passes of a network, height and width in pixels, and number of images of each split."""

    forward: float
    gradient: float
    size: list[int]
    splits: dict[str, int]


class TimedSteps(TypedDict):
    """Seconds per image for training, validating and reading, and processor seconds until the first training step."""

    train: float
    validate: float
    read: float
    start: float


class CountedSteps(TimedSteps):
    """Times of training steps, and the number of images of each split."""

    splits: dict[str, int]


def main(arguments: list[str]) -> None:
    """Run a job of a stage, or one of the timings below, and print the results.

    Parameters
    ----------
    arguments
        The class as ``module:name``, its fields as JSON, and the runtime settings as JSON.
    """
    end_with_parent()
    runtime = Runtime(**json.loads(arguments[2]))
    job: Any = as_type(resolve_name(arguments[0]), json.loads(arguments[1]), "the job")
    # Jobs return nothing.
    measured = job.run(runtime) or {}
    # ru_maxrss is in kilobytes, on macOS in bytes.
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**30 if sys.platform == "darwin" else 2**20)
    used = {"processor": time.process_time(), "memory": memory, "device_gib": device_memory()}
    print(json.dumps({**measured, **used, "device": device_of(runtime)}))


@dataclass(frozen=True)
class StartUp:
    """The start of a job: its imports."""

    def run(self, runtime: Runtime) -> None:
        """Import the modules of a job."""
        import heatproof.jobs.attribute
        import heatproof.workflow.stages._training  # noqa: F401


@dataclass(frozen=True)
class TimeWeights:
    """Write random weights of a network to several files, and time its passes."""

    dataset: DatasetSpec
    model: ModelSpec
    outputs: list[str]
    images: int
    target: str | int = "label"

    def run(self, runtime: Runtime) -> TimedPass:
        """Write random weights, and return the times of a forward pass and of a gradient."""
        from heatproof.core.adaptive_batch_size import batch_size_of
        from heatproof.core.normalise import normalise
        from heatproof.datasets.reader import reader_of_dataset
        from heatproof.models.network import build_network, configure_torch, save_weights

        device = configure_torch(runtime)
        dataset = open_dataset(self.dataset)
        reader = reader_of_dataset(self.dataset, dataset, self.target)
        network = build_network(self.model, reader.classes or 1, reader=reader)
        for path in self.outputs:
            save_weights(network.state_dict(), path)
        network = network.to(device).eval().requires_grad_(False)
        count = min(self.images, batch_size_of(runtime.batch_size, device))
        images = normalise(dataset.images("evaluation", 0, count), self.model.facts).to(device)

        def forward() -> None:
            with torch.no_grad():
                network(images)

        def gradient() -> None:
            leaf = images.clone().requires_grad_()
            torch.autograd.grad(network(leaf).sum(), leaf)

        return {
            "forward": _seconds(forward, device) / count,
            "gradient": _seconds(gradient, device) / count,
            "size": list(images.shape[-2:]),
            "splits": {name: len(dataset.splits[name]) for name in ("train", "validation")},
        }


@dataclass(frozen=True)
class TimeResnet50:
    """Time a ResNet-50 in some precision."""

    precision: str

    def run(self, runtime: Runtime) -> dict[str, float]:
        """Time a forward pass of a ResNet-50 on images of 224 pixels, as in published throughputs.

        Returns
        -------
        dict
            ``forward``, seconds per image.
        """
        from torchvision.models import resnet50

        from heatproof.models.network import configure_torch, set_precision

        device = configure_torch(runtime)
        network = resnet50().to(device, memory_format=torch.channels_last).eval().requires_grad_(False)
        network = set_precision(network, self.precision, device)
        count = 256 if device.type == "cuda" else 4
        images = torch.rand(count, 3, 224, 224, device=device).contiguous(memory_format=torch.channels_last)

        def forward() -> None:
            with torch.no_grad():
                network(images)

        return {"forward": _seconds(forward, device) / count}


@dataclass(frozen=True)
class TimeTraining:
    """Time steps of a training."""

    dataset: DatasetSpec
    model: ModelSpec
    training: FinetuningSettings | TrainingSettings
    images: int
    ignores_labels: bool = False

    def run(self, runtime: Runtime) -> TimedSteps:
        """Time the training loop on a few batches; its start is timed as well, because it imports more than others."""
        from heatproof.core.normalise import normalise
        from heatproof.datasets.reader import reader_of_dataset
        from heatproof.models.network import build_network, configure_torch
        from heatproof.training.in_domain import use_complete_output
        from heatproof.training.loop import Examples, fit, validate

        device = configure_torch(runtime)
        dataset = unwrap_rows(open_dataset(self.dataset))
        reader = reader_of_dataset(self.dataset, dataset)
        network = build_network(self.model, reader.classes or 1, reader=reader).to(device)
        schedule = replace(self.training, epochs=1)
        # Without training images, evaluation images serve for the timing. The batch is small if few images are timed.
        split = "train" if len(dataset.splits["train"]) else "evaluation"
        size = min(schedule.batch_size, len(dataset.splits[split]), 8 * self.images)
        began = time.perf_counter()
        images = normalise(dataset.images(split, 0, size), self.model.facts)
        read = (time.perf_counter() - began) / size
        labels = torch.from_numpy(dataset.splits[split].labels[:size])
        if self.dataset.task == "regression":
            labels = labels.float()
        if self.ignores_labels:
            use_complete_output(network.eval(), [Examples(images, labels)], size)
            with torch.no_grad():
                labels = network(images.to(device)).cpu()
        # `fit` needs images to validate on; one is enough.
        some_images = Examples(images.repeat(STEPS, 1, 1, 1), torch.cat([labels] * STEPS))
        single = Examples(images[:1], labels[:1])
        fit(network, Examples(images, labels), single, schedule, 0)
        started = time.process_time()
        training_seconds = _seconds(lambda: fit(network, some_images, single, schedule, 0), device, repeats=1)
        validation_seconds = _seconds(
            lambda: validate(network, some_images, schedule.batch_size, schedule.loss), device, repeats=1
        )
        count = size * STEPS
        start = max(started - training_seconds / STEPS, 0.0) if device.type == "cpu" else 0.0
        return {"train": training_seconds / count, "validate": validation_seconds / count, "read": read, "start": start}


def _seconds(function: Any, device: Any, repeats: int = 2) -> float:
    # Processor time excludes other programs; with one thread it is otherwise equal to wall time.
    clock = time.process_time if device.type == "cpu" and torch.get_num_threads() == 1 else time.perf_counter

    def finished() -> None:
        function()
        if device.type == "cuda":
            torch.cuda.synchronize()

    if repeats > 1:
        finished()
    return min(timeit.repeat(finished, timer=clock, repeat=repeats, number=1))


def device_of(runtime: Runtime) -> str:
    """Return the name of the device that jobs with these settings run on."""
    if "torch" not in sys.modules:
        return ""

    from heatproof.models.network import configure_torch

    device = configure_torch(runtime)
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def device_memory() -> float:
    """Return the peak memory of the GPU in GiB; 0 without a GPU."""
    torch = sys.modules.get("torch")
    return torch.cuda.max_memory_reserved() / 2**30 if torch is not None and torch.cuda.is_available() else 0.0


if __name__ == "__main__":
    main(sys.argv[1:])

"""Wall time of every stage over its floor, the network passes it makes, and the share of start-up in the run.

    python benchmarks/stages.py --out FOLDER [CONFIG ...]

The floor is (network passes) / (best throughput of that network, measured beside the stage). Gradient passes have a
throughput of their own, a bare forward and backward.
"""

from __future__ import annotations

import logging
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import reduce
from pathlib import Path

import torch
from _tell import parser, tell

from heatproof.attribution.make import Probabilities, find_function
from heatproof.attribution.registry import Explained
from heatproof.config import default_config, merge, read_config
from heatproof.data.prepare import open_dataset
from heatproof.models.network import load_network, normalise, use_machine
from heatproof.models.registry import InputFacts
from heatproof.perturbation.batching import Query
from heatproof.perturbation.dataset_mean import dataset_options
from heatproof.perturbation.patches import patch_responses
from heatproof.plan.validate import make_plan
from heatproof.training.stages import finetune, pretrain

BATCHES = (64, 128, 256)


class Passes:
    """Count forward passes, with and without a gradient, of every network that runs."""

    def __init__(self, network: torch.nn.Module) -> None:
        self.plain = self.gradient = 0
        network.register_forward_pre_hook(self._count)

    def _count(self, module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        if torch.is_grad_enabled():
            self.gradient += len(inputs[0])
        else:
            self.plain += len(inputs[0])


@contextmanager
def timed(result: list[float]) -> Iterator[None]:
    start = time.perf_counter()
    yield
    result.append(time.perf_counter() - start)


def best(function: Callable[[], None], images: int, repeats: int = 3) -> float:
    """Images per second of the fastest repeat."""
    function()
    seconds: list[float] = []
    for _ in range(repeats):
        with timed(seconds):
            function()
    return images / min(seconds)


def throughput(network: torch.nn.Module, images: torch.Tensor) -> tuple[float, float]:
    """Best images per second of forward passes, and of forward and backward to the input."""
    plain = gradient = 0.0
    for size in BATCHES:
        batch = images.repeat(-(-size // len(images)), 1, 1, 1)[:size].contiguous(memory_format=torch.channels_last)

        def forward(batch: torch.Tensor = batch) -> None:
            with torch.inference_mode():
                network(batch)

        def backward(batch: torch.Tensor = batch) -> None:
            leaf = batch.clone().requires_grad_()
            torch.autograd.grad(network(leaf).sum(), leaf)

        plain, gradient = max(plain, best(forward, size)), max(gradient, best(backward, size))
    return plain, gradient


def training_throughput(network: torch.nn.Module, images: torch.Tensor, size: int) -> float:
    """Best images per second of bare training steps: forward, backward to the weights, SGD."""
    network.train().requires_grad_()
    optimizer = torch.optim.SGD(network.parameters(), 1e-6, momentum=0.9)
    batch = images.repeat(-(-size // len(images)), 1, 1, 1)[:size].contiguous(memory_format=torch.channels_last)

    def step() -> None:
        for _ in range(4):
            optimizer.zero_grad()
            network(batch).logsumexp(1).sum().backward()
            optimizer.step()

    return best(step, 4 * size)


ROWS: list[dict[str, object]] = []


def report(model: str, weights: str, stage: str, passes: Passes, seconds: float, plain: float, gradient: float) -> None:
    floor = passes.plain / plain + passes.gradient / gradient
    row = {"model": model, "weights": weights, "stage": stage, "forward": passes.plain, "gradient": passes.gradient}
    ROWS.append(row | {"seconds": seconds, "over the floor": seconds / floor})
    print(ROWS[-1], flush=True)


def run(configs: list[str], results: Path, out: Path | None) -> None:
    plan = make_plan(reduce(merge, map(read_config, configs), default_config()))
    runtime = {**plan.runtime(), "device": "cpu"}
    device = use_machine(runtime)
    size = runtime["batch_size"]
    for dataset_name, model in plan.pairs():
        dataset = open_dataset(plan.dataset_spec(dataset_name))
        split = dataset.splits["evaluation"]
        spec = plan.model_spec(model)
        facts = InputFacts(**{key: tuple(v) if isinstance(v, list) else v for key, v in spec["facts"].items()})
        images = normalise(dataset.images("evaluation", 0, plan.images), spec["facts"])
        targets = torch.from_numpy(split.labels[: plan.images])
        ids = split.ids[: plan.images]
        for weights in plan.weights[-1:]:
            path = results.parent / plan.weights_spec(dataset_name, model, weights)["output"]
            network = load_network(spec, dataset.num_classes, path, device)
            for grid, baseline in plan.combinations:
                fill = dataset_options(baseline, {}, dataset, spec["facts"], grid)
                plain, gradient = throughput(network, images)
                passes, seconds = Passes(network), []
                with timed(seconds):
                    query = Query(network, images, targets, ids, batch_size=size)
                    patch_responses(query, grid, baseline, baseline_options=fill)
                report(model, weights, f"drops g{grid} {baseline}", passes, seconds[0], plain, gradient)
            for name in plan.model_explainers:
                entry = plan.attribute_spec(dataset_name, model, weights, [name], 0)["explainers"][0]
                function = find_function(entry)
                network = load_network(spec, dataset.num_classes, path, device)
                output = network if plan.config["attribution"]["output"] == "logit" else Probabilities(network).eval()
                explained = Explained(network, output, facts, images, targets, ids, 0, size)
                function(
                    Explained(network, output, facts, images[:2], targets[:2], ids[:2], 0, size), **entry["options"]
                )
                plain, gradient = throughput(network, images)
                passes, seconds = Passes(network), []
                with timed(seconds):
                    function(explained, **entry["options"])
                report(model, weights, name, passes, seconds[0], plain, gradient)
        train(plan, dataset_name, model, images, runtime)
    tell(ROWS, "stages", out)
    startup(results)


def train(plan, dataset_name: str, model: str, images: torch.Tensor, runtime: dict) -> None:
    """Two epochs of each training, beside bare steps; validation passes count as forward passes."""
    from heatproof.models.network import build_network

    dataset = open_dataset(plan.dataset_spec(dataset_name))
    stages = [(pretrain, plan.pretrain_spec(dataset_name, model), 1)]
    stages += [(finetune, plan.finetune_spec(dataset_name, model, w), 2) for w in plan.finetuned()[:1]]
    for stage, spec, validations in stages:
        network = build_network(spec["model"], dataset.num_classes)
        bare = training_throughput(network, images, spec["training"]["batch_size"])
        plain, _ = throughput(network.eval().requires_grad_(False), images)
        with tempfile.TemporaryDirectory() as folder:
            where = {key: f"{folder}/{Path(spec[key]).name}" for key in ("output", "history", "manifest")}
            short = {**spec, **where, "training": {**spec["training"], "epochs": 2}}
            seconds: list[float] = []
            with timed(seconds):
                stage(short, runtime)
        passes = Passes(torch.nn.Identity())
        passes.gradient = 2 * len(dataset.splits["train"])
        passes.plain = 2 * validations * len(dataset.splits["validation"])
        report(model, stage.__name__, "two epochs", passes, seconds[0], plain, bare)


def startup(results: Path) -> None:
    """How much of all jobs' time was start-up, by the logs of the run."""
    started, total, jobs = 0.0, 0.0, 0
    for log in sorted((results / "logs").rglob("*.log")):
        text = log.read_text(encoding="utf-8")
        begun, done = (re.search(rf": {word} in ([\d.]+) s", text) for word in ("started", "done"))
        if begun and done:
            started, total, jobs = started + float(begun[1]), total + float(done[1]), jobs + 1
    if jobs:
        print(f"\n{jobs} jobs of the run: {total:.0f} s, of which start-up {started:.0f} s ({started / total:.0%})")


if __name__ == "__main__":
    options = parser(__doc__)
    options.add_argument("configs", nargs="*", help="laid over the default one, as after --configfile")
    options.add_argument("--results", default="results", type=Path)
    given = options.parse_args()
    logging.disable(logging.INFO)
    run(given.configs, given.results, given.out)

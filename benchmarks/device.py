"""Every stage of a run compared with its floor: time, passes, reading, writing, start-up and memory, on this device.

Runs the jobs of a config one after another in a temporary folder, each in a separate process as in the workflow, and
measures the throughput of the job's network in the same process. The floor is (network passes) / (best throughput);
passes with a gradient have a separate throughput, of a bare forward and backward, and so have training steps. Reading
and writing are busy seconds of their threads, which run in parallel with the network. Without a config: a ResNet-20 at
32 pixels, and a ResNet-18 at 224 on noise. `--precision bfloat16` runs these with bfloat16.

    python benchmarks/device.py --out docs/data/device
    python benchmarks/device.py --device cuda --batch 256 --precision bfloat16 --images 1024
"""

from __future__ import annotations

import builtins
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import reduce
from pathlib import Path
from threading import local
from typing import TYPE_CHECKING, Any

import pandas as pd
from _shared import make_parser, module_of_workflow, print_table

if TYPE_CHECKING:
    from heatproof.core.specs import Runtime
    from heatproof.workflow.plan.stage import Stage

BEGAN = time.time()
EXPLAINERS: list[Any] = [
    "saliency",
    "input_x_gradient",
    {"integrated_gradients": {"steps": 16}},
    "guided_backprop",
    "grad_cam",
    {"rise": {"masks": 64}},
    "occlusion",
    "random",
]
METRICS: list[Any] = [
    {"deletion_morf": {"steps": 16}},
    {"road_morf": {"steps": 4}},
    {"mas_insertion": {"steps": 16}},
    "sic",
    "soundness",
]
NOISE = {"dataset": "heatproof.workflow.estimate.synthetic:load", "classes": 1000, "size": 224, "train_images": 64}
NETWORKS: dict[str, dict[str, Any]] = {
    "ResNet-20, 32×32": {
        "datasets": ["digits"],
        "models": [{"resnet20": {"architecture": "cifar_resnet20"}}],
        "pretraining": {"epochs": 2},
        "finetuning": {"epochs": 2},
    },
    "ResNet-18, 224×224": {
        "datasets": [{"noise": NOISE}],
        "models": [{"resnet18": {"architecture": "torchvision_model", "options": {"name": "resnet18"}}}],
        "pretraining": {"epochs": 1, "batch_size": 16},
        "finetuning": {"epochs": 1, "batch_size": 16},
    },
}
IMAGES = {"ResNet-20, 32×32": 256, "ResNet-18, 224×224": 16}
# Columns for which jobs of one kind are not summed.
LARGEST = ("start-up", "GiB", "GPU GiB", "images a second")
LARGE = 6


class Passes:
    """Count the images that pass through networks, with and without a gradient, and those that only pad batches."""

    def __init__(self) -> None:
        import torch

        self.plain = self.gradient = self.padding = self.check = 0
        self._inside = False
        torch.nn.modules.module.register_module_forward_pre_hook(self._enter)
        torch.nn.modules.module.register_module_forward_hook(self._leave, always_call=True)

    def _enter(self, module: Any, inputs: tuple[Any, ...]) -> None:
        import torch

        if self._inside or not self._counts(module):
            return
        self._inside = module
        if torch.is_grad_enabled():
            self.gradient += len(inputs[0])
        else:
            self.plain += len(inputs[0])

    def _leave(self, module: Any, inputs: Any, output: Any) -> None:
        if self._inside is module:
            self._inside = False

    def _counts(self, module: Any) -> bool:
        return type(module).__name__ != "Probabilities" and len(list(module.modules())) > LARGE


class Clock:
    """Busy seconds of a function that may be called in any thread and may call itself."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._inside = local()

    def around(self, owner: Any, name: str) -> None:
        function = getattr(owner, name)

        def timed(*arguments: Any, **keywords: Any) -> Any:
            if getattr(self._inside, "running", False):
                return function(*arguments, **keywords)
            self._inside.running, began = True, time.perf_counter()
            try:
                return function(*arguments, **keywords)
            finally:
                self._inside.running = False
                self.seconds += time.perf_counter() - began

        setattr(owner, name, timed)


def best(function: Callable[[], None], images: int, device: Any, repeats: int = 2) -> float:
    """Return the images per second of the fastest repeat; a first one is not timed."""
    import torch

    seconds = []
    for _ in range(repeats + 1):
        began = time.perf_counter()
        function()
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    return images / min(seconds[1:])


def throughput(job: Any, runtime: Runtime, gradients: bool, trained: bool) -> tuple[float, float]:
    """Return the best images per second of a job's network, forward or with a gradient or training step."""
    import torch

    from heatproof.core.normalise import normalise
    from heatproof.datasets.checks import open_dataset
    from heatproof.models.network import build_network, configure_torch, set_precision

    # The job computes a response, maps or a training.
    source = getattr(job, "network", None) or getattr(job, "inputs", job)
    device, dataset = configure_torch(runtime), open_dataset(source.dataset)
    network = build_network(source.model, dataset.num_classes).to(device).eval().requires_grad_(False)
    network = set_precision(network, getattr(source, "precision", "float32"), device)
    size = job.training.batch_size if trained else runtime.batch_size
    sample = normalise(dataset.images("evaluation", 0, min(size, 16)), source.model.facts).to(device)
    plain = backward = 0.0
    for count in sorted({size, max(size // 4, 1)}):
        batch = sample.repeat(-(-count // len(sample)), 1, 1, 1)[:count].contiguous(memory_format=torch.channels_last)

        def forward(batch: torch.Tensor = batch) -> None:
            with torch.inference_mode():
                network(batch)

        def gradient(batch: torch.Tensor = batch) -> None:
            leaf = batch.clone().requires_grad_()
            torch.autograd.grad(network(leaf).sum(), leaf)

        plain = max(plain, best(forward, count, device))
        if gradients and not trained:
            backward = max(backward, best(gradient, count, device))
    if trained:
        network.train().requires_grad_()
        optimizer = torch.optim.SGD(network.parameters(), 1e-6, momentum=0.9)

        def step(batch: torch.Tensor = batch) -> None:
            optimizer.zero_grad()
            network(batch).logsumexp(1).sum().backward()
            optimizer.step()

        backward = best(step, size, device)
    return plain, backward


def passes_images(stage: type[Stage]) -> bool:
    """Return whether the work of the jobs of a stage is network passes."""
    from heatproof.workflow.stages.shards import ShardStage
    from heatproof.workflow.stages.train import Training

    return issubclass(stage, ShardStage | Training)


def run_job(path: str) -> None:
    """Run the job of a file in this process, and print its measurements as one line of JSON."""
    from heatproof.core.specs import Runtime
    from heatproof.workflow.plan.stage import load_spec

    request = json.loads(Path(path).read_text(encoding="utf-8"))
    job, runtime = load_spec(request["run"], request["spec"]), Runtime(**request["runtime"])
    if passes_images(type(job)):
        import torch

        from heatproof.core.network import Network
        from heatproof.datasets import checks
        from heatproof.models import network as network_module
        from heatproof.workflow.stages import _responses

        network_module.configure_torch(runtime)
        started = time.time() - BEGAN
        passes, reading, writing = Passes(), Clock(), Clock()
        trained = job.name in ("pretrain", "finetune")
        open_dataset = checks.open_dataset
        if not trained:
            checks.open_dataset = lambda spec: TimedDataset(open_dataset(spec), reading)
        # Imported after, because they import this function.
        from heatproof.workflow.stages import _maps, _shards

        for module in (_maps, _responses):
            reading.around(module, "normalise")
        writing.around(_shards.Shard, "_write_batch")
        writing.around(_shards.Shard, "_publish")
        run_network = Network.__call__

        def counted(self: Any, images: Any) -> Any:
            passes.padding += max((self.padded_to or 0) - len(images), 0)
            return run_network(self, images)

        Network.__call__ = counted
        record = _maps.write_applicability

        def checked(*arguments: Any, **keywords: Any) -> Any:
            recorded = record(*arguments, **keywords)
            passes.check += recorded["network_passes"]
            return recorded

        _maps.write_applicability = checked
    # Libraries that a job imports when it needs them (captum imports matplotlib) count as start-up as well.
    imports = Clock()
    imports.around(builtins, "__import__")
    began = time.perf_counter()
    job.run(runtime)
    seconds = time.perf_counter() - began - imports.seconds
    measures: dict[str, Any] = {"seconds": seconds}
    if job.runs_network:
        used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        on_device = torch.cuda.max_memory_allocated() / 2**30 if torch.cuda.is_available() else 0.0
        passes_made = (passes.plain, passes.gradient)
        measures |= {
            "start-up": started + imports.seconds,
            "reading": reading.seconds,
            "writing": writing.seconds,
            "GiB": used,
        }
        measures |= {"GPU GiB": on_device, "padding and check": passes.padding + passes.check}
        if sum(passes_made):
            plain, backward = throughput(job, runtime, passes_made[1] > 0, trained)
            floor = passes_made[0] / plain + (passes_made[1] / backward if passes_made[1] else 0.0)
            measures |= {
                "forward": passes_made[0],
                "gradient": passes_made[1],
                "floor s": floor,
                "images a second": plain,
            }
    print(json.dumps(measures))


class TimedDataset:
    """A dataset that measures the time of reading."""

    def __init__(self, dataset: Any, clock: Clock) -> None:
        self._dataset = dataset
        self.images = dataset.images
        clock.around(self, "images")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._dataset, name)


def jobs_of(config: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield stage, subject and request of the jobs that lead to the scores, with responses of one explainer."""
    plan = module_of_workflow("plan.validate").make_plan(config)
    graph, runtime = module_of_workflow("plan.graph").Graph(plan), plan.runtime()
    # A response costs the same for every map, so that one explainer is enough; scores need no network.
    explainer = next(iter(plan.explainers))
    for job in graph.jobs_leading_to(["results/scores.csv"]):
        other = job.stage == "curves" and job.wildcards["explainer"] != explainer
        if other or job.stage in ("score", "all_scores"):
            continue
        names = [entry.name for entry in getattr(job.spec, "explainers", ())]
        where = [str(job.wildcards[key]) for key in ("weights", "response", "metric") if key in job.wildcards]
        request = {"run": job.run, "spec": job.spec_json, "runtime": vars(runtime)}
        yield job.stage, " ".join([*where, *(names if job.stage == "attribute" else [])]), request


@contextmanager
def working_in(folder: str) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def measured(name: str, config: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a row for every job whose work is network passes."""
    from heatproof.workflow.plan.stage import STAGES
    from heatproof.workflow.start import MALLOC

    rows = []
    with tempfile.TemporaryDirectory() as folder, working_in(folder):
        for stage, what, request in jobs_of(config):
            path = Path("job.json")
            path.write_text(json.dumps(request), encoding="utf-8")
            done = subprocess.run(
                [sys.executable, __file__, "--job", str(path)],
                capture_output=True,
                text=True,
                check=False,
                env={**os.environ, **MALLOC},
            )
            if done.returncode:
                raise SystemExit(f"{stage} {what} fails: {done.stderr[-2000:]}")
            record = json.loads(done.stdout.splitlines()[-1])
            if not passes_images(STAGES[stage]):
                continue
            rows.append({"network": name, "stage": stage, "for": what, **record})
            floor = record.get("floor s")
            print(
                f"{stage} {what}: {record['seconds']:.2f} s" + (f", floor {floor:.2f} s" if floor else ""), flush=True
            )
    return rows


def main() -> None:
    if sys.argv[1:2] == ["--job"]:
        sys.path.insert(0, os.getcwd())
        run_job(sys.argv[2])
        return
    from heatproof.workflow.config.files import default_config, merge, read_config

    options = make_parser(__doc__)
    options.add_argument("configs", nargs="*", help="laid over the default one, as after --configfile")
    options.add_argument("--device", default="auto")
    options.add_argument("--batch", type=int, default=32, help="batch_size")
    options.add_argument("--images", type=int, help="evaluation images")
    options.add_argument("--precision", default="float32")
    args = options.parse_args()
    common = {
        "device": args.device,
        "batch_size": args.batch,
        "precision": args.precision,
        "attribution_jobs": "apart",
        "weights": ["finetuned"],
        "explainers": EXPLAINERS,
        "metrics": METRICS,
    }
    cases = {"given": reduce(merge, map(read_config, args.configs))} if args.configs else NETWORKS
    if args.small:
        few = {"models": [{"vgg": {"architecture": "cifar_vgg11_bn", "options": {"width": 2}}}]}
        few |= {"pretraining": {"epochs": 1}, "finetuning": {"epochs": 1}}
        cases = {name: {**config, **few} for name, config in list(cases.items())[:1]}
        common |= {"explainers": EXPLAINERS[:2], "metrics": METRICS[:1]}
    rows: list[dict[str, Any]] = []
    for name, config in cases.items():
        images = args.images or (16 if args.small else IMAGES.get(name))
        network_config = {
            **config,
            **common,
            **({"evaluation": {"images": images, "accuracy_images": images}} if images else {}),
        }
        if args.configs:
            network_config = {**config, **{key: common[key] for key in ("device", "batch_size", "precision")}}
        rows += measured(name, merge(default_config(), network_config))
        # Stored after each network, so that an interrupted run keeps its measurements.
        table = pd.DataFrame(rows)
        kinds = table.groupby(["network", "stage", "for"], sort=False)
        numbers = [name for name in table.columns if name not in ("network", "stage", "for")]
        spec = {name: "max" if name in LARGEST else "sum" for name in numbers}
        table = kinds.agg(spec).assign(jobs=kinds.size()).reset_index()
        table["over the floor"] = table["seconds"] / table["floor s"].where(table["floor s"] > 0)
        print_table(table, "device", args.out)


if __name__ == "__main__":
    main()

"""Network passes: each response is computed once, whatever the number of metrics that read it."""

import os
import traceback
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from toy_project import BASE

import heatproof
from heatproof.core.specs import Runtime
from heatproof.metrics.registry import METRICS
from heatproof.models.network import load_network
from heatproof.store.reading import read_json
from heatproof.workflow.config.files import merge
from heatproof.workflow.plan.graph import Graph
from heatproof.workflow.plan.validate import make_plan
from heatproof.workflow.stages import _responses as respond_module

IMAGES, SIDE = 8, 12
# Passes of the check for randomness and batch dependence: four images in a batch, and two of them alone.
CHECKED = 6
WHERE = {"dataset": "toy", "model": "net", "weights": "pretrained"}
RUNTIME = Runtime(IMAGES, 1, "cpu")
STEPS = {"steps": 4}
SUBSETS = {"samples": 3, "sizes": [0.1, 0.5]}
# Every metric; metrics in different rows share no response.
ROWS = [
    ["idsds", "sds"],
    [("ids", STEPS), ("deletion_lerf", STEPS)],
    [(name, STEPS) for name in ("deletion_morf", "rise_deletion", "rise_insertion", "rise_difference")],
    [(name, STEPS) for name in ("mas_deletion", "mas_insertion", "mas_difference")],
    ["road_morf"],
    ["road_lerf", "soundness"],
    ["completeness"],
    ["sic", "aic"],
    [("sensitivity_n", SUBSETS), ("infidelity", SUBSETS)],
    [("sensitivity_max", {"samples": 2})],
    ["part_deletion"],
]
OPTIONS = {
    metric if isinstance(metric, str) else metric[0]: {} if isinstance(metric, str) else metric[1]
    for row in ROWS
    for metric in row
}
# Variants of each image in every row, besides the intact images of curves and information curves; and explanations.
PASSES = [17, 4, 4 + 4, 4 + 4, 9, 96, 9, 15, 7, 2, 3]


class Counter:
    """Numbers of images in forward and backward passes."""

    def __init__(self, network):
        self.forwards = self.backwards = 0
        network.register_forward_pre_hook(self._forward)
        network.register_full_backward_hook(self._backward)

    def _forward(self, module, inputs):
        self.forwards += len(inputs[0])

    def _backward(self, module, into, out):
        self.backwards += len(out[0])


def small():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Conv2d(3, 2, 3), torch.nn.Flatten(), torch.nn.Linear(200, 3)).eval()


@pytest.fixture
def case():
    torch.manual_seed(1)
    network = small()
    images, labels = torch.rand(IMAGES, 3, SIDE, SIDE), torch.arange(IMAGES) % 3

    def explain(changed, targets):
        inputs = changed.detach().requires_grad_()
        chosen = network(inputs).gather(1, targets[:, None]).sum()
        return (torch.autograd.grad(chosen, inputs)[0] * changed).sum(1)

    maps = explain(images, labels).detach()
    extra_inputs = {
        "part_deletion": {
            "masks": np.ones((IMAGES, 2, SIDE, SIDE)),
            "removed": torch.rand(IMAGES, 2, *images.shape[1:]),
        }
    }
    return network, images, labels, maps, explain, extra_inputs


def read(name):
    entry = METRICS[name]
    return tuple(entry.responses(entry.reads.complete(entry.options)).values())


def evaluate(case, names):
    network, images, labels, maps, explain, extra_inputs = case
    counter = Counter(network)
    options = {name: {**OPTIONS.get(name, {}), **extra_inputs.get(name, {})} for name in names}
    # An argument that no metric reads is an error.
    reads = {"explain": explain} if any(response.recomputes_maps for name in names for response in read(name)) else {}
    result = heatproof.evaluate(options, network, images, labels, maps, **reads)
    return result, counter


def metrics_without_row():
    """Return metrics without a row, one for each response that they read, whose passes are measured separately."""
    is_ours = [entry.function.__module__.startswith("heatproof.") for entry in METRICS.values()]
    names = [name for name, ours in zip(METRICS, is_ours, strict=True) if ours and name not in OPTIONS]

    covered = {response for name in OPTIONS if name in METRICS for response in read(name)}
    return {read(name): name for name in names if not covered.issuperset(read(name))}


def test_evaluate_computes_each_response_once(case):
    separate = {name: evaluate(case, [name])[1].forwards for name in metrics_without_row().values()}
    more = sum(count - CHECKED - IMAGES * METRICS[name].reads.needs_intact for name, count in separate.items())
    results, counter = evaluate(case, [*OPTIONS, *metrics_without_row().values()])
    assert list(results)[: len(OPTIONS)] == list(OPTIONS)
    assert counter.forwards - CHECKED == IMAGES * (1 + sum(PASSES)) + more
    assert counter.backwards == IMAGES * 2, "the explanations of changed images, and no more"


@pytest.mark.parametrize(("row", "passes"), list(zip(ROWS, PASSES, strict=True)))
def test_metrics_over_one_response_take_its_passes_once(case, row, passes):
    names = [metric if isinstance(metric, str) else metric[0] for metric in row]
    together, counter = evaluate(case, names)
    needs_intact = METRICS[names[0]].reads.needs_intact
    assert counter.forwards - CHECKED == IMAGES * (passes + needs_intact)
    for name in names:
        separate, _ = evaluate(case, [name])
        np.testing.assert_array_equal(together[name]["score"], separate[name]["score"])
        np.testing.assert_array_equal(together[name]["valid"], separate[name]["valid"])


METRICS_OF_A_CONFIG = [
    *({name: options} for name, options in OPTIONS.items() if name not in ("idsds", "sds", "part_deletion")),
    {"ids_updated": {"metric": "ids", "update": True, "steps": 3}},
]


CHANGE = {
    "weights": ["pretrained"],
    "evaluation": {"images": IMAGES},
    "pretraining": {"epochs": 1},
    "explainers": [{"mine": {"explainer": "toy_plugin:gradient"}}],
    "metrics": METRICS_OF_A_CONFIG,
    "drops": {"baselines": ["zeros"]},
}


@pytest.fixture(scope="module")
def attributed_plan(tmp_path_factory):
    folder = tmp_path_factory.mktemp("passes")
    plan = make_plan(merge(BASE, CHANGE))
    before = os.getcwd()
    os.chdir(folder)
    graph = Graph(plan)
    run(graph.spec("prepare", dataset="toy"))
    run(graph.spec("pretrain", dataset="toy", model="net"))
    run(graph.spec("attribute", **WHERE, shard=0))
    yield plan
    os.chdir(before)


def run(job):
    job.run(RUNTIME)


def jobs(plan):
    """Yield every job that runs the network for the metrics of the config."""
    graph, (grid, baseline) = Graph(plan), plan.combinations[0]
    yield graph.spec("drops", **WHERE, grid=grid, baseline=baseline, shard=0)
    for response in plan.method_responses:
        yield graph.spec("curves", **WHERE, response=response, shard=0)
    for response in plan.model_responses:
        yield graph.spec("subsets", **WHERE, response=response, shard=0)


def all_jobs(plan):
    """Yield also the jobs of comparisons between networks."""
    yield from jobs(plan)
    graph, (grid, baseline) = Graph(plan), plan.combinations[0]
    yield graph.spec("channels", **WHERE, shard=0)
    yield graph.spec("features", **WHERE, grid=grid, baseline=baseline, shard=0)


def test_the_workflow_computes_each_response_once(attributed_plan, monkeypatch):
    counters = []

    def counted(*arguments):
        network = load_network(*arguments)
        counters.append(Counter(network))
        return network

    monkeypatch.setattr(respond_module, "load_network", counted)
    for job in jobs(attributed_plan):
        run(job)
    assert len(counters) == len(list(jobs(attributed_plan))), "a job has one network"
    # Two methods, raw and absolute. Each job of a map response with the predicted class passes the intact images once.
    curve_points = [4, 4, 4, 4, 4, 9, 96, 9, 15]
    updated = {"points": 4, "explained": 3}
    forwards = 17 + 7 + sum(1 + 2 * points for points in curve_points)
    forwards += 1 + 2 * (updated["points"] + updated["explained"]) + 2 * 2
    checked = CHECKED * len(counters)
    assert sum(counter.forwards for counter in counters) - checked == IMAGES * forwards
    assert sum(counter.backwards for counter in counters) == IMAGES * 2 * (updated["explained"] + 2)
    for job in jobs(attributed_plan):
        run(job)
    assert sum(counter.forwards for counter in counters) - checked == IMAGES * forwards, (
        "what is there is not asked again"
    )


def broken(network, call):
    """Return a network that fails when it is called for the n-th time."""
    calls = []

    def fail(module, inputs):
        calls.append(None)
        if len(calls) == call:
            raise ZeroDivisionError("the user's own mistake")

    network.register_forward_pre_hook(fail)
    return network


@pytest.fixture(scope="module")
def saliency_plan(attributed_plan):
    """The same networks, with a custom explainer."""
    plan = make_plan(merge(BASE, {**CHANGE, "explainers": ["saliency"]}))
    run(Graph(plan).spec("attribute", **WHERE, shard=0))
    return plan


STAGE, VERB = ["workflow/stages/responses.py", "workflow/stages/_responses.py"], "metrics/responses/base.py"
BATCHES, NETWORK = "core/passes.py", "core/network.py"
CURVE_MODULES = ["metrics/responses/curves.py", BATCHES]
# The response, the call of forward that fails, and the modules between the verb and the network in the traceback.
TRACEBACKS = {
    "intact": ("deletion_morf_zeros", 1, [BATCHES]),
    "drops": ("patches", 1, ["metrics/responses/patches.py", BATCHES]),
    "curves": ("deletion_morf_zeros", 2, CURVE_MODULES),
    "road": ("deletion_lerf_road", 2, CURVE_MODULES),
    "pictures": ("pictures", 2, ["metrics/responses/information_curves.py", BATCHES]),
    "subsets": ("subsets", 1, ["metrics/responses/subsets.py", BATCHES]),
    "updated": ("deletion_lerf_zeros_updated", 2, [*CURVE_MODULES, "core/perturb/curves.py"]),
    "channels": ("channels", 2, ["metrics/responses/subsets.py", "core/perturb/channels.py"]),
    "features": ("features", 4, ["metrics/responses/features.py", "core/perturb/features.py", BATCHES]),
}


@pytest.mark.parametrize(("name", "call"), [("deletion_lerf_zeros_updated", 3), ("explanations", 1)])
def test_an_error_in_recomputing_maps_is_a_reason(saliency_plan, monkeypatch, tmp_path, caplog, name, call):
    """The call after the intact images and those of the first point, in which the perturbed images are explained."""
    job = next(job for job in all_jobs(saliency_plan) if job.response.kind == name or f"/{name}-" in job.store)
    monkeypatch.setattr(respond_module, "load_network", lambda *arguments: broken(load_network(*arguments), call))
    monkeypatch.setattr(respond_module, "check_loaded", lambda *arguments: 0)
    with caplog.at_level("INFO"):
        replace(job, store=str(tmp_path / "store_{explainer}")).run(RUNTIME)
    gap = read_json(tmp_path / "store_saliency.0.json")["gap"]
    assert gap.startswith("the model fails in it (ZeroDivisionError: the user's own mistake")
    assert "Traceback" in caplog.text, "the log says where"


@pytest.mark.parametrize("kind", TRACEBACKS)
def test_the_traceback_of_a_network_error_crosses_few_modules(
    saliency_plan, attributed_plan, monkeypatch, tmp_path, kind
):
    """From the function of the stage to the network's code: the kind of response, and what runs the batches."""
    name, call, between = TRACEBACKS[kind]
    job = next(job for job in all_jobs(saliency_plan) if job.response.kind == name or f"/{name}-" in job.store)
    monkeypatch.setattr(respond_module, "load_network", lambda *arguments: broken(load_network(*arguments), call))
    monkeypatch.setattr(respond_module, "check_loaded", lambda *arguments: 0)
    with pytest.raises(ZeroDivisionError) as raised:
        replace(job, store=str(tmp_path / "store_{explainer}")).run(RUNTIME)
    package = Path(heatproof.__file__).parent
    frames = [Path(frame.filename) for frame in traceback.extract_tb(raised.value.__traceback__)]
    ours = [file.relative_to(package).as_posix() for file in frames if package in file.parents]
    assert set(ours) == {*STAGE, VERB, *between, NETWORK}
    assert len(set(ours)) <= 7

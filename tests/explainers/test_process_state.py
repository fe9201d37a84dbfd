"""Explainers and metrics leave the process as it was: start method, threads, loggers, environment and figures."""

import json
import subprocess
import sys

import pytest

PROGRAM = """
import json, logging, multiprocessing, os, sys, threading

def state():
    pyplot = sys.modules.get("matplotlib.pyplot")
    root = logging.getLogger()
    return {
        "start method": multiprocessing.get_start_method(allow_none=True),
        "threads": sorted(thread.name for thread in threading.enumerate()),
        "root logger": [root.level, [type(handler).__name__ for handler in root.handlers]],
        "disabled logging": logging.root.manager.disable,
        "environment": dict(os.environ),
        "figures": [] if pyplot is None else pyplot.get_fignums(),
    }

import torch
# Imports of these set variables of their own.
import sklearn
import torch._dynamo
torch.set_num_threads(1)
import heatproof
from heatproof.explainers.registry import EXPLAINERS
from heatproof.metrics.registry import METRICS

torch.manual_seed(0)
network = torch.nn.Sequential(
    torch.nn.Conv2d(3, 4, 3, padding=1), torch.nn.ReLU(), torch.nn.MaxPool2d(2), torch.nn.Conv2d(4, 4, 3, padding=1),
    torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(4, 3),
).eval()
images, targets = torch.rand(2, 3, 16, 16), torch.tensor([0, 2])
before, changes, results = state(), {}, []

def compare(name):
    after = state()
    difference = {key: after[key] for key in after if after[key] != before[key]}
    if difference:
        changes[name] = str(difference)
        before.update(after)

for name in sys.argv[1:] or list(EXPLAINERS):
    try:
        heatproof.explain(network, images, targets, [name], background=torch.rand(4, 3, 16, 16))
        results.append(name)
    except heatproof.HeatproofError:
        pass
    compare(name)
if not sys.argv[1:]:
    maps = heatproof.explain(network, images, targets, ["saliency"])
    for name in METRICS:
        try:
            heatproof.evaluate(name, network, images, targets, maps)
            results.append(name)
        except heatproof.HeatproofError:
            pass
        compare(name)
print(json.dumps([changes, results]))
"""


def run(*names):
    done = subprocess.run([sys.executable, "-c", PROGRAM, *names], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_lrp_fixes_no_start_method_and_leaves_no_thread():
    assert run("lrp") == [{}, ["lrp"]]


@pytest.mark.slow
def test_no_explainer_and_no_metric_changes_the_process():
    changes, results = run()
    assert changes == {}
    assert {"lrp", "saliency", "lime", "rise_insertion"} <= set(results)

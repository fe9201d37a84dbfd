"""Calls of every explainer, metric and public function, for the test of what they leave in the process.

``python calls.py GROUP`` prints as JSON what each call of a group changed.
"""

import contextlib
import io
import json
import sys
import tempfile
import threading
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure

import heatproof
from heatproof.explainers.registry import EXPLAINERS
from heatproof.metrics.registry import METRICS
from heatproof.testing._networks import NETWORKS, random_images, tiny_network
from heatproof.testing._side_effects import LATE, difference, process_state

FEW = {"steps": 3, "samples": 3, "masks": 20, "stride": 0.5, "baselines": 4}
FEW_OF = {
    "input_iba": {"steps": 2, "prior_steps": 1, "layer_steps": 2, "samples": 2, "baselines": 4},
    "extremal_perturbation": {"steps": 2, "areas": (0.1,), "spacing": 1 / 8},
    # The images lie between -1 and 1.
    "sic": {"thresholds": [0.1, 0.5], "mean": [0.5] * 3, "std": [0.5] * 3},
    "aic": {"thresholds": [0.1, 0.5], "mean": [0.5] * 3, "std": [0.5] * 3},
}
MAPS = {"first": torch.rand(4, 16, 16), "second": torch.rand(4, 16, 16)}


def network(kind="convolutional"):
    return tiny_network(NETWORKS[kind])


def few(entry):
    return FEW_OF.get(entry.name, {name: FEW[name] for name in entry.options if name in FEW})


def explained(name):
    kind = next(kind for kind in NETWORKS if kind in EXPLAINERS[name].applies_to)

    def call():
        with contextlib.suppress(ModuleNotFoundError):
            heatproof.explain(
                network(kind), random_images(), None, {"method": {name: few(EXPLAINERS[name])}},
                background=random_images(count=8),
            )  # fmt: skip

    return call


def scored(name):
    options = few(METRICS[name])
    if name == "part_deletion":
        masks = np.zeros((4, 2, 16, 16), bool)
        masks[:, 0, :8], masks[:, 1, 8:] = True, True
        options |= {"masks": masks, "drops": np.ones((4, 2))}
    if "explain" in METRICS[name].options or name == "sensitivity_max":
        options |= {"explain": lambda images, targets: images.sum(1)}
    if name in ("sds", "idsds", "ids"):
        options |= {} if name == "ids" else {"grid": 4}
    return lambda: heatproof.evaluate(name, network(), random_images(), None, MAPS, **options)


def scores():
    draws = np.random.default_rng(0)
    rows = [(model, method, image) for model in "ab" for method in "xy" for image in range(4)]
    table = pd.DataFrame(rows, columns=["model", "method", "image"])
    return table.assign(metric="sds", score=draws.normal(size=len(table)))


def opened():
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "table.csv").write_text("method,score\nx,1\n")
        return heatproof.open(folder).tables


def cached():
    with tempfile.TemporaryDirectory() as folder:
        heatproof.explain(network(), random_images(), None, "saliency", cache=folder)


def choose():
    return heatproof.choose(network(), random_images(count=16), None, ["saliency"])


def saved():
    with tempfile.TemporaryDirectory() as folder:
        choice = choose()
        choice.save(f"{folder}/choice.html")
        heatproof.Choice.load(choice.save(f"{folder}/choice.json"))


def with_a_bar():
    """Explain with a progress bar, as in a terminal."""
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    with contextlib.redirect_stderr(terminal):
        heatproof.explain(network(), random_images(), None, "saliency")
    assert "maps" in terminal.getvalue()


def drawn():
    maps = heatproof.explain(network(), random_images(), None, ["saliency"])
    heatproof.plot.maps(maps, axes=[Figure().subplots()])


def in_study(function, **options):
    return lambda: getattr(heatproof.quality, function)(
        network(), random_images(), None, MAPS, {"rise_deletion": {"steps": 4}}, **options
    )


PUBLIC = {
    "explain": lambda: heatproof.explain(network(), random_images(), None, ["saliency", "grad_cam"]),
    "explain with a cache": cached,
    "explain with a bar": with_a_bar,
    "evaluate": lambda: heatproof.evaluate(["sds", "rise_deletion"], network(), random_images(), None, MAPS),
    "choose": choose,
    "Choice": saved,
    "compare": lambda: heatproof.compare(scores()),
    "finetune": lambda: heatproof.finetune(network(), random_images(count=16), epochs=1),
    "open": opened,
    "plot.maps": drawn,
    "plot.order": lambda: heatproof.plot.order(choose(), ax=Figure().subplots()),
    "quality.image_scores": in_study("image_scores"),
    "quality.offset_sensitivity": in_study("offset_sensitivity", offsets=[0.1]),
    "quality.noise_sensitivity": in_study("noise_sensitivity", shares=[0.1]),
    "quality.baseline_invariance": in_study("baseline_invariance", baselines=["zeros", "mean"]),
    "quality.modification_distances": in_study("modification_distances", schemes=["random"]),
    "testing.check_explainer": lambda: heatproof.testing.check_explainer("saliency"),
    "testing.check_metric": lambda: heatproof.testing.check_metric("sds"),
}


def method_that_changes(change):
    def method(model, images, targets):
        change()
        return images.sum(1)

    return lambda: heatproof.explain(network(), random_images(), None, {"method": method})


def start_a_thread():
    threading.Thread(target=threading.Event().wait, daemon=True, name="planted").start()


def fix_the_start_method():
    import multiprocessing

    multiprocessing.RLock()


def open_a_figure():
    from matplotlib import pyplot as plt

    plt.figure()


# Faults, which the test must find, with what it must find.
PLANTED = {
    "the running thread 'planted'": method_that_changes(start_a_thread),
    "start method of multiprocessing": method_that_changes(fix_the_start_method),
    "figures": method_that_changes(open_a_figure),
}
EXPLAINER_NAMES, METRIC_NAMES = (
    [name for name, entry in registry.items() if entry.function.__module__.startswith("heatproof.")]
    for registry in (EXPLAINERS, METRICS)
)
GROUPS = {
    **{f"explainers {part}": {name: explained(name) for name in EXPLAINER_NAMES[part::4]} for part in range(4)},
    **{f"metrics {part}": {name: scored(name) for name in METRIC_NAMES[part::2]} for part in range(2)},
    **{f"functions {part}": {name: PUBLIC[name] for name in list(PUBLIC)[part::2]} for part in range(2)},
    "planted": PLANTED,
}


def changes_of(call):
    """Return what a call changes: the first one, apart from what imports change, and a second one."""
    changed = set()
    for is_first in (True, False):
        before = process_state()
        # The state before, also of the filters of warnings, is that of a caller.
        call()
        differences = set(difference(before, process_state()))
        # Libraries that the first call imports may change the settings in LATE, but have no reason to start threads.
        lasting = {name for name in differences if name in before.keys() - set(LATE) or "running thread" in name}
        changed |= lasting if is_first else differences
    return sorted(changed)


if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    print(json.dumps({name: changes_of(call) for name, call in GROUPS[sys.argv[1]].items()}))

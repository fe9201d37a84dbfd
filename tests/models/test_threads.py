"""Threads that share a network get the maps and scores of a single thread, and unchanged outputs."""

import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from odd_networks import Plain
from public_functions import assert_same, evaluate, explain, images_of, maps_of
from torch import nn

import heatproof

TARGETS = torch.tensor([0, 1, 2, 0, 1, 2])
METHODS = [
    "guided_backprop",
    "deconvolution",
    "deep_lift",
    "lrp",
    "saliency",
    "grad_cam",
    "score_cam",
    "guided_grad_cam",
]
LONGEST = 60


def compute(network, what):
    if what == "evaluate":
        return evaluate(network, images_of(), TARGETS, maps_of(), ["sds", "mas_deletion"])
    return explain(network, images_of(), TARGETS, {}, methods=[what])


@pytest.fixture(scope="module")
def expected():
    return {what: compute(Plain(), what) for what in [*METHODS, "evaluate"]}


@pytest.mark.parametrize("threads", [pytest.param(2, marks=pytest.mark.long), 4])
def test_threads_that_share_one_network_get_equal_results(threads, expected):
    network = Plain()
    with ThreadPoolExecutor(threads) as pool:
        futures = [(what, pool.submit(compute, network, what)) for _ in range(3) for what in expected]
        for what, future in futures:
            assert_same(future.result(LONGEST), expected[what], 0)


@pytest.mark.parametrize("threads", [pytest.param(2, marks=pytest.mark.long), 4])
def test_threads_with_separate_networks_get_equal_results(threads, expected):
    """Tracing for LRP changes the calls of all modules."""
    # Before the threads start, because their calls use the global random states from which weights are drawn.
    pairs = [(what, Plain()) for _ in range(3) for what in ("lrp", "saliency", "deep_lift")]
    with ThreadPoolExecutor(threads) as pool:
        futures = [(what, pool.submit(compute, network, what)) for what, network in pairs]
        for what, future in futures:
            assert_same(future.result(LONGEST), expected[what], 0)
    assert nn.Module.__call__.__name__ == "_wrapped_call_impl"


def test_a_thread_that_only_calls_the_network_gets_unchanged_outputs(expected):
    network, other_images = Plain(), images_of(6, seed=5)
    wanted, wrong, calls, over = network(other_images).detach(), [], 0, threading.Event()

    def call():
        nonlocal calls
        while not over.is_set():
            try:
                with torch.no_grad():
                    output = network(other_images)
                if not torch.equal(output, wanted) or output.requires_grad:
                    wrong.append("another answer")
            except Exception as error:
                wrong.append(repr(error))
            calls += 1
            time.sleep(1e-3)

    caller = threading.Thread(target=call)
    caller.start()
    try:
        for what in [*METHODS, "evaluate"] * 2:
            assert_same(compute(network, what), expected[what])
    finally:
        over.set()
        caller.join(LONGEST)
    assert calls > 20
    assert not wrong


def test_nested_calls_get_equal_results(expected):
    network = Plain()

    def within(model, images, targets):
        maps = heatproof.explain(model, images, targets, ["guided_backprop"])["attribution"][0].values
        again = heatproof.explain(network, images, targets, ["guided_backprop"])["attribution"][0].values
        np.testing.assert_array_equal(maps, again)
        return torch.from_numpy(maps)

    maps = heatproof.explain(network, images_of(), TARGETS, {"within": within, "saliency": "saliency"})["attribution"]
    np.testing.assert_allclose(maps[0], expected["guided_backprop"]["guided_backprop"], atol=1e-7)
    np.testing.assert_allclose(maps[1], expected["saliency"]["saliency"], atol=1e-7)

    def explain_again(images, targets):
        return heatproof.explain(network, images, targets, ["saliency"])["attribution"][0].values

    scored = heatproof.evaluate("sensitivity_max", network, images_of(), TARGETS, maps[1].values, explain=explain_again)
    assert np.isfinite(scored["score"]).all()


def test_networks_that_share_a_backbone_get_equal_results(expected):
    first = Plain()
    second = Plain()
    second.features = first.features
    with ThreadPoolExecutor(4) as pool:
        futures = [
            (what, pool.submit(compute, network, what))
            for _ in range(3)
            for what in ("guided_backprop", "lrp", "evaluate")
            for network in (first, second)
        ]
        for what, future in futures:
            assert_same(future.result(LONGEST), expected[what], 0)


def test_crossed_backbones_do_not_wait_for_each_other():
    """Each of two threads explains one network inside a method that explains the other."""
    first, second = Plain(), Plain()

    def within(other):
        return lambda model, images, targets: torch.from_numpy(
            heatproof.explain(other, images, targets, ["saliency"])["attribution"][0].values
        )

    with ThreadPoolExecutor(2) as pool, warnings.catch_warnings(action="ignore"):
        # If both have started, one of them is not applicable instead of a deadlock.
        futures = [
            pool.submit(heatproof.explain, outer, images_of(), TARGETS, {"within": within(inner)})
            for outer, inner in ((first, second), (second, first)) * 4
        ]
        for future in futures:
            result = future.result(LONGEST)
            assert result["reason"].values[0] == "" or "another thread" in result["reason"].values[0]


def test_an_error_releases_the_network_for_the_next_thread(expected):
    network = Plain()

    def fail(model, images, targets):
        raise KeyboardInterrupt

    def interrupted():
        with warnings.catch_warnings(action="ignore"):
            return heatproof.explain(network, images_of(), TARGETS, {"fail": fail})

    with ThreadPoolExecutor(2) as pool:
        for _ in range(2):
            pool.submit(interrupted).result(LONGEST)
            pool.submit(heatproof.explain, network, images_of(), None, ["no such method"]).exception(LONGEST)
        assert_same(pool.submit(compute, network, "saliency").result(LONGEST), expected["saliency"])

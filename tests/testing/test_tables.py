"""Every registered explainer, metric, architecture and baseline follows the rules; new ones are included."""

import contextlib
import sys
import warnings
from itertools import combinations, product
from pathlib import Path

import numpy as np
import pytest
import torch
from pairwise import covering

import heatproof
from heatproof.core.perturb.baselines import BASELINES, baseline_images
from heatproof.explainers.registry import EXPLAINERS, NETWORK_KINDS, explainer
from heatproof.metrics.registry import METRICS, metric
from heatproof.models.network import build_network
from heatproof.models.registry import ARCHITECTURES, ModelSpec
from heatproof.testing import explainer_checks, metric_checks
from heatproof.testing._explainers import CONTEXTS, FORMS
from heatproof.testing._networks import NETWORKS
from heatproof.testing._side_effects import difference, network_state

sys.path.append(str(Path(__file__).parents[1] / "models"))
from odd_networks import WRITES, Plain, storing_network

# Options with fewer steps, so that checking all entries takes a minute.
FEW = {"steps": 3, "samples": 2, "masks": 100, "stride": 0.25, "baselines": 8}
FEW_OF = {
    "sic": {"thresholds": [0.1, 0.5]},
    "aic": {"thresholds": [0.1, 0.5]},
    # Rules that cannot be checked with few steps or draws, because of their noise.
    "iba": {"baselines": 32},
    "ss_cam": {},
    "input_iba": {"steps": 3, "prior_steps": 2, "layer_steps": 3, "samples": 2, "baselines": 8},
    "extremal_perturbation": {"steps": 30, "areas": (0.1,), "spacing": 1 / 16, "learning_rate": 0.1},
}
# These take a second each, or a process for each image.
SLOW = {
    *("agi", "guided_ig", "iba", "input_iba", "ss_cam", "lime", "kernel_shap", "extremal_perturbation", "chefer_lrp"),
    *("sic", "aic", "soundness"),
}
SLOW_RULES = {
    *("takes_images_of_any_memory", "works_in_any_mode", "takes_networks_that_write_in_place"),
    *("takes_networks_of_one_logit", "scores_as_the_interface"),
}


def reduced_options(entry):
    reduced = FEW_OF.get(entry.name, {} if entry.name in METRICS else None)
    return {name: FEW[name] for name in entry.options if name in FEW} if reduced is None else reduced


def ours(registry):
    """Return heatproof's own entries; other tests register toys, some of them with faults."""
    return [entry for entry in registry.values() if entry.function.__module__.startswith("heatproof.")]


def tables():
    for entry in ours(EXPLAINERS):
        yield from explainer_checks(entry.name, options=reduced_options(entry))
    for entry in ours(METRICS):
        yield from metric_checks(entry.name, options=reduced_options(entry))


def rows():
    marks = {0: [], 1: [pytest.mark.slow], 2: [pytest.mark.long]}
    return [
        pytest.param(check, id=str(check), marks=marks[(check.name in SLOW_RULES) + (check.subject.name in SLOW)])
        for check in tables()
    ]


@pytest.mark.parametrize("check", rows())
def test_every_explainer_and_metric_follows_the_rules(check):
    check()


def test_later_registrations_are_checked():
    @explainer("late_explainer")
    def late_explainer(context):
        return {"late_explainer": torch.zeros(1)}

    @metric("late_metric", higher_is_better=True, range=(0.0, 1.0), source="here")
    def late_metric(maps, drops, grid):
        return maps

    # As if a module of heatproof defined it.
    late_explainer.__module__ = late_metric.__module__ = "heatproof.late"
    try:
        late = {str(check): check for check in tables() if check.subject.name.startswith("late_")}
        assert late["late_explainer-returns_its_maps"].outcome.state == "failed"
        assert late["late_metric-returns_scores"].outcome.state == "failed"
    finally:
        del EXPLAINERS["late_explainer"], METRICS["late_metric"]


def test_every_kind_of_network_has_an_example():
    assert set(NETWORKS) == set(NETWORK_KINDS)


def test_every_exemption_has_a_reason():
    for entry in (*EXPLAINERS.values(), *METRICS.values()):
        assert all(len(reason.split()) > 3 for reason in entry.exempt.values()), entry.name


def test_a_covering_has_every_pair_and_few_rows():
    factors = {"a": list(range(7)), "b": list("xyz"), "c": [True, False], "d": list(range(5))}
    rows = covering(factors)
    for (first, left), (other, right) in combinations(enumerate(factors.values()), 2):
        assert {(row[first], row[other]) for row in rows} == set(product(left, right))
    assert len(rows) < 45


# Properties of a network that its twin does not have; networks that use views need contiguous memory.
UNUSUAL_NETWORKS = {
    **{f"writes by {name}": (lambda pair=pair: tuple(map(Plain, pair))) for name, pair in WRITES.items()
       if name != "a view"},
    **{f"keeps in {how}": (lambda how=how: (storing_network(how), Plain()))
       for how in ("dict", "new_attribute", "nested")},
}  # fmt: skip
MODES = {"plain": contextlib.nullcontext, **CONTEXTS}
INPUTS = {"plain": lambda images: images, **FORMS}


def of_families(entries, key):
    values_by_key = {}
    for entry in entries:
        values_by_key.setdefault(key(entry), entry.name)
    return sorted(values_by_key.values())


EXPLAINED = sorted(
    explainer.name for explainer in ours(EXPLAINERS) if explainer.applies_to & {"any", "grid", "relu", "convolutional"}
)
SCORED = sorted({metric.name for metric in ours(METRICS)} - {"sic", "aic"})
FEW_EXPLAINED = of_families((EXPLAINERS[name] for name in EXPLAINED), lambda entry: entry.family)
FEW_SCORED = of_families((METRICS[name] for name in SCORED), lambda entry: entry.reads)


def pairs(few_entries, all_entries):
    """Return the rows of a few entries, and those of all entries, which take minutes."""
    rest = {"network": list(UNUSUAL_NETWORKS), "images": list(INPUTS), "mode": list(MODES)}
    chosen = covering({"entry": few_entries, **rest})
    slow_rows = [pytest.param(*row, marks=pytest.mark.slow) for row in chosen]
    return slow_rows + [
        pytest.param(*row, marks=pytest.mark.long)
        for row in covering({"entry": all_entries, **rest})
        if row not in chosen
    ]


def images_of(size=8, count=4):
    return torch.rand(count, 3, size, size, generator=torch.Generator().manual_seed(0), dtype=torch.float32) * 2 - 1


@pytest.mark.parametrize(("name", "network", "images", "mode"), pairs(FEW_EXPLAINED, EXPLAINED))
def test_explainers_give_equal_maps_for_unusual_networks_images_and_modes(name, network, images, mode):
    entry, inputs = EXPLAINERS[name], images_of()
    method, targets = {name: reduced_options(entry)}, torch.tensor([0, 1, 2, 0])
    unusual, twin = UNUSUAL_NETWORKS[network]()
    with warnings.catch_warnings(action="ignore"):
        wanted = heatproof.explain(twin, inputs, targets, method, background=images_of(count=32))
        with MODES[mode]():
            explained = heatproof.explain(
                unusual, INPUTS[images](inputs), targets, method, background=images_of(count=32)
            )
    for reason, expected in zip(explained["reason"].values.tolist(), wanted["reason"].values.tolist(), strict=True):
        if reason != expected and "torch.fx can trace" in reason:
            pytest.skip(reason)
        assert reason == expected
    for result, other in zip(explained["attribution"].values, wanted["attribution"].values, strict=True):
        np.testing.assert_allclose(result, other, rtol=0, atol=1e-3 * max(np.nanmax(abs(other), initial=0), 1e-6))


@pytest.mark.parametrize(("name", "network", "images", "mode"), pairs(FEW_SCORED, SCORED))
def test_metrics_give_equal_scores_for_unusual_networks_images_and_modes(name, network, images, mode):
    entry, inputs = METRICS[name], images_of()
    maps = np.random.default_rng(0).normal(size=(4, 8, 8)).astype(np.float32)
    more = reduced_options(entry)
    if "removed" in entry.reads.evaluate_only_options:
        masks = np.kron(np.eye(4).reshape(4, 2, 2), np.ones((4, 4)))[None].repeat(4, 0) > 0
        more |= {"masks": masks, "removed": inputs[:, None] * torch.from_numpy(~masks)[:, :, None]}
    if entry.reads.recomputes_maps is True:
        more["explain"] = lambda batch, classes: batch.sum(1) * (classes[:, None, None] + 1)
    unusual, twin = UNUSUAL_NETWORKS[network]()
    with warnings.catch_warnings(action="ignore"):
        wanted = heatproof.evaluate(name, twin, inputs, torch.tensor([0, 1, 2, 0]), maps, **more)
        with MODES[mode]():
            scored_dataset = heatproof.evaluate(
                name, unusual, INPUTS[images](inputs), torch.tensor([0, 1, 2, 0]), maps, **more
            )
    np.testing.assert_array_equal(scored_dataset["valid"], wanted["valid"])
    np.testing.assert_allclose(scored_dataset["score"], wanted["score"], rtol=1e-4, atol=1e-4)


# Networks that other libraries build are tested separately.
OWN_ARCHITECTURES = {
    name: {"dim": 24, "depth": 2} if name == "small_vit" else {"width": 4}
    for name, entry in ARCHITECTURES.items()
    if entry.facts_of is None
}


ROWS_OF_ARCHITECTURES = covering({"name": list(OWN_ARCHITECTURES), "images": list(INPUTS), "mode": list(MODES)})


@pytest.mark.slow
@pytest.mark.parametrize("name", OWN_ARCHITECTURES)
def test_architectures_give_equal_logits_for_unusual_images_and_modes(name):
    # ImageNet's networks have patches of at least 33 pixels, and the vision transformer only accepts 32.
    entry, inputs = ARCHITECTURES[name], images_of(32 if "vit" in name else 40)
    network = build_network(ModelSpec(name, entry.build.__module__, OWN_ARCHITECTURES[name], entry.facts), 3, 0).eval()
    before = network_state(network)
    wanted = network.requires_grad_(False)(inputs)
    assert wanted.shape == (4, 3)
    network.requires_grad_()
    for images, mode in (row[1:] for row in ROWS_OF_ARCHITECTURES if row[0] == name):
        with MODES[mode]():
            logits = network(INPUTS[images](inputs))
            one_by_one = torch.cat([network(INPUTS[images](inputs[row : row + 1])) for row in range(4)])
        assert difference(before, network_state(network)) == [], (images, mode)
        assert logits.dtype == torch.float32, (images, mode)
        for actual in (logits, one_by_one):
            torch.testing.assert_close(
                actual.as_subclass(torch.Tensor).detach(),
                wanted,
                rtol=1e-3,
                atol=1e-4,
                msg=lambda text, images=images, mode=mode: f"{images}, {mode}: {text}",
            )


NEEDED = {"value": [0.1, -0.2, 1 / 3], "grid": 4, "mean": [0.5, 0.4, 0.3], "std": [0.2, 0.25, 0.3]}


@pytest.mark.parametrize(
    ("name", "images", "mode"), covering({"name": sorted(BASELINES), "images": list(INPUTS), "mode": list(MODES)})
)
def test_baselines_are_equal_for_unusual_images_and_modes(name, images, mode):
    options = {key: NEEDED[key] for key in BASELINES[name].options if key in NEEDED}
    for size in ((16, 16), (12, 20)):
        inputs = torch.rand(3, 3, *size, generator=torch.Generator().manual_seed(0), dtype=torch.float32) * 2 - 1
        before, ids = inputs.clone(), ("a", "b", "c")
        wanted = baseline_images(name, inputs, ids, 0, options)
        state = torch.get_rng_state()
        with MODES[mode]():
            formed = INPUTS[images](inputs)
            original = formed.detach().clone()
            baselines = baseline_images(name, formed, ids, 0, options)
            assert torch.equal(formed.detach(), original)
        assert torch.equal(torch.get_rng_state(), state)
        assert torch.equal(inputs, before)
        assert baselines.dtype == torch.float32
        assert baselines.untyped_storage().data_ptr() != formed.untyped_storage().data_ptr()
        torch.testing.assert_close(baselines.as_subclass(torch.Tensor).detach(), wanted, rtol=0, atol=1e-6)

"""Jobs that compute attribution maps, with explainers of users and of heatproof."""

import re
import shutil

import numpy as np
import pytest
import torch
from toy_project import Project

from heatproof.core.normalise import normalise
from heatproof.core.perturb.baselines import baseline_images
from heatproof.core.perturb.dataset_mean import mean_colour
from heatproof.core.provenance import Key
from heatproof.core.randomness import counter_normal
from heatproof.datasets.checks import open_dataset
from heatproof.errors import HeatproofError
from heatproof.models.network import load_network
from heatproof.store.manifest import write_manifest
from heatproof.store.reading import read_json
from heatproof.store.stored_maps import stored_maps
from heatproof.workflow.stages import _maps
from heatproof.workflow.stages._explaining import Probabilities

MINE = {"mine": {"explainer": "toy_plugin:gradient"}}
NOISY = {"noisy": {"explainer": "toy_plugin:noisy"}}
# Families that draw random numbers, that average, that read a layer, and that do not use the model.
MIXED = [
    MINE,
    NOISY,
    "saliency",
    {"integrated_gradients": {"steps": 4}},
    {"noise_input_x_gradient": {"samples": 3}},
    "grad_cam",
    {"rise": {"masks": 20, "cells": 3}},
    "random",
    "edges",
]


def manifest(project, explainer, shard=0):
    return read_json(f"{project.base(explainer)}.{shard}.json")


@pytest.mark.parametrize("output", ["logit", "probability"])
def test_maps_of_a_users_explainer_equal_its_formula(project, output):
    run = project(attribution={"output": output}).attribute()
    spec = run.finetune()
    data = open_dataset(spec.dataset)
    network = load_network(spec.model, 3, run.folder / spec.files["weights"], torch.device("cpu"))
    images = normalise(data.images("evaluation", 0, 10), spec.model.facts).requires_grad_()
    labels = torch.from_numpy(data.splits["evaluation"].labels[:10])
    outputs = network(images).softmax(1) if output == "probability" else network(images)
    (slope,) = torch.autograd.grad(outputs.gather(1, labels[:, None]).sum(), images)
    expected = (slope * images).sum(1).detach().numpy()
    np.testing.assert_allclose(run.maps()[:, 0], expected, atol=1e-5 * np.abs(expected).max())
    np.testing.assert_allclose(run.maps("saliency")[:, 0], slope.sum(1).numpy(), atol=1e-5 * slope.abs().max())


@pytest.mark.parametrize("output", ["logit", "probability"])
@pytest.mark.parametrize("form", ["of_a_model", "of_a_model_with_channels"])
def test_a_function_of_model_images_and_targets_gives_the_same_maps(project, output, form):
    """A function that `heatproof.explain` accepts gives the same maps, in batches of at most `batch_size`."""
    plain = {"plain": {"explainer": f"toy_plugin:{form}", "scale": 2.0}}
    run = project(explainers=[MINE, plain], attribution={"output": output}).attribute(batch_size=4)
    np.testing.assert_allclose(run.maps("plain"), 2 * run.maps("mine"), atol=1e-5 * np.abs(run.maps("mine")).max())
    assert list(run.plan.methods) == ["mine", "mine_abs", "plain", "plain_abs"]


def test_the_explained_output_after_softmax_is_a_probability():
    """A direct test, because the toy network is so confident that its maps cannot show which output is explained."""
    logits = torch.tensor([[1.0, 2.0, -1.0], [0.0, 0.0, 0.0]])
    torch.testing.assert_close(Probabilities(torch.nn.Identity())(logits), logits.softmax(1))


def test_a_store_describes_its_maps(project):
    run = project(explainers=[MINE, {"noise_input_x_gradient": {"samples": 2}}]).attribute()
    store = run.describe_store()
    assert store["arrays"]["attribution"]["shape"] == (12, 1, 12, 12), "the complete evaluation split is allocated"
    assert store["image_ids"] == [f"evaluation-{row:02d}" for row in range(12)]
    assert store["attributes"]["made_by"]["explainer"] == {
        "name": "mine",
        "kind": "toy_plugin:gradient",
        "options": {},
    }
    family = run.plan.explainers["noise_input_x_gradient"]
    assert run.maps("noise_input_x_gradient").shape == (10, len(family.maps), 12, 12)
    content = manifest(run, "mine")
    assert content["images"] == [0, 10]
    assert content["network_passes"] == 10
    assert content["gap"] is None
    assert list(content["input_sha256"]) == ["results/weights/toy/net/finetuned.safetensors"]


def test_options_reach_a_users_explainer(project):
    plain = project(explainers=[NOISY]).attribute().maps("noisy")
    scaled = project(explainers=[{"noisy": {"explainer": "toy_plugin:noisy", "scale": 2.0}}]).attribute().maps("noisy")
    np.testing.assert_array_equal(scaled, 2 * plain)
    drawn = counter_normal(0, "toy noise", ["evaluation-03"], (12, 12))
    np.testing.assert_array_equal(plain[3, 0], drawn[0].numpy())


@pytest.mark.parametrize("baseline", ["mean", "neighbours"])
def test_a_named_baseline_has_the_values_of_dataset_and_grid(project, baseline):
    entry = {"path": {"explainer": "integrated_gradients", "steps": 64, "baseline": baseline}}
    run = project(explainers=[entry]).attribute()
    spec = run.finetune()
    data, facts = open_dataset(spec.dataset), spec.model.facts
    network = load_network(spec.model, 3, run.folder / spec.files["weights"], torch.device("cpu"))
    split, images = data.splits["evaluation"], normalise(data.images("evaluation", 0, 10), facts)
    options = {"value": mean_colour(data, facts)} if baseline == "mean" else {"grid": spec.training.grid}
    filled = baseline_images(baseline, images, split.ids[:10], run.plan.config["seed"], options)
    with torch.inference_mode():
        gained = (network(images) - network(filled)).gather(1, torch.from_numpy(split.labels[:10, None]))
    # Sundararajan, Taly and Yan 2017, proposition 1: a map sums to the output minus the output at the baseline.
    np.testing.assert_allclose(run.maps("path").sum((1, 2, 3)), gained[:, 0], atol=0.02 * gained.abs().max().item())


def test_maps_of_probabilities_differ_from_those_of_logits(project):
    before = project(explainers=MIXED).attribute()
    after = project(explainers=MIXED, attribution={"output": "probability"}).attribute()
    for name in before.plan.explainers:
        same = np.array_equal(before.maps(name), after.maps(name))
        assert same == (name in ("noisy", "random", "edges", "rise")), name


@pytest.fixture(scope="module")
def one_shard(trained, tmp_path_factory):
    """Maps of all images in one shard, with the default batch size."""
    folder = tmp_path_factory.mktemp("whole") / "project"
    shutil.copytree(trained.folder, folder)
    return Project(folder, explainers=MIXED).attribute()


@pytest.mark.parametrize(("batch_size", "shard_size"), [(1, 16), (7, 16), (64, 4), (3, 5)])
def test_batch_and_shard_sizes_do_not_change_maps(project, one_shard, batch_size, shard_size):
    other = project(explainers=MIXED, shard_size=shard_size).attribute(batch_size=batch_size)
    for name in one_shard.plan.explainers:
        expected = one_shard.maps(name)
        # The logit of the target is of the order of 1; its gradient differs by rounding.
        np.testing.assert_allclose(other.maps(name), expected, atol=1e-5 * max(1, np.abs(expected).max()), err_msg=name)


def test_out_of_memory_halves_the_batch(project, caplog):
    """One line is logged, and maps are the same."""
    caplog.set_level("INFO", logger="heatproof")
    explainers = [{"hungry": {"explainer": "toy_plugin:greedy"}}, {"noisy": {"explainer": "toy_plugin:noisy"}}]
    run = project(explainers=explainers).attribute(batch_size=8)
    np.testing.assert_array_equal(run.maps("hungry"), run.maps("noisy"))
    messages = [record.message for record in caplog.records if "out of memory" in record.message]
    halved = "hungry: out of memory with a batch size of {}, continuing with {}"
    assert messages == [halved.format(8, 4), halved.format(4, 2)], "the next images begin with what fitted"


def test_out_of_memory_with_one_image_is_an_error(project):
    explainers = [{"hungry": {"explainer": "toy_plugin:greedy", "fits": 0}}]
    with pytest.raises(HeatproofError, match="Memory ran out in 'hungry' with a batch size of 1"):
        project(explainers=explainers).attribute()


def test_other_errors_are_not_treated_as_out_of_memory(project):
    """The explainer fails with its reason, and maps of other explainers are stored."""
    run = project(explainers=[{"wrong": {"explainer": "toy_plugin:wrong_in_another_way"}}, MINE]).attribute()
    assert "it fails (RuntimeError: mat1 and mat2" in manifest(run, "wrong")["gap"]
    assert manifest(run, "mine")["gap"] is None


def test_the_same_command_gives_the_same_bytes(project, one_shard):
    again = project(explainers=MIXED).attribute()
    assert again.bytes("maps") == one_shard.bytes("maps") != {}


def test_separate_jobs_give_the_same_bytes(project, one_shard):
    apart = project(explainers=MIXED, attribution_jobs="apart")
    for name in reversed(apart.plan.model_explainers):
        apart.attribute(explainers=[name])
    assert apart.bytes("maps") == one_shard.bytes("maps")


def test_only_added_images_are_computed(project, one_shard):
    partial = project(explainers=MIXED, evaluation={"images": 4}).attribute(batch_size=2)
    more = Project(partial.folder, explainers=MIXED).attribute(batch_size=2)
    for name in one_shard.plan.explainers:
        expected = one_shard.maps(name)
        np.testing.assert_allclose(more.maps(name), expected, atol=1e-5 * max(1, np.abs(expected).max()), err_msg=name)
    assert manifest(more, "mine")["network_passes"] == 10, "4 and 6, not 4 and 10"


def test_the_reason_of_a_value_that_is_not_finite_names_the_image(project):
    broken = project(explainers=[{"broken": {"explainer": "toy_plugin:breaks_at_seven"}}, MINE]).attribute(batch_size=3)
    assert manifest(broken, "broken")["gap"] == "its map of image 'evaluation-07' has a value that is not finite"
    assert manifest(broken, "mine")["gap"] is None


@pytest.mark.parametrize(
    ("explainer", "reason"),
    [("never_applies", "the network has no attention"), ("stops_applying", "image 5 is special")],
)
@pytest.mark.parametrize("images", [10, 12])
def test_explainers_that_are_not_applicable_have_their_reason(project, explainer, reason, images):
    """This includes shards without any map."""
    entries = [{"odd": {"explainer": f"toy_plugin:{explainer}"}}, MINE]
    run = project(explainers=entries, evaluation={"images": images}, shard_size=12).attribute(batch_size=4)
    assert manifest(run, "odd")["gap"] == reason
    assert manifest(run, "odd")["images"] == [0, images]
    assert manifest(run, "mine")["gap"] is None, "maps of other explainers are stored"
    with pytest.raises(HeatproofError, match="no values for image 0"):
        run.maps("odd")


def test_a_named_layer_takes_precedence_over_the_default_one(project):
    """The key contains the layer, so maps are computed again for another layer."""
    unnamed = project(models=[{"net": {"architecture": "toy_plugin:network"}}], explainers=["grad_cam"]).attribute()
    assert manifest(unnamed, "grad_cam")["gap"] is None
    key = Key.of(manifest(unnamed, "grad_cam"))
    named = Project(unnamed.folder, explainers=["grad_cam"]).attribute()
    assert manifest(named, "grad_cam")["gap"] is None
    assert Key.of(manifest(named, "grad_cam")) != key
    assert named.maps("grad_cam").shape == (10, 1, 12, 12)


@pytest.mark.parametrize(
    ("explainer", "message"),
    [
        ("keeps_channels", r"it returned a map of shape \(4, 3, 12, 12\), but \(4, 12, 12\) was expected"),
        ("one_image_too_few", r"it returned a map of shape \(3, 12, 12\)"),
        ("two_maps", r"it must return a dict {'odd': …} of tensors .*, but returned \['first', 'second'\]"),
        ("bare_tensor", "it must return a dict {'odd': …} of tensors .*, but returned Tensor"),
        ("of_numpy", "it returned a ndarray for a map and not a torch.Tensor"),
    ],
)
def test_invalid_results_of_an_explainer_are_a_reason(project, explainer, message):
    odd = project(explainers=[{"odd": {"explainer": f"toy_plugin:{explainer}"}}]).attribute()
    assert re.match(message, manifest(odd, "odd")["gap"])


def test_missing_weights_are_an_error(project):
    lost = project()
    (lost.folder / "results/weights/toy/net/finetuned.safetensors").write_bytes(b"")
    with pytest.raises(HeatproofError, match=r"finetuned\.safetensors is damaged"):
        lost.attribute()


def test_other_weights_recompute_all_maps(project):
    run = project()
    run.attribute()
    before = run.maps()
    folder = run.folder / "results/weights/toy/net"
    weights, manifest_path = folder / "finetuned.safetensors", folder / "finetuned.json"
    weights.write_bytes((folder / "pretrained.safetensors").read_bytes())
    write_manifest(manifest_path, [weights], spec_key=Key("other", "other"), key="other")
    run.attribute()
    assert manifest(run, "mine")["network_passes"] == 10
    assert not np.allclose(run.maps(), before)


def test_memory_does_not_grow_with_the_number_of_explainers(project, monkeypatch):
    """Maps are released after they are written."""
    shards = []

    def keep(*arguments, _open=_maps.open_maps):
        shards.append(_open(*arguments))
        return shards[-1]

    monkeypatch.setattr(_maps, "open_maps", keep)
    project(explainers=MIXED).attribute()
    assert len(shards) == len(MIXED)
    assert all(shard.values == [] for shard in shards)


def test_maps_of_float16_are_equal_to_eleven_bits_at_any_scale(project):
    explainers = ["saliency", {"tiny": {"explainer": "toy_plugin:tiny"}}, "random"]
    full, half = (project(explainers=explainers, attribution={"stored_as": dtype}) for dtype in ("float32", "float16"))
    assert full.maps_spec(["tiny"]).explainers[0].key != half.maps_spec(["tiny"]).explainers[0].key
    stored = {dtype: run.attribute() for dtype, run in (("float32", full), ("float16", half))}
    for name in ("saliency", "tiny"):
        maps = {dtype: stored_maps(f"{run.base(name)}.zarr", 0, 10).values for dtype, run in stored.items()}
        largest = np.abs(maps["float32"]).max((2, 3), keepdims=True)
        assert (np.abs(maps["float16"] - maps["float32"]) <= largest * 2.0**-11).all()
        assert maps["float16"].dtype == np.float32
        np.testing.assert_allclose(maps["float16"].max((2, 3)), maps["float32"].max((2, 3)), rtol=2.0**-10)
    size = {dtype: sum(map(len, run.bytes("maps").values())) for dtype, run in stored.items()}
    assert size["float16"] < 0.7 * size["float32"]

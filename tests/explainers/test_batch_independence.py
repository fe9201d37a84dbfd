"""Maps depend neither on the batch size nor on the other images of the batch, and passes observe the batch size."""

import dataclasses

import pytest
import torch
from applicable import LONG, networks_of

from heatproof.errors import NotApplicable
from heatproof.explainers.registry import EXPLAINERS

FEW = {"steps": 5, "samples": 3, "masks": 30, "stride": 0.25, "grid": 2, "baselines": 3}
# With more steps and only three training images, maps of IBA reach tens of thousands of bits; 32 × 32 masks are slow.
FEW_OF = {
    "iba": {"samples": 2, "baselines": 32},
    "input_iba": {"steps": 3, "prior_steps": 2, "layer_steps": 3, "samples": 2, "baselines": 32},
    "extremal_perturbation": {"steps": 5, "areas": (0.1, 0.3), "spacing": 1 / 16},
}
COUNT = 9


def takes_long(name, architecture):
    """Return whether a test is slow: quick tests use one network for each explainer."""
    others = ("cifar_resnet20", "small_vit") if len(networks_of(name)) > 1 else ()
    return name in LONG or architecture in others


def networks_that_matter(name):
    """Return one network for explainers that read none."""
    return networks_of(name) if EXPLAINERS[name].uses_model else ["cifar_vgg11_bn"]


def run(name, context):
    entry = EXPLAINERS[name]
    options = FEW_OF.get(name) or {option: FEW[option] for option in entry.options if option in FEW}
    try:
        return entry.function(context, **options)
    except NotApplicable as reason:
        # test_explainer_table.py tests which explainers these are.
        pytest.skip(str(reason))


def pick(context, rows):
    return dataclasses.replace(
        context,
        images=context.images[rows],
        targets=context.targets[rows],
        image_ids=tuple(context.image_ids[row] for row in rows),
    )


def assert_close(got, expected):
    for key in expected:
        scale = expected[key].abs().max().clamp(max=1)
        # Kernel SHAP solves for small differences of logits, which processors round differently, by up to 1.5e-5 so
        # far.
        assert (got[key] - expected[key]).abs().max() <= 2e-5 * scale, key


@pytest.mark.parametrize(
    ("name", "architecture"),
    [
        pytest.param(name, architecture, marks=[pytest.mark.slow] * takes_long(name, architecture))
        for name in EXPLAINERS
        for architecture in networks_that_matter(name)
    ],
)
def test_maps_do_not_depend_on_the_batch(name, architecture, explain_digits):
    expected = run(name, explain_digits(architecture, COUNT, batch_size=64))
    again = run(name, explain_digits(architecture, COUNT, batch_size=64))
    assert all(torch.equal(again[key], expected[key]) for key in expected)
    for batch_size in (1, 7):
        assert_close(run(name, explain_digits(architecture, COUNT, batch_size)), expected)
    shuffled = [4, 8, 0, 7, 2, 6, 1, 5, 3]
    context = explain_digits(architecture, COUNT, batch_size=64)
    groups = [run(name, pick(context, rows)) for rows in (shuffled[:1], shuffled[1:6], shuffled[6:])]
    regrouped = {key: torch.cat([group[key] for group in groups]) for key in expected}
    assert_close(regrouped, {key: expected[key][shuffled] for key in expected})


@pytest.mark.parametrize(
    "batch_size", [pytest.param(1, marks=pytest.mark.slow), 4, pytest.param(16, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("name", [name for name, entry in EXPLAINERS.items() if entry.uses_model])
def test_no_pass_is_larger_than_the_batch_size(name, batch_size, explain_digits):
    context = explain_digits(networks_of(name)[0], count=5, batch_size=batch_size)
    sizes = []
    handle = context.network.register_forward_pre_hook(lambda _, inputs: sizes.append(len(inputs[0])))
    try:
        run(name, context)
    finally:
        handle.remove()
    # A single image passes with its copy.
    assert 2 <= max(sizes) <= max(batch_size, 2)
    assert min(sizes) >= 2


@pytest.mark.parametrize(
    "name",
    [
        "random",
        "randoms",
        "rise_uniform",
        "integrated_gradients_uniform",
        "noise_input_x_gradient",
        "lime",
        "kernel_shap",
        "gradient_shap",
        "expected_gradients",
        "smooth_grad_cam_pp",
        "ss_cam",
        "iba",
        "input_iba",
    ],
)
def test_draws_depend_on_seed_and_image(name, explain_digits):
    context = explain_digits(count=2)
    twin = dataclasses.replace(
        context, images=context.images[[0, 0]], targets=context.targets[[0, 0]], image_ids=("one", "other")
    )
    maps = run(name, twin)
    reseeded = run(name, dataclasses.replace(twin, seed=1))
    for key in maps:
        assert not torch.allclose(maps[key][0], maps[key][1])
        assert not torch.allclose(maps[key], reseeded[key])

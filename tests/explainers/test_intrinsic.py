"""Intrinsically interpretable networks: maps sum to the logit and depend on the class."""

import dataclasses

import pytest
import torch

from heatproof.errors import NotApplicable
from heatproof.explainers.registry import EXPLAINERS, ExplainContext
from heatproof.models.registry import ARCHITECTURES

ARCHITECTURE_OF = {"bagnet": "cifar_bagnet", "bcos": "cifar_bcos_resnet20"}


@pytest.fixture(scope="module")
def images():
    return torch.rand(5, 3, 32, 32, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def explain(images):
    """Return a function that creates an `ExplainContext`, with a network whose running statistics have seen data."""
    networks = {}

    def make(architecture, targets=(0, 1, 2, 1, 0), rows=slice(None), **changes):
        if architecture not in networks:
            with torch.random.fork_rng():
                torch.manual_seed(3)
                network = ARCHITECTURES[architecture].build(3, width=4)
                network.train()
                with torch.no_grad():
                    for _ in range(3):
                        network(torch.rand(8, 3, 32, 32))
            networks[architecture] = network.eval().requires_grad_(False)
        network = networks[architecture]
        context = ExplainContext(
            network,
            network,
            ARCHITECTURES[architecture].facts,
            images,
            torch.tensor(targets),
            tuple("abcde"),
            seed=0,
            batch_size=4,
        )
        context = dataclasses.replace(
            context, images=images[rows], targets=context.targets[rows], image_ids=context.image_ids[rows]
        )
        return dataclasses.replace(context, **changes)

    return make


@pytest.mark.parametrize("name", ARCHITECTURE_OF)
def test_the_map_sums_to_the_logit(name, explain, images):
    context = explain(ARCHITECTURE_OF[name])
    (maps,) = EXPLAINERS[name].function(context).values()
    logits = context.network(images).gather(1, context.targets[:, None])[:, 0]
    assert maps.shape == (5, 32, 32)
    assert maps.std() > 0
    assert (maps.sum((1, 2)) - logits).abs().max() <= 1e-4 * logits.abs().max().clamp(max=1)


@pytest.mark.parametrize("name", ARCHITECTURE_OF)
def test_another_class_has_another_map(name, explain):
    (maps,) = EXPLAINERS[name].function(explain(ARCHITECTURE_OF[name])).values()
    (others,) = EXPLAINERS[name].function(explain(ARCHITECTURE_OF[name], targets=(1, 2, 0, 0, 2))).values()
    difference = (maps - others).abs().amax((1, 2))
    assert difference.min() > 0.1 * maps.abs().max()


@pytest.mark.parametrize("name", ARCHITECTURE_OF)
def test_maps_do_not_depend_on_the_batch_and_leave_the_network_unchanged(name, explain):
    context = explain(ARCHITECTURE_OF[name])
    sizes = []
    handle = context.network.register_forward_pre_hook(lambda _, inputs: sizes.append(len(inputs[0])))
    (maps,) = EXPLAINERS[name].function(context).values()
    for rows in (slice(0, 1), slice(1, 4), slice(4, 5)):
        (of_rows,) = EXPLAINERS[name].function(explain(ARCHITECTURE_OF[name], rows=rows)).values()
        assert (of_rows - maps[rows]).abs().max() < 1e-5
    handle.remove()
    assert min(sizes) == 2, "a single image travels with its copy"
    assert max(sizes) == 4, "no pass is larger than the batch size"
    assert not maps.requires_grad
    for module in context.network.modules():
        assert not module._forward_hooks
        assert getattr(module, "dynamic", True)


@pytest.mark.parametrize("name", ARCHITECTURE_OF)
@pytest.mark.parametrize("architecture", ["cifar_resnet20", "cifar_vgg11_nobias"])
def test_other_networks_are_not_applicable(name, architecture, explain):
    with pytest.raises(NotApplicable, match=r"^the network"):
        EXPLAINERS[name].function(explain(architecture))


@pytest.mark.parametrize("name", ARCHITECTURE_OF)
def test_probabilities_are_not_applicable(name, explain):
    context = explain(ARCHITECTURE_OF[name])
    output = torch.nn.Sequential(context.network, torch.nn.Softmax(-1))
    with pytest.raises(NotApplicable, match="not to their softmax"):
        EXPLAINERS[name].function(dataclasses.replace(context, output=output))


def test_a_patch_logit_lies_on_the_pixels_that_it_sees(explain, images):
    """A change outside a patch does not change its logit, and a change inside does."""
    network = explain("cifar_bagnet").network
    size, stride = network.patch_size, network.patch_stride
    before = network.patch_logits(images)
    changed = images.clone()
    changed[:, :, 20, 13] += 1
    moved = (network.patch_logits(changed) - before).abs().amax((0, 1)) > 1e-6
    sees = [
        [0 <= 20 - row * stride < size and 0 <= 13 - column * stride < size for column in range(before.shape[3])]
        for row in range(before.shape[2])
    ]
    assert moved.tolist() == sees
    assert (before.shape[2] - 1) * stride + size == 32, "every pixel is seen"


def test_bcos_maps_equal_the_contributions_of_colours_and_their_inverses(explain, images):
    """Compare with the formula: one linear map of each image, as an explicit matrix in float64."""
    network = explain("cifar_bcos_resnet20").network.double()
    try:
        encoded = network.encode(images[:1].double())
        assert torch.equal(encoded[:, 3:], 1 - encoded[:, :3])
        with network.linear():
            matrix = torch.autograd.functional.jacobian(network, encoded)[0, :, 0]
        context = dataclasses.replace(explain("cifar_bcos_resnet20", rows=slice(0, 1)), images=images[:1].double())
        maps = EXPLAINERS["bcos"].function(context)["bcos"]
        assert torch.allclose(maps[0], (matrix[0] * encoded[0]).sum(0))
        assert torch.allclose((matrix * encoded).sum((1, 2, 3)), network(encoded)[0])
    finally:
        network.float()


def test_a_bcos_convolution_equals_its_formula(images):
    from heatproof.models._bcos import BcosConv2d

    layer = BcosConv2d(3, 2, 3, stride=2, padding=1).double()
    x = images[:1].double() - 0.5
    out = layer(x)
    patches = torch.nn.functional.unfold(x, 3, padding=1, stride=2)[0].T
    weights = layer.weight.flatten(1)
    cosine = torch.nn.functional.cosine_similarity(patches[:, None], weights[None], dim=2)
    expected = patches.norm(dim=1)[:, None] * cosine.abs() * cosine
    assert torch.allclose(out[0].flatten(1).T, expected, atol=1e-5)

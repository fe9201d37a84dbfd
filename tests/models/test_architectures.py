"""Architectures: outputs, layers for CAMs, and reproducible weights."""

import pytest
import torch
from timm.models.vision_transformer import VisionTransformer

from heatproof.core.layers import find_layer
from heatproof.errors import HeatproofError
from heatproof.models.network import build_network
from heatproof.models.registry import ARCHITECTURES, ModelSpec

# Those of other libraries have separate tests.
OWN_ARCHITECTURES = [name for name, entry in ARCHITECTURES.items() if entry.facts_of is None]
SMALL = {name: {"dim": 24, "depth": 2} if name == "small_vit" else {"width": 4} for name in OWN_ARCHITECTURES}
# Side of the images for networks of ImageNet's size: the smallest that leaves a grid.
LARGE = ["bagnet33", "resnet50_fixup", "resnet50_nobias", "vgg16_nobias"]
CONVOLUTIONS = {
    **{f"cifar_resnet{depth}": depth for depth in (20, 32, 44, 56)},
    **{f"cifar_vgg{depth}{suffix}": depth for depth in (11, 13, 16, 19) for suffix in ("", "_bn")},
}
WITHOUT_BIAS = ["cifar_resnet20_nobias", "cifar_vgg11_nobias", "resnet50_nobias", "vgg16_nobias"]


def spec_of(name, **options):
    entry = ARCHITECTURES[name]
    return ModelSpec(name, entry.build.__module__, {**SMALL[name], **options}, entry.facts)


@pytest.fixture
def images(request):
    name = request.node.callspec.params.get("name") if hasattr(request.node, "callspec") else None
    side = 64 if name in LARGE else 32
    return torch.rand(3, 3, side, side, generator=torch.Generator().manual_seed(0))


def initialised(network, side=32):
    """Return a network without zero weights (Fixup starts with some), whose norms have seen a batch."""
    generator = torch.Generator().manual_seed(1)
    for parameter in network.parameters():
        if not parameter.any():
            parameter.data.normal_(0, 0.1, generator=generator)
    with torch.no_grad():
        network.train()(torch.rand(4, 3, side, side, generator=generator))
    return network.eval()


@pytest.mark.parametrize(("name", "classes"), [(name, 3 + row % 8) for row, name in enumerate(SMALL)])
def test_networks_return_logits_for_any_number_of_classes(name, classes, images):
    network = initialised(build_network(spec_of(name), classes), images.shape[-1])
    assert network(images).shape == (3, classes)
    assert not torch.equal(network(images)[0], network(images)[1])


@pytest.mark.parametrize("name", SMALL)
def test_the_layer_for_cams_has_a_grid(name, images):
    network = initialised(build_network(spec_of(name), 10), images.shape[-1])
    seen = []
    layer = find_layer(network, ARCHITECTURES[name].facts.cam_layer, "model")
    layer.register_forward_hook(lambda module, inputs, output: seen.append(output))
    logits = network(images)
    (features,) = seen
    assert features.ndim == 4
    assert len(features) == 3
    assert min(features.shape[2:]) > 1
    gradient = torch.autograd.grad(logits[:, 0].sum(), features)[0]
    assert gradient.abs().sum(dim=(1, 2, 3)).min() > 0, "the logits depend on it"


@pytest.mark.parametrize("name", SMALL)
def test_weights_are_drawn_from_the_seed_and_the_global_generator_is_unchanged(name):
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first, again, other = (build_network(spec_of(name), 10, seed).state_dict() for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert any(not torch.equal(first[key], other[key]) for key in first)


@pytest.mark.parametrize(("name", "depth"), CONVOLUTIONS.items())
def test_depth_counts_convolutions_and_the_linear_layer(name, depth):
    network = build_network(spec_of(name), 10)
    layers = [
        module
        for path, module in network.named_modules()
        if isinstance(module, torch.nn.Conv2d | torch.nn.Linear) and "shortcut" not in path
    ]
    # A VGG's three linear layers are one here.
    assert len(layers) == (depth if "resnet" in name else depth - 2)
    assert any(isinstance(module, torch.nn.BatchNorm2d) for module in network.modules()) == (
        "resnet" in name or name.endswith("_bn")
    )


@pytest.mark.parametrize("name", WITHOUT_BIAS)
def test_networks_without_bias_are_homogeneous(name, images):
    """Without biases, the logits are homogeneous in the image."""
    network = initialised(build_network(spec_of(name), 10), images.shape[-1]).double()
    assert not any("bias" in key for key in network.state_dict())
    assert torch.allclose(network(images.double() * 3), network(images.double()) * 3, rtol=1e-9)


@pytest.mark.parametrize("name", WITHOUT_BIAS)
def test_input_x_gradient_is_complete_without_bias(name, images):
    network = initialised(build_network(spec_of(name), 10), images.shape[-1])
    images = images.clone().requires_grad_()
    logits = network(images)[:, 2]
    total = (images * torch.autograd.grad(logits.sum(), images)[0]).sum((1, 2, 3))
    assert (total - logits).abs().max() <= 1e-5 * logits.abs().max().clamp(max=1)


def test_bagnet33_averages_the_logits_of_patches_of_33_pixels():
    network = initialised(build_network(spec_of("bagnet33"), 5), 64).double()
    images = torch.rand(1, 3, 67, 75, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    patches = network.patch_logits(images)
    assert patches.shape == (1, 5, 5, 6)
    assert torch.allclose(patches.mean((2, 3)), network(images))
    gradient = torch.autograd.grad(patches[0, :, 2, 3].sum(), images)[0].abs().sum((0, 1))
    rows, columns = (gradient.sum(axis).nonzero().flatten() for axis in (1, 0))
    assert (int(rows[0]), int(rows[-1])) == (2 * 8, 2 * 8 + 32)
    assert (int(columns[0]), int(columns[-1])) == (3 * 8, 3 * 8 + 32)
    assert (network.patch_size, network.patch_stride) == (33, 8)


def test_bagnet33_has_a_map_that_sums_to_its_logit():
    import heatproof.explainers.registry  # noqa: F401
    from heatproof.explainers.registry import EXPLAINERS, ExplainContext

    network = initialised(build_network(spec_of("bagnet33"), 5), 64)
    images = torch.rand(2, 3, 65, 65, generator=torch.Generator().manual_seed(0))
    targets = torch.tensor([1, 4])
    context = ExplainContext(network, network, None, images, targets, ("a", "b"), 0)
    maps = EXPLAINERS["bagnet"].function(context)["bagnet"]
    logits = network(images).gather(1, targets[:, None])[:, 0]
    assert torch.allclose(maps.sum((1, 2)), logits, rtol=1e-4)


@pytest.mark.parametrize("name", [name for name in SMALL if name not in ("small_vit", "cifar_bcos_resnet20")])
def test_no_activation_is_used_twice(name, images):
    """Hooks of DeepLift and guided methods need a separate module for each use."""
    network = build_network(spec_of(name), 10).eval()
    uses = []
    for module in network.modules():
        if isinstance(module, torch.nn.ReLU):
            module.register_forward_hook(lambda module, *_: uses.append(module))
    network(images)
    assert len(uses) == len(set(uses)) > 0


def untapped(tapped, **options):
    """Return timm's network with the weights of a tapped one."""
    plain = VisionTransformer(**options)
    plain.load_state_dict({key.replace(".norm1.0.", ".norm1."): value for key, value in tapped.state_dict().items()})
    return plain.eval()


@pytest.mark.parametrize(("depth", "patch"), [(2, 4), (3, 8)])
def test_the_tap_changes_no_value(depth, patch, images):
    tapped = build_network(spec_of("small_vit", depth=depth, patch=patch), 10, seed=3).eval()
    options = {"img_size": 32, "patch_size": patch, "num_classes": 10, "embed_dim": 24, "depth": depth, "num_heads": 3}
    plain = untapped(tapped, **options, mlp_ratio=2.0)
    with torch.inference_mode():
        # Identical on most processors; on some, products of small matrices round differently.
        torch.testing.assert_close(tapped(images), plain(images), rtol=1e-6, atol=1e-6)


def test_the_tap_returns_the_patch_tokens_without_the_class_token(images):
    network = build_network(spec_of("small_vit"), 10, seed=3).eval()
    tokens, grids = [], []
    last = network.blocks[-1].norm1
    last[0].register_forward_hook(lambda module, inputs, output: tokens.append(output))
    find_layer(network, "last_tokens.grid", "model").register_forward_hook(lambda m, i, output: grids.append(output))
    with torch.inference_mode():
        network(images)
    assert tokens[0].shape == (3, 1 + 64, 24)
    assert grids[0].shape == (3, 24, 8, 8)
    assert torch.equal(grids[0].flatten(2).transpose(1, 2), tokens[0][:, 1:])
    # In row order, like the numbers of patches.
    assert torch.equal(grids[0][1, :, 2, 5], tokens[0][1, 1 + 2 * 8 + 5])


def test_the_tap_has_the_rows_and_columns_of_the_image(images):
    """With one block, a token depends only on its own patch."""
    network = build_network(spec_of("small_vit", depth=1), 10).eval()
    grids = []
    find_layer(network, "last_tokens.grid", "model").register_forward_hook(lambda m, i, output: grids.append(output))
    changed = images.clone()
    changed[:, :, 4:8, 20:24] = 0
    with torch.inference_mode():
        network(images)
        network(changed)
    difference = (grids[0] - grids[1]).abs().sum((0, 1))
    assert difference.nonzero().tolist() == [[1, 5]]


def test_an_unknown_layer_is_refused_with_a_suggestion():
    network = build_network(spec_of("cifar_vgg11_bn"), 10)
    with pytest.raises(HeatproofError, match="The model 'm' has no layer 'feature' for CAMs: did you mean 'features'"):
        find_layer(network, "feature", "model 'm'")


def test_a_builder_that_returns_no_module_is_refused():
    with pytest.raises(HeatproofError, match="'builtins:float' returned a float: it must return a torch"):
        build_network(ModelSpec("builtins:float", "builtins", {}), 10)

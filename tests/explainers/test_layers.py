"""The layer for class activation maps that the rule finds, its layout, and the attention of other libraries."""

import dataclasses

import pytest
import timm
import torch
from tiny_vits import enlarge, tiny_vit
from torch import nn

from heatproof.errors import NotApplicable
from heatproof.explainers._attention import read_attention
from heatproof.explainers._layers import find_layout, grid_layer
from heatproof.explainers._network_traits import inspect_network
from heatproof.explainers.registry import EXPLAINERS
from heatproof.workflow.check import check_config

IMAGES = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def of_timm(name, **options):
    torch.manual_seed(0)
    return timm.create_model(name, num_classes=10, **options).eval().requires_grad_(False)


def swin():
    sizes = {"embed_dim": 8, "depths": (2, 2), "num_heads": (2, 2), "window_size": 4}
    return timm.models.SwinTransformer(img_size=32, patch_size=2, num_classes=10, **sizes).eval().requires_grad_(False)


class OfTransformers(nn.Module):
    """A ViT of the library transformers that returns logits."""

    def __init__(self):
        super().__init__()
        from transformers import ViTConfig, ViTForImageClassification

        sizes = {"hidden_size": 12, "num_attention_heads": 2, "intermediate_size": 24, "num_hidden_layers": 2}
        self.inner = ViTForImageClassification(ViTConfig(image_size=32, patch_size=8, num_labels=10, **sizes))

    def forward(self, images):
        return self.inner(pixel_values=images).logits


def of_transformers():
    pytest.importorskip("transformers", reason="models of transformers need pip install transformers")
    torch.manual_seed(0)
    return OfTransformers().eval().requires_grad_(False)


@pytest.mark.parametrize(
    ("make", "name", "form", "grid", "prefix"),
    [
        # The last stage has a single cell for such small images.
        (lambda: of_timm("resnet10t"), "layer3", "map", (2, 2), 0),
        (lambda: of_timm("convnext_atto"), "stages.3.downsample.0", "map", (2, 2), 0),
        (swin, "norm", "channels last", (8, 8), 0),
        # After the last block's attention only the class token is read.
        (tiny_vit, "blocks.2.norm1", "tokens", (4, 4), 1),
        (lambda: tiny_vit(reg_tokens=3), "blocks.2.norm1", "tokens", (4, 4), 4),
        (lambda: tiny_vit(class_token=False, global_pool="avg"), "blocks", "tokens", (4, 4), 0),
        (of_transformers, "inner.vit.layers.1.layernorm_before", "tokens", (4, 4), 1),
    ],
    ids=["resnet", "convnext", "swin", "class token", "registers", "mean of patches", "transformers"],
)
def test_the_default_layer_is_the_last_grid_that_the_logits_depend_on(make, name, form, grid, prefix):
    layout = find_layout(make(), IMAGES)
    assert (layout.form, layout.grid, layout.prefix) == (form, grid, prefix)
    assert layout.name == name
    assert f"{grid[0]}×{grid[1]}" in str(layout)
    assert "(found by the rule)" in str(layout)


def test_a_network_without_a_grid_has_no_layer():
    network = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 10)).requires_grad_(False)
    assert find_layout(network, IMAGES) is None
    assert inspect_network(network, IMAGES).kinds == {"any"}


@pytest.mark.parametrize("make", [swin, tiny_vit])
def test_the_probe_reads_the_output_of_the_layer_in_its_grid(make, explain_digits):
    network = make()
    context = dataclasses.replace(explain_digits(count=2), network=network, output=network, images=IMAGES, facts=None)
    layout, seen = find_layout(network, IMAGES), []
    before = network(IMAGES)
    layer = network.get_submodule(layout.name)
    with grid_layer(context) as (output, probe, name):
        assert name == layout.name
        handle = probe.register_forward_hook(lambda module, inputs, value: seen.append(value))
        layer_inputs = []
        both = layer.register_forward_pre_hook(lambda module, inputs: layer_inputs.append(inputs[0]))
        assert torch.equal(output(IMAGES), before), "reading changes nothing"
        handle.remove()
        both.remove()
    assert not layer._forward_hooks
    expected = layer(layer_inputs[0])
    flat = expected.flatten(1, 2) if layout.form == "channels last" else expected[:, layout.prefix :]
    torch.testing.assert_close(seen[0].flatten(2).mT, flat)


def test_cams_of_tokens_are_enlarged_grids(explain_digits):
    network = tiny_vit()
    context = dataclasses.replace(explain_digits(), network=network, output=network, facts=None)
    values = EXPLAINERS["hires_cam"].function(context)["hires_cam"]
    pooled = EXPLAINERS["hires_cam"].function(context, grid=4)["hires_cam"]
    torch.testing.assert_close(values, pooled)
    assert values.std() > 0


@pytest.mark.parametrize(
    ("make", "kinds"),
    [
        (swin, {"any", "grid", "windows"}),
        (tiny_vit, {"any", "grid", "attention", "plain_vit"}),
        (of_transformers, {"any", "grid", "attention"}),
        (lambda: of_timm("resnet10t"), {"any", "grid", "relu", "convolutional"}),
        (lambda: of_timm("convnext_atto"), {"any", "grid"}),
    ],
)
def test_networks_have_their_kinds(make, kinds):
    assert inspect_network(make(), IMAGES).kinds == kinds


def test_attention_of_any_library_equals_that_of_hooks(explain_digits):
    """Hooks read timm's blocks; blocks of another class are read at their softmax. Both results agree."""
    network = tiny_vit()
    context = dataclasses.replace(explain_digits(), network=network, output=network, batch_size=2)
    hooked = list(read_attention(context, gradients=True))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("heatproof.explainers._attention.attention_blocks", lambda network: [])
        called = list(read_attention(context, gradients=True))
    for of_hooks, of_calls in zip(hooked, called, strict=True):
        assert of_calls.tokens == of_hooks.tokens
        for left, right in zip(
            [*of_hooks.attention, *of_hooks.gradients], [*of_calls.attention, *of_calls.gradients], strict=True
        ):
            torch.testing.assert_close(left, right)
    assert enlarge(network, called[0].attention[-1].mean(1)).shape == (2, 32, 32)


def test_attention_within_windows_is_not_applicable(explain_digits):
    network = swin()
    with pytest.raises(NotApplicable, match="is within windows"):
        EXPLAINERS["attention_rollout"].function(dataclasses.replace(explain_digits(), network=network, output=network))


def test_models_of_transformers_are_explained(explain_digits):
    network = of_transformers()
    context = dataclasses.replace(explain_digits(), network=network, output=network, facts=None)
    for name in ("attention_rollout", "chefer_attention", "grad_cam", "attn_lrp"):
        values = EXPLAINERS[name].function(context)[name]
        assert values.isfinite().all()
        assert values.std() > 0


def test_check_shows_layers_grids_and_attention(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("datasets: [digits]\nmodels: [cifar_resnet20, small_vit]\nexplainers: [grad_cam, raw_attention]\n")
    output = check_config(path)
    assert "cifar_resnet20: layer for CAMs stages, 8×8 (named); no attention blocks." in output
    assert "attention block(s) between all patches, 65 tokens" in output

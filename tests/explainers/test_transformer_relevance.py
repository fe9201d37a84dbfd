"""Relevance through tiny vision transformers: conservation, one block by hand, and operations without a rule."""

import copy
import dataclasses

import pytest
import timm
import torch
from applicable import TRANSFORMERS
from tiny_vits import POOLINGS, Wrapped, by_hand, enlarge, tiny_vit
from torch import nn

from heatproof.core.network import attach
from heatproof.errors import HeatproofError, NotApplicable
from heatproof.explainers._relevance import through_linear, through_product, through_sum
from heatproof.explainers.registry import EXPLAINERS
from heatproof.explainers.transformer_relevance import propagate_relevance

SHAPES = {**POOLINGS, "layer scale": {"init_values": 1e-3}, "one block": {"depth": 1}}


def replaced(context, network, targets=None):
    targets = context.targets if targets is None else targets
    return dataclasses.replace(context, network=network, output=network, targets=targets)


@pytest.mark.parametrize("shape", SHAPES)
def test_relevance_is_conserved(shape, explain_digits):
    """The logit's relevance of 1 arrives at the tokens, so relevances times the logit sum to the logit."""
    context = replaced(explain_digits(count=3, batch_size=2), tiny_vit(**SHAPES[shape]))
    for attended, relevance, tokens in propagate_relevance(context):
        assert (tokens.sum((1, 2)) - 1).abs().max() < 1e-5
        assert len(relevance) == len(attended.attention) == len(context.network.blocks)


def test_relevance_is_conserved_on_a_trained_network(explain_digits):
    for _, _, tokens in propagate_relevance(explain_digits("small_vit", count=9)):
        assert (tokens.sum((1, 2)) - 1).abs().max() < 1e-5


def test_relevance_through_a_linear_layer_equals_one_computed_by_hand():
    inputs = torch.tensor([[2.0, -1.0, 1.0]])
    weight = torch.tensor([[1.0, -1.0, -3.0], [-1.0, 1.0, -2.0]])
    # Terms of 2 and 1 raise the first output. No input raises the second, so all share it by absolute value.
    shared = through_linear(inputs, weight, torch.tensor([[3.0, 5.0]]))
    torch.testing.assert_close(shared, torch.tensor([[2.0 + 2.5, 1.0 + 1.25, 1.25]]))


def test_relevance_through_a_product_equals_one_computed_by_hand():
    first, second = torch.tensor([[[1.0, 3.0]]]), torch.tensor([[[2.0], [1.0]]])
    # 1·2 + 3·1 = 5; each factor gets one half of the relevance.
    of_first, of_second = through_product(first, second, torch.tensor([[[10.0]]]))
    torch.testing.assert_close(of_first, torch.tensor([[[2.0, 3.0]]]))
    torch.testing.assert_close(of_second, torch.tensor([[[2.0], [3.0]]]))


def test_relevance_through_a_sum_equals_one_computed_by_hand():
    first, second = torch.tensor([[[4.0], [1.0]]]), torch.tensor([[[-3.0], [1.0]]])
    # In proportion: 4 and 1, −3 and 1, with sums 5 and −2. Of the total of 3 they get 5/7 and 2/7.
    of_first, of_second = through_sum(first, second, torch.tensor([[[1.0], [2.0]]]))
    torch.testing.assert_close(of_first, torch.tensor([[[4.0], [1.0]]]) * 3 / 7)
    torch.testing.assert_close(of_second, torch.tensor([[[3.0], [-1.0]]]) * 3 / 7)


def test_the_map_of_one_block_equals_one_computed_by_hand(explain_digits):
    """The block has one head, and its perceptron returns zero."""
    network = tiny_vit(depth=1, num_heads=1)
    attention, block = network.blocks[0].attn, network.blocks[0]
    with torch.no_grad():
        block.mlp.fc2.weight.zero_()
        block.norm2.weight.fill_(1)
    context = replaced(explain_digits(count=2), network)
    _, (weights,), (slopes,) = by_hand(network, context.images, context.targets)
    tokens = network._pos_embed(network.patch_embed(context.images))
    normed = block.norm1(tokens)
    value = attention.qkv(normed)[..., 24:]
    mixed = weights[:, 0] @ value
    branch = attention.proj(mixed)
    last = network.norm(tokens + branch)
    # After the block only the class token has relevance.
    share = rule(last[:, 0], network.head.weight, torch.eye(10)[context.targets])
    stays = tokens[:, 0] / (tokens + branch)[:, 0] * share
    changed = share - stays
    size = changed.sum(1).abs() / (stays.sum(1).abs() + changed.sum(1).abs())
    changed = changed * (size / changed.sum(1) * share.sum(1))[:, None]
    at_mixed = rule(mixed[:, 0], attention.proj.weight, changed)
    of_weights = weights[:, 0, 0] * torch.einsum("nd,ntd->nt", at_mixed / mixed[:, 0], value) / 2
    row = (slopes[:, 0, 0] * of_weights).relu()
    expected = enlarge(network, row[:, None])
    values = EXPLAINERS["chefer_lrp"].function(context)["chefer_lrp"]
    assert expected.std() > 0
    assert (values - expected).abs().max() < 1e-5 * expected.max()


def rule(inputs, weight, relevance):
    """Equation 3, element by element."""
    contributions = inputs[:, None] * weight
    raising = contributions.relu()
    return (raising / raising.sum(2, keepdim=True) * relevance[:, :, None]).sum(1)


def share(function, inputs, relevance):
    """Equation 2, by automatic differentiation."""
    inputs = [each.detach().requires_grad_() for each in inputs]
    output = function(*inputs)
    slopes = torch.autograd.grad(output, inputs, relevance / output)
    return [(each * slope).detach() for each, slope in zip(inputs, slopes, strict=True)]


def share_linear(inputs, weight, relevance):
    """Equation 3, with the positive terms of positive and of negative inputs."""
    raising, lowering = weight.clamp(min=0), weight.clamp(max=0)
    signed = [inputs.clamp(min=0), inputs.clamp(max=0)]
    return sum(share(lambda positive, negative: positive @ raising.mT + negative @ lowering.mT, signed, relevance))


def share_normalised(function, inputs, relevance):
    """Equation 10, one image at a time."""
    shares = share(function, inputs, relevance)
    total = sum(each.sum().abs() for each in shares)
    return [each * (each.sum().abs() / total) * (relevance.sum() / each.sum()) for each in shares]


def test_relevance_of_two_blocks_equals_that_of_automatic_differentiation(explain_digits):
    network = tiny_vit(depth=2, embed_dim=48).double()
    context = explain_digits(count=1, dtype=torch.float64)
    tokens, blocks = network._pos_embed(network.patch_embed(context.images)), []
    for block in network.blocks:
        normed = block.norm1(tokens)
        query, key, value = (
            each.unflatten(-1, (2, 24)).transpose(1, 2) for each in block.attn.qkv(normed).chunk(3, -1)
        )
        weights = (query @ key.mT / 24**0.5).softmax(-1)
        mixed = (weights @ value).transpose(1, 2).flatten(2)
        middle = tokens + block.attn.proj(mixed)
        read = block.norm2(middle)
        hidden = block.mlp.act(block.mlp.fc1(read))
        blocks.append((block, tokens, normed, query, key, value, weights, mixed, middle, read, hidden))
        tokens = middle + block.mlp.fc2(hidden)
    relevance = torch.zeros_like(tokens)
    one_hot = torch.eye(10, dtype=torch.float64)[context.targets]
    relevance[:, 0] = share_linear(network.norm(tokens)[:, 0], network.head.weight, one_hot)
    expected = []
    for block, tokens, normed, query, key, value, weights, mixed, middle, read, hidden in reversed(blocks):
        stays, branch = share_normalised(torch.add, [middle, block.mlp.fc2(hidden)], relevance)
        branch = share_linear(hidden, block.mlp.fc2.weight, branch)
        relevance = stays + share_linear(read, block.mlp.fc1.weight, branch)
        stays, branch = share_normalised(torch.add, [tokens, block.attn.proj(mixed)], relevance)
        heads = share_linear(mixed, block.attn.proj.weight, branch).unflatten(-1, (2, 24)).transpose(1, 2)
        of_weights, of_value = share_normalised(torch.matmul, [weights, value], heads)
        expected.append(of_weights)
        of_query, of_key = share_normalised(lambda left, right: left @ right.mT, [query, key], of_weights)
        joined = torch.cat([each.transpose(1, 2).flatten(2) for each in (of_query, of_key, of_value)], -1)
        relevance = stays + share_linear(normed, block.attn.qkv.weight, joined)
    ((_, relevances, at_tokens),) = propagate_relevance(replaced(context, network))
    for got, reference in zip([*relevances, at_tokens], [*reversed(expected), relevance], strict=True):
        assert (got - reference).abs().max() < 1e-8 * reference.abs().max()


@pytest.mark.parametrize("name", ["transition_attention", "chefer_lrp"])
@pytest.mark.parametrize("pooling", POOLINGS)
def test_maps_depend_on_the_class(name, pooling, explain_digits):
    network = tiny_vit(**POOLINGS[pooling])
    first, second = (
        EXPLAINERS[name].function(replaced(explain_digits(), network, torch.full((3,), target)))[name]
        for target in (0, 7)
    )
    assert (first - second).abs().amax((1, 2)).min() > 0.1 * first.std((1, 2)).min()


@pytest.mark.parametrize(
    ("name", "architecture"),
    [
        ("transition_attention", "small_vit"),
        ("chefer_lrp", "small_vit"),
        ("ss_cam", "cifar_resnet20"),
        ("is_cam", "cifar_resnet20"),
        ("hires_cam", "cifar_resnet20"),
    ],
)
def test_random_weights_give_another_map(name, architecture, explain_digits):
    context = explain_digits(architecture)
    fresh = copy.deepcopy(context.network)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        for module in fresh.modules():
            if hasattr(module, "reset_parameters"):
                module.reset_parameters()
    options = {"samples": 2} if "samples" in EXPLAINERS[name].options else {}
    of_trained, of_random = (
        EXPLAINERS[name].function(replaced(context, network), **options)[name].flatten(1)
        for network in (context.network, fresh)
    )
    for pair in zip(of_trained, of_random, strict=True):
        assert torch.corrcoef(torch.stack(pair))[0, 1] < 0.95


CLASS_TOKEN_ONLY = {"one prefix token": {}, "two prefix tokens": {"reg_tokens": 1}, "none": POOLINGS["mean of patches"]}


@pytest.mark.parametrize("name", TRANSFORMERS)
@pytest.mark.parametrize("prefix", CLASS_TOKEN_ONLY)
def test_prefix_tokens_are_not_in_the_map(name, prefix, explain_digits):
    network = tiny_vit(**CLASS_TOKEN_ONLY[prefix])
    assert network.num_prefix_tokens == {"none": 0, "one prefix token": 1, "two prefix tokens": 2}[prefix]
    context = replaced(explain_digits(), network)
    values = EXPLAINERS[name].function(context)[name]
    assert values.shape == (3, 32, 32)
    # After bilinear enlargement by 8, the corner of the image has the value of its corner patch.
    assert values[:, 0, 0].std() > 0


@pytest.mark.parametrize(
    ("name", "options", "passes"),
    [
        ("transition_attention", {}, 20),
        ("transition_attention", {"steps": 3}, 3),
        ("chefer_lrp", {}, 1),
        ("hires_cam", {}, 1),
        ("is_cam", {"samples": 2}, 2 + 2 * 48),
        ("ss_cam", {"samples": 3}, 2 + 3 * 48),
    ],
    ids=str,
)
def test_passes_equal_those_of_the_formula(name, options, passes, explain_digits):
    context = explain_digits("small_vit", count=2, batch_size=4)
    network = copy.deepcopy(context.network)
    counter = attach(network)
    EXPLAINERS[name].function(replaced(context, network), **options)
    assert counter.passes == 2 * passes


def test_chain_includes_the_requested_share_of_blocks(explain_digits):
    context = replaced(explain_digits(), tiny_vit())
    maps = [
        EXPLAINERS["transition_attention"].function(context, skipped=skipped)["transition_attention"]
        for skipped in (0.0, 1 / 3, 0.9)
    ]
    assert (maps[0] > maps[1]).all()
    assert (maps[1] > maps[2]).all()


@pytest.mark.parametrize("options", [{"steps": 1}, {"skipped": 1.0}, {"skipped": -0.1}], ids=str)
def test_options_out_of_range_are_refused(options, explain_digits):
    with pytest.raises(HeatproofError, match="Transition attention"):
        EXPLAINERS["transition_attention"].function(replaced(explain_digits(), tiny_vit()), **options)


class Doubled(timm.models.VisionTransformer):
    """A transformer with a user's head."""

    def forward_head(self, tokens, pre_logits=False):
        return super().forward_head(tokens) * 2


class Deeper(timm.models.VisionTransformer):
    """A transformer whose head is not a single linear layer."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.head = nn.Sequential(nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, 10))


TINY = {"img_size": 32, "patch_size": 8, "num_classes": 10, "embed_dim": 12, "depth": 1, "num_heads": 2}
WITHOUT_RULE = {
    "norms inside": lambda: tiny_vit(qk_norm=True),
    "pooling": lambda: tiny_vit(global_pool="max"),
    "blocks": lambda: tiny_vit(block_fn=timm.models.vision_transformer.ResPostBlock),
    "Doubled": lambda: Doubled(**TINY),
    "linear": lambda: Deeper(**TINY),
    "logits": lambda: Wrapped(tiny_vit()),
}


@pytest.mark.parametrize("reason", WITHOUT_RULE)
def test_operation_without_a_rule_is_not_applicable(reason, explain_digits):
    network = WITHOUT_RULE[reason]().eval()
    with pytest.raises(NotApplicable, match=f"no rule covers.*{reason}"):
        EXPLAINERS["chefer_lrp"].function(replaced(explain_digits(), network))


def test_lost_relevance_is_not_applicable(explain_digits):
    network = tiny_vit(class_token=False, global_pool="avg", depth=1)
    # The head reads zeros, so no input can take the relevance of the class.
    nn.init.zeros_(network.fc_norm.weight)
    with pytest.raises(NotApplicable, match="differs from the logit by 1 of it"):
        EXPLAINERS["chefer_lrp"].function(replaced(explain_digits(), network))


def test_hires_cam_sums_to_the_logit_without_its_bias(explain_digits):
    """Global average pooling and a linear layer follow the layer, and enlargement keeps the mean."""
    context = explain_digits("cifar_resnet20")
    values = EXPLAINERS["hires_cam"].function(context)["hires_cam"]
    sizes = []
    layer = context.network.get_submodule(context.facts.cam_layer)
    handle = layer.register_forward_hook(lambda *called: sizes.append(called[-1].shape[-2:].numel()))
    logits = context.network(context.images)
    handle.remove()
    head = [module for module in context.network.modules() if isinstance(module, nn.Linear)][-1]
    expected = logits.gather(1, context.targets[:, None])[:, 0] - head.bias[context.targets]
    assert (values.sum((1, 2)) * sizes[0] / 1024 - expected).abs().max() < 1e-4

"""Modes do not change what a network computes, even if it has in-place operations."""

import dataclasses
import threading

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from heatproof.errors import NotApplicable
from heatproof.explainers._attn_lrp import AttentionRules
from heatproof.explainers._function_rules import AttentionRecorder
from heatproof.explainers._relus import ReluRules, relu_of
from heatproof.explainers._rescale import RescaleRules
from heatproof.explainers.registry import EXPLAINERS

MODES = {
    "guided": ReluRules,
    "deconvolution": lambda: ReluRules("deconvolution"),
    "rescale": RescaleRules,
    "attention": lambda: AttentionRules(torch.zeros(4)),
    "seen": AttentionRecorder,
}
IN_PLACE = {
    "relu_": lambda h: h.relu_(),
    "torch.relu_": torch.relu_,
    "F.relu": lambda h: functional.relu(h, inplace=True),
    "F.relu, by place": lambda h: functional.relu(h, True),
    "F.relu_": functional.relu_,
    "relu6": nn.ReLU6(inplace=True),
    "hardtanh_": lambda h: functional.hardtanh_(h, -0.5, 0.5),
    "leaky_relu_": lambda h: functional.leaky_relu_(h, 0.2),
    "elu": nn.ELU(inplace=True),
    "celu_": functional.celu_,
    "selu_": functional.selu_,
    "silu": nn.SiLU(inplace=True),
    "mish": nn.Mish(inplace=True),
    "hardswish": nn.Hardswish(inplace=True),
    "hardsigmoid": nn.Hardsigmoid(inplace=True),
    "threshold": nn.Threshold(0.1, -1, inplace=True),
    "sigmoid_": lambda h: h.sigmoid_(),
    "tanh_": lambda h: h.tanh_(),
    "clamp_": lambda h: h.clamp_(-0.1, 0.3),
    "clamp_ at zero": lambda h: h.clamp_(min=0),
    "clip_": lambda h: h.clip_(max=0.2),
    "mul_ by a gate": lambda h: h.mul_(h.mean(1, keepdim=True).sigmoid()),
    "mul_ by itself": lambda h: h.mul_(h.detach().clone()),
    "*=": lambda h: h.__imul__(h.sigmoid()),
    "mul_ by a number": lambda h: h.mul_(2),
    "add_": lambda h: h.add_(h.mean(1, keepdim=True), alpha=2),
    "+=": lambda h: h.__iadd__(1.0),
    "sub_": lambda h: h.sub_(torch.ones(3)),
    "masked_fill_": lambda h: h.masked_fill_(h < 0, 0),
    "set items": lambda h: h.__setitem__(h < 0, 0),
    "set others": lambda h: h.__setitem__(h < 0, 7.0),
    "set rows": lambda h: h.__setitem__(0, 0.0),
}
ALIASES = {
    "itself": lambda h: h,
    "a view": lambda h: h[:, 1:],
    "a view of all": lambda h: h.view(-1, 3),
    "transposed": lambda h: h.mT,
}


def written(values, function, alias):
    """Return the values of each reference to a tensor after an in-place function, and the gradient of their sum."""
    h = 2 * values
    before, part = ALIASES["a view"](h), ALIASES[alias](h)
    returned = function(part)
    return [tensor for tensor in (h, before, part, returned) if tensor is not None]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("alias", ALIASES)
@pytest.mark.parametrize("function", IN_PLACE)
def test_every_reference_has_the_values_that_it_has_without_the_mode(function, alias, mode):
    values = torch.randn(4, 3, 3, generator=torch.Generator().manual_seed(0)).requires_grad_()
    operation = IN_PLACE[function]
    if alias != "itself" and function in ("sub_", "mul_ by a gate"):
        operation = lambda h: IN_PLACE[function](h) if h.shape[-1] == 3 and h.ndim == 3 else h.sub_(1)  # noqa: E731
    plain = written(values, operation, alias)
    with MODES[mode]():
        altered = written(values, operation, alias)
    for tensor, other in zip(plain, altered, strict=True):
        torch.testing.assert_close(tensor, other, rtol=0, atol=1e-6)
        assert tensor.requires_grad == other.requires_grad or mode == "attention"
    names = [id(altered[0]) == id(tensor) for tensor in altered]
    assert names == [id(plain[0]) == id(tensor) for tensor in plain]


@pytest.mark.parametrize("mode", ["guided", "rescale", "attention"])
@pytest.mark.parametrize("function", IN_PLACE)
def test_gradients_pass_through_in_place_operations(function, mode):
    """Autograd saves the values of a tensor that is multiplied with a function of it."""
    values = torch.randn(4, 3, generator=torch.Generator().manual_seed(0)).requires_grad_()
    with MODES[mode]():
        h = 2 * values
        factor = h
        IN_PLACE[function](h)
        total = (h + factor).sum()
    if total.requires_grad:
        (slope,) = torch.autograd.grad(total, values)
        assert slope.isfinite().all()


H = torch.tensor([[-1.0, 0.0, 2.0], [3.0, -4.0, 5.0]])
RELUS = {
    "clamp": ((H, 0), {}),
    "clip": ((H,), {"min": 0.0, "max": None}),
    "clamp_min": ((H, torch.zeros(())), {}),
    "threshold": ((H, 0, 0), {}),
    "leaky_relu": ((H, 0.0), {}),
    "prelu": ((H, torch.zeros(3)), {}),
    "rrelu": ((H, 0), {"upper": 0.0}),
    "elu": ((H,), {"alpha": 0.0}),
    "hardtanh": ((H, 0), {"max_val": float("inf")}),
    "maximum": ((torch.zeros(3), H), {}),
    "max": ((H, torch.zeros_like(H)), {}),
    "fmax": ((H, torch.zeros(1)), {}),
    "where": ((H > 0, H, 0.0), {}),
    "masked_fill": ((H, H <= 0, 0), {}),
    "mul": ((H, (H > 0).float()), {}),
    "multiply": ((H >= 0, H), {}),
}
NOT_RELUS = [
    ("clamp", (H, 0, 6), {}),
    ("clamp", (H,), {"max": 0}),
    ("clip", (H, -1), {}),
    ("clamp_min", (H, 0.1), {}),
    ("threshold", (H, 0, 1), {}),
    ("leaky_relu", (H,), {}),
    ("prelu", (H, torch.tensor([0.0, 0.1, 0.0])), {}),
    ("rrelu", (H, 0), {}),
    ("elu", (H,), {}),
    ("hardtanh", (H, 0, 6), {}),
    ("hardtanh", (H,), {"max_val": float("inf")}),
    ("max", (H, 0), {}),
    ("max", (H,), {}),
    ("maximum", (H, H + 1), {}),
    ("where", (H > 2, H, 0.0), {}),
    ("where", (H > 0, H, 1.0), {}),
    ("where", (H > 0,), {}),
    ("masked_fill", (H, H <= 0, -1), {}),
    ("mul", (H, torch.ones_like(H)), {}),
    ("mul", (H, 2), {}),
    ("mul", (H, H), {}),
]


@pytest.mark.parametrize("name", RELUS)
def test_a_relu_is_recognised_in_any_form(name):
    args, options = RELUS[name]
    assert relu_of(name, args, options) is H


@pytest.mark.parametrize(("name", "args", "options"), NOT_RELUS)
def test_other_operations_are_not_recognised_as_relus(name, args, options):
    assert relu_of(name, args, options) is None


class Hidden(torch.autograd.Function):
    """A ReLU in a function with a custom backward pass."""

    @staticmethod
    def forward(ctx, values):
        ctx.save_for_backward(values)
        return values.clamp(min=0)

    @staticmethod
    def backward(ctx, gradient):
        return gradient * (ctx.saved_tensors[0] > 0)


class NewStyle(torch.autograd.Function):
    """The same function with a separate `setup_context`."""

    @staticmethod
    def forward(values):
        return torch.relu(values)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx, gradient):
        return gradient * (ctx.saved_tensors[0] > 0)


class Doubled(torch.autograd.Function):
    """A function with a custom backward pass and no ReLU."""

    @staticmethod
    def forward(ctx, values):
        return 2 * values

    @staticmethod
    def backward(ctx, gradient):
        return 2 * gradient


def elsewhere(values):
    results = []
    thread = threading.Thread(target=lambda: results.append(torch.relu(values)))
    thread.start()
    thread.join()
    return results[0]


@torch.library.custom_op("heatproof_tests::hidden_relu", mutates_args=())
def relu_operator(values: torch.Tensor) -> torch.Tensor:
    """Return a ReLU in a custom operator with a backward pass of its own."""
    return torch.relu(values)


relu_operator.register_autograd(
    lambda ctx, gradient: gradient * ctx.saved_tensors[0],
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(output > 0),
)


def hidden_relu(values):
    return relu_operator(values)


LIBRARY = torch.library.Library("heatproof_tests_of_libraries", "DEF")
LIBRARY.define("function(Tensor values) -> Tensor")
LIBRARY.impl("function", Hidden.apply, "Autograd")
LIBRARY.define("product(Tensor values) -> Tensor")
LIBRARY.impl("product", lambda values: values * (values > 0), "CompositeImplicitAutograd")


def library_function(values):
    return torch.ops.heatproof_tests_of_libraries.function(values)


def library_product(values):
    return torch.ops.heatproof_tests_of_libraries.product.default(values)


SCRIPTED = torch.jit.trace(lambda values: values.relu(), torch.zeros(2, 4, 6, 6))
UNREACHED = {"function": Hidden.apply, "new style": NewStyle.apply, "thread": elsewhere, "traced": SCRIPTED}
UNREACHED["custom operator"] = hidden_relu
UNREACHED |= {"operator of a library": library_function, "operator of operators": library_product}


class Holding(nn.Module):
    def __init__(self, inside, bias=False):
        super().__init__()
        self.one, self.two, self.head = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3, padding=1), nn.Linear(4, 10)
        self.inside, self.bias = inside, bias

    def forward(self, images):
        h = torch.relu(self.one(images))
        shift = self.inside(torch.linspace(-1, 1, 4)) if self.bias else 0
        return self.head((self.two(h) if self.bias else self.inside(self.two(h))).mean((2, 3)) + shift)


class Checkpointed(nn.Module):
    """Network with a checkpointed part, which the backward pass calls again."""

    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, images):
        return checkpoint(self.network, images, use_reentrant=False)


@pytest.mark.parametrize("name", ["guided_backprop", "deconvolution", "deep_lift", "attn_lrp"])
def test_rules_reach_checkpointed_parts(name, explain_digits):
    torch.manual_seed(0)
    network = Holding(torch.relu)
    plain = EXPLAINERS[name].function(explained_by(network, explain_digits))[name]
    again = EXPLAINERS[name].function(explained_by(Checkpointed(network), explain_digits))[name]
    torch.testing.assert_close(again, plain)


def explained_by(network, explain_digits):
    network = network.eval().requires_grad_(False)
    return dataclasses.replace(explain_digits(count=2), network=network, output=network)


@pytest.mark.parametrize("name", ["guided_backprop", "deconvolution", "deep_lift"])
@pytest.mark.parametrize("where", UNREACHED)
def test_a_relu_that_no_rule_reaches_is_not_applicable(where, name, explain_digits):
    torch.manual_seed(0)
    reason = "convergence delta" if name == "deep_lift" else "cannot reach a ReLU of this network that runs in another"
    with pytest.raises(NotApplicable, match=reason):
        EXPLAINERS[name].function(explained_by(Holding(UNREACHED[where]), explain_digits))


def test_lrp_of_a_custom_operator_that_is_a_relu_is_that_of_a_relu(explain_digits):
    maps = []
    for inside in (hidden_relu, torch.relu):
        torch.manual_seed(0)
        maps.append(EXPLAINERS["lrp"].function(explained_by(Holding(inside), explain_digits))["lrp"])
    assert maps[0].std() > 0
    torch.testing.assert_close(*maps)


@pytest.mark.parametrize("where", [*UNREACHED, "doubled"])
def test_relus_that_the_image_does_not_reach_need_no_rule(where, explain_digits):
    """ReLUs of constants, and custom functions without a ReLU, need no rule."""
    inside = {**UNREACHED, "doubled": Doubled.apply}[where]
    torch.manual_seed(0)
    maps = EXPLAINERS["guided_backprop"].function(
        explained_by(Holding(inside, bias=where != "doubled"), explain_digits)
    )
    assert maps["guided_backprop"].std() > 0


def test_a_network_with_relus_of_constants_only_is_not_applicable(explain_digits):
    class Biased(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.head = nn.Conv2d(3, 4, 3), nn.Linear(4, 10)

        def forward(self, images):
            return self.head(self.one(images).mean((2, 3)) + torch.linspace(-1, 1, 4).relu())

    with pytest.raises(NotApplicable, match="equals the plain gradient on this network, because it calls no ReLU"):
        EXPLAINERS["guided_backprop"].function(explained_by(Biased(), explain_digits))

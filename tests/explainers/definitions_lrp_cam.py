"""Layer-wise relevance propagation and class activation maps by their definitions, for small networks.

Each network is written twice: `forward` as users write it, possibly in place, and `written` as a formula of operations
without side effects, to which rules give another backward pass. `tapped` are the layers for class activation maps;
`written` marks the output tensor of each layer.
"""

import torch
from torch import nn
from torch.nn import functional
from torch.nn.grad import conv2d_input

STABILISER = 1e-9
SHARE_OF_ZERO = 1e-6


def stable(values):
    return values + STABILISER * torch.where(values >= 0, 1.0, -1.0)


class Operations:
    """Plain operations; `seen` stores the output tensors of layers."""

    def __init__(self):
        self.seen = {}

    def at(self, name, values):
        self.seen[name] = values
        return values

    def conv(self, values, weight, bias, first=False):
        return functional.conv2d(values, weight, bias, padding=1)

    def linear(self, values, weight, bias):
        return values @ weight.T + bias

    def relu(self, values, most=None):
        return values.clamp(min=0, max=most)

    def add(self, first, second):
        return first + second

    def scale(self, values, number):
        return number * values

    def mean(self, values):
        return values.mean((2, 3))


class FlatConv(torch.autograd.Function):
    """The first convolution: all inputs of a window share the relevance equally."""

    @staticmethod
    def forward(ctx, values, weight, bias):
        ctx.save_for_backward(weight)
        ctx.size = values.shape
        return functional.conv2d(values, weight, bias, padding=1)

    @staticmethod
    def backward(ctx, relevance):
        ones = torch.ones_like(ctx.saved_tensors[0])
        reached = functional.conv2d(torch.ones(ctx.size, dtype=ones.dtype), ones, padding=1)
        return conv2d_input(ctx.size, ones, relevance / stable(reached), padding=1), None, None


class PlusConv(torch.autograd.Function):
    """z-plus without biases: inputs share relevance in proportion to their positive terms, or else to their size."""

    @staticmethod
    def forward(ctx, values, weight, bias):
        ctx.save_for_backward(values, weight)
        return functional.conv2d(values, weight, bias, padding=1)

    @staticmethod
    def backward(ctx, relevance):
        values, weight = ctx.saved_tensors
        pairs = [(values.clamp(min=0), weight.clamp(min=0)), (values.clamp(max=0), weight.clamp(max=0))]
        raised = sum(functional.conv2d(*pair, padding=1) for pair in pairs)
        none = raised <= STABILISER
        share = torch.where(none, 0, relevance / stable(raised))
        proportional = sum(x * conv2d_input(x.shape, w, share, padding=1) for x, w in pairs)
        size, ones = values.abs() + SHARE_OF_ZERO, torch.ones_like(weight)
        share = torch.where(none, relevance / functional.conv2d(size, ones, padding=1), 0)
        return proportional + size * conv2d_input(size.shape, ones, share, padding=1), None, None


class EpsilonLinear(torch.autograd.Function):
    """Inputs share relevance in proportion to their terms; the bias takes none."""

    @staticmethod
    def forward(ctx, values, weight, bias):
        ctx.save_for_backward(values, weight)
        return values @ weight.T + bias

    @staticmethod
    def backward(ctx, relevance):
        values, weight = ctx.saved_tensors
        return values * ((relevance / stable(values @ weight.T)) @ weight), None, None


class PassedActivation(torch.autograd.Function):
    """An activation passes relevance on unchanged."""

    @staticmethod
    def forward(ctx, values, most):
        return values.clamp(min=0, max=most)

    @staticmethod
    def backward(ctx, relevance):
        return relevance, None


class SharedSum(torch.autograd.Function):
    """Terms of a sum share relevance in proportion to their values, or equally if they add up to zero."""

    @staticmethod
    def forward(ctx, first, second):
        ctx.save_for_backward(first, second)
        return first + second

    @staticmethod
    def backward(ctx, relevance):
        first, second = ctx.saved_tensors
        both = first + second
        none = both.abs() <= STABILISER
        share = relevance / torch.where(none, 1, stable(both))
        return torch.where(none, relevance / 2, first * share), torch.where(none, relevance / 2, second * share)


class SharedMean(torch.autograd.Function):
    """Positions share the relevance of their mean in proportion to their values, or equally if the mean is zero."""

    @staticmethod
    def forward(ctx, values):
        ctx.save_for_backward(values)
        return values.mean((2, 3))

    @staticmethod
    def backward(ctx, relevance):
        (values,) = ctx.saved_tensors
        count = values[0, 0].numel()
        mean = values.mean((2, 3), keepdim=True)
        none = mean.abs() <= STABILISER
        share = torch.where(none, 1.0, values / torch.where(none, 1, stable(mean)))
        return relevance[:, :, None, None] * share / count


class Scaled(torch.autograd.Function):
    """A number takes no relevance."""

    @staticmethod
    def forward(ctx, values, number):
        return number * values

    @staticmethod
    def backward(ctx, relevance):
        return relevance, None


class Relevance(Operations):
    """The rules of LRP as backward passes."""

    def conv(self, values, weight, bias, first=False):
        return (FlatConv if first else PlusConv).apply(values, weight, bias)

    def linear(self, values, weight, bias):
        return EpsilonLinear.apply(values, weight, bias)

    def relu(self, values, most=None):
        return PassedActivation.apply(values, most)

    def add(self, first, second):
        return SharedSum.apply(first, second)

    def scale(self, values, number):
        return Scaled.apply(values, number)

    def mean(self, values):
        return SharedMean.apply(values)


class Network(nn.Module):
    """Two convolutions and a linear head after the mean over positions."""

    tapped = ("first",)
    features = 4

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.relu, self.head = nn.ReLU(), nn.Linear(self.features, 5)
        self.norm = nn.BatchNorm2d(4)

    def forward(self, images):
        return self.head(self.body(images).mean((2, 3)))

    def written(self, ops, images):
        h = ops.at("first", ops.conv(images, self.first.weight, self.first.bias, first=True))
        return ops.linear(ops.mean(self.behind(ops, h)), self.head.weight, self.head.bias)

    def twice(self, ops, h):
        return ops.at("second", ops.conv(h, self.second.weight, self.second.bias))


class Plain(Network):
    tapped = ("first", "relu_one", "second", "relu_two")
    in_place = False

    def __init__(self):
        super().__init__()
        self.relu_one, self.relu_two = nn.ReLU(self.in_place), nn.ReLU(self.in_place)

    def body(self, images):
        return self.relu_two(self.second(self.relu_one(self.first(images))))

    def behind(self, ops, h):
        return ops.at("relu_two", ops.relu(self.twice(ops, ops.at("relu_one", ops.relu(h)))))


class InPlace(Plain):
    in_place = True


class Residual(Network):
    tapped = ("first", "second")

    def body(self, images):
        h = self.relu(self.first(images))
        return self.relu(self.second(h) + h)

    def behind(self, ops, h):
        h = ops.relu(h)
        return ops.relu(ops.add(self.twice(ops, h), h))


class ResidualInPlace(Network):
    """The shortcut reads the output that the ReLU wrote in place."""

    tapped = ("first", "second")

    def body(self, images):
        h = self.first(images)
        shortcut = h
        out = functional.relu_(h)
        return self.second(out) + shortcut

    def behind(self, ops, h):
        h = ops.relu(h)
        return ops.add(self.twice(ops, h), h)


class ResidualInPlaceModule(Network):
    tapped = ("first", "relu", "second")

    def __init__(self):
        super().__init__()
        self.relu = nn.ReLU(inplace=True)

    def body(self, images):
        h = self.first(images)
        shortcut = h
        out = self.second(self.relu(h))
        out += shortcut
        return out

    def behind(self, ops, h):
        h = ops.at("relu", ops.relu(h))
        return ops.add(self.twice(ops, h), h)


class AddedInPlace(Network):
    """The output of a layer is read through another reference, after an in-place addition to it."""

    tapped = ("first", "second", "same")

    def __init__(self):
        super().__init__()
        self.same = nn.Dropout()

    def body(self, images):
        h = self.first(images)
        shortcut = self.same(h)
        h += self.second(torch.relu(h))
        return h.add_(1) + shortcut

    def behind(self, ops, h):
        # In eval mode dropout returns its input, so later uses of the input are uses of its output.
        h = ops.at("same", h)
        h = ops.add(h, self.twice(ops, ops.relu(h))) + 1
        return ops.add(h, h)


class OfAView(Network):
    """A ReLU writes to two channels of a tensor, and a view is read after a write to its base tensor."""

    tapped = ("first", "second")

    def body(self, images):
        h = self.first(images)
        last = h[:, 3:]
        h *= 2
        functional.relu_(h[:, :2])
        h = self.second(h)
        out = functional.relu(h, True)
        return out + last

    def behind(self, ops, h):
        h = ops.scale(h, 2)
        h = torch.cat([ops.relu(h[:, :2]), h[:, 2:]], 1)
        out = ops.relu(self.twice(ops, h))
        return ops.add(out, h[:, 3:].expand_as(out))


class InPlaceOnAView(Network):
    """An in-place ReLU writes to a part of a tensor, which is read through two other references."""

    tapped = ("first", "relu", "second")

    def __init__(self):
        super().__init__()
        self.relu = nn.ReLU(inplace=True)

    def body(self, images):
        h = self.first(images)
        part = h[:, 1:]
        shortcut = part
        out = self.relu(part)
        return self.second(h) + torch.cat([out, shortcut[:, :1]], 1)

    def behind(self, ops, h):
        part = ops.at("relu", ops.relu(h[:, 1:]))
        return ops.add(self.twice(ops, torch.cat([h[:, :1], part], 1)), torch.cat([part, part[:, :1]], 1))


class Dense(Network):
    tapped = ("first", "second")
    features = 8

    def body(self, images):
        h = self.first(images)
        return torch.cat([functional.relu(h, inplace=True), functional.relu_(self.second(h))], 1)

    def behind(self, ops, h):
        h = ops.relu(h)
        return torch.cat([h, ops.relu(self.twice(ops, h))], 1)


class Reused(Network):
    """One ReLU, one batch norm and one convolution, each called twice."""

    def __init__(self):
        super().__init__()
        self.relu = nn.ReLU(inplace=True)

    def body(self, images):
        h = self.relu(self.first(images))
        for _ in range(2):
            h = self.relu(self.norm(self.second(h)))
        return h

    def behind(self, ops, h):
        scale = self.norm.weight / (self.norm.running_var + self.norm.eps).sqrt()
        bias = (self.second.bias - self.norm.running_mean) * scale + self.norm.bias
        h = ops.relu(h)
        for _ in range(2):
            h = ops.relu(ops.conv(h, self.second.weight * scale[:, None, None, None], bias))
        return h


class Functional(Network):
    tapped = ("first", "second")

    def body(self, images):
        return functional.relu6(self.second(torch.relu(input=self.first(images))), inplace=True)

    def behind(self, ops, h):
        return ops.relu(self.twice(ops, ops.relu(h)), 6)


class CalledInAnotherOrder(Network):
    """The module of the first convolution is registered after that of the second."""

    def __init__(self):
        super().__init__()
        self.block = nn.ModuleDict({"start": nn.Identity(), "second": self.second})
        del self.second

    def body(self, images):
        return self.relu(self.block["second"](self.relu(self.first(self.block["start"](images)))))

    def behind(self, ops, h):
        return ops.relu(ops.conv(ops.relu(h), self.block["second"].weight, self.block["second"].bias))


class Shared(Network):
    """A sum reads the tensor that a ReLU reads."""

    tapped = ("first", "second", "relu")

    def body(self, images):
        h = self.first(images)
        return h + self.second(self.relu(h))

    def behind(self, ops, h):
        return ops.add(h, self.twice(ops, ops.at("relu", ops.relu(h))))


class OfTwoImages(Network):
    """The first convolution is called for the image and for its mirror image, and the sum can be of zeros."""

    tapped = ("second",)

    def body(self, images):
        return self.second(self.relu(self.first(images)) + self.relu(self.first(images.flip(3))))

    def written(self, ops, images):
        both_images = [
            ops.conv(batch, self.first.weight, self.first.bias, first=True) for batch in (images, images.flip(3))
        ]
        h = self.twice(ops, ops.add(*map(ops.relu, both_images)))
        return ops.linear(ops.mean(h), self.head.weight, self.head.bias)


class TwoBranches(Network):
    """Two convolutions read the image, and a mean reads the sum of their ReLUs."""

    tapped = ("first", "second")

    def __init__(self):
        super().__init__()
        self.second = nn.Conv2d(3, 4, 3, padding=1)

    def body(self, images):
        return functional.relu_(self.first(images)) + self.relu(self.second(images))

    def written(self, ops, images):
        first, second = (
            ops.relu(ops.at(name, ops.conv(images, layer.weight, layer.bias, first=True)))
            for name, layer in (("first", self.first), ("second", self.second))
        )
        return ops.linear(ops.mean(ops.add(first, second)), self.head.weight, self.head.bias)


CONSTRUCTIONS = {
    "plain": Plain,
    "in place": InPlace,
    "residual": Residual,
    "residual, in place": ResidualInPlace,
    "residual, module in place": ResidualInPlaceModule,
    "added to in place": AddedInPlace,
    "views": OfAView,
    "in place on a view": InPlaceOnAView,
    "dense": Dense,
    "reused": Reused,
    "functional": Functional,
    "shared tensor": Shared,
    "order of calls": CalledInAnotherOrder,
    "two pictures": OfTwoImages,
    "two branches": TwoBranches,
}


def construct(name):
    """Return the network (float64) of a construction, with weights drawn from a fixed seed."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = CONSTRUCTIONS[name]().double()
        network.norm.running_mean.normal_()
        network.norm.running_var.uniform_(0.5, 2)
        network.norm.weight.data.uniform_(0.5, 2)
    return network.eval().requires_grad_(False)


def relevance(network, images, targets):
    """Return the maps (N, H, W) of LRP."""
    images = images.clone().requires_grad_()
    logits = network.written(Relevance(), images)
    start = torch.zeros_like(logits).scatter(1, targets[:, None], logits.detach().gather(1, targets[:, None]))
    (relevances,) = torch.autograd.grad(logits, images, start)
    return relevances.sum(1)


def slopes(network, images, targets, layer):
    """Return the output (N, C, h, w) of a layer and the gradient of the targets' logits."""
    ops = Operations()
    logits = network.written(ops, images.clone().requires_grad_())
    (gradient,) = torch.autograd.grad(logits.gather(1, targets[:, None]).sum(), ops.seen[layer])
    return ops.seen[layer].detach(), gradient


def _mean(values):
    return values.mean((2, 3), keepdim=True)


def _sum(values):
    return values.sum((2, 3), keepdim=True)


def _smooth(a, g):
    alpha = g**2 / (2 * g**2 + _sum(g**3 * a) + 1e-8)
    return (_sum(alpha * g.relu()) * a).sum(1).relu()


# Maps of a layer's output A and gradient g. torchcam leaves out the division in Grad-CAM++'s coefficients.
OF_GRADIENTS = {
    "grad_cam": lambda a, g: (_mean(g) * a).sum(1).relu(),
    "grad_cam_pp": lambda a, g: (_sum(g**2 * g.relu()) * a).sum(1).relu(),
    "xgrad_cam": lambda a, g: (_sum(g * a) / (_sum(a) + 1e-8) * a).sum(1).relu(),
    "layer_cam": lambda a, g: (g.relu() * a).sum(1).relu(),
    "smooth_grad_cam_pp": _smooth,
    "hires_cam": lambda a, g: (g * a).sum(1),
}
# Factor of the masked image in each pass; for IS-CAM, torchcam's running sum of 1/2 and 2/2.
OF_SCORES = {"score_cam": (1.0,), "ss_cam": (1.0,), "is_cam": (0.5, 1.5)}
# The noise is negligible, so that these definitions without noise hold.
OPTIONS = {
    "smooth_grad_cam_pp": {"samples": 1, "stdev": 1e-12},
    "ss_cam": {"samples": 1, "stdev": 1e-12},
    "is_cam": {"samples": 2},
}


def activation_map(name, network, images, targets, layer):
    """Return the maps (N, H, W) of a class activation map; layers are as large as the image."""
    a, g = slopes(network, images, targets, layer)
    if name in OF_GRADIENTS:
        return OF_GRADIENTS[name](a, g)

    def target_outputs(inputs):
        return network.written(Operations(), inputs).gather(1, targets[:, None])[:, 0]

    return _of_scores(name, a, images, target_outputs)


def _of_scores(name, a, images, target_outputs):
    low, high = a.amin((2, 3), keepdim=True), a.amax((2, 3), keepdim=True)
    masks = (a - low) / (high - low + 1e-8)
    scores = [
        sum(target_outputs(share * masks[:, [c]] * images) - target_outputs(images) for share in OF_SCORES[name])
        / len(OF_SCORES[name])
        for c in range(a.shape[1])
    ]
    return (torch.stack(scores, 1).softmax(1)[:, :, None, None] * a).sum(1).relu()


# ---- on the constructions of definitions.py --------------------------------------------------------------------------


class Elementwise(torch.autograd.Function):
    """An elementwise function passes relevance on unchanged."""

    @staticmethod
    def forward(ctx, function, values):
        return function(values)

    @staticmethod
    def backward(ctx, relevance):
        return None, relevance


class Gated(torch.autograd.Function):
    """A gate takes no relevance."""

    @staticmethod
    def forward(ctx, values, gate):
        return values * gate

    @staticmethod
    def backward(ctx, relevance):
        return relevance, torch.zeros_like(relevance)


class Relevant(torch.Tensor):
    """A tensor whose sums share relevance."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if function in (torch.Tensor.add, torch.Tensor.__add__):
            with torch._C.DisableTorchFunctionSubclass():
                return SharedSum.apply(*args).as_subclass(cls)
        return super().__torch_function__(function, types, args, kwargs or {})


class _Layers:
    """The layers of a `definitions.Constructed` with the rules of LRP."""

    def __init__(self, network):
        self.network = network

    def __getattr__(self, name):
        layer = getattr(self.network, name)
        function = {"stem": FlatConv, "gate": EpsilonLinear, "head": EpsilonLinear}.get(name, PlusConv)

        def call(values):
            return function.apply(values.as_subclass(torch.Tensor), layer.weight, layer.bias).as_subclass(Relevant)

        return call


def _wrapped(function, *inputs):
    return function(*(values.as_subclass(torch.Tensor) for values in inputs)).as_subclass(Relevant)


def defined(explainer, network, steps, rules, images, targets):
    """Return the maps (N, H, W) of LRP or of a class activation map of the stem, on a network of `definitions`.

    Parameters
    ----------
    explainer
        ``lrp``, or a name in `OF_GRADIENTS` or `OF_SCORES`.
    network, steps
        A `Constructed`, and the steps of its construction.
    rules
        The class `Rules`.
    images, targets
        (N, 3, H, W) and (N,).
    """
    if explainer == "lrp":
        start, layers = images.clone().requires_grad_(), _Layers(network)
        passing = rules(
            lambda values: _wrapped(lambda wrapped: Elementwise.apply(torch.relu, wrapped), values),
            lambda function, values: _wrapped(lambda wrapped: Elementwise.apply(function, wrapped), values),
            lambda values, gate: _wrapped(Gated.apply, values, gate),
        )
        features = _wrapped(SharedMean.apply, steps(layers, layers.stem(start), passing))
        logits = layers.head(features).as_subclass(torch.Tensor)
        target_logits = torch.zeros_like(logits).scatter(
            1, targets[:, None], logits.detach().gather(1, targets[:, None])
        )
        return torch.autograd.grad(logits, start, target_logits)[0].sum(1)
    plain = rules(torch.relu, lambda function, values: function(values), torch.mul)

    def target_outputs(features):
        return network.head(steps(network, features, plain).mean((2, 3))).gather(1, targets[:, None])[:, 0]

    a = network.stem(images).requires_grad_()
    (g,) = torch.autograd.grad(target_outputs(a).sum(), a)
    if explainer in OF_GRADIENTS:
        return OF_GRADIENTS[explainer](a.detach(), g)
    return _of_scores(explainer, a.detach(), images, lambda masked: target_outputs(network.stem(masked)))

"""Rewrite a network into the form that LRP's rules expect."""

from __future__ import annotations

import copy
import inspect
import operator
import threading
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from timm.layers import Conv2dSame, get_same_padding
from torch import fx, nn
from torch.fx.experimental.optimization import fuse
from torch.nn.utils import parametrize
from torchvision import transforms
from torchvision.transforms import v2
from zennit.composites import NameLayerMapComposite, layer_map_base
from zennit.core import BasicHook, ParamMod, Stabilizer
from zennit.layer import Sum
from zennit.rules import ClampMod, Epsilon, Flat, NoMod, zero_bias
from zennit.types import AvgPool, Convolution

from heatproof.core.logits import logits_attribute
from heatproof.core.state import copy_network
from heatproof.errors import NotApplicable
from heatproof.explainers._out_of_place import DIMENSIONS, SETTINGS, RecordingProxy, write_out_of_place

ADDITIONS = {operator.add, operator.iadd, torch.add, "add", "add_"}
PRODUCTS = {operator.mul, operator.imul, torch.mul, torch.multiply, "mul", "mul_", "multiply", "multiply_"}
QUOTIENTS = {operator.truediv, operator.itruediv, torch.div, torch.true_divide, "div", "div_"}
# Activations that are called as functions or methods get the rule of their modules.
ACTIVATIONS = (
    *("relu", "relu6", "leaky_relu", "elu", "selu", "celu", "gelu", "silu", "hardswish", "hardsigmoid", "hardtanh"),
    *("softplus", "sigmoid", "logsigmoid", "tanh", "softsign", "clamp", "clamp_min", "clip", "threshold"),
)
# Functions that average or add up positions get the rule of pooling modules.
AVERAGES = ("mean", "nanmean", "sum", *(f"{kind}_pool{d}d" for kind in ("avg", "adaptive_avg") for d in (1, 2, 3)))


def _spellings(names: Sequence[str]) -> set[Any]:
    """Return all functions and tensor methods of torch with certain names."""
    owners = (torch, torch.Tensor, nn.functional, torch._C._nn)
    return {getattr(owner, name) for owner in owners for name in names if hasattr(owner, name)}


ACTIVATION_CALLS = _spellings([name + in_place for name in ACTIVATIONS for in_place in ("", "_")])
AVERAGE_CALLS = _spellings(AVERAGES)

# Added to denominators. zennit's default of 1e-6 changes small relevances by more than a thousandth.
STABILISER = 1e-9
# Added to absolute inputs, so that inputs that are all zero share relevance equally; far above the stabiliser.
ZERO_INPUT = 1e-6
# Prefix of the names of convolutions that read the image.
FIRST_PREFIX = "canonical_first"


# Attributes in which a module stores its forward hooks and their flags.
HOOK_ATTRIBUTES = (
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
)


class ConservingZPlus(BasicHook):
    """zennit's `ZPlus` rule without biases, which conserves relevance where the plain rule loses it.

    If no input raises an output of a convolution, which is then negative or the bias alone, the plain rule drops its
    relevance. Here all inputs share it in proportion to their absolute values, and equally if all are zero.
    """

    def __init__(self) -> None:
        stabilise = Stabilizer.ensure(STABILISER)

        def share(gradient: torch.Tensor, outputs: list[torch.Tensor]) -> list[torch.Tensor]:
            raised = outputs[0] + outputs[1]
            is_not_raised = raised <= STABILISER
            plain = (gradient / stabilise(raised)).masked_fill(is_not_raised, 0)
            return [plain, plain, (gradient / stabilise(outputs[2])).masked_fill(~is_not_raised, 0)]

        super().__init__(
            input_modifiers=[
                lambda values: values.clamp(min=0),
                lambda values: values.clamp(max=0),
                lambda values: values.abs() + ZERO_INPUT,
            ],
            param_modifiers=[
                ClampMod(min=0.0, zero_params="bias"),
                ClampMod(max=0.0, zero_params=zero_bias("bias")),
                ParamMod(lambda values, _: torch.ones_like(values), zero_params="bias"),
            ],
            output_modifiers=[lambda output: output] * 3,
            gradient_mapper=share,
            reducer=lambda inputs, gradients: sum(x * g for x, g in zip(inputs, gradients, strict=True)),
        )


class ConservingNorm(BasicHook):
    """zennit's `Norm` rule, which conserves relevance if terms add up to zero: they then share it equally.

    Terms that are all zero receive relevance if a mean follows.
    """

    def __init__(self) -> None:
        stabilise = Stabilizer.ensure(STABILISER)

        def share(gradient: torch.Tensor, outputs: list[torch.Tensor]) -> list[torch.Tensor]:
            is_zero = outputs[0].abs() <= STABILISER
            plain = (gradient / stabilise(outputs[0])).masked_fill(is_zero, 0)
            return [plain, (gradient / outputs[1]).masked_fill(~is_zero, 0)]

        super().__init__(
            input_modifiers=[lambda values: values, torch.ones_like],
            param_modifiers=[NoMod(param_keys=[])] * 2,
            output_modifiers=[lambda output: output] * 2,
            gradient_mapper=share,
            reducer=lambda inputs, gradients: sum(x * g for x, g in zip(inputs, gradients, strict=True)),
        )


def composite(network: nn.Module) -> NameLayerMapComposite:
    """Return zennit's `EpsilonPlusFlat` composite with `ConservingZPlus` and `ConservingNorm`; biases get no relevance.

    The flat rule applies to every convolution that reads the image, and to each of its calls.

    Parameters
    ----------
    network
        Result of `canonise`.
    """
    first = [name for name, _ in network.named_children() if name.startswith(FIRST_PREFIX)]
    return NameLayerMapComposite(
        [(first, Flat(STABILISER, zero_params="bias"))],
        [
            ((Sum, AvgPool, _Average), ConservingNorm()),
            *layer_map_base(STABILISER),
            (Convolution, ConservingZPlus()),
            (nn.Linear, Epsilon(STABILISER, zero_params="bias")),
        ],
    )


def canonise(network: nn.Module, images: torch.Tensor) -> nn.Module:
    """Return a copy of a network with batch norms merged into convolutions, and sums, gates and ReLUs as modules.

    The copy is traced, which works for residual networks of any library; zennit's canonizers only cover torchvision's.

    Parameters
    ----------
    network
        A network in eval mode.
    images
        (B, C, H, W), at least two images, on which the copy runs once.

    Raises
    ------
    NotApplicable
        If the network cannot be traced.
    """
    plain = _without_parallel(copy_network(network, with_hooks=False))
    _split_modules(plain)
    _write_normalisation(plain)
    for module in plain.modules():
        _register_weights(module)
        module._forward_hooks.clear()
        module._forward_pre_hooks.clear()
    dtype = next((weight.dtype for weight in plain.parameters() if weight.is_floating_point()), images.dtype)
    try:
        # Tracing patches the calls of all modules in the process, including those of other threads.
        with _TRACING_LOCK:
            graph = _Tracer().trace(plain, _defaults(plain.forward))
        traced: Any = fx.GraphModule(plain, graph)
        rectifying = write_out_of_place(traced, images.to(dtype))
        for index, (node, values) in enumerate(rectifying.items()):
            # An activation with two bounds, such as ReLU6, can look like a ReLU on these images.
            if _function(node) not in ACTIVATION_CALLS:
                _replace(traced, node, f"canonical_relu_{index}", nn.ReLU(), values)
        _separate_calls(traced)
        _name_batch_norms(traced)
        traced = fuse(traced, no_trace=True)
    except Exception as error:
        # Tracing runs the code of the network on proxies for tensors, which can fail in any way.
        raise NotApplicable(
            f"LRP needs a network that torch.fx can trace: {' '.join(str(error).split())[:200]}"
        ) from None
    _name_operations(traced)
    _name_first(traced)
    traced.graph.lint()
    traced.recompile()
    # With the hooks of the network, passes of the copy are counted and its outputs are read in the same way.
    for hooks in HOOK_ATTRIBUTES:
        setattr(traced, hooks, getattr(network, hooks))
    return traced.eval().requires_grad_(False)


def _name_operations(traced: Any) -> None:
    """Replace the functions that a rule covers by modules, on which zennit's rules work."""
    images = next(node for node in traced.graph.nodes if node.op == "placeholder")
    of_images = {images}
    for index, node in enumerate(list(traced.graph.nodes)):
        if of_images.isdisjoint(node.all_input_nodes):
            continue
        replacement = _replace_operation(traced, index, node, of_images)
        of_images.add(node if replacement is None else replacement)


def _replace_operation(traced: Any, index: int, node: fx.Node, of_images: set[fx.Node]) -> fx.Node | None:
    """Replace the call of a function by that of a module; None if no rule covers the function.

    Parameters
    ----------
    index
        Number of the node, for the name of the module.
    of_images
        The nodes before `node` that depend on the images.
    """
    if node.op not in ("call_function", "call_method"):
        return None
    factors = [*node.args, *(node.kwargs[name] for name in ("input", "other") if name in node.kwargs)]
    function, is_binary = _function(node), len(factors) == 2 and not node.kwargs.keys() - {"input", "other", "inplace"}
    if node.target in ADDITIONS:
        # A term that does not depend on the images is a bias, which takes no relevance.
        if not is_binary or not of_images.issuperset(factors):
            return None
        with traced.graph.inserting_before(node):
            # Terms of other shapes are broadcast as in the sum.
            stacked = traced.graph.call_function(_stack, tuple(factors))
        return _replace(traced, node, f"canonical_sum_{index}", Sum(), stacked)
    if node.target in PRODUCTS | QUOTIENTS and is_binary:
        operation = operator.mul if node.target in PRODUCTS else operator.truediv
        return _replace(traced, node, f"canonical_gate_{index}", Gate(operation), *factors)
    if function in ACTIVATION_CALLS and node.all_input_nodes == factors[:1]:
        return _replace(
            traced, node, f"canonical_activation_{index}", _Activation(function, *_settings(node)), factors[0]
        )
    # This interpolation is adaptive average pooling.
    is_area = function is nn.functional.interpolate and node.kwargs.get("mode") == "area"
    if (is_area or function in AVERAGE_CALLS) and SETTINGS in node.meta:
        return _replace(traced, node, f"canonical_pool_{index}", _Average(function, *_settings(node)), factors[0])
    return None


def _settings(node: fx.Node) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments and keywords of a function after its first tensor."""
    args, keywords = node.meta.get(SETTINGS, (node.args, node.kwargs))
    return args[1:], {name: value for name, value in keywords.items() if name != "input"}


def _without_parallel(network: nn.Module) -> nn.Module:
    """Remove `DataParallel` wrappers."""
    while isinstance(network, nn.DataParallel):
        network = network.module
    for module in list(network.modules()):
        for name, child in module.named_children():
            setattr(module, name, _without_parallel(child))
    return network


def _defaults(forward: Callable[..., Any]) -> dict[str, Any]:
    """Return the defaults of the arguments of `forward` after the images."""
    _, *optional = inspect.signature(forward).parameters.values()
    return {parameter.name: parameter.default for parameter in optional if parameter.default is not parameter.empty}


def _stack(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    return torch.stack(torch.broadcast_tensors(first, second), dim=-1)


def _function(node: fx.Node) -> Any:
    """Return the function or tensor method that a node calls."""
    return getattr(torch.Tensor, str(node.target), None) if node.op == "call_method" else node.target


class _Activation(nn.ReLU):
    """An activation that is called as a function. As a ReLU, it gets zennit's rule, which all activations share."""

    def __init__(self, function: Callable[..., torch.Tensor], args: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        super().__init__()
        self.function, self.args, self.keywords = function, args, keywords

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Return the activations."""
        # The function gets a copy, because it may work in place.
        return self.function(values.clone(), *self.args, **self.keywords)


class _Average(nn.Module):
    """Pooling, a mean or a sum that is called as a function; the composite gives it the rule of pooling modules."""

    def __init__(self, function: Callable[..., torch.Tensor], args: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        super().__init__()
        self.function, self.args, self.keywords = function, args, keywords

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Return the averages."""
        return self.function(values, *self.args, **self.keywords)


class _Normalisation(nn.Module):
    """The arithmetic of torchvision's `Normalize`, whose own code checks types and so cannot be traced."""

    def __init__(self, mean: Any, std: Any, in_place: bool) -> None:
        super().__init__()
        self.mean, self.std = (torch.as_tensor(values).tolist() for values in (mean, std))
        self.in_place = in_place

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Return the normalised values."""
        mean, std = (values.new_tensor(numbers).reshape(-1, 1, 1) for numbers in (self.mean, self.std))
        return values.sub_(mean).div_(std) if self.in_place else (values - mean) / std


class _SamePadding(nn.Module):
    """The padding of a `Conv2dSame`, which depends on the size of the image.

    Relevance of the padded zeros goes to the nearest pixel, so that none is lost at the borders.
    """

    def __init__(self, convolution: Conv2dSame) -> None:
        super().__init__()
        self.geometry = [convolution.kernel_size, convolution.stride, convolution.dilation]

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Return the padded values."""
        height, width = values.shape[2:]
        sizes = zip((width, height), *(padding[::-1] for padding in self.geometry), strict=True)
        added = [get_same_padding(*size) for size in sizes]
        both = [side for padding in added for side in (padding // 2, padding - padding // 2)]
        repeated = nn.functional.pad(values, both, mode="replicate")
        return repeated + (nn.functional.pad(values, both) - repeated).detach()


_TRACING_LOCK = threading.RLock()


class _Tracer(fx.Tracer):
    def __init__(self) -> None:
        super().__init__()
        self.thread = threading.get_ident()

    def proxy(self, node: fx.Node) -> fx.Proxy:
        """Return a proxy that records in-place operators."""
        return RecordingProxy(node, self)

    def create_arg(self, a: Any) -> Any:
        """Extract the logits of an output whose type torch.fx does not support."""
        logits = None if isinstance(a, fx.Proxy) else logits_attribute(a, fx.Proxy)
        return super().create_arg(a if logits is None else logits)

    def call_module(self, m: nn.Module, forward: Any, args: Any, kwargs: Any) -> Any:
        """Trace the calls of this thread only."""
        if threading.get_ident() != self.thread:
            return forward(*args, **kwargs)
        return super().call_module(m, forward, args, kwargs)

    def is_leaf_module(self, module: nn.Module, name: str) -> bool:
        """Do not trace into modules that compute with image sizes, nor into batch norms of derived classes."""
        return isinstance(module, _SamePadding) or _is_batch_norm(module) or super().is_leaf_module(module, name)


def _is_batch_norm(module: nn.Module) -> bool:
    """Return whether a module computes a batch norm of torch, also as a `SyncBatchNorm` or a derived class."""
    batch_norm = nn.modules.batchnorm
    return isinstance(module, batch_norm._BatchNorm) and type(module).forward.__module__ == batch_norm.__name__


def _name_batch_norms(traced: fx.GraphModule) -> None:
    """Give batch norms the class of torch for their number of dimensions, by which they are merged and have a rule."""
    classes = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}
    for node in traced.graph.nodes:
        if node.op == "call_module" and _is_batch_norm(module := traced.get_submodule(str(node.target))):
            module.__class__ = classes[node.meta[DIMENSIONS]]


def _write_normalisation(network: nn.Module) -> None:
    """Replace torchvision's `Normalize` modules by their arithmetic."""
    for name, module in list(network.named_modules()):
        source: Any = module
        if isinstance(module, transforms.Normalize | v2.Normalize):
            network.set_submodule(name, _Normalisation(source.mean, source.std, source.inplace))


def _register_weights(module: nn.Module) -> None:
    """Turn weights that a parametrization or a hook computes into parameters, because rules only change parameters."""
    # Hooks of weight norm, spectral norm and pruning leave the weight of the last pass as an attribute.
    attributes = vars(module)
    computed = {name: attributes[name] for name in ("weight", "bias") if isinstance(attributes.get(name), torch.Tensor)}
    if parametrize.is_parametrized(module):
        with torch.no_grad():
            computed |= {name: getattr(module, name) for name in cast(nn.ModuleDict, module.parametrizations)}
        # `remove_parametrizations` would change the class, which the caller's module shares.
        module.__class__ = type(module).__bases__[0]
        del module.parametrizations
    for name, value in computed.items():
        attributes.pop(name, None)
        module.register_parameter(name, nn.Parameter(value.detach().clone()))


def _separate_calls(traced: fx.GraphModule) -> None:
    """Give each call of a module its own copy, because rules store the input of the last call."""
    called: set[str] = set()
    for index, node in enumerate(traced.graph.nodes):
        if node.op == "call_module" and node.target in called:
            name = f"canonical_call_{index}"
            traced.add_submodule(name, copy.deepcopy(traced.get_submodule(str(node.target))))
            node.target = name
        called.add(str(node.target))
    traced.recompile()


def _name_first(traced: fx.GraphModule) -> None:
    """Rename the convolutions that read the image directly, so that the composite finds them."""
    later_nodes: set[fx.Node] = set()
    for index, node in enumerate(traced.graph.nodes):
        if any(input_node in later_nodes for input_node in node.all_input_nodes):
            later_nodes.add(node)
        elif node.op == "call_module":
            module = traced.get_submodule(str(node.target))
            if isinstance(module, Convolution | nn.Linear):
                later_nodes.add(node)
            if isinstance(module, Convolution):
                node.target = f"{FIRST_PREFIX}_{index}"
                # A module counts under its first name, so the new one goes to the front.
                traced._modules = {node.target: module, **traced._modules}


def _split_modules(network: nn.Module) -> None:
    """Split two kinds of timm's modules in two: norms with an activation, and convolutions with padding."""
    for name, module in list(network.named_modules()):
        source: Any = module
        if isinstance(module, nn.BatchNorm2d) and isinstance(getattr(module, "act", None), nn.Module):
            plain: nn.Module = nn.BatchNorm2d(module.num_features, module.eps, module.momentum, module.affine)
            parts: list[nn.Module] = [plain, source.act]
        elif isinstance(module, Conv2dSame):
            sizes = (source.in_channels, source.out_channels, source.kernel_size, source.stride)
            plain = nn.Conv2d(*sizes, dilation=source.dilation, groups=source.groups, bias=source.bias is not None)
            parts = [_SamePadding(module), plain]
        else:
            continue
        plain.load_state_dict(module.state_dict(), strict=False)
        parent, _, last = name.rpartition(".")
        setattr(network.get_submodule(parent), last, nn.Sequential(*parts).to(next(module.parameters())).eval())


class _Gated(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, values: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        context.size = gate.shape
        return values * gate

    @staticmethod
    def backward(context: Any, relevance: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        # Zeros, because zennit's rules behind the gate do not accept None.
        return relevance, relevance.new_zeros(context.size)


class Gate(nn.Module):
    """A product of features with a gate for each channel, or with a number, which take no relevance.

    Arras et al. 2017, section 3. A product of two factors of the same size is not changed, because it is unclear which
    of them is the gate. A quotient is a product with the inverse of its divisor.
    """

    def __init__(self, function: Callable[[Any, Any], Any] = operator.mul) -> None:
        super().__init__()
        self.function = function

    def forward(self, first: Any, second: Any) -> Any:
        """Return the product or quotient; both factors may be numbers, such as sizes."""
        divides = self.function is operator.truediv
        sizes = [factor.numel() if isinstance(factor, torch.Tensor) else 0 for factor in (first, second)]
        values, gate = (first, second) if sizes[0] > sizes[1] or divides else (second, first)
        if sizes[0] == sizes[1] or not isinstance(values, torch.Tensor) or max(sizes) > values.numel():
            return self.function(first, second)
        gate = gate if isinstance(gate, torch.Tensor) else values.new_tensor(gate)
        product: torch.Tensor = _Gated.apply(values, 1 / gate if divides else gate)
        return product


def _replace(traced: Any, node: fx.Node, name: str, module: nn.Module, *arguments: Any) -> fx.Node:
    traced.add_module(name, module)
    with traced.graph.inserting_before(node):
        call: fx.Node = traced.graph.call_module(name, arguments)
    node.replace_all_uses_with(call)
    traced.graph.erase_node(node)
    return call

"""What a call leaves of a network: as it was before, put back, or refused with the name of the part and the remedy."""

import functools
import random
import threading
import time
import warnings

import numpy as np
import pytest
import torch
from odd_networks import STORAGE_PLACES, Counts, Plain, storing_network
from public_functions import assert_same, evaluate, explain, images_of, maps_of
from torch import nn

import heatproof
from heatproof.core import state
from heatproof.core.network import prepare_network
from heatproof.core.state import NetworkState
from heatproof.errors import HeatproofError

TARGETS = torch.tensor([0, 1, 2, 0, 1, 2])


def explain_with(network, method="saliency"):
    with warnings.catch_warnings(action="ignore"):
        return heatproof.explain(network, images_of(), TARGETS, {"method": method})


def evaluate_with(network, explainer=None):
    options = {} if explainer is None else {"explain": lambda images, targets: explainer(network, images, targets)}
    metric = "sds" if explainer is None else "sensitivity_max"
    with warnings.catch_warnings(action="ignore"):
        return heatproof.evaluate(metric, network, images_of(), TARGETS, maps_of()["a"], **options)


def with_norm():
    network = Plain()
    network.features.insert(1, nn.BatchNorm2d(6))
    return network.eval()


# ---- changes by an explainer


def in_training_mode(network, images, targets):
    network.train()
    network(images)
    return images.sum(1)


def leaves_hooks(network, images, targets):
    network.head.register_forward_hook(lambda module, inputs, output: output * 2)
    network.head.register_full_backward_hook(lambda module, inputs, outputs: None)
    network.features[0].register_forward_pre_hook(lambda module, inputs: None)
    return images.sum(1)


def removes_hooks(network, images, targets):
    for module in network.modules():
        module._forward_hooks.clear()
        module._forward_pre_hooks.clear()
    return images.sum(1)


def changes_modes(network, images, targets):
    network.features.train()
    return images.sum(1)


def takes_gradients_of_weights(network, images, targets):
    network.requires_grad_()
    network(images).sum().backward()
    return images.sum(1)


def replaces_parts(network, images, targets):
    network.features[1] = nn.Identity()
    network.head.weight = nn.Parameter(network.head.weight * 2)
    network.register_buffer("mask", torch.ones(3), persistent=False)
    return images.sum(1)


def writes_to_buffers(network, images, targets):
    for buffer in network.buffers():
        buffer.add_(1)
    return images.sum(1)


CHANGES = [
    in_training_mode,
    leaves_hooks,
    removes_hooks,
    changes_modes,
    takes_gradients_of_weights,
    replaces_parts,
    writes_to_buffers,
]


def with_gradients():
    network = with_norm()
    network.features[0].requires_grad_(False)
    for parameter in network.head.parameters():
        parameter.grad = torch.ones_like(parameter)
    network.head.register_forward_hook(lambda module, inputs, output: output)
    return network


def state_of(network):
    tensors = [*network.named_parameters(), *network.named_buffers()]
    return {
        "tensors": [(name, id(tensor), tensor.tolist(), tensor.requires_grad) for name, tensor in tensors],
        "gradients": [(id(tensor.grad), tensor.grad.tolist()) for _, tensor in tensors if tensor.grad is not None],
        "modes": [(name, id(module), module.training) for name, module in network.named_modules()],
        "containers": [
            (name, [str(key) for key in value], [id(item) for item in getattr(value, "values", list)()])
            for module in network.modules()
            for name, value in vars(module).items()
            if isinstance(value, dict)
        ],
    }


@pytest.mark.parametrize("change", CHANGES)
def test_changes_by_an_explainer_are_put_back_before_the_next_map(change):
    network = with_gradients()
    before = state_of(network)
    with warnings.catch_warnings(action="ignore"):
        maps = heatproof.explain(network, images_of(), TARGETS, {"first": change, "second": "saliency"})
    assert state_of(network) == before
    np.testing.assert_array_equal(maps["attribution"][1], explain_with(with_gradients())["attribution"][0])
    evaluate_with(network, change)
    assert state_of(network) == before


def test_an_exception_on_its_way_is_not_masked():
    network = with_gradients()
    before = state_of(network)

    class Stopped(KeyboardInterrupt):
        pass

    def stop():
        with NetworkState(network):
            replaces_parts(network, images_of(), TARGETS)
            with torch.no_grad():
                network.features[0].bias.add_(0)
            raise Stopped

    with pytest.raises(Stopped):
        stop()
    assert state_of(network) == before


def in_double_precision(network, images, targets):
    torch.set_default_dtype(torch.float64)
    return images.sum(1)


def deterministic(network, images, targets):
    torch.use_deterministic_algorithms(True, warn_only=True)
    return images.sum(1)


def in_autocast(network, images, targets):
    torch.set_autocast_enabled("cpu", True)
    return images.sum(1)


def in_one_thread_more(network, images, targets):
    torch.set_num_threads(torch.get_num_threads() + 1)
    return images.sum(1)


def without_gradients(network, images, targets):
    torch.set_grad_enabled(False)
    return images.sum(1)


def hooks_on_all_modules(network, images, targets):
    nn.modules.module.register_module_forward_hook(lambda module, inputs, output: output)
    return images.sum(1)


def modes_of_torch():
    return (
        torch.get_default_dtype(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.get_autocast_dtype("cpu"),
        torch.get_num_threads(),
        torch.is_grad_enabled(),
        len(nn.modules.module._global_forward_hooks),
    )


MODE_CHANGES = [
    in_double_precision,
    deterministic,
    in_autocast,
    in_one_thread_more,
    without_gradients,
    hooks_on_all_modules,
]


@pytest.mark.parametrize("change", MODE_CHANGES)
def test_modes_of_torch_are_put_back_before_the_next_map(change):
    before = modes_of_torch()
    with warnings.catch_warnings(action="ignore"):
        maps = heatproof.explain(Plain(), images_of(), TARGETS, {"first": change, "second": "saliency"})
    assert modes_of_torch() == before
    np.testing.assert_array_equal(maps["attribution"][1], explain_with(Plain())["attribution"][0])
    evaluate_with(Plain(), change)
    assert modes_of_torch() == before


class ChangesModes(nn.Module):
    def forward(self, images):
        torch.set_default_dtype(torch.float64)
        nn.modules.module.register_module_forward_hook(lambda module, inputs, output: None)
        return images


@pytest.mark.parametrize("call", [explain_with, evaluate_with])
def test_modes_of_torch_that_a_pass_changes_are_put_back(call):
    before = modes_of_torch()
    call(Plain(ChangesModes().eval()))
    assert modes_of_torch() == before


# ---- changes by a forward pass


class CountsOutsideOfTheStateDict(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("passes", torch.zeros(()), persistent=False)

    def forward(self, images):
        self.passes += 1
        return images


class StoresGradient(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, images):
        self.scale.grad = torch.ones(1)
        self.scale.requires_grad_(True)
        return images


def training_norm():
    """Return a network whose running statistics change in a pass, and whose outputs do not depend on them."""

    class Tracks(nn.BatchNorm2d):
        def forward(self, images):
            nn.functional.batch_norm(images.detach(), self.running_mean, self.running_var, training=True)
            self.num_batches_tracked.add_(1)
            return images

    return Plain(Tracks(3).eval())


class PreparesItself(nn.Module):
    """Base of modules that change something and record it in a plain attribute in their first pass."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Conv2d(3, 3, 1)
        self.register_buffer("factor", torch.ones(()), persistent=False)
        self.is_prepared = False

    def prepare(self, images):
        """Change what the module holds."""

    def forward(self, images):
        if not self.is_prepared:
            self.prepare(images)
            self.is_prepared = True
        return self.layer(images) * self.factor


class AddsBuffer(PreparesItself):
    def prepare(self, images):
        del self.factor
        self.register_buffer("factor", torch.tensor(3.0), persistent=False)


class WritesBuffer(PreparesItself):
    def prepare(self, images):
        self.factor.fill_(3)


class AddsHook(PreparesItself):
    def prepare(self, images):
        self.layer.register_forward_hook(lambda module, inputs, output: output * 3)


class ReplacesModule(PreparesItself):
    def prepare(self, images):
        self.layer = nn.Identity()


class WritesTensor(PreparesItself):
    def __init__(self):
        super().__init__()
        del self.factor
        self.factor = torch.ones(())

    def prepare(self, images):
        self.factor.mul_(3)


class ChangesClass(PreparesItself):
    def prepare(self, images):
        self.__class__ = AddsHook


class GrowsBuffer(PreparesItself):
    """Keeps how large its buffer is, as rotary tables of transformers do."""

    def __init__(self):
        super().__init__()
        self.size = 1

    def prepare(self, images):
        self.size = images.shape[-1]
        del self.factor
        self.register_buffer("factor", torch.ones(self.size), persistent=False)


PREPARING = [AddsBuffer, WritesBuffer, AddsHook, ReplacesModule, WritesTensor, ChangesClass, GrowsBuffer]


@pytest.mark.parametrize("call", [explain_with, evaluate_with])
@pytest.mark.parametrize("kind", PREPARING)
def test_a_network_that_prepares_itself_is_left_before_its_first_pass(kind, call):
    torch.manual_seed(0)
    module = kind().eval()
    network = Plain(module)
    attributes, kinds = dict(vars(module)), [type(part) for part in network.modules()]
    before = state_of(network)
    first = call(network)
    assert state_of(network) == before
    assert {name: vars(module)[name] for name in attributes} == attributes
    assert [type(part) for part in network.modules()] == kinds
    assert vars(module).keys() == attributes.keys()
    second = call(network)
    assert all(first[name].equals(second[name]) for name in ("attribution", "score", "drops") if name in first)


class CountsPasses(nn.Module):
    def __init__(self):
        super().__init__()
        self.images, self.sizes = 0, []

    def forward(self, images):
        self.images += len(images)
        self.sizes.append(len(images))
        return images


@pytest.mark.parametrize("call", [explain_with, evaluate_with])
def test_records_of_passes_stay(call):
    network = Plain(CountsPasses().eval())
    results = call(network)
    assert network.prepare.images == sum(network.prepare.sizes) >= 6 + int(results.attrs["check_passes"])


class KeepsFeatures(nn.Module):
    """Module that computes the features of equal images once."""

    def __init__(self, in_dict):
        super().__init__()
        self.layer, self.in_dict, self.features, self.images = nn.Conv2d(3, 3, 1), in_dict, {}, None

    def forward(self, images):
        if self.in_dict:
            key = images.detach().numpy().tobytes()
            if key not in self.features:
                self.features[key] = self.layer(images)
            return images + self.features[key]
        if self.images is None or not torch.equal(self.images, images):
            self.images, self.last = images.detach().clone(), self.layer(images)
        return images + self.last


class ComputesFeatures(KeepsFeatures):
    def forward(self, images):
        return images + self.layer(images)


@pytest.mark.parametrize("in_dict", [True, False])
@pytest.mark.parametrize("count", [1, 3])
def test_features_that_a_network_keeps_do_not_hide_gradients_of_the_next_method(count, in_dict):
    def maps(kind):
        torch.manual_seed(0)
        network = Plain(kind(in_dict).eval())
        methods = {"first": "saliency", "second": "input_x_gradient"}
        return heatproof.explain(network, images_of()[:count], TARGETS[:count], methods)["attribution"]

    np.testing.assert_array_equal(maps(KeepsFeatures), maps(ComputesFeatures))


PUT_BACK = {
    "running statistics": training_norm,
    "counter": lambda: Plain(Counts().eval()),
    "counter outside of the state_dict": lambda: Plain(CountsOutsideOfTheStateDict().eval()),
    "gradient": lambda: Plain(StoresGradient().eval()),
    **{how: lambda how=how: storing_network(how) for how in ("buffer", "parameter", "module")},
}


@pytest.mark.parametrize("call", [explain_with, evaluate_with])
@pytest.mark.parametrize("kind", PUT_BACK)
def test_what_a_pass_changes_in_modules_is_put_back(kind, call):
    network = PUT_BACK[kind]()
    before = state_of(network)
    call(network)
    assert state_of(network) == before


@pytest.mark.parametrize("how", sorted({*STORAGE_PLACES} - {"buffer", "parameter", "module"}))
def test_what_a_pass_stores_elsewhere_may_stay_and_changes_no_result(how):
    network = storing_network(how)
    parameters = [(id(parameter), parameter.requires_grad) for parameter in network.parameters()]
    maps = explain(network, images_of(), TARGETS, {}, methods=["saliency", "deep_lift"])
    assert_same(maps, explain(Plain(), images_of(), TARGETS, {}, methods=["saliency", "deep_lift"]))
    scores = evaluate(network, images_of(), TARGETS, maps_of(), metrics=["sds"])
    assert_same(scores, evaluate(Plain(), images_of(), TARGETS, maps_of(), metrics=["sds"]))
    assert [(id(parameter), parameter.requires_grad) for parameter in network.parameters()] == parameters


def test_nothing_foreign_is_written_to():
    tables, network = {}, Plain()

    def model(images):
        tables.setdefault("scale", network.head.weight.mean().detach() * 0 + 1)
        return network(images) * tables["scale"]

    evaluate_with(model)
    assert list(tables) == ["scale"]


def of_inference_mode():
    with torch.inference_mode():
        return with_norm()


@pytest.mark.parametrize("call", [explain_with, evaluate_with])
def test_tensors_of_inference_mode_are_copied_for_the_call_and_come_back(call):
    network = of_inference_mode()
    before = [id(tensor) for tensor in (*network.parameters(), *network.buffers())]
    result = call(network)
    assert [id(tensor) for tensor in (*network.parameters(), *network.buffers())] == before
    assert all(parameter.is_inference() for parameter in network.parameters())
    wanted = call(with_norm())
    name = "attribution" if "attribution" in wanted else "score"
    np.testing.assert_array_equal(result[name], wanted[name])


def test_layers_that_share_a_tensor_of_inference_mode_share_its_copy():
    with torch.inference_mode():
        network = Plain()
        network.features[2].bias = network.features[0].bias
    with prepare_network(network, images_of()):
        assert network.features[2].bias is network.features[0].bias
        assert not network.features[0].bias.is_inference()


def test_random_states_are_as_before():
    states = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        random.seed(seed)
        before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()  # noqa: NPY002
        explain_with(Plain(), lambda model, images, targets: torch.rand(len(images), 8, 8) + random.random())
        assert torch.equal(before[0], torch.get_rng_state())
        assert (before[1], before[2]) == (np.random.get_state()[1].tolist(), random.getstate())  # noqa: NPY002
        states.append(before[0])
    assert not torch.equal(*states)


# ---- refused


class ChangesItself(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, images):
        with torch.no_grad():
            self.scale.mul_(1.0)
        return images


@pytest.mark.parametrize("call", [explain_with, evaluate_with])
def test_a_pass_that_changes_a_parameter_is_refused_before_work(call):
    network, passes = Plain(ChangesItself().eval()), []
    network.register_forward_pre_hook(lambda module, inputs: passes.append(len(inputs[0])))
    with pytest.raises(HeatproofError, match=r"parameter 'prepare\.scale' of the model was changed in place"):
        call(network)
    assert sum(passes) <= 6


class LosesBuffer(nn.Module):
    def __init__(self, change):
        super().__init__()
        self.change = change
        self.register_buffer("counts", torch.zeros(1).expand(3) if change == "shared" else torch.zeros(3))

    def forward(self, images):
        if self.change == "shared":
            self.counts._base.add_(1)
        else:
            self.counts.resize_(5)
        return images


@pytest.mark.parametrize("call", [explain_with, evaluate_with])
@pytest.mark.parametrize("change", ["shared", "resized"])
def test_a_buffer_that_cannot_be_put_back_is_named_and_all_else_is_put_back(change, call):
    network = Plain(LosesBuffer(change).eval())
    flags = [parameter.requires_grad for parameter in network.parameters()]
    with pytest.raises(HeatproofError, match=r"'prepare\.counts' .* cannot be put back"):
        call(network)
    assert [parameter.requires_grad for parameter in network.parameters()] == flags


@pytest.mark.parametrize("call", [explain_with, evaluate_with])
@pytest.mark.parametrize("kind", ["uninitialised", "meta"])
def test_tensors_without_values_are_named(kind, call):
    norm = nn.LazyBatchNorm2d(affine=False) if kind == "uninitialised" else nn.BatchNorm2d(3, device="meta")
    with pytest.raises(HeatproofError, match="has no weights yet" if kind == "uninitialised" else "device 'meta'"):
        call(Plain(norm.eval()))


def test_an_explainer_that_changes_a_parameter_ends_the_call():
    def scaled(network, images, targets):
        with torch.no_grad():
            network.head.weight.mul_(2)
        return images.sum(1)

    with pytest.raises(HeatproofError, match=r"parameter 'head\.weight' .* by a method"):
        explain_with(Plain(), scaled)
    with pytest.raises(HeatproofError, match=r"parameter 'head\.weight' .* by a method"):
        evaluate_with(Plain(), scaled)


class Holder(nn.Module):
    """Runs a module that it holds, without registering it, in one of several places."""

    def __init__(self, module, container):
        super().__init__()
        if container == "attribute past __setattr__":
            object.__setattr__(self, "inner", module)
        else:
            self.held = {"list": [module], "tuple": (module,), "dict": {0: module}}[container]
        self.eval()

    def forward(self, images):
        return self.inner(images) if "inner" in vars(self) else self.held[0](images)


@pytest.mark.parametrize("call", [explain_with, evaluate_with])
@pytest.mark.parametrize("container", ["list", "tuple", "dict", "attribute past __setattr__"])
def test_a_module_that_a_forward_runs_unregistered_is_refused(container, call):
    with pytest.raises(
        HeatproofError, match=r"runs a Plain that is none of its submodules: register it, .* torch\.nn\.ModuleList"
    ):
        call(Holder(Plain(), container))


RELU = nn.ReLU()


def test_an_unregistered_module_without_weights_is_refused_if_several_passes_run_it():
    with pytest.raises(HeatproofError, match="runs a ReLU that is none of its submodules"):
        explain_with(Plain(lambda images: RELU(images)))


# ---- accepted


class Anew(Plain):
    """Makes modules in its forward pass."""

    def forward(self, images):
        images = nn.ReLU()(images)
        features = nn.Sequential(*self.features[:2])(images)
        return self.head(self.features[2:](features).flatten(1))


def parametrised():
    network = Plain()
    nn.utils.parametrizations.weight_norm(network.features[2])
    return network.eval()


ACCEPTED = {
    "made in forward": Anew,
    "compiled": lambda: torch.compile(Plain()),
    "with a compiled part": lambda: nn.Sequential(torch.compile(Plain())).eval(),
    "scripted": lambda: torch.jit.script(nn.Sequential(nn.Flatten(), nn.Linear(192, 3)).eval()),
    "with a scripted part": lambda: nn.Sequential(torch.jit.script(nn.Flatten().eval()), nn.Linear(192, 3)).eval(),
    "traced": lambda: torch.jit.trace(Plain(), images_of()),
    "exported": lambda: torch.export.export(
        Plain(), (images_of(),), dynamic_shapes=({0: torch.export.Dim("batch")},)
    ).module(),
    "quantised": lambda: torch.ao.quantization.quantize_dynamic(Plain(), {nn.Linear}),
    "parametrised": parametrised,
    "graph": lambda: torch.fx.symbolic_trace(nn.Sequential(nn.Flatten(), nn.Linear(192, 3)).eval()),
    "parallel": lambda: nn.DataParallel(Plain()).eval(),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("call", [explain_with, evaluate_with])
@pytest.mark.parametrize("kind", ACCEPTED)
def test_networks_of_every_kind_are_accepted(kind, call):
    network = ACCEPTED[kind]()
    result = call(network)
    assert result["score"].notnull().all() if "score" in result else len(result["method"]) == 1


class Predictor:
    """An object that is no module, and holds one."""

    def __init__(self, network, call=True):
        self.network = network

    def __call__(self, images):
        return self.network(images)

    def predict(self, images):
        return self(images)


NETWORK, SCALE = Plain(), nn.Identity().eval()


def by_global(images):
    return (lambda: NETWORK(images))()


def by_default(images, network=NETWORK):
    return network(images)


FUNCTIONS_OF_ONE_STEP = {
    "method of a module": lambda: NETWORK.forward,
    "method of an object": lambda: Predictor(NETWORK).predict,
    "object": lambda: Predictor(NETWORK),
    "partial": lambda: functools.partial(by_default, network=NETWORK),
    "partial of a module": lambda: functools.partial(NETWORK),
    "closure": lambda network=NETWORK: lambda images: network(images),
    "default": lambda: by_default,
    "global": lambda: by_global,
    "decorated": lambda: torch.no_grad()(by_global),
    "two modules": lambda scale=SCALE: lambda images: NETWORK(scale(images)),
}


@pytest.mark.parametrize("kind", FUNCTIONS_OF_ONE_STEP)
def test_functions_that_name_a_module_are_adapted(kind):
    before = state_of(NETWORK)
    scores = evaluate_with(FUNCTIONS_OF_ONE_STEP[kind]())
    np.testing.assert_array_equal(scores["score"], evaluate_with(NETWORK)["score"])
    assert state_of(NETWORK) == before


REFUSED_FUNCTIONS = {
    "no module": (lambda: lambda images: images.flatten(1)[:, :3], "function in which no torch.nn.Module can be found"),
    "two steps": (
        lambda: (lambda inner: lambda images: inner(images))(by_global),
        "function in which no torch.nn.Module can be found",
    ),
    "a list": (
        lambda: (lambda networks: lambda images: networks[0](images))([NETWORK]),
        "function in which no torch.nn.Module can be found",
    ),
    "one of two": (
        lambda: (lambda first, second: lambda images: first(second[0](images)))(nn.Identity().eval(), [NETWORK]),
        "a function that runs a Plain and does not name it itself",
    ),
}


@pytest.mark.parametrize("kind", REFUSED_FUNCTIONS)
def test_functions_that_do_not_name_their_modules_are_refused(kind):
    make, sentence = REFUSED_FUNCTIONS[kind]
    with pytest.raises(HeatproofError, match=sentence):
        evaluate_with(make())


# ---- threads


def test_a_second_thread_waits(monkeypatch):
    spans = []

    def slow(model, images, targets):
        began = time.monotonic()
        time.sleep(0.2)
        spans.append((began, time.monotonic()))
        return images.sum(1)

    threads = [threading.Thread(target=explain_with, args=(Plain(), slow)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert spans[0][1] <= spans[1][0]


def test_a_thread_that_waits_too_long_is_refused(monkeypatch):
    monkeypatch.setattr(state, "LONGEST_WAIT", 0.1)
    entered, over = threading.Event(), threading.Event()

    def slow(model, images, targets):
        entered.set()
        over.wait(60)
        return images.sum(1)

    thread = threading.Thread(target=explain_with, args=(Plain(), slow))
    thread.start()
    try:
        assert entered.wait(60)
        with pytest.raises(HeatproofError, match=r"in use in another thread, which did not end .* one after the other"):
            explain_with(Plain())
    finally:
        over.set()
        thread.join(60)
    assert explain_with(Plain())["reason"].values[0] == ""


# ---- cost


def test_the_state_of_a_network_of_many_modules_is_kept_quickly():
    network = nn.Sequential(*(nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3), nn.ReLU()) for _ in range(20)))
    times = []
    for _ in range(20):
        began = time.perf_counter()
        with NetworkState(network):
            pass
        times.append(time.perf_counter() - began)
    # Below a millisecond on a free processor.
    assert min(times) < 0.01

"""Explainers and metrics with one fault each, listed by the rule that detects it."""

import gc
import logging
import os
import random
import sys
import tempfile
import threading
import time
import warnings
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import avg_pool2d, interpolate

from heatproof.core.grids import patch_sums
from heatproof.core.randomness import derive_seed


def gradient(model, images, targets):
    """A sound explainer: gradient times input, summed over channels."""
    images = images.detach().clone().requires_grad_()
    (slope,) = torch.autograd.grad(model(images).gather(1, targets[:, None]).sum(), images)
    return (slope * images).sum(1).detach()


def drawn(model, images, targets):
    maps = gradient(model, images, targets)
    return maps + maps.abs().max() * torch.rand_like(maps) * 0.1


def mutates(model, images, targets):
    maps = gradient(model, images, targets)
    images.clamp_(min=0)
    return maps


def mutates_targets(model, images, targets):
    maps = gradient(model, images, targets)
    targets.zero_()
    return maps


def of_the_batch(model, images, targets):
    maps = gradient(model, images, targets)
    return maps / maps.abs().max()


def divided(model, images, targets):
    return gradient(model, images, targets) / len(images)


def of_the_order(model, images, targets):
    maps = gradient(model, images, targets)
    return maps * torch.arange(1, len(maps) + 1)[:, None, None]


def wrong_sign(model, images, targets):
    return -gradient(model, images, targets)


def wrong_shape(model, images, targets):
    return gradient(model, images, targets)[:, :-1]


def coarse(model, images, targets):
    return avg_pool2d(gradient(model, images, targets)[:, None], 2)[:, 0]


def of_seven(model, images, targets):
    return interpolate(gradient(model, images, targets)[:, None], (7, 7))[:, 0]


def transposed(model, images, targets):
    return gradient(model, images, targets).mT.contiguous()


def off_by_one(model, images, targets):
    return gradient(model, images, targets).roll(1, 2)


def first_channel(model, images, targets):
    images = images.detach().clone().requires_grad_()
    (slope,) = torch.autograd.grad(model(images).gather(1, targets[:, None]).sum(), images)
    return (slope * images)[:, 0].detach()


def three_channels(model, images, targets):
    images = images.detach().clone().requires_grad_()
    (slope,) = torch.autograd.grad(model(images).gather(1, targets[:, None]).sum(), images)
    products = slope * images
    return (products[:, 0] + products[:, 1] + products[:, 2]).detach()


def square_alone(model, images, targets):
    side = images.shape[2]
    return gradient(model, images, targets).reshape(len(images), side, side)


def keeps_a_hook(model, images, targets):
    next(model.children()).register_forward_hook(lambda module, inputs, output: None)
    return gradient(model, images, targets)


def keeps_a_tensor_hook(model, images, targets):
    maps = gradient(model, images, targets)
    next(model.parameters()).requires_grad_().register_hook(lambda slope: slope)
    return maps


def keeps_a_hook_everywhere(model, images, targets):
    torch.nn.modules.module.register_module_forward_hook(lambda module, inputs, output: None)
    return gradient(model, images, targets)


def marks_weights(model, images, targets):
    model.requires_grad_()
    return gradient(model, images, targets)


def changes_weights(model, images, targets):
    maps = gradient(model, images, targets)
    with torch.no_grad():
        next(model.parameters()).mul_(1.01)
    return maps


def leaves_training_on(model, images, targets):
    maps = gradient(model, images, targets)
    model.train()
    return maps


def trains(model, images, targets):
    model.train()
    try:
        return gradient(model, images, targets)
    finally:
        model.eval()


def leaves_gradients_off(model, images, targets):
    maps = gradient(model, images, targets)
    torch.set_grad_enabled(False)
    return maps


def leaves_a_seed(model, images, targets):
    maps = gradient(model, images, targets)
    torch.manual_seed(7)
    np.random.seed(7)  # noqa: NPY002
    return maps


def leaves_a_python_seed(model, images, targets):
    random.seed(3)
    return gradient(model, images, targets)


def leaves_a_default_dtype(model, images, targets):
    maps = gradient(model, images, targets)
    torch.set_default_dtype(torch.float64)
    return maps


def _leaves(name, leave):
    """Return a sound explainer that changes the process in the same way in every call."""

    def fault(model, images, targets):
        leave()
        return gradient(model, images, targets)

    fault.__name__ = f"leaves_{name}"
    return fault


def _replacement_relu(images, inplace=False):
    return torch.relu(images)


# Changes that a second call does not repeat visibly, because the first call has made them.
SET_ONCE = [
    _leaves("a_variable", lambda: os.environ.update(HEATPROOF_PLANTED="1")),
    _leaves("a_folder", lambda: os.chdir("/")),
    _leaves("a_filter", lambda: warnings.filterwarnings("ignore", message="planted")),
    _leaves("a_level", lambda: logging.getLogger().setLevel(10)),
    _leaves("loggers_off", lambda: logging.disable(50)),
    _leaves("cudnn", lambda: setattr(torch.backends.cudnn, "benchmark", True)),
    _leaves("precision", lambda: torch.set_float32_matmul_precision("high")),
    _leaves("attention", lambda: torch.backends.cuda.enable_flash_sdp(False)),
    _leaves("deterministic", lambda: torch.use_deterministic_algorithms(True)),
    _leaves("anomalies", lambda: torch.autograd.set_detect_anomaly(True)),
    _leaves("numpy_errors", lambda: np.seterr(all="ignore")),
    _leaves("numpy_print", lambda: np.set_printoptions(precision=3)),
    _leaves("a_path", lambda: "/planted" in sys.path or sys.path.append("/planted")),
    _leaves("no_collector", gc.disable),
    _leaves("a_function_of_torch", lambda: setattr(torch.nn.functional, "relu", _replacement_relu)),
    _leaves("a_thread", lambda: threading.Thread(target=time.sleep, args=(10,), daemon=True).start()),
]


def mutates_single_images(model, images, targets):
    maps = gradient(model, images, targets)
    if len(images) == 1:
        images.clamp_(min=0)
    return maps


def wrong_sign_of_one_class(model, images, targets):
    return gradient(model, images, targets) * torch.where(targets == 2, -1, 1)[:, None, None]


def keeps_a_hook_of_gradients(model, images, targets):
    weight = next(model.parameters()).requires_grad_()
    weight.register_post_accumulate_grad_hook(lambda gradient: None)
    weight.requires_grad_(False)
    return gradient(model, images, targets)


def leaves_a_file_at_home(model, images, targets):
    (Path.home() / "planted").write_text("map", encoding="utf-8")
    return gradient(model, images, targets)


def leaves_a_file(model, images, targets):
    with tempfile.NamedTemporaryFile(delete=False) as file:
        file.write(b"map")
    return gradient(model, images, targets)


def of_the_seed_alone(context):
    draws = torch.Generator().manual_seed(derive_seed(context.seed, "of the seed alone", "all"))
    maps = gradient(context.output, context.images, context.targets)
    noise = torch.rand(maps.shape[1:], generator=draws, dtype=torch.float32)
    return {"of_the_seed_alone": maps + 0.1 * noise}


def deaf_to_the_target(model, images, targets):
    return gradient(model, images, torch.zeros_like(targets))


def deaf_to_the_image(model, images, targets):
    return gradient(model, torch.ones_like(images), targets)


def deaf_to_the_network(model, images, targets):
    return images.sum(1) * (targets[:, None, None] + 1)


def deaf_to_the_output(context):
    return {"deaf_to_the_output": gradient(context.network, context.images, context.targets)}


def larger_passes(context):
    return {"larger_passes": gradient(context.output, context.images, context.targets)}


def another_name(context):
    return {"other": gradient(context.output, context.images, context.targets)}


def in_double(context):
    return {"in_double": gradient(context.output, context.images, context.targets).double()}


def as_a_graph(context):
    images = context.images.clone().requires_grad_()
    chosen = context.output(images).gather(1, context.targets[:, None]).sum()
    (slope,) = torch.autograd.grad(chosen, images)
    return {"as_a_graph": (slope * images).sum(1)}


def in_half(model, images, targets):
    return gradient(model, images, targets).half()


def with_nan(model, images, targets):
    return gradient(model, images, targets) / 0


def constant(model, images, targets):
    return gradient(model, images, targets).mean((1, 2), keepdim=True).expand(-1, *images.shape[2:]).contiguous()


def marks_images(context):
    maps = gradient(context.output, context.images, context.targets)
    context.images.requires_grad_()
    return {"marks_images": maps}


def a_view(context):
    context.output(context.images)
    return {"a_view": context.images[:, 0]}


def spoils_the_background(context):
    maps = gradient(context.output, context.images, context.targets)
    context.background(2).zero_()
    return {"spoils_the_background": maps}


HELD = {}


def one_buffer(context):
    maps = gradient(context.output, context.images, context.targets)
    return {"one_buffer": HELD.setdefault(tuple(maps.shape), maps.clone()).copy_(maps)}


class Remembers:
    """An explainer that caches maps by `key`."""

    __name__ = "remembers"

    def __init__(self, key):
        self.key, self.held = key, {}

    def __call__(self, model, images, targets):
        key = self.key(model, images, targets)
        if key not in self.held:
            self.held[key] = model, images, gradient(model, images, targets)
        return self.held[key][2].clone()


def by_tensor(model, images, targets):
    return images.data_ptr(), tuple(targets.tolist())


def by_network(model, images, targets):
    return id(model), images.sum().item(), tuple(targets.tolist())


def in_default_dtype(model, images, targets):
    return gradient(model, images, targets) * torch.full((1, 1, 1), 1 / 3) + torch.rand(
        images.shape[2:], generator=torch.Generator().manual_seed(0)
    )


def of_contiguous_memory(model, images, targets):
    return (
        gradient(model, images, targets)
        .view(-1)
        .as_strided((len(images), *images.shape[2:]), (images.stride(0) // images.shape[1], *images.stride()[2:]))
    )


def raises_elsewhere(context):
    if not any(isinstance(module, torch.nn.Conv2d) for module in context.network.children()):
        raise AttributeError("no convolution")
    return {"raises_elsewhere": gradient(context.output, context.images, context.targets)}


def gives_no_reason(context):
    from heatproof.errors import NotApplicable

    if not any(isinstance(module, torch.nn.Conv2d) for module in context.network.children()):
        raise NotApplicable("no")
    return {"gives_no_reason": gradient(context.output, context.images, context.targets)}


def size_of(context):
    return gradient(context.output, context.images, context.targets).abs()


# The rule that detects the fault, and faulty functions of a model, images and targets.
OF_FUNCTIONS = {
    "leaves_its_inputs": [mutates, mutates_targets, mutates_single_images],
    "does_not_depend_on_the_company": [of_the_batch, divided, of_the_order],
    "does_not_depend_on_the_batch_size": [of_the_batch, divided, of_the_order],
    "finds_the_evidence": [wrong_sign, transposed, off_by_one, first_channel, wrong_sign_of_one_class],
    "returns_its_maps": [wrong_shape, coarse, of_seven, in_half, with_nan, constant],
    "takes_images_of_any_form": [square_alone, three_channels],
    "leaves_the_network": [
        keeps_a_hook,
        keeps_a_hook_of_gradients,
        keeps_a_tensor_hook,
        marks_weights,
        changes_weights,
        leaves_training_on,
    ],
    "stays_in_eval_mode": [trains],
    "leaves_the_process": [
        *[leaves_gradients_off, leaves_a_seed, leaves_a_python_seed, leaves_a_default_dtype, drawn],
        keeps_a_hook_everywhere,
        *SET_ONCE,
    ],
    "leaves_no_file": [leaves_a_file, leaves_a_file_at_home],
    "is_repeatable": [drawn],
    "follows_the_target": [deaf_to_the_target],
    "follows_the_image": [deaf_to_the_image, lambda: Remembers(by_tensor)],
    "follows_the_network": [deaf_to_the_network, lambda: Remembers(by_network)],
    "works_in_any_mode": [in_default_dtype],
    "takes_images_of_any_memory": [of_contiguous_memory],
}
# The rule, and faulty functions of an `ExplainContext`, which are registered.
OF_EXPLAINED = {
    "leaves_its_inputs": [marks_images, a_view, spoils_the_background],
    "leaves_earlier_maps": [one_buffer],
    "draws_by_image": [of_the_seed_alone],
    "keeps_to_the_batch_size": [larger_passes],
    "returns_its_maps": [another_name, in_double, as_a_graph],
    "explains_probabilities_or_says_no": [deaf_to_the_output],
    "says_where_it_does_not_apply": [raises_elsewhere, gives_no_reason],
}


# The rule, and faulty metrics: functions of maps, patch drops and the grid.
def first_patch(maps, drops, grid):
    """A sound metric: the drop of the patch that a map ranks first."""
    sums = patch_sums(maps, grid)
    score = drops[np.arange(len(maps)), sums.argmax(1)].astype(np.float64)
    valid = sums.max(1) > sums.min(1)
    return np.where(valid, score, np.nan), valid, {}


def metric_mutates(maps, drops, grid):
    result = first_patch(maps, drops, grid)
    maps *= -1
    return result


def metric_mutates_one(maps, drops, grid):
    result = first_patch(maps, drops, grid)
    if len(maps) == 1:
        maps *= -1
    return result


def metric_writes(maps, drops, grid):
    Path("planted").write_text("score", encoding="utf-8")
    return first_patch(maps, drops, grid)


def metric_variable(maps, drops, grid):
    os.environ["HEATPROOF_PLANTED"] = "1"
    return first_patch(maps, drops, grid)


def metric_mutates_drops(maps, drops, grid):
    result = first_patch(maps, drops, grid)
    drops.sort(axis=1)
    return result


def metric_of_the_batch(maps, drops, grid):
    score, valid, curves = first_patch(maps, drops, grid)
    return score - np.nanmean(score), valid, curves


def metric_of_the_order(maps, drops, grid):
    score, valid, curves = first_patch(maps, drops, grid)
    return score * np.arange(1, len(score) + 1), valid, curves


def metric_wrong_sign(maps, drops, grid):
    return first_patch(-maps, drops, grid)


def metric_transposed(maps, drops, grid):
    return first_patch(np.ascontiguousarray(maps.swapaxes(1, 2)), drops, grid)


def metric_wrong_shape(maps, drops, grid):
    score, valid, curves = first_patch(maps, drops, grid)
    return score[:, None], valid[:, None], curves


def metric_one_score(maps, drops, grid):
    score, valid, curves = first_patch(maps, drops, grid)
    return np.array([np.nanmean(score)]), valid[:1], curves


def metric_alone(maps, drops, grid):
    return first_patch(maps, drops, grid)[0]


def metric_in_half(maps, drops, grid):
    score, valid, curves = first_patch(maps, drops, grid)
    return score.astype(np.float16), valid, curves


def metric_nan(maps, drops, grid):
    score, valid, curves = first_patch(maps, drops, grid)
    score[0] = np.nan
    return score, valid, curves


def metric_of_undefined(maps, drops, grid):
    score, valid, curves = first_patch(maps, drops, grid)
    valid[0] = False
    return score, valid, curves


def metric_curve(maps, drops, grid):
    score, valid, _ = first_patch(maps, drops, grid)
    return score, valid, {"curve": np.zeros((2, 3, 4))}


def metric_seed(maps, drops, grid):
    np.random.seed(4)  # noqa: NPY002
    return first_patch(maps, drops, grid)


def metric_draws(maps, drops, grid):
    score, valid, curves = first_patch(maps, drops, grid)
    return score + 0.1 * np.random.rand(len(score)), valid, curves  # noqa: NPY002


def metric_errors(maps, drops, grid):
    np.seterr(all="ignore")
    return first_patch(maps, drops, grid)


def metric_out_of_range(maps, drops, grid):
    score, valid, curves = first_patch(maps, drops, grid)
    return score + 1e6, valid, curves


def metric_deaf(maps, drops, grid):
    valid = np.ones(len(maps), dtype=bool)
    return drops[:, 0].astype(np.float64), valid, {}


def metric_deaf_to_the_network(maps, drops, grid):
    sums = patch_sums(maps, grid)
    return sums.max(1).astype(np.float64), np.ones(len(maps), dtype=bool), {}


def metric_of_square_images(maps, drops, grid):
    side = maps.shape[1]
    return first_patch(maps.reshape(len(maps), side, side), drops, grid)


def metric_of_float32(maps, drops, grid):
    if maps.dtype != np.float32:
        maps = maps // 1000
    return first_patch(maps, drops, grid)


def metric_of_constant_maps(maps, drops, grid):
    score, valid, curves = first_patch(maps, drops, grid)
    return np.where(valid, score, 0.99e6), np.ones_like(valid), curves


class MetricRemembers:
    """A metric that caches its first result for each number of images."""

    __name__ = "metric_remembers"
    __module__ = "planted"

    def __init__(self):
        self.held = {}

    def __call__(self, maps, drops, grid):
        key = len(maps)
        if key not in self.held:
            self.held[key] = first_patch(maps, drops, grid)
        return tuple(array.copy() for array in self.held[key])


OF_METRICS = {
    "leaves_its_inputs": [metric_mutates, metric_mutates_drops, metric_mutates_one],
    "leaves_no_file": [metric_writes],
    "does_not_depend_on_the_company": [metric_of_the_batch, metric_of_the_order],
    "prefers_known_effects": [metric_wrong_sign, metric_transposed],
    "returns_scores": [
        *[metric_wrong_shape, metric_one_score, metric_alone, metric_in_half, metric_nan, metric_of_undefined],
        metric_curve,
    ],
    "leaves_the_process": [metric_seed, metric_errors, metric_variable],
    "is_repeatable": [metric_draws],
    "keeps_to_its_range": [metric_out_of_range],
    "follows_the_map": [metric_deaf, MetricRemembers],
    "follows_the_network": [metric_deaf_to_the_network],
    "takes_images_of_any_form": [metric_of_square_images],
    "takes_maps_of_any_precision": [metric_of_float32],
    "gains_nothing_by_constant_maps": [metric_of_constant_maps],
}

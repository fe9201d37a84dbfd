"""Rules that every explainer has to follow."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn

from heatproof.core.state import NetworkState, enable_gradients
from heatproof.errors import NotApplicable
from heatproof.testing._explainer_subject import (
    CLOSE,
    SIMILAR,
    ExplainerSubject,
    distance,
    require_other,
    require_same,
    select_images,
    select_maps,
)
from heatproof.testing._networks import (
    BOXES,
    DEFAULT_FORM,
    NETWORKS,
    NON_SQUARE,
    Form,
    convolutional,
    evidence_images,
    evidence_network,
    random_images,
    tiny_network,
)
from heatproof.testing._rules import RuleBroken
from heatproof.testing._side_effects import (
    difference,
    files_left_by,
    network_state,
    process_changes,
    restored_process,
    seed_everything,
)

_EXEMPTION_HINT = "declare exempt={'finds_the_evidence': 'why'}"
# Forms of images, and the number of images.
IMAGE_FORMS = ((DEFAULT_FORM, 1), (Form(NON_SQUARE), 2), (Form(channels=1), 2), (Form(channels=4, classes=5), 2))


def returns_its_maps(subject: ExplainerSubject) -> None:
    """Maps are float32 tensors (N, H, W), finite and not constant, under the registered names."""
    context = subject.context(subject.network())
    expected = (len(context.images), *context.images.shape[2:])
    if subject.explainer.wraps is not None:
        with enable_gradients(), NetworkState(context.network):
            result = subject.explainer.wraps(context.network, context.images.clone(), context.targets.clone())
        result = result[0] if isinstance(result, list | tuple) and result else result
        kind = str(getattr(result, "dtype", type(result).__name__))
        if "float16" in kind:
            raise RuleBroken(f"returned maps in {kind}", "compute and return them in float32")
    maps = subject.call(context)
    announced = list(subject.explainer.maps)
    if not isinstance(maps, Mapping) or list(maps) != announced:
        received = list(maps) if isinstance(maps, Mapping) else type(maps).__name__
        raise RuleBroken(f"returned {received}", f"return a dict with the maps {announced}")
    for name, values in maps.items():
        if not isinstance(values, torch.Tensor) or values.dtype != torch.float32:
            raise RuleBroken(
                f"returned {getattr(values, 'dtype', type(values).__name__)} for {name!r}", "return float32 tensors"
            )
        if tuple(values.shape) != expected:
            raise RuleBroken(
                f"returned a map of shape {tuple(values.shape)} for {expected}", "return one value for each pixel"
            )
        if not values.isfinite().all():
            raise RuleBroken(f"returned a value in {name!r} that is not finite", "find where it divides by zero")
        if values.requires_grad or values.is_inference():
            raise RuleBroken(f"returned {name!r} as a part of a graph", "detach it")
        if not (values.flatten(1).amax(1) > values.flatten(1).amin(1)).any():
            raise RuleBroken(
                f"returned {name!r} with one value everywhere", "raise NotApplicable if the map would be constant"
            )


def has_its_announced_sign(subject: ExplainerSubject) -> None:
    """A map is negative somewhere, for at least one class, if and only if it is registered as signed."""
    if subject.explainer.wraps is not None:
        raise NotApplicable("a function does not declare whether its maps are signed")
    minima: dict[str, float] = {}
    context = subject.context(subject.network())
    for shift in range(3):
        for name, values in subject.maps(replace(context, targets=(context.targets + shift) % 3)).items():
            minima[name] = min(minima.get(name, 0.0), float(values.min()))
    for name, signed in subject.explainer.maps.items():
        if signed != (minima[name] < 0):
            description = (
                "signed, and is never negative" if signed else f"not signed, and has the value {minima[name]:.2g}"
            )
            raise RuleBroken(f"registered {name!r} as {description}", "register it with signed= or maps= as it is")


def leaves_its_inputs(subject: ExplainerSubject) -> None:
    """Images, targets and background are unchanged, and maps are not views of them, for images of any size."""
    for form, count in ((DEFAULT_FORM, 4), (DEFAULT_FORM, 1), (DEFAULT_FORM, 5), *IMAGE_FORMS[1:]):
        context = subject.context(subject.network(form), random_images(form, count))
        background = context.background(32) if context.background else None
        inputs = [tensor for tensor in (context.images, context.targets, background) if tensor is not None]
        before = [tensor.clone() for tensor in inputs]
        maps = subject.call(context)
        for name, tensor, copy in zip(("images", "targets", "background"), inputs, before, strict=False):
            if not torch.equal(tensor, copy) or tensor.requires_grad:
                shape = tuple(context.images.shape)
                raise RuleBroken(
                    f"changed the {name}, at images {shape}", "write to a clone, and take gradients at a copy"
                )
            for key, values in maps.items():
                if values.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr():
                    raise RuleBroken(f"returned {key!r} as a view of the {name}", "return a clone")


def leaves_earlier_maps(subject: ExplainerSubject) -> None:
    """Maps do not change when other images are explained."""
    network = subject.network()
    maps = subject.call(subject.context(network))
    before = {name: values.clone() for name, values in maps.items()}
    subject.call(subject.context(network, random_images(seed=1)))
    if any(not torch.equal(maps[name], values) for name, values in before.items()):
        raise RuleBroken("changed maps that it had returned", "return new tensors and no buffer of its own")


def leaves_the_network(subject: ExplainerSubject) -> None:
    """Weights, buffers, gradients, modes, hooks and attributes of all modules are unchanged."""
    if not subject.uses_model:
        raise NotApplicable("it gets no network")
    network = subject.network()
    before = network_state(network)
    subject.call(subject.context(network))
    if changed := difference(before, network_state(network)):
        raise RuleBroken(f"left these otherwise: {', '.join(changed)}", "undo it in a finally clause")


def stays_in_eval_mode(subject: ExplainerSubject) -> None:
    """No pass runs in training mode."""
    if not subject.uses_model:
        raise NotApplicable("it gets no network")
    network = subject.network()
    modes = []
    handles = [module.register_forward_pre_hook(lambda module, _: modes.append(module.training))
               for module in network.modules()]  # fmt: skip
    try:
        subject.call(subject.context(network))
    finally:
        for handle in handles:
            handle.remove()
    if any(modes):
        raise RuleBroken("ran a part of the network in training mode", "leave the mode as it is")


def leaves_the_process(subject: ExplainerSubject) -> None:
    """Random states, modes and settings of torch, filters and loggers are unchanged."""
    context = subject.context(subject.network())

    if changed := process_changes(lambda: subject.explainer.function(context, **subject.method.options)):
        raise RuleBroken(
            f"left these otherwise: {', '.join(changed)}", "restore what it sets, and draw from its own seed"
        )


def leaves_no_file(subject: ExplainerSubject) -> None:
    """No file is written to the working folder, the home folder or the folder for temporary files."""
    context = subject.context(subject.network())
    if files := files_left_by(lambda: subject.maps(context)):
        raise RuleBroken(f"left {', '.join(files)}", "remove what it writes, or write nothing")


def is_repeatable(subject: ExplainerSubject) -> None:
    """The same images, names and seed give the same maps, independently of the global random states."""
    context, results = subject.context(subject.network()), []
    for seed in (1, 2):
        with restored_process():
            seed_everything(seed)
            results.append(subject.maps(context))
    remedy = "draw by image, with heatproof.core.randomness, or leave chance out"
    require_same(results[0], results[1], "in a second call", remedy, limit=0.0)


def draws_by_image(subject: ExplainerSubject) -> None:
    """Maps that depend on the seed also depend on the name of the image."""
    context = subject.context(subject.network(), random_images(count=1).repeat(2, 1, 1, 1), image_ids=("one", "other"))
    context = replace(context, targets=torch.zeros(2, dtype=torch.long))
    maps = subject.maps(context)
    if distance(maps, subject.maps(replace(context, seed=1))) <= CLOSE:
        raise NotApplicable("it draws nothing")
    require_other(
        select_maps(maps, [0]), select_maps(maps, [1]), "for two names of one image", "seed what it draws by image_ids"
    )


def does_not_depend_on_the_batch_size(subject: ExplainerSubject) -> None:
    """Maps are the same for any number of images in a pass, up to rounding."""
    context = subject.context(subject.network(), random_images(count=5))
    expected = subject.maps(context)
    for size in (1, 3):
        actual = subject.maps(replace(context, batch_size=size))
        require_same(actual, expected, f"with batch_size={size}", "reduce over images nowhere, and do not divide by N")


def does_not_depend_on_the_company(subject: ExplainerSubject) -> None:
    """An image has the same map alone, in another order, and among other images, up to rounding."""
    context = subject.context(subject.network(), random_images(count=5))
    expected, remedy = subject.maps(context), "reduce over images nowhere"
    for rows, case in (([3], "for an image alone"), ([4, 2, 0, 1, 3], "in another order"), ([1, 4], "in part")):
        require_same(subject.maps(select_images(context, rows)), select_maps(expected, rows), case, remedy)


def keeps_to_the_batch_size(subject: ExplainerSubject) -> None:
    """No pass has more images than the batch size, except that a single image may be passed with a copy of itself."""
    if not subject.uses_model:
        raise NotApplicable("it gets no network")
    network, sizes = subject.network(), []
    handle = network.register_forward_pre_hook(lambda _, inputs: sizes.append(len(inputs[0])))
    try:
        for size in (1, 3):
            sizes.clear()
            subject.maps(subject.context(network, random_images(count=5), batch_size=size))
            if max(sizes, default=0) > max(size, 2):
                raise RuleBroken(f"passed {max(sizes)} images at once with batch_size={size}", "split what it passes")
    finally:
        handle.remove()


def follows_the_image(subject: ExplainerSubject) -> None:
    """Other pixels give another map, even if the tensor or the name is the same."""
    network = subject.network()
    images, other_images = random_images(), random_images(seed=1)
    other_maps = subject.maps(subject.context(network, other_images))
    require_other(subject.maps(subject.context(network, images)), other_maps, "for other images", "read the images")
    context = subject.context(network, images.clone())
    with NetworkState(network):
        subject.call(context)
        context.images.copy_(other_images)
        actual = {name: values.detach().float() for name, values in subject.call(context).items()}
    require_same(actual, other_maps, "for a tensor that had other values before", "keep nothing between calls")


def follows_the_target(subject: ExplainerSubject) -> None:
    """Another class gives another map."""
    if not subject.uses_model:
        raise NotApplicable("it gets no network")
    context = subject.context(subject.network())
    other_target = replace(context, targets=(context.targets + 1) % 3)
    remedy = "explain the output of the target, or declare exempt={'follows_the_target': 'why'}"
    require_other(subject.maps(context), subject.maps(other_target), "for another class", remedy)


def follows_the_network(subject: ExplainerSubject) -> None:
    """Other weights give another map, even if they are loaded into the same network."""
    if not subject.uses_model:
        raise NotApplicable("it gets no network")
    network, other_network = subject.network(), subject.network(seed=1)
    expected = subject.maps(subject.context(other_network))
    remedy = "read the network, or register it with uses_model=False"
    require_other(subject.maps(subject.context(network)), expected, "for other weights", remedy)
    network.load_state_dict(other_network.state_dict())
    actual = subject.maps(subject.context(network))
    require_same(actual, expected, "for a network that had other weights before", "keep nothing between calls")


def finds_the_evidence(subject: ExplainerSubject) -> None:
    """A map is higher where pixels raise the target's output than where pixels lower it or have no effect."""
    if not subject.uses_model:
        raise NotApplicable("it gets no network")
    network = evidence_network(subject.kind)
    if network is None:
        raise NotApplicable(f"there is no network of kind {subject.kind!r} with known evidence")
    images = evidence_images()
    if subject.explainer.wraps is None:
        signed = dict(subject.explainer.maps)
    else:
        # Whether a function is signed can only be read off its maps.
        maps = subject.maps(subject.context(subject.network()))
        signed = {name: bool((values < 0).any() and (values > 0).any()) for name, values in maps.items()}
    # The last channel supports the second class, and the first channel opposes the third class.
    for target, box, sign in ((0, 0, 1), (1, 1, 1), (2, 0, -1)):
        targets = torch.full((len(images),), target)
        for name, values in subject.maps(subject.context(network, images, targets=targets)).items():
            if sign < 0 and not signed[name]:
                continue
            _require_inside(name, values, box, sign)


def _require_inside(name: str, maps: torch.Tensor, box: int, sign: int) -> None:
    rows, columns = BOXES[box]
    inside = torch.zeros(maps.shape[1:], dtype=torch.bool)
    inside[rows, columns] = True
    rest = torch.stack([maps[:, ~inside].mean(1), maps[:, inside.T].mean(1)]).amax(0)
    within, outside, scale = maps[:, inside].mean(1), maps[:, ~inside].mean(1), maps.abs().max() * CLOSE
    if sign < 0:
        if (within > outside + scale).any():
            raise RuleBroken(
                f"gave a higher {name!r} where pixels lower the output",
                f"keep the sign of the effect, return maps without signs, or {_EXEMPTION_HINT}",
            )
        return
    if not (within > rest).all():
        raise RuleBroken(
            f"gave a mean of {within.min():.2g} to the pixels that raise the output, and of {rest.max():.2g} to others",
            "check its sign, the order of rows and columns, and that all channels are summed, or " + _EXEMPTION_HINT,
        )
    for shift in ((0, 1), (0, -1), (1, 0), (-1, 0)):
        moved = maps[:, inside.roll(shift, (0, 1))].mean(1)
        # A sharp map that is off by a pixel gains a third; maps with random noise gain less.
        if (moved - outside > 1.2 * (within - outside)).all():
            raise RuleBroken(f"gave a map that is off by {shift} pixels", "check how it is enlarged and padded")


def takes_images_of_any_form(subject: ExplainerSubject) -> None:
    """A single image, images that are not square, and one or several channels give maps of the images' size."""
    for form, count in IMAGE_FORMS:
        context = subject.context(subject.network(form), random_images(form, count))
        for name, values in subject.maps(context).items():
            if tuple(values.shape) != (count, *form.size) or not values.isfinite().all():
                raise RuleBroken(
                    f"returned {name!r} of shape {tuple(values.shape)} for images {tuple(context.images.shape)}",
                    "return a finite value for each pixel",
                )


class Subclass(torch.Tensor):
    """A tensor of a custom class, as some datasets return."""


FORMS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "channels last": lambda images: images.to(memory_format=torch.channels_last),
    "no contiguous memory": lambda images: images.transpose(2, 3).contiguous().transpose(2, 3),
    "a part of a larger tensor": lambda images: torch.cat([images, images], 3)[..., : images.shape[3]],
    "gradients that are required": lambda images: images.clone().requires_grad_(),
    "a subclass of Tensor": lambda images: images.clone().as_subclass(Subclass),
    "inference mode": lambda images: _inference_tensor(images),
}
"""Odd forms of the same images."""


def _inference_tensor(images: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        return images.clone()


def takes_images_of_any_memory(subject: ExplainerSubject) -> None:
    """Images have the same map whatever their memory format, tensor class, grad mode and gradients."""
    network, images = subject.network(), random_images()
    expected = subject.explain(network, images)
    for form, change in FORMS.items():
        changed = change(images)
        # Another memory format uses other kernels, whose rounding switches ReLUs.
        actual = subject.explain_equivalent(f"to images of {form}", network, changed)
        require_same(actual, expected, f"for images of {form}", "compute on float32 copies", SIMILAR)
        if changed.grad is not None:
            raise RuleBroken(f"left gradients on images of {form}", "take gradients at a copy")


@contextmanager
def _default_dtype() -> Any:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def _deterministic() -> Any:
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


@contextmanager
def _two_threads() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        yield
    finally:
        torch.set_num_threads(before)


CONTEXTS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "default dtype float64": _default_dtype,
    "deterministic algorithms": _deterministic,
    "two threads": _two_threads,
}
"""Modes of torch in which a caller may be."""


def in_a_thread(call: Callable[[], Any]) -> Any:
    """Return the result of a call that runs in another thread."""
    results: list[Any] = []

    def run() -> None:
        try:
            results.append(call())
        except Exception as error:  # handed to the thread that waits
            results.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if isinstance(results[0], Exception):
        raise results[0]
    return results[0]


def works_in_any_mode(subject: ExplainerSubject) -> None:
    """Maps are the same under `no_grad`, `inference_mode`, other settings of torch, and in another thread."""
    network, images = subject.network(), random_images()
    expected = subject.explain(network, images)
    for mode, context in CONTEXTS.items():
        with context():
            actual = subject.explain_equivalent(f"under {mode}", network, images)
        require_same(actual, expected, f"under {mode}", "name the dtype and the grad mode that it needs", SIMILAR)
    actual = in_a_thread(partial(subject.explain_equivalent, "in another thread", network, images))
    require_same(actual, expected, "in another thread", "keep no state between calls")


class _Writes(nn.Module):
    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.network(images.mul_(0.5))


class _Halves(nn.Module):
    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.network(images * 0.5)


def takes_networks_that_write_in_place(subject: ExplainerSubject) -> None:
    """A network with in-place operations has the same map as an equal network without them."""
    images = random_images()
    pairs: list[tuple[nn.Module, nn.Module]] = [(_Writes(subject.network()).eval(), _Halves(subject.network()).eval())]
    if subject.build is convolutional:
        pairs = [(tiny_network(partial(convolutional, inplace=True)), subject.network())]
    for inplace, plain in pairs:
        expected = subject.explain(plain, images)
        actual = subject.explain_equivalent("to a network with in-place operations", inplace, images)
        require_same(actual, expected, "for a network with in-place operations", "clone what a hook reads", SIMILAR)


class _OneLogit(nn.Module):
    """The difference of the first two logits, or the logits of two classes with that difference."""

    def __init__(self, network: nn.Module, as_two: bool) -> None:
        super().__init__()
        self.network, self.as_two = network, as_two

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logit = self.network(images)[:, :1]
        return torch.cat([-logit / 2, logit / 2], 1) if self.as_two else logit


def takes_networks_of_one_logit(subject: ExplainerSubject) -> None:
    """One logit z has the same maps as two classes with the logits -z/2 and z/2."""
    images, targets = random_images(), torch.tensor([0, 1, 1, 0])
    single, two = (_OneLogit(subject.network(), as_two).eval() for as_two in (False, True))
    expected = subject.explain(two, images, targets)
    actual = subject.explain_equivalent("to a network of one logit", single, images, targets)
    require_same(actual, expected, "for a network of one logit", "explain the output that it is given", SIMILAR)


def explains_probabilities_or_says_no(subject: ExplainerSubject) -> None:
    """If the output is probabilities, the explainer returns their maps, or raises NotApplicable."""
    if not subject.uses_model:
        raise NotApplicable("it gets no network")
    network = subject.network()
    context = subject.context(network)
    output = nn.Sequential(network, nn.Softmax(-1)).eval()
    maps = subject.maps(replace(context, output=output))
    if any(
        tuple(values.shape) != (4, *context.images.shape[2:]) or not values.isfinite().all() for values in maps.values()
    ):
        raise RuleBroken("returned no maps of probabilities", "raise heatproof.errors.NotApplicable where it has none")
    require_other(maps, subject.maps(context), "as of logits", "explain `context.output` and not the network")


def says_where_it_does_not_apply(subject: ExplainerSubject) -> None:
    """On a network of another kind, the explainer returns maps, or raises NotApplicable with a sentence."""
    if subject.explainer.wraps is not None:
        raise NotApplicable("whatever a function of model, images and targets raises is the reason of a gap")
    networks_of_other_kinds: list[nn.Module] = [
        nn.Sequential(nn.Flatten(), nn.Linear(768, 3)),
        tiny_network(NETWORKS["plain_vit"]),
    ]
    for network in (other_network.eval().requires_grad_(False) for other_network in networks_of_other_kinds):
        try:
            subject.maps(subject.context(network))
        except NotApplicable as reason:
            if len(str(reason).split()) < 3:
                raise RuleBroken(f"said {str(reason)!r}", "say in words why it does not apply") from None
        except Exception as error:  # anything else is what the rule is about
            raise RuleBroken(
                f"raised {type(error).__name__} for a network that is not of its kind: {error}",
                "raise heatproof.errors.NotApplicable with the reason",
            ) from error


RULES = (
    returns_its_maps,
    has_its_announced_sign,
    leaves_its_inputs,
    leaves_earlier_maps,
    leaves_the_network,
    stays_in_eval_mode,
    leaves_the_process,
    leaves_no_file,
    is_repeatable,
    draws_by_image,
    does_not_depend_on_the_batch_size,
    does_not_depend_on_the_company,
    keeps_to_the_batch_size,
    follows_the_image,
    follows_the_target,
    follows_the_network,
    finds_the_evidence,
    takes_images_of_any_form,
    takes_images_of_any_memory,
    works_in_any_mode,
    takes_networks_that_write_in_place,
    takes_networks_of_one_logit,
    explains_probabilities_or_says_no,
    says_where_it_does_not_apply,
)

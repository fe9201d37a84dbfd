"""Rules that every explainer keeps."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn

from heatproof._testing.networks import (
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
from heatproof._testing.rules import RuleBroken
from heatproof._testing.subject import (
    CLOSE,
    SIMILAR,
    ExplainerSubject,
    distance,
    require_other,
    require_same,
    select_images,
    select_maps,
)
from heatproof._testing.surroundings import (
    difference,
    files_left_by,
    network_state,
    process_changes,
    restored_process,
    seed_everything,
)
from heatproof.errors import NotApplicable
from heatproof.models.state import enable_gradients, preserve_network

_EXEMPT = "declare exempt={'finds_the_evidence': 'why'}"
# Of images, and how many of each.
FORMS_OF_IMAGES = ((DEFAULT_FORM, 1), (Form(NON_SQUARE), 2), (Form(channels=1), 2), (Form(channels=4, classes=5), 2))


def returns_its_maps(subject: ExplainerSubject) -> None:
    """Maps are float32 tensors (N, H, W), finite and not constant, under the announced names."""
    explained = subject.given(subject.network())
    wanted = (len(explained.images), *explained.images.shape[2:])
    if subject.function is not None:
        with enable_gradients(), preserve_network(explained.network):
            own = subject.function(explained.network, explained.images.clone(), explained.targets.clone())
        own = own[0] if isinstance(own, list | tuple) and own else own
        kind = str(getattr(own, "dtype", type(own).__name__))
        if "float16" in kind:
            raise RuleBroken(f"returned maps in {kind}", "compute and return them in float32")
    maps = subject.maps(explained)
    announced = list(subject.maker.maps)
    if not isinstance(maps, Mapping) or list(maps) != announced:
        got = list(maps) if isinstance(maps, Mapping) else type(maps).__name__
        raise RuleBroken(f"returned {got}", f"return a dict with the maps {announced}")
    for name, one in maps.items():
        if not isinstance(one, torch.Tensor) or one.dtype != torch.float32:
            raise RuleBroken(
                f"returned {getattr(one, 'dtype', type(one).__name__)} for {name!r}", "return float32 tensors"
            )
        if tuple(one.shape) != wanted:
            raise RuleBroken(
                f"returned a map of shape {tuple(one.shape)} for {wanted}", "return one value for each pixel"
            )
        if not one.isfinite().all():
            raise RuleBroken(f"returned a value in {name!r} that is not finite", "find where it divides by zero")
        if one.requires_grad or one.is_inference():
            raise RuleBroken(f"returned {name!r} as a part of a graph", "detach it")
        if not (one.flatten(1).amax(1) > one.flatten(1).amin(1)).any():
            raise RuleBroken(
                f"returned {name!r} with one value everywhere", "raise NotApplicable where nothing is found"
            )


def has_its_announced_sign(subject: ExplainerSubject) -> None:
    """A map is negative somewhere, for one class at least, if and only if it is registered as signed."""
    if subject.entry is None:
        raise NotApplicable("nothing is announced of a function's sign")
    low: dict[str, float] = {}
    explained = subject.given(subject.network())
    for shift in range(3):
        for name, one in subject.found(replace(explained, targets=(explained.targets + shift) % 3)).items():
            low[name] = min(low.get(name, 0.0), float(one.min()))
    for name, signed in subject.entry.maps.items():
        if signed != (low[name] < 0):
            said = "signed, and is never negative" if signed else f"not signed, and has the value {low[name]:.2g}"
            raise RuleBroken(f"announced {name!r} as {said}", "register it with signed= or maps= as it is")


def leaves_its_inputs(subject: ExplainerSubject) -> None:
    """Images, targets and background are as before, and maps are no views of them, whatever the images' form."""
    for form, count in ((DEFAULT_FORM, 4), (DEFAULT_FORM, 1), (DEFAULT_FORM, 5), *FORMS_OF_IMAGES[1:]):
        explained = subject.given(subject.network(form), random_images(form, count))
        others = explained.background(32) if explained.background else None
        held = [one for one in (explained.images, explained.targets, others) if one is not None]
        before = [one.clone() for one in held]
        maps = subject.maps(explained)
        for name, one, copy in zip(("images", "targets", "background"), held, before, strict=False):
            if not torch.equal(one, copy) or one.requires_grad:
                shape = tuple(explained.images.shape)
                raise RuleBroken(
                    f"changed the {name}, at images {shape}", "write to a clone, and take gradients at a copy"
                )
            for key, values in maps.items():
                if values.untyped_storage().data_ptr() == one.untyped_storage().data_ptr():
                    raise RuleBroken(f"returned {key!r} as a view of the {name}", "return a clone")


def leaves_earlier_maps(subject: ExplainerSubject) -> None:
    """Maps stay as they are when other images are explained."""
    network = subject.network()
    maps = subject.maps(subject.given(network))
    before = {name: one.clone() for name, one in maps.items()}
    subject.maps(subject.given(network, random_images(seed=1)))
    if any(not torch.equal(maps[name], one) for name, one in before.items()):
        raise RuleBroken("changed maps that it had returned", "return new tensors and no buffer of its own")


def leaves_the_network(subject: ExplainerSubject) -> None:
    """Weights, buffers, gradients, modes, hooks and attributes of all modules are as before."""
    if not subject.uses_model:
        raise NotApplicable("it gets no network")
    network = subject.network()
    before = network_state(network)
    subject.maps(subject.given(network))
    if changed := difference(before, network_state(network)):
        raise RuleBroken(f"left these otherwise: {', '.join(changed)}", "undo it in a finally clause")


def stays_in_eval_mode(subject: ExplainerSubject) -> None:
    """No pass runs in training mode."""
    if not subject.uses_model:
        raise NotApplicable("it gets no network")
    network = subject.network()
    modes = []
    handles = [one.register_forward_pre_hook(lambda module, _: modes.append(module.training))
               for one in network.modules()]  # fmt: skip
    try:
        subject.maps(subject.given(network))
    finally:
        for handle in handles:
            handle.remove()
    if any(modes):
        raise RuleBroken("ran a part of the network in training mode", "leave the mode as it is")


def leaves_the_process(subject: ExplainerSubject) -> None:
    """Random states, modes and settings of torch, filters and loggers are as before."""
    explained = subject.given(subject.network())

    if changed := process_changes(lambda: subject.maker.function(explained, **subject.maker.options)):
        raise RuleBroken(
            f"left these otherwise: {', '.join(changed)}", "restore what it sets, and draw from its own seed"
        )


def leaves_no_file(subject: ExplainerSubject) -> None:
    """Nothing is written to the working folder, the home folder or the folder for temporary files."""
    explained = subject.given(subject.network())
    if left := files_left_by(lambda: subject.found(explained)):
        raise RuleBroken(f"left {', '.join(left)}", "remove what it writes, or write nothing")


def is_repeatable(subject: ExplainerSubject) -> None:
    """The same images, names and seed give the same maps, whatever the global random states."""
    explained, found = subject.given(subject.network()), []
    for seed in (1, 2):
        with restored_process():
            seed_everything(seed)
            found.append(subject.found(explained))
    remedy = "draw by image, with heatproof.base.randomness, or leave chance out"
    require_same(found[0], found[1], "in a second call", remedy, limit=0.0)


def draws_by_image(subject: ExplainerSubject) -> None:
    """What depends on the seed depends on the name of the image as well."""
    explained = subject.given(subject.network(), random_images(count=1).repeat(2, 1, 1, 1), image_ids=("one", "other"))
    explained = replace(explained, targets=torch.zeros(2, dtype=torch.long))
    maps = subject.found(explained)
    if distance(maps, subject.found(replace(explained, seed=1))) <= CLOSE:
        raise NotApplicable("it draws nothing")
    require_other(
        select_maps(maps, [0]), select_maps(maps, [1]), "for two names of one image", "seed what it draws by image_ids"
    )


def does_not_depend_on_the_batch_size(subject: ExplainerSubject) -> None:
    """Maps are the same for any number of images in a pass, but for rounding."""
    explained = subject.given(subject.network(), random_images(count=5))
    wanted = subject.found(explained)
    for size in (1, 3):
        found = subject.found(replace(explained, batch_size=size))
        require_same(found, wanted, f"with batch_size={size}", "reduce over images nowhere, and do not divide by N")


def does_not_depend_on_the_company(subject: ExplainerSubject) -> None:
    """An image has the same map alone, in another order, and among other images, but for rounding."""
    explained = subject.given(subject.network(), random_images(count=5))
    wanted, remedy = subject.found(explained), "reduce over images nowhere"
    for rows, what in (([3], "for an image alone"), ([4, 2, 0, 1, 3], "in another order"), ([1, 4], "in part")):
        require_same(subject.found(select_images(explained, rows)), select_maps(wanted, rows), what, remedy)


def keeps_to_the_batch_size(subject: ExplainerSubject) -> None:
    """No pass has more images than the batch size, but for the copy with which a single one may travel."""
    if not subject.uses_model:
        raise NotApplicable("it gets no network")
    network, sizes = subject.network(), []
    handle = network.register_forward_pre_hook(lambda _, inputs: sizes.append(len(inputs[0])))
    try:
        for size in (1, 3):
            sizes.clear()
            subject.found(subject.given(network, random_images(count=5), batch_size=size))
            if max(sizes, default=0) > max(size, 2):
                raise RuleBroken(f"passed {max(sizes)} images at once with batch_size={size}", "split what it passes")
    finally:
        handle.remove()


def follows_the_image(subject: ExplainerSubject) -> None:
    """Other pixels give another map, also where the tensor or the name is the same."""
    network = subject.network()
    images, others = random_images(), random_images(seed=1)
    wanted = subject.found(subject.given(network, others))
    require_other(subject.found(subject.given(network, images)), wanted, "for other images", "read the images")
    explained = subject.given(network, images.clone())
    with preserve_network(network):
        subject.maps(explained)
        explained.images.copy_(others)
        again = {name: one.detach().float() for name, one in subject.maps(explained).items()}
    require_same(again, wanted, "for a tensor that had other values before", "keep nothing between calls")


def follows_the_target(subject: ExplainerSubject) -> None:
    """Another class gives another map."""
    if not subject.uses_model:
        raise NotApplicable("it gets no network")
    explained = subject.given(subject.network())
    other = replace(explained, targets=(explained.targets + 1) % 3)
    remedy = "explain the output of the target, or declare exempt={'follows_the_target': 'why'}"
    require_other(subject.found(explained), subject.found(other), "for another class", remedy)


def follows_the_network(subject: ExplainerSubject) -> None:
    """Other weights give another map, also where they are loaded into the same network."""
    if not subject.uses_model:
        raise NotApplicable("it gets no network")
    network, other = subject.network(), subject.network(seed=1)
    wanted = subject.found(subject.given(other))
    require_other(subject.found(subject.given(network)), wanted, "for other weights", "read the network, or register "
                  "it with uses_model=False")  # fmt: skip
    network.load_state_dict(other.state_dict())
    found = subject.found(subject.given(network))
    require_same(found, wanted, "for a network that had other weights before", "keep nothing between calls")


def finds_the_evidence(subject: ExplainerSubject) -> None:
    """A map is higher where pixels raise the target's output, and not where they lower it or read nothing."""
    if not subject.uses_model:
        raise NotApplicable("it gets no network")
    network = evidence_network(subject.kind)
    if network is None:
        raise NotApplicable(f"no network of kind {subject.kind!r} with known evidence is at hand")
    images = evidence_images()
    if subject.entry is not None:
        signed = dict(subject.entry.maps)
    else:
        # A function says nothing of its sign but by its maps.
        seen = subject.found(subject.given(subject.network()))
        signed = {name: bool((one < 0).any() and (one > 0).any()) for name, one in seen.items()}
    # The second class speaks for the last channel, the third against the first one.
    for target, place, sign in ((0, 0, 1), (1, 1, 1), (2, 0, -1)):
        targets = torch.full((len(images),), target)
        for name, one in subject.found(subject.given(network, images, targets=targets)).items():
            if sign < 0 and not signed[name]:
                continue
            _require_inside(name, one, place, sign)


def _require_inside(name: str, maps: torch.Tensor, place: int, sign: int) -> None:
    rows, columns = BOXES[place]
    inside = torch.zeros(maps.shape[1:], dtype=torch.bool)
    inside[rows, columns] = True
    rest = torch.stack([maps[:, ~inside].mean(1), maps[:, inside.T].mean(1)]).amax(0)
    within, outside, scale = maps[:, inside].mean(1), maps[:, ~inside].mean(1), maps.abs().max() * CLOSE
    if sign < 0:
        if (within > outside + scale).any():
            raise RuleBroken(
                f"gave a higher {name!r} where pixels lower the output",
                f"keep the sign of the effect, return maps without signs, or {_EXEMPT}",
            )
        return
    if not (within > rest).all():
        raise RuleBroken(
            f"gave a mean of {within.min():.2g} to the pixels that raise the output, and of {rest.max():.2g} to others",
            "check its sign, the order of rows and columns, and that all channels are summed, or " + _EXEMPT,
        )
    for shift in ((0, 1), (0, -1), (1, 0), (-1, 0)):
        moved = maps[:, inside.roll(shift, (0, 1))].mean(1)
        # A sharp map that is off by a pixel gains a third; what is drawn gains less.
        if (moved - outside > 1.2 * (within - outside)).all():
            raise RuleBroken(f"gave a map that is off by {shift} pixels", "check how it is enlarged and padded")


def takes_images_of_any_form(subject: ExplainerSubject) -> None:
    """One image, images that are not square, one channel and several: a map of the images' size."""
    for form, count in FORMS_OF_IMAGES:
        explained = subject.given(subject.network(form), random_images(form, count))
        for name, one in subject.found(explained).items():
            if tuple(one.shape) != (count, *form.size) or not one.isfinite().all():
                raise RuleBroken(
                    f"returned {name!r} of shape {tuple(one.shape)} for images {tuple(explained.images.shape)}",
                    "return a finite value for each pixel",
                )


class Subclass(torch.Tensor):
    """A tensor of a class of its own, as data sets return."""


FORMS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "channels last": lambda images: images.to(memory_format=torch.channels_last),
    "no contiguous memory": lambda images: images.transpose(2, 3).contiguous().transpose(2, 3),
    "a part of a larger tensor": lambda images: torch.cat([images, images], 3)[..., : images.shape[3]],
    "gradients that are required": lambda images: images.clone().requires_grad_(),
    "a subclass of Tensor": lambda images: images.clone().as_subclass(Subclass),
    "inference mode": lambda images: _of_inference(images),
}
"""Odd forms of the same images."""


def _of_inference(images: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        return images.clone()


def takes_images_of_any_memory(subject: ExplainerSubject) -> None:
    """Images have the same map whatever their memory format, class, mode and gradients."""
    network, images = subject.network(), random_images()
    wanted = subject.explained(network, images)
    for what, change in FORMS.items():
        given = change(images)
        # Another memory format has other kernels, whose rounding moves ReLUs.
        found = subject.also(f"to images of {what}", network, given)
        require_same(found, wanted, f"for images of {what}", "compute on float32 copies", SIMILAR)
        if given.grad is not None:
            raise RuleBroken(f"left gradients on images of {what}", "take gradients at a copy")


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
    """Return what a call returns in another thread."""
    answer: list[Any] = []

    def run() -> None:
        try:
            answer.append(call())
        except Exception as error:  # handed to the thread that waits
            answer.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if isinstance(answer[0], Exception):
        raise answer[0]
    return answer[0]


def works_in_any_mode(subject: ExplainerSubject) -> None:
    """Maps are the same under `no_grad`, `inference_mode`, other settings of torch, and in another thread."""
    network, images = subject.network(), random_images()
    wanted = subject.explained(network, images)
    for what, context in CONTEXTS.items():
        with context():
            found = subject.also(f"under {what}", network, images)
        require_same(found, wanted, f"under {what}", "name the dtype and the grad mode that it needs", SIMILAR)
    found = in_a_thread(partial(subject.also, "in another thread", network, images))
    require_same(found, wanted, "in another thread", "keep no state between calls")


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
    """A network with in-place operations has the map of its twin without them."""
    images = random_images()
    pairs: list[tuple[nn.Module, nn.Module]] = [(_Writes(subject.network()).eval(), _Halves(subject.network()).eval())]
    if subject.build is convolutional:
        pairs = [(tiny_network(partial(convolutional, inplace=True)), subject.network())]
    for inplace, plain in pairs:
        wanted = subject.explained(plain, images)
        found = subject.also("to a network with in-place operations", inplace, images)
        require_same(found, wanted, "for a network with in-place operations", "clone what a hook reads", SIMILAR)


class _OneLogit(nn.Module):
    """The difference of the first two logits, or the logits of two classes that have it."""

    def __init__(self, network: nn.Module, as_two: bool) -> None:
        super().__init__()
        self.network, self.as_two = network, as_two

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logit = self.network(images)[:, :1]
        return torch.cat([-logit / 2, logit / 2], 1) if self.as_two else logit


def takes_networks_of_one_logit(subject: ExplainerSubject) -> None:
    """One logit z has the maps of two classes with the logits -z/2 and z/2."""
    images, targets = random_images(), torch.tensor([0, 1, 1, 0])
    one, two = (_OneLogit(subject.network(), as_two).eval() for as_two in (False, True))
    wanted = subject.explained(two, images, targets)
    found = subject.also("to a network of one logit", one, images, targets)
    require_same(found, wanted, "for a network of one logit", "explain the output that it is given", SIMILAR)


def explains_probabilities_or_says_no(subject: ExplainerSubject) -> None:
    """With probabilities as the output it returns their maps, or raises NotApplicable."""
    if not subject.uses_model:
        raise NotApplicable("it gets no network")
    network = subject.network()
    explained = subject.given(network)
    output = nn.Sequential(network, nn.Softmax(-1)).eval()
    found = subject.found(replace(explained, output=output))
    if any(tuple(one.shape) != (4, *explained.images.shape[2:]) or not one.isfinite().all() for one in found.values()):
        raise RuleBroken("returned no maps of probabilities", "raise heatproof.errors.NotApplicable where it has none")
    require_other(found, subject.found(explained), "as of logits", "explain `explained.output` and not the network")


def says_where_it_does_not_apply(subject: ExplainerSubject) -> None:
    """On a network that is not of its kind it returns maps, or raises NotApplicable with a sentence."""
    if subject.entry is None:
        raise NotApplicable("whatever a function of model, images and targets raises is the reason of a gap")
    strangers: list[nn.Module] = [nn.Sequential(nn.Flatten(), nn.Linear(768, 3)), tiny_network(NETWORKS["plain_vit"])]
    for network in (one.eval().requires_grad_(False) for one in strangers):
        try:
            subject.found(subject.given(network))
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

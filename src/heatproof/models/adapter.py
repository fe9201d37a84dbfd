"""The adapter between a network and everything that explains or scores it.

All functions of the API and all stages meet a network through this module, so that they cannot read one network in two
ways. It works by hooks on the network itself: layers keep their names, objects of other libraries that hold the network
see the same logits, and the traceback of an error in the network does not pass through here.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from heatproof.errors import HeatproofError, first_line, machine_fault
from heatproof.models.output_reader import OutputReader
from heatproof.models.reachable import check_eval_mode, reachable_modules
from heatproof.models.rounding import largest_difference, rounding
from heatproof.models.state import enable_gradients, exclusive_use, preserve_network, preserve_random_states

# Of the images that are passed in company; the first and the last of them alone as well.
FEW = 3
# By how much less the logits of one image may differ in two passes of the same size.
SAME = 1e-2
HALF = (torch.float16, torch.bfloat16)

# Of a target, of several, and what to do about one that there is not, by task.
NAMES = {
    "multiclass": ("class", "classes", "check the labels, and the model's number of classes"),
    "multilabel": ("label", "labels", "give targets (images, labels) of 1 and 0, or numbers of labels"),
    "regression": ("output", "outputs", "give targets that say which output is explained, and no labels"),
}

_checking: ContextVar[bool] = ContextVar("checking", default=False)


@contextmanager
def counted_as_check() -> Iterator[None]:
    """Count passes meanwhile as those of a check."""
    token = _checking.set(True)
    try:
        yield
    finally:
        _checking.reset(token)


def is_counted_as_check() -> bool:
    """Tell whether passes are those of a check now."""
    return _checking.get()


class CountPasses:
    """Count the images that pass through a network: for results in `images`, and for checks in `check_images`."""

    def __init__(self, network: nn.Module | None) -> None:
        self.images = 0
        self.check_images = 0
        self._handle = None if network is None else network.register_forward_pre_hook(self._count, with_kwargs=True)

    def close(self) -> None:
        """Leave the network as it was."""
        if self._handle is not None:
            self._handle.remove()

    def _count(self, module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        count = _count(inputs, named) or 0
        if is_counted_as_check():
            self.check_images += count
        else:
            self.images += count


@dataclass
class AdaptedNetwork:
    """A network that returns logits (B, K) for images (B, C, H, W), and what is known of it.

    Attributes
    ----------
    network
        The caller's own module with hooks, or a module that calls the caller's function.
    device
        Device of its parameters; that of the images where it has none.
    weights
        Precision of its first floating-point parameter; None where it has none.
    hooks
        What copies its inputs and reads its outputs.
    check_passes
        Images that went through the network in `check`.
    classes, logits
        Number of classes, and logits (B, K) of the few images that `check` passed; None before.
    gradients
        (B, C, H, W) of a sum of these logits where `check` was asked for them.
    """

    network: nn.Module
    device: torch.device
    weights: torch.dtype | None
    hooks: Hooks
    check_passes: int = 0
    classes: int | None = None
    logits: torch.Tensor | None = field(default=None, repr=False)
    gradients: torch.Tensor | None = field(default=None, repr=False)

    @property
    def dtype(self) -> torch.dtype:
        """Of images and gradients: float64 for a network of float64, else float32."""
        return torch.float64 if self.weights == torch.float64 else torch.float32

    @property
    def has_one_logit(self) -> bool:
        """Whether the network returns one logit for each image, which is read as two classes; known after `check`."""
        return self.hooks.has_one_logit

    @property
    def task(self) -> str:
        """One of `heatproof.base.tasks.TASKS`, or ``callable`` for a callable target; known after `check`."""
        return self.hooks.reader.task

    def copy_to_device(self, images: torch.Tensor) -> torch.Tensor:
        """Return a copy of images (B, C, H, W) on the network's device, in float32 where they are of half precision."""
        # An image made in inference mode can take no gradient, and a copy made outside of it can.
        return images.detach().to(self.device, torch.float32 if images.dtype in HALF else None, copy=True)

    def check_precision(self, images: torch.Tensor) -> None:
        """Refuse images of another precision than the weights; half precision takes float32 as well.

        Raises
        ------
        HeatproofError
            With what to write.
        """
        fits = self.weights in (None, images.dtype) or (self.weights in HALF and images.dtype == torch.float32)
        if not fits and self.hooks.autocast is None:
            raise HeatproofError(
                f"The images are {images.dtype} and the model's weights {self.weights}: give images.to({self.weights})."
            )

    def check(self, images: torch.Tensor, with_gradients: bool = False) -> torch.Tensor:
        """Pass a few images in company and alone, and return their logits (B, K).

        Parameters
        ----------
        images
            (B, C, H, W), at most `FEW` of them are passed.
        with_gradients
            Whether to find the gradients too.

        Raises
        ------
        HeatproofError
            If the network fails on the images, returns no logits, or returns others for an image alone than in the
            company of others, by more than rounding (`TOLERANCE` of the logits' spread).
        """
        few = self.copy_to_device(images[:FEW])
        count = len(few)
        if count == 1:
            # It is accompanied by two that are made of it, in its range and that of its darker shades.
            low, high = few.amin().clamp(max=0), few.amax().clamp(min=0)
            few = torch.cat([few, low + high - few, few.flip(-1) / 2])
        with counted_as_check(), torch.no_grad():
            with _Precisions() as met:
                together, gradients = (
                    self.outputs_and_gradients(few.flip(0)) if with_gradients else (self._pass(few.flip(0)), None)
                )
                together, gradients = together.flip(0), None if gradients is None else gradients.flip(0)[:count]
            first, last, again = (self._pass(part) for part in (few[:1], few[-1:], few[:1]))
        if first.shape[1] != together.shape[1] or first.shape != last.shape:
            raise HeatproofError(
                f"The model returns {together.shape[1]} logits for each image of a batch, and {first.shape[1]} for one "
                "alone: wrap it so that it returns one tensor of logits (images, classes)."
            )
        by_chance = largest_difference(again, first)
        if by_chance > self.rounding(together, met.dtypes, SAME):
            raise HeatproofError(_dependence(by_chance, True))
        difference = largest_difference(torch.cat([first, last]), together[[0, -1]])
        if difference > self.rounding(together, met.dtypes):
            raise HeatproofError(_dependence(difference, False))
        if (hooks := hooks_of(self.network)) is not None:
            hooks.precisions = frozenset({*met.dtypes, self.weights or self.dtype})
        self.classes, self.logits, self.gradients = together.shape[1], together[:count], gradients
        return self.logits

    def rounding(self, logits: torch.Tensor, met: Iterable[torch.dtype] = (), share: float = 1.0) -> float:
        """Return by how much an image's logits, of (B, K), may differ between two passes.

        Parameters
        ----------
        logits
            Of a few images.
        met
            Precisions that a pass computes in, beside that of the weights.
        share
            Of the tolerance.
        """
        return rounding(logits, {*met, self.weights or self.dtype}, self.device, share)

    def outputs_agree(self, now: torch.Tensor, then: torch.Tensor) -> bool:
        """Tell whether two tensors of logits (B, K) differ by rounding at most."""
        now, then = now.detach().cpu().double(), then.detach().cpu().double()
        return now.shape == then.shape and largest_difference(now, then) <= self.rounding(then)

    def outputs_and_gradients(
        self, images: torch.Tensor, targets: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the logits (B, K) of images, and the gradient of a sum of them; zeros where there is none.

        An attribute, a hook or a backward of one's own can leave logits and change gradients.

        Parameters
        ----------
        images
            (B, C, H, W).
        targets
            (B,) of a target function, whose number for each image is then all that is returned of it, (B, 1).
        """
        given = images.detach().clone().requires_grad_()
        gradients = None
        only_targets = nullcontext() if targets is None else self.hooks.reader.only_targets(targets.tolist())
        with torch.enable_grad(), only_targets:
            # Layers that write to their input cannot write to a leaf.
            logits = self._pass(given.clone())
            logits = logits if targets is None else logits.gather(1, targets[:, None])
            try:
                # Not of the plain sum, which is the same for all images where probabilities are returned.
                weights = torch.arange(1, logits.shape[1] + 1, device=logits.device, dtype=logits.dtype).cos()
                (gradients,) = torch.autograd.grad((logits * weights).sum(), given, allow_unused=True)
            except Exception as error:
                # A network can cut them off, or fail in a backward of its own.
                if machine_fault(error):
                    raise
        return logits.detach(), torch.zeros_like(given).detach() if gradients is None else gradients.detach()

    def _pass(self, images: torch.Tensor) -> torch.Tensor:
        self.check_passes += len(images)
        output: torch.Tensor = self.network(images)
        return output

    def check_targets(self, targets: torch.Tensor, ids: Sequence[str]) -> None:
        """Refuse targets (N,) that the network has no class for.

        Raises
        ------
        HeatproofError
            With the image, and the classes that there are.
        """
        assert self.classes is not None, "the network is checked first"
        outside = ((targets < 0) | (targets >= self.classes)).nonzero().flatten().tolist()
        if outside:
            one = ", as one output is read as those of two classes" if self.has_one_logit else ""
            called, many, remedy = NAMES.get(self.task, NAMES["multiclass"])
            raise HeatproofError(
                f"The target of image {ids[outside[0]]!r} is {called} {int(targets[outside[0]])}, but the model has "
                f"{many} 0 to {self.classes - 1}{one}: {remedy}."
            )


def check_network(network: AdaptedNetwork, images: torch.Tensor, with_gradients: bool = False) -> None:
    """Pass a few images (B, C, H, W), as `AdaptedNetwork.check` does, for a caller who has no log with a traceback.

    Raises
    ------
    HeatproofError
        As there, and whatever the network fails with in a sentence.
    """
    with _failures(images):
        network.check(images, with_gradients)


def _remedy(said: str) -> str:
    """Return what to do about what a network fails with."""
    if "size()[0]" in said:
        return (
            "it was exported for one size of batch, so give the network itself, or export it with "
            "dynamic_shapes=({0: torch.export.Dim('batch')},)"
        )
    return "give images that it takes"


@contextmanager
def _failures(images: torch.Tensor) -> Iterator[None]:
    """Say in a sentence what a network fails with on images."""
    try:
        yield
    except HeatproofError:
        raise
    except Exception as error:
        # A network of the caller's own can fail in any way.
        if machine_fault(error):
            raise
        said = f"{type(error).__name__}: {first_line(error)[:200]}"
        raise HeatproofError(
            f"The model fails on images of {tuple(images.shape[1:])} ({said}): {_remedy(said)}."
        ) from error


def check_loaded(network: nn.Module, images: torch.Tensor) -> int:
    """Check a network of a job, as `AdaptedNetwork.check` does, and return how many images it passed.

    Parameters
    ----------
    network
        In eval mode, with hooks of `attach`.
    images
        (B, C, H, W), a few.
    """
    return check_attached(network, images).check_passes


def check_attached(network: nn.Module, images: torch.Tensor) -> AdaptedNetwork:
    """Check a network with hooks of `attach`, as `AdaptedNetwork.check` does, and return what is known of it."""
    parameters = list(network.parameters())
    device = parameters[0].device if parameters else images.device
    hooks = hooks_of(network)
    assert hooks is not None, "`build_network` attached them"
    found = AdaptedNetwork(network, device, parameters[0].dtype if parameters else None, hooks)
    with compilation_disabled(network.modules()):
        found.check(images)
    return found


def predict_classes(network: AdaptedNetwork, images: torch.Tensor, batch_size: int = 64) -> torch.Tensor:
    """Return the class (N,) int64 that a network predicts for each image, on the CPU; no passes of results.

    Raises
    ------
    HeatproofError
        If images are of another precision than the weights, or the network fails on them.
    """
    network.check_precision(images)
    with _failures(images), counted_as_check(), torch.no_grad():
        network.check_passes += len(images)
        parts = [network.network(network.copy_to_device(part)).argmax(1).cpu() for part in images.split(batch_size)]
    return torch.cat(parts)


def logits_at(network: AdaptedNetwork, images: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the logits (N,) at the targets (N,) of one batch, on the CPU; no passes of results."""
    with _failures(images), counted_as_check(), torch.no_grad():
        network.check_passes += len(images)
        return network.network(network.copy_to_device(images)).cpu().gather(1, targets.cpu()[:, None])[:, 0]


def count_outputs(network: AdaptedNetwork, image: torch.Tensor) -> int:
    """Return how many numbers a network returns for an image (1, C, H, W); the pass is one of a check.

    Raises
    ------
    HeatproofError
        As `predict_classes` does.
    """
    network.check_precision(image)
    with _failures(image), counted_as_check(), torch.no_grad():
        network.check_passes += 1
        numbers: torch.Tensor = network.network(network.copy_to_device(image))
    return numbers.shape[1]


class _Precisions(TorchDispatchMode):
    """Finds the precisions in which a pass computes, whatever its weights and outputs are of."""

    def __init__(self) -> None:
        super().__init__()
        self.dtypes: set[torch.dtype] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if func.namespace == "quantized":
            # Eight bits, of a range that is that of the batch.
            self.dtypes.add(torch.bfloat16)
        for one in made if isinstance(made, tuple | list) else (made,):
            if isinstance(one, torch.Tensor) and one.dtype in HALF:
                self.dtypes.add(one.dtype)
        return made


def _dependence(difference: float, by_chance: bool) -> str:
    if by_chance:
        return (
            f"The model answers the same image in two ways, by up to {difference:.2g}: leave out what draws random "
            "numbers or keeps a state in eval mode."
        )
    return (
        f"The model answers an image otherwise alone than in a batch with others, by up to {difference:.2g}: leave out "
        "what depends on the batch, such as a batch norm without running statistics."
    )


@contextmanager
def adapt_network(
    model: Any, images: Any, seed: int | None = None, reader: OutputReader | None = None
) -> Iterator[AdaptedNetwork]:
    """Adapt a caller's network for a call, and leave it, random states and the grad mode as they were.

    Other threads wait where they would explain or score the same network.

    Parameters
    ----------
    model
        A module, or a function of images, in eval mode in all parts that can be found.
    images
        Images that it is given; the device of a tensor is that of a network without parameters.
    seed
        What foreign code draws from meanwhile; None leaves it to the global random states.
    reader
        What is read of its output; by default logits of classes.

    Raises
    ------
    HeatproofError
        If a part is in training mode or is not initialised.
    """
    model = uncompiled(model)
    modules = list(dict.fromkeys(module for _, module in reachable_modules(model)))
    with ExitStack() as stack:
        stack.enter_context(exclusive_use(modules))
        check_eval_mode(model)
        _check_initialised(model)
        stack.enter_context(enable_gradients())
        stack.enter_context(preserve_random_states(seed))
        for one in (model, *([reader.function] if reader is not None and reader.function is not None else [])):
            stack.enter_context(preserve_network(one))
        stack.enter_context(compilation_disabled(modules))
        network = model if _takes_hooks(model) else _Called(model)
        placed = images.device if isinstance(images, torch.Tensor) else None
        found = attach(network, modules, placed, reader=reader, thread=threading.get_ident())
        stack.callback(found.hooks.remove)
        if (kind := found.device.type) and torch.is_autocast_enabled(kind):
            # Of the caller: it is for the network, and not for sums of its outputs.
            found.hooks.autocast = torch.get_autocast_dtype(kind)
            stack.enter_context(torch.autocast(kind, enabled=False))
        yield found


def attach(
    network: nn.Module,
    modules: Sequence[nn.Module] | None = None,
    device: torch.device | None = None,
    *,
    reader: OutputReader | None = None,
    thread: int | None = None,
) -> AdaptedNetwork:
    """Let a network take copies of its inputs, and return numbers (B, K) whatever its output is.

    Parameters
    ----------
    network
        It gets the hooks.
    modules
        All that it runs, where it does not hold these.
    device
        Taken where it has no parameters.
    reader
        What is read of its output; by default logits of classes.
    thread
        The only thread whose passes are changed; None for all.
    """
    every = modules if modules is not None else list(network.modules())
    parameters = [one for module in every for one in module.parameters(recurse=False)]
    weights = next((one.dtype for one in parameters if one.is_floating_point()), None)
    hooks = Hooks(reader or OutputReader(), thread, weights if weights in HALF else None)
    hooks.handles = [
        network.register_forward_pre_hook(hooks.copy, with_kwargs=True, prepend=True),
        network.register_forward_hook(hooks.read, with_kwargs=True),
        network.register_forward_hook(hooks.leave, always_call=True),
    ]
    found = parameters[0].device if parameters else device or torch.device("cpu")
    return AdaptedNetwork(network, found, weights, hooks)


def uncompiled(model: Any) -> Any:
    """Return the network that `torch.compile` was given, whose layers can be read; anything else as it is."""
    parts = getattr(model, "_modules", None)
    # A scripted module has another kind of dict.
    return parts.get("_orig_mod", model) if isinstance(parts, dict) else model


def compilation_disabled(modules: Iterable[nn.Module]) -> AbstractContextManager[Any]:
    """Run modules as they are written, also those that are compiled: hooks would compile them anew."""
    compiled = any(module._compiled_call_impl or "_orig_mod" in module._modules for module in modules)
    return torch.compiler.set_stance("force_eager") if compiled else nullcontext()


def hooks_of(network: nn.Module) -> Hooks | None:
    """Return the hooks that read a network's output for the call, or the job, that is under way; None for none."""
    for hook in network._forward_pre_hooks.values():
        if isinstance(owner := getattr(hook, "__self__", None), Hooks):
            return owner
    return None


def reader_of(network: Any) -> OutputReader | None:
    """Return what reads a network's output, also of one that others wrap; None where it has no hooks of `attach`."""
    while network is not None:
        if isinstance(network, nn.Module) and (hooks := hooks_of(network)) is not None:
            return hooks.reader
        network = getattr(network, "network", None)
    return None


class Hooks:
    """Hooks of a network that copy what goes in, and read what comes out.

    Attributes
    ----------
    reader, thread
        See `attach`.
    half
        Precision of the weights where it is half: images of float32 are cast.
    autocast
        Precision of the caller's autocast, in which passes run; None for none.
    found
        What was found of the network since they were attached, which is when the call began, or when a job built it:
        of an object that the caller can change, nothing is remembered for longer.
    precisions
        In which the last check computed; empty before.
    """

    def __init__(self, reader: OutputReader, thread: int | None, half: torch.dtype | None) -> None:
        self.reader, self.thread, self.half = reader, thread, half
        self.autocast: torch.dtype | None = None
        self.handles: list[Any] = []
        self.found: dict[Any, Any] = {}
        self.precisions: frozenset[torch.dtype] = frozenset()
        self._running: list[torch.autocast] = []

    def remove(self) -> None:
        """Leave the network without these hooks."""
        for handle in self.handles:
            handle.remove()

    def copy(self, module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Give the network copies, because it may write to its input, as a ReLU in place does."""
        if self._is_another_thread():
            return None
        if self.autocast is not None:
            first = next(one for one in (*inputs, *named.values()) if isinstance(one, torch.Tensor))
            self._running.append(torch.autocast(first.device.type, self.autocast))
            self._running[-1].__enter__()
        return tuple(map(self._own, inputs)), {name: self._own(value) for name, value in named.items()}

    def read(self, module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any], output: Any) -> Any:
        """Return the numbers of an output."""
        if self._is_another_thread():
            return None
        first = _first(inputs, named)
        return self.reader.read(output, *((None, None) if first is None else (len(first), first.device)))

    @property
    def has_one_logit(self) -> bool:
        """Whether the last output was one logit for each image."""
        return self.reader.has_one_logit

    def leave(self, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        """End the autocast of a pass, also of one that fails."""
        if self._running and not self._is_another_thread():
            self._running.pop().__exit__(None, None, None)

    def _is_another_thread(self) -> bool:
        return self.thread is not None and threading.get_ident() != self.thread

    def _own(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        cast = self.half is not None and value.dtype == torch.float32
        return value.to(self.half) if cast else value.clone()


def _count(inputs: Sequence[Any], named: dict[str, Any]) -> int | None:
    """Return the number of images that a pass was given; None where no tensor was."""
    first = _first(inputs, named)
    return None if first is None else len(first)


def _first(inputs: Sequence[Any], named: dict[str, Any]) -> torch.Tensor | None:
    return next((one for one in (*inputs, *named.values()) if isinstance(one, torch.Tensor) and one.ndim), None)


def _takes_hooks(model: Any) -> bool:
    return isinstance(model, nn.Module) and not isinstance(model, torch.jit.ScriptModule)


class _Called(nn.Module):
    """A module that calls a function of images, or a scripted module, which takes no hooks."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function
        self.eval()

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Return what the function returns."""
        return self.function(*inputs, **named)


def _check_initialised(model: Any) -> None:
    for name, module in reachable_modules(model):
        if any(isinstance(one, nn.parameter.UninitializedParameter) for one in module.parameters(recurse=False)):
            raise HeatproofError(
                f"Part {name!r} of the model ({type(module).__name__}) has no weights yet: pass one batch through it."
            )

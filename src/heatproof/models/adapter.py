"""Adapter between a network and the code that explains or scores it.

All functions of the API and all stages access a network through this module, so that they cannot read the same network
in two ways. The adapter consists of hooks on the network itself: layers keep their names, objects of other libraries
that hold the network get the same logits, and the traceback of an error in the network does not include this module.
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
from heatproof.models.preserve import enable_gradients, exclusive_use, preserve_network, preserve_random_states
from heatproof.models.reachable import check_eval_mode, reachable_modules
from heatproof.models.rounding import largest_difference, rounding_tolerance

# Images that a check passes together; it passes the first and the last of them alone as well.
CHECKED_IMAGES = 3
# Factor of the tolerance for two passes of the same batch size.
SAME_SIZE_SHARE = 1e-2
HALF = (torch.float16, torch.bfloat16)

# Singular, plural, and the remedy for a target that does not exist, by task.
TARGET_NAMES = {
    "multiclass": ("class", "classes", "check the labels, and the model's number of classes"),
    "multilabel": ("label", "labels", "give targets (images, labels) of 1 and 0, or numbers of labels"),
    "regression": ("output", "outputs", "give targets that say which output is explained, and no labels"),
}

_checking: ContextVar[bool] = ContextVar("checking", default=False)


@contextmanager
def counted_as_check() -> Iterator[None]:
    """Count the passes inside this context as passes of a check."""
    token = _checking.set(True)
    try:
        yield
    finally:
        _checking.reset(token)


def is_counted_as_check() -> bool:
    """Return whether passes are currently counted as passes of a check."""
    return _checking.get()


class CountPasses:
    """Count the images that pass through a network: for results in `images`, and for checks in `check_images`."""

    def __init__(self, network: nn.Module | None) -> None:
        self.images = 0
        self.check_images = 0
        self._handle = None if network is None else network.register_forward_pre_hook(self._count, with_kwargs=True)

    def close(self) -> None:
        """Remove the hook from the network."""
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
    """A network that returns logits (B, K) for images (B, C, H, W), and facts about it.

    Attributes
    ----------
    network
        The caller's module with hooks, or a module that calls the caller's function.
    device
        Device of its parameters; if it has none, device of the images.
    weights
        Precision of its first floating-point parameter; None if it has none.
    hooks
        Hooks that copy its inputs and read its outputs.
    check_passes
        Number of images that checks passed through the network.
    classes, logits
        Number of classes, and logits (B, K) of the images that `check` passed; None before `check`.
    gradients
        (B, C, H, W), gradients of a sum of these logits, if `check` computed them.
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
        """Dtype of images and gradients: float64 if the network is float64, else float32."""
        return torch.float64 if self.weights == torch.float64 else torch.float32

    @property
    def has_one_logit(self) -> bool:
        """Whether the network returns one logit per image, which is read as two classes; known after `check`."""
        return self.hooks.has_one_logit

    @property
    def task(self) -> str:
        """One of `heatproof.base.tasks.TASKS`, or ``callable`` for a callable target; known after `check`."""
        return self.hooks.reader.task

    def copy_to_device(self, images: torch.Tensor) -> torch.Tensor:
        """Return a copy of images (B, C, H, W) on the network's device, in float32 if they have half precision."""
        # A tensor made in inference mode cannot require gradients, but a copy made outside of it can.
        return images.detach().to(self.device, torch.float32 if images.dtype in HALF else None, copy=True)

    def check_precision(self, images: torch.Tensor) -> None:
        """Refuse images of another precision than the weights; half precision accepts float32 as well.

        Raises
        ------
        HeatproofError
            If the precisions differ; the message has the conversion to write.
        """
        fits = self.weights in (None, images.dtype) or (self.weights in HALF and images.dtype == torch.float32)
        if not fits and self.hooks.autocast is None:
            raise HeatproofError(
                f"The images are {images.dtype} and the model's weights {self.weights}: give images.to({self.weights})."
            )

    def check(self, images: torch.Tensor, with_gradients: bool = False) -> torch.Tensor:
        """Pass a few images together and alone, and return their logits (B, K).

        Parameters
        ----------
        images
            (B, C, H, W); at most `CHECKED_IMAGES` of them are passed.
        with_gradients
            Whether to compute gradients as well.

        Raises
        ------
        HeatproofError
            If the network fails on the images, returns no logits, or returns logits for an image alone that differ from
            those in a batch by more than rounding (`TOLERANCE` of the logits' spread).
        """
        sample = self.copy_to_device(images[:CHECKED_IMAGES])
        count = len(sample)
        if count == 1:
            # Two variants of the image complete the batch: its inverse within its range, and a darker mirror image.
            low, high = sample.amin().clamp(max=0), sample.amax().clamp(min=0)
            sample = torch.cat([sample, low + high - sample, sample.flip(-1) / 2])
        with counted_as_check(), torch.no_grad():
            with _Precisions() as precisions_met:
                batch = sample.flip(0)
                in_batch, gradients = self.outputs_and_gradients(batch) if with_gradients else (self._pass(batch), None)
                in_batch, gradients = in_batch.flip(0), None if gradients is None else gradients.flip(0)[:count]
            first, last, again = (self._pass(part) for part in (sample[:1], sample[-1:], sample[:1]))
        if first.shape[1] != in_batch.shape[1] or first.shape != last.shape:
            raise HeatproofError(
                f"The model returns {in_batch.shape[1]} logits for each image of a batch, and {first.shape[1]} for one "
                "alone: wrap it so that it returns one tensor of logits (images, classes)."
            )
        chance_difference = largest_difference(again, first)
        if chance_difference > self.rounding_tolerance(in_batch, precisions_met.dtypes, SAME_SIZE_SHARE):
            raise HeatproofError(_dependence(chance_difference, True))
        difference = largest_difference(torch.cat([first, last]), in_batch[[0, -1]])
        if difference > self.rounding_tolerance(in_batch, precisions_met.dtypes):
            raise HeatproofError(_dependence(difference, False))
        if (hooks := hooks_of(self.network)) is not None:
            hooks.precisions = frozenset({*precisions_met.dtypes, self.weights or self.dtype})
        self.classes, self.logits, self.gradients = in_batch.shape[1], in_batch[:count], gradients
        return self.logits

    def rounding_tolerance(
        self, logits: torch.Tensor, precisions: Iterable[torch.dtype] = (), share: float = 1.0
    ) -> float:
        """Return by how much logits (B, K) may differ between two passes, as `heatproof.models.rounding` does.

        A pass computes in `precisions`, in addition to the precision of the weights; `share` multiplies the tolerance.
        """
        return rounding_tolerance(logits, {*precisions, self.weights or self.dtype}, self.device, share)

    def outputs_agree(self, now: torch.Tensor, then: torch.Tensor) -> bool:
        """Return whether two tensors of logits (B, K) differ by rounding at most."""
        now, then = now.detach().cpu().double(), then.detach().cpu().double()
        return now.shape == then.shape and largest_difference(now, then) <= self.rounding_tolerance(then)

    def outputs_and_gradients(
        self, images: torch.Tensor, targets: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the logits (B, K) of images and the gradient of a sum of them, zeros if there is no gradient.

        A custom attribute, hook or backward pass can change gradients without changing logits.

        Parameters
        ----------
        images
            (B, C, H, W).
        targets
            (B,) numbers of targets of a target function; only the value of each image at its target is then returned,
            (B, 1).
        """
        inputs = images.detach().clone().requires_grad_()
        gradients = None
        only_targets = nullcontext() if targets is None else self.hooks.reader.only_targets(targets.tolist())
        with torch.enable_grad(), only_targets:
            # Layers that work in place cannot write to a leaf tensor.
            logits = self._pass(inputs.clone())
            logits = logits if targets is None else logits.gather(1, targets[:, None])
            try:
                # A plain sum is constant if the network returns probabilities, so the weights differ.
                weights = torch.arange(1, logits.shape[1] + 1, device=logits.device, dtype=logits.dtype).cos()
                (gradients,) = torch.autograd.grad((logits * weights).sum(), inputs, allow_unused=True)
            except Exception as error:
                # A network can detach gradients, or fail in a custom backward pass.
                if machine_fault(error):
                    raise
        return logits.detach(), torch.zeros_like(inputs).detach() if gradients is None else gradients.detach()

    def _pass(self, images: torch.Tensor) -> torch.Tensor:
        self.check_passes += len(images)
        output: torch.Tensor = self.network(images)
        return output

    def check_targets(self, targets: torch.Tensor, ids: Sequence[str]) -> None:
        """Refuse targets (N,) that the network has no class for.

        Raises
        ------
        HeatproofError
            If there is one; the message names the image and the valid classes.
        """
        assert self.classes is not None, "the network is checked first"
        outside = ((targets < 0) | (targets >= self.classes)).nonzero().flatten().tolist()
        if outside:
            note = ", as one output is read as those of two classes" if self.has_one_logit else ""
            singular, plural, remedy = TARGET_NAMES.get(self.task, TARGET_NAMES["multiclass"])
            raise HeatproofError(
                f"The target of image {ids[outside[0]]!r} is {singular} {int(targets[outside[0]])}, but the model has "
                f"{plural} 0 to {self.classes - 1}{note}: {remedy}."
            )


def check_network(network: AdaptedNetwork, images: torch.Tensor, with_gradients: bool = False) -> None:
    """Check a network as `AdaptedNetwork.check` does, for callers that have no log with tracebacks.

    Raises
    ------
    HeatproofError
        As in `AdaptedNetwork.check`; any other exception of the network becomes one as well.
    """
    with _failures(images):
        network.check(images, with_gradients)


def _remedy(description: str) -> str:
    """Return the remedy for an exception of a network."""
    if "size()[0]" in description:
        return (
            "it was exported for one size of batch, so give the network itself, or export it with "
            "dynamic_shapes=({0: torch.export.Dim('batch')},)"
        )
    return "give images that it takes"


@contextmanager
def _failures(images: torch.Tensor) -> Iterator[None]:
    """Turn an exception of the network into a HeatproofError of one sentence."""
    try:
        yield
    except HeatproofError:
        raise
    except Exception as error:
        # The caller's network can raise any exception.
        if machine_fault(error):
            raise
        description = f"{type(error).__name__}: {first_line(error)[:200]}"
        raise HeatproofError(
            f"The model fails on images of {tuple(images.shape[1:])} ({description}): {_remedy(description)}."
        ) from error


def check_loaded(network: nn.Module, images: torch.Tensor) -> int:
    """Check the network of a job on a few images (B, C, H, W), and return the number of images passed.

    The network is in eval mode and has the hooks of `attach`. The check is that of `AdaptedNetwork.check`.
    """
    return check_attached(network, images).check_passes


def check_attached(network: nn.Module, images: torch.Tensor) -> AdaptedNetwork:
    """Check a network that has the hooks of `attach`, as `AdaptedNetwork.check` does, and return the result."""
    parameters = list(network.parameters())
    device = parameters[0].device if parameters else images.device
    hooks = hooks_of(network)
    assert hooks is not None, "`build_network` attached them"
    adapted = AdaptedNetwork(network, device, parameters[0].dtype if parameters else None, hooks)
    with compilation_disabled(network.modules()):
        adapted.check(images)
    return adapted


def predict_classes(network: AdaptedNetwork, images: torch.Tensor, batch_size: int = 64) -> torch.Tensor:
    """Return the predicted class (N,) int64 of each image, on the CPU; the passes count as passes of a check.

    Raises
    ------
    HeatproofError
        If images have another precision than the weights, or the network fails on them.
    """
    network.check_precision(images)
    with _failures(images), counted_as_check(), torch.no_grad():
        network.check_passes += len(images)
        parts = [network.network(network.copy_to_device(part)).argmax(1).cpu() for part in images.split(batch_size)]
    return torch.cat(parts)


def logits_at(network: AdaptedNetwork, images: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the logits (N,) of one batch at the targets (N,), on the CPU; the passes count as passes of a check."""
    with _failures(images), counted_as_check(), torch.no_grad():
        network.check_passes += len(images)
        return network.network(network.copy_to_device(images)).cpu().gather(1, targets.cpu()[:, None])[:, 0]


def count_outputs(network: AdaptedNetwork, image: torch.Tensor) -> int:
    """Return how many numbers a network returns for an image (1, C, H, W); the pass counts as a pass of a check.

    Raises
    ------
    HeatproofError
        As in `predict_classes`.
    """
    network.check_precision(image)
    with _failures(image), counted_as_check(), torch.no_grad():
        network.check_passes += 1
        numbers: torch.Tensor = network.network(network.copy_to_device(image))
    return numbers.shape[1]


class _Precisions(TorchDispatchMode):
    """Record the precisions in which a pass computes, whatever the dtypes of weights and outputs are."""

    def __init__(self) -> None:
        super().__init__()
        self.dtypes: set[torch.dtype] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        outputs = func(*args, **(kwargs or {}))
        if func.namespace == "quantized":
            # Quantised layers compute with eight bits, scaled to the range of the batch.
            self.dtypes.add(torch.bfloat16)
        for output in outputs if isinstance(outputs, tuple | list) else (outputs,):
            if isinstance(output, torch.Tensor) and output.dtype in HALF:
                self.dtypes.add(output.dtype)
        return outputs


def _dependence(difference: float, by_chance: bool) -> str:
    if by_chance:
        return (
            f"The model returns different outputs for the same image, by up to {difference:.2g}: remove parts that "
            "draw random numbers or store state in eval mode."
        )
    return (
        f"The model returns other outputs for an image alone than in a batch, by up to {difference:.2g}: remove parts "
        "that depend on the batch, such as a batch norm without running statistics."
    )


@contextmanager
def adapt_network(
    model: Any, images: Any, seed: int | None = None, reader: OutputReader | None = None
) -> Iterator[AdaptedNetwork]:
    """Adapt a caller's network for the duration of a call; restore it, random states and the grad mode afterwards.

    Other threads wait if they would explain or score the same network.

    Parameters
    ----------
    model
        A module, or a function of images; all its modules that can be found must be in eval mode.
    images
        Input images; if the network has no parameters, the device of this tensor is used.
    seed
        Seed of the global random states inside the context; None leaves them unchanged.
    reader
        Reader of the network's output; None reads logits of classes.

    Raises
    ------
    HeatproofError
        If a module is in training mode or is not initialised.
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
        network = model if _supports_hooks(model) else _CallableModule(model)
        device = images.device if isinstance(images, torch.Tensor) else None
        adapted = attach(network, modules, device, reader=reader, thread=threading.get_ident())
        stack.callback(adapted.hooks.remove)
        if (device_type := adapted.device.type) and torch.is_autocast_enabled(device_type):
            # The caller's autocast applies to the network, not to sums of its outputs.
            adapted.hooks.autocast = torch.get_autocast_dtype(device_type)
            stack.enter_context(torch.autocast(device_type, enabled=False))
        yield adapted


def attach(
    network: nn.Module,
    modules: Sequence[nn.Module] | None = None,
    device: torch.device | None = None,
    *,
    reader: OutputReader | None = None,
    thread: int | None = None,
) -> AdaptedNetwork:
    """Attach hooks to a network, so that it gets copies of its inputs and returns numbers (B, K) for any output.

    Parameters
    ----------
    network
        Network that gets the hooks.
    modules
        All modules that it runs, if they are not its submodules.
    device
        Device to use if the network has no parameters.
    reader
        Reader of the network's output; None reads logits of classes.
    thread
        The only thread whose passes are changed; None for all threads.
    """
    all_modules = modules if modules is not None else list(network.modules())
    parameters = [one for module in all_modules for one in module.parameters(recurse=False)]
    weights = next((one.dtype for one in parameters if one.is_floating_point()), None)
    hooks = Hooks(reader or OutputReader(), thread, weights if weights in HALF else None)
    hooks.handles = [
        network.register_forward_pre_hook(hooks.copy_inputs, with_kwargs=True, prepend=True),
        network.register_forward_hook(hooks.read_output, with_kwargs=True),
        network.register_forward_hook(hooks.end_autocast, always_call=True),
    ]
    network_device = parameters[0].device if parameters else device or torch.device("cpu")
    return AdaptedNetwork(network, network_device, weights, hooks)


def uncompiled(model: Any) -> Any:
    """Return the network that was passed to `torch.compile`, whose layers can be read; other objects unchanged."""
    parts = getattr(model, "_modules", None)
    # `_modules` of a scripted module is not a dict.
    return parts.get("_orig_mod", model) if isinstance(parts, dict) else model


def compilation_disabled(modules: Iterable[nn.Module]) -> AbstractContextManager[Any]:
    """Run compiled modules uncompiled inside this context, because hooks would compile them again."""
    compiled = any(module._compiled_call_impl or "_orig_mod" in module._modules for module in modules)
    return torch.compiler.set_stance("force_eager") if compiled else nullcontext()


def hooks_of(network: nn.Module) -> Hooks | None:
    """Return the hooks that read the output of a network during the current call or job, or None."""
    for hook in network._forward_pre_hooks.values():
        if isinstance(owner := getattr(hook, "__self__", None), Hooks):
            return owner
    return None


def reader_of(network: Any) -> OutputReader | None:
    """Return the reader of a network's output, also if other objects wrap the network; None without hooks."""
    while network is not None:
        if isinstance(network, nn.Module) and (hooks := hooks_of(network)) is not None:
            return hooks.reader
        network = getattr(network, "network", None)
    return None


class Hooks:
    """Hooks that copy the inputs of a network and read its output.

    Attributes
    ----------
    reader, thread
        See `attach`.
    half
        Precision of the weights if it is half; float32 images are then cast to it.
    autocast
        Precision of the caller's autocast, in which passes run; None for none.
    cache
        Facts about the network that were found since the hooks were attached. They are not stored for longer than one
        call or job, because the caller can change the network between calls.
    precisions
        Precisions in which the last check computed; empty before the first.
    """

    def __init__(self, reader: OutputReader, thread: int | None, half: torch.dtype | None) -> None:
        self.reader, self.thread, self.half = reader, thread, half
        self.autocast: torch.dtype | None = None
        self.handles: list[Any] = []
        self.cache: dict[Any, Any] = {}
        self.precisions: frozenset[torch.dtype] = frozenset()
        self._running: list[torch.autocast] = []

    def remove(self) -> None:
        """Remove the hooks from the network."""
        for handle in self.handles:
            handle.remove()

    def copy_inputs(self, module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Return copies of the inputs, because a network may write to them, as an in-place ReLU does."""
        if self._is_another_thread():
            return None
        if self.autocast is not None:
            first = next(one for one in (*inputs, *named.values()) if isinstance(one, torch.Tensor))
            self._running.append(torch.autocast(first.device.type, self.autocast))
            self._running[-1].__enter__()
        return tuple(map(self._copy, inputs)), {name: self._copy(value) for name, value in named.items()}

    def read_output(self, module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any], output: Any) -> Any:
        """Return the numbers of an output."""
        if self._is_another_thread():
            return None
        first = _first_tensor(inputs, named)
        return self.reader.read(output, *((None, None) if first is None else (len(first), first.device)))

    @property
    def has_one_logit(self) -> bool:
        """Whether the last output was one logit per image."""
        return self.reader.has_one_logit

    def end_autocast(self, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        """End the autocast of a pass, even if the pass failed."""
        if self._running and not self._is_another_thread():
            self._running.pop().__exit__(None, None, None)

    def _is_another_thread(self) -> bool:
        return self.thread is not None and threading.get_ident() != self.thread

    def _copy(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        cast = self.half is not None and value.dtype == torch.float32
        return value.to(self.half) if cast else value.clone()


def _count(inputs: Sequence[Any], named: dict[str, Any]) -> int | None:
    """Return the number of images in the inputs of a pass; None if they contain no tensor."""
    first = _first_tensor(inputs, named)
    return None if first is None else len(first)


def _first_tensor(inputs: Sequence[Any], named: dict[str, Any]) -> torch.Tensor | None:
    return next((one for one in (*inputs, *named.values()) if isinstance(one, torch.Tensor) and one.ndim), None)


def _supports_hooks(model: Any) -> bool:
    return isinstance(model, nn.Module) and not isinstance(model, torch.jit.ScriptModule)


class _CallableModule(nn.Module):
    """Module that calls a function of images, or a scripted module, which cannot have hooks."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function
        self.eval()

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Return the output of the function."""
        return self.function(*inputs, **named)


def _check_initialised(model: Any) -> None:
    for name, module in reachable_modules(model):
        if any(isinstance(one, nn.parameter.UninitializedParameter) for one in module.parameters(recurse=False)):
            raise HeatproofError(
                f"Part {name!r} of the model ({type(module).__name__}) has no weights yet: pass one batch through it."
            )

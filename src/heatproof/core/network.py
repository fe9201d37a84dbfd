"""Adapter between a network and the code that explains or scores it.

All functions of the API and all stages access a network through this module, so that they cannot read the same network
in two ways. The adapter consists of hooks on the network itself: layers keep their names, objects of other libraries
that hold the network get the same logits, and the traceback of an error in the network does not include this module.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import InitVar, dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn

from heatproof.core.adaptive_batch_size import AdaptiveBatchSize, Attempt, StoredBatchSizes
from heatproof.core.callables import CallableModule, as_module, check_eval_mode, check_initialised, modules_named_by
from heatproof.core.hooks import Hooks, counted_as_check, hooks_of, reader_of
from heatproof.core.output_reader import OutputReader
from heatproof.core.pass_records import (
    HALF,
    PrecisionsMet,
    check_operators,
    check_outputs,
    check_registered,
    check_tensors,
)
from heatproof.core.rounding import largest_difference, rounding_tolerance
from heatproof.core.state import (
    ModuleContents,
    NetworkState,
    enable_gradients,
    exclusive_use,
    preserve_modes,
    preserve_random_states,
    without_reentrant_checkpoints,
)
from heatproof.errors import HeatproofError, first_line, machine_fault

# Images that a check passes together; it passes the first and the last of them alone as well.
CHECKED_IMAGES = 3
# Factor of the tolerance for two passes of the same batch size.
SAME_SIZE_SHARE = 1e-2


@dataclass
class Network:
    """Any torch module of a caller or of a job, adapted once; it counts its passes, and is left as it was.

    Attributes
    ----------
    module
        The module with hooks, which returns numbers (B, K) for images (B, C, H, W): the caller's own, or one that
        calls the caller's function.
    hooks
        Hooks that copy its inputs, read its outputs and count its passes.
    device
        Device of its parameters; if it has none, `default_device`, or else the CPU.
    weights
        Precision of its first floating-point parameter; None if it has none.
    is_hooked
        Whether the module has these hooks; otherwise they act on the passes of this object alone.
    padded_to
        Number of images in every pass of this object, see `pad`; None for any number.
    state
        State that is put back after the call; None for a network that a job builds.
    classes, logits
        Number of classes, and logits (B, K) of the images that `check` passed; None before `check`.
    gradients
        (B, C, H, W), gradients of a sum of these logits, if `check` computed them.
    """

    module: nn.Module
    hooks: Hooks
    default_device: InitVar[torch.device | None] = None
    is_hooked: bool = True
    padded_to: int | None = None
    state: NetworkState | None = field(default=None, repr=False)
    classes: int | None = None
    logits: torch.Tensor | None = field(default=None, repr=False)
    gradients: torch.Tensor | None = field(default=None, repr=False)
    batch_sizes: dict[str, AdaptiveBatchSize] = field(default_factory=dict, repr=False)
    device: torch.device = field(init=False)
    weights: torch.dtype | None = field(init=False)

    def __post_init__(self, default_device: torch.device | None) -> None:
        parameters = self.module.parameters if isinstance(self.module, nn.Module) else tuple
        first = next(iter(parameters()), None)
        self.device = default_device or torch.device("cpu") if first is None else first.device
        self.weights = next((parameter.dtype for parameter in parameters() if parameter.is_floating_point()), None)

    @classmethod
    def of(cls, module: Any, device: torch.device | None = None) -> Network:
        """Return the network of a module that `attach` adapted, or adapt the passes of another callable.

        Parameters
        ----------
        module
            A module, a function of images, or a network, which is returned.
        device
            Device to use if the network has no parameters.
        """
        if isinstance(module, cls):
            return module
        hooks = hooks_of(module) if isinstance(module, nn.Module) else None
        if hooks is not None and hooks.network is not None:
            return hooks.network
        return cls(module, Hooks(reader_of(module) or OutputReader()), device, is_hooked=False)

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        """Return numbers (B, K) for images (B, C, H, W)."""
        if self.padded_to is None:
            return self._pass(images)
        count, filled = len(images), images
        if count < self.padded_to:
            filled = torch.cat([images, images[-1:].expand(self.padded_to - count, *images.shape[1:])])
            filled = filled.contiguous(memory_format=layout_of(images))
        parts: list[torch.Tensor] = []
        for attempt in self.attempts("passes", len(filled)):
            with attempt as size:
                parts = [self._pass(part) for part in filled.split(size)]
        return (parts[0] if len(parts) == 1 else torch.cat(parts))[:count]

    @property
    def direct(self) -> Callable[[torch.Tensor], torch.Tensor]:
        """The module itself where nothing stands between, so that the traceback of an error in it is short."""
        return self.module if self.is_hooked and self.padded_to is None else self

    def _pass(self, images: torch.Tensor) -> torch.Tensor:
        output = self.module(images)
        if self.is_hooked:
            return output
        self.hooks.count(len(images))
        return self.reader.read(output, len(images), images.device)

    def pad(self, size: int, stored: StoredBatchSizes | None = None) -> None:
        """Fill the batch of every pass with copies to one size.

        Float sums can depend on the batch size. The last batch of a shard is filled, so that outputs depend neither on
        the division into shards nor on the other images of a batch. If memory runs out, batches are divided.

        Parameters
        ----------
        size
            Images in a pass; larger batches pass unchanged.
        stored
            See `remember_batch_size`.
        """
        self.padded_to = size
        self.remember_batch_size("passes", stored)

    def attempts(self, name: str, wanted: int) -> Iterator[Attempt]:
        """Yield attempts with fewer and fewer images, until memory suffices; see `AdaptiveBatchSize.attempts`.

        Parameters
        ----------
        name
            What is computed; the size that fits is remembered for it.
        wanted
            The largest number of images in a pass.
        """
        if name not in self.batch_sizes:
            self.remember_batch_size(name)
        return self.batch_sizes[name].attempts(wanted)

    def remember_batch_size(self, name: str, stored: StoredBatchSizes | None = None) -> None:
        """Remember the batch size that fits what is computed, also for later jobs if there is a place for it."""
        self.batch_sizes[name] = AdaptiveBatchSize(name, stored, self.device)

    def fitting_size(self, name: str, wanted: int) -> int:
        """Return the number of images in a pass that fits what is computed, at most `wanted`."""
        adaptive = self.batch_sizes.get(name)
        return wanted if adaptive is None or adaptive.batch_size is None else min(wanted, adaptive.batch_size)

    @property
    def passes(self) -> int:
        """Number of images that went through the module for results, whoever passed them."""
        return self.hooks.passes

    @property
    def check_passes(self) -> int:
        """Number of images that went through the module for checks, as `counted_as_check` says."""
        return self.hooks.check_passes

    def count_as_check(self, images: int) -> None:
        """Count passes of this number of images as those of a check, after they were made for results."""
        self.hooks.passes -= images
        self.hooks.check_passes += images

    @property
    def reader(self) -> OutputReader:
        """Reader of the module's output."""
        return self.hooks.reader

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of images and gradients: float64 if the network is float64, else float32."""
        return torch.float64 if self.weights == torch.float64 else torch.float32

    @property
    def has_one_logit(self) -> bool:
        """Whether the network returns one logit per image, which is read as two classes; known after `check`."""
        return self.reader.has_one_logit

    @property
    def task(self) -> str:
        """One of `heatproof.core.tasks.TASKS`, or ``callable`` for a callable target; known after `check`."""
        return self.reader.task

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
            # NumPy has no bfloat16.
            wanted = torch.float32 if self.weights in HALF else self.weights
            raise HeatproofError(
                f"The images are {images.dtype} and the model's weights {self.weights}: convert a tensor by "
                f"images.to({wanted}), or an array by images.astype('{str(wanted).removeprefix('torch.')}')."
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
            If the images have another precision than the weights; if the network fails on them, returns no logits, or
            returns logits for an image alone that differ from those in a batch by more than rounding (`TOLERANCE` of
            the logits' spread); or if a pass changes a parameter, or runs a module that is not registered.
        """
        self.check_precision(images)
        if self.hooks.contents is None:
            self.hooks.contents = ModuleContents(self.module.named_modules())
        sample = self.copy_to_device(images[:CHECKED_IMAGES])
        count = len(sample)
        if count == 1:
            # Two variants of the image complete the batch: its inverse within its range, and a darker mirror image.
            low, high = sample.amin().clamp(max=0), sample.amax().clamp(min=0)
            sample = torch.cat([sample, low + high - sample, sample.flip(-1) / 2])
        with counted_as_check(), torch.no_grad(), self.hooks.counting_modules(self.module) as module_runs:
            with self._batch_failures(sample):
                in_batch, gradients, precisions = self._recorded_pass(sample.flip(0), with_gradients)
            in_batch = in_batch.flip(0)
            first, last, again = (self.module(part) for part in (sample[:1], sample[-1:], sample[:1]))
        check_operators(self.hooks.operators)
        check_registered(self.module, module_runs)
        if self.state is not None:
            self.state.check_parameters()
        tolerance = partial(self.rounding_tolerance, in_batch, precisions)
        check_outputs(self.module, in_batch, first, last, again, tolerance(), tolerance(SAME_SIZE_SHARE))
        check_tensors(self.module, module_runs)
        self.hooks.precisions = frozenset({*precisions, self.weights or self.dtype})
        self.classes, self.logits = in_batch.shape[1], in_batch[:count]
        self.gradients = None if gradients is None else gradients.flip(0)[:count]
        return self.logits

    def _recorded_pass(
        self, images: torch.Tensor, with_gradients: bool
    ) -> tuple[torch.Tensor, torch.Tensor | None, set[torch.dtype]]:
        """Return logits, gradients, and the precisions of the pass as far as they can be followed."""

        def run() -> tuple[torch.Tensor, torch.Tensor | None]:
            return self.outputs_and_gradients(images) if with_gradients else (self.module(images), None)

        precisions_met = PrecisionsMet()
        try:
            with precisions_met:
                logits, gradients = run()
        except Exception as error:
            if isinstance(error, HeatproofError) or machine_fault(error):
                raise
            # Higher-order operators, such as flex_attention, run in no dispatch mode.
            logits, gradients = run()
        return logits, gradients, precisions_met.dtypes

    @contextmanager
    def _batch_failures(self, sample: torch.Tensor) -> Iterator[None]:
        """Say of a network that fails on a batch whether it takes an image alone."""
        try:
            yield
        except Exception as error:
            # The caller's network can raise any exception.
            # `described_failures` has the remedy for networks that are exported for one size of batch.
            is_described = isinstance(error, HeatproofError) or "size()[0]" in str(error)
            if is_described or machine_fault(error) or not self._takes(sample[:1]):
                raise
            raise HeatproofError(
                f"The model takes one image alone and fails on a batch of {len(sample)} ({type(error).__name__}: "
                f"{first_line(error)[:200]}): let it take any number of images, whatever batch_size is."
            ) from error

    def _takes(self, images: torch.Tensor) -> bool:
        try:
            self.module(images)
        except Exception as error:
            if machine_fault(error):
                raise
            return False
        return True

    def rounding_tolerance(
        self, logits: torch.Tensor, precisions: Iterable[torch.dtype] = (), share: float = 1.0
    ) -> float:
        """Return by how much logits (B, K) may differ between two passes, as `heatproof.core.rounding` does.

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
        only_targets = nullcontext() if targets is None else self.reader.only_targets(targets.tolist())
        with torch.enable_grad(), only_targets:
            # Layers that work in place cannot write to a leaf tensor.
            logits = self.module(inputs.clone())
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


def require_module(model: Any) -> None:
    """Refuse objects that are not modules, and results of `torch.export`, which cannot be called.

    Raises
    ------
    HeatproofError
        With the remedy.
    """
    if isinstance(model, torch.export.ExportedProgram):
        raise HeatproofError(
            "The model is an ExportedProgram, which cannot be called: give the network that was exported, whose layers "
            "can be read, or model.module()."
        )
    if not isinstance(model, nn.Module):
        raise HeatproofError(f"The model is {type(model).__name__}: give a torch.nn.Module, whose layers can be read.")


@contextmanager
def prepare_network(
    model: Any, images: Any, seed: int | None = None, reader: OutputReader | None = None
) -> Iterator[Network]:
    """Adapt a caller's network for the duration of a call; restore it, random states and the grad mode afterwards.

    Other threads wait if they would explain or score any network.

    Parameters
    ----------
    model
        A module, or a function of images that names one; all its modules must be in eval mode.
    images
        Input images; if the network has no parameters, the device of this tensor is used.
    seed
        Seed of the global random states inside the context; None leaves them unchanged.
    reader
        Reader of the network's output; None reads logits of classes.

    Raises
    ------
    HeatproofError
        If a module is in training mode or is not initialised, if a function names no module, if another thread does not
        end its call, or as `heatproof.core.state.NetworkState` raises it.
    """
    model = uncompiled(model)
    module, function = as_module(model), None if reader is None else reader.function
    with ExitStack() as stack:
        stack.enter_context(exclusive_use())
        # The modules of a function keep their own names in messages.
        state = NetworkState(*(module.parts if isinstance(module, CallableModule) else [module]))
        check_eval_mode(model, named_modules=state.named_modules)
        check_initialised(state.named_modules)
        stack.enter_context(enable_gradients())
        stack.enter_context(preserve_random_states(seed))
        stack.enter_context(preserve_modes())
        stack.enter_context(without_reentrant_checkpoints())
        stack.enter_context(state)
        stack.enter_context(NetworkState(*(() if function is None else modules_named_by(function))))
        stack.enter_context(compilation_disabled())
        device = images.device if isinstance(images, torch.Tensor) else None
        network = attach(module, device, reader=reader, thread=threading.get_ident())
        network.state = state
        network.hooks.contents = ModuleContents(state.named_modules)
        stack.callback(network.hooks.remove)
        if (device_type := network.device.type) and torch.is_autocast_enabled(device_type):
            # The caller's autocast applies to the network, not to sums of its outputs.
            network.hooks.autocast = torch.get_autocast_dtype(device_type)
            stack.enter_context(torch.autocast(device_type, enabled=False))
        yield network


def attach(
    module: nn.Module,
    device: torch.device | None = None,
    *,
    reader: OutputReader | None = None,
    thread: int | None = None,
) -> Network:
    """Attach hooks to a network, so that it gets copies of its inputs and returns numbers (B, K) for any output.

    Parameters
    ----------
    module
        Network that gets the hooks.
    device
        Device to use if the network has no parameters.
    reader
        Reader of the network's output; None reads logits of classes.
    thread
        The only thread whose passes are changed and counted; None for all threads.
    """
    hooks = Hooks(reader or OutputReader(), thread)
    network = Network(module, hooks, device)
    hooks.network = network
    hooks.half = network.weights if network.weights in HALF else None
    hooks.handles = [
        module.register_forward_pre_hook(hooks.copy_inputs, with_kwargs=True, prepend=True),
        module.register_forward_hook(hooks.read_output, with_kwargs=True),
        module.register_forward_hook(hooks.end_autocast, always_call=True),
    ]
    return network


def layout_of(images: torch.Tensor) -> torch.memory_format:
    """Return channels_last if the images have this layout, else the contiguous format."""
    if images.is_contiguous() or not images.is_contiguous(memory_format=torch.channels_last):
        return torch.contiguous_format
    return torch.channels_last


def uncompiled(model: Any) -> Any:
    """Return the network that was passed to `torch.compile`, whose layers can be read; other objects unchanged."""
    parts = getattr(model, "_modules", None)
    # `_modules` of a scripted module is not a dict.
    return parts.get("_orig_mod", model) if isinstance(parts, dict) else model


@contextmanager
def compilation_disabled() -> Iterator[None]:
    """Run compiled modules and functions uncompiled inside this context, and let torch.fx trace them.

    Hooks would compile modules again, and a compiled function would run modules that are not those of the network.
    """
    # Whoever has compiled anything has loaded it, and loading it takes seconds.
    if "torch._dynamo" not in sys.modules:
        yield
        return
    traced = sys.modules["torch._dynamo"].config.patch(error_on_nested_fx_trace=False)
    with torch.compiler.set_stance("force_eager"), traced:
        yield

"""Hooks on a network that copy its inputs, read its outputs, and count its passes."""

from __future__ import annotations

import inspect
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import nn

from heatproof.core.batches import show_life
from heatproof.core.output_reader import OutputReader
from heatproof.core.state import ModuleContents

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
    """Hooks that copy the inputs of a network, read its output, and count its passes.

    `heatproof.core.network.attach` describes the reader and the thread. The images that go through the network are
    counted since the hooks were attached, those for results apart from those for checks.

    Attributes
    ----------
    half
        Precision of the weights if it is half; float32 images are then cast to it.
    autocast
        Precision of the caller's autocast, in which passes run; None for none.
    cache
        Facts about the network that were found since the hooks were attached. They are not stored for longer than one
        call or job, because the caller can change the network between calls.
    precisions
        Precisions in which the last check computed; empty before the first.
    network
        The network to which the hooks belong; None while they are attached.
    operators
        Higher-order operators of torch that ran functions of theirs while modules were counted.
    contents
        What the modules of the network held before its first pass; None for a network of a job before its check.
    """

    def __init__(self, reader: OutputReader, thread: int | None = None) -> None:
        self.reader, self.thread = reader, thread
        self.passes = self.check_passes = 0
        self.half: torch.dtype | None = None
        self.autocast: torch.dtype | None = None
        self.handles: list[Any] = []
        self.cache: dict[Any, Any] = {}
        self.precisions: frozenset[torch.dtype] = frozenset()
        self.network: Any = None
        self.contents: ModuleContents | None = None
        self.operators: set[str] = set()
        self._running: list[torch.autocast] = []
        self._reads_output = False

    def remove(self) -> None:
        """Remove the hooks from the network."""
        for handle in self.handles:
            handle.remove()

    @contextmanager
    def counting_modules(self, network: nn.Module) -> Iterator[Counter[nn.Module]]:
        """Count for each module the passes of the network that run it in this thread, inside this context."""
        thread = threading.get_ident()
        passes: Counter[nn.Module] = Counter()
        in_this_pass: set[nn.Module] = set()

        def record(module: nn.Module, inputs: tuple[Any, ...]) -> None:
            # torch traces the branches of torch.cond with this hook, and has to be able to.
            if torch.compiler.is_compiling():
                return
            # A target function may run modules that do not belong to the network.
            if self._reads_output or threading.get_ident() != thread:
                return
            # Higher-order operators load torch's compiler. They run a part of the network, traced or as it is.
            if "torch._dynamo" in sys.modules and (operator := _higher_order_operator()):
                self.operators.add(operator)
                return
            if module is network:
                in_this_pass.clear()
            if module not in in_this_pass:
                in_this_pass.add(module)
                passes[module] += 1

        # The hook of one module would not show what this module runs besides its submodules.
        handle = nn.modules.module.register_module_forward_pre_hook(record)
        try:
            yield passes
        finally:
            handle.remove()

    def copy_inputs(self, module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Return copies of the inputs, because a network may write to them, as an in-place ReLU does."""
        if self._is_another_thread():
            return None
        if self.autocast is not None:
            device = next(value.device for value in (*inputs, *named.values()) if isinstance(value, torch.Tensor))
            self._running.append(torch.autocast(device.type, self.autocast))
            self._running[-1].__enter__()
        return tuple(map(self._copy, inputs)), {name: self._copy(value) for name, value in named.items()}

    def read_output(self, module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any], output: Any) -> Any:
        """Return the numbers of an output, and count its pass; a pass that failed is none."""
        if self._is_another_thread():
            return None
        first = _first_tensor(inputs, named)
        self.count(0 if first is None else len(first))
        count, device = (None, None) if first is None else (len(first), first.device)
        self._reads_output = True
        try:
            return self.reader.read(output, count, device)
        finally:
            self._reads_output = False

    def end_autocast(self, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        """End the autocast of a pass, even if the pass failed."""
        if self._running and not self._is_another_thread():
            self._running.pop().__exit__(None, None, None)

    def count(self, images: int) -> None:
        """Count a pass of images, for results or for a check."""
        if is_counted_as_check():
            self.check_passes += images
        else:
            self.passes += images
        show_life()

    def _is_another_thread(self) -> bool:
        return self.thread is not None and threading.get_ident() != self.thread

    def _copy(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        cast = self.half is not None and value.dtype == torch.float32
        return value.to(self.half) if cast else value.clone()


def _higher_order_operator() -> str | None:
    """Return the name of the higher-order operator of torch that runs the calling code, or None."""
    frame = inspect.currentframe()
    while frame is not None:
        package, _, name = (frame.f_globals.get("__name__") or "").rpartition(".")
        if package == "torch._higher_order_ops":
            return str(name)
        frame = frame.f_back
    return None


def _first_tensor(inputs: Sequence[Any], named: dict[str, Any]) -> torch.Tensor | None:
    return next((value for value in (*inputs, *named.values()) if isinstance(value, torch.Tensor) and value.ndim), None)

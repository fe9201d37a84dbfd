"""Loops over batches: read the next batch while the network processes the current one, and report progress."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import chain, pairwise
from threading import Lock
from typing import TypeVar

import torch
from tqdm import tqdm

T = TypeVar("T")

# A user's dataset may not be safe to read from two threads at once.
READ_LOCK = Lock()


def prefetch(
    read: Callable[[T], torch.Tensor], items: Iterable[T], device: torch.device
) -> Iterator[tuple[T, torch.Tensor]]:
    """Yield each item with its data, in order, and read the next item in the meantime.

    Parameters
    ----------
    read
        Function that reads one item. It is called in a separate thread that holds `READ_LOCK`.
    items
        Items to read, for example the first image of each batch.
    device
        Device to which the images are copied next; memory is pinned for an NVIDIA GPU.

    Raises
    ------
    Exception
        Any exception of `read`, raised when its item is yielded.
    """

    def fetch(item: T) -> torch.Tensor:
        with READ_LOCK:
            images = read(item)
        return images.pin_memory() if device.type == "cuda" else images

    with ThreadPoolExecutor(1, thread_name_prefix="ahead") as pool:
        submitted = ((item, pool.submit(fetch, item)) for item in items)
        # The next item is submitted before the result of the current one is awaited.
        for current, _ in pairwise(chain(submitted, [None])):
            assert current is not None
            yield current[0], current[1].result()


log = logging.getLogger(__name__)

SECONDS_BETWEEN_LINES = 10.0
# None reports progress only to a terminal or a notebook; see `show_progress`.
_PROGRESS: ContextVar[bool | None] = ContextVar("progress", default=None)


@contextmanager
def show_progress(setting: bool | None) -> Iterator[None]:
    """Set whether loops inside the context report their progress.

    Parameters
    ----------
    setting
        True reports progress even if the output is a file; False reports nothing; None keeps the setting outside of the
        context, by which progress is reported if stderr is a terminal or a notebook.
    """
    token = _PROGRESS.set(_PROGRESS.get() if setting is None else setting)
    try:
        yield
    finally:
        _PROGRESS.reset(token)


def is_interactive() -> bool:
    """Tell whether stderr is a terminal or a notebook."""
    return sys.stderr.isatty() or type(sys.stderr).__module__.startswith("ipykernel.")


def report_progress(line: str, progress: bool | None = None) -> None:
    """Write a progress line to stderr if progress is shown there, otherwise to the log."""
    setting = _PROGRESS.get() if progress is None else progress
    if setting or (setting is None and is_interactive()):
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()
    else:
        log.info(line)


def track(
    items: Iterable[T], step: str, unit: str = "it", total: int | None = None, *, progress: bool | None = None
) -> Iterator[T]:
    """Yield the items and report progress: with a bar if stderr is a terminal or a notebook, otherwise with log lines.

    Parameters
    ----------
    items
        Items to iterate over.
    step
        Name of the step, in a word or two.
    unit
        Name of one item.
    total
        Number of items, if `items` has no length.
    progress
        As in `show_progress`. If it is True and stderr is neither a terminal nor a notebook, the lines go to stderr.
    """
    if total is None and isinstance(items, Sized):
        total = len(items)
    setting = _PROGRESS.get() if progress is None else progress
    if setting is not False and is_interactive():
        yield from tqdm(items, desc=step, unit=unit, total=total, leave=False)
        return

    of_total = f" of {total}" if total else ""
    if setting:
        # Announce the step first, because its first item may take long.
        report_progress(f"{step}: 0{of_total} {unit}", setting)
    start = last = time.monotonic()
    done = 0
    for item in items:
        yield item
        done += 1
        now = time.monotonic()
        if now - last >= SECONDS_BETWEEN_LINES:
            last = now
            rate = done / (now - start)
            remaining = f", {(total - done) / rate:.0f} s left" if total else ""
            report_progress(f"{step}: {done}{of_total} {unit}, {rate:.2f} {unit}/s{remaining}", setting)
    report_progress(f"{step}: {done} {unit} in {time.monotonic() - start:.1f} s", setting)

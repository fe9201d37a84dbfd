"""Loops over batches: read the next batch while the network processes the current one, and show progress."""

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

T = TypeVar("T")

# A dataset of the user's own need not be read by two threads at once.
READ_LOCK = Lock()


def prefetch(
    read: Callable[[T], torch.Tensor], items: Iterable[T], device: torch.device
) -> Iterator[tuple[T, torch.Tensor]]:
    """Yield each item with its data, read one item ahead, in order.

    Parameters
    ----------
    read
        Function that reads one item; called in a separate thread that holds `READ_LOCK`.
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
        begun = ((item, pool.submit(fetch, item)) for item in items)
        # An item is waited for only when the one after it has begun.
        for waiting, _ in pairwise(chain(begun, [None])):
            assert waiting is not None
            yield waiting[0], waiting[1].result()


log = logging.getLogger(__name__)

SECONDS_BETWEEN_LINES = 10.0
# None shows progress where somebody watches; see `show_progress`.
_WANTED: ContextVar[bool | None] = ContextVar("progress", default=None)


@contextmanager
def show_progress(wanted: bool | None) -> Iterator[None]:
    """Say whether loops inside show how far they are.

    Parameters
    ----------
    wanted
        True: also where output is a file; False: nowhere; None: as outside, and by default where stderr is a terminal
        or a notebook.
    """
    token = _WANTED.set(_WANTED.get() if wanted is None else wanted)
    try:
        yield
    finally:
        _WANTED.reset(token)


def is_interactive() -> bool:
    """Tell whether stderr is a terminal or a notebook, where somebody waits."""
    return sys.stderr.isatty() or type(sys.stderr).__module__.startswith("ipykernel.")


def report_progress(line: str, progress: bool | None = None) -> None:
    """Say a line on how far it is, where `track` would."""
    wanted = _WANTED.get() if progress is None else progress
    if wanted or (wanted is None and is_interactive()):
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()
    else:
        log.info(line)


def track(
    items: Iterable[T], what: str, unit: str = "it", total: int | None = None, *, progress: bool | None = None
) -> Iterator[T]:
    """Yield the items and show how far they are: a bar where somebody watches, else lines in the log.

    Parameters
    ----------
    items
        What to go through.
    what
        A word or two on the step.
    unit
        What one item is.
    total
        How many there are, where `items` has no length.
    progress
        As in `show_progress`. Where it is True and nobody watches, the lines are written to stderr.
    """
    if total is None and isinstance(items, Sized):
        total = len(items)
    wanted = _WANTED.get() if progress is None else progress
    if wanted is not False and is_interactive():
        from tqdm import tqdm

        yield from tqdm(items, desc=what, unit=unit, total=total, leave=False)
        return

    of_all = f" of {total}" if total else ""
    if wanted:
        # The first item may take long.
        report_progress(f"{what}: 0{of_all} {unit}", wanted)
    start = last = time.monotonic()
    done = 0
    for item in items:
        yield item
        done += 1
        now = time.monotonic()
        if now - last >= SECONDS_BETWEEN_LINES:
            last = now
            rate = done / (now - start)
            left = f", {(total - done) / rate:.0f} s left" if total else ""
            report_progress(f"{what}: {done}{of_all} {unit}, {rate:.2f} {unit}/s{left}", wanted)
    report_progress(f"{what}: {done} {unit} in {time.monotonic() - start:.1f} s", wanted)

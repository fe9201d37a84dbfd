"""Loops over batches: read the next batch while the network processes the current one, and show progress."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, pairwise
from threading import Lock
from typing import TypeVar

import torch

T = TypeVar("T")

# A dataset of the user's own need not be read by two threads at once.
READING = Lock()


def prefetch(
    read: Callable[[T], torch.Tensor], items: Iterable[T], device: torch.device
) -> Iterator[tuple[T, torch.Tensor]]:
    """Yield each item with its data, read one item ahead, in order.

    Parameters
    ----------
    read
        Function that reads one item; called in a separate thread that holds `READING`.
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
        with READING:
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


def is_watched() -> bool:
    """Tell whether stderr is a terminal or a notebook, where somebody waits."""
    return sys.stderr.isatty() or type(sys.stderr).__module__.startswith("ipykernel.")


def track(items: Iterable[T], what: str, unit: str = "it", total: int | None = None) -> Iterator[T]:
    """Yield the items and show how far they are.

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
    """
    if total is None and isinstance(items, Sized):
        total = len(items)
    if is_watched():
        from tqdm import tqdm

        yield from tqdm(items, desc=what, unit=unit, total=total, leave=False)
        return
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
            log.info("%s: %d%s %s, %.2f %s/s%s", what, done, f" of {total}" if total else "", unit, rate, unit, left)
    log.info("%s: %d %s in %.1f s", what, done, unit, time.monotonic() - start)

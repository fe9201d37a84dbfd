"""Prefetch: read the next batch while the network processes the current one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
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
        waiting: tuple[T, Future[torch.Tensor]] | None = None
        for item in items:
            coming = (item, pool.submit(fetch, item))
            if waiting is not None:
                yield waiting[0], waiting[1].result()
            waiting = coming
        if waiting is not None:
            yield waiting[0], waiting[1].result()

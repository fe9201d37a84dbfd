"""The next batch is read while the network works on this one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def read_ahead(read: Callable[[T], R], items: Iterable[T]) -> Iterator[tuple[T, R]]:
    """Yield every item with what is read for it, one item ahead, in order.

    Parameters
    ----------
    read
        Called in a thread of its own, for one item at a time.
    items
        What to read for, such as the first images of batches.

    Raises
    ------
    Exception
        Whatever `read` raises, when its item's turn comes.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="ahead") as pool:
        waiting: tuple[T, Future[R]] | None = None
        for item in items:
            coming = (item, pool.submit(read, item))
            if waiting is not None:
                yield waiting[0], waiting[1].result()
            waiting = coming
        if waiting is not None:
            yield waiting[0], waiting[1].result()

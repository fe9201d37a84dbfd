"""Progress of long steps: a bar on a terminal, plain lines in a job's log."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterable, Iterator, Sized
from typing import TypeVar

T = TypeVar("T")

log = logging.getLogger(__name__)

SECONDS_BETWEEN_LINES = 10.0


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
    if sys.stderr.isatty():
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

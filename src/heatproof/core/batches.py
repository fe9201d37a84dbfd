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
from threading import Lock, RLock
from typing import Any, TypeVar

from tqdm import tqdm

from heatproof.core.lazy import torch

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
# Without a terminal, a call of the API writes a line to stderr this often, so that a log shows that it lives.
SECONDS_BETWEEN_SIGNS = 30.0
# None reports progress only to a terminal or a notebook; see `show_progress`.
_PROGRESS: ContextVar[bool | None] = ContextVar("progress", default=None)
# The images that the running call of the API counts; None in jobs.
_COUNTED: ContextVar[CountedImages | None] = ContextVar("counted", default=None)


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


def is_silent() -> bool:
    """Tell whether the caller wants no progress."""
    return _PROGRESS.get() is False


def report_progress(line: str, progress: bool | None = None) -> None:
    """Write a progress line to stderr if progress is shown there, otherwise to the log."""
    setting = _PROGRESS.get() if progress is None else progress
    if setting or (setting is None and is_interactive()):
        _write(line)
    else:
        log.info(line)


def _write(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def _bar(step: str, unit: str, total: int | None) -> Any:
    """Return a progress bar that leaves nothing behind in the process."""

    class Bar(tqdm):
        # tqdm's own lock fixes the start method of multiprocessing, and its monitor is a thread that never ends.
        _lock = RLock()
        monitor_interval = 0

    return Bar(desc=step, unit=unit, total=total, leave=False)


def _plural(unit: str) -> str:
    return f"{unit}es" if unit.endswith("tch") else f"{unit}s"


def count_words(number: int, unit: str) -> str:
    """Return a number with the name of its unit, which is given in the singular."""
    return f"{number} {unit if number == 1 else _plural(unit)}"


class CountedImages:
    """Images that a step of a call has to do, and how many are done.

    In a terminal or a notebook they are shown as a bar; otherwise as lines on stderr, one in `SECONDS_BETWEEN_SIGNS`,
    unless progress is off.

    Parameters
    ----------
    step
        Name of the step, in a word or two.
    total
        Number of images, each counted once for every method or metric.
    """

    def __init__(self, step: str, total: int) -> None:
        self.step, self.total, self.done = step, total, 0
        self.setting = _PROGRESS.get()
        self.interval = SECONDS_BETWEEN_LINES if self.setting else SECONDS_BETWEEN_SIGNS
        self.start = self.last = time.monotonic()
        self.bar = _bar(step, "image", total) if self.setting is not False and is_interactive() else None
        # Of the images that are begun: those that earlier loops and the running one passed, and how many they are.
        self.begin(0)
        if self.setting and self.bar is None:
            # Announce the step first, because its first image may take long.
            _write(f"{step}: 0 of {count_words(total, 'image')}")

    def begin(self, count: int) -> None:
        """Note that images are begun, which `add` will count all at once."""
        self._passed, self._of_running, self._at_most = 0, _no_image, count

    def running(self, so_far: Callable[[], int]) -> None:
        """Note a loop of passes over images, which may be one of several for the images that are begun.

        Parameters
        ----------
        so_far
            Function that returns how many images the loop has passed, which is called only if a line is written.
        """
        self._passed += self._of_running()
        self._of_running = so_far

    def reach(self, done: int) -> None:
        """Note how many images are done so far."""
        self.add(done - self.done)

    def add(self, count: int) -> None:
        """Count images that are done."""
        self.done += count
        self.begin(0)
        if self.bar is not None:
            self.bar.update(count)
        self.show()

    def show(self) -> None:
        """Write a line, if the last one was long ago."""
        now = time.monotonic()
        if self.bar is not None or self.setting is False or now - self.last < self.interval:
            return
        self.last = now
        done = min(self.done + min(self._passed + self._of_running(), self._at_most), self.total)
        seconds = now - self.start
        minutes = f"about {(self.total - done) / done * seconds / 60:.1f} min left" if done else ""
        _write(
            f"{self.step}: {done} of {count_words(self.total, 'image')}, {minutes or f'{seconds / 60:.1f} min so far'}"
        )

    def close(self, finished: bool) -> None:
        """End the step."""
        if self.bar is not None:
            self.bar.close()
        elif self.setting and finished:
            _write(f"{self.step}: {count_words(self.total, 'image')} in {time.monotonic() - self.start:.1f} s")


@contextmanager
def count_images(step: str, total: int) -> Iterator[CountedImages]:
    """Show how many images of a step of a call are done, until the end of the context.

    Parameters
    ----------
    step, total
        As in `CountedImages`.
    """
    counted = CountedImages(step, total)
    token = _COUNTED.set(counted)
    finished = False
    try:
        yield counted
        finished = True
    finally:
        _COUNTED.reset(token)
        counted.close(finished)


def show_life() -> None:
    """Show that the call is alive, as `CountedImages.show` does; nothing happens outside of `count_images`."""
    counted = _COUNTED.get()
    if counted is not None:
        counted.show()


def count_begun(count: int) -> None:
    """Note that images are begun, as `CountedImages.begin` does; nothing happens outside of `count_images`."""
    counted = _COUNTED.get()
    if counted is not None:
        counted.begin(count)


def count_done(count: int) -> None:
    """Count images that are done, as `CountedImages.add` does; nothing happens outside of `count_images`."""
    counted = _COUNTED.get()
    if counted is not None:
        counted.add(count)


def note_passes(so_far: Callable[[], int]) -> None:
    """Note a loop of passes, as `CountedImages.running` does; nothing happens outside of `count_images`."""
    counted = _COUNTED.get()
    if counted is not None:
        counted.running(so_far)


def _no_image() -> int:
    return 0


def track(
    items: Iterable[T], step: str, unit: str = "item", total: int | None = None, *, progress: bool | None = None
) -> Iterator[T]:
    """Yield the items and report progress: with a bar if stderr is a terminal or a notebook, otherwise with log lines.

    Parameters
    ----------
    items
        Items to iterate over.
    step
        Name of the step, in a word or two.
    unit
        Name of one item, in the singular.
    total
        Number of items, if `items` has no length.
    progress
        As in `show_progress`. If it is True and stderr is neither a terminal nor a notebook, the lines go to stderr.
    """
    if total is None and isinstance(items, Sized):
        total = len(items)
    setting = _PROGRESS.get() if progress is None else progress
    if setting is not False and is_interactive():
        with _bar(step, unit, total) as bar:
            for item in items:
                yield item
                bar.update()
        return

    def counted(number: int) -> str:
        return f"{number} of {count_words(total, unit)}" if total else count_words(number, unit)

    if setting:
        # Announce the step first, because its first item may take long.
        report_progress(f"{step}: {counted(0)}", setting)
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
            report_progress(f"{step}: {counted(done)}, {rate:.2f} {_plural(unit)}/s{remaining}", setting)
    seconds = time.monotonic() - start
    report_progress(f"{step}: {count_words(done, unit)} in {seconds:.1f} s", setting)

"""How a process ends when a signal asks it to: in order, with its child processes, and within a time."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

from heatproof.errors import RESUME_HINT

if TYPE_CHECKING:
    import psutil

SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
# Seconds that child processes, and then this one, have to end by themselves; a scheduler gives about 30.
# What a command has started has less, so that it ends before its command does.
GRACE, OF_COMMAND = 10.0, 15.0
# Seconds between two looks at whether another process is still there.
POLL_SECONDS = 0.05
# The process of which this one is a part, and which it must not outlive.
CONTROLLER = "HEATPROOF_CONTROLLER"


class EndedBySignal(SystemExit):
    """A signal asked this process to end. The exit status is that of a shell: 128 and the number of the signal."""

    def __init__(self, number: int) -> None:
        self.status = 128 + number
        super().__init__(self.status)


# The signal that came first, the thread that ends the child processes since then, and whether Python ignored `EndedBySignal`.
_first: int | None = None
_ender: threading.Thread | None = None
_ignored = False


def received_signal() -> int | None:
    """Return the signal that has asked this process to end, else None."""
    return _first


def describe_signal(what: str, number: int) -> str:
    """Return what is said of a command or job that a signal has ended."""
    name = signal.Signals(number).name
    return (
        f"The {what} was ended by {name}, for example by a time limit, preemption or a user: run the same command "
        f"again; {RESUME_HINT}."
    )


def install_signal_handlers(what: str = "") -> None:
    """Let SIGTERM, SIGHUP and SIGINT raise `EndedBySignal` in the main thread, after one sentence, and end child processes.

    A signal that is ignored, as SIGHUP is after ``nohup``, stays ignored. Signals after the first change nothing, so
    that nobody who presses Ctrl-C twice leaves a file half removed. What has not ended after the grace time is killed.

    Parameters
    ----------
    what
        ``"command"``, ``"run"`` or ``"job"``, for the sentence; nothing is said without.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    process, grace = os.getpid(), OF_COMMAND if what == "command" else GRACE

    def end(number: int, frame: FrameType | None) -> None:
        global _first, _ender, _ignored
        if os.getpid() != process:
            # A fork, which whoever made it ends: it ends as if nobody listened.
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        if _first is not None:
            if _ignored:
                _ignored = False
                raise EndedBySignal(_first)
            return
        _first = number
        if what:
            # Not by sys.stderr, which the main thread may be writing to; where nobody listens, the exit status tells.
            with suppress(OSError):
                os.write(2, f"heatproof: {describe_signal(what, number)}\n".encode())
        # Snakemake is to know that it ends before its jobs do, which it would take for failed; it ends them itself.
        alone = 2.0 if what == "command" else -1.0
        _ender = threading.Thread(target=_end_children, args=(number, grace, alone), daemon=True)
        _ender.start()
        raise EndedBySignal(number)

    for number in SIGNALS:
        if signal.getsignal(number) not in (signal.SIG_IGN, None):
            signal.signal(number, end)
    sys.unraisablehook = _unraisable
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def _unraisable(ignored: sys.UnraisableHookArgs) -> None:
    """Ask again where Python ignores `EndedBySignal`, as in the callback of a weak reference, and print any other error.

    Once a signal has come nothing else is printed: what was being built when it came complains as it is taken down.
    """
    global _ignored
    if not isinstance(ignored.exc_value, EndedBySignal):
        if _first is None:
            sys.__unraisablehook__(ignored)
        return
    _ignored = True
    number = ignored.exc_value.status - 128
    # Not at once: it would be raised in here, and ignored again.
    threading.Timer(POLL_SECONDS, signal.pthread_kill, (threading.main_thread().ident, number)).start()


@contextmanager
def signal_handling(what: str) -> Iterator[None]:
    """End in order within a context, and leave it when all child processes have ended.

    Parameters
    ----------
    what
        As for `install_signal_handlers`.
    """
    before, hook = {number: signal.getsignal(number) for number in SIGNALS}, sys.unraisablehook
    install_signal_handlers(what)
    try:
        yield
    finally:
        if _ender is not None:
            _ender.join()
        elif threading.current_thread() is threading.main_thread():
            for number, handler in before.items():
                # None is that of a program that Python is a part of.
                if handler is not None:
                    signal.signal(number, handler)
            sys.unraisablehook = hook


def run_process(main: Callable[[], int], what: str) -> NoReturn:
    """Run the function that is all that this process does, and exit with its status.

    A signal ends it in order from the beginning. Once it is done, none does: whoever waits for this process would take
    what is finished for unfinished.

    Parameters
    ----------
    main
        Returns the exit status.
    what
        As for `install_signal_handlers`.
    """
    install_signal_handlers(what)
    code = main()
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    sys.exit(code)


def end_with_parent(grace: float = GRACE) -> None:
    """End when the process is gone that started this one as a part of its own work, so that no writers are left behind.

    Parameters
    ----------
    grace
        Seconds to end in order.
    """
    pid = os.environ.get(CONTROLLER)
    if not pid:
        return
    import psutil

    def watch() -> None:
        with suppress(psutil.Error):
            controller = psutil.Process(int(pid))
            while _runs(controller):
                time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(grace)
        _kill(children())
        os._exit(128 + signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


def end_processes(find: Callable[[], Iterable[psutil.Process]], grace: float = GRACE) -> None:
    """Ask processes to end, wait, and kill those that have not ended after the grace time.

    Parameters
    ----------
    find
        Returns the processes; called again and again, for those that are started meanwhile.
    grace
        In seconds.
    """
    import psutil

    received_signal: set[psutil.Process] = set()
    last = time.monotonic() + grace
    while True:
        new = set(find()) - received_signal
        for process in new:
            with suppress(psutil.Error):
                process.terminate()
        received_signal |= new
        left = [process for process in received_signal if _runs(process)]
        if not left:
            return
        if time.monotonic() > last:
            break
        time.sleep(POLL_SECONDS)
    _kill(left)


def children(recursive: bool = True) -> list[psutil.Process]:
    """Return the processes below this one, but for those of Python's own that ignore signals and end when it does.

    Parameters
    ----------
    recursive
        Whether those are meant as well that its child processes have started.
    """
    import psutil

    found = []
    with suppress(psutil.Error):
        for child in psutil.Process().children(recursive):
            with suppress(psutil.Error):
                if not any("resource_tracker" in part for part in child.cmdline()):
                    found.append(child)
    return found


def _runs(process: psutil.Process) -> bool:
    """Tell whether a process is there; one that has ended may wait for long until somebody reads its exit status."""
    import psutil

    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _kill(processes: Iterable[psutil.Process]) -> None:
    import psutil

    for process in processes:
        with suppress(psutil.Error):
            process.kill()


def _end_children(number: int, grace: float, alone: float) -> None:
    begun = time.monotonic()
    end_processes(lambda: children(time.monotonic() - begun > alone), grace)
    threading.Thread(target=_give_up, args=(number, grace), daemon=True).start()


def _give_up(number: int, grace: float) -> None:
    """End a process whose main thread does not."""
    time.sleep(grace)
    with suppress(OSError, ValueError):
        sys.stdout.flush()
    os._exit(128 + number)

"""End a process gracefully on a signal: with cleanup, together with its child processes, and within a time limit."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NoReturn

import psutil

from heatproof.errors import RESUME_HINT

SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
# Seconds that child processes, and then this one, have to end by themselves; a scheduler grants about 30. A command has
# more time than the processes that it starts, so that they end before it does.
GRACE, COMMAND_GRACE = 10.0, 15.0
# Seconds between two checks of whether another process is running.
POLL_SECONDS = 0.05
# Environment variable with the id of the process that started this one, which must not outlive it.
CONTROLLER = "HEATPROOF_CONTROLLER"


class EndedBySignal(SystemExit):
    """Raised when a signal ends this process. The exit status is 128 plus the number of the signal, as in a shell."""

    def __init__(self, number: int) -> None:
        self.status = 128 + number
        super().__init__(self.status)


# The first signal, the thread that ends the child processes, and whether Python ignored `EndedBySignal`.
_received: int | None = None
_ending_thread: threading.Thread | None = None
_ignored = False


def received_signal() -> int | None:
    """Return the number of the signal that ends this process; None if there was none."""
    return _received


def silence(descriptor: int) -> None:
    """Send what is written to a file descriptor from now on to the null device."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)


def describe_signal(what: str, number: int) -> str:
    """Return the message for a command or job that a signal has ended."""
    name = signal.Signals(number).name
    return (
        f"The {what} was ended by {name}, for example by a time limit, preemption or a user: run the same command "
        f"again; {RESUME_HINT}."
    )


def install_signal_handlers(what: str = "") -> None:
    """Let SIGTERM, SIGHUP and SIGINT print a message, end child processes, and raise `EndedBySignal`.

    The exception is raised in the main thread. A signal that is ignored, as SIGHUP is after ``nohup``, stays ignored.
    Further signals have no effect, so that pressing Ctrl-C twice does not interrupt the cleanup. Processes that have
    not ended after the grace time are killed.

    Parameters
    ----------
    what
        ``"command"``, ``"run"`` or ``"job"``, for the message; "" for no message.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    process, grace = os.getpid(), COMMAND_GRACE if what == "command" else GRACE

    def end(number: int, frame: FrameType | None) -> None:
        global _received, _ending_thread, _ignored
        if os.getpid() != process:
            # In a forked process, which its parent ends: act as if there were no handler.
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        if _received is not None:
            if _ignored:
                _ignored = False
                raise EndedBySignal(_received)
            return
        _received = number
        if what:
            # Not through sys.stderr, which the main thread may be writing to. Errors are ignored, because the exit
            # status has the information too.
            with suppress(OSError):
                os.write(2, f"heatproof: {describe_signal(what, number)}\n".encode())
                if what == "command":
                    # Libraries print the errors of imports that the exception interrupts.
                    silence(2)
        # A command ends only Snakemake at first. Snakemake then ends its jobs itself; if jobs ended before it, it would
        # count them as failed.
        snakemake_only = 2.0 if what == "command" else -1.0
        _ending_thread = threading.Thread(target=_end_children, args=(number, grace, snakemake_only), daemon=True)
        _ending_thread.start()
        raise EndedBySignal(number)

    for number in SIGNALS:
        if signal.getsignal(number) not in (signal.SIG_IGN, None):
            signal.signal(number, end)
    sys.unraisablehook = _unraisable
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def _unraisable(ignored: sys.UnraisableHookArgs) -> None:
    """Send the signal again if Python ignored `EndedBySignal`, as in a callback of a weak reference.

    Other exceptions are printed, unless a signal has come: objects that it interrupted while they were built raise
    errors when they are destroyed.
    """
    global _ignored
    if not isinstance(ignored.exc_value, EndedBySignal):
        if _received is None:
            sys.__unraisablehook__(ignored)
        return
    _ignored = True
    number = ignored.exc_value.status - 128
    # With a delay, because an exception that is raised here would be ignored again.
    threading.Timer(POLL_SECONDS, signal.pthread_kill, (threading.main_thread().ident, number)).start()


@contextmanager
def signal_handling(what: str) -> Iterator[None]:
    """Install signal handlers within a context. If a signal ends it, wait first until all child processes have ended.

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
        if _ending_thread is not None:
            _ending_thread.join()
        elif threading.current_thread() is threading.main_thread():
            for number, handler in before.items():
                # None stands for a handler that was not installed from Python.
                if handler is not None:
                    signal.signal(number, handler)
            sys.unraisablehook = hook


def run_process(main: Callable[[], int], what: str) -> NoReturn:
    """Run the main function of a process, and exit with the status that it returns.

    Signal handlers are installed before it starts. After it has returned, signals are ignored, because an exit status
    of a signal would make finished work count as unfinished.

    Parameters
    ----------
    main
        Function that returns the exit status.
    what
        As for `install_signal_handlers`.
    """
    install_signal_handlers(what)
    code = main()
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    sys.exit(code)


def end_with_parent(grace: float = GRACE) -> None:
    """Watch the process that started this one, and end when it has ended, so that no process goes on writing.

    Parameters
    ----------
    grace
        Seconds to end by itself.
    """
    pid = os.environ.get(CONTROLLER)
    if not pid:
        return

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
    """Send SIGTERM to processes, wait, and kill those that have not ended after the grace time.

    Parameters
    ----------
    find
        Function that returns the processes; it is called repeatedly, because new ones can be started meanwhile.
    grace
        Grace time in seconds.
    """
    terminated: set[psutil.Process] = set()
    last = time.monotonic() + grace
    while True:
        new = set(find()) - terminated
        for process in new:
            with suppress(psutil.Error):
                process.terminate()
        terminated |= new
        running = [process for process in terminated if _runs(process)]
        if not running:
            return
        if time.monotonic() > last:
            break
        time.sleep(POLL_SECONDS)
    _kill(running)


def children(recursive: bool = True) -> list[psutil.Process]:
    """Return the child processes of this one, without Python's resource tracker, which ends with its parent.

    Parameters
    ----------
    recursive
        Whether to include processes that the child processes have started.
    """
    processes = []
    with suppress(psutil.Error):
        for child in psutil.Process().children(recursive):
            with suppress(psutil.Error):
                if not any("resource_tracker" in part for part in child.cmdline()):
                    processes.append(child)
    return processes


def _runs(process: psutil.Process) -> bool:
    """Return whether a process is running; zombies, whose exit status nobody has read yet, are not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _kill(processes: Iterable[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.Error):
            process.kill()


def _end_children(number: int, grace: float, snakemake_only: float) -> None:
    begun = time.monotonic()
    end_processes(lambda: children(time.monotonic() - begun > snakemake_only), grace)
    threading.Thread(target=_give_up, args=(number, grace), daemon=True).start()


def _give_up(number: int, grace: float) -> None:
    """End this process if its main thread does not end."""
    time.sleep(grace)
    with suppress(OSError, ValueError):
        sys.stdout.flush()
    os._exit(128 + number)

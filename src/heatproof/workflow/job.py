"""Run one job of the workflow in its own process, and report its errors."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress

import psutil

from heatproof.core.perturb.baselines import register_baselines
from heatproof.core.provenance import Key
from heatproof.core.registry import load_plugins
from heatproof.core.signals import (
    EndedBySignal,
    end_with_parent,
    received_signal,
    run_process,
    signal_handling,
    silence,
)
from heatproof.core.specs import Runtime, matches_its_name
from heatproof.errors import HeatproofError, machine_fault
from heatproof.store.manifest import require_manifest
from heatproof.store.publishing import escaped
from heatproof.store.reading import read_json, require_regular
from heatproof.workflow.plan.stage import load_spec

log = logging.getLogger(__name__)

# Seconds that a job has to end after its Snakemake has ended.
ORPHANED = 2.0
# Settings of matplotlib, which it reads from the working folder.
SETTINGS = "matplotlibrc"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the job of a spec file, and return the exit status.

    Parameters
    ----------
    arguments
        The path of a JSON file with ``run``, the class of the stage as ``module:name``, and ``spec``, its fields. How
        jobs run (batch size, threads, device) is in the environment variable ``HEATPROOF_MACHINE``.
    """
    # A short time, because the next run may start as soon as Snakemake has ended.
    end_with_parent(ORPHANED)
    # Warnings of libraries can contain control characters from names of files; the log escapes them.
    logging.captureWarnings(True)
    (path,) = sys.argv[1:] if arguments is None else arguments
    runtime = Runtime(**json.loads(os.environ.get("HEATPROOF_MACHINE", "{}")))

    def work() -> None:
        request = read_json(path)
        if request is None or not matches_its_name(path, request):
            what = "is missing" if request is None else "does not match the digest in its name"
            raise HeatproofError(f"{path}, the specification of the job, {what}: run your snakemake command again.")
        for manifest, key in request.get("reads", {}).items():
            if Key.of(require_manifest(manifest)) != Key(*key):
                raise HeatproofError(
                    f"{manifest} is from another config or other code than this run: run your snakemake command again."
                )
        load_plugins(runtime.plugins)
        if runtime.baselines:
            register_baselines(runtime.baselines)
        try:
            job = load_spec(request["run"], request["spec"])
        except ValueError as error:
            raise HeatproofError(
                f"{path} is not a valid specification for this version of heatproof ({error}): run your snakemake "
                "command again."
            ) from None
        started = psutil.Process().create_time()
        log.info("%s: started in %.2f s", job.name, time.time() - started)
        job.run(runtime)
        log.info("%s: done in %.2f s", job.name, time.time() - started)

    return run_and_report_errors(work, "job")


class _EscapingFormatter(logging.Formatter):
    """Formats lines with control characters escaped, which can come from the name of an image, for example."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        return escaped(super().format(record))


def run_and_report_errors(work: Callable[[], object], what: str = "command") -> int:
    """Run a function, print any error as one sentence, and return the exit status.

    Parameters
    ----------
    work
        The function.
    what
        What it is called in messages: ``"command"`` or ``"job"``.

    Returns
    -------
    int
        0 without an error.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_EscapingFormatter("%(asctime)s %(message)s", datefmt="%H:%M:%S"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    logging.getLogger("heatproof").setLevel(logging.INFO)
    try:
        with signal_handling(what):
            # matplotlib would open it even if it is a pipe, and block.
            if os.path.exists(SETTINGS) and not os.path.isdir(SETTINGS):
                require_regular(SETTINGS, os.stat(SETTINGS).st_mode)
            work()
            # Flushed here and not at exit, so that a closed pipe can be handled below.
            sys.stdout.flush()
    except HeatproofError as error:
        return _signal_status() or _print_error(str(error))
    except BrokenPipeError:
        # The reader of the output has ended, as `head` does.
        silence(sys.stdout.fileno())
    except EndedBySignal as ended:
        return ended.status
    except Exception as error:
        if status := _signal_status():
            return status
        fault = machine_fault(error)
        if fault is not None:
            return _print_error(fault)
        # Without the frames of this module, which are the same for every error.
        within = error.__traceback__
        while within is not None and within.tb_frame.f_code.co_filename == __file__:
            within = within.tb_next
        steps = "".join(traceback.format_exception(error.with_traceback(within)))
        print(escaped(steps), end="", file=sys.stderr)
        return 1
    return 0


def _signal_status() -> int:
    """Return the exit status for the signal that ends this process; 0 if there was none.

    It is needed because a library that a signal interrupts, as during an import, can raise another exception.
    """
    number = received_signal()
    return 0 if number is None else 128 + number


def _print_error(sentence: str) -> int:
    # If the disk is full or the reader has ended, the exit status still shows the error.
    with suppress(OSError):
        print(escaped(f"heatproof: {sentence}"), file=sys.stderr, flush=True)
    return 1


if __name__ == "__main__":
    run_process(main, "job")

"""A signal ends a process gracefully: one message, the exit status, no process left, and no work half done."""

import re
import signal
import subprocess
import sys
import time

import psutil
import pytest
from jobs import job_process

from heatproof.core.provenance import as_json
from heatproof.core.signals import SIGNALS, _runs
from heatproof.core.specs import DatasetSpec
from heatproof.workflow.stages.prepare import Prepare

SENTENCE = (
    "heatproof: The {what} was ended by {name}, for example by a time limit, preemption or a user: run the same "
    "command again; finished work is kept.\n"
)
# The module of jobs, with a shorter grace time.
HASTY = (
    "from heatproof.core import signals\nfrom heatproof.workflow import job\n"
    "signals.GRACE = 0.5\nsignals.run_process(job.main, 'job')"
)


def start(folder, body, program=("-m", "heatproof.workflow.job"), **options):
    """Start a job with a slow function, and return the process when the function runs."""
    lines = ["def dataset(*, seed):", *(f"    {line}" for line in body.splitlines())]
    (folder / "slow.py").write_text("\n".join(["import os, subprocess, sys, time", *lines]))
    prepare_spec = Prepare(dataset=DatasetSpec("slow:dataset", "slow", {}, 0, "x"))
    started = job_process(
        folder, "heatproof.workflow.stages.prepare:Prepare", as_json(prepare_spec), importable=folder, program=program
    )
    job = subprocess.Popen(**started, **options, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert job.stdout.readline() == "in\n"
    return job


def output_of(job):
    """Return the output of a job without lines of its log."""
    output = job.communicate(timeout=60)[1]
    return "".join(line for line in output.splitlines(keepends=True) if not re.match(r"\d\d:\d\d:\d\d ", line))


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_ends_a_job_and_its_children_with_one_sentence(tmp_path, number):
    job = start(tmp_path, "subprocess.Popen(['sleep', '60'])\nprint('in', flush=True)\ntime.sleep(60)")
    children = psutil.Process(job.pid).children(recursive=True)
    assert children
    job.send_signal(number)
    assert output_of(job) == SENTENCE.format(what="job", name=number.name)
    assert job.returncode == 128 + number
    assert not any(map(_runs, children))


def test_a_signal_where_python_ignores_errors_is_not_ignored(tmp_path):
    """Python ignores exceptions in callbacks of weak references, which importing modules can run as well."""
    # A process that is killed after the grace time does not run the function.
    body = "import atexit, weakref\natexit.register(lambda: open('ended', 'w').close())\nclass One: pass\none = One()\n"
    body += "kept = weakref.ref(one, lambda _: (print('in', flush=True), time.sleep(60)))\ndel one\ntime.sleep(60)"
    job = start(tmp_path, body)
    job.send_signal(signal.SIGTERM)
    assert output_of(job) == SENTENCE.format(what="job", name="SIGTERM")
    assert job.returncode == 128 + signal.SIGTERM
    assert (tmp_path / "ended").exists()


def test_destroying_half_built_objects_prints_nothing(tmp_path):
    """Event loops of asyncio are an example: their `__del__` reads attributes that `__init__` had not set yet."""
    body = "class Half:\n    def __init__(self):\n        print('in', flush=True)\n        time.sleep(60)\n"
    body += "        self.whole = True\n    def __del__(self):\n        self.whole\nHalf()"
    job = start(tmp_path, body)
    job.send_signal(signal.SIGTERM)
    assert output_of(job) == SENTENCE.format(what="job", name="SIGTERM")
    assert job.returncode == 128 + signal.SIGTERM


@pytest.mark.parametrize("error", ["ImportError", "SystemError"])
def test_an_error_that_a_library_raises_after_a_signal_is_not_reported(tmp_path, error):
    """An extension module that is interrupted during its import is an example."""
    body = "try:\n    print('in', flush=True)\n    time.sleep(60)\n"
    job = start(tmp_path, f"{body}except SystemExit as ended:\n    raise {error}(f'not imported: {{ended}}')")
    job.send_signal(signal.SIGHUP)
    assert output_of(job) == SENTENCE.format(what="job", name="SIGHUP")
    assert job.returncode == 128 + signal.SIGHUP


def test_further_signals_do_not_interrupt_cleanup(tmp_path):
    body = "try:\n    print('in', flush=True)\n    time.sleep(60)\nfinally:\n    time.sleep(1)\n"
    job = start(tmp_path, body + "    open('tidied', 'w').close()")
    for number in (*SIGNALS, *SIGNALS):
        job.send_signal(number)
        time.sleep(0.1)
    assert output_of(job) == SENTENCE.format(what="job", name="SIGTERM")
    assert job.returncode == 143
    assert (tmp_path / "tidied").exists()


STUBBORN = (
    "import signal, time\n"
    "for number in (1, 2, 15):\n    signal.signal(number, signal.SIG_IGN)\n"
    "print(1, flush=True)\ntime.sleep(60)"
)


@pytest.mark.parametrize(
    "body",
    [
        f"child = subprocess.Popen([sys.executable, '-c', {STUBBORN!r}], stdout=subprocess.PIPE)\n"
        "child.stdout.readline()\nprint('in', flush=True)\ntime.sleep(60)",
        "print('in', flush=True)\nwhile True:\n    try:\n        time.sleep(60)\n    except SystemExit:\n        pass",
    ],
    ids=["a child that ignores signals", "a main thread that does"],
)
def test_processes_that_do_not_end_are_killed_after_a_grace_time(tmp_path, body):
    job = start(tmp_path, body, ("-c", HASTY))
    tree = [psutil.Process(job.pid), *psutil.Process(job.pid).children(recursive=True)]
    job.terminate()
    assert output_of(job) == SENTENCE.format(what="job", name="SIGTERM")
    assert job.returncode == 143
    assert not any(map(_runs, tree))


def test_a_signal_that_is_ignored_stays_ignored(tmp_path):
    """Signals are ignored under nohup, and in the background of a script."""
    body = "print('in', flush=True)\ntime.sleep(1)\nopen('went on', 'w').close()\ntime.sleep(60)"
    job = start(tmp_path, body, preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    job.send_signal(signal.SIGHUP)
    while not (tmp_path / "went on").exists():
        assert job.poll() is None
        time.sleep(0.05)
    job.terminate()
    assert output_of(job) == SENTENCE.format(what="job", name="SIGTERM")


def test_a_finished_process_ignores_signals(tmp_path):
    """Snakemake removes the outputs of a job with another exit status than 0."""
    program = (
        "import atexit, time\nfrom heatproof.core.signals import run_process\n"
        "@atexit.register\ndef slow():\n    print('bye', flush=True)\n    time.sleep(1)\nrun_process(lambda: 0, 'job')"
    )
    job = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert job.stdout.readline() == "bye\n"
    for number in SIGNALS:
        job.send_signal(number)
    assert output_of(job) == ""
    assert job.returncode == 0


def test_a_forked_process_that_is_ended_prints_nothing(tmp_path):
    body = (
        "reading, writing = os.pipe()\nchild = os.fork()\n"
        "if not child:\n    os.write(writing, b'.')\n    time.sleep(60)\n    os._exit(1)\n"
        "os.read(reading, 1)\nos.kill(child, 15)\nprint('in', flush=True)\n"
    )
    job = start(tmp_path, body + "raise ValueError(f'child ended with {os.waitpid(child, 0)[1]}')")
    output = job.communicate(timeout=60)[1]
    assert "child ended with 15" in output
    assert "heatproof: The job" not in output


@pytest.mark.parametrize("reaped", [True, False], ids=["gone", "waits for its parent"])
def test_a_job_and_its_children_end_with_its_controller(tmp_path, reaped, monkeypatch):
    controller = subprocess.Popen(["sleep", "60"])
    monkeypatch.setenv("HEATPROOF_CONTROLLER", str(controller.pid))
    job = start(tmp_path, "subprocess.Popen(['sleep', '60'])\nprint('in', flush=True)\ntime.sleep(60)")
    children = psutil.Process(job.pid).children(recursive=True)
    controller.kill()
    if reaped:
        controller.wait()
    output_of(job)
    controller.wait()
    assert job.returncode == 143
    assert not any(map(_runs, children))

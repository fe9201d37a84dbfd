"""A Python that starts with libraries imported already, for Snakemake and its jobs in tests.

Importing Snakemake or torch takes longer than what either does in a run over a micro config. `python()` returns a
command that stands for `sys.executable`: what it is asked to run is forked from a process of this session that has
imported the libraries, and nothing of heatproof. Tests that kill processes, or run what users install, start a real
Python.

This file is run as a script by both sides, and so imports little.
"""

import array
import json
import os
import select
import signal
import socket
import sys
from functools import cache

LIBRARIES = (
    "captum.attr",
    "matplotlib.backends.backend_agg",
    "matplotlib.backends.backend_svg",
    "pandas",
    "pyarrow.parquet",
    "pydantic",
    "scipy.stats",
    "seaborn",
    "snakemake.cli",
    "statsmodels.stats.multitest",
    "torchvision",
    "zarr",
)
SIZE = 1 << 20


@cache
def python() -> str:
    """Return the command, whose process is started by the first call and ends with this one."""
    import atexit
    import shlex
    import subprocess
    import tempfile
    from pathlib import Path

    folder = tempfile.TemporaryDirectory(prefix="preloaded-")
    atexit.register(folder.cleanup)
    address, command = f"{folder.name}/socket", Path(folder.name) / "python"
    command.write_text(f'#!/bin/sh\nexec {shlex.join([sys.executable, "-I", "-S", __file__, address])} "$0" "$@"\n')
    command.chmod(0o755)
    # Each request has its own path to heatproof.
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment.pop("PYTHONPATH", None)
    server_command = [sys.executable, "-P", __file__, address]
    started = subprocess.Popen(server_command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
    assert started.stdout.readline() == b"ready\n"
    # It ends when its input ends, even if this process is killed.
    atexit.register(started.stdin.close)
    return str(command)


def serve(address: str) -> None:
    """Import the libraries, and fork for each request until the input ends."""
    import gc
    import importlib
    import threading

    for library in LIBRARIES:
        importlib.import_module(library)
    ours = [name for name in sys.modules if name.partition(".")[0] == "heatproof"]
    assert not ours, "tests edit the code of heatproof"
    assert threading.active_count() == 1, "threads are lost in a fork"
    gc.collect()
    gc.freeze()
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(address)
    listening.listen(64)
    # The processes that handle requests are not awaited.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    print("ready", flush=True)
    while True:
        ready, _, _ = select.select([listening, 0], [], [])
        if 0 in ready:
            return
        connection, _ = listening.accept()
        if not os.fork():
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            listening.close()
            os._exit(handle_request(connection))
        connection.close()


def handle_request(connection: socket.socket) -> int:
    """Fork once more to run the request, and send its exit status; kill it if the client disconnects."""
    message, ancillary, _, _ = connection.recvmsg(SIZE, socket.CMSG_SPACE(3 * 4))
    files = array.array("i", ancillary[0][2])
    length, _, text = message.partition(b"\n")
    while len(text) < int(length):
        text += connection.recv(SIZE)
    request = json.loads(text)
    process = os.fork()
    if not process:
        connection.close()
        for number, file in enumerate(files):
            os.dup2(file, number)
            os.close(file)
        run(**request)
    for file in files:
        os.close(file)
    ended = os.pidfd_open(process)
    ready, _, _ = select.select([ended, connection], [], [])
    if ended not in ready:
        os.kill(process, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    if ended in ready:
        connection.sendall(str(status).encode())
    return 0


def run(command: str, arguments: list[str], folder: str, environment: dict[str, str]) -> None:
    """Do as Python does with `[-P] -m MODULE [ARGUMENT …]` or `SCRIPT [ARGUMENT …]`."""
    import runpy

    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    safe = arguments[0] == "-P" or bool(environment.get("PYTHONSAFEPATH"))
    remaining = arguments[arguments[0] == "-P" :]
    is_module = remaining[0] == "-m"
    what, *rest = remaining[1:] if is_module else [os.path.abspath(remaining[0]), *remaining[1:]]
    here = folder if is_module else os.path.dirname(what)
    path = environment.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:0] = [entry for entry in ([] if safe else [here]) + path if entry]
    # Jobs are started with the command as well.
    sys.executable, sys.argv = command, [what, *rest]
    status = 0
    try:
        if is_module:
            runpy.run_module(what, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(what, run_name="__main__")
    except SystemExit as ended:
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
        status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        status = 1
    finally:
        import atexit
        import threading

        threading._shutdown()
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def ask(address: str, command: str, *arguments: str) -> int:
    """Ask for a run with the files, folder and environment of this process, and return its exit status."""
    request = {"command": command, "arguments": arguments, "folder": os.getcwd(), "environment": dict(os.environ)}
    text = json.dumps(request).encode()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        files = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0, 1, 2]))]
        connection.sendmsg([b"%d\n" % len(text)], files)
        connection.sendall(text)
        status = int(connection.recv(16) or b"1")
    if status < 0:
        # Killed by a signal: the exit status as a shell reports it.
        return 128 - status
    return status


if __name__ == "__main__":
    sys.exit(ask(*sys.argv[1:]) if len(sys.argv) > 2 else serve(sys.argv[1]))

"""The preloaded Python of these tests acts like the real one, and ends together with the process that started it."""

import os
import subprocess
import sys
import time

import preloaded
import psutil
import pytest

MODULE = """
import os
import sys

print(sys.argv[1:], __name__, __file__, os.getcwd(), os.environ["ASKED"], "heatproof" in sys.modules)
print("said", file=sys.stderr)
match sys.argv[1]:
    case "sleeps":
        print(os.getpid(), flush=True)
        import time
        time.sleep(600)
    case "again":
        import subprocess
        sys.exit(subprocess.run([sys.executable, "-P", "-m", "mine", "four"]).returncode)
    case "sentence":
        sys.exit("in one sentence")
    case "raises":
        raise RuntimeError("no such thing")
    case "four":
        sys.exit(4)
    case "killed":
        os.kill(os.getpid(), 9)
"""


@pytest.fixture
def process_arguments(tmp_path):
    """Return arguments of subprocess that start the module with some Python."""
    (tmp_path / "mine.py").write_text(MODULE)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "ASKED": "yes"}
    environment.pop("PYTHONSAFEPATH", None)

    def arguments(python, *words, what=("-m", "mine")):
        return {"args": [python, *what, *words], "cwd": tmp_path, "env": environment, "text": True}

    return arguments


@pytest.mark.slow
@pytest.mark.workflow
def test_the_output_equals_that_of_python(process_arguments):
    for words in (["fine", "'a b'"], ["again"], ["sentence"], ["raises"], ["four"]):
        for what in (["-m", "mine"], ["mine.py"]):
            ours, real = (
                subprocess.run(**process_arguments(python, *words, what=what), capture_output=True, timeout=100)
                for python in (preloaded.python(), sys.executable)
            )
            assert (ours.returncode, ours.stdout) == (real.returncode, real.stdout)
            assert ours.stderr.splitlines()[-1] == real.stderr.splitlines()[-1]
    assert subprocess.run(**process_arguments(preloaded.python(), "killed")).returncode == 128 + 9


@pytest.mark.slow
@pytest.mark.workflow
def test_preloaded_processes_end_with_the_process_that_started_them(process_arguments):
    running = subprocess.Popen(**process_arguments(preloaded.python(), "sleeps"), stdout=subprocess.PIPE)
    running.stdout.readline()
    process = psutil.Process(int(running.stdout.readline()))
    running.kill()
    running.wait()
    deadline = time.monotonic() + 60
    while process.is_running() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not process.is_running()

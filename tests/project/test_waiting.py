"""`finished` waits for a process that works, and ends an idle one."""

import os
import subprocess
import sys

import pytest
from waiting import finished

WORKS = "import os\nwhile os.times().user < 1.5: pass\nprint('done')"


def test_finished_waits_for_a_process_that_works():
    assert finished([sys.executable, "-c", WORKS], idle=0.5).stdout == "done\n"


def test_work_of_child_processes_counts():
    program = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {WORKS!r}])"
    assert finished([sys.executable, "-c", program], idle=0.5).stdout == "done\n"


def test_an_idle_process_is_ended(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(subprocess.TimeoutExpired):
        finished([sys.executable, "-c", f"open({str(tmp_path / 'pipe')!r})"], idle=1.0)

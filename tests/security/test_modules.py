"""A module in the working folder, which somebody may have sent, does not run in place of a library."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import heatproof
from heatproof.config import default_config
from heatproof.plan.validate import make_plan
from heatproof.workflow import RUN, job_environment

SOURCE = Path(heatproof.__file__).parents[1]
# Of the user's own, as a job runs it.
STAGE = """
from heatproof.stage import Stage, stage


@stage("work")
class Work(Stage):
    def work(self, runtime):
        return lambda: print("worked")
"""
NAMES = ("psutil", "yaml", "numpy", "torch", "pydantic", "safetensors", "my_plugin")


@pytest.fixture
def received(tmp_path):
    """Return a folder with modules that leave a trace when they are imported."""
    for name in NAMES:
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'a').write({name!r} + ' ')\n")
    return tmp_path


def run(folder, command, **environment):
    given = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    given |= {"PYTHONPATH": str(SOURCE), **environment}
    return subprocess.run(command, cwd=folder, env=given, capture_output=True, text=True)


def test_the_command_line_imports_nothing_from_the_working_folder(received):
    for words in (["--version"], ["list", "metrics"]):
        done = run(received, [sys.executable, "-m", "heatproof", *words])
        assert done.returncode == 0, done.stderr
        assert not (received / "ran").exists()


def shell_of_a_job() -> str:
    return RUN.replace("{params.spec:q}", "spec.json").replace("{log:q}", "log").replace("{{", "{").replace("}}", "}")


def test_jobs_import_nothing_from_the_working_folder(received):
    (received / "spec.json").write_text('{"run": "my_plugin:work", "spec": {}}')
    environment = job_environment(make_plan(default_config()), "here", [])
    done = run(received, ["bash", "-c", shell_of_a_job()], **environment, PYTHONPATH=str(SOURCE))
    assert done.returncode != 0
    assert "No module named 'my_plugin'" in (received / "log").read_text()
    assert not (received / "ran").exists()


def test_processes_of_a_job_import_nothing_from_the_working_folder(received):
    environment = job_environment(make_plan(default_config()), "here", [])
    done = run(received, [sys.executable, "-c", "import psutil"], **environment)
    assert done.returncode == 0, done.stderr
    assert not (received / "ran").exists()


def test_code_of_the_users_own_is_imported_from_pythonpath(received):
    """What the documentation promises: installed, or on PYTHONPATH."""
    (received / "own").mkdir()
    (received / "own" / "my_code.py").write_text(STAGE)
    (received / "spec.json").write_text('{"run": "my_code:Work", "spec": {}}')
    environment = job_environment(make_plan(default_config()), "here", [])
    environment["PYTHONPATH"] = f"{SOURCE}:{received / 'own'}"
    done = run(received, ["bash", "-c", shell_of_a_job()], **environment)
    assert done.returncode == 0, (received / "log").read_text()
    assert "worked" in (received / "log").read_text()
    assert not (received / "ran").exists()

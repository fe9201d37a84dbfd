"""A module in the working folder, which may come from an untrusted source, does not replace a library."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import heatproof
from heatproof.core.specs import spec_file_name
from heatproof.workflow.config.files import default_config
from heatproof.workflow.plan.validate import make_plan
from heatproof.workflow.start import JOB_COMMAND, job_environment

SOURCE = Path(heatproof.__file__).parents[1]
# A user's module, as a job imports it.
STAGE = """
from heatproof.workflow.plan.stage import Stage, stage


@stage("work")
class Work(Stage):
    def run(self, runtime):
        print("worked")
"""
NAMES = ("psutil", "yaml", "numpy", "torch", "pydantic", "safetensors", "my_plugin")


@pytest.fixture
def received(tmp_path):
    """Return a folder with modules that write a file when they are imported."""
    for name in NAMES:
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'a').write({name!r} + ' ')\n")
    return tmp_path


def run(folder, command, **environment):
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    variables |= {"PYTHONPATH": str(SOURCE), **environment}
    return subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True)


def test_the_command_line_imports_nothing_from_the_working_folder(received):
    for words in (["--version"], ["list", "metrics"]):
        done = run(received, [sys.executable, "-m", "heatproof", *words])
        assert done.returncode == 0, done.stderr
        assert not (received / "ran").exists()


def spec_of(folder, run):
    """Write the spec of a job, and return the name of the file."""
    spec = {"run": run, "spec": {}}
    (folder / spec_file_name("work", spec)).write_text(json.dumps(spec))
    return spec_file_name("work", spec)


def environment_of():
    return job_environment(make_plan(default_config()), "here", [])


def shell_of_a_job(spec) -> str:
    return JOB_COMMAND.replace("{params.spec:q}", spec).replace("{log:q}", "log").replace("{{", "{").replace("}}", "}")


def test_jobs_import_nothing_from_the_working_folder(received):
    spec = spec_of(received, "my_plugin:Work")
    environment = environment_of() | {"PYTHONPATH": str(SOURCE)}
    environment["HEATPROOF_MACHINE"] = json.dumps({"plugins": ["my_plugin"]})
    done = run(received, ["bash", "-c", shell_of_a_job(spec)], **environment)
    assert done.returncode != 0
    assert "No module named 'my_plugin'" in (received / "log").read_text()
    assert not (received / "ran").exists()


NO_STAGES = {
    "a module on PYTHONPATH that the config does not name": "my_code:Work",
    "a program": "os:system",
    "a class that is no stage": "heatproof.core.specs:Runtime",
    "no stage of its own": "heatproof.workflow.plan.stage:Stage",
    "a function of a stage's module": "heatproof.workflow.stages.prepare:names_files",
    "no module": "heatproof.workflow.stages.none:None",
    "a method": "heatproof.workflow.stages.prepare:Prepare.run",
    "nothing": "",
}


@pytest.mark.parametrize("reference", NO_STAGES.values(), ids=list(NO_STAGES))
def test_a_job_runs_only_stages(received, reference):
    """Specs are in the results folder, which may come from an untrusted source."""
    (received / "own").mkdir()
    (received / "own" / "my_code.py").write_text(f"open({str(received / 'ran')!r}, 'w')\n{STAGE}")
    spec = spec_of(received, reference)
    environment = environment_of() | {"PYTHONPATH": f"{SOURCE}:{received / 'own'}"}
    done = run(received, ["bash", "-c", shell_of_a_job(spec)], **environment)
    assert done.returncode == 1
    log = (received / "log").read_text()
    assert "is no stage of heatproof or of a plugin): run your snakemake command again" in log
    assert "Traceback" not in log
    assert not (received / "ran").exists()


CHANGES = {
    "another stage": lambda content: content | {"run": "my_code:Other"},
    "another field": lambda content: content | {"spec": {"grid": 5}},
    "no stage": lambda content: {"spec": content["spec"]},
    "a number": lambda content: content | {"run": 5},
    "odd keys of what is read": lambda content: content | {"reads": {"x": "yz"}},
    "a list of what is read": lambda content: content | {"reads": ["x"]},
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=list(CHANGES))
def test_a_job_refuses_a_spec_that_does_not_match_its_name(received, change):
    spec = spec_of(received, "heatproof.workflow.stages.prepare:Prepare")
    content = json.loads((received / spec).read_text())
    (received / spec).write_text(json.dumps(change(content)))
    done = run(received, ["bash", "-c", shell_of_a_job(spec)], **environment_of())
    assert done.returncode == 1
    log = (received / "log").read_text()
    assert "the specification of the job, does not match the digest in its name: run your snakemake" in log
    assert "Traceback" not in log


def test_processes_of_a_job_import_nothing_from_the_working_folder(received):
    environment = environment_of()
    done = run(received, [sys.executable, "-c", "import psutil"], **environment)
    assert done.returncode == 0, done.stderr
    assert not (received / "ran").exists()


def test_user_code_is_imported_from_pythonpath(received):
    """As documented, stages of a plugin run if it is installed or on PYTHONPATH."""
    (received / "own").mkdir()
    (received / "own" / "my_code.py").write_text(STAGE)
    spec = spec_of(received, "my_code:Work")
    environment = environment_of() | {"PYTHONPATH": f"{SOURCE}:{received / 'own'}"}
    environment["HEATPROOF_MACHINE"] = json.dumps({"plugins": ["my_code"]})
    done = run(received, ["bash", "-c", shell_of_a_job(spec)], **environment)
    assert done.returncode == 0, (received / "log").read_text()
    assert "worked" in (received / "log").read_text()
    assert not (received / "ran").exists()


@pytest.mark.parametrize("path", [":{}", "{}:", ":{}:", "{}::{}"])
def test_an_empty_entry_of_pythonpath_does_not_mean_the_working_folder(received, path):
    """PYTHONPATH=$PYTHONPATH:/mine leaves an empty entry, which Python takes for the working folder."""
    command = [sys.executable, "-m", "heatproof", "list", "metrics"]
    done = run(received, command, PYTHONPATH=path.format(SOURCE, SOURCE))
    assert done.returncode == 0, done.stderr
    assert not (received / "ran").exists()

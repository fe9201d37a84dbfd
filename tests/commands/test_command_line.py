"""The command line: exit status, one sentence on errors, and jobs that end with their Snakemake."""

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest
from jobs import job_process, spec_file

from heatproof.core.provenance import Key, as_json
from heatproof.core.specs import DatasetSpec
from heatproof.workflow import job
from heatproof.workflow.commands.cli import main
from heatproof.workflow.stages.prepare import Prepare

DATASET = DatasetSpec("digits", "heatproof.datasets.digits", {}, 0, "digits", Key("config", "code"))
PREPARE = "heatproof.workflow.stages.prepare:Prepare"
SLOW = """
import time
from heatproof.datasets.digits import digits

def load(*, seed):
    time.sleep({})
    return digits(seed=seed)
"""


def prepare_file(folder, manifest, **change):
    """Write the spec of the job of a dataset, and return its path."""
    prepare_spec = Prepare(dataset=replace(DATASET, **change), manifest=str(manifest))
    return spec_file(folder, PREPARE, as_json(prepare_spec))


def test_a_job_runs_its_stage(tmp_path, capsys):
    path = tmp_path / "digits.json"
    assert job.main([prepare_file(tmp_path, path)]) == 0
    assert json.loads(path.read_text())["name"] == "digits"
    assert capsys.readouterr().out == ""


def test_a_missing_spec_is_reported(tmp_path, capsys):
    assert job.main([str(tmp_path / "gone.json")]) == 1
    output = capsys.readouterr().err
    assert "gone.json, the specification of the job, is missing: run your snakemake command again." in output
    assert "Traceback" not in output


@pytest.mark.parametrize("change", [{"another": 1}, {"dataset": None}, {"key": ["one"]}])
def test_a_spec_of_another_version_is_refused_in_one_sentence(tmp_path, capsys, change):
    prepare_spec = as_json(Prepare(dataset=DATASET, manifest=str(tmp_path / "x.json")))
    assert job.main([spec_file(tmp_path, PREPARE, {**prepare_spec, **change})]) == 1
    output = capsys.readouterr().err
    assert "is not a valid specification for this version of heatproof (the job" in output
    assert next(iter(change)) in output
    assert "Traceback" not in output


def test_an_error_is_one_line_and_status_1(tmp_path, capsys):
    assert job.main([prepare_file(tmp_path, tmp_path / "x.json", kind="no_such_module:load")]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    lines = [line for line in printed.err.splitlines() if line.startswith("heatproof: ")]
    assert len(lines) == 1
    assert "no_such_module:load" in lines[0]
    assert "Traceback" not in printed.err


@pytest.mark.parametrize("arguments", [[], ["no_such_command", "{}"], ["list", "colours"], ["check"]])
def test_wrong_use_is_status_2(arguments, capsys):
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert "usage: heatproof" in capsys.readouterr().err


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_closed_pipe_is_not_an_error(unbuffered):
    """For example, `heatproof list methods | head -1` closes the pipe."""
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "heatproof", "list", "methods"],
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


def run_slowly(tmp_path, seconds, controller):
    (tmp_path / "slow.py").write_text(SLOW.format(seconds))
    prepare_spec = Prepare(dataset=replace(DATASET, kind="slow:load"), manifest=str(tmp_path / "digits.json"))
    started = job_process(
        tmp_path, PREPARE, as_json(prepare_spec), importable=tmp_path, HEATPROOF_CONTROLLER=str(controller)
    )
    return subprocess.run(**started, capture_output=True, text=True, timeout=120, check=False)


def test_a_job_ends_after_its_snakemake(tmp_path):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    done = run_slowly(tmp_path, 100, gone.pid)
    assert done.returncode == 143, done.stderr
    assert not (tmp_path / "digits.json").exists()


def test_a_job_runs_on_while_its_snakemake_lives(tmp_path):
    done = run_slowly(tmp_path, 1.2, os.getpid())
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "digits.json").exists()

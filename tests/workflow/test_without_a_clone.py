"""The wheel contains the workflow: it makes the same table without a clone of the repository."""

import os
import shutil
import subprocess
import sys

import pytest
import yaml
from snakemake_project import MICRO, REPOSITORY, TABLE

from heatproof.errors import HeatproofError
from heatproof.workflow.config.files import config_file, workflow_folder


def test_a_config_is_a_file_or_a_shipped_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert config_file("quick") == workflow_folder() / "config/quick.yaml"
    (tmp_path / "quick").write_text("{}")
    assert config_file("quick") == workflow_folder() / "config/quick.yaml", "which nobody else's file stands in for"
    assert config_file("./quick").samefile("quick")
    with pytest.raises(HeatproofError, match="quick"):
        config_file("quik")


@pytest.mark.slow
@pytest.mark.workflow
def test_status_counts_finished_jobs(project):
    before = project.heatproof("status", "micro.yaml").stdout
    assert "pretrain             1 of     1 jobs" in before
    assert " are left: `heatproof run micro.yaml` runs them." in before


def copy_as_the_dockerfile_does(folder):
    """Copy the files that the container image is built from."""
    folder.mkdir()
    for line in (REPOSITORY / "envs/Dockerfile").read_text(encoding="utf-8").splitlines():
        if line.startswith("COPY "):
            *names, target = line.split()[1:]
            for name in names:
                source = REPOSITORY / name
                if source.is_dir():
                    shutil.copytree(source, folder / target, ignore=shutil.ignore_patterns("__pycache__"))
                else:
                    shutil.copy(source, folder / target)


@pytest.mark.slow
@pytest.mark.workflow
def test_the_wheel_alone_makes_the_same_table(finished, tmp_path):
    source, wheels, site, work = (tmp_path / name for name in ("source", "wheels", "site", "work"))
    copy_as_the_dockerfile_does(source)
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", str(source), "-w", str(wheels)]
    subprocess.run(build, check=True, capture_output=True, timeout=300)
    (wheel,) = wheels.glob("*.whl")
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(site), str(wheel)]
    subprocess.run(install, check=True, capture_output=True, timeout=300)
    work.mkdir()
    (work / "mine.yaml").write_text(yaml.safe_dump(MICRO))
    environment = {**os.environ, "PYTHONPATH": str(site), "OMP_NUM_THREADS": "1"}

    def heatproof(*arguments):
        done = subprocess.run(
            [sys.executable, "-m", "heatproof", *arguments],
            cwd=work,
            env=environment,
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    heatproof("run", "mine.yaml", "--cores", "2", "--target", TABLE)
    assert (work / TABLE).read_bytes() == (finished.folder / TABLE).read_bytes()
    assert "Nothing to be done" in heatproof("run", "mine.yaml", "--cores", "2", "--target", TABLE)
    assert "pretrain             1 of     1 jobs" in heatproof("status", "mine.yaml")
    assert "jobs" in heatproof("run", "mine.yaml", "--dry-run")


OUTER = """
configfile: "mine.yaml"


module heatproof:
    snakefile:
        "{snakefile}"
    config:
        config


use rule * from heatproof


rule best:
    default_target: True
    input:
        "results/idsds_table.csv",
    output:
        "best.csv",
    shell:
        "head -n 2 {{input}} > {{output}}"
"""


@pytest.mark.slow
@pytest.mark.workflow
def test_another_workflow_can_use_heatproof_as_a_module(finished, tmp_path):
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(MICRO))
    # As `snakedeploy deploy-workflow` names it.
    (tmp_path / "Snakefile").write_text(OUTER.format(snakefile=REPOSITORY / "workflow/Snakefile"))
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "snakemake", "--cores", "2"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / TABLE).read_bytes() == (finished.folder / TABLE).read_bytes()
    assert len((tmp_path / "best.csv").read_text().splitlines()) == 2

"""Results of another config are never used, and damage is reported and repaired by the same command."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess

import pytest
from snakemake_project import TABLE, Project

pytestmark = [pytest.mark.workflow, pytest.mark.slow]


def with_seed(project: Project, folder, seed: int) -> Project:
    other = project.copy(folder)
    other.config["seed"] = seed
    return other


def test_results_of_another_config_that_are_copied_over_own_results_are_replaced(project, tmp_path):
    """Snakemake's records list all results as made in this folder."""
    own_tables = project.tables()
    other = with_seed(project, tmp_path / "other", 1)
    other.run()
    theirs = other.tables()
    assert theirs[os.path.basename(TABLE)] != own_tables[os.path.basename(TABLE)]
    shutil.rmtree(project.folder / "results")
    shutil.copytree(other.folder / "results", project.folder / "results")
    # A mixture: reference maps, which do not use the model, from the own seed, and all others from another one.
    project.run()
    assert project.tables() == own_tables


def test_two_working_folders_cannot_run_in_one_results_folder_at_once(project, tmp_path):
    """The second run is refused, and changes no results of the first; later it makes its own."""
    own_tables = project.tables()
    other = with_seed(project, tmp_path / "other", 1)
    shutil.rmtree(other.folder / "results")
    os.symlink(project.folder / "results", other.folder / "results")
    (project.folder / TABLE).unlink()
    running = subprocess.Popen(
        project.command(TABLE), cwd=project.folder, env=project.environment(), stderr=subprocess.PIPE, text=True
    )
    for line in running.stderr:
        if "scores of" in line or "tables" in line or "host" in line:
            break
    running.send_signal(signal.SIGSTOP)
    printed = other.run(fails=True)
    assert "heatproof: Another run works on results (process " in printed
    running.send_signal(signal.SIGCONT)
    running.communicate(timeout=300)
    assert running.returncode == 0
    assert project.tables() == own_tables
    other.run()
    assert other.tables() != own_tables
    project.run()
    assert project.tables() == own_tables


@pytest.mark.parametrize("also", ["nothing", "its manifest is damaged", "its manifest is lost"])
def test_a_damaged_table_is_reported_and_made_again(project, also):
    own_tables, table, manifest = project.tables(), project.folder / TABLE, project.folder / "results/tables.json"
    table.write_bytes(table.read_bytes().replace(b"0.", b"1.", 1))
    if also == "its manifest is damaged":
        manifest.write_bytes(manifest.read_bytes()[:-40])
    elif also == "its manifest is lost":
        manifest.unlink()
    printed = project.run()
    if also != "its manifest is lost":
        assert "is damaged" in printed
    assert project.tables() == own_tables
    assert "Nothing to be done" in project.run() or "nothing to do" in project.run().lower()


def test_a_results_folder_with_a_linked_folder_is_refused(project, tmp_path):
    """Snakemake removes outputs before it makes them; through a link, it would remove files elsewhere."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site/index.html").write_text("kept")
    os.symlink(tmp_path / "site", project.folder / "results/report")
    printed = project.run("results/report/index.html", fails=True)
    assert "results/report is a symbolic link" in printed
    assert (tmp_path / "site/index.html").read_text() == "kept"


def test_results_of_another_target_are_not_computed_again(project):
    own_tables = project.tables()
    project.config["target"] = 3
    project.run()
    assert project.tables() != own_tables
    project.config["target"] = "label"
    printed = project.run()
    assert project.tables() == own_tables
    assert "attribution maps" not in printed
    assert "patch drops" not in printed
    assert "scores of" not in printed
    project.config["target"] = 3
    assert "attribution maps" not in project.run()


def test_another_directory_has_the_same_defaults(project, tmp_path):
    """A folder without its own config/config.yaml: the result is the same, byte for byte."""
    project.config.pop("pretraining")
    own_project = project.copy(tmp_path / "own")
    own_project.run()
    elsewhere = tmp_path / "elsewhere"
    own_project.run("--directory", str(elsewhere), TABLE)
    assert (elsewhere / TABLE).read_bytes() == (own_project.folder / TABLE).read_bytes()

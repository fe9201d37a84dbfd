"""Kill a job or Snakemake at random moments: the same command again ends with the same bytes.

`tests/faults/kills.py` does so in each stage of a run.
"""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import time

import psutil
import pytest
from snakemake_project import MICRO, TABLE, Project, clone

from heatproof.store.manifest import read_if_intact
from heatproof.store.reading import read_json

pytestmark = pytest.mark.workflow

SEED = 0


def start(project: Project) -> subprocess.Popen:
    return subprocess.Popen(
        project.command(TABLE),
        cwd=project.folder,
        env=project.environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def workers(controller: int) -> list[psutil.Process]:
    try:
        children = psutil.Process(controller).children(recursive=True)
        return [child for child in children if "heatproof.workflow.job" in child.cmdline()]
    except psutil.Error:
        return []


def kill(running: subprocess.Popen, what: str, number: signal.Signals) -> str:
    """Kill a process of the requested kind, and return what was hit."""
    victims = workers(running.pid)
    if what == "worker" and victims:
        victims[0].send_signal(number)
        running.wait(timeout=300)
        return "worker"
    running.send_signal(number)
    running.wait(timeout=300)
    # The jobs detect that Snakemake has ended, and end too.
    psutil.wait_procs(victims, timeout=30)
    assert not any(victim.is_running() and victim.status() != psutil.STATUS_ZOMBIE for victim in victims)
    return "snakemake"


def assert_all_manifests_hold(project: Project) -> None:
    # Temporary files of killed jobs are not manifests.
    for path in (project.folder / "results").rglob("[!.]*.json"):
        content = read_json(path)
        if content and "files" in content:
            assert read_if_intact(path, content["key"]), f"{path} says what its files are not"


def lose(project: Project, folder: str) -> None:
    """Remove a folder of results and all tables, so that there is work to do."""
    shutil.rmtree(project.folder / "results" / folder)
    for path in [*(project.folder / "results").glob("*.csv"), project.folder / "results/tables.json"]:
        path.unlink()


@pytest.mark.parametrize("kills", [pytest.param(2, marks=pytest.mark.slow), pytest.param(10, marks=pytest.mark.long)])
def test_a_run_that_is_killed_at_random_moments_ends_with_the_same_results(finished, tmp_path, kills):
    project = Project(clone(tmp_path / "project"), MICRO)
    project.write_config()
    draw = random.Random(SEED)
    hits = []
    while len(hits) < kills or len(set(hits)) < 2:
        running = start(project)
        deadline = time.monotonic() + draw.uniform(2.5, 12)
        while running.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        if running.poll() is None:
            number = draw.choice([signal.SIGKILL, signal.SIGTERM])
            hits.append(kill(running, draw.choice(["worker", "snakemake"]), number))
            assert_all_manifests_hold(project)
        else:
            # The run ended between two kills: remove results, so that the next kill can interrupt work.
            assert running.returncode == 0
            lose(project, draw.choice(["maps", "drops", "scores"]))
    project.run()
    assert project.tables() == finished.tables()
    assert project.manifests() == finished.manifests()
    assert_all_manifests_hold(project)

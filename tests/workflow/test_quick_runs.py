"""Quick tests with real Snakemake: a new run, a rerun, and a kill."""

from __future__ import annotations

import copy
import shutil
import signal
import time

import pytest
from snakemake_project import MICRO, Project, clone
from test_kills import assert_all_manifests_hold, kill, lose, start, workers

pytestmark = pytest.mark.workflow


def test_a_run_is_complete_after_an_edit_and_after_a_kill(tmp_path):
    project = Project(clone(tmp_path / "project"), copy.deepcopy(MICRO))
    project.config["evaluation"]["images"] = 4
    stages = ("prepare", "pretrain", "finetune", "drops", "attribute", "attribute_reference", "score", "tables")
    assert project.ran() == dict.fromkeys(stages, 1)
    project.edit("src/heatproof/metrics/arrays.py", "import numpy as np", "import numpy as np\n\nEDITED = True")
    assert project.ran() == {"score": 1, "tables": 1}
    tables = project.tables()
    shutil.rmtree(project.folder / "results/scores")
    lose(project, "maps")
    running = start(project)
    while running.poll() is None and not workers(running.pid):
        time.sleep(0.05)
    assert kill(running, "worker", signal.SIGKILL) == "worker"
    assert_all_manifests_hold(project)
    resumed = project.ran()
    assert resumed.pop("attribute", 0) + resumed.pop("attribute_reference", 0) > 0, "the other may have come to its end"
    assert resumed == {"score": 1, "tables": 1}
    assert project.tables() == tables
    assert "Nothing to be done" in project.run()
    assert_all_manifests_hold(project)

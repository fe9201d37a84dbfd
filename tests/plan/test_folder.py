"""The results folder is a value of the plan, so that the same jobs can be planned in any folder."""

import json
from dataclasses import replace

import pytest
import toy_project

from heatproof.workflow.config.files import merge
from heatproof.workflow.plan.folder import Folder
from heatproof.workflow.plan.graph import Graph
from heatproof.workflow.plan.validate import make_plan


@pytest.fixture(scope="module")
def plan():
    metrics = ["completeness", {"deletion_morf": {"steps": 4}}]
    return make_plan(merge(toy_project.BASE, {"metrics": metrics}))


def test_jobs_in_another_folder_name_no_file_of_the_default_folder(plan):
    here, there = Graph(plan), Graph(replace(plan, results=Folder("elsewhere/results")))
    assert {job.stage for job in there.jobs()} == {job.stage for job in here.jobs()} >= {"score", "report_page"}
    for job, moved in zip(here.jobs(), there.jobs(), strict=True):
        assert [f"elsewhere/{file}" for file in job.outputs] == moved.outputs
        assert tuple(f"elsewhere/{file}" for file in job.inputs) == moved.inputs
        assert '"results/' not in json.dumps(moved.spec_json), f"{job.stage} has a path that is made without the folder"

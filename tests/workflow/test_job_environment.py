"""The environment variables of jobs."""

import pytest

from heatproof.workflow.config.files import default_config
from heatproof.workflow.plan.validate import make_plan
from heatproof.workflow.start import MALLOC, job_environment


@pytest.fixture
def plan():
    return make_plan(default_config())


def test_glibc_keeps_memory_unless_the_user_sets_another_threshold(plan, monkeypatch):
    for name in MALLOC:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MALLOC_TOP_PAD_", "1")
    variables = job_environment(plan, "here", [])
    assert {name: variables[name] for name in MALLOC} == {**MALLOC, "MALLOC_TOP_PAD_": "1"}


def test_the_package_is_found_in_a_conda_environment(plan):
    assert "PYTHONPATH" not in job_environment(plan, "here", [])
    assert "here/src" in job_environment(plan, "here", ["conda"])["PYTHONPATH"]

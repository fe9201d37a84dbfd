"""One finished run for all tests of the workflow."""

from __future__ import annotations

from pathlib import Path

import pytest
from snakemake_project import MICRO, Project, clone


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project whose table is made. Copy it before you change it."""
    project = Project(clone(tmp_path_factory.mktemp("finished") / "project"), MICRO)
    ran = project.ran()
    assert ran == {
        "prepare": 1,
        "pretrain": 1,
        "finetune": 1,
        "drops": 2,
        "attribute": 2,
        "attribute_reference": 2,
        "score": 1,
        "tables": 1,
    }
    return project


@pytest.fixture
def project(finished: Project, tmp_path: Path) -> Project:
    """A copy of the finished project, free to be changed."""
    return finished.copy(tmp_path / "project")

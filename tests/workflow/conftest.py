"""One finished run for all tests of the workflow."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from snakemake_project import MICRO, Project, clone


@pytest.fixture(scope="session")
def finished(once: Callable[..., Path]) -> Project:
    """A project whose table is made. Copy it before you change it."""
    return Project(once("finished", finish), MICRO)


def finish(folder: Path) -> None:
    """Run a project from nothing to its table."""
    ran = Project(clone(folder), MICRO).ran()
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


@pytest.fixture
def project(finished: Project, tmp_path: Path) -> Project:
    """A copy of the finished project, free to be changed."""
    return finished.copy(tmp_path / "project")

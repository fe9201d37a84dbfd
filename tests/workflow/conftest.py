"""A finished run that all tests of the workflow share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from snakemake_project import MICRO, Project, clone


@pytest.fixture(scope="session")
def finished(once: Callable[..., Path]) -> Project:
    """A project with a finished table. Copy it before you change it."""
    return Project(once("finished", finish), MICRO)


def finish(folder: Path) -> None:
    """Run a new project until its table is made."""
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
    """A copy of the finished project that a test may change."""
    return finished.copy(tmp_path / "project")

"""One training for all tests of the stages."""

import shutil

import pytest
import torch
from toy_project import Project


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """A folder with weights. Copy it before you change it."""
    folder = tmp_path_factory.mktemp("trained")
    return Project(folder).train()


@pytest.fixture
def project(trained, tmp_path):
    """Return a function that makes a project with these weights, and with a changed config."""
    made = []

    def make(**change):
        folder = tmp_path / f"project-{len(made)}"
        made.append(folder)
        shutil.copytree(trained.folder, folder)
        return Project(folder, **change)

    return make

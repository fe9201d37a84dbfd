"""Settings for all tests: one thread in each worker, named tests always run, and no test fails on a busy machine."""

import gc
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from filelock import FileLock
from hypothesis import settings

# Set before anything imports torch or NumPy, here and in the processes that tests start: a worker of pytest-xdist has
# one core, and jobs have one thread by default.
os.environ["OMP_NUM_THREADS"] = "1"

settings.register_profile("heatproof", deadline=None)
settings.load_profile("heatproof")


def pytest_configure(config: pytest.Config) -> None:
    """Run a test that is named on the command line even if it is slow or long."""
    if config.option.markexpr == "not slow and not long" and any("::" in argument for argument in config.args):
        config.option.markexpr = ""


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """Run the tests of a single file in this process: starting workers would take longer, and a debugger works."""
    files = {argument.partition("::")[0] for argument in config.args}
    return 0 if len(files) == 1 and Path(*files).is_file() else None


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out files without slow or long tests if only those run: importing all files takes most of a minute."""
    markers = [marker for marker in ("slow", "long") if marker in config.option.markexpr.split(" or ")]
    if not markers or config.option.markexpr != " or ".join(markers) or collection_path.suffix != ".py":
        return None
    return None if any(_names_marker(collection_path, marker) for marker in markers) else True


def _names_marker(path: Path, marker: str) -> bool:
    return f"mark.{marker}" in path.read_text(encoding="utf-8")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start with the tests that run Snakemake: they take longest, and other workers run the rest in the meantime.

    A long test must not be slow as well, because `-m slow` would run it. Its file must name the marker, because
    `pytest_ignore_collect` reads it there.
    """
    for marker in ("slow", "long"):
        marked = {item.path for item in items if item.get_closest_marker(marker)}
        if left_out := sorted(str(path) for path in marked if not _names_marker(path, marker)):
            raise pytest.UsageError(f"`-m {marker}` leaves out, for want of the text mark.{marker}: {left_out}")
    both = [item.nodeid for item in items if item.get_closest_marker("long") and item.get_closest_marker("slow")]
    if both:
        raise pytest.UsageError(f"marked as long and as slow: {', '.join(both)}")
    items.sort(key=lambda item: item.get_closest_marker("workflow") is None)


@pytest.fixture(autouse=True, scope="module")
def frozen() -> None:
    """Exclude thousands of tests and all libraries from garbage collection, which statsmodels triggers."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    """Undo `frozen`: a library reports objects that outlive the interpreter as leaks."""
    gc.unfreeze()


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Undo the number of threads that a job has set."""
    yield
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Callable[[Path], object]], Path]:
    """Return a function that creates a folder once for all workers. Copy its content before you change it."""
    base = tmp_path_factory.getbasetemp()
    # Each worker has its own folder in the folder of the session.
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base

    def make_once(name: str, make: Callable[[Path], object]) -> Path:
        folder, finished_marker = shared / name, shared / f"{name}.made"
        with FileLock(shared / f"{name}.lock"):
            if not finished_marker.exists():
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir()
                make(folder)
                finished_marker.touch()
        return folder

    return make_once


@pytest.fixture(scope="session")
def trained(once):
    """Return a project with trained weights. Copy its folder before you change it."""
    from toy_project import Project

    return Project(once("trained", lambda folder: Project(folder).train()))


@pytest.fixture
def project(trained, tmp_path):
    """Return a function that creates a project with these weights, and with a changed config."""
    from toy_project import Project

    folders = []

    def make(**change):
        folder = tmp_path / f"project-{len(folders)}"
        folders.append(folder)
        shutil.copytree(trained.folder, folder)
        return Project(folder, **change)

    return make

"""A run of the slow or long tests leaves out no file that has some."""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import SimpleNamespace

import pytest


@pytest.fixture
def conftest():
    spec = spec_from_file_location("conftest_of_all_tests", Path(__file__).parents[1] / "conftest.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("marker", ["slow", "long"])
@pytest.mark.parametrize("expression", ["{}", "slow or long"])
def test_only_files_without_the_text_of_a_marker_are_left_out(conftest, tmp_path, marker, expression):
    config = SimpleNamespace(option=SimpleNamespace(markexpr=expression.format(marker)))
    plain, marked = tmp_path / "test_plain.py", tmp_path / "test_marked.py"
    plain.write_text("def test_a():\n    pass\n")
    marked.write_text(f"@pytest.mark.{marker}\ndef test_a():\n    pass\n")
    assert conftest.pytest_ignore_collect(plain, config)
    assert not conftest.pytest_ignore_collect(marked, config)


@pytest.mark.parametrize("marker", ["slow", "long"])
def test_every_run_refuses_a_marked_test_in_a_file_without_the_text(conftest, tmp_path, marker):
    """As where a marker comes from another module: its file would be left out."""
    path = tmp_path / "test_marked.py"
    test = SimpleNamespace(path=path, get_closest_marker=lambda name: marker if name == marker else None)
    path.write_text("from marks import of_minutes\n\n@of_minutes\ndef test_a():\n    pass\n")
    with pytest.raises(pytest.UsageError, match=f"`-m {marker}` leaves out.*test_marked.py"):
        conftest.pytest_collection_modifyitems([test])
    path.write_text(f"of_minutes = pytest.mark.{marker}\n")
    conftest.pytest_collection_modifyitems([test])

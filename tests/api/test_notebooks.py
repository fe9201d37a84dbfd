"""The notebooks run, and are stored with their output."""

import os
from pathlib import Path

import preloaded
import pytest

NOTEBOOKS = sorted((Path(__file__).parents[2] / "docs/notebooks").glob("*.ipynb"))


def cells(path):
    nbformat = pytest.importorskip("nbformat")
    notebook = nbformat.read(path, 4)
    return notebook, [cell for cell in notebook.cells if cell.cell_type == "code"]


def test_there_are_three_notebooks():
    assert len(NOTEBOOKS) == 3


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_has_its_output_and_no_path_of_a_machine(path):
    _, code = cells(path)
    assert sum(bool(cell.outputs) for cell in code) >= 3
    assert not [
        out for cell in code for out in cell.outputs if out.output_type == "error" or out.get("name") == "stderr"
    ]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    text = path.read_text(encoding="utf-8")
    assert not any(path_start in text for path_start in ("/home/", "/tmp/", "/root/", "site-packages"))


@pytest.mark.parametrize(
    "forked", [pytest.param(True, marks=pytest.mark.slow), pytest.param(False, marks=pytest.mark.long)]
)
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path, forked, tmp_path, monkeypatch):
    """To save time, the run that a notebook starts is forked from a Python process that has imported the libraries."""
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    notebook, code = cells(path)
    for cell in code if forked else ():
        cell.source = cell.source.replace("sys.executable", repr(preloaded.python()))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parents[2] / "src")]))
    nbclient.NotebookClient(
        notebook, timeout=900, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    ).execute()

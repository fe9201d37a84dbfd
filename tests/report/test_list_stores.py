"""`heatproof maps ls` on the small stores of the reports' tests."""

import subprocess
import sys

import pytest

from heatproof.errors import HeatproofError
from heatproof.workflow.commands.list_stores import print_stores


def test_the_listing_has_one_line_per_store(results, capsys):
    print_stores("results")
    _, *lines = capsys.readouterr().out.splitlines()
    by_path = {line.split()[0]: line for line in lines}
    assert len(lines) == 5
    noise = by_path["results/maps/tiny/net/finetuned/noise.zarr"]
    assert noise.split()[1:3] == ["4/6", "16×16"]
    assert "smooth,variance" in noise
    cam = by_path["results/maps/tiny/net/finetuned/cam.zarr"]
    assert cam.split()[1] == "0/6"
    assert cam.endswith("not applicable: it has <b>no</b> layer")
    assert "cam (steps=7)" in cam
    assert "patch drops (grid=4, baseline=zeros)" in by_path["results/drops/tiny/net/finetuned/g4_zeros.zarr"]


def test_a_damaged_store_does_not_hide_the_others(results, folder, capsys, tmp_path):
    (tmp_path / folder / "noise.zarr" / "zarr.json").write_text("{")
    with pytest.raises(HeatproofError, match="1 of 3 stores cannot be read"):
        print_stores(folder)
    lines = capsys.readouterr().out.splitlines()[1:]
    assert [line.split()[0].rpartition("/")[2] for line in lines] == ["cam.zarr", "gradient.zarr", "noise.zarr"]
    assert "  damaged: " in lines[2]
    assert "noise.zarr is damaged, or not a store of heatproof (" in lines[2]


def test_an_error_names_a_folder_without_stores(tmp_path):
    with pytest.raises(HeatproofError, match=r"There is no \.zarr store in .*nowhere"):
        print_stores(tmp_path / "nowhere")


def test_listing_stores_imports_no_plan():
    """The listing has to be fast in folders with thousands of stores, and needs no config."""
    unwanted = "heatproof.workflow.config.schema"
    program = f"import sys, heatproof.workflow.commands.list_stores; sys.exit('{unwanted}' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr

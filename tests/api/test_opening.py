"""`heatproof.open` reads the results of a run, and `import heatproof` reads nothing."""

import subprocess
import sys

import pytest

import heatproof


def test_importing_heatproof_imports_no_heavy_library():
    code = (
        "import sys, heatproof; dir(heatproof); "
        "sys.exit(', '.join({'torch', 'pandas', 'xarray', 'numpy', 'zarr'} & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_public_name_exists():
    for name in heatproof.__all__:
        assert getattr(heatproof, name) is not None
    assert set(heatproof.__all__) <= set(dir(heatproof))


def test_a_folder_without_results_is_refused(tmp_path):
    with pytest.raises(heatproof.HeatproofError, match="neither tables nor stores"):
        heatproof.open(tmp_path)
    with pytest.raises(heatproof.HeatproofError, match="There is no folder"):
        heatproof.open(tmp_path / "none")


def test_plot_is_a_module_and_an_attribute():
    code = "import heatproof.plot; from heatproof import plot; assert plot is heatproof.plot; plot.maps; plot.order"
    subprocess.run([sys.executable, "-c", code], check=True)

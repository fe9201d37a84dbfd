"""`heatproof.open` reads all that a run made."""

import numpy as np
import pytest

import heatproof
from heatproof.store import read


@pytest.mark.workflow
def test_all_that_a_run_made(project):
    project.run()
    results = heatproof.open(project.folder)
    table = results.tables["idsds_table"]
    assert set(table["method"]) >= {"random"}
    assert len(results.tables) > 3
    name = next(iter(results.maps))
    lazy = results.maps[name]["attribution"]
    stored = read(str(project.folder / f"results/maps/{name}.zarr"), "attribution", 0, 2)
    np.testing.assert_array_equal(lazy[:2].values, stored)
    assert results.provenance(f"maps/{name}")["attributes"]["made_by"]
    assert results.provenance("idsds_table")["versions"]["torch"]
    assert results.answer
    assert "tables" in repr(results)
    with pytest.raises(heatproof.HeatproofError, match="idsds_table"):
        results.tables["idsds_tabel"]
    with pytest.raises(heatproof.HeatproofError, match="no stores of"):
        results.arrays("map")
    with pytest.raises(heatproof.HeatproofError, match="nothing called"):
        results.provenance("idsds_tabel")

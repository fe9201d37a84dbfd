"""`heatproof.open` reads all results of a run."""

import numpy as np
import pytest

import heatproof
from heatproof.store.zarr_store import read


@pytest.mark.slow
@pytest.mark.workflow
def test_open_returns_all_results_of_a_run(project):
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
    for line, row in zip(results.answer.split("\n"), results.tables["verdict"].to_dict("records"), strict=True):
        assert line.startswith(f"{row['dataset']} {row['model']} {row['weights']}, {row['metric']}: ")
    image = str(results.maps[name]["image_id"].values[1])
    np.testing.assert_array_equal(results.maps[name].sel(image=image)["attribution"], stored[1])
    (axes,) = heatproof.plot.maps(results.maps[name], image=image)
    np.testing.assert_array_equal(axes.images[0].get_array(), stored[1, 0])
    check_provenance_of_a_cell(results)
    with pytest.raises(heatproof.HeatproofError, match="idsds_table"):
        results.tables["idsds_tabel"]
    with pytest.raises(heatproof.HeatproofError, match="no stores of"):
        results.arrays("map")
    with pytest.raises(heatproof.HeatproofError, match="nothing called"):
        results.provenance("idsds_tabel")


def check_provenance_of_a_cell(results):
    """As docs/api.md shows."""
    cell = results.tables["idsds_table"].dropna(subset="score").iloc[0]
    name = f"{cell.dataset}/{cell.model}/{cell.weights}/{cell.metric}"
    rows = results.scores[name].query("method == @cell.method")
    np.testing.assert_allclose(rows["score"].mean(), cell.score, rtol=1e-6)
    provenance = results.provenance(f"scores/{name}")
    assert provenance == results.provenance(f"results/scores/{name}.parquet")
    assert f"scores/{name}.parquet" in results.provenance("idsds_table")["made_from"]
    seen, waiting = {}, list(provenance["made_from"])
    while waiting:
        result = waiting.pop()
        if result not in seen:
            seen[result] = results.provenance(result)
            waiting += seen[result]["made_from"]
    assert {name.partition("/")[0] for name in seen} == {"maps", "drops", "weights", "datasets"}
    listed = seen[f"datasets/{cell.dataset}.json"]["splits"]["evaluation"]["ids"]
    assert set(rows["image"]) <= set(listed)
    drops = next(record for name, record in seen.items() if name.startswith("drops/"))
    assert {"seconds", "device", "images"} <= drops["manifests"][0].keys()
    assert drops["attributes"]["made_by"]

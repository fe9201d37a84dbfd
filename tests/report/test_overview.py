"""The figures of all metrics: places and their conclusions, also for tables that are too small for conclusions."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from heatproof.core.provenance import Key
from heatproof.core.specs import Runtime
from heatproof.report.figures.overview import (
    CAPTION_COLUMNS,
    describe_dual,
    describe_places,
    dual_table,
    places_table,
)
from heatproof.store.manifest import publish_tables
from heatproof.store.writing import write_table
from heatproof.workflow.plan.folder import Folder
from heatproof.workflow.stages.overview import Overview

METHODS = ["a", "b", "c", "d", "e", "f"]
KINDS = {"soundness": "soundness", "completeness": "completeness"}
OVERVIEW = Overview.paths(Folder())
SCORES = SimpleNamespace(key=Key("config", "code"), manifest="results/scores.json")


def spec_of(kinds):
    return Overview(
        scores="results/scores.csv",
        kinds=kinds,
        upstream=SCORES.key,
        key=SCORES.key,
        files=OVERVIEW,
        manifest="results/o.json",
    )


def table(columns, models=("net",)):
    """Return the rows of scores.csv for {metric: (scores, higher is better)}."""
    rows = [
        {"dataset": "toy", "model": model, "weights": "w", "metric": metric, "method": method, "score": score}
        | {"higher_is_better": higher}
        for model in models
        for metric, (values, higher) in columns.items()
        for method, score in zip(METHODS, values, strict=False)
    ]
    return pd.DataFrame(rows)


def test_places_go_from_first_to_last_in_both_directions():
    scores = [0.9, 0.7, 0.5, 0.3, 0.2, 0.1]
    places = places_table(table({"up": (scores, True), "down": (scores, False)}))
    wide = places.pivot(index="method", columns="metric", values="place")
    np.testing.assert_allclose(wide["up"][METHODS], np.linspace(0, 1, 6))
    np.testing.assert_allclose(wide["down"][METHODS], np.linspace(1, 0, 6))


def test_places_are_means_over_networks_with_shared_ties_and_without_gaps():
    first = table({"m": ([3, 2, 2, np.nan], True)})
    second = table({"m": ([1, 2, 3, 4], True)}, models=("other",))
    places = places_table(pd.concat([first, second])).set_index("method")
    assert places.loc["a", "place"] == pytest.approx((0 + 1) / 2)
    assert places.loc["b", "place"] == pytest.approx((0.75 + 2 / 3) / 2)
    assert places.loc["d", "place"] == 0
    assert places.loc["d", "n_cases"] == 1


def test_a_metric_that_ranks_the_other_way_is_named():
    scores = [6, 5, 4, 3, 2, 1]
    same = {f"m{number}": (scores, True) for number in range(4)}
    _, conclusion = describe_places(places_table(table({**same, "odd": (scores[::-1], True)})))
    assert "a is first under 4 of 5 metrics" in conclusion
    assert "(odd)" in conclusion
    assert "the ranking by odd alone differs" in conclusion
    _, agreed = describe_places(places_table(table(same)))
    assert "All metrics agree" in agreed


def test_soundness_that_all_methods_share_is_reported():
    rows = table({"soundness": ([1, 1, 1, 1, 0.5, 1], True), "completeness": ([1, 2, 3, 4, 5, 6], True)})
    dual = dual_table(rows, KINDS)
    assert list(dual["method"]) == METHODS
    _, conclusion = describe_dual(dual)
    assert "83% of the methods have the same soundness" in conclusion


def test_empty_tables_are_drawn_without_error(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_table(table({"m": ([1.0], True)}), "results/scores.csv")
    publish_tables(SCORES, ["results/scores.csv"], [])
    spec_of({}).run(Runtime())
    captions = pd.read_csv(OVERVIEW["captions"])
    assert list(captions.columns) == CAPTION_COLUMNS
    assert "No conclusion" in captions["conclusion"][1]
    assert all((tmp_path / path).stat().st_size > 0 for path in OVERVIEW.values())


def test_a_complete_table_gives_reproducible_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    scores = np.random.default_rng(0).normal(size=6)
    both = {"soundness": (scores, True), "completeness": (scores**2, True), "ids": (-scores, True)}
    write_table(table(both, models=("one", "two")), "results/scores.csv")
    publish_tables(SCORES, ["results/scores.csv"], [])
    spec_of(KINDS).run(Runtime())
    before = {path: (tmp_path / path).read_bytes() for path in OVERVIEW.values()}
    spec_of(KINDS).run(Runtime())
    assert {path: (tmp_path / path).read_bytes() for path in OVERVIEW.values()} == before
    assert len(pd.read_csv(OVERVIEW["dual"])) == 12


def test_names_that_look_like_numbers_or_missing_values_stay_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    odd = ["NA", "007", "none", "d", "e", "f"]
    rows = table({"m": ([6.0, 5, 4, 3, 2, np.nan], True), "n": ([1.0, 2, 3, 4, 5, 6], True)}, models=("01",))
    rows["method"] = rows["method"].map(dict(zip(METHODS, odd, strict=True)))
    write_table(rows, "results/scores.csv")
    publish_tables(SCORES, ["results/scores.csv"], [])
    spec_of({}).run(Runtime())
    places = pd.read_csv(OVERVIEW["places"], dtype=str, keep_default_na=False)
    assert set(places["method"]) == set(odd)
    assert len(places) == 11

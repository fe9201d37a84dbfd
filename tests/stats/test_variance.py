"""Planted variance components are recovered."""

import numpy as np
import pandas as pd
import pytest

from heatproof.stats.variance import COLUMNS, COMPONENTS, variance_table

PLANTED = {"dataset": 0.4, "network": 0.3, "seed": 0.2, "image": 0.5, "residual": 0.1}


def planted(datasets=40, kinds=5, seeds=3, images=30, seed=0):
    rng = np.random.default_rng(seed)
    deviation = {name: np.sqrt(value) for name, value in PLANTED.items()}
    tables = []
    for dataset in range(datasets):
        of_image = deviation["image"] * rng.normal(size=images)
        of_dataset = deviation["dataset"] * rng.normal()
        for kind in range(kinds):
            of_kind = deviation["network"] * rng.normal()
            for number in range(seeds):
                mean = of_dataset + of_kind + deviation["seed"] * rng.normal()
                score = mean + of_image + deviation["residual"] * rng.normal(size=images)
                where = {"dataset": f"d{dataset}", "model": f"m{kind}_{number}", "kind": f"m{kind}"}
                tables.append(pd.DataFrame({**where, "image": range(images), "score": score}))
    return pd.concat(tables, ignore_index=True).assign(weights="w", metric="idsds", method="a")


def components(table):
    return table.set_index("component")


def test_planted_components_are_found():
    variances = components(variance_table(planted()))
    for name, value in PLANTED.items():
        # The factor with fewest levels has 40 datasets: its standard error is 0.11, by 200 such runs with mean 0.39.
        assert variances.loc[name, "variance"] == pytest.approx(value, abs=0.25 if name == "dataset" else 0.05), name
    assert variances["share"].sum() == pytest.approx(1)
    assert variances["n"].to_dict() == {"dataset": 40, "network": 200, "seed": 600, "image": 1200, "residual": 18000}
    assert (variances["note"] == "").all()


def test_components_without_levels_are_missing_with_a_reason():
    scores = planted(datasets=1, seeds=1)
    variances = components(variance_table(scores.drop(columns="kind")))
    assert list(variance_table(scores)) == list(COLUMNS)
    assert variances["variance"].isna().to_dict() == {name: name in ("dataset", "seed") for name in COMPONENTS}
    assert variances.loc["seed", "note"] == "no model is trained with several seeds"
    assert variances.loc["dataset", "note"] == "one dataset"
    alone = components(variance_table(planted(datasets=1, kinds=1, seeds=1)))
    assert alone["variance"].isna().all()
    assert alone.loc["residual", "note"].startswith("one network on every dataset")


def test_images_without_a_score_are_left_out():
    table = planted(datasets=1, seeds=1, images=10)
    table.loc[table["image"] == 3, "score"] = np.nan
    table.loc[0, "score"] = np.nan
    assert components(variance_table(table)).loc["image", "n"] == 8
    empty = components(variance_table(table.assign(score=np.nan)))
    assert (empty["note"] == "defined on fewer than two common images").all()


def test_no_component_is_negative():
    rng = np.random.default_rng(0)
    for seed in range(20):
        table = planted(datasets=2, kinds=2, seeds=2, images=4, seed=seed)
        table["score"] = rng.normal(size=len(table))
        assert (variance_table(table)["variance"] >= 0).all()

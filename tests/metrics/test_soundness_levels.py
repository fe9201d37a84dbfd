"""Soundness and completeness at levels: each level is a separate score, from curves that all levels share."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from network_responses import FunctionModule

import heatproof
from heatproof.errors import HeatproofError
from heatproof.metrics.registry import METRICS
from heatproof.stats.table import meta_rank_table
from heatproof.workflow.config.files import read_config
from heatproof.workflow.config.schema import normalise

CONFIG = Path(__file__).parents[2] / "config" / "levels.yaml"
METHODS, SEED = ("best", "noisy", "worst"), 3


@pytest.fixture(scope="module")
def problem():
    """Return a model that is right while most of a bright square is visible, and maps of it."""
    rng = np.random.default_rng(SEED)
    images = torch.from_numpy(rng.random((150, 1, 12, 12)).astype("float32"))
    labels = (images[:, 0, 3:7, 3:7].mean((1, 2)) > 0.5).long()

    def model(batch):
        inside = batch[:, 0, 3:7, 3:7].mean((1, 2)) - 0.5
        return torch.stack([-inside, inside], 1)

    right = np.zeros((150, 12, 12), dtype="float32")
    right[:, 3:7, 3:7] = np.abs(images[:, 0, 3:7, 3:7].numpy() - 0.5) + 0.1
    noise = rng.random(right.shape).astype("float32")
    return FunctionModule(model), images, labels, {"best": right, "noisy": right + 0.6 * noise, "worst": noise}


@pytest.fixture(scope="module")
def scores(problem):
    model, images, labels, maps = problem
    rows = []
    for name in ("completeness", "soundness"):
        levels = (0.9, 0.5, 0.1) if name == "completeness" else (0.55, 0.75, 0.95)
        for level in levels:
            option = {"at" if name == "completeness" else "level": level}
            for method in METHODS:
                result = heatproof.evaluate(name, model, images, labels, maps[method], imputation="baseline", **option)
                value = float(result["score"].mean())
                rows.append({"metric": f"{name}_{level}", "property": name, "method": method, "score": value})
    return pd.DataFrame(rows).assign(dataset="d", model="m", weights="w", higher_is_better=True)


def test_the_levels_are_the_points_of_the_curve(problem):
    model, images, labels, maps = problem
    all_thresholds = heatproof.evaluate("completeness", model, images, labels, maps["noisy"], imputation="baseline")
    for column, at in enumerate((0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1)):
        at_threshold = heatproof.evaluate(
            "completeness", model, images, labels, maps["noisy"], imputation="baseline", at=at
        )
        np.testing.assert_array_equal(at_threshold["score"], all_thresholds["completeness"][:, column])
    assert not np.array_equal(at_threshold["score"], all_thresholds["score"])


def test_a_level_outside_the_thresholds_is_refused(problem):
    model, images, labels, maps = problem
    with pytest.raises(HeatproofError, match=r"read at 0\.85, which is none of its thresholds"):
        heatproof.evaluate("completeness", model, images, labels, maps["best"], imputation="baseline", at=0.85)


def test_each_level_is_a_test_case(scores):
    for name, cases in scores.groupby("property"):
        ranked = meta_rank_table(cases, repetitions=20).set_index("method")
        # A level that a method does not reach leaves only that score undefined.
        assert ranked["n_cases"].to_dict() == cases.groupby("method")["score"].count().to_dict(), name
        assert ranked.loc["best", "n_cases"] == 3
    levels = scores[scores["property"] == "completeness"].pivot(index="metric", columns="method", values="score")
    assert (levels["best"] > levels["worst"]).any()
    assert levels.rank(axis=1).nunique().max() > 1, "the order depends on the level"


def test_all_levels_of_the_config_read_the_same_curves():
    metrics = normalise(read_config(CONFIG))["metrics"]
    by_kind = {}
    for settings in metrics.values():
        entry = METRICS[settings["metric"]]
        options = entry.complete_options({key: value for key, value in settings.items() if key != "metric"})
        (response,) = entry.responses(options).values()
        by_kind.setdefault(entry.name, []).append(response.name)
    assert {kind: len(set(names)) for kind, names in by_kind.items()} == {"soundness": 1, "completeness": 1}
    assert {kind: len(names) for kind, names in by_kind.items()} == {"soundness": 4, "completeness": 5}

"""The tables of a run equal those of an independent implementation on the stored arrays."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import recomputed
from numpy.testing import assert_allclose
from snakemake_project import Project, clone

IMAGES, SEEN = 12, 40
TABLES = ("results/scores.csv", "results/idsds_table.csv")
CLOSE = {"rtol": 0, "atol": 1e-6}
METRICS = ["ids", "deletion_morf", "deletion_lerf", "road_morf", "road_lerf"]
METRICS += ["rise_insertion", "rise_deletion", "rise_difference"]
WITH_MAPS = ["mas_insertion", "mas_deletion", "mas_difference", "sic", "aic", "soundness", "completeness"]
LOWER = {"deletion_morf", "road_morf", "rise_deletion", "mas_deletion"}
CONFIG = {
    "evaluation": {"images": IMAGES, "accuracy_images": SEEN},
    "models": [
        {"vgg": {"architecture": "cifar_vgg11_bn", "options": {"width": 4}}},
        {"resnet": {"architecture": "cifar_resnet20", "options": {"width": 4}}},
    ],
    "pretraining": {"epochs": 4},
    "finetuning": {"epochs": 2},
    "explainers": ["saliency", "input_x_gradient", {"integrated_gradients": {"steps": 10}}, "random", "edges"],
    "metrics": METRICS + WITH_MAPS,
    "scores": {"bootstrap": 100},
}


def test_the_recomputation_imports_nothing_of_heatproof():
    tree = ast.parse(Path(recomputed.__file__).read_text(encoding="utf-8"))
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not {name for name in imported if name and name.startswith("heatproof")}


@pytest.fixture(scope="module")
def results(once):
    return once("recomputed", lambda folder: Project(clone(folder), CONFIG).run(*TABLES)) / "results"


@pytest.fixture(scope="module")
def networks(results):
    keys = [(model, weights) for model in ("vgg", "resnet") for weights in ("pretrained", "finetuned")]
    return {where: recomputed.Network(results, "digits", *where, IMAGES, SEEN) for where in keys}


def score_with_map(network, method, maps, metric):
    if metric in ("sic", "aic"):
        return recomputed.information(network, method, metric)
    if metric in ("soundness", "completeness"):
        return getattr(recomputed, metric)(network, method, maps)
    return recomputed.mas(network, method, maps, metric)


@pytest.fixture(scope="module")
def scores(networks):
    """All scores of images, by network, metric and method."""
    scores_by_method = {}
    for where, network in networks.items():
        drops = "idsds" if where[1] == "finetuned" else "sds"
        for method, maps in network.maps().items():
            scores_by_method[(*where, drops, method)] = recomputed.single_deletion(network, maps)
            for metric in METRICS:
                scores_by_method[(*where, metric, method)] = recomputed.curve_score(network, method, metric)
            for metric in WITH_MAPS:
                scores_by_method[(*where, metric, method)] = score_with_map(network, method, maps, metric)
    return scores_by_method


@pytest.mark.slow
@pytest.mark.workflow
def test_scores_of_images_equal_the_recomputation(results, scores):
    for (model, weights, metric, method), expected in scores.items():
        table = pd.read_parquet(results / f"scores/digits/{model}/{weights}/{metric}.parquet")
        stored = table[table["method"] == method]["score"].to_numpy()
        assert_allclose(stored, expected, **CLOSE, err_msg=f"{model} {weights} {metric} {method}")


@pytest.mark.slow
@pytest.mark.workflow
@pytest.mark.parametrize("name", ["scores", "idsds_table"])
def test_means_intervals_and_ranks_equal_the_recomputation(results, networks, scores, name):
    table = pd.read_csv(results / f"{name}.csv")
    assert len(table)
    for (model, weights, metric), rows in table.groupby(["model", "weights", "metric"]):
        expected = [scores[model, weights, metric, method] for method in rows["method"]]
        means = np.array([np.nanmean(values) for values in expected])
        assert_allclose(rows["score"], means, **CLOSE)
        assert_allclose(rows["rank"], recomputed.ranks(means, metric not in LOWER))
        # Student's interval with the spread of 100 resamples, known to 7 %. Discrete scores have another spread.
        ends = zip(expected, rows["ci_low"], rows["ci_high"], strict=True) if name == "idsds_table" else ()
        for values, low, high in ends:
            assert (high - low) / 2 == pytest.approx(recomputed.student(values[~np.isnan(values)]), rel=0.4, abs=1e-9)
        network = networks[model, weights]
        wrong = (network.predicted[:IMAGES, 0] != network.labels[:IMAGES]).mean()
        assert_allclose(rows["share_wrong"], wrong, **CLOSE)


@pytest.mark.slow
@pytest.mark.workflow
def test_accuracy_equals_the_recomputation(results, networks):
    for row in pd.read_csv(results / "accuracy.csv").to_dict("records"):
        network = networks[row["model"], row["weights"]]
        right = network.predicted == network.labels[:, None]
        assert row["top1_clean"] == pytest.approx(right[:, 0].mean(), abs=1e-6)
        assert row["top1_worst_patch"] == pytest.approx(right[:, 1:].all(axis=1).mean(), abs=1e-6)
        assert row["majority"] == pytest.approx(np.bincount(network.labels).max() / len(network.labels), abs=1e-6)


@pytest.mark.slow
@pytest.mark.workflow
def test_meta_rank_equals_the_recomputation(results, scores):
    table = pd.read_csv(results / "meta_rank.csv")
    cases = [(model, *rest) for model in ("vgg", "resnet") for rest in (("pretrained", "sds"), ("finetuned", "idsds"))]
    means = [[np.nanmean(scores[*case, method]) for method in table["method"]] for case in cases]
    expected = recomputed.kappa(np.round(means, 12), np.full(len(cases), 0.5))
    assert_allclose(table["kappa"], expected, **CLOSE)
    assert (table["n_networks"] == 2).all()
    assert table[["ci_low", "ci_high"]].isna().all(axis=None), "two networks are too few for an interval"


@pytest.mark.slow
@pytest.mark.workflow
def test_the_verdict_counts_the_methods_above_the_references(results, scores):
    for row in pd.read_csv(results / "verdict.csv").to_dict("records"):
        where = row["model"], row["weights"], row["metric"]
        method_scores = {key[3]: values for key, values in scores.items() if key[:3] == where}
        references = [name for name in method_scores if name.removesuffix("_abs") in ("random", "edges")]
        assert row["n_above_references"] == recomputed.compare_with_references(method_scores, references)

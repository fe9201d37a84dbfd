"""accuracy.csv and verdict.csv of runs of every task, compared with outputs that are computed independently."""

import numpy as np
import pandas as pd
import pytest
import task_examples
import torch
from sklearn.metrics import mean_absolute_error, r2_score, roc_auc_score
from test_tasks_in_a_run import project, run

IMAGES = 30


def made_of(folder, task, **change):
    """Return tables of a run on images of its own, and the labels and outputs (N, …) of these images."""
    settings = {
        "datasets": [{"toy": {"dataset": "task_examples:dataset", "task": task, "count": IMAGES}}],
        "evaluation": {"images": IMAGES},
        "weights": ["pretrained"],
    }
    made = run(project(folder, task, **{**settings, **change}))
    pictures = task_examples.dataset(seed=made.plan.config["seed"], task=task, count=IMAGES)
    images = torch.from_numpy((pictures.pixels["evaluation"] - 0.5) / 0.5)
    with torch.no_grad():
        outputs = task_examples.Linear(pictures.num_classes)(images).numpy()
    accuracy, verdict = (pd.read_csv(folder / f"results/{name}.csv") for name in ("accuracy", "verdict"))
    return accuracy, verdict, pictures.splits["evaluation"].labels, outputs


def test_several_labels(tmp_path):
    accuracy, verdict, labels, outputs = made_of(tmp_path, "multilabel")
    # The first rows, one for each label of an image; images without labels are not explained.
    pictures, kinds = (one[:IMAGES] for one in np.nonzero(labels == 1))
    shown = np.unique(pictures)
    rows = accuracy.set_index(accuracy["label"].fillna("") if "label" in accuracy else pd.Index([""]))
    aurocs = []
    for number, name in enumerate(("kind 0", "kind 1", "kind 2")):
        known = shown[labels[shown, number] >= 0]
        aurocs.append(roc_auc_score(labels[known, number], outputs[known, number]))
        assert rows.loc[name, "auroc"] == pytest.approx(aurocs[-1])
        assert rows.loc[name, "n_images"] == len(known)
        assert rows.loc[name, "recall_clean"] == pytest.approx((outputs[pictures, kinds] > 0)[kinds == number].mean())
    assert rows.loc["", "auroc"] == pytest.approx(np.mean(aurocs))
    assert rows.loc["", "n_images"] == len(shown)
    assert rows.loc["", "recall_clean"] == pytest.approx((outputs[pictures, kinds] > 0).mean())
    table = pd.read_csv(tmp_path / "results/idsds_table.csv")
    assert set(table["n_images"] + table["n_undefined"]) == {len(shown)}
    np.testing.assert_allclose(table["share_wrong"], 1 - (outputs[pictures, kinds] > 0).mean())
    assert verdict["label"].fillna("").tolist() == ["", "kind 0", "kind 1", "kind 2"]
    assert verdict.set_index(verdict["label"].fillna("")).loc["", "n_images"] == len(shown)


@pytest.mark.parametrize("numbers", [1, 2])
def test_numbers(tmp_path, numbers):
    more = {"numbers": numbers} if numbers > 1 else {}
    datasets = [{"toy": {"dataset": "task_examples:dataset", "task": "regression", "count": IMAGES, **more}}]
    accuracy, verdict, *_ = made_of(tmp_path, "regression", datasets=datasets)
    pictures = task_examples.dataset(seed=0, task="regression", count=IMAGES, numbers=numbers)
    with torch.no_grad():
        images = torch.from_numpy((pictures.pixels["evaluation"] - 0.5) / 0.5)
        outputs = task_examples.Linear(numbers)(images).numpy()
    labels = pictures.splits["evaluation"].labels.reshape(IMAGES, -1)
    rows = accuracy.set_index(accuracy["label"].fillna("") if "label" in accuracy else pd.Index([""]))
    for number in range(numbers):
        name = f"kind {number}" if numbers > 1 else ""
        # With several numbers, each number of an image is a row.
        count = IMAGES // numbers
        assert rows.loc[name, "n_images"] == count
        wanted = labels[:count, number], outputs[:count, number]
        assert rows.loc[name, "mae_clean"] == pytest.approx(mean_absolute_error(*wanted), rel=1e-5)
        assert rows.loc[name, "r2"] == pytest.approx(r2_score(*wanted), rel=1e-4)
    assert len(rows) == (1 if numbers == 1 else 1 + numbers)
    assert len(verdict) == len(rows)
    assert "top1_clean" not in rows
    assert pd.read_csv(tmp_path / "results/idsds_table.csv")["share_wrong"].isna().all()


def test_a_function_has_no_accuracy(tmp_path):
    datasets = [{"toy": {"dataset": "task_examples:dataset", "task": "multiclass", "count": IMAGES}}]
    run(project(tmp_path, "margin", datasets=datasets, evaluation={"images": IMAGES}, weights=["pretrained"]))
    (row,) = pd.read_csv(tmp_path / "results/accuracy.csv").to_dict("records")
    assert (row["task"], row["n_images"]) == ("callable", IMAGES)
    assert "top1_clean" not in row
    (verdict,) = pd.read_csv(tmp_path / "results/verdict.csv").to_dict("records")
    assert "A callable target has no labels" in verdict["sentence"]

"""accuracy.csv and verdict.csv of runs of every task, compared with outputs that are computed independently."""

import numpy as np
import pandas as pd
import pytest
import task_examples
import torch
from sklearn.metrics import mean_absolute_error, r2_score, roc_auc_score
from test_tasks_in_a_run import project, run

IMAGES = 30


def tables_labels_and_outputs(folder, task, **change):
    """Return the tables of a run on new images, and the labels and outputs (N, …) of these images."""
    settings = {
        "datasets": [{"toy": {"dataset": "task_examples:dataset", "task": task, "count": IMAGES}}],
        "evaluation": {"images": IMAGES},
        "weights": ["pretrained"],
    }
    ran = run(project(folder, task, **{**settings, **change}))
    dataset = task_examples.dataset(seed=ran.plan.config["seed"], task=task, count=IMAGES)
    images = torch.from_numpy((dataset.pixels["evaluation"] - 0.5) / 0.5)
    with torch.no_grad():
        outputs = task_examples.Linear(dataset.num_classes)(images).numpy()
    accuracy, verdict = (pd.read_csv(folder / f"results/{name}.csv") for name in ("accuracy", "verdict"))
    return accuracy, verdict, dataset.splits["evaluation"].labels, outputs


def test_accuracy_of_several_labels_equals_scikit_learn(tmp_path):
    accuracy, verdict, labels, outputs = tables_labels_and_outputs(tmp_path, "multilabel")
    # The first rows, one for each label of an image; images without labels are not explained.
    image_rows, kinds = (indices[:IMAGES] for indices in np.nonzero(labels == 1))
    explained = np.unique(image_rows)
    rows = accuracy.set_index(accuracy["label"].fillna("") if "label" in accuracy else pd.Index([""]))
    aurocs = []
    for number, name in enumerate(("kind 0", "kind 1", "kind 2")):
        labelled = explained[labels[explained, number] >= 0]
        aurocs.append(roc_auc_score(labels[labelled, number], outputs[labelled, number]))
        assert rows.loc[name, "auroc"] == pytest.approx(aurocs[-1])
        assert rows.loc[name, "n_images"] == len(labelled)
        assert rows.loc[name, "recall_clean"] == pytest.approx((outputs[image_rows, kinds] > 0)[kinds == number].mean())
    assert rows.loc["", "auroc"] == pytest.approx(np.mean(aurocs))
    assert rows.loc["", "n_images"] == len(explained)
    assert rows.loc["", "recall_clean"] == pytest.approx((outputs[image_rows, kinds] > 0).mean())
    table = pd.read_csv(tmp_path / "results/idsds_table.csv")
    assert set(table["n_images"] + table["n_undefined"]) == {len(explained)}
    np.testing.assert_allclose(table["share_wrong"], 1 - (outputs[image_rows, kinds] > 0).mean())
    assert verdict["label"].fillna("").tolist() == ["", "kind 0", "kind 1", "kind 2"]
    assert verdict.set_index(verdict["label"].fillna("")).loc["", "n_images"] == len(explained)


@pytest.mark.parametrize("numbers", [1, 2])
def test_accuracy_of_numbers_equals_scikit_learn(tmp_path, numbers):
    more = {"numbers": numbers} if numbers > 1 else {}
    datasets = [{"toy": {"dataset": "task_examples:dataset", "task": "regression", "count": IMAGES, **more}}]
    accuracy, verdict, *_ = tables_labels_and_outputs(tmp_path, "regression", datasets=datasets)
    dataset = task_examples.dataset(seed=0, task="regression", count=IMAGES, numbers=numbers)
    with torch.no_grad():
        images = torch.from_numpy((dataset.pixels["evaluation"] - 0.5) / 0.5)
        outputs = task_examples.Linear(numbers)(images).numpy()
    labels = dataset.splits["evaluation"].labels.reshape(IMAGES, -1)
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


def test_a_callable_target_has_no_accuracy(tmp_path):
    datasets = [{"toy": {"dataset": "task_examples:dataset", "task": "multiclass", "count": IMAGES}}]
    run(project(tmp_path, "margin", datasets=datasets, evaluation={"images": IMAGES}, weights=["pretrained"]))
    (row,) = pd.read_csv(tmp_path / "results/accuracy.csv").to_dict("records")
    assert (row["task"], row["n_images"]) == ("callable", IMAGES)
    assert "top1_clean" not in row
    (verdict,) = pd.read_csv(tmp_path / "results/verdict.csv").to_dict("records")
    assert "A callable target has no labels" in verdict["sentence"]

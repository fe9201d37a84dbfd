"""Accuracy of networks with several labels, numbers and callable targets, and verdicts on networks at chance."""

import numpy as np
import pandas as pd
import pytest
from scipy.stats import kstest
from sklearn.metrics import average_precision_score, roc_auc_score

from heatproof.report.results import CASE
from heatproof.report.tables.accuracy import chance_of_labels, chance_of_numbers, quality_of_labels, quality_of_numbers
from heatproof.report.tables.verdict import verdicts
from heatproof.stats.verdict import CHANCE, FOUND, TOO_FEW

WHERE = dict(zip(CASE, ("skies", "net", "pretrained", "sds"), strict=True))


def labels_and_logits(signal, count=80, seed=0):
    draws = np.random.default_rng(seed)
    labels = (draws.random((count, 3)) < [0.2, 0.5, 0.8]).astype(np.int8)
    return labels, draws.normal(size=(count, 3)) + signal * labels


def test_label_quality_equals_scikit_learn_without_unknown_labels():
    labels, logits = labels_and_logits(1.0)
    labels[::7, 1] = -1
    quality = quality_of_labels(labels, logits)
    for number in range(3):
        is_known = labels[:, number] >= 0
        present, logit = labels[is_known, number], logits[is_known, number]
        assert quality["auroc"][number] == pytest.approx(roc_auc_score(present, logit))
        assert quality["average_precision"][number] == pytest.approx(average_precision_score(present, logit))
        assert quality["base_rate"][number] == pytest.approx(present.mean())
        assert quality["n_images"][number] == is_known.sum()


@pytest.mark.parametrize("value", [0, 1, -1])
def test_a_label_of_all_or_no_images_has_no_auroc(value):
    labels, logits = labels_and_logits(1.0)
    labels[:, 0] = value
    row = quality_of_labels(labels, logits).iloc[0]
    assert np.isnan(row["auroc"])
    assert np.isnan(row["p_chance"])
    # The mean is over the other labels.
    assert chance_of_labels(labels, logits) < 0.01


def test_the_p_value_of_guessing_is_calibrated():
    p = [chance_of_labels(*labels_and_logits(0.0, 40, seed)) for seed in range(60)]
    assert kstest(p, "uniform").pvalue > 0.01
    assert chance_of_labels(*labels_and_logits(2.0)) < 0.01
    labels, logits = labels_and_logits(2.0)
    assert chance_of_labels(labels, -logits) > 0.99
    assert chance_of_labels(labels, np.zeros_like(logits)) == 1.0


def test_labels_that_occur_together_do_not_count_as_independent():
    # One label under twenty names must not count as twenty independent results.
    p = []
    for seed in range(60):
        labels, logits = (array[:, 1:2].repeat(20, axis=1) for array in labels_and_logits(0.0, 40, seed))
        p.append(chance_of_labels(labels, logits))
    assert np.mean(np.array(p) < 0.05) < 0.2


@pytest.mark.parametrize("count", [6, 30, 200])
def test_outputs_at_chance_do_not_rise_with_the_labels(count):
    draws = np.random.default_rng(0)
    p = [chance_of_numbers(draws.normal(size=count), draws.normal(size=count)) for _ in range(60)]
    assert kstest(p, "uniform").pvalue > 0.01
    labels = draws.normal(40, 10, size=count)
    # Outputs in another unit, which are all far from their labels.
    assert chance_of_numbers(labels, labels / 100 - 3) < 0.01
    assert chance_of_numbers(labels, -labels) > 0.99
    assert chance_of_numbers(labels, np.full(count, 3.0)) == 1.0
    assert np.isnan(chance_of_numbers(np.full(count, 3.0), labels))


def test_few_numbers_are_not_called_better_than_guessing():
    # Of three images, one order in six is right by chance.
    assert chance_of_numbers(np.arange(3.0), np.arange(3.0)) == pytest.approx(1 / 6, abs=0.05)


def test_errors_of_numbers_equal_values_computed_by_hand():
    outputs = np.array([[1.0, 2.0, 1.0], [3.0, 3.0, 0.0], [2.0, 2.0, 2.0]])
    quality = quality_of_numbers(np.array([1.0, 2.0, 3.0]), outputs)
    assert quality["mae_clean"] == pytest.approx(2 / 3)
    assert quality["mae_worst_patch"] == pytest.approx((1 + 2 + 1) / 3)
    assert quality["r2"] == pytest.approx(0.0)
    assert quality["spearman"] == pytest.approx(0.5)


def scores(means, labels=("",), images=64, seed=0):
    """Return tidy scores of images that each have all labels."""
    draws = np.random.default_rng(seed)
    rows = []
    for label, count in zip(labels, np.broadcast_to(images, len(labels)), strict=True):
        for method, mean in means.items():
            noise = draws.normal(0, 0.1, count)
            rows += [
                {**WHERE, "method": method, "image": f"p{row}", "class": label, "score": mean + value}
                for row, value in enumerate(noise - noise.mean())
            ]
    return pd.DataFrame(rows)


def verdicts_of(tidy, accuracy, wrong=np.nan):
    table = pd.DataFrame([{**WHERE, "method": name, "rank": 1, "share_wrong": wrong} for name in tidy.method.unique()])
    accuracy_table = pd.DataFrame([{**{key: WHERE[key] for key in CASE[:3]}, **row} for row in accuracy])
    return verdicts([tidy], table, accuracy_table, {"sds": [4, "zeros", "logit"]}, ["random"], [], 0.95)


MEANS = {"good": 0.6, "fair": 0.2, "random": 0.0}


def test_several_labels_have_one_verdict_over_all_and_one_per_label():
    tidy = scores(MEANS, ("cloud", "sun"), (64, 5))
    rows = [
        {"task": "multilabel", "label": "", "auroc": 0.9, "p_chance": 0.001, "n_images": 64, "recall_clean": 0.6},
        {"task": "multilabel", "label": "cloud", "auroc": 0.9, "p_chance": 0.001, "n_images": 64, "recall_clean": 0.6},
        {"task": "multilabel", "label": "sun", "auroc": 0.9, "p_chance": 0.001, "n_images": 64, "recall_clean": 1.0},
        {"task": "multilabel", "label": "fog", "auroc": np.nan, "p_chance": np.nan, "n_images": 64},
    ]
    verdict_of_label = verdicts_of(tidy, rows).set_index("label")
    # A label that no image has gets no verdict.
    assert verdict_of_label.index.tolist() == ["", "cloud", "sun"]
    assert verdict_of_label["verdict"].tolist() == [FOUND, FOUND, TOO_FEW]
    # Images are counted, not their labels.
    assert verdict_of_label["n_images"].tolist() == [64, 64, 5]
    assert verdict_of_label.loc["cloud", "sentence"].startswith(
        "good is the best of 2 methods, at 95%, by deletion of single patches, grid 4, zeros (SDS), for cloud, on the"
    )
    assert verdict_of_label.loc["", "sentence"].endswith(" The network finds 60% of the explained labels.")
    assert "5 images are too few" in verdict_of_label.loc["sun", "sentence"]
    assert verdict_of_label.loc["sun", "images_needed"] > 5


def test_a_network_that_guesses_one_label_is_at_chance_for_that_one():
    rows = [
        {"task": "multilabel", "label": "", "auroc": 0.8, "p_chance": 0.001, "n_images": 64},
        {"task": "multilabel", "label": "sun", "auroc": 0.49, "p_chance": 0.6, "n_images": 64},
    ]
    verdict_of_label = verdicts_of(scores(MEANS, ("sun",)), rows).set_index("label")
    assert verdict_of_label["verdict"].to_dict() == {"": FOUND, "sun": CHANCE}
    assert verdict_of_label.loc["sun", "sentence"] == (
        "This network is at chance: its AUROC of sun is 0.49 on 64 images, where guessing has 0.50. Its maps "
        "cannot be judged."
    )


@pytest.mark.parametrize(("p", "verdict"), [(0.4, CHANCE), (0.01, FOUND)])
def test_a_regression_is_at_chance_if_its_outputs_do_not_rise_with_the_labels(p, verdict):
    row = {"task": "regression", "label": "", "r2": -3.2, "spearman": -0.02, "p_chance": p, "n_images": 64}
    (row_of_verdict,) = verdicts_of(scores(MEANS), [row]).to_dict("records")
    assert row_of_verdict["verdict"] == verdict
    assert "label" not in row_of_verdict
    if verdict == CHANCE:
        assert (
            "do not increase with the labels of 64 images (Spearman's ρ −0.02, R² −3.20)" in row_of_verdict["sentence"]
        )


def test_the_verdict_on_a_callable_target_mentions_that_chance_is_unknown():
    (row_of_verdict,) = verdicts_of(scores(MEANS), [{"task": "callable", "n_images": 64}]).to_dict("records")
    assert row_of_verdict["verdict"] == FOUND
    assert row_of_verdict["sentence"].endswith(
        " A callable target has no labels, so it is unknown whether the network is better than guessing."
    )

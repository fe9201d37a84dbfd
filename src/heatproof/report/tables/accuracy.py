"""The quality of networks by task: accuracy or error, and what guessing reaches.

- **Classes**: top-k accuracy. Guessing the most frequent class reaches the share of that class.
- **Several labels**: AUROC and average precision of each label and their means, over the images that are scored, and
  without the labels that are unknown. Guessing reaches an AUROC of 0.5 and an average precision equal to the base rate
  of the label. Also the recall (the share of present labels whose logit is above 0), on intact images and with the
  worst patch deleted.
- **Numbers**: mean absolute error, and R², which is 0 for predicting the mean of the labels.
- **A callable target**: there is no ground truth, so that no quality is measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from scipy.stats import mannwhitneyu, rankdata, spearmanr

from heatproof.core.randomness import numpy_generator

if TYPE_CHECKING:
    from heatproof.store.rows import ScoredRows

PERMUTATIONS = 1999
# With more images, Student's t distribution approximates that of Spearman's ρ well enough.
MOST_PERMUTED = 50


def accuracy_table(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Return the rows of networks as a table; ``label`` is "" where a row is not about a label."""
    table = pd.DataFrame(rows)
    if "label" not in table:
        return table
    table = table.fillna({"label": ""})
    return table if (table["label"] != "").any() else table.drop(columns="label")


def accuracy_of_classes(labels: np.ndarray, ranks: np.ndarray, *, has_top5: bool = True) -> dict[str, Any]:
    """Return the accuracy of a classification network.

    Parameters
    ----------
    labels
        (N,), the class of each image.
    ranks
        (N, variants), how many logits exceed that of the label: on the intact image, then with each patch deleted.
    has_top5
        Whether the ranks are exact; otherwise only whether they are 0 is known, and the top-5 accuracy is NaN.

    Returns
    -------
    dict
        ``top1_clean``, ``top1_worst_patch``, ``top5_clean`` and ``top5_worst_patch`` in [0, 1], higher is better;
        ``majority``, the share of the most frequent class; and ``n_images``.
    """
    row: dict[str, Any] = {}
    for k in (1, 5):
        is_defined = k == 1 or has_top5
        row[f"top{k}_clean"] = float((ranks[:, 0] < k).mean()) if is_defined else np.nan
        row[f"top{k}_worst_patch"] = float((ranks[:, 1:] < k).all(1).mean()) if is_defined else np.nan
    majority = float(np.unique(labels, return_counts=True)[1].max() / len(labels))
    return {**row, "majority": majority, "n_images": len(labels)}


def accuracy_of_labels(
    scored: ScoredRows, targets: np.ndarray, is_present: np.ndarray, logits: np.ndarray
) -> list[dict[str, Any]]:
    """Return the quality of a network of several labels: a row over all labels, and one for each label.

    Parameters
    ----------
    scored
        The N explained rows, each an image with one of its labels, and the ground truth of each.
    targets
        (N,), the label of each row.
    is_present
        (N, variants), whether the network finds the label: on the intact image, then with each patch deleted.
    logits
        (N, labels), the logits of the intact image.
    """
    first_rows = scored.first_rows
    by_label = quality_of_labels(scored.ground_truth[first_rows], logits[first_rows])
    overall: dict[str, Any] = {"label": "", **{str(name): by_label[name].mean() for name in by_label}}
    overall["p_chance"] = chance_of_labels(scored.ground_truth[first_rows], logits[first_rows])
    overall["n_images"] = len(first_rows)
    recall = {"recall_clean": is_present[:, 0], "recall_worst_patch": np.asarray(is_present.all(axis=1))}
    overall |= {name: float(right.mean()) for name, right in recall.items()}
    rows = [overall]
    for number, row in enumerate(by_label.to_dict("records")):
        of_label = targets == number
        recalls = {name: float(right[of_label].mean()) if of_label.any() else np.nan for name, right in recall.items()}
        rows.append({"label": scored.names[number], **{str(key): value for key, value in row.items()}, **recalls})
    return rows


def quality_of_labels(labels: np.ndarray, logits: np.ndarray) -> pd.DataFrame:
    """Return how well logits separate images with a label from images without it.

    Parameters
    ----------
    labels
        (N, K), 1 present, 0 absent, -1 unknown. Unknown labels are left out.
    logits
        (N, K).

    Returns
    -------
    pandas.DataFrame
        One row for each label: ``auroc`` and ``average_precision``, NaN where all or none of the images have the label;
        ``base_rate``, the share of the images with a known label that have it; ``p_chance``, the one-sided p-value of
        the Mann–Whitney test, whose statistic is the AUROC; ``n_images``, the number of images whose label is known.
    """
    # Here, because most runs have no such labels, and scikit-learn takes seconds to load.
    from sklearn.metrics import average_precision_score, roc_auc_score

    rows = []
    for label, logit in zip(labels.T, logits.T, strict=True):
        is_known = label >= 0
        present, scores = label[is_known] == 1, logit[is_known]
        row = {"auroc": np.nan, "average_precision": np.nan, "base_rate": np.nan, "p_chance": np.nan}
        if present.any():
            row["base_rate"] = float(present.mean())
        if present.any() and not present.all():
            row["auroc"] = float(roc_auc_score(present, scores))
            row["average_precision"] = float(average_precision_score(present, scores))
            row["p_chance"] = float(mannwhitneyu(scores[present], scores[~present], alternative="greater").pvalue)
        rows.append({**row, "n_images": int(is_known.sum())})
    return pd.DataFrame(rows)


def chance_of_labels(labels: np.ndarray, logits: np.ndarray) -> float:
    """Return the p-value of the hypothesis that the labels are independent of a network's logits.

    A permutation test exchanges the label vectors of images, which keeps labels together that occur together. The
    statistic is the difference between the mean rank of the images with a label and of those without it, averaged over
    labels; it orders permutations as the mean AUROC does where all labels are known.

    Parameters
    ----------
    labels, logits
        As in `quality_of_labels`.

    Returns
    -------
    float
        One-sided p-value; NaN where no label is both present and absent.
    """
    present, absent = (labels == 1).astype(np.float64), (labels == 0).astype(np.float64)
    testable = (present.sum(0) > 0) & (absent.sum(0) > 0)
    if not testable.any():
        return float("nan")
    weights = present[:, testable] / present[:, testable].sum(0) - absent[:, testable] / absent[:, testable].sum(0)
    ranks = rankdata(logits[:, testable], axis=0)
    return _permuted(lambda order: float((ranks * weights[order]).sum()), len(labels))


def accuracy_of_numbers(scored: ScoredRows, outputs: np.ndarray, target: str | int) -> list[dict[str, Any]]:
    """Return the quality of the outputs (N, variants) of a regression, one row for each number that is predicted."""
    labels, names = scored.ground_truth.astype(np.float64), scored.target_names(scored.targets)
    if isinstance(target, int):
        # All images are explained for the same number.
        labels, names = labels.reshape(len(labels), -1)[:, target], np.full(len(labels), "", dtype=object)
    rows = []
    for name in dict.fromkeys(names.tolist()):
        of_name = names == name
        rows.append({"label": name, **quality_of_numbers(labels[of_name], outputs[of_name])})
    if len(rows) > 1:
        mean = {key: float(np.mean([row[key] for row in rows])) for key in ("r2", "spearman")}
        # The network is better than guessing if it is for one number; Bonferroni's correction is for their count.
        p = min(1.0, min(row["p_chance"] for row in rows) * len(rows))
        rows.insert(0, {"label": "", **mean, "p_chance": p, "n_images": len(set(scored.image_ids))})
    return rows


def quality_of_numbers(labels: np.ndarray, outputs: np.ndarray) -> dict[str, Any]:
    """Return how close the outputs of a network are to the labels of a regression.

    Parameters
    ----------
    labels
        (N,).
    outputs
        (N, variants), the outputs for each image: first intact, then with each patch deleted.

    Returns
    -------
    dict
        ``mae_clean`` and ``mae_worst_patch``, the mean absolute error on intact images and with the patch deleted that
        makes it largest, lower is better; ``r2``, at most 1, and 0 for predicting the mean of the labels;
        ``spearman``, the rank correlation of outputs and labels; ``p_chance`` as in `chance_of_numbers`;
        ``n_images``.
    """
    # Here, because most runs are no regressions, and scikit-learn takes seconds to load.
    from sklearn.metrics import mean_absolute_error, r2_score

    varied = len(labels) > 1 and np.ptp(labels) > 0
    return {
        "mae_clean": float(mean_absolute_error(labels, outputs[:, 0])),
        "mae_worst_patch": float(np.abs(outputs[:, 1:] - labels[:, None]).max(axis=1).mean()),
        "r2": float(r2_score(labels, outputs[:, 0])) if varied else np.nan,
        "spearman": float(spearmanr(labels, outputs[:, 0]).statistic)
        if varied and np.ptp(outputs[:, 0]) > 0
        else np.nan,
        "p_chance": chance_of_numbers(labels, outputs[:, 0]),
        "n_images": len(labels),
    }


def chance_of_numbers(labels: np.ndarray, outputs: np.ndarray) -> float:
    """Return the p-value of the hypothesis that the outputs (N,) of a regression do not rise with the labels (N,).

    The test is one-sided and uses Spearman's ρ. A network that predicts in another unit has an R² below 0 but is not
    at chance, because maps explain what moves its output; and errors need not be normally distributed. With few images
    the p-value comes from permutations.

    Returns
    -------
    float
        NaN where all labels are equal, or there are fewer than two; 1 where all outputs are equal.
    """
    if len(labels) < 2 or np.ptp(labels) == 0:
        return float("nan")
    if np.ptp(outputs) == 0:
        return 1.0
    if len(labels) > MOST_PERMUTED:
        return float(spearmanr(labels, outputs, alternative="greater").pvalue)
    ranks, label_ranks = rankdata(outputs), rankdata(labels)
    return _permuted(lambda order: float(ranks @ label_ranks[order]), len(labels))


def _permuted(statistic: Any, count: int) -> float:
    """Return the share of permutations whose statistic is at least that of the given order, which counts as one."""
    generator = numpy_generator(0, "permutations of labels")
    observed = statistic(np.arange(count))
    observed -= 1e-9 * max(1.0, abs(observed))
    at_least = sum(statistic(generator.permutation(count)) >= observed for _ in range(PERMUTATIONS))
    return (1 + at_least) / (1 + PERMUTATIONS)


def better_than_guessing(row: Mapping[str, Any]) -> str:
    """Describe the quality of a network of several labels or numbers, and what guessing reaches."""
    images = f"{int(row['n_images'])} images"
    if row["task"] == "multilabel":
        what = f"AUROC of {row['label']}" if row["label"] else "mean AUROC over its labels"
        return f"its {what} is {row['auroc']:.2f} on {images}, where guessing has 0.50"
    rho = f"{row['spearman']:.2f}".replace("-", "−")
    r2 = f"{row['r2']:.2f}".replace("-", "−")
    return f"its predictions do not increase with the labels of {images} (Spearman's ρ {rho}, R² {r2})"

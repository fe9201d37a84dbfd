"""How good networks are, by their task: accuracy, or error, beside what guessing reaches.

- **Classes**: top-k accuracy; guessing the most frequent class reaches its share.
- **Several labels**: AUROC and average precision of each label, and their means, over the pictures that have a row, of
  what is known of them; guessing reaches an AUROC of 0.5, and an average precision of the label's base rate. And the
  share of present labels that the network finds (its logit is above 0), also with the worst patch deleted.
- **Numbers**: mean absolute error and R² against predicting the mean of the labels, which reaches an R² of 0.
- **A callable target**: nothing is known that it should be.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from heatproof.base.grids import grid_table_value
from heatproof.base.randomness import numpy_generator
from heatproof.metrics.single_deletion import base_name
from heatproof.stores.manifest import read_checksummed
from heatproof.stores.rows import ScoredRows, scored_rows
from heatproof.stores.store import describe_store, read

if TYPE_CHECKING:
    from heatproof.stages.tables import Drops

PERMUTATIONS = 1999
# Of more images Student's t is near enough to Spearman's ρ.
EXACT = 50


def accuracy_table(drops: Sequence[Drops], images: int, target: str | int = "label") -> pd.DataFrame:
    """Return how good each network is, on intact images and with the worst patch deleted (Hesse et al. 2024, table 3).

    An image counts as right with its worst patch deleted only if it is right whichever patch is deleted. Top-k is a
    label among the k largest logits.

    Parameters
    ----------
    drops
        All cached patch drops.
    images
        How many images have drops.
    target
        The class whose rank is cached. That of the label is known for labels alone, and top-5 with it.

    Returns
    -------
    pandas.DataFrame
        One row each, accuracies in [0, 1], higher is better. ``in_domain`` tells whether the weights were finetuned
        with this grid and baseline; ``majority`` is the share of the most frequent class, which guessing reaches. Of
        several labels one row for all, whose ``label`` is "", and one for each; ``p_chance`` is the p-value of the test
        whether a network is better than guessing (`chance_of_labels`, `chance_of_numbers`).
    """
    rows: list[dict[str, Any]] = []
    for item in drops:
        known = scored_rows((read_checksummed(item.labels) if item.labels else None) or {}, target, images)
        of: dict[str, Any] = {key: getattr(item, key) for key in ("dataset", "model", "weights", "grid", "baseline")}
        of["grid"] = grid_table_value(item.grid)
        of["in_domain"] = base_name(item.metric) == "idsds"
        store = item.drops + ".zarr"
        if known.has_classes:
            found = [_of_classes(store, images, target)]
        elif known.task == "multilabel":
            found = _of_labels(known, store, item.answers, images)
        elif known.task == "regression":
            found = _of_numbers(known, read(store, "logit", 0, images).astype(np.float64), target)
        else:
            found = [{"n_images": len(describe_store(store)["labels"][:images])}]
        task = {} if known.has_classes else {"task": known.task}
        rows += [{**of, **one, **task} for one in found]
    table = pd.DataFrame(rows)
    if "label" not in table:
        return table
    table = table.fillna({"label": ""})
    return table if (table["label"] != "").any() else table.drop(columns="label")


def _of_classes(store: str, images: int, target: str | int) -> dict[str, Any]:
    labels = np.asarray(describe_store(store)["labels"])[:images]
    rank = read(store, "target_rank", 0, images)
    if target != "label":
        wrong = read(store, "predicted", 0, images) != labels[:, None]
        rank = np.where(wrong, np.inf, 0)
    row: dict[str, Any] = {}
    for k in (1, 5):
        known = k == 1 or target == "label"
        row[f"top{k}_clean"] = float((rank[:, 0] < k).mean()) if known else np.nan
        row[f"top{k}_worst_patch"] = float((rank[:, 1:] < k).all(1).mean()) if known else np.nan
    majority = float(np.unique(labels, return_counts=True)[1].max() / len(labels))
    return {**row, "majority": majority, "n_images": images}


def _of_labels(known: ScoredRows, store: str, answers: str, images: int) -> list[dict[str, Any]]:
    found = np.asarray(read(store, "logit", 0, images) > 0)
    targets = np.asarray(describe_store(store)["labels"])[:images]
    logits = read(answers + ".zarr", "logit", 0, images).astype(np.float64)
    pictures = known.first_rows
    by_label = quality_of_labels(known.ground_truth[pictures], logits[pictures])
    every: dict[str, Any] = {"label": "", **{str(name): by_label[name].mean() for name in by_label}}
    every["p_chance"] = chance_of_labels(known.ground_truth[pictures], logits[pictures])
    every["n_images"] = len(pictures)
    recall = {"recall_clean": found[:, 0], "recall_worst_patch": np.asarray(found.all(axis=1))}
    every |= {name: float(right.mean()) for name, right in recall.items()}
    rows = [every]
    for number, row in enumerate(by_label.to_dict("records")):
        own = targets == number
        more = {name: float(right[own].mean()) if own.any() else np.nan for name, right in recall.items()}
        rows.append({"label": known.names[number], **{str(key): value for key, value in row.items()}, **more})
    return rows


def quality_of_labels(labels: np.ndarray, logits: np.ndarray) -> pd.DataFrame:
    """Return how well logits tell pictures with a label from those without it.

    Parameters
    ----------
    labels
        (N, K), 1 present, 0 absent, -1 not known, which is left out.
    logits
        (N, K).

    Returns
    -------
    pandas.DataFrame
        A row a label: ``auroc`` and ``average_precision``, NaN where no picture has the label or none is without it;
        ``base_rate``, the share of the known pictures that have it; ``p_chance``, one-sided, of the test of Mann and
        Whitney, whose statistic is the AUROC; ``n_images``, of how many pictures it is known.
    """
    from scipy.stats import mannwhitneyu
    from sklearn.metrics import average_precision_score, roc_auc_score

    rows = []
    for there, said in zip(labels.T, logits.T, strict=True):
        known = there >= 0
        present, scores = there[known] == 1, said[known]
        row = {"auroc": np.nan, "average_precision": np.nan, "base_rate": np.nan, "p_chance": np.nan}
        if present.any():
            row["base_rate"] = float(present.mean())
        if present.any() and not present.all():
            row["auroc"] = float(roc_auc_score(present, scores))
            row["average_precision"] = float(average_precision_score(present, scores))
            row["p_chance"] = float(mannwhitneyu(scores[present], scores[~present], alternative="greater").pvalue)
        rows.append({**row, "n_images": int(known.sum())})
    return pd.DataFrame(rows)


def chance_of_labels(labels: np.ndarray, logits: np.ndarray) -> float:
    """Return how likely labels that have nothing to do with a network are told apart as well as it tells them.

    A permutation test: the labels of whole pictures are exchanged, so that those that come together stay together. The
    statistic is the mean over labels of the difference of mean ranks of the pictures with the label and without it,
    which is the mean AUROC where all labels are known.

    Parameters
    ----------
    labels, logits
        As in `quality_of_labels`.

    Returns
    -------
    float
        One-sided p-value; NaN where no label is both present and absent.
    """
    from scipy.stats import rankdata

    present, absent = (labels == 1).astype(np.float64), (labels == 0).astype(np.float64)
    told = (present.sum(0) > 0) & (absent.sum(0) > 0)
    if not told.any():
        return float("nan")
    weights = present[:, told] / present[:, told].sum(0) - absent[:, told] / absent[:, told].sum(0)
    ranks = rankdata(logits[:, told], axis=0)
    return _permuted(lambda order: float((ranks * weights[order]).sum()), len(labels))


def _of_numbers(known: ScoredRows, said: np.ndarray, target: str | int) -> list[dict[str, Any]]:
    """Return errors of numbers said (N, variants) of a regression, by the number that rows are about."""
    labels, every = known.ground_truth.astype(np.float64), known.target_names(known.targets)
    if isinstance(target, int):
        # One number is explained of all pictures.
        labels, every = labels.reshape(len(labels), -1)[:, target], np.full(len(labels), "", dtype=object)
    rows = []
    for name in dict.fromkeys(every.tolist()):
        own = every == name
        rows.append({"label": name, **quality_of_numbers(labels[own], said[own])})
    if len(rows) > 1:
        mean = {key: float(np.mean([row[key] for row in rows])) for key in ("r2", "spearman")}
        # The network says something if it does of one number; as many are asked, each has its share of the error.
        p = min(1.0, min(row["p_chance"] for row in rows) * len(rows))
        rows.insert(0, {"label": "", **mean, "p_chance": p, "n_images": len(set(known.image_ids))})
    return rows


def quality_of_numbers(labels: np.ndarray, said: np.ndarray) -> dict[str, Any]:
    """Return how near a network's numbers (N, variants), of which the first is of the intact image, are to labels (N,).

    Returns
    -------
    dict
        ``mae_clean`` and ``mae_worst_patch``, the mean absolute error and that with the patch deleted that makes it
        largest, lower is better; ``r2``, at most 1, 0 for the mean of the labels; ``spearman``, of numbers and labels;
        ``p_chance`` as in `chance_of_numbers`; ``n_images``.
    """
    from scipy.stats import spearmanr
    from sklearn.metrics import mean_absolute_error, r2_score

    varied = len(labels) > 1 and np.ptp(labels) > 0
    return {
        "mae_clean": float(mean_absolute_error(labels, said[:, 0])),
        "mae_worst_patch": float(np.abs(said[:, 1:] - labels[:, None]).max(axis=1).mean()),
        "r2": float(r2_score(labels, said[:, 0])) if varied else np.nan,
        "spearman": float(spearmanr(labels, said[:, 0]).statistic) if varied and np.ptp(said[:, 0]) > 0 else np.nan,
        "p_chance": chance_of_numbers(labels, said[:, 0]),
        "n_images": len(labels),
    }


def chance_of_numbers(labels: np.ndarray, said: np.ndarray) -> float:
    """Return how likely numbers that have nothing to do with the labels (N,) rise with them as much as these do.

    One-sided, of Spearman's ρ: a network whose numbers are in another unit has an R² below 0 and is not at chance for
    that, because maps explain what moves its number; and errors need not be normal. Of few images by permutations.

    Returns
    -------
    float
        NaN where all labels are the same; 1 where all numbers are, or there are too few for any answer.
    """
    from scipy.stats import rankdata, spearmanr

    if len(labels) < 2 or np.ptp(labels) == 0:
        return float("nan")
    if np.ptp(said) == 0:
        return 1.0
    if len(labels) > EXACT:
        return float(spearmanr(labels, said, alternative="greater").pvalue)
    ranks, own = rankdata(said), rankdata(labels)
    return _permuted(lambda order: float(ranks @ own[order]), len(labels))


def _permuted(statistic: Any, count: int) -> float:
    """Return the share of permutations with as large a statistic as the order itself, which is one of them."""
    generator = numpy_generator(0, "permutations of labels")
    least = statistic(np.arange(count))
    least -= 1e-9 * max(1.0, abs(least))
    above = sum(statistic(generator.permutation(count)) >= least for _ in range(PERMUTATIONS))
    return (1 + above) / (1 + PERMUTATIONS)


def better_than_guessing(row: Mapping[str, Any]) -> str:
    """Return in words how good the network of a row of several labels or numbers is, and what guessing reaches."""
    images = f"{int(row['n_images'])} images"
    if row["task"] == "multilabel":
        what = f"AUROC of {row['label']}" if row["label"] else "mean AUROC over its labels"
        return f"its {what} is {row['auroc']:.2f} on {images}, where guessing has 0.50"
    rho = f"{row['spearman']:.2f}".replace("-", "−")
    r2 = f"{row['r2']:.2f}".replace("-", "−")
    return f"its numbers do not rise with the labels of {images} (Spearman's ρ {rho}, R² {r2})"

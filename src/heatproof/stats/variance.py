"""Variance components of scores: image, training seed, network, dataset, and residual."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

COMPONENTS = ("dataset", "network", "seed", "image", "residual")
COLUMNS = ("metric", "weights", "method", "component", "variance", "share", "n", "note")
ONE_NETWORK = "one network on every dataset: the image and the residual cannot be separated"
MISSING = {
    "dataset": "one dataset",
    "network": "one kind of network on every dataset",
    "seed": "no model is trained with several seeds",
    "image": ONE_NETWORK,
    "residual": ONE_NETWORK,
}


def variance_table(scores: pd.DataFrame) -> pd.DataFrame:
    """Split the variance of the scores of images into components.

    The model of a score is a mean plus random effects of the dataset, of the network in it, of the training seed in the
    network and of the image of the dataset (the same for all its networks), and a residual of the network on the image.
    Components are estimated by analysis of variance: mean squares are equated with their expectations (Searle, Casella
    and McCulloch, Variance Components, 1992, chapters 3 and 4), with sums of squares pooled over datasets; a negative
    estimate is set to 0.

    Parameters
    ----------
    scores
        dataset, model, weights, metric, method, image, score; ``kind`` where several models are one network, trained
        with different seeds.

    Returns
    -------
    pandas.DataFrame
        `COLUMNS`, five rows for every metric, weights and method: ``variance`` of the component in squared units of the
        score; ``share`` of the sum of the known components, in [0, 1]; ``n``, the number of datasets, networks, seeds,
        images, or scores (residual) behind it; ``note``, the reason why a component is missing. Images are those on
        which the method has a score on all networks of the dataset.
    """
    rows: list[dict[str, Any]] = []
    kinds = scores["kind"] if "kind" in scores else scores["model"]
    table = scores.assign(kind=kinds)
    for (metric, weights, method), part in table.groupby(["metric", "weights", "method"], sort=False):
        datasets = []
        for _, rows_of_dataset in part.groupby("dataset", sort=False):
            wide = rows_of_dataset.pivot(index=["kind", "model"], columns="image", values="score").dropna(axis=1)
            if wide.shape[1] > 1:
                datasets.append((wide.to_numpy(dtype=float), wide.index.get_level_values("kind").to_numpy()))
        variances, counts = components(datasets)
        total = sum(value for value in variances.values() if not np.isnan(value))
        for name in COMPONENTS:
            is_defined = not np.isnan(variances[name])
            where = {"metric": metric, "weights": weights, "method": method, "component": name}
            note = "" if is_defined else MISSING[name] if datasets else "defined on fewer than two common images"
            share = variances[name] / total if is_defined and total > 0 else np.nan
            rows.append({**where, "variance": variances[name], "share": share, "n": counts[name], "note": note})
    return pd.DataFrame(rows, columns=list(COLUMNS))


def components(datasets: list[tuple[np.ndarray, np.ndarray]]) -> tuple[dict[str, float], dict[str, int]]:
    """Return the variance components of one method, and the number of levels behind each.

    Parameters
    ----------
    datasets
        For each dataset the scores (models, images) without NaN, and the kind of each model.

    Returns
    -------
    variance, n : dict
        By `COMPONENTS`; NaN where the design cannot identify a component.
    """
    variance, n = dict.fromkeys(COMPONENTS, float("nan")), dict.fromkeys(COMPONENTS, 0)
    if not datasets:
        return variance, n
    residual, image = np.zeros(2), []
    seed, network, means, images_of = np.zeros(2), [], [], []
    for values, kinds in datasets:
        models, images = values.shape
        of_model, of_image, mean = values.mean(axis=1), values.mean(axis=0), values.mean()
        residuals = values - of_model[:, None] - of_image + mean
        residual += (residuals**2).sum(), (models - 1) * (images - 1)
        image.append((models * ((of_image - mean) ** 2).sum(), images - 1, models))
        labels, group = np.unique(kinds, return_inverse=True)
        size = np.bincount(group)
        of_kind = np.bincount(group, of_model) / size
        seed += ((of_model - of_kind[group]) ** 2).sum(), models - len(labels)
        network.append((((of_kind - of_kind.mean()) ** 2).sum(), len(labels) - 1, (1 / size).mean()))
        means.append(of_kind.mean())
        images_of.append(images)
        n = {
            key: n[key] + count
            for key, count in zip(COMPONENTS, (1, len(labels), models, images, values.size), strict=True)
        }
    error = residual[0] / residual[1] if residual[1] else float("nan")
    # Variance of a network's mean over images that is due to its residual.
    noise = error * float(np.mean([1 / images for images in images_of])) if residual[1] else 0.0
    if residual[1]:
        variance["residual"] = error
        squares, degrees, networks = (np.array(column) for column in zip(*image, strict=True))
        variance["image"] = max(0.0, (squares.sum() / degrees.sum() - error) / np.average(networks, weights=degrees))
    own_variance = noise
    if seed[1]:
        variance["seed"] = max(0.0, seed[0] / seed[1] - noise)
        own_variance = variance["seed"] + noise
    squares, degrees, inverse = (np.array(column) for column in zip(*network, strict=True))
    if degrees.sum():
        within = own_variance * np.average(inverse, weights=degrees)
        variance["network"] = max(0.0, squares.sum() / degrees.sum() - within)
    if len(datasets) > 1:
        # Variance of a dataset's mean that is due to its networks and its images.
        spread = np.nan_to_num(variance["network"]) + own_variance * inverse.mean()
        per = float(np.mean([1 / (degree + 1) for degree in degrees]))
        shared = np.nan_to_num(variance["image"]) * float(np.mean([1 / images for images in images_of]))
        variance["dataset"] = max(0.0, float(np.var(means, ddof=1)) - spread * per - shared)
    return variance, n

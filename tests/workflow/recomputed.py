"""Recompute the tables of a run from stored arrays, with NumPy, SciPy and pandas only.

Nothing here imports heatproof: the definitions of docs/conventions.md and of the papers are implemented independently.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import zarr
from scipy.stats import rankdata, skew, spearmanr, t, ttest_1samp

NINE = np.arange(1, 10) / 10


def array(store: Path, name: str) -> np.ndarray:
    """Return a complete array of a store."""
    return zarr.open_group(store, mode="r")[name][:]


class Network:
    """The stored arrays of one network; `images` of the split are scored, and `seen` passed through the network."""

    def __init__(self, results: Path, dataset: str, model: str, weights: str, images: int, seen: int) -> None:
        self.results, self.where, self.images = results, (dataset, model, weights), images
        (drops,) = (results / "drops" / dataset / model / weights).glob("g4_*.zarr")
        self.logit, self.predicted = array(drops, "logit")[:seen].astype(float), array(drops, "predicted")[:seen]
        self.labels = array(drops, "label")[:seen]

    def maps(self) -> dict[str, np.ndarray]:
        """Return the map (N, H, W) of every method that has one."""
        maps_by_method = {}
        own_network, network_free = "/".join(self.where), f"{self.where[0]}/no_model/no_model"
        for folder in (own_network, network_free):
            for store in sorted((self.results / "maps" / folder).glob("*.zarr")):
                if (gap := pd.read_json(store.with_suffix(".0.json"), typ="series")["gap"]) is not None:
                    assert gap
                    continue
                values = array(store, "attribution")[: self.images].astype(float)
                for column, name in enumerate(array(store, "map").tolist()):
                    maps_by_method[name] = values[:, column]
                    if (values < 0).any():
                        maps_by_method[f"{name}_abs"] = np.abs(values[:, column])
        return maps_by_method

    def curve(self, response: str, method: str) -> dict[str, np.ndarray]:
        """Return every quantity (N, S) of a response along the rankings of a method's maps."""
        explainer = method.removesuffix("_abs")
        (store,) = (self.results / "curves" / "/".join(self.where) / explainer).glob(f"{response}-*.zarr")
        row = array(store, "method").tolist().index(method)
        names, values = array(store, "quantity").tolist(), array(store, "response")[: self.images]
        return {name: values[:, row, number] for number, name in enumerate(names)}


def single_deletion(network: Network, maps: np.ndarray) -> np.ndarray:
    """Return IDSDS or SDS per image: Hesse et al. 2024, equation 1, on a grid of 4."""
    side, images = maps.shape[-1] // 4, network.images
    sums = maps.reshape(images, 4, side, 4, side).sum((2, 4)).reshape(images, 16)
    drops = network.logit[:images, :1] - network.logit[:images, 1:]
    with np.errstate(all="ignore"):
        return np.array([spearmanr(map_sums, other).statistic for map_sums, other in zip(sums, drops, strict=True)])


def curve_score(network: Network, method: str, metric: str) -> np.ndarray:
    """Return a score per image from response curves."""

    def read(response: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        curve = network.curve(response, method)
        return np.exp(curve["log_probability_label"]), curve["changed"] / curve["pixels"], curve["predicted"]

    def area(response: str) -> np.ndarray:
        probability, share, _ = read(response)
        return np.trapezoid(probability, share, axis=1)

    if metric == "ids":
        return read("deletion_lerf_mean")[0][:, :-1].mean(axis=1)
    if metric.startswith("deletion"):
        return area(f"{metric}_mean")
    if metric.startswith("road"):
        _, share, predicted = read(f"deletion_{metric.removeprefix('road_')}_road")
        points = [int(np.abs(share[0] - wanted).argmin()) for wanted in NINE]
        assert np.abs(share[0, points] - NINE).max() < 1e-3
        return (predicted[:, points] == network.labels[: network.images, None]).mean(axis=1)
    inserted, deleted = ("insertion_morf_blur", "deletion_morf_zeros")
    parts = {"rise_insertion": [(1, inserted)], "rise_deletion": [(1, deleted)]}
    parts["rise_difference"] = [(1, inserted), (-1, deleted)]
    return sum(sign * area(response) for sign, response in parts[metric])


def top_sums(values: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return the sums (N, S) of the largest values of each image's map, for several numbers of values."""
    falling = -np.sort(-values.reshape(len(values), -1), axis=1)
    sums = np.concatenate([np.zeros((len(values), 1)), np.cumsum(falling, axis=1)], axis=1)
    return np.take_along_axis(sums, counts.astype(int), axis=1)


def mas_curve(network: Network, method: str, maps: np.ndarray, mode: str) -> tuple[np.ndarray, np.ndarray]:
    """Return a curve of MAS and the shares at its points, (N, S) each: Walker et al. 2024, equations 2 to 5."""
    arrays = network.curve(
        {"insertion": "insertion_morf_blur", "deletion": "deletion_morf_zeros"}[mode] + "_magnitude", method
    )
    probability = np.exp(arrays["log_probability_label"])
    if mode == "deletion":
        # A deletion in reverse order is an insertion of the least relevant pixels.
        probability = probability[:, ::-1]
    gain = probability[:, -1:] - probability[:, :1]
    with np.errstate(all="ignore"):
        response = np.where(gain > 0, np.clip((probability - probability[:, :1]) / gain, 0, 1), np.nan)
    if mode == "insertion":
        response = np.maximum.accumulate(response, axis=1)
    else:
        response = np.minimum.accumulate(response[:, ::-1], axis=1)
    sums = top_sums(np.abs(maps), arrays["changed"])
    with np.errstate(all="ignore"):
        density = sums / np.abs(maps).sum((1, 2))[:, None]
        density = density if mode == "insertion" else 1 - density
        penalty = np.abs(response - density) * (-1 if mode == "insertion" else 1)
        aligned = np.clip(response + penalty, 0, 1)
        low, high = aligned.min(1, keepdims=True), aligned.max(1, keepdims=True)
        return (aligned - low) / np.where(high > low, high - low, np.nan), arrays["changed"] / arrays["pixels"]


def mas(network: Network, method: str, maps: np.ndarray, metric: str) -> np.ndarray:
    """Return insertion, deletion or their difference per image: equation 6."""
    up, down = (np.trapezoid(*mas_curve(network, method, maps, mode), axis=1) for mode in ("insertion", "deletion"))
    return {"mas_insertion": up, "mas_deletion": down, "mas_difference": up - down}[metric]


def information(network: Network, method: str, metric: str) -> np.ndarray:
    """Return SIC or AIC per image: Kapishnikov et al. 2019, section 4.1."""
    pictures = network.curve("pictures", method)
    probability, entropy = np.exp(pictures["log_probability_label"]), pictures["entropy"]
    right = pictures["predicted"] == network.labels[: network.images, None]
    scores = np.full(network.images, np.nan)
    axis = np.linspace(0, 1, 1001)
    for image in range(network.images):
        p, e = probability[image], entropy[image]
        if p[-1] <= p[0] or e[-1] <= e[0]:
            continue
        x = np.clip((e[1:-1] - e[0]) / (e[-1] - e[0]), 0, 1)
        y = right[image, 1:-1].astype(float) if metric == "aic" else p[1:-1]
        y = np.maximum.accumulate(np.clip((y - p[0]) / (p[-1] - p[0]), 0, 1))
        points = sorted(zip([*x, 0, 1], range(len(x) + 2), [*y, 0, 1], strict=True))
        curve = np.interp(axis, [point[0] for point in points], [point[2] for point in points])
        curve[-1] = 1
        scores[image] = np.trapezoid(curve, axis)
    return scores


def soundness(network: Network, method: str, maps: np.ndarray) -> np.ndarray:
    """Return soundness per image at an accuracy of 0.5: Li et al. 2024, algorithms 1 and 3, gains of 0.01 tolerated."""
    response = network.curve("deletion_lerf_road", method)
    revealed = top_sums(np.maximum(maps, 0), response["pixels"] - response["changed"])[:, ::-1]
    accuracy = (response["predicted"] == network.labels[: network.images, None]).mean(0)[::-1]
    false, before, reached = 0.0, 0.0, 0.0
    for step, performance in enumerate(accuracy):
        added = revealed[:, step] - (revealed[:, step - 1] if step else 0)
        if round(performance - before, 12) <= 0.01:
            false = false + added
        before = performance
        with np.errstate(all="ignore"):
            reached = np.where(revealed[:, step] > 0, (revealed[:, step] - false) / revealed[:, step], np.nan)
        if performance >= 0.5:
            return np.clip(reached, 0, 1)
    return np.full(network.images, np.nan)


def completeness(network: Network, method: str, maps: np.ndarray) -> np.ndarray:
    """Return completeness per image: Li et al. 2024, algorithms 2 and 4, of maps scaled to their range."""
    response = network.curve("deletion_value_road", method)
    right = (response["predicted"] == network.labels[: network.images, None]).astype(float)
    positive = np.maximum(maps, 0).reshape(len(maps), -1)
    low, high = positive.min(1, keepdims=True), positive.max(1, keepdims=True)
    removed = (positive - low > 0.1 * (high - low)).sum(1)
    return np.where(removed > 0, right[:, 0] - right[:, 1:].mean(1), np.nan)


def kappa(scores: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return κ (M,) for scores (T, M) of test cases, higher is better: Duan et al. 2024, section 4.2, with half wins.

    `weights` (T,) sum to 1 within each network.
    """
    wins = np.zeros((scores.shape[1],) * 2)
    for case, weight in zip(scores, weights, strict=True):
        wins += weight * ((case[:, None] > case) + 0.5 * (case[:, None] == case))
    rate = (wins + 0.5) / (weights.sum() + 1)
    odds = np.log(rate / (1 - rate))
    np.fill_diagonal(odds, 0)
    return odds.mean(axis=1)


def ranks(scores: np.ndarray, higher: bool) -> np.ndarray:
    """Return ranks; 1 is best, and scores that are equal up to rounding share the smallest rank."""
    rounded = np.round(scores, 12)
    return rankdata(-rounded if higher else rounded, method="min")


def student(scores: np.ndarray, level: float = 0.95) -> float:
    """Return half the width of Student's interval of a mean."""
    return float(t.ppf((1 + level) / 2, len(scores) - 1) * scores.std(ddof=1) / np.sqrt(len(scores)))


def paired_p_values(differences: np.ndarray) -> float:
    """Return the largest of three p-values: of a t-test, of a t-test corrected for skewness, and of a sign test."""
    n, value = len(differences), float(ttest_1samp(differences, 0).statistic)
    part = float(skew(differences, bias=False)) / np.sqrt(n)
    corrected = value + part * (1 + 2 * value**2) / 6 + part**2 * value**3 / 27
    least = (1 - np.exp(-1)) ** np.count_nonzero(differences)
    return max(float(t.sf(value, n - 1)), float(t.sf(corrected, n - 1)), float(least))


def compare_with_references(scores: dict[str, np.ndarray], references: list[str], level: float = 0.95) -> int:
    """Count the methods above every reference map, by paired one-sided tests with Holm's correction."""
    methods = [name for name in scores if name not in references]
    chances = sorted(max(paired_p_values(scores[name] - scores[rival]) for rival in references) for name in methods)
    held = [chance * (len(methods) - rank) <= 1 - level for rank, chance in enumerate(chances)]
    return held.index(False) if False in held else len(held)

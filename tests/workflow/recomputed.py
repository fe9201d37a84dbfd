"""The embedded tables, recomputed from cached arrays with NumPy, SciPy and pandas alone.

Nothing here imports heatproof: the definitions are those of docs/conventions.md and of the papers, written anew.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import zarr
from scipy.stats import rankdata, spearmanr, t, ttest_1samp

NINE = np.arange(1, 10) / 10


def array(store: Path, name: str) -> np.ndarray:
    """Return a whole array of a store."""
    return zarr.open_group(store, mode="r")[name][:]


class Network:
    """One network's cached arrays, which have room for the whole split: of so many scored images, and of `seen`."""

    def __init__(self, results: Path, dataset: str, model: str, weights: str, images: int, seen: int) -> None:
        self.results, self.where, self.images = results, (dataset, model, weights), images
        (drops,) = (results / "drops" / dataset / model / weights).glob("g4_*.zarr")
        self.logit, self.predicted = array(drops, "logit")[:seen].astype(float), array(drops, "predicted")[:seen]
        self.labels = array(drops, "label")[:seen]

    def maps(self) -> dict[str, np.ndarray]:
        """Return the map (N, H, W) of every method that has one."""
        found = {}
        own, known = "/".join(self.where), f"{self.where[0]}/no_model/no_model"
        for folder in (own, known):
            for store in sorted((self.results / "maps" / folder).glob("*.zarr")):
                if (gap := pd.read_json(store.with_suffix(".0.json"), typ="series")["gap"]) is not None:
                    assert gap
                    continue
                values = array(store, "attribution")[: self.images].astype(float)
                for place, name in enumerate(array(store, "map").tolist()):
                    found[name] = values[:, place]
                    if (values < 0).any():
                        found[f"{name}_abs"] = np.abs(values[:, place])
        return found

    def curve(self, response: str, method: str) -> dict[str, np.ndarray]:
        """Return every quantity (N, S) of a response along the maps of a method."""
        explainer = method.removesuffix("_abs")
        (store,) = (self.results / "curves" / "/".join(self.where) / explainer).glob(f"{response}-*.zarr")
        place = array(store, "method").tolist().index(method)
        names, values = array(store, "quantity").tolist(), array(store, "response")[: self.images]
        return {name: values[:, place, number] for number, name in enumerate(names)}


def single_deletion(network: Network, maps: np.ndarray) -> np.ndarray:
    """Return IDSDS or SDS per image: Hesse et al. 2024, equation 1, on a grid of 4."""
    side, images = maps.shape[-1] // 4, network.images
    sums = maps.reshape(images, 4, side, 4, side).sum((2, 4)).reshape(images, 16)
    drops = network.logit[:images, :1] - network.logit[:images, 1:]
    with np.errstate(all="ignore"):
        return np.array([spearmanr(one, other).statistic for one, other in zip(sums, drops, strict=True)])


def along(network: Network, method: str, metric: str) -> np.ndarray:
    """Return a score per image that is read off response curves."""

    def read(response: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        known = network.curve(response, method)
        return np.exp(known["log_probability_label"]), known["changed"] / known["pixels"], known["predicted"]

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


def kappa(scores: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return κ (M,) of test cases (T, M), higher is better: Duan et al. 2024, section 4.2, with half wins.

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
    """Return ranks, 1 is best, equal scores (but for rounding) share the smallest."""
    rounded = np.round(scores, 12)
    return rankdata(-rounded if higher else rounded, method="min")


def student(scores: np.ndarray, level: float = 0.95) -> float:
    """Return half the width of Student's interval of a mean."""
    return float(t.ppf((1 + level) / 2, len(scores) - 1) * scores.std(ddof=1) / np.sqrt(len(scores)))


def above_references(scores: dict[str, np.ndarray], references: list[str], level: float = 0.95) -> int:
    """Count the methods above every reference map, by paired one-sided t-tests with Holm's correction."""
    methods = [name for name in scores if name not in references]
    chances = sorted(
        max(float(ttest_1samp(scores[name] - scores[rival], 0, alternative="greater").pvalue) for rival in references)
        for name in methods
    )
    held = [chance * (len(methods) - place) <= 1 - level for place, chance in enumerate(chances)]
    return held.index(False) if False in held else len(held)

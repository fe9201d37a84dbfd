"""What claims are tested on: mean scores of all test cases and methods, on all images and on resamples of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import rankdata

from heatproof.claims.registry import Untestable
from heatproof.metrics.bootstrap import bootstrap_means, draw_counts
from heatproof.randomness import numpy_generator

# Fewer methods than this have no ranking worth a correlation.
FEWEST_METHODS = 5


@dataclass(frozen=True)
class Case:
    """One test case: where it is, and what its metric is.

    Attributes
    ----------
    kept_by
        The finetuning of which the weights are a kept epoch; "" for weights that are none.
    """

    dataset: str
    model: str
    weights: str
    metric: str
    kind: str
    options: Mapping[str, Any]
    higher_is_better: bool
    kept_by: str = ""

    @property
    def network(self) -> tuple[str, str, str]:
        """Dataset, model and weights: the same for all metrics of one network."""
        return self.dataset, self.model, self.weights


@dataclass(frozen=True)
class Method:
    """A row of the tables: the explainer's kind, its map, and whether the map is taken absolutely."""

    name: str
    kind: str
    map: str
    transform: str
    uses_model: bool


@dataclass(frozen=True)
class Model:
    """What a model's architecture says of its design."""

    name: str
    family: str
    depth: int | None
    width: float | None
    batch_norm: bool
    bias: bool

    @classmethod
    def read(cls, name: str, architecture: str, options: Mapping[str, Any]) -> Model:
        """Read it off the names of architectures, ours and those of torchvision and timm."""
        text = f"{options.get('name', architecture)}".lower()
        family = next((word for word in ("bagnet", "bcos", "resnet", "vgg", "vit", "densenet") if word in text), text)
        depth = re.search(r"(?:resnet|vgg)(\d+)", text)
        plain = "fixup" in text or "nobias" in text or (family == "vgg" and "_bn" not in text)
        width = options.get("width", 2 if "wide" in text else 1)
        return cls(
            name,
            family,
            int(depth[1]) if depth else None,
            float(width),
            batch_norm=not plain,
            bias="nobias" not in text,
        )


class Evidence:
    """Mean scores (1 + R, cases, methods), higher is better everywhere; the first is of all images.

    Parameters
    ----------
    scores
        Tidy: dataset, model, weights, metric, method, image, score (NaN where undefined).
    cases, methods, models
        What the names in it stand for.
    seed, repetitions
        Of the bootstrap over images; the same images are drawn in all cases of a dataset.
    accuracy
        As accuracy.csv; that of kept epochs is left out.
    offsets
        Kind of a metric to the change of its scores (methods, images) when maps get a constant offset.
    """

    def __init__(
        self,
        scores: pd.DataFrame,
        cases: Sequence[Case],
        methods: Sequence[Method],
        models: Mapping[str, Model],
        seed: int = 0,
        repetitions: int = 1000,
        accuracy: pd.DataFrame | None = None,
        offsets: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        self.cases, self.methods, self.models = list(cases), list(methods), dict(models)
        kept = {case.weights for case in self.cases if case.kept_by}
        self.accuracy = None if accuracy is None else accuracy[~accuracy["weights"].isin(kept)]
        self.offsets, self.seed, self.repetitions = dict(offsets or {}), seed, repetitions
        self.values: dict[int, np.ndarray] = {}
        names = [method.name for method in self.methods]
        self.means = np.full((1 + repetitions, len(self.cases), len(names)), np.nan)
        grouped = dict(list(scores.groupby(["dataset", "model", "weights", "metric"], sort=False)))
        for place, case in enumerate(self.cases):
            rows = grouped.get((case.dataset, case.model, case.weights, case.metric))
            if rows is None or rows.empty:
                continue
            # Images in their order, so that a draw means the same images in every case.
            images = list(dict.fromkeys(rows["image"]))
            wide = rows.pivot(index="method", columns="image", values="score").reindex(index=names, columns=images)
            values = wide.to_numpy(dtype=np.float64) * (1 if case.higher_is_better else -1)
            self.values[place] = values
            defined = ~np.isnan(values)
            count = defined.sum(1)
            self.means[0, place] = np.where(count, np.nansum(values, axis=1) / np.maximum(count, 1), np.nan)
            self.means[1:, place] = bootstrap_means(values, seed, repetitions).T

    def find(
        self,
        kind: str,
        *,
        metric: str | None = None,
        weights: str | Callable[[str], bool] | None = None,
        model: Callable[[Model], bool] | None = None,
        options: Mapping[str, Any] | None = None,
        kept: bool = False,
    ) -> list[int]:
        """Return the places of test cases of a metric's kind, on whole trainings or on the epochs that they kept.

        Raises
        ------
        Untestable
            If there is none.
        """
        found = [
            place
            for place, case in enumerate(self.cases)
            if case.kind == kind
            and bool(case.kept_by) == kept
            and (metric is None or case.metric == metric)
            and (weights is None or (weights(case.weights) if callable(weights) else case.weights == weights))
            and (model is None or model(self.models[case.model]))
            and all(case.options.get(name) == value for name, value in (options or {}).items())
        ]
        if not found:
            asked = "".join(f" with {name} = {value}" for name, value in (options or {}).items())
            raise Untestable(f"no {metric or kind}{asked} was scored on such a model")
        return found

    def out_of_domain(self, kind: str, **more: Any) -> list[int]:
        """Return test cases of a metric on weights as published, where they are scored; else on any."""
        try:
            return self.find(kind, weights="pretrained", **more)
        except Untestable:
            return self.find(kind, **more)

    def named(self, kind: str, transform: str = "raw", map: str | None = None) -> int:
        """Return the place of the method that an explainer's kind makes.

        Raises
        ------
        Untestable
            If the config has none.
        """
        for place, method in enumerate(self.methods):
            if method.kind == kind and method.transform == transform and map in (None, method.map):
                return place
        raise Untestable(f"the config has no {map or kind}{' (absolute)' if transform == 'abs' else ''}")

    def any_of(self, kinds: Iterable[str], transform: str = "raw") -> list[int]:
        """Return the places of those of some kinds that the config has."""
        wanted = list(kinds)
        found = [p for p, method in enumerate(self.methods) if method.kind in wanted and method.transform == transform]
        if not found:
            raise Untestable(f"the config has none of {', '.join(wanted)}")
        return found

    def explaining(self) -> list[int]:
        """Return the places of the methods that look at the model."""
        return [place for place, method in enumerate(self.methods) if method.uses_model]

    def references(self) -> list[int]:
        """Return the places of the methods that know no model."""
        found = [place for place, method in enumerate(self.methods) if not method.uses_model]
        if not found:
            raise Untestable("the config has no reference map")
        return found

    def best(self, cases: Sequence[int], methods: Sequence[int]) -> np.ndarray:
        """Return the score of the best of some methods in each case, (1 + R, cases); NaN where none has one."""
        chosen = self.means[:, cases][:, :, methods]
        top = np.where(np.isnan(chosen), -np.inf, chosen).max(axis=2)
        return np.where(np.isfinite(top), top, np.nan)

    def difference(self, cases: Sequence[int], pairs: Sequence[tuple[int, int]]) -> tuple[np.ndarray, str]:
        """Return the mean, over test cases and pairs of methods, of how far the first is above the second.

        Raises
        ------
        Untestable
            If no case has scores of both.
        """
        parts = [self.means[:, case, better] - self.means[:, case, worse] for case in cases for better, worse in pairs]
        known = [part for part in parts if not np.isnan(part[0])]
        if not known:
            raise Untestable("no test case has scores of both")
        return mean_known(np.stack(known)), f"comparisons: {len(known)}, test cases: {len(cases)}"

    def change(self, pairs: Sequence[tuple[int, int]], methods: Sequence[int]) -> tuple[np.ndarray, str]:
        """Return the mean, over pairs of cases and methods scored in both, of the first case's score less the second's.

        Raises
        ------
        Untestable
            If there is no such pair.
        """
        parts = [self.means[:, a, method] - self.means[:, b, method] for a, b in pairs for method in methods]
        known = [part for part in parts if not np.isnan(part[0])]
        if not known:
            raise Untestable("no two of the models differ in this alone")
        return mean_known(np.stack(known)), f"comparisons: {len(known)}, pairs of test cases: {len(pairs)}"

    def agreement(
        self, pairs: Iterable[tuple[int, int]], methods: Sequence[int] | None = None
    ) -> tuple[np.ndarray, str]:
        """Return the mean Spearman correlation of methods' mean scores between test cases.

        Raises
        ------
        Untestable
            If there is no pair with enough methods scored in both.
        """
        chosen = self.explaining() if methods is None else list(methods)
        found = []
        for first, second in pairs:
            a, b = self.means[:, first, chosen], self.means[:, second, chosen]
            both = ~(np.isnan(a[0]) | np.isnan(b[0]))
            if both.sum() >= FEWEST_METHODS:
                found.append(correlate_ranks(a[:, both], b[:, both]))
        if not found:
            raise Untestable(f"no two such test cases share {FEWEST_METHODS} methods")
        return mean_known(np.stack(found)), f"pairs of test cases: {len(found)}"

    def resample(self, values: np.ndarray) -> np.ndarray:
        """Return the mean (1 + R,) of one value an image, on all images and on the resamples of the means."""
        drawn = bootstrap_means(values[None], self.seed, self.repetitions)[0]
        return np.concatenate([mean_known(values[:, None]), drawn])

    def consistency(self, case: int) -> np.ndarray:
        """Return the mean Spearman correlation (1 + R,) between two images' rankings of the methods, in a test case.

        It is what Krippendorff's α measures of ranks; pairs of an image with itself, which resampling makes, are left
        out.

        Raises
        ------
        Untestable
            If fewer than two images have a score of every method.
        """
        values = self.values[case][self.explaining()]
        values = values[~np.isnan(values).all(1)]
        values = values[:, ~np.isnan(values).any(0)]
        ranks = rankdata(values, axis=0)
        centred = ranks - ranks.mean(0)
        size = np.sqrt((centred**2).sum(0))
        unit = (centred / np.where(size > 0, size, 1))[:, size > 0]
        images = unit.shape[1]
        if images < 2 or len(unit) < FEWEST_METHODS:
            raise Untestable(f"fewer than two images have a score of {FEWEST_METHODS} methods")
        counts = np.concatenate(
            [np.ones((1, images)), draw_counts(numpy_generator(self.seed, "claims"), self.repetitions, images)]
        )
        own = (counts**2).sum(1)
        return (((counts @ unit.T) ** 2).sum(1) - own) / (images**2 - own)

    def pairs_of_models(self, cases: Sequence[int]) -> list[tuple[int, int]]:
        """Return the pairs of cases that differ in the model and in nothing else."""
        return [(a, b) for a, b in combinations(cases, 2) if self._differ_in(a, b) == {"model"}]

    def pairs_differing(self, cases: Sequence[int], field: str) -> list[tuple[int, int]]:
        """Return the pairs of cases that differ in one of dataset, model, weights, metric and in nothing else."""
        return [(a, b) for a, b in combinations(cases, 2) if self._differ_in(a, b) == {field}]

    def _differ_in(self, a: int, b: int) -> set[str]:
        one, other = self.cases[a], self.cases[b]
        names = ("dataset", "model", "weights", "metric")
        return {name for name in names if getattr(one, name) != getattr(other, name)}

    def designs(
        self, cases: Sequence[int], changed: str, same: Sequence[str], order: Callable[[Model], Any]
    ) -> list[tuple[int, int]]:
        """Return pairs of cases on two models that differ in one property: the larger of it first, by `order`."""
        found = []
        for a, b in self.pairs_of_models(cases):
            one, other = self.models[self.cases[a].model], self.models[self.cases[b].model]
            if any(getattr(one, name) != getattr(other, name) for name in same):
                continue
            if None in (order(one), order(other)) or getattr(one, changed) == getattr(other, changed):
                continue
            found.append((a, b) if order(one) > order(other) else (b, a))
        return found


def correlate_ranks(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return Spearman's correlation of each row (R, M) of two arrays; NaN where a row is constant."""
    ranks = [rankdata(values, axis=1) for values in (a, b)]
    one, other = (values - values.mean(1, keepdims=True) for values in ranks)
    scale = np.sqrt((one**2).sum(1) * (other**2).sum(1))
    with np.errstate(invalid="ignore", divide="ignore"):
        return (one * other).sum(1) / scale


def mean_known(values: np.ndarray) -> np.ndarray:
    """Return the mean over the first axis of what is not NaN; NaN where nothing is known."""
    defined = ~np.isnan(values)
    total, count = np.where(defined, values, 0).sum(0), defined.sum(0)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)

"""Evidence for claims: mean scores of all test cases and methods, on all images and on resamples."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pandas as pd
from scipy.stats import rankdata

from heatproof.metrics.bootstrap import bootstrap_means, draw_counts
from heatproof.randomness import numpy_generator

Found = TypeVar("Found")
# Fewer methods than this have no ranking worth a correlation.
FEWEST_METHODS = 5
NETWORK = ("dataset", "model", "weights")
CASE = (*NETWORK, "metric")
# What sets models apart for claims on their design.
DESIGN = ("family", "depth", "width", "batch_norm", "bias")


@dataclass(frozen=True)
class Case:
    """One test case: dataset, model, weights and metric, with properties of the metric.

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
    """A model with the design of its architecture."""

    name: str
    family: str
    depth: int | None
    width: float | None
    batch_norm: bool
    bias: bool


class Untestable(Exception):
    """A claim that this run's results cannot test; the text completes "cannot be tested here, because ..."."""


def required(cases: list[Found], reason: str) -> list[Found]:
    """Return the cases; raise `Untestable` with this reason if there are none."""
    if not cases:
        raise Untestable(reason)
    return cases


class Measured(NamedTuple):
    """Measured quantity of a claim.

    Attributes
    ----------
    draws
        (1 + R,) the quantity on all images, and on R resamples of them.
    basis
        How many comparisons, and of what, are behind the number.
    """

    draws: np.ndarray
    basis: str = ""


class Draws(NamedTuple):
    """Seed and number of resamples of the images."""

    seed: int = 0
    repetitions: int = 1000


class Evidence:
    """Mean scores (1 + R, cases, methods), higher is better everywhere; the first is of all images.

    Parameters
    ----------
    scores
        Tidy: dataset, model, weights, metric, method, image, score (NaN where undefined).
    cases, methods, models
        What the names in it stand for.
    accuracy
        As accuracy.csv; that of kept epochs is left out.
    offsets
        Kind of a metric to the change of its scores (methods, images) when maps get a constant offset.
    draws
        Of the bootstrap over images; the same images are drawn in all cases of a dataset.
    """

    def __init__(
        self,
        scores: pd.DataFrame,
        cases: Sequence[Case],
        methods: Sequence[Method],
        models: Mapping[str, Model],
        accuracy: pd.DataFrame | None = None,
        offsets: Mapping[str, np.ndarray] | None = None,
        draws: Draws = Draws(),  # noqa: B008 - immutable
    ) -> None:
        self.cases, self.methods, self.models = list(cases), list(methods), dict(models)
        kept = {case.weights for case in self.cases if case.kept_by}
        self.accuracy = None if accuracy is None else accuracy[~accuracy["weights"].isin(kept)]
        seed, repetitions = draws
        self.offsets, self.seed, self.repetitions = dict(offsets or {}), seed, repetitions
        self.values: dict[int, np.ndarray] = {}
        names = [method.name for method in self.methods]
        self.means = np.full((1 + repetitions, len(self.cases), len(names)), np.nan)
        grouped = dict(list(scores.groupby(["dataset", "model", "weights", "metric"], sort=False)))
        for index, case in enumerate(self.cases):
            rows = grouped.get((case.dataset, case.model, case.weights, case.metric))
            if rows is None or rows.empty:
                continue
            # Images in their order, so that a draw means the same images in every case.
            images = list(dict.fromkeys(rows["image"]))
            wide = rows.pivot(index="method", columns="image", values="score").reindex(index=names, columns=images)
            values = wide.to_numpy(dtype=np.float64) * (1 if case.higher_is_better else -1)
            self.values[index] = values
            defined = ~np.isnan(values)
            count = defined.sum(1)
            self.means[0, index] = np.where(count, np.nansum(values, axis=1) / np.maximum(count, 1), np.nan)
            self.means[1:, index] = bootstrap_means(values, seed, repetitions).T

    def find(
        self,
        kind: str,
        *,
        metric: str | None = None,
        weights: str | None = None,
        model: Callable[[Model], bool] | None = None,
        options: Mapping[str, Any] | None = None,
        kept: bool = False,
    ) -> list[int]:
        """Return the indices of test cases of a kind of metric, on final weights or on kept epochs.

        Raises
        ------
        Untestable
            If there is none.
        """
        matches = [
            index
            for index, case in enumerate(self.cases)
            if case.kind == kind
            and bool(case.kept_by) == kept
            and metric in (None, case.metric)
            and weights in (None, case.weights)
            and (model is None or model(self.models[case.model]))
            and all(case.options.get(name) == value for name, value in (options or {}).items())
        ]
        with_options = "".join(f" with {name} = {value}" for name, value in (options or {}).items())
        return required(matches, f"no {metric or kind}{with_options} was scored on such a model")

    def out_of_domain(self, kind: str, **more: Any) -> list[int]:
        """Return test cases of a metric on pretrained weights; on all weights if none are scored."""
        try:
            return self.find(kind, weights="pretrained", **more)
        except Untestable:
            return self.find(kind, **more)

    def named(self, kind: str, transform: str = "raw", map: str | None = None) -> int:
        """Return the index of the method of an explainer kind.

        Raises
        ------
        Untestable
            If the config has none.
        """
        for index, method in enumerate(self.methods):
            if method.kind == kind and method.transform == transform and map in (None, method.map):
                return index
        raise Untestable(f"the config has no {map or kind}{' (absolute)' if transform == 'abs' else ''}")

    def any_of(self, kinds: Sequence[str]) -> list[int]:
        """Return the indices of the raw methods of some explainer kinds."""
        indices = [p for p, method in enumerate(self.methods) if method.kind in kinds and method.transform == "raw"]
        return required(indices, f"the config has none of {', '.join(kinds)}")

    def explaining(self) -> list[int]:
        """Return the indices of methods that use the model."""
        return [index for index, method in enumerate(self.methods) if method.uses_model]

    def references(self) -> list[int]:
        """Return the indices of reference methods, which do not use the model."""
        indices = [index for index, method in enumerate(self.methods) if not method.uses_model]
        return required(indices, "the config has no reference map")

    def best(self, cases: Sequence[int], methods: Sequence[int]) -> np.ndarray:
        """Return the best score of some methods in each case, (1 + R, cases); NaN if none has a score."""
        chosen = self.means[:, cases][:, :, methods]
        top = np.where(np.isnan(chosen), -np.inf, chosen).max(axis=2)
        return np.where(np.isfinite(top), top, np.nan)

    def difference(self, cases: Sequence[int], pairs: Sequence[tuple[int, int]]) -> Measured:
        """Return the mean difference of the first method's score from the second's, over test cases and pairs.

        Raises
        ------
        Untestable
            If no case has scores of both.
        """
        parts = [self.means[:, case, better] - self.means[:, case, worse] for case in cases for better, worse in pairs]
        return _mean(parts, "no test case has scores of both", f"test cases: {len(cases)}")

    def change(self, pairs: Sequence[tuple[int, int]], methods: Sequence[int]) -> Measured:
        """Return the mean difference of scores between two cases, over pairs of cases and shared methods.

        Raises
        ------
        Untestable
            If there is no such pair.
        """
        parts = [self.means[:, a, method] - self.means[:, b, method] for a, b in pairs for method in methods]
        return _mean(parts, "no two of the models differ in this alone", f"pairs of test cases: {len(pairs)}")

    def agreement(self, pairs: Iterable[tuple[int, int]]) -> Measured:
        """Return the mean Spearman correlation of methods' mean scores between test cases.

        Raises
        ------
        Untestable
            If there is no pair with enough methods scored in both.
        """
        chosen = self.explaining()
        correlations = []
        for first, second in pairs:
            a, b = self.means[:, first, chosen], self.means[:, second, chosen]
            both = ~(np.isnan(a[0]) | np.isnan(b[0]))
            if both.sum() >= FEWEST_METHODS:
                correlations.append(correlate_ranks(a[:, both], b[:, both]))
        required(correlations, f"no two such test cases share {FEWEST_METHODS} methods")
        return Measured(mean_known(np.stack(correlations)), f"pairs of test cases: {len(correlations)}")

    def resample(self, values: np.ndarray) -> np.ndarray:
        """Return the mean (1 + R,) of one value per image, on all images and on the resamples."""
        drawn = bootstrap_means(values[None], self.seed, self.repetitions)[0]
        return np.concatenate([mean_known(values[:, None]), drawn])

    def consistency(self, case: int) -> np.ndarray:
        """Return the mean Spearman correlation (1 + R,) between the rankings of pairs of images in a test case.

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

    def model_of(self, case: int) -> Model:
        """Return the model of a test case."""
        return self.models[self.cases[case].model]

    def pairs_differing(self, cases: Sequence[int], field: str) -> list[tuple[int, int]]:
        """Return the pairs of cases that differ in exactly one of dataset, model, weights and metric."""
        same = [name for name in CASE if name != field]
        pairs = combinations(cases, 2)
        return [(a, b) for a, b in pairs if self._share(a, b, same) and not self._share(a, b, [field])]

    def pairs_sharing(self, first: Sequence[int], second: Sequence[int], *fields: str) -> list[tuple[int, int]]:
        """Return the pairs of cases, one of each list, that agree in some fields, by default the network."""
        return [(a, b) for a in first for b in second if self._share(a, b, fields or NETWORK)]

    def pairs_of_metrics(self, kind: str, other: str) -> list[tuple[int, int]]:
        """Return the pairs of cases of two kinds of metric on one network, out of domain where there are such."""
        return self.pairs_sharing(self.out_of_domain(kind), self.out_of_domain(other))

    def _share(self, a: int, b: int, fields: Sequence[str]) -> bool:
        return all(getattr(self.cases[a], name) == getattr(self.cases[b], name) for name in fields)

    def pairs_of_families(self, cases: Sequence[int], better: str, worse: str) -> list[tuple[int, int]]:
        """Return the pairs of cases that differ in the model only, from one family and another."""
        family = {c: self.model_of(c).family for c in cases}
        pairs = [pair for pair in self.pairs_differing(cases, "model") if {family[c] for c in pair} == {better, worse}]
        return [(a, b) if family[a] == better else (b, a) for a, b in pairs]

    def designs(self, cases: Sequence[int], changed: str) -> list[tuple[int, int]]:
        """Return pairs of cases whose models differ in one property of `DESIGN` only, the larger first."""
        pairs = []
        for a, b in self.pairs_differing(cases, "model"):
            one, other = ({name: getattr(self.model_of(c), name) for name in DESIGN} for c in (a, b))
            mine, theirs = one.pop(changed), other.pop(changed)
            if one == other and None not in (mine, theirs) and mine != theirs:
                pairs.append((a, b) if mine > theirs else (b, a))
        return pairs


def _mean(parts: Sequence[np.ndarray], none: str, basis: str) -> Measured:
    known = required([part for part in parts if not np.isnan(part[0])], none)
    return Measured(mean_known(np.stack(known)), f"comparisons: {len(known)}, {basis}")


def correlate_ranks(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the Spearman correlation of each row (R, M) of two arrays; NaN for constant rows."""
    ranks = [rankdata(values, axis=1) for values in (a, b)]
    one, other = (values - values.mean(1, keepdims=True) for values in ranks)
    scale = np.sqrt((one**2).sum(1) * (other**2).sum(1))
    with np.errstate(invalid="ignore", divide="ignore"):
        return (one * other).sum(1) / scale


def mean_known(values: np.ndarray) -> np.ndarray:
    """Return the mean over the first axis without NaN; NaN where all values are."""
    defined = ~np.isnan(values)
    total, count = np.where(defined, values, 0).sum(0), defined.sum(0)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)

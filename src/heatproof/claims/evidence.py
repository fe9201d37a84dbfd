"""Evidence for claims: mean scores of all test cases and methods, on all images and on resamples."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pandas as pd
from scipy.stats import rankdata

from heatproof.claims.halves import (
    MINIMUM_CEILING,
    MINIMUM_IMAGES,
    AgreementShare,
    ComparedPair,
    Feature,
    HalfVectors,
    Halves,
    MeanProduct,
    ceiling_of,
    centred_ranks,
    half_vectors,
    mean_product,
    noiseless_product,
    pool_share,
    split_images,
)
from heatproof.claims.verdicts import Measurement, Untestable
from heatproof.core.grids import Grid
from heatproof.core.methods import ABS_SUFFIX, Method
from heatproof.core.randomness import numpy_generator
from heatproof.metrics.bootstrap import bootstrap_means, draw_counts

Found = TypeVar("Found")
NetworkKind = tuple[str, str]
# Fewest methods for a rank correlation.
MINIMUM_METHODS = 5
NETWORK = ("dataset", "model", "weights")
CASE = (*NETWORK, "metric")
# Properties of a model that claims on design compare.
DESIGN = ("family", "depth", "width", "batch_norm", "bias")
# Name of the image of published scores, which are means over thousands of images, so that halves would agree.
ALL_IMAGES = "mean"


@dataclass(frozen=True)
class Case:
    """One test case: dataset, model, weights and metric, with properties of the metric.

    Attributes
    ----------
    saved_epoch_of
        The training of which the weights are a saved epoch; "" for other weights.
    grid, baseline
        Grid and baseline of the patch drops that the metric reads; None where it reads none.
    output
        ``logit`` or ``probability``: the output of the network that the metric reads.
    explains
        ``logit`` or ``probability``: the output that the maps explain.
    pixels
        The shorter side of the images; None where it is unknown.
    magnitudes
        Whether the metric reads only the magnitudes of maps, so that a map with signs and its absolute values are one
        method: see `heatproof.stats.magnitudes.MagnitudeMetrics`.
    """

    dataset: str
    model: str
    weights: str
    metric: str
    kind: str
    options: Mapping[str, Any]
    higher_is_better: bool
    saved_epoch_of: str = ""
    grid: Grid | None = None
    baseline: str | None = None
    output: str = "logit"
    explains: str = "logit"
    pixels: int | None = None
    magnitudes: bool = False

    @property
    def network(self) -> tuple[str, str, str]:
        """Dataset, model and weights, which all metrics of one network share."""
        return self.dataset, self.model, self.weights


@dataclass(frozen=True)
class Model:
    """A model with the design of its architecture; models of one `kind` differ only in the seed of the training."""

    name: str
    family: str
    depth: int | None
    width: float | None
    batch_norm: bool
    bias: bool
    kind: str = ""


def required(cases: list[Found], reason: str) -> list[Found]:
    """Return the items; raise `Untestable` with this reason if there are none."""
    if not cases:
        raise Untestable(reason)
    return cases


class Resampling(NamedTuple):
    """Seed and number of resamples of the images."""

    seed: int = 0
    repetitions: int = 1000


class Evidence:
    """Mean scores (1 + R, cases, methods), on all images and on R resamples; higher is better everywhere.

    Parameters
    ----------
    scores
        Tidy table: dataset, model, weights, metric, method, image, score (NaN where undefined).
    cases, methods, models
        Test cases, methods and models of the names in `scores`.
    accuracy
        As accuracy.csv; rows of saved epochs are left out.
    published_values
        Values that a published table gives for test cases without printing their scores: consistency by ``(case,)``,
        agreement by ``(case, case)``.
    draws
        Settings of the bootstrap over images; the same images are drawn in all cases of a dataset.
    """

    def __init__(
        self,
        scores: pd.DataFrame,
        cases: Sequence[Case],
        methods: Sequence[Method],
        models: Mapping[str, Model],
        accuracy: pd.DataFrame | None = None,
        published_values: Mapping[tuple[int, ...], float] | None = None,
        draws: Resampling = Resampling(),  # noqa: B008 - immutable
    ) -> None:
        self.cases, self.methods, self.models = list(cases), list(methods), dict(models)
        saved_epochs = {case.weights for case in self.cases if case.saved_epoch_of}
        self.accuracy = None if accuracy is None else accuracy[~accuracy["weights"].isin(saved_epochs)]
        self.seed, self.repetitions = draws
        self.published_values = dict(published_values or {})
        self.draws_networks = False
        self.values: dict[int, np.ndarray] = {}
        self.image_names: dict[int, list[str]] = {}
        names = [method.name for method in self.methods]
        self.means = np.full((1 + self.repetitions, len(self.cases), len(names)), np.nan)
        grouped: dict[Any, pd.DataFrame] = dict(list(scores.groupby(list(CASE), sort=False)))
        longest: dict[Any, list[str]] = {}
        for key, part in grouped.items():
            longest[key[:3]] = max(longest.get(key[:3], []), list(dict.fromkeys(part["image"])), key=len)
        for index, case in enumerate(self.cases):
            rows = grouped.get((case.dataset, case.model, case.weights, case.metric))
            if rows is None or rows.empty:
                continue
            # All cases list the images in the same order, so that a draw selects the same images in every case; a
            # metric that is scored on fewer images has NaN for the others, which its means leave out.
            images = longest[case.network]
            wide = rows.pivot(index="method", columns="image", values="score").reindex(index=names, columns=images)
            values = wide.to_numpy(dtype=np.float64) * (1 if case.higher_is_better else -1)
            self.values[index], self.image_names[index] = values, images
            self.means[0, index] = mean_known(values.T)
            self.means[1:, index] = bootstrap_means(values, self.seed, self.repetitions).T

    @property
    def images(self) -> int:
        """Largest number of images of a test case."""
        return max((values.shape[1] for values in self.values.values()), default=0)

    def over_networks(self) -> Evidence:
        """Return a copy that resamples networks as well as images; trainings of one kind stay together."""
        other = copy.copy(self)
        other.draws_networks = True
        return other

    # ---- test cases and methods --------------------------------------------------------------------------------------

    def find_cases(
        self,
        kind: str,
        *,
        weights: str | None = None,
        model: Callable[[Model], bool] | None = None,
        options: Mapping[str, Any] | None = None,
        saved_epochs: bool = False,
    ) -> list[int]:
        """Return the indices of the test cases of a kind of metric, on final weights or on saved epochs.

        Raises
        ------
        Untestable
            If there is none.
        """
        matches = [
            index
            for index, case in enumerate(self.cases)
            if case.kind == kind
            and bool(case.saved_epoch_of) == saved_epochs
            and weights in (None, case.weights)
            and (model is None or model(self.models[case.model]))
            and all(case.options.get(name) == value for name, value in (options or {}).items())
        ]
        with_options = "".join(f" with {name} = {value}" for name, value in (options or {}).items())
        where = f"on {weights} weights" if weights else "on such a model"
        return required(matches, f"no {kind}{with_options} was scored {where}")

    def in_domain_cases(self, model: Callable[[Model], bool] | None = None) -> list[int]:
        """Return the test cases of IDSDS that share grid, baseline and output with the first one."""
        return self.cases_varying("idsds", model=model)

    def cases_varying(self, kind: str, *varying: str, **more: Any) -> list[int]:
        """Return the cases of a kind that share grid, baseline and output with the first one, except for `varying`."""
        every = self.find_cases(kind)
        home, same = self.cases[every[0]], {"grid", "baseline", "output"}.difference(varying)
        cases = [
            c for c in self.find_cases(kind, **more) if all(getattr(self.cases[c], n) == getattr(home, n) for n in same)
        ]
        return required(cases, f"no {kind} of one grid, baseline and output was scored on such a model")

    def pairs_varying(self, field: str, kind: str = "idsds") -> list[tuple[int, int]]:
        """Return pairs of cases on one model that differ only in grid, baseline or output, the default first."""
        plain = self.cases_varying(kind)
        others = [c for c in self.cases_varying(kind, field) if not self._share(c, plain[0], [field])]
        pairs = self.pairs_sharing(plain, others, "dataset", "model")
        return required(pairs, f"{kind} is scored with only one {field}: add others to drops and weights")

    def out_of_domain_cases(self, kind: str, **more: Any) -> list[int]:
        """Return the test cases of a metric on pretrained weights."""
        return self.find_cases(kind, weights="pretrained", **more)

    def find_method(self, kind: str, transform: str = "raw", map: str | None = None) -> int:
        """Return the index of the method of a kind of explainer.

        Raises
        ------
        Untestable
            If the config has no such method.
        """
        for index, method in enumerate(self.methods):
            if method.kind == kind and method.transform == transform and map in (None, method.map):
                return index
        raise Untestable(f"the config has no {map or kind}{' (absolute)' if transform == 'abs' else ''}")

    def find_methods(self, kinds: Sequence[str]) -> list[int]:
        """Return the indices of the raw methods of some kinds of explainers."""
        indices = [p for p, method in enumerate(self.methods) if method.kind in kinds and method.transform == "raw"]
        return required(indices, f"the config has none of {', '.join(kinds)}")

    def methods_using_model(self) -> list[int]:
        """Return the indices of the methods that use the model."""
        return [index for index, method in enumerate(self.methods) if method.uses_model]

    def counted_methods(self, *cases: int) -> list[int]:
        """Return the indices of the methods that count where test cases are compared: see `Case.magnitudes`."""
        chosen = self.methods_using_model()
        if not any(self.cases[case].magnitudes for case in cases):
            return chosen
        absolute = {self.methods[index].name for index in chosen if self.methods[index].transform == "abs"}
        return [index for index in chosen if self.methods[index].name + ABS_SUFFIX not in absolute]

    def model_of(self, case: int) -> Model:
        """Return the model of a test case."""
        return self.models[self.cases[case].model]

    def network_kind(self, case: int) -> NetworkKind:
        """Return the independent network of a test case: the dataset and the kind of model, whatever its seed."""
        model = self.model_of(case)
        return self.cases[case].dataset, model.kind or model.name

    # ---- pairs of test cases -----------------------------------------------------------------------------------------

    def pairs_differing(self, cases: Sequence[int], field: str) -> list[tuple[int, int]]:
        """Return the pairs of cases that differ in exactly one of dataset, model, weights and metric.

        Models that differ only in the seed of the training are one model.
        """
        same = [name for name in CASE if name != field]
        pairs = [(a, b) for a, b in combinations(cases, 2) if self._share(a, b, same)]
        pairs = [(a, b) for a, b in pairs if not self._share(a, b, [field])]
        return [(a, b) for a, b in pairs if field != "model" or self.network_kind(a) != self.network_kind(b)]

    def pairs_sharing(self, first: Sequence[int], second: Sequence[int], *fields: str) -> list[tuple[int, int]]:
        """Return the pairs of cases, one of each list, that agree in some fields, by default in the network."""
        return [(a, b) for a in first for b in second if self._share(a, b, fields or NETWORK)]

    def _share(self, a: int, b: int, fields: Sequence[str]) -> bool:
        return all(getattr(self.cases[a], name) == getattr(self.cases[b], name) for name in fields)

    # ---- quantities --------------------------------------------------------------------------------------------------

    def pool(
        self, parts: Sequence[np.ndarray], owners: Sequence[Sequence[int]], of: str = "comparisons"
    ) -> Measurement:
        """Return the mean of quantities (1 + R,), weighted by how often their networks were drawn.

        Parameters
        ----------
        parts
            One quantity each, on all images and on resamples.
        owners
            For each quantity, the test cases that it is computed from.
        of
            What the quantities are, for the basis.
        """
        defined = [(part, {self.network_kind(c) for c in cases}) for part, cases in zip(parts, owners, strict=True)]
        defined = [(part, units) for part, units in defined if not np.isnan(part[0])]
        required(defined, "no test case has scores of all compared methods")
        order = sorted(set().union(*(units for _, units in defined)))
        counts = self.network_counts(len(order))
        weights = np.stack(
            [np.prod([counts[:, order.index(network_kind)] for network_kind in units], axis=0) for _, units in defined]
        )
        values = np.stack([part for part, _ in defined])
        weights = np.where(np.isnan(values), 0, weights)
        total = weights.sum(0)
        draws = np.where(total > 0, (weights * np.nan_to_num(values)).sum(0) / np.where(total > 0, total, 1), np.nan)
        return Measurement(draws, f"{of}: {len(defined)}, networks: {len(order)}", len(order))

    def network_counts(self, networks: int) -> np.ndarray:
        """Return how often each network is drawn, (1 + R, networks); all ones where networks are not drawn."""
        once = np.ones((1 + self.repetitions, networks))
        if self.draws_networks:
            generator = numpy_generator(self.seed, "claims", "networks")
            once[1:] = draw_counts(generator, self.repetitions, networks)
        return once

    def mean_over_cases(self, cases: Sequence[int], value: Callable[[int], np.ndarray]) -> Measurement:
        """Return the mean over test cases of a quantity (1 + R,) of each."""
        return self.pool([value(case) for case in cases], [(case,) for case in cases], "test cases")

    def difference(self, cases: Sequence[int], pairs: Sequence[tuple[int, int]]) -> Measurement:
        """Return the mean difference of the first method's score from the second's, over test cases and pairs.

        Raises
        ------
        Untestable
            If no case has scores of both.
        """
        every = [(case, *pair) for case in cases for pair in pairs]
        parts = [self.means[:, case, better] - self.means[:, case, worse] for case, better, worse in every]
        return self.pool(parts, [(case,) for case, _, _ in every])

    def best_score(self, case: int, methods: Sequence[int]) -> np.ndarray:
        """Return the best score of some methods in a test case, (1 + R,); NaN if none has a score."""
        chosen = self.means[:, case, methods]
        top = np.where(np.isnan(chosen), -np.inf, chosen).max(axis=1)
        return np.where(np.isfinite(top), top, np.nan)

    def agreement(self, pairs: Iterable[tuple[int, int]], feature: Feature = centred_ranks) -> Measurement:
        """Return the agreement of rankings of test cases, as a share of their self-agreement on other images.

        All claims that rankings agree or differ use this quantity. It is 1 where test cases rank methods in the same
        order, however noisy the rankings are.

        Parameters
        ----------
        pairs
            Pairs of test cases.
        feature
            What is compared: ranks, or the order within some pairs of methods.

        Raises
        ------
        Untestable
            If no pair has enough methods scored in both, there are too few images for halves, or halves hardly agree
            with each other.
        """
        return self.share(pairs, feature).measured(over_networks=self.draws_networks)

    def share(
        self, pairs: Iterable[tuple[int, int]], feature: Feature = centred_ranks, compared_with: Sequence[int] = ()
    ) -> AgreementShare:
        """Return the share of `agreement`, from which differences can be taken.

        Parameters
        ----------
        pairs, feature
            As in `agreement`.
        compared_with
            Further test cases with which the share is compared: only methods that count there as well are compared.
        """
        halves: dict[str, Halves] = {}
        vectors: dict[tuple[int, ...], HalfVectors] = {}
        itself: dict[tuple[int, ...], MeanProduct] = {}
        compared = []
        for pair in required(list(pairs), "there is one such test case, and a comparison needs two"):
            networks = frozenset(self.network_kind(case) for case in pair)
            if pair in self.published_values:
                compared.append(
                    ComparedPair(noiseless_product(self.published_values[pair]), noiseless_product(1), networks)
                )
                continue
            chosen = np.array(self.counted_methods(*pair, *compared_with), dtype=int)
            methods = chosen[~np.isnan(self.means[0, list(pair)][:, chosen]).any(axis=0)]
            if (
                len(methods) < MINIMUM_METHODS
                or feature(self.means[0, pair[0], methods], methods).size < MINIMUM_METHODS
            ):
                continue
            if all(self.image_names[case] == [ALL_IMAGES] for case in pair):
                vector, other_vector = (feature(self.means[0, case, methods], methods) for case in pair)
                compared.append(
                    ComparedPair(
                        noiseless_product(float((vector * other_vector).sum())), noiseless_product(1), networks
                    )
                )
                continue
            keys = [(case, *methods) for case in pair]
            for key in keys:
                if key not in vectors:
                    vectors[key] = self._half_vectors(key[0], methods, feature, halves)
                    itself[key] = mean_product(vectors[key], vectors[key])
            between = mean_product(*(vectors[key] for key in keys))
            if not np.isnan([between.value, *(itself[key].value for key in keys)]).any():
                compared.append(ComparedPair(between, ceiling_of(*(itself[key] for key in keys)), networks))
        share = pool_share(required(compared, f"no two such test cases share {MINIMUM_METHODS} methods"))
        if share.ceiling < MINIMUM_CEILING:
            raise Untestable(
                f"a ranking agrees with itself at only {share.ceiling:.2f} on other images, below {MINIMUM_CEILING:g}: "
                "use more images (evaluation: {images: ...})"
            )
        return share

    def _half_vectors(self, case: int, methods: np.ndarray, feature: Feature, halves: dict[str, Halves]) -> HalfVectors:
        dataset = self.cases[case].dataset
        if dataset not in halves:
            cases = [index for index in self.values if self.cases[index].dataset == dataset]
            images = list(dict.fromkeys(image for index in cases for image in self.image_names[index]))
            halves[dataset] = split_images(images, self.seed, dataset)
        names = self.image_names[case]
        if len(names) < MINIMUM_IMAGES:
            raise Untestable(
                f"rankings on halves of the images need {MINIMUM_IMAGES} images, and there are {len(names)}"
            )
        return half_vectors(dataset, halves[dataset], self.values[case][methods], names, methods, feature)

    def consistency(self, case: int, *compared_with: int) -> np.ndarray:
        """Return the mean Spearman correlation (1 + R,) between the rankings by pairs of images in a test case.

        Krippendorff's α of ranks measures the same; pairs of an image with itself, which occur in resamples, are left
        out.

        Parameters
        ----------
        case
            The test case.
        compared_with
            Further test cases with which it is compared: only methods that count there as well are compared.

        Raises
        ------
        Untestable
            If fewer than two images have a score of every method.
        """
        if (case,) in self.published_values:
            return np.full(1 + self.repetitions, self.published_values[case,])
        values = self.values.get(case, np.full((len(self.methods), 1), np.nan))[
            self.counted_methods(case, *compared_with)
        ]
        values = values[~np.isnan(values).all(1)]
        values = values[:, ~np.isnan(values).any(0)]
        if len(values) < MINIMUM_METHODS or values.shape[1] < 2:
            raise Untestable(f"fewer than two images have scores of {MINIMUM_METHODS} methods")
        ranks = rankdata(values, axis=0)
        centred = ranks - ranks.mean(0)
        size = np.sqrt((centred**2).sum(0))
        unit_ranks = (centred / np.where(size > 0, size, 1))[:, size > 0]
        images = unit_ranks.shape[1]
        if images < 2:
            raise Untestable("fewer than two images distinguish methods")
        counts = np.concatenate(
            [np.ones((1, images)), draw_counts(numpy_generator(self.seed, "claims"), self.repetitions, images)]
        )
        same = (counts**2).sum(1)
        return (((counts @ unit_ranks.T) ** 2).sum(1) - same) / (images**2 - same)


def correlate_ranks(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the Spearman correlation of each row (R, M) of two arrays; NaN for constant rows."""
    ranks = [rankdata(values, axis=1) for values in (a, b)]
    centred, other_centred = (values - values.mean(1, keepdims=True) for values in ranks)
    scale = np.sqrt((centred**2).sum(1) * (other_centred**2).sum(1))
    with np.errstate(invalid="ignore", divide="ignore"):
        return (centred * other_centred).sum(1) / scale


def mean_known(values: np.ndarray) -> np.ndarray:
    """Return the mean over the first axis of the values that are not NaN; NaN where all values are NaN."""
    defined = ~np.isnan(values)
    total, count = np.where(defined, values, 0).sum(0), defined.sum(0)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)

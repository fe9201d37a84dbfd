"""Agreement of rankings as a share of its ceiling, the agreement of a ranking with itself on other images.

Rankings by few images agree less than their true orders do, because each is noisy, and rankings by the same images
agree more, because they share noise. Halves of the images remove both effects: the ranking of one condition on one half
is compared with that of the other condition on the other half (between), and with that of its own condition on the
other half (ceiling). Between over ceiling is the correlation corrected for attenuation of Spearman, The proof and
measurement of association between two things, 1904: 1 where conditions rank methods in the same order, whatever the
noise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy.stats import rankdata

from heatproof.claims.verdicts import Measurement
from heatproof.core.randomness import numpy_generator

# Number of random halves; blocks of images that are left out in turn; fewest images for halves.
SPLITS, BLOCKS, MINIMUM_IMAGES = 40, 32, 8
# Where halves agree less than this with each other, the ranking is too noisy to be compared with another.
MINIMUM_CEILING = 0.3
# Correlations of halves are raised to this, because the ceiling divides by their square root.
_SMALL = 0.01

# Function from scores (..., M) and the indices of the methods to vectors of length 1, whose products are compared.
Feature = Callable[[np.ndarray, np.ndarray], np.ndarray]
NetworkKind = tuple[str, str]


def centred_ranks(scores: np.ndarray, methods: np.ndarray) -> np.ndarray:
    """Return centred ranks of length 1, whose products are Spearman's ρ; NaN where all scores are equal."""
    ranks = rankdata(scores, axis=-1, nan_policy="propagate")
    return _scale_to_unit(ranks - ranks.mean(axis=-1, keepdims=True))


def pair_orders(groups: Mapping[int, str], *, within: bool) -> Feature:
    """Return the feature whose products are Kendall's τ-b over some pairs of methods.

    Parameters
    ----------
    groups
        Method index to its group; methods without a group are left out.
    within
        Whether both methods of a pair are in one group, or in different ones.
    """

    def orders(scores: np.ndarray, methods: np.ndarray) -> np.ndarray:
        first, second = np.triu_indices(len(methods), 1)
        group = np.array([groups.get(method, "") for method in methods])
        chosen = ((group[first] == group[second]) == within) & (group[first] != "") & (group[second] != "")
        return _scale_to_unit(np.sign(scores[..., first[chosen]] - scores[..., second[chosen]]))

    return orders


def _scale_to_unit(vectors: np.ndarray) -> np.ndarray:
    size = np.sqrt((vectors**2).sum(axis=-1, keepdims=True))
    return np.divide(vectors, size, out=np.full_like(vectors, np.nan), where=size > 0)


class Halves(NamedTuple):
    """Halves of the images of one dataset.

    Attributes
    ----------
    first
        (S, N) bool, the images of the first half.
    blocks
        (N,) int, the block of images with which an image is left out.
    places
        Image to its index.
    """

    first: np.ndarray
    blocks: np.ndarray
    places: dict[str, int]


def split_images(images: Sequence[str], seed: int, dataset: str) -> Halves:
    """Return random halves of the images of a dataset, the same for all of its test cases."""
    count = len(images)
    generator = numpy_generator(seed, "halves of the images for claims", dataset)
    first = np.argsort(np.argsort(generator.random((SPLITS, count)), axis=1), axis=1) < count // 2
    blocks = generator.permutation(count) % min(count, BLOCKS)
    return Halves(first, blocks, {image: index for index, image in enumerate(images)})


class HalfVectors(NamedTuple):
    """A feature (2, S, 1 + B, F) on both halves: on all images first, then without each block of images."""

    dataset: str
    values: np.ndarray


def half_vectors(
    dataset: str, halves: Halves, scores: np.ndarray, images: Sequence[str], methods: np.ndarray, feature: Feature
) -> HalfVectors:
    """Return the feature of the mean scores on both halves.

    Parameters
    ----------
    dataset, halves
        Dataset of the test case, and its halves.
    scores, images
        (M, N) scores of the methods, NaN where undefined, and the N images.
    methods, feature
        Indices of the M methods, and the feature of their mean scores.
    """
    places = [halves.places[image] for image in images]
    first, blocks = halves.first[:, places].astype(float), halves.blocks[places]
    count = halves.blocks.max() + 1
    without_block = np.concatenate([np.ones((1, len(places))), (blocks != np.arange(count)[:, None]).astype(float)])
    defined = ~np.isnan(scores)
    values = np.where(defined, scores, 0)
    means = []
    for half in (first, 1 - first):
        weights = (half[:, None] * without_block[None]).reshape(-1, len(places))
        total, number = weights @ values.T, weights @ defined.T.astype(float)
        mean = np.divide(total, number, out=np.full_like(total, np.nan), where=number > 0)
        means.append(feature(mean, methods).reshape(len(first), 1 + count, -1))
    return HalfVectors(dataset, np.stack(means).astype(np.float32))


class MeanProduct(NamedTuple):
    """Mean product of two features: its value, by split (S,), and by dataset without each block of its images (B,)."""

    value: float
    splits: np.ndarray
    without_blocks: dict[str, np.ndarray]

    def without(self, dataset: str) -> np.ndarray | float:
        """Return the values without each block of a dataset; the value itself if it does not depend on the dataset."""
        return self.without_blocks.get(dataset, self.value)


def mean_product(vectors: HalfVectors, other_vectors: HalfVectors) -> MeanProduct:
    """Return the mean over splits of the products of one feature on one half and the other on the other half."""
    a, b = vectors.values, other_vectors.values
    splits = _both_ways(a[:, :, :1], b[:, :, :1])[:, 0]
    if vectors.dataset == other_vectors.dataset:
        without_blocks = {vectors.dataset: _mean(_both_ways(a[:, :, 1:], b[:, :, 1:]))}
    else:
        without_blocks = {vectors.dataset: _mean(_both_ways(a[:, :, 1:], b[:, :, :1]))}
        without_blocks[other_vectors.dataset] = _mean(_both_ways(a[:, :, :1], b[:, :, 1:]))
    return MeanProduct(float(_mean(splits)), splits, without_blocks)


def _both_ways(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return ((a[0] * b[1]).sum(axis=-1) + (a[1] * b[0]).sum(axis=-1)).astype(float) / 2


def _mean(values: np.ndarray) -> np.ndarray:
    """Return the mean over splits, without splits in which a method has no score or all methods have the same."""
    defined = ~np.isnan(values)
    return np.where(defined.any(0), np.where(defined, values, 0).sum(0) / np.maximum(defined.sum(0), 1), np.nan)


def ceiling_of(product: MeanProduct, other_product: MeanProduct) -> MeanProduct:
    """Return the geometric mean of the agreements of two rankings with themselves; by split to first order."""
    first, second = max(product.value, _SMALL), max(other_product.value, _SMALL)
    value = np.sqrt(first * second)
    splits = value / 2 * (product.splits / first + other_product.splits / second)
    without_blocks = {
        dataset: np.sqrt(
            np.maximum(product.without(dataset), _SMALL) * np.maximum(other_product.without(dataset), _SMALL)
        )
        for dataset in {*product.without_blocks, *other_product.without_blocks}
    }
    return MeanProduct(float(value), splits, without_blocks)


def noiseless_product(value: float) -> MeanProduct:
    """Return the product of rankings without noise, such as rankings by published means of thousands of images."""
    return MeanProduct(value, np.full(SPLITS, value), {})


class ComparedPair(NamedTuple):
    """A pair of test cases: the product of their rankings, its ceiling, and their networks."""

    between: MeanProduct
    ceiling: MeanProduct
    networks: frozenset[NetworkKind]


class AgreementShare(NamedTuple):
    """Between over ceiling of several pairs, and its values when images or networks are left out.

    Attributes
    ----------
    value, ceiling
        The share, and the mean ceiling.
    splits
        (S,), deviation of each split's value from the mean, to first order.
    without_blocks
        Dataset to the values (B,) without each block of its images.
    networks
        Network to the value without it; NaN if no pair is left.
    basis
        Number of pairs and networks, and the ceiling, as text.
    """

    value: float
    ceiling: float
    splits: np.ndarray
    without_blocks: dict[str, np.ndarray]
    networks: dict[NetworkKind, float]
    basis: str

    def minus(self, other: AgreementShare) -> AgreementShare:
        """Return this share minus another one of the same images and networks."""
        without_blocks = {
            dataset: self.without_blocks.get(dataset, np.array(self.value))
            - other.without_blocks.get(dataset, np.array(other.value))
            for dataset in {*self.without_blocks, *other.without_blocks}
        }
        networks = {
            network_kind: self.networks.get(network_kind, self.value) - other.networks.get(network_kind, other.value)
            for network_kind in {*self.networks, *other.networks}
        }
        lower = min(self.ceiling, other.ceiling)
        return AgreementShare(
            self.value - other.value, lower, self.splits - other.splits, without_blocks, networks, self.basis
        )

    def measured(self, *, over_networks: bool) -> Measurement:
        """Return the quantity with its standard error, over images only or over networks and images.

        The error over images is the jackknife's. The jackknife counts contributions of pairs of images twice (Efron and
        Stein, The jackknife estimate of variance, 1981, section 2); the variance between splits, each of which contains
        half of the pairs, estimates these. Networks are left out one at a time.
        """
        images = sum((len(values) - 1) * values.var() for values in self.without_blocks.values())
        images = max(images - np.nanvar(self.splits, ddof=1), images / 2)
        terms = [(images, min((len(values) for values in self.without_blocks.values()), default=2) - 1)]
        if over_networks:
            without = np.array(list(self.networks.values()))
            terms.append((float((len(without) - 1) * without.var()), max(len(without) - 1, 1)))
        total = sum(variance for variance, _ in terms)
        squares = sum(variance**2 / freedom for variance, freedom in terms)
        freedom = total**2 / squares if squares > 0 else terms[-1][1]
        return Measurement(
            np.array([self.value]), self.basis, len(self.networks), float(np.sqrt(total)), float(freedom)
        )


def pool_share(pairs: Sequence[ComparedPair]) -> AgreementShare:
    """Return the mean of products over the mean of their ceilings."""
    between = sum(pair.between.value for pair in pairs)
    ceiling = sum(pair.ceiling.value for pair in pairs)
    value = between / ceiling
    splits = sum((pair.between.splits - value * pair.ceiling.splits for pair in pairs), np.zeros(SPLITS)) / ceiling
    without_blocks = {}
    for dataset in {dataset for pair in pairs for dataset in pair.between.without_blocks}:
        top, below = (
            sum(part.without(dataset) for part in parts) for parts in zip(*(p[:2] for p in pairs), strict=True)
        )
        without_blocks[dataset] = np.asarray(top / below)
    networks = {}
    for network_kind in sorted(set().union(*(pair.networks for pair in pairs))):
        rest = [pair for pair in pairs if network_kind not in pair.networks]
        top, below = sum(pair.between.value for pair in rest), sum(pair.ceiling.value for pair in rest)
        networks[network_kind] = top / below if rest else np.nan
    mean = ceiling / len(pairs)
    basis = f"pairs of test cases: {len(pairs)}, networks: {len(networks)}, ceiling: {mean:.2f}"
    return AgreementShare(value, mean, splits, without_blocks, networks, basis)

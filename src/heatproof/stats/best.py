"""The set of methods that are not distinguishable from the best one, or the reason why none can be excluded."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np

from heatproof.core.randomness import numpy_generator
from heatproof.stats.kappa import resampled_kappa
from heatproof.stats.meta_rank import count_networks, group_numbers, shares_in_groups
from heatproof.stats.paired import count_ordered_pairs, holm, images_for_power, minimum_images, paired_p_values
from heatproof.stats.ranks import to_dense_ranks, untied_differences

# For at most this many networks, the permutation test reverses the orders of every subset of the networks; for more
# networks, those of random subsets.
MAXIMUM_EXHAUSTIVE, RANDOM_PATTERNS = 10, 1000
# κ under reversed orders is computed in single precision.
ROUNDING = 1e-5


class BestSet(NamedTuple):
    """The set of methods that are not distinguishable from the best one.

    Attributes
    ----------
    members
        (M,) bool; False for a method without a score.
    reason
        Why no method can be excluded, where there are too few cases; then all methods with a score are members.
        Otherwise "".
    """

    members: np.ndarray
    reason: str


def best_set(scores: np.ndarray, *, level: float = 0.95) -> BestSet:
    """Return the methods that are not distinguishable from the best one, on the same images.

    A method is excluded if another method has a significantly higher mean. Its p-value is the smallest p-value of its
    paired tests against all other methods (`heatproof.stats.paired.paired_p_values`), multiplied by the number of
    these tests (Bonferroni). Holm's procedure then corrects for the number of methods. The scores of methods may be
    correlated in any way.

    **Guarantee**: with probability `level`, the set contains all methods that have the largest mean in the population
    of images; where no method differs from another, it contains all of them. The guarantee holds for symmetric
    differences of any distribution, and nearly holds for skewed ones; docs/ranking.md has the simulations. For the
    other members of the set, these images do not show whether they are worse.

    Parameters
    ----------
    scores
        (M, N), higher is better; NaN where undefined. Two methods are compared on the images where both are defined.
    level
        Probability of the guarantee, in (0, 1).

    Returns
    -------
    BestSet
        With fewer images than `heatproof.stats.paired.minimum_images` of all comparisons, no method can be excluded
        whatever the scores are, and `reason` says so.

    Examples
    --------
    >>> scores = np.random.default_rng(0).normal([[0.0], [0.1], [2.0]], 0.5, (3, 50))
    >>> best_set(scores).members
    array([False, False,  True])
    """
    defined = ~np.isnan(scores)
    members = defined.any(axis=1)
    values = scores[members]
    methods, images = values.shape
    minimum = minimum_images(count_ordered_pairs(methods), level)
    if methods > 1 and images < minimum:
        return BestSet(members, f"{images} images are too few to distinguish {methods} methods: {minimum} are needed")
    p = np.ones(methods)
    for index, method_scores in enumerate(values):
        ahead = untied_differences(np.delete(values, index, axis=0), method_scores)
        p[index] = paired_p_values(ahead).min(initial=1.0) * max(1, methods - 1)
    # `p` has an entry for each method that has scores.
    members[members] = ~holm(p, level)
    return BestSet(members, "")


def images_to_distinguish(methods: int, *, effect: float = 0.5, power: float = 0.8, level: float = 0.95) -> int:
    """Return the number of images with which `best_set` excludes a worse method.

    Parameters
    ----------
    methods
        Number of methods, reference maps included.
    effect
        Mean of the paired differences of the two methods in units of their standard deviation (Cohen's d), above 0.
    power
        Probability of the exclusion, in (0, 1).
    level
        As in `best_set`.
    """
    return images_for_power(count_ordered_pairs(methods), effect=effect, power=power, level=level)


def minimum_networks(level: float = 0.95) -> int:
    """Return the number of networks below which no method can be excluded, because all networks may agree by chance.

    Parameters
    ----------
    level
        Probability of the guarantee of `best_set_over_networks`, in (0, 1).
    """
    return 1 + math.ceil(math.log2(1 / (1 - level)) - 1e-9)


def best_set_over_networks(
    scores: np.ndarray,
    *,
    groups: Sequence[Hashable] | None = None,
    weights: np.ndarray | None = None,
    noise: np.ndarray | None = None,
    seed: int = 0,
    level: float = 0.95,
    unit: str = "network",
) -> BestSet:
    """Return the methods that are not distinguishable from the best one by κ of Meta-Rank, over networks like these.

    This is a permutation test. If methods do not differ, a network could equally well have ranked them in the reverse
    order: the orders of some networks are reversed, for all subsets of networks or for 1,000 random ones, and κ is
    computed each time. The range of κ is the largest less the smallest κ of a method. A method is excluded if κ of
    another method is higher by more than the range of κ in all but 1 - `level` of the reversals. By using the range,
    the test allows for all pairs of methods at once, and for methods that rank alike.

    Parameters
    ----------
    scores, groups, weights
        As in `heatproof.stats.meta_rank.meta_rank`.
    noise
        (M, R), deviations of κ under resampled images; they are added to κ of the reversed orders. By default the
        images are treated as the complete population.
    seed
        Seed of the random reversals.
    level
        Probability that the set contains all methods that are the best, in (0, 1).
    unit
        Name of a group in `reason`.

    Returns
    -------
    BestSet
        Methods that share fewer than `minimum_networks` networks are not compared. With fewer networks than that in
        all, `reason` says so.
    """
    has_score = ~np.isnan(scores).all(axis=0)
    case_has_score = ~np.isnan(scores).all(axis=1)
    values = scores[case_has_score][:, has_score]
    group = np.unique(group_numbers(groups, len(scores))[case_has_score], return_inverse=True)[1]
    share = shares_in_groups(group, None if weights is None else weights[case_has_score])
    networks, minimum = int(group.max(initial=-1)) + 1, minimum_networks(level)
    if values.shape[1] > 1 and networks < minimum:
        count = f"{networks} {unit}{'' if networks == 1 else 's'}"
        return BestSet(
            has_score, f"{count}: {minimum} are needed to distinguish methods, because fewer may agree by chance"
        )
    present = ~np.isnan(values)
    signs = _signs(networks, None if noise is None else noise.shape[1], seed)[:, group]
    counts = np.hstack([share * (signs > 0), share * (signs < 0)])
    signed_ranks = to_dense_ranks(np.vstack([values, -values]))
    kappa, _ = resampled_kappa(signed_ranks, np.vstack([present, present]), counts, np.zeros(values.shape[1]))
    observed = kappa[:, 0].copy()
    if noise is not None:
        kappa = kappa + np.nan_to_num(noise[has_score])
    has_enough = count_networks(present, group) >= minimum
    spread = (
        np.nanmax(kappa[has_enough], axis=0) - np.nanmin(kappa[has_enough], axis=0) if has_enough.any() else np.zeros(1)
    )
    scored_networks = np.array([present[group == number].any(axis=0) for number in range(networks)]).astype(int)
    is_compared = (scored_networks.T @ scored_networks >= minimum) & has_enough & has_enough[:, None]
    ahead = np.where(is_compared, observed[None] - observed[:, None], 0).max(axis=1, initial=0)
    extreme = (spread >= ahead[:, None] - ROUNDING).sum(axis=1)
    # The first pattern reverses no network, so it is the observed data. If the others are random, it counts once more,
    # so that p is not too small.
    is_random = noise is not None or networks > MAXIMUM_EXHAUSTIVE
    p = (extreme + is_random) / (len(signs) + is_random)
    members = has_score.copy()
    if noise is not None:
        # κ is bounded: resampled images can lower the κ of a method that is far ahead, but hardly raise it. They show
        # only one side of its distribution, so p is doubled.
        p = 2 * p
    members[has_score] = p > 1 - level
    return BestSet(members, "")


def _signs(networks: int, repetitions: int | None, seed: int) -> np.ndarray:
    """Return signs (R, networks): all 1 first, then one of each pair of opposite patterns, or random patterns."""
    if repetitions is None and networks <= MAXIMUM_EXHAUSTIVE:
        bits = np.arange(2 ** (networks - 1))[:, None] >> np.arange(networks)
        return 1 - 2 * (bits & 1)
    generator = numpy_generator(seed, "signs of networks")
    signs = generator.integers(2, size=(repetitions or RANDOM_PATTERNS, networks)) * 2 - 1
    signs[0] = 1
    return signs

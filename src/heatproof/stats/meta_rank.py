"""Meta-Rank: a ranking of methods from all test cases."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from heatproof.core.randomness import numpy_generator
from heatproof.errors import HeatproofError
from heatproof.metrics.bootstrap import bootstrap_interval, draw_counts
from heatproof.stats.kappa import component_numbers, half_win_spread, resampled_kappa, solve_kappa, win_balance
from heatproof.stats.ranks import KAPPA_SIZE, bradley_terry, pairwise_wins, rank_methods, to_dense_ranks

REPETITIONS = 1000
# Fewest networks for an interval of κ. In benchmarks/coverage.py, intervals of two networks are wider than the range of
# κ; intervals of three have the nominal coverage and are narrower.
MINIMUM_NETWORKS = 3
# The cost grows with resamples × pairs of methods; 200 resamples estimate the spread to 5 %.
FEWEST_REPETITIONS = 200
METHODS_TIMES_REPETITIONS = 500_000


@dataclass(frozen=True)
class MetaRank:
    """A ranking from all test cases; every array is (M,), in the order of the given methods.

    Attributes
    ----------
    kappa
        Mean log-odds of ranking above another method, mean 0, higher is better; NaN for a method without a score.
    ci_low, ci_high
        Bootstrap interval of κ over networks; NaN for a method scored in fewer than `MINIMUM_NETWORKS`.
    rank
        1 is best, equal κ share the smallest rank; NaN where κ is NaN.
    n_cases
        Number of test cases in which the method has a score.
    n_networks
        Number of independent cases (groups of test cases) in which the method has a score.
    bradley_terry
        Bradley-Terry log-strengths from the same wins, mean 0; NaN where κ is NaN.
    resampled
        (M, R), κ in every resample.
    floor
        Standard deviation of κ where all networks agree: see `heatproof.stats.kappa.half_win_spread`.
    repetitions
        Number of resamples behind the interval.
    disconnected
        Number of resamples in which some methods could not be compared, neither directly nor through others.
    """

    kappa: np.ndarray
    ci_low: np.ndarray
    ci_high: np.ndarray
    rank: np.ndarray
    n_cases: np.ndarray
    n_networks: np.ndarray
    bradley_terry: np.ndarray
    resampled: np.ndarray
    floor: np.ndarray
    repetitions: int
    disconnected: int


def meta_rank(
    scores: np.ndarray,
    *,
    methods: Sequence[str] | None = None,
    groups: Sequence[Hashable] | None = None,
    weights: np.ndarray | None = None,
    seed: int = 0,
    repetitions: int | None = None,
    level: float = 0.95,
    kind: str = "student",
) -> MetaRank:
    """Rank methods over all test cases.

    Duan et al., On the Evaluation Consistency of Attribution-based Explanations, 2024, section 4.2, equations 4 to 6.
    The paper leaves open how to treat ties, certain wins, missing scores and intervals; heatproof treats them as
    follows.

    For methods p, q and the n_pq test cases in which both have a score, w_pq counts those in which p ranks above q,
    ties as ½; P_pq = (w_pq + ½) / (n_pq + 1), so that the odds stay finite, and D_pq = ln(P_pq / (1 - P_pq)). κ solves
    κ_p - κ_q = D_pq in least squares weighted by n_pq, with mean 0. Where every method has a score in every test case,
    κ_p is the mean of row p of D.

    Test cases of one network (its metrics, its weights before and after finetuning) rank methods alike, so that the
    network is the independent case: `groups` names the network of each test case. Within a group, cases share a total
    weight of 1: w_pq and n_pq are sums of these shares, and repeating the rows of a table does not change κ. With one
    case per group this is the method of the paper.

    The interval comes from groups drawn with replacement, each with all of its cases. A resample may leave a method
    without a score, or split the methods into components that are never compared. κ is then known up to one constant
    per component: every component of at least two methods is shifted to the mean of its methods' κ from all cases,
    which shows the spread within the component but not the spread between components; methods alone in a component have
    no value in that repetition.

    `bootstrap_interval` describes how the interval follows from the resamples, and benchmarks/coverage.py measures its
    coverage. It is at least as wide as the spread that the half wins leave where all networks agree.

    Parameters
    ----------
    scores
        (T, M), higher is better in every test case; NaN where a method has no score.
    methods
        M names, for messages.
    groups
        (T,), the network of each test case; by default each test case is its own group.
    weights
        (T,), shares of the test cases in their group, which are normalised to sum 1; by default equal shares.
    seed
        The workflow's seed.
    repetitions
        Number of resamples; by default that of `default_repetitions`.
    level
        Nominal coverage of the interval.
    kind
        ``student`` or ``percentile``, as in `bootstrap_interval`.

    Raises
    ------
    HeatproofError
        If no method has a score, or if the methods fall into components that no test case compares; the message names
        the components.

    Examples
    --------
    Three networks rank three methods:

    >>> meta_rank(np.array([[0.9, 0.5, 0.1], [0.8, 0.6, 0.2], [0.4, 0.7, 0.3]])).rank
    array([1, 2, 3])
    """
    names = np.array([f"method {index}" for index in range(scores.shape[1])] if methods is None else list(methods))
    if repetitions is None:
        repetitions = default_repetitions(scores.shape[1])
    n_cases = (~np.isnan(scores)).sum(axis=0)
    scored = n_cases > 0
    if not scored.any():
        raise HeatproofError("No method has a score in any test case, so there is nothing to rank.")
    case_has_score = ~np.isnan(scores).all(axis=1)
    group = np.unique(group_numbers(groups, len(scores))[case_has_score], return_inverse=True)[1]
    share = shares_in_groups(group, None if weights is None else weights[case_has_score])
    known_scores = scores[:, scored][case_has_score]
    present = ~np.isnan(known_scores)
    _check_connected(present, names[scored])

    wins = pairwise_wins(known_scores, share)
    kappa, _ = solve_kappa(win_balance(wins), present, share, np.zeros(known_scores.shape[1]))
    strengths = bradley_terry(wins)
    floor = half_win_spread(wins)
    del wins

    counts = draw_counts(numpy_generator(seed, "bootstrap over test cases"), repetitions, group.max() + 1)
    resampled, n_components = resampled_kappa(to_dense_ranks(known_scores), present, counts[:, group] * share, kappa)
    n_networks = np.zeros(len(scored), dtype=int)
    n_networks[scored] = count_networks(present, group)
    minimum = MINIMUM_NETWORKS if kind == "student" else 2
    options: dict[str, Any] = {"level": level, "kind": kind, "minimum": minimum, "floor": floor}
    low, high = bootstrap_interval(kappa, resampled, n_networks[scored], **options)

    def for_all_methods(values: np.ndarray) -> np.ndarray:
        filled = np.full((len(scored), *values.shape[1:]), np.nan)
        filled[scored] = values
        return filled

    return MetaRank(
        kappa=for_all_methods(kappa),
        ci_low=for_all_methods(low),
        ci_high=for_all_methods(high),
        rank=rank_methods(for_all_methods(kappa), size=KAPPA_SIZE),
        n_cases=n_cases,
        n_networks=n_networks,
        bradley_terry=for_all_methods(strengths),
        resampled=for_all_methods(resampled),
        floor=for_all_methods(floor),
        repetitions=repetitions,
        disconnected=int((n_components > 1).sum()),
    )


def shares_in_groups(group: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
    """Return the share of each case in its group; the shares of a group have the sum 1.

    Parameters
    ----------
    group
        (T,) int, the group of each case, counted from 0.
    weights
        (T,), relative weights of the cases of a group; by default equal.
    """
    relative = np.ones(len(group)) if weights is None else weights
    return relative / np.bincount(group, relative)[group]


def count_networks(present: np.ndarray, group: np.ndarray) -> np.ndarray:
    """Return the number of groups in which each method has a score, from (T, M) bool and each case's group (T,)."""
    return (np.eye(group.max() + 1, dtype=bool)[group].T.astype(int) @ present > 0).sum(axis=0)


def group_numbers(groups: Sequence[Hashable] | None, cases: int) -> np.ndarray:
    """Return the number of each case's group; without groups, each case is its own group."""
    if groups is None:
        return np.arange(cases)
    if len(groups) != cases:
        raise HeatproofError(f"There are {cases} test cases and {len(groups)} groups: name the group of each case.")
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(group_name, len(numbers)) for group_name in groups])


def default_repetitions(methods: int) -> int:
    """Return the default number of resamples: 1000 up to 500 methods, then fewer, and 200 from 2,500 methods."""
    return int(np.clip(METHODS_TIMES_REPETITIONS // max(1, methods), FEWEST_REPETITIONS, REPETITIONS))


def _check_connected(present: np.ndarray, names: np.ndarray) -> None:
    component = component_numbers(present)
    if component.max() > 0:
        components = [names[component == number].tolist() for number in range(component.max() + 1)]
        described = [
            ", ".join(members[:6]) + (f" and {len(members) - 6} more" if len(members) > 6 else "")
            for members in components
        ]
        raise HeatproofError(
            f"No test case compares the methods of these groups with each other: {' | '.join(described)}. "
            "Score methods of all groups together in some test case, or rank each group separately."
        )

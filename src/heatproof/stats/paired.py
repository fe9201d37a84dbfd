"""One-sided test of a mean of paired differences, valid with few and with skewed differences."""

from __future__ import annotations

import math

import numpy as np
from scipy.stats import t as student
from statsmodels.stats.power import TTestPower

from heatproof.stats.ranks import TOLERANCE

# Probability that one difference is positive where their mean is zero: 1/2 for symmetric differences, and 1 - 1/e for
# 1 - E, where E is exponential. So n differences are all positive by chance with a probability of this to the power n.
SKEWED = 1 - math.exp(-1)


def paired_p_values(differences: np.ndarray) -> np.ndarray:
    """Return one-sided p-values of paired differences, which are small where their mean is above zero.

    The p-value is the largest of three, because each is too small under some distributions:

    - that of Student's t-test;
    - the same with t corrected for skewness by Hall's cubic transformation, which is monotone (Hall, On the removal of
      skewness by transformation, 1992), where that makes t smaller;
    - `SKEWED` to the power of the number of differences that are not zero. No test of so few differences can have a
      smaller p-value, because all may be positive by chance.

    Parameters
    ----------
    differences
        (..., N), NaN where one of the two scores is undefined; 0 where they are tied, as
        `heatproof.stats.ranks.untied_differences` returns them.

    Returns
    -------
    numpy.ndarray
        (...) in [0, 1]; 1 where fewer than two differences are known or all are zero.
    """
    values = np.asarray(differences, dtype=float)
    defined = ~np.isnan(values)
    values = np.where(defined, values, 0)
    # Scaled by a power of two, which is exact, so that no square or cube of a difference underflows or overflows.
    values = np.ldexp(values, -np.frexp(np.abs(values).max(axis=-1, keepdims=True, initial=0))[1])
    n = defined.sum(axis=-1)
    at_least_two = np.maximum(n, 2)
    mean = values.sum(axis=-1) / at_least_two
    deviations = np.where(defined, values - mean[..., None], 0)
    spread = np.sqrt((deviations**2).sum(axis=-1) / (at_least_two - 1))
    with np.errstate(divide="ignore", invalid="ignore"):
        t = mean * np.sqrt(n) / spread
        skewness = (deviations**3).sum(axis=-1) * n / ((n - 1) * (n - 2)) / spread**3
        part = skewness / np.sqrt(n)
        corrected = t + part * (1 + 2 * t**2) / 6 + part**2 * t**3 / 27
    t = np.where(n > 2, np.fmin(t, corrected), t)
    is_constant = spread <= TOLERANCE * np.abs(mean)
    t = np.where(is_constant, np.where(mean > 0, np.inf, -np.inf), t)
    p = np.where(n > 1, student.sf(t, at_least_two - 1), 1)
    return np.maximum(p, SKEWED ** (values != 0).sum(axis=-1))


def holm(p: np.ndarray, level: float) -> np.ndarray:
    """Return which of several hypotheses are rejected by Holm's procedure.

    Holm, A simple sequentially rejective multiple test procedure, 1979. The probability of at least one false rejection
    is at most 1 - `level`, whatever the dependence between the tests. statsmodels has this procedure as well, but each
    call collects garbage, which takes longer than all tests of a table.

    Parameters
    ----------
    p
        (M,) p-values; values above 1 count as 1.
    level
        1 minus the probability of a false rejection, in (0, 1).

    Returns
    -------
    numpy.ndarray
        (M,) bool.
    """
    order = np.argsort(p, kind="stable")
    is_below = np.logical_and.accumulate(p[order] * np.arange(len(p), 0, -1) <= 1 - level)
    rejected = np.zeros(len(p), dtype=bool)
    rejected[order] = is_below
    return rejected


def count_ordered_pairs(methods: int) -> int:
    """Return the number of ordered pairs of methods, at least 1."""
    return max(1, methods * (methods - 1))


def minimum_images(tests: int, level: float = 0.95) -> int:
    """Return the number of images below which `paired_p_values` finds no difference, whatever the scores are.

    Parameters
    ----------
    tests
        Number of tests that share the probability of a false statement: `count_ordered_pairs` of the methods for the
        set of the best, the number of methods for "above all reference maps".
    level
        1 minus the probability of a false statement, in (0, 1).
    """
    return math.ceil(math.log((1 - level) / tests) / math.log(SKEWED) - 1e-9)


def images_for_power(tests: int, *, effect: float = 0.5, power: float = 0.8, level: float = 0.95) -> int:
    """Return the number of images that one of several tests needs to find an effect.

    Parameters
    ----------
    tests, level
        As in `minimum_images`.
    effect
        Mean of the paired differences in units of their standard deviation (Cohen's d), above 0.
    power
        Probability of finding the effect, in (0, 1).
    """
    minimum = minimum_images(tests, level)
    power_analysis = TTestPower()
    test = {"effect_size": effect, "alpha": (1 - level) / tests, "alternative": "larger"}
    if power_analysis.power(nobs=max(minimum, 3), **test) >= power:
        return max(minimum, 3)
    return max(minimum, math.ceil(float(np.max(power_analysis.solve_power(power=power, **test)))))

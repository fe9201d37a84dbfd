"""How often the interval of Meta-Rank's κ holds the true κ, in simulations where that is known.

The score of a method is its quality plus Gaussian noise, drawn anew for every test case, so that the chance that one
method ranks above another is known, and with it the κ of infinitely many test cases. Qualities are evenly spaced; the
spread is the distance from worst to best in units of the noise. What no number of test cases removes is the ½ that is
added to all wins: where methods are far apart, κ is nearer to 0 than that of infinitely many cases. Beside it stands
therefore how often the interval holds the mean κ of that many test cases, over all repetitions.

    python benchmarks/coverage.py [REPETITIONS]
"""

import sys
import time

import numpy as np
from scipy.stats import norm, spearmanr

from heatproof.ranking.images import meta_rank_of_images
from heatproof.ranking.meta_rank import meta_rank

SETTINGS = ((26, 10, 1), (26, 10, 2), (26, 10, 4), (26, 4, 1), (26, 30, 1), (100, 10, 2), (8, 10, 2), (5, 10, 1))
KINDS = ("student", "percentile")
OVER = ("cases", "both")


def true_kappa(quality, noise=1.0):
    """Return κ of infinitely many test cases."""
    above = norm.logsf((quality[None] - quality[:, None]) / (noise * np.sqrt(2)))
    odds = above - above.T
    return odds.mean(axis=1)


def covered(truth, estimates, lows, highs):
    """Return coverage of the true κ, of the mean κ, the mean width, and the mean rank correlation with the truth."""
    estimates, lows, highs = map(np.array, (estimates, lows, highs))
    mean = estimates.mean(axis=0)
    held, held_mean = ((lows <= value) & (value <= highs) for value in (truth, mean))
    order = np.mean([spearmanr(truth, estimate).statistic for estimate in estimates])
    return held.mean(), held_mean.mean(), (highs - lows).mean(), order


def over_cases(cases, methods, spread, repetitions, kind="student", resamples=1000):
    """Simulate test cases, and return what `covered` does."""
    quality = np.linspace(0, spread, methods)
    found = []
    for repetition in range(repetitions):
        rng = np.random.default_rng([repetition, cases, methods])
        scores = quality + rng.normal(size=(cases, methods))
        found.append(meta_rank(scores, seed=repetition, repetitions=resamples, kind=kind))
    return covered(true_kappa(quality), *zip(*((one.kappa, one.ci_low, one.ci_high) for one in found), strict=True))


def over_images(cases, methods, spread, images, repetitions, over="both", resamples=100, effect=3.0, noise=2.0):
    """Simulate scores of images; all test cases score the same ones, of which each suits some methods more."""
    quality = np.linspace(0, spread, methods)
    found = []
    for repetition in range(repetitions):
        rng = np.random.default_rng([repetition, cases, methods, images])
        suits = rng.normal(scale=effect, size=(methods, images))
        base = quality + rng.normal(size=(cases, methods))
        scores = [row[:, None] + suits + rng.normal(scale=noise, size=suits.shape) for row in base]
        found.append(
            meta_rank_of_images(scores, images_of=["d"] * cases, seed=repetition, repetitions=resamples, over=over)
        )
    return covered(true_kappa(quality), *zip(*((one.kappa, one.ci_low, one.ci_high) for one in found), strict=True))


def _print(name, result, seconds):
    held, held_mean, width, order = result
    figures = f"true κ {held:.3f}   mean κ {held_mean:.3f}   width {width:.2f}   order {order:.3f}   {seconds:.0f} s"
    print(f"{name:44} {figures}", flush=True)


if __name__ == "__main__":
    repetitions = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    print(f"coverage of 95 % intervals, {repetitions} repetitions")
    for cases, methods, spread in SETTINGS:
        for kind in KINDS:
            began = time.monotonic()
            result = over_cases(cases, methods, spread, repetitions, kind)
            _print(f"{cases} cases × {methods} methods, spread {spread}, {kind}", result, time.monotonic() - began)
    # Every resample of images is a ranking of its own, so there are fewer here.
    repetitions //= 5
    print(f"the same images in all test cases, {repetitions} repetitions")
    for images in (50, 500):
        for over in OVER:
            began = time.monotonic()
            result = over_images(26, 10, 2, images, repetitions, over)
            _print(f"26 × 10, spread 2, {images} images, {over}", result, time.monotonic() - began)

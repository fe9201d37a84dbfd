"""Coverage of intervals in simulations where the truth is known.

The score of a method is its quality plus Gaussian noise. A part of the noise belongs to the network and is common to
all of its test cases: their correlation within the network. So the probability that one method ranks above another is
known, and with it the κ of infinitely many networks. Qualities are evenly spaced; the spread is the distance from worst
to best in units of the noise. No number of networks removes the ½ that is added to all wins: where methods are far
apart, κ is nearer to 0 than that of infinitely many networks. Therefore a second column reports how often the interval
contains the mean κ of that many networks, over all repetitions. "Before" treats test cases as independent.

    python benchmarks/coverage.py [REPETITIONS] [--out FOLDER]

prints markdown tables.
"""

import argparse
import csv
from pathlib import Path

import numpy as np
from scipy.stats import norm, spearmanr

from heatproof.metrics.bootstrap import bootstrap_means, percentile_interval, summarise
from heatproof.stats.images import meta_rank_over_images
from heatproof.stats.meta_rank import meta_rank

NETWORKS = (3, 6, 13)
CORRELATIONS = (0.0, 0.5, 0.9)
# Weights before and after finetuning, with two metrics each.
CASES = 4
# Cases that are difficult in different ways: few and many methods, with small and with large differences.
SHAPES = ((4, 2), (30, 2), (10, 4))
# Scores of images by their skewness: a function that draws them, and their mean.
SKEWED = {
    "none (normal)": (lambda rng, shape: rng.normal(size=shape), 0.0),
    "2.0 (exponential)": (lambda rng, shape: rng.exponential(size=shape), 1.0),
    "2.8 (χ² of one)": (lambda rng, shape: rng.chisquare(1, size=shape), 1.0),
    "6.2 (log-normal)": (lambda rng, shape: rng.lognormal(size=shape), float(np.exp(0.5))),
}
# All have variance 1. Student's distribution has a variance from three degrees of freedom on.
NOISES = {
    "normal": lambda rng, shape: rng.normal(size=shape),
    "t₃": lambda rng, shape: rng.standard_t(3, size=shape) / np.sqrt(3),
}


def true_kappa(quality, noise=1.0):
    """Return κ of infinitely many networks."""
    above = norm.logsf((quality[None] - quality[:, None]) / (noise * np.sqrt(2)))
    odds = above - above.T
    return odds.mean(axis=1)


def covered(truth, estimates, lows, highs):
    """Return the coverage of the truth and of the mean estimate, the mean width, and the mean rank correlation."""
    estimates, lows, highs = map(np.array, (estimates, lows, highs))
    covered_truth, held_mean = ((lows <= value) & (value <= highs) for value in (truth, estimates.mean(axis=0)))
    order = np.mean([spearmanr(truth, estimate).statistic for estimate in estimates])
    return covered_truth.mean(), held_mean.mean(), np.nanmean(highs - lows), order


def draw_networks(rng, networks, methods, spread, correlation, cases=CASES):
    """Return qualities (M,) and scores (networks, cases, M)."""
    quality = np.linspace(0, spread, methods)
    network_noise = rng.normal(size=(networks, 1, methods))
    rest = rng.normal(size=(networks, cases, methods))
    return quality, quality + np.sqrt(correlation) * network_noise + np.sqrt(1 - correlation) * rest


def over_networks(networks, correlation, repetitions, methods=10, spread=2, resamples=200, kind="student", cases=CASES):
    """Simulate test cases of networks; return the results of `covered`, with cases as independent and with networks."""
    rankings = {"before": [], "after": []}
    for repetition in range(repetitions):
        rng = np.random.default_rng([repetition, networks, methods])
        quality, scores = draw_networks(rng, networks, methods, spread, correlation, cases)
        group = np.repeat(np.arange(networks), cases).tolist()
        for name, groups in (("before", None), ("after", group)):
            options = {"seed": repetition, "repetitions": resamples, "kind": kind}
            rankings[name].append(meta_rank(scores.reshape(-1, methods), groups=groups, **options))
    truth = true_kappa(quality)
    return {
        name: covered(
            truth, *zip(*((ranking.kappa, ranking.ci_low, ranking.ci_high) for ranking in columns), strict=True)
        )
        for name, columns in rankings.items()
    }


def over_scores(networks, correlation, repetitions, images=32, methods=10, spread=2, resamples=200):
    """Simulate scores of images; return coverage and width for mean scores, with percentiles and Student.

    The noise of an image is partly common to all methods, because images are easy or hard. Scores are squeezed into
    (-1, 1), and are therefore skewed.
    """
    # The mean of a squeezed Gaussian, by quadrature.
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    covered_and_width = {"before": [], "after": []}
    for repetition in range(repetitions):
        rng = np.random.default_rng([repetition, networks, methods, images])
        _, cases = draw_networks(rng, networks, methods, spread, correlation, cases=1)
        centres = 0.3 * cases[:, 0]
        truth = np.tanh(centres[..., None] + 0.6 * nodes) @ weights / weights.sum()
        noise = (rng.normal(size=(networks, 1, images)) + rng.normal(size=(networks, methods, images))) / np.sqrt(2)
        for values, true in zip(np.tanh(centres[..., None] + 0.6 * noise), truth, strict=True):
            low, high = percentile_interval(bootstrap_means(values, repetition, resamples))
            covered_and_width["before"].append(((low <= true) & (true <= high), high - low))
            summary = summarise(values, repetition, repetitions=resamples)
            low, high = summary["ci_low"], summary["ci_high"]
            covered_and_width["after"].append(((low <= true) & (true <= high), high - low))
    return {
        name: [float(np.mean(column)) for column in zip(*columns, strict=True)]
        for name, columns in covered_and_width.items()
    }


def over_skewed(skew, images, repetitions, resamples=200, together=50):
    """Return how often the interval of a mean of skewed scores contains the true mean."""
    draw, truth = SKEWED[skew]
    rng = np.random.default_rng([images, *skew.encode()])
    is_covered = []
    for seed in range(-(-repetitions // together)):
        summary = summarise(draw(rng, (together, images)), seed, repetitions=resamples)
        is_covered.append((summary["ci_low"] <= truth) & (truth <= summary["ci_high"]))
    return np.mean(is_covered)


def over_far_networks(networks, noise, repetitions, correlation, methods=20, spread=3, resamples=200):
    """Return coverage of κ, its minimum over methods, and coverage of mean κ, for many methods that are far apart."""

    def draw(rng, count, cases):
        network_noise, rest = (NOISES[noise](rng, (count, size, methods)) for size in (1, cases))
        return np.sqrt(correlation) * network_noise + np.sqrt(1 - correlation) * rest

    rng = np.random.default_rng([networks, methods])
    quality = np.linspace(0, spread, methods)
    differences = np.sort(draw(rng, 10**5, 1).reshape(-1, 2) @ [1, -1])
    # The probability that one method ranks above another, by the distance of their qualities; noise is symmetric.
    above = np.searchsorted(differences, quality[:, None] - quality) / len(differences)
    truth = np.log(above / (1 - above)).mean(axis=1)
    group = np.repeat(np.arange(networks), CASES).tolist()
    rankings = []
    for repetition in range(repetitions):
        scores = quality + draw(np.random.default_rng([repetition, networks, methods]), networks, CASES)
        rankings.append(meta_rank(scores.reshape(-1, methods), groups=group, seed=repetition, repetitions=resamples))
    kappa, low, high = (
        np.array([getattr(ranking, name) for ranking in rankings]) for name in ("kappa", "ci_low", "ci_high")
    )
    covered_truth, held_mean = ((low <= value) & (value <= high) for value in (truth, kappa.mean(axis=0)))
    return covered_truth.mean(), covered_truth.mean(axis=0).min(), held_mean.mean()


def over_images(cases, methods, spread, images, repetitions, over="both", resamples=100, effect=3.0, noise=2.0):
    """Simulate scores of images that all networks share, each of which favours some methods."""
    quality = np.linspace(0, spread, methods)
    rankings = []
    for repetition in range(repetitions):
        rng = np.random.default_rng([repetition, cases, methods, images])
        suits = rng.normal(scale=effect, size=(methods, images))
        base = quality + rng.normal(size=(cases, methods))
        scores = [row[:, None] + suits + rng.normal(scale=noise, size=suits.shape) for row in base]
        rankings.append(
            meta_rank_over_images(scores, images_of=["d"] * cases, seed=repetition, repetitions=resamples, over=over)
        )
    return covered(
        true_kappa(quality),
        *zip(*((ranking.kappa, ranking.ci_low, ranking.ci_high) for ranking in rankings), strict=True),
    )


def table(name, header, rows, out):
    """Print a markdown table, and store it if a folder is given."""
    formatted = [[cell if isinstance(cell, str) else f"{cell:.2f}" for cell in row] for row in rows]
    for row in (header, ["---"] * len(header), *formatted):
        print(f"| {' | '.join(row)} |", flush=True)
    print()
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        with open(out / f"{name}.csv", "w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([header, *formatted])


def limits(repetitions, out=None):
    """Print where intervals contain the truth less often than their level; docs/limits.md has these tables."""
    print("Means of skewed scores:\n")
    rows = [
        [skew, str(images), f"{over_skewed(skew, images, 10 * repetitions):.3f}"]
        for skew in SKEWED
        for images in (16, 64, 256)
    ]
    table("skewed", ["skewness of the scores", "images", "mean score"], rows, out)
    print("κ, 20 methods, spread 3:\n")
    rows = []
    for noise in NOISES:
        for networks in NETWORKS:
            for correlation in CORRELATIONS:
                shares = over_far_networks(networks, noise, repetitions, correlation=correlation)
                rows.append([noise, str(networks), f"{correlation:g}", *(f"{share:.3f}" for share in shares)])
    table("far_apart", ["noise", "networks", "correlation", "κ", "κ, least of a method", "mean κ"], rows, out)


def main(repetitions, out=None):
    """Print all tables."""
    print(
        f"Coverage of 95 % intervals, {repetitions} repetitions, {CASES} test cases a network, 10 methods, spread 2:\n"
    )
    header = ["networks", "correlation", "κ before", "width", "κ after", "mean κ after", "width"]
    rows = []
    for networks in NETWORKS:
        for correlation in CORRELATIONS:
            by_name = over_networks(networks, correlation, repetitions)
            scores = over_scores(networks, correlation, max(1, repetitions // 5))
            before, after = by_name["before"], by_name["after"]
            row = [
                str(networks),
                f"{correlation:g}",
                f"{before[0]:.3f}",
                before[2],
                f"{after[0]:.3f}",
                f"{after[1]:.3f}",
            ]
            row += [after[2], f"{scores['before'][0]:.3f}", scores["before"][1], f"{scores['after'][0]:.3f}"]
            rows.append([*row, scores["after"][1]])
    table("intervals", [*header, "score before", "width", "score after", "width"], rows, out)
    print("Other numbers of methods and spreads, κ after, at a correlation of 0.5:\n")
    rows = []
    for methods, spread in SHAPES:
        for networks in NETWORKS:
            shares = over_networks(networks, 0.5, repetitions, methods, spread)["after"]
            rows.append([f"{methods}, {spread}", str(networks), f"{shares[0]:.3f}", f"{shares[1]:.3f}", shares[2]])
    table("shapes", ["methods, spread", "networks", "κ", "mean κ", "width"], rows, out)
    limits(repetitions, out)
    print("The same 50 images on 26 networks, 10 methods, spread 2:\n")
    rows = []
    for over in ("cases", "both"):
        # Every resample of images needs a separate ranking, so that there are fewer repetitions here.
        is_covered, _, width, _ = over_images(26, 10, 2, 50, max(1, repetitions // 10), over)
        rows.append([{"cases": "networks", "both": "images and networks"}[over], f"{is_covered:.3f}", width])
    table("drawn", ["drawn", "κ", "width"], rows, out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("repetitions", nargs="?", type=int, default=1000)
    parser.add_argument("--out", type=Path, help="folder of the tables as CSV")
    options = parser.parse_args()
    main(options.repetitions, options.out)

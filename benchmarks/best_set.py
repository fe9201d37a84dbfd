"""How often the set of the best excludes an equally good method, and how often the reported number of images suffices.

    python benchmarks/best_set.py [--out docs/data/best_set] [--repetitions 1000]

Three tables. `level`: all methods of a cell have the same mean, with noise of several kinds; a cell above 0.065 is run
again with ten times the repetitions. `power`: the first method is better than each other one by an effect d, in units
of the standard deviation of the paired differences. `needed`: methods with two reference maps, where no method, or one,
is better than each of them by d; "named" is how often a number of images is reported, and "found then" how often so
many new images show the difference. Each cell is stored when it ends, and the same command continues after a kill.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd

from heatproof.stats.best import best_set, best_set_over_networks, minimum_networks
from heatproof.stats.images import meta_rank_over_images
from heatproof.stats.paired import images_for_power
from heatproof.stats.references import compare_with_references

METHODS = (8, 26, 50)
IMAGES = (8, 16, 64)
NETWORKS = (3, 4, 5, 6, 8, 13)
LEVEL, REMEASURED_ABOVE = 0.95, 0.065
# Images per network, and resamples of images, where there are scores of images.
OF_NETWORK, RESAMPLES = 32, 100


def skewed(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Return exponential noise with mean 0."""
    return rng.exponential(size=shape) - 1


def unlike(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Return skewed noise whose size grows from the first method to the last one by a factor of three."""
    return np.geomspace(0.5, 1.5, shape[-2])[:, None] * skewed(rng, shape)


def clustered(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Return noise in which every third method has nearly the same values."""
    *outer, methods, cases = shape
    common = rng.normal(size=(*outer, 3, cases))
    return common[..., np.arange(methods) % 3, :] + 0.2 * rng.normal(size=shape)


UNLIKE = "skewed, unlike"
NOISE: dict[str, Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]] = {
    "normal": lambda rng, shape: rng.normal(size=shape),
    "skewed": skewed,
    UNLIKE: unlike,
    "t₃": lambda rng, shape: rng.standard_t(3, size=shape),
    "ties": lambda rng, shape: np.round(rng.normal(size=shape)),
    "correlated": clustered,
}


def left_out_over_images(noise: str, methods: int, images: int, repetitions: int) -> tuple[float, float]:
    """Return how often an equally good method is excluded, and how often the set abstains."""
    rng = np.random.default_rng([methods, images, list(NOISE).index(noise)])
    sets = [best_set(NOISE[noise](rng, (methods, images)), level=LEVEL) for _ in range(repetitions)]
    return np.mean([not best.members.all() for best in sets]), np.mean([bool(best.reason) for best in sets])


def left_out_over_networks(
    noise: str, methods: int, networks: int, repetitions: int, *, of_images: bool
) -> tuple[float, float]:
    """Return the same over networks, with noise of the network and, for scores of images, also noise of the images.

    Images are the same on all networks, and favour some methods.
    """
    rng = np.random.default_rng([methods, networks, list(NOISE).index(noise), of_images])
    sets = []
    for repetition in range(repetitions):
        means, drawn = NOISE[noise](rng, (methods, networks)).T, None
        if of_images:
            suits = NOISE[noise](rng, (methods, OF_NETWORK))
            rest = rng.normal(size=(networks, methods, OF_NETWORK))
            scores = 0.5 * means[..., None] + 2 * suits + rest
            means = scores.mean(axis=2)
            if networks >= minimum_networks(LEVEL):
                options = {"images_of": ["d"] * networks, "seed": repetition, "repetitions": RESAMPLES}
                ranked = meta_rank_over_images(list(scores), over="images", **options)
                drawn = ranked.resampled - ranked.kappa[:, None]
        sets.append(best_set_over_networks(means, noise=drawn, seed=repetition, level=LEVEL))
    return np.mean([not best.members.all() for best in sets]), np.mean([bool(best.reason) for best in sets])


def level_cells(repetitions: int) -> Iterator[tuple[dict, Callable[[], dict]]]:
    """Yield each cell of the first table, and the function that measures it."""

    def measured(over: Callable[[int], tuple[float, float]]) -> dict:
        runs = repetitions
        rate, abstains = over(runs)
        if rate > REMEASURED_ABOVE:
            runs *= 10
            rate, abstains = over(runs)
        return {"left out": rate, "abstains": abstains, "runs": runs}

    for noise, methods in product(NOISE, METHODS):
        of = {"methods": methods, "noise": noise}
        for images in IMAGES:
            over = partial(left_out_over_images, noise, methods, images)
            yield {"cases": f"{images} images", **of}, partial(measured, over)
        if noise == UNLIKE:
            # Over networks, methods with equal means then differ in κ: noisier ones are more often below the others.
            continue
        for networks, of_images in product(NETWORKS, (False, True)):
            over = partial(left_out_over_networks, noise, methods, networks, of_images=of_images)
            yield {"cases": f"{networks} networks{' and images' * of_images}", **of}, partial(measured, over)


def power(methods: int, images: int, effect: float, repetitions: int) -> dict:
    """Return how often the set is complete or abstains, and the median size of the set."""
    rng = np.random.default_rng([methods, images])
    sizes = []
    for _ in range(repetitions):
        scores = rng.normal(size=(methods, images))
        scores[0] += effect * np.sqrt(2)
        sizes.append(best_set(scores, level=LEVEL).members.sum())
    return {
        "nothing left out": np.mean(np.array(sizes) == methods),
        "median set": np.median(sizes),
        "runs": repetitions,
    }


def needed(methods: int, images: int, effect: float, noise: str, repetitions: int) -> dict:
    """Return how often a number of images is reported, and how often this number is sufficient."""
    rng = np.random.default_rng([methods, images, round(10 * effect), list(NOISE).index(noise)])
    names = ["first reference", "second reference", *(f"method {number}" for number in range(methods))]

    def scores(count: int) -> pd.DataFrame:
        values = NOISE[noise](rng, (len(names), count))
        # Noise of both kinds has the standard deviation 1, and a paired difference √2.
        values[2] += effect * np.sqrt(2)
        return pd.DataFrame(values, names)

    above_references, named, then = 0, [], 0
    for repetition in range(repetitions):
        above = compare_with_references(scores(images), names[:2], LEVEL, seed=repetition)
        above_references += bool(above.methods)
        if not np.isnan(above.needed):
            named.append(above.needed)
            then += bool(compare_with_references(scores(int(above.needed)), names[:2], LEVEL).methods)
    ideal = images_for_power(methods, effect=effect, level=LEVEL) if effect else np.nan
    return {
        "found": above_references / repetitions,
        "named": len(named) / repetitions,
        "named where not found": len(named) / max(1, repetitions - above_references),
        "median number": np.median(named) if named else np.nan,
        "number at the true effect": ideal,
        "found then": then / len(named) if named and effect else np.nan,
        "runs": repetitions,
    }


def tables(repetitions: int) -> dict[str, Iterator[tuple[dict, Callable[[], dict]]]]:
    """Return the cells of each table."""
    powers = ((26, 64, 1.0), (8, 16, 1.5), (8, 64, 0.5))
    wanted = [
        (methods, images, effect, noise)
        for methods in (8, 24)
        for noise in ("normal", "skewed")
        for images, effect in ((16, 0.0), (40, 0.0), (64, 0.0), (40, 0.5))
    ]
    return {
        "level": level_cells(repetitions),
        "power": (
            ({"methods": m, "images": n, "d": d}, lambda at=(m, n, d): power(*at, repetitions)) for m, n, d in powers
        ),
        "needed": (
            ({"methods": m, "images": n, "d": d, "noise": noise}, lambda at=(m, n, d, noise): needed(*at, repetitions))
            for m, n, d, noise in wanted
        ),
    }


def main(repetitions: int, out: Path | None = None) -> None:
    """Measure the cells that are not stored yet, and print the tables."""
    for name, cells in tables(repetitions).items():
        path = None if out is None else out / f"{name}.csv"
        rows = pd.read_csv(path).to_dict("records") if path is not None and path.exists() else []
        for cell, measure in cells:
            if any(all(row[key] == value for key, value in cell.items()) for row in rows):
                continue
            rows.append({**cell, **measure()})
            if path is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
                pd.DataFrame(rows).to_csv(path, index=False, float_format="%.4g", lineterminator="\n")
        print(f"{name}\n{pd.DataFrame(rows).to_string(index=False)}\n", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repetitions", type=int, default=1000)
    parser.add_argument("--out", type=Path, help="folder of the tables as CSV")
    options = parser.parse_args()
    main(options.repetitions, options.out)

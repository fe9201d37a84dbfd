"""How often claims that rankings agree or differ are reproduced, where the true orders are known.

Methods have a quality in each network; the score of an image is the quality plus noise, of which a part belongs to the
image and is common to all methods, and a part belongs to the image and the method and is common to all networks. The
true range is the largest less the smallest ρ between the true orders of two networks: 0 where all have the same order,
otherwise one network has another ranking ("one"), or each deviates a little more from the first than the one before
("chain"). Deletion has two metrics.

    python benchmarks/rank_claims.py --out docs/data/rank_claims && python docs/pages.py

Each row of the table is stored as soon as it is finished: after an interruption the same command continues with the
missing rows. Remove the table to start again.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from _shared import make_parser
from joblib import Parallel, delayed
from scipy.stats import rankdata

from heatproof.claims.evidence import CASE, Case, Evidence, Model, Resampling
from heatproof.claims.registry import CLAIMS, Untestable
from heatproof.claims.verdicts import UNTESTED, estimate, verdict_of
from heatproof.core.methods import Method
from heatproof.store.writing import write_table

# Number of runs of the decisive cells, which come first, and of the others.
RUNS, OTHER_RUNS, DECIDING = 1000, 300, 6
NETWORKS, METHODS, IMAGES = 4, 26, 64
METRICS = ("deletion_morf", "deletion_lerf")
DIFFER, AGREE = "ranks_differ_between_models", "ranks_agree_between_models"
COLUMNS = ["claim", "noise", "shape", "methods", "range", "order", "images"]
# Standard deviation of an image's noise over that of the qualities: that of IDSDS on digits is about 2.
NOISE = (1, 3, 5)
CELLS = [
    *((DIFFER, noise, "normal", "spread", *order, IMAGES) for noise in NOISE for order in ((0, ""), (0.3, "one"))),
    (DIFFER, 3, "normal", "spread", 0.3, "chain", IMAGES),
    *((DIFFER, 3, shape, "spread", *order, IMAGES) for shape in ("skewed", "t3") for order in ((0, ""), (0.3, "one"))),
    *((DIFFER, 3, "normal", kind, 0, "", IMAGES) for kind in ("tied", "half alike", "unequal noise", "other gaps")),
    *((AGREE, noise, "normal", "spread", *order, IMAGES) for noise in NOISE[1:] for order in ((0, ""), (0.8, "chain"))),
    *((claim, 3, "normal", "all alike", 0, "", IMAGES) for claim in (DIFFER, AGREE)),
]


def qualities(rng: np.random.Generator, kind: str, wanted: float, order: str) -> np.ndarray:
    """Return the qualities (networks, methods), with a standard deviation of about 1."""
    quality = rng.normal(size=METHODS)
    if kind == "tied":
        quality = np.round(1.5 * quality) / 1.5
    elif kind == "half alike":
        quality[: METHODS // 2] = 0
    elif kind == "all alike":
        quality[:] = 0
    elif kind == "other gaps":
        # The same order, with different distances between methods in each network.
        return np.sort(rng.normal(size=(NETWORKS, METHODS)), axis=1)
    other = rng.normal(size=METHODS)
    share = {"": np.zeros(NETWORKS), "one": np.eye(NETWORKS)[-1], "chain": np.linspace(0, 1, NETWORKS)}[order]
    low, high = 0.0, 4.0 if wanted else 0.0
    for _ in range(20 if wanted else 0):
        middle = (low + high) / 2
        network_qualities = quality + middle * share[:, None] * other
        true = np.corrcoef(rankdata(network_qualities, axis=1))[np.triu_indices(NETWORKS, 1)]
        low, high = (middle, high) if np.ptp(true) < wanted else (low, middle)
    return quality + high * share[:, None] * other


def noise_of(rng: np.random.Generator, shape: str, size: tuple[int, ...]) -> np.ndarray:
    """Return noise of mean 0 and standard deviation 1."""
    if shape == "skewed":
        return (rng.lognormal(size=size) - np.exp(0.5)) / np.sqrt((np.e - 1) * np.e)
    return rng.standard_t(3, size=size) / np.sqrt(3) if shape == "t3" else rng.normal(size=size)


def evidence(rng: np.random.Generator, cell: tuple) -> Evidence:
    """Return the scores of one run."""
    claim, noise, shape, kind, wanted, order, images = cell
    means = qualities(rng, kind, wanted, order)
    names, methods = [f"net_{i}" for i in range(NETWORKS)], [f"method_{i:02}" for i in range(METHODS)]
    metrics = METRICS if claim == DIFFER else ("idsds",)
    weights = "pretrained" if claim == DIFFER else "finetuned"
    scores, cases = [], []
    for metric in metrics:
        common = noise_of(rng, shape, (1, images)) + np.sqrt(0.5) * noise * noise_of(rng, shape, (METHODS, images))
        for number, name in enumerate(names):
            network_noise = np.sqrt(0.5) * noise * noise_of(rng, shape, (METHODS, images))
            spread = 0.5 * (number + 1) if kind == "unequal noise" else 1
            scores.append((means[number][:, None] + spread * (common + network_noise)).ravel())
            cases.append(Case("toy", name, weights, metric, metric, {}, True, grid=4, baseline="zeros"))
    rows = METHODS * images
    table = {name: np.repeat([getattr(case, name) for case in cases], rows) for name in CASE}
    table["method"] = np.tile(np.repeat(methods, images), len(cases))
    table["image"] = np.tile(np.arange(images), METHODS * len(cases))
    return Evidence(
        pd.DataFrame({**table, "score": np.concatenate(scores)}),
        cases,
        [Method(name) for name in methods],
        {name: Model(name, "resnet", 20, 1.0, True, True, name) for name in names},
        draws=Resampling(0, 1),
    )


def verdict(claim: str, scores: Evidence) -> tuple[str, float, float]:
    """Return the verdict by the interval, the value, and the mean ceiling."""
    entry = CLAIMS[claim]
    over_networks = entry.over == "networks"
    try:
        measured = entry.test(scores.over_networks() if over_networks else scores)
    except Untestable:
        return UNTESTED, np.nan, np.nan
    limit = entry.decisive_limit(measured.draws[0])
    estimated = estimate(measured, limit, 0.95, measured.networks if over_networks else scores.images)
    return verdict_of(estimated, entry.side, limit), estimated.value, float(measured.basis.rpartition(" ")[2])


def one_run(cell: tuple, run: int) -> tuple[str, float, float]:
    """Return the result of `verdict` for one run of a cell."""
    return verdict(cell[0], evidence(np.random.default_rng([run, 31]), cell))


def simulate(cell: tuple, runs: int) -> dict[str, object]:
    """Return the shares of the verdicts in so many runs."""
    # Forked processes have the registries as they are here.
    outcomes = Parallel(-1, backend="multiprocessing")(delayed(one_run)(cell, run) for run in range(runs))
    verdicts, values, ceilings = zip(*outcomes, strict=True)
    shares = {
        name: np.mean([verdict_of_run == name for verdict_of_run in verdicts])
        for name in ("reproduced", "contradicted", "open", UNTESTED)
    }
    means = {"value": pd.Series(values).mean(), "ceiling": pd.Series(ceilings).mean()}
    return {**dict(zip(COLUMNS, cell, strict=True)), **shares, **means, "runs": runs}


def main(cells: list[tuple], path: Path, runs: int | None = None) -> None:
    """Simulate the cells that are missing in the table, and store it after each."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = pd.read_csv(path, keep_default_na=False).to_dict("records") if path.exists() else []
    done = {tuple(str(row[name]) for name in COLUMNS) for row in rows}
    for cell in cells:
        if tuple(map(str, cell)) not in done:
            rows.append(simulate(cell, runs or (RUNS if cell in CELLS[:DECIDING] else OTHER_RUNS)))
            write_table(pd.DataFrame(rows), str(path))
            print(pd.DataFrame(rows[-1:]).to_string(index=False, header=len(rows) == 1), flush=True)


if __name__ == "__main__":
    options = make_parser(__doc__).parse_args()
    stored = (options.out or Path("rank_claims")) / "rank_claims.csv"
    main(CELLS[:2] if options.small else CELLS, stored, 2 if options.small else None)

"""Coverage of the intervals of the probe of deleted patches, on features whose deletion is planted.

Both versions of an image differ by a shift of one feature, and by noise: `pairs` also share the content of the image,
ten times as large, `noise` has nothing else. Without a shift the features contain no information, and the truth is 0.5;
otherwise it is the mean over all runs, of a probe that is trained on as many images. `ordinary` intervals treat images
as independent of the probes that score them: Wilson's of all images, and the percentiles of resampled images; `widened`
ones are those of in_domain.csv. Both columns have the share of runs in which the interval contains the truth.

    python benchmarks/probe.py --out FOLDER
    python docs/pages.py probe=FOLDER "python benchmarks/probe.py"
"""

from functools import partial

import numpy as np
from _shared import make_parser, print_table
from statsmodels.stats.proportion import proportion_confint

from heatproof.report.tables.in_domain import area_under_curve, paired_share, probe_scores, widened, with_intervals

LEVEL, CLASSES, RESAMPLES = 0.95, 10, 200
# Images, features, shift in units of the noise.
CELLS = (
    (16, 8, 0.0),
    (64, 8, 0.0),
    (64, 64, 0.0),
    (256, 8, 0.0),
    (256, 64, 0.0),
    (64, 8, 0.3),
    (256, 8, 0.3),
    (64, 8, 2.0),
)


def planted(rng: np.random.Generator, kind: str, images: int, width: int, shift: float) -> np.ndarray:
    """Return features (images, 2, width)."""
    features = rng.normal(size=(images, 2, width)) + 10 * (kind == "pairs") * rng.normal(size=(images, 1, width))
    features[:, 1, 0] += shift
    return features


def run(rng: np.random.Generator, seed: int, cell: tuple[str, int, int, float]) -> np.ndarray:
    """Return paired share and AUC, each with the ends of the ordinary interval and of ours, (2, 5)."""
    images = cell[1]
    scores = probe_scores(planted(rng, *cell), np.arange(images) % CLASSES, seed)
    share, *ends = paired_share(scores, LEVEL)
    (area,) = with_intervals([area_under_curve(scores)], images, seed, RESAMPLES, LEVEL)
    return np.array([
        [share, *proportion_confint(share * images, images, 1 - LEVEL, method="wilson"), *ends],
        [*area, *widened(area)[1:]],
    ])  # fmt: skip


def main() -> None:
    """Simulate, print, and store."""
    args = make_parser(__doc__)
    args.add_argument("--runs", type=int, default=1000)
    options = args.parse_args()
    runs, cells = (3, CELLS[:1]) if options.small else (options.runs, CELLS)
    rows = []
    for kind in ("noise", "pairs"):
        for cell in cells:
            run_cell = partial(run, np.random.default_rng(len(rows)), cell=(kind, *cell))
            statistics = np.array([run_cell(seed) for seed in range(runs)])
            row = {"features": kind, **dict(zip(("images", "width", "shift"), cell, strict=True))}
            for name, of in zip(("paired share", "AUC"), statistics.transpose(1, 2, 0), strict=True):
                truth = of[0].mean() if cell[2] else 0.5
                row[f"{name}: mean"] = of[0].mean()
                for what, (low, high) in (("ordinary", of[1:3]), ("widened", of[3:])):
                    row[f"{name}: {what}"] = np.mean((low <= truth) & (truth <= high))
            rows.append(row)
    print_table(rows, "probe", options.out)


if __name__ == "__main__":
    main()

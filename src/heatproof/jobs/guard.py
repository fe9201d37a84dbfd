"""The precision guard: compare scores in a lower precision with those in float32 on a sample of a run's images.

Before maps and responses of a network are computed in TF32 or bfloat16, the jobs that compute and score them run on a
few images in both precisions, in a temporary results folder. The run ends if two methods that float32 separates on
these images have the opposite order in the lower precision.
"""

from __future__ import annotations

import itertools
import logging
import shutil
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from scipy.stats import rankdata

from heatproof.errors import HeatproofError
from heatproof.stats.per_image import one_score_per_image
from heatproof.store.manifest import publish_tables, verified_bytes
from heatproof.store.result_tables import read_parquet
from heatproof.store.table_formats import parse_csv
from heatproof.store.writing import write_table
from heatproof.workflow.plan.stage import load_spec

if TYPE_CHECKING:
    from heatproof.core.specs import Runtime
    from heatproof.workflow.stages.precision import Guard, Precision

log = logging.getLogger(__name__)

# Number of standard errors by which a difference of means is significant, two-sided at 5 %.
SEPARATED = 1.96
NETWORK = ["dataset", "model", "weights"]
COLUMNS = ["metric", "method", "images", "float32", "lower", "difference", "rank_float32", "rank_lower", "swapped_with"]


def guard(spec: Guard, runtime: Runtime) -> None:
    """Compare the scores of a network in two precisions on a sample of its images.

    Parameters
    ----------
    spec
        Spec of the job.
    runtime
        Runtime settings.

    Raises
    ------
    HeatproofError
        If two methods swap, and the config refuses that.
    """
    try:
        for job in (*spec.exact, *spec.lower):
            load_spec(job.run, job.spec).run(runtime)
        both = {scores: (_scores(scores.exact), _scores(scores.lower)) for scores in spec.scores}
    finally:
        shutil.rmtree(spec.folder, ignore_errors=True)
    rows, swapped = [], []
    for scores, (exact, lower) in both.items():
        measured, swaps = compare(exact, lower, higher_is_better=scores.higher_is_better)
        rows.append(measured.assign(metric=scores.metric))
        swapped += [(scores.metric, *pair) for pair in swaps]
    table = pd.concat(rows, ignore_index=True)
    largest = table["difference"].abs().max()
    log.info("%s changes scores by %.2g at most, and swaps %d pairs", spec.about, largest, len(swapped))
    output = spec.files["table"]
    if swapped and spec.refuse:
        # Under another name, because Snakemake removes the outputs of a failed job.
        refused_table = output.replace(".csv", ".refused.csv")
        write_table(table[COLUMNS], refused_table)
        raise HeatproofError(_error_message(spec, swapped, refused_table))
    write_table(table[COLUMNS], output)
    publish_tables(spec, [output], [spec.weights])


def _error_message(spec: Guard, swapped: list[tuple[str, str, str]], table: str) -> str:
    metric, first, two = swapped[0]
    more = f", and {len(swapped) - 1} more pairs" if len(swapped) > 1 else ""
    return (
        f"{spec.about} would turn the order of {first} and {two} in {metric}{more}, which float32 tells apart on "
        f"{spec.images} images: see {table}; set precision: float32 for the stages where that happens, or "
        "precision_guard: {refuse: false}."
    )


def compare(
    exact: pd.DataFrame, lower: pd.DataFrame, *, higher_is_better: bool = True
) -> tuple[pd.DataFrame, list[tuple[str, str]]]:
    """Compare the scores of a metric in two precisions.

    Parameters
    ----------
    exact, lower
        Scores (images, methods), NaN where undefined.
    higher_is_better
        Whether higher scores of the metric are better, for ranks.

    Returns
    -------
    table : pandas.DataFrame
        One row for each method: its mean scores and ranks in both precisions, and the methods with which it swaps.
    swapped : list of tuple
        Pairs of methods whose means in `exact` differ significantly, and whose means in `lower` are equal or in the
        opposite order. Differences are paired by image, without images for which a score is undefined.
    """
    lower = lower.reindex(index=exact.index, columns=exact.columns)
    pairs = list(itertools.combinations(exact.columns, 2))
    swapped = [pair for pair in pairs if _swaps(*(table[list(pair)].to_numpy() for table in (exact, lower)))]
    means = pd.DataFrame({"float32": exact.mean(), "lower": lower.mean()})
    sign = -1 if higher_is_better else 1
    ranks = {f"rank_{name}": rankdata(sign * means[name], nan_policy="omit") for name in means}
    table = means.assign(difference=means["lower"] - means["float32"], images=exact.notna().sum(), **ranks)

    def swapped_with(method: str) -> str:
        return " ".join(other for pair in swapped if method in pair for other in pair if other != method)

    table["swapped_with"] = table.index.map(swapped_with)
    return table.rename_axis("method").reset_index(), swapped


def _swaps(exact: np.ndarray, lower: np.ndarray) -> bool:
    """Return whether two methods differ significantly in float32, and not in the same direction in lower precision.

    Parameters
    ----------
    exact, lower
        Scores (N, 2) of the two methods on N images.
    """
    first, second = exact[:, 0] - exact[:, 1], lower[:, 0] - lower[:, 1]
    first, second = first[np.isfinite(first)], second[np.isfinite(second)]
    if len(first) < 2:
        return False
    error = first.std(ddof=1) / np.sqrt(len(first))
    separated = abs(first.mean()) > SEPARATED * error
    return bool(separated and (not len(second) or np.sign(second.mean()) != np.sign(first.mean())))


def _scores(path: str) -> pd.DataFrame:
    """Return scores (images, methods)."""
    return one_score_per_image(read_parquet(path)).pivot(index="image", columns="method", values="score")


def all_guards(spec: Precision) -> None:
    """Write one table from the tables of all networks."""
    tables = [
        parse_csv(verified_bytes(network.table, listed=False), text=False).assign(
            **{key: getattr(network, key) for key in NETWORK}
        )
        for network in spec.networks
    ]
    write_table(pd.concat(tables, ignore_index=True)[[*NETWORK, *COLUMNS]], spec.files["table"])
    publish_tables(spec, spec.files.values(), [network.table for network in spec.networks])

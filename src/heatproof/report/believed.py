"""Can the ranking be believed? Consistency, stability, families, reliability of metrics and significance, as tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from heatproof.metrics.scored import read_scores
from heatproof.plan import paths
from heatproof.ranking.per_image import cases_of
from heatproof.ranking.reliability import reliability_table
from heatproof.ranking.significance import pairwise_wilcoxon
from heatproof.ranking.truth import truth_table
from heatproof.report.critical_difference import draw_critical_difference
from heatproof.report.ranking import draw, rank_table
from heatproof.report.results import CASE, publish
from heatproof.report.truth import draw_truth


def believed(spec: Mapping[str, Any], machine: Mapping[str, Any]) -> None:
    """Write what `believed_tables` finds, what agrees with a known truth, and a figure of each."""
    _, files, scores = read_scores(spec)
    scores["higher_is_better"] = scores["metric"].map(spec["directions"])
    tables, consistency, compared = believed_tables(scores, spec["tested"], spec["seed"], spec["level"])
    bootstrap = {"seed": spec["seed"], "repetitions": spec["bootstrap"], "level": spec["level"]}
    tables["truth"] = truth_table(scores, spec["truths"], spec["references"], **bootstrap)
    figures = {
        "consistency_png": consistency,
        "difference_png": draw_critical_difference(compared, level=1 - spec["level"]),
        "truth_png": draw_truth(tables["truth"], spec["level"]),
    }
    places = paths.RELIABILITY | paths.RELIABILITY_PNG
    publish(spec, {places[name]: content for name, content in (tables | figures).items()}, files)


def believed_tables(
    scores: pd.DataFrame, tested: list[str], seed: int = 0, level: float = 0.95
) -> tuple[dict[str, pd.DataFrame], Any, pd.DataFrame]:
    """Ask of a run's scores how far their ranking can be believed.

    Parameters
    ----------
    scores
        Tidy: dataset, model, weights, metric, method, image, score (NaN where undefined), higher_is_better.
    tested
        Metrics whose methods are tested against each other: the tests of all of them take minutes.
    seed, level
        Of bootstraps and intervals; tests are at 1 - level.

    Returns
    -------
    tables : dict
        ``ranking``: Meta-Rank over all metrics; ``consistency``: Spearman's ρ and Kendall's τ of every two test cases;
        ``consistency_groups``: their means where one of dataset, model, weights, metric or order differs;
        ``stability_methods`` and ``stability_cases``: ranks with one test case left out; ``families``: the best of each
        family; ``reliability``: Krippendorff's α of the images' rankings in each test case, higher is more consistent;
        ``significance``: Wilcoxon's test of every two methods over images, Holm's correction, with effect sizes.
    consistency : matplotlib.figure.Figure
        Heat map of ρ between test cases.
    compared : pandas.DataFrame
        The scores of the tested metrics, without methods that are undefined on most images.
    """
    known = scores.groupby([*CASE, "method"])["score"].transform(lambda values: values.notna().mean())
    compared = scores[scores["metric"].isin(tested) & (known > 0.5)]
    means = scores.groupby([*CASE, "method", "higher_is_better"], sort=False)["score"].mean().reset_index()
    found = rank_table(means, seed=seed, level=level)
    tests = []
    for case, wide in cases_of(compared):
        pairs = pairwise_wilcoxon(wide, level=1 - level)
        tests.append(pairs.assign(**case)[[*case, *pairs.columns]])
    tables = {
        "ranking": found.meta_rank,
        **found.tables(),
        "reliability": reliability_table(scores[~np.isnan(scores["score"])]),
        "significance": pd.concat(tests, ignore_index=True) if tests else pd.DataFrame(columns=CASE),
    }
    return tables, draw(found), compared

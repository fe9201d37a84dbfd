"""The leaderboard: Meta-Rank of the metrics and methods that the config names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heatproof.report.tables.scores import mean_scores, with_kinds
from heatproof.stats.table import counted_rows, meta_rank_table, property_of, select_rows
from heatproof.workflow.stages._results import publish, read_scores

if TYPE_CHECKING:
    from heatproof.workflow.stages.leaderboard import Leaderboard


def leaderboard(spec: Leaderboard) -> None:
    """Write leaderboard.csv, the table of `heatproof.stats.table.meta_rank_table`.

    It ranks mean scores, as in the paper: `heatproof rank results/scores.csv` with the same metrics and methods returns
    the same table.
    """
    files, scores = read_scores(spec.results.scores, spec.cases)
    means = mean_scores(scores, spec.directions, spec.least_coverage)
    means["property"] = means["metric"].map({name: property_of(name, spec.kinds) for name in spec.directions})
    rows = counted_rows(select_rows(with_kinds(means, spec.model_kinds), spec.metrics), spec.kinds)
    # Which metrics count is decided over all methods, because over few of them metrics can agree by chance.
    rows = select_rows(rows, methods=spec.methods)
    table = meta_rank_table(rows, independent=spec.independent, **spec.resampling)
    publish(spec, {spec.files["leaderboard"]: table}, files)

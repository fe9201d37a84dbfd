"""Figures of the other tables of a run: baselines, figures as in the papers, costs and in-domain tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from heatproof.report.figures.registry import figure

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


@figure("baselines", reads="baselines")
def baselines(table: pd.DataFrame, *, references: Sequence[str], level: float) -> Figure:
    """IDSDS of every method in the domain of each baseline, the values that replace a deleted patch."""
    from heatproof.report.tables.baselines import draw_baselines

    return draw_baselines(table, references, level)


@figure("score_over_accuracy", reads="idsds_table", also_reads=("accuracy",))
def score_over_accuracy(table: pd.DataFrame, *, accuracy: pd.DataFrame, references: Sequence[str]) -> Figure:
    """Best IDSDS of each network over its top-1 accuracy, with the best method."""
    from heatproof.report.figures.networks import draw_over_accuracy

    return draw_over_accuracy(table, accuracy, references)


@figure("protocols", reads="scores")
def protocols(table: pd.DataFrame, *, references: Sequence[str]) -> Figure:
    """Scores of the same methods under SDS, IDSDS, incremental deletion (IDS) and the removal of known parts."""
    from heatproof.report.figures.networks import draw_protocols

    return draw_protocols(table, references)


@figure("published", reads="published_methods", page=False, also_reads=("published",))
def published(table: pd.DataFrame, *, published: pd.DataFrame) -> Figure:
    """Rank of each method on this run over its mean rank on published networks; on the line, both are equal."""
    from heatproof.report.figures.networks import draw_published

    return draw_published(table, published)


# Measured seconds differ from run to run, and the bytes of the index page must not.
@figure("costs", reads="costs", page=False)
def costs(table: pd.DataFrame, *, level: float) -> Figure:
    """Score over cost: for the methods on the line, no cheaper method of the network has a higher score."""
    from heatproof.report.tables.costs import draw_costs

    return draw_costs(table, level)


@figure("in_domain", reads="in_domain")
def in_domain(table: pd.DataFrame, *, level: float) -> Figure:
    """Share of images that a probe on a layer scores higher with a deleted patch than intact; 0.5 is chance."""
    from heatproof.report.tables.in_domain import draw_in_domain

    return draw_in_domain(table, level)

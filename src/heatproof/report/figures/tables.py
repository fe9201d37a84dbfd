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
    """IDSDS of every method in the domain of each baseline: what is filled into a deleted patch decides the order."""
    from heatproof.report.tables.baselines import draw_baselines

    return draw_baselines(table, references, level)


@figure("score_over_accuracy", reads="idsds_table", also_reads=("accuracy",))
def score_over_accuracy(table: pd.DataFrame, *, accuracy: pd.DataFrame, references: Sequence[str]) -> Figure:
    """Best IDSDS of each network over its top-1 accuracy, with the method that has it."""
    from heatproof.report.figures.networks import draw_over_accuracy

    return draw_over_accuracy(table, accuracy, references)


@figure("protocols", reads="scores")
def protocols(table: pd.DataFrame, *, references: Sequence[str]) -> Figure:
    """Scores of the same methods under SDS, IDSDS, incremental deletion (IDS) and the removal of known parts."""
    from heatproof.report.figures.networks import draw_protocols

    return draw_protocols(table, references)


@figure("published", reads="published_methods", page=False, also_reads=("published",))
def published(table: pd.DataFrame, *, published: pd.DataFrame) -> Figure:
    """Rank of each method here over its mean rank on published networks: on the line, both are the same."""
    from heatproof.report.figures.networks import draw_published

    return draw_published(table, published)


# Measured seconds differ from run to run, and the bytes of the index page must not.
@figure("costs", reads="costs", page=False)
def costs(table: pd.DataFrame, *, level: float) -> Figure:
    """Score over cost: no cheaper method of the network scores higher than those on the line."""
    from heatproof.report.tables.costs import draw_costs

    return draw_costs(table, level)


@figure("in_domain", reads="in_domain")
def in_domain(table: pd.DataFrame, *, level: float) -> Figure:
    """Share of images that a probe on each layer, early to late, scores higher deleted than intact: 0.5 is chance."""
    from heatproof.report.tables.in_domain import draw_in_domain

    return draw_in_domain(table, level)

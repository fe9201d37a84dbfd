"""Figures 5 b and 2 c of Hesse et al. 2024 (IDSDS), of what a run has scored, and its orders beside published ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from heatproof.figures import figure

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


@figure("score_over_accuracy", reads="idsds_table", beside=("accuracy",))
def score_over_accuracy(table: pd.DataFrame, *, accuracy: pd.DataFrame, references: Sequence[str]) -> Figure:
    """Best IDSDS of each network over its top-1 accuracy, with the method that has it."""
    from heatproof.report.networks import draw_over_accuracy

    return draw_over_accuracy(table, accuracy, references)


@figure("protocols", reads="scores")
def protocols(table: pd.DataFrame, *, references: Sequence[str]) -> Figure:
    """Scores of the same methods under SDS, IDSDS, incremental deletion (IDS) and the removal of known parts."""
    from heatproof.report.networks import draw_protocols

    return draw_protocols(table, references)


@figure("published", reads="published_methods", page=False, beside=("published",))
def published(table: pd.DataFrame, *, published: pd.DataFrame) -> Figure:
    """Rank of each method here over its mean rank on published networks: on the line, both are the same."""
    from heatproof.report.published import draw_published

    return draw_published(table, published)

"""Claims of the Meta-Rank paper: what rankings depend on."""

from __future__ import annotations

import numpy as np
from scipy.stats import rankdata

from heatproof.claims.evidence import Evidence
from heatproof.claims.idsds import AGREEMENT
from heatproof.claims.registry import Measured, Untestable, claim, required

PAPER = "Meta-Rank"
# What the paper calls a strong correlation (section 5.1).
STRONG = 0.8
DELETION, ROAD = ("deletion_morf", "deletion_lerf"), ("road_morf", "road_lerf")
THEIRS = (
    "saliency",
    "input_x_gradient",
    "integrated_gradients",
    "guided_backprop",
    "deconvolution",
    "guided_grad_cam",
    "lrp",
    "deep_lift",
)
MEAN_RANK = "its mean rank among those that the config has, as a share from 0 (first) to 1 (last)"


def _pairs_differing(e: Evidence, kinds: tuple[str, str], field: str) -> list[tuple[int, int]]:
    return [pair for kind in kinds for pair in e.pairs_differing(e.out_of_domain(kind), field)]


@claim(PAPER, "section 5.1, figure 3 a", AGREEMENT + " between models, MoRF and LeRF", below=STRONG)
def ranks_differ_between_models(e: Evidence) -> Measured:
    """Under pixel deletion, rankings differ between models."""
    return e.agreement(_pairs_differing(e, DELETION, "model"))


@claim(PAPER, "section 5.1, figure 3 b", AGREEMENT + " between datasets, MoRF and LeRF", below=STRONG)
def ranks_differ_between_datasets(e: Evidence) -> Measured:
    """Under pixel deletion, rankings differ between datasets."""
    pairs = _pairs_differing(e, DELETION, "dataset")
    return e.agreement(required(pairs, "the config has one dataset, or no model on two"))


@claim(PAPER, "section 5.1, figure 3 c", AGREEMENT + ", MoRF against LeRF", below=STRONG)
def morf_and_lerf_disagree(e: Evidence) -> Measured:
    """MoRF and LeRF rank methods differently under pixel deletion."""
    return e.agreement(e.pairs_of_metrics(*DELETION))


@claim(
    PAPER,
    "section 5.2, after Rong et al. 2022",
    "rank correlation of MoRF with LeRF, ROAD less plain deletion",
    above=0,
)
def road_brings_orders_together(e: Evidence) -> Measured:
    """ROAD brings MoRF and LeRF closer together than plain deletion does."""
    road, basis = e.agreement(e.pairs_of_metrics(*ROAD))
    return Measured(road - e.agreement(e.pairs_of_metrics(*DELETION)).draws, basis)


@claim(PAPER, "section 5.2, figure 3", AGREEMENT + " between models, ROAD", below=STRONG)
def road_ranks_differ_between_models(e: Evidence) -> Measured:
    """Under ROAD as well, rankings differ between models."""
    return e.agreement(_pairs_differing(e, ROAD, "model"))


@claim(PAPER, "section 5.1, table 3", AGREEMENT + " between kept epochs of a finetuning, MoRF and LeRF", above=STRONG)
def ranks_agree_between_checkpoints(e: Evidence) -> Measured:
    """Rankings agree between checkpoints of one training."""
    if not any(case.kept_by for case in e.cases):
        raise Untestable("no finetuning keeps epochs: add some to the config, such as finetuning: {keep: [2, 4, 8]}")
    pairs = [
        (a, b)
        for kind in DELETION
        for a, b in e.pairs_differing(e.find(kind, kept=True), "weights")
        if e.cases[a].kept_by == e.cases[b].kept_by
    ]
    return e.agreement(required(pairs, "every finetuning keeps one epoch, and a pair takes two"))


def _place_among(e: Evidence, kind: str) -> Measured:
    """Return the mean rank of an explainer among those of the paper, over all cases of plain deletion, as a share."""
    chosen = e.any_of(THEIRS)
    own = chosen.index(e.named(kind))
    if len(chosen) < 4:
        raise Untestable(f"the config has {len(chosen)} of the eight methods that the paper ranks")
    cases = [c for kind in DELETION for c in e.out_of_domain(kind)]
    values = e.means[:, cases][:, :, chosen]
    known = ~np.isnan(values[0]).any(axis=1)
    if not known.any():
        raise Untestable("no test case has scores of all of them")
    ranks = rankdata(-values[:, known], axis=2)
    return Measured((ranks[:, :, own].mean(1) - 1) / (len(chosen) - 1), f"methods: {len(chosen)}")


@claim(PAPER, "section 5.3, table 4", MEAN_RANK, below=0.5)
def input_x_gradient_leads(e: Evidence) -> Measured:
    """Input × gradient is among the best of the eight methods."""
    return _place_among(e, "input_x_gradient")


@claim(PAPER, "section 5.3, table 4", MEAN_RANK, above=0.5)
def deconvolution_trails(e: Evidence) -> Measured:
    """Deconvolution is among the worst of the eight methods."""
    return _place_among(e, "deconvolution")

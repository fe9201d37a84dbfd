"""Claims of the Meta-Rank paper: what rankings depend on."""

from __future__ import annotations

import numpy as np
from scipy.stats import rankdata

from heatproof.claims.evidence import Evidence
from heatproof.claims.idsds import AGREEMENT
from heatproof.claims.registry import Measured, Untestable, claim

PAPER = "Meta-Rank"
# What the paper calls a strong correlation (section 5.1).
STRONG = 0.8
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


@claim(
    PAPER,
    "section 5.1, figure 3 a",
    AGREEMENT + " between models, MoRF and LeRF",
)
def ranks_differ_between_models(e: Evidence) -> Measured:
    """Under pixel deletion, rankings differ between models."""
    pairs = [pair for kind in ("deletion_morf", "deletion_lerf") for pair in e.pairs_of_models(e.out_of_domain(kind))]
    draws, basis = e.agreement(pairs)
    return Measured(draws, below=STRONG, basis=basis)


@claim(
    PAPER,
    "section 5.1, figure 3 b",
    AGREEMENT + " between datasets, MoRF and LeRF",
)
def ranks_differ_between_datasets(e: Evidence) -> Measured:
    """Under pixel deletion, rankings differ between datasets."""
    pairs = [
        pair
        for kind in ("deletion_morf", "deletion_lerf")
        for pair in e.pairs_differing(e.out_of_domain(kind), "dataset")
    ]
    if not pairs:
        raise Untestable("the config has one dataset, or no model on two")
    draws, basis = e.agreement(pairs)
    return Measured(draws, below=STRONG, basis=basis)


def _orders(e: Evidence, morf: str, lerf: str) -> list[tuple[int, int]]:
    first, second = e.out_of_domain(morf), e.out_of_domain(lerf)
    return [(a, b) for a in first for b in second if e.cases[a].network == e.cases[b].network]


@claim(
    PAPER,
    "section 5.1, figure 3 c",
    AGREEMENT + ", MoRF against LeRF",
)
def morf_and_lerf_disagree(e: Evidence) -> Measured:
    """MoRF and LeRF rank methods differently under pixel deletion."""
    draws, basis = e.agreement(_orders(e, "deletion_morf", "deletion_lerf"))
    return Measured(draws, below=STRONG, basis=basis)


@claim(
    "Meta-Rank",
    "section 5.2, after Rong et al. 2022",
    "rank correlation of MoRF with LeRF, ROAD less plain deletion",
)
def road_brings_orders_together(e: Evidence) -> Measured:
    """ROAD brings MoRF and LeRF closer together than plain deletion does."""
    road, basis = e.agreement(_orders(e, "road_morf", "road_lerf"))
    plain, _ = e.agreement(_orders(e, "deletion_morf", "deletion_lerf"))
    return Measured(road - plain, above=0, basis=basis)


@claim(
    PAPER,
    "section 5.2, figure 3",
    AGREEMENT + " between models, ROAD",
)
def road_ranks_differ_between_models(e: Evidence) -> Measured:
    """Under ROAD as well, rankings differ between models."""
    pairs = [pair for kind in ("road_morf", "road_lerf") for pair in e.pairs_of_models(e.out_of_domain(kind))]
    draws, basis = e.agreement(pairs)
    return Measured(draws, below=STRONG, basis=basis)


@claim(
    PAPER,
    "section 5.1, table 3",
    AGREEMENT + " between kept epochs of a finetuning, MoRF and LeRF",
)
def ranks_agree_between_checkpoints(e: Evidence) -> Measured:
    """Rankings agree between checkpoints of one training."""
    if not any(case.kept_by for case in e.cases):
        raise Untestable("no finetuning keeps epochs: add some to the config, such as finetuning: {keep: [2, 4, 8]}")
    pairs = [
        (a, b)
        for kind in ("deletion_morf", "deletion_lerf")
        for a, b in e.pairs_differing(e.find(kind, kept=True), "weights")
        if e.cases[a].kept_by == e.cases[b].kept_by
    ]
    if not pairs:
        raise Untestable("every finetuning keeps one epoch, and a pair takes two")
    draws, basis = e.agreement(pairs)
    return Measured(draws, above=STRONG, basis=basis)


def _place_among(e: Evidence, kind: str) -> tuple[np.ndarray, int]:
    """Return the mean rank of an explainer among those of the paper, over all cases of plain deletion, and how many."""
    chosen = e.any_of(THEIRS)
    own = chosen.index(e.named(kind))
    if len(chosen) < 4:
        raise Untestable(f"the config has {len(chosen)} of the eight methods that the paper ranks")
    cases = [c for kind in ("deletion_morf", "deletion_lerf") for c in e.out_of_domain(kind)]
    values = e.means[:, cases][:, :, chosen]
    known = ~np.isnan(values[0]).any(axis=1)
    if not known.any():
        raise Untestable("no test case has scores of all of them")
    ranks = rankdata(-values[:, known], axis=2)
    return ranks[:, :, own].mean(1), len(chosen)


@claim(
    PAPER,
    "section 5.3, table 4",
    "its mean rank among those that the config has, as a share from 0 (first) to 1 (last)",
)
def input_x_gradient_leads(e: Evidence) -> Measured:
    """Input × gradient is among the best of the eight methods."""
    rank, count = _place_among(e, "input_x_gradient")
    return Measured((rank - 1) / (count - 1), below=0.5, basis=f"methods: {count}")


@claim(
    PAPER,
    "section 5.3, table 4",
    "its mean rank among those that the config has, as a share from 0 (first) to 1 (last)",
)
def deconvolution_trails(e: Evidence) -> Measured:
    """Deconvolution is among the worst of the eight methods."""
    rank, count = _place_among(e, "deconvolution")
    return Measured((rank - 1) / (count - 1), above=0.5, basis=f"methods: {count}")

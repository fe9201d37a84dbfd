"""Claims of the Meta-Rank paper: the factors that rankings depend on."""

from __future__ import annotations

import numpy as np

from heatproof.claims.evidence import Evidence
from heatproof.claims.idsds import AGREEMENT
from heatproof.claims.registry import Measurement, Untestable, claim, claim_of_difference, required
from heatproof.stats.kappa import compute_kappa

PAPER = "Meta-Rank"
# A strong correlation, as defined in the paper (section 5.1).
STRONG = 0.8
DELETION, ROAD = ("deletion_morf", "deletion_lerf"), ("road_morf", "road_lerf")
METHODS_OF_PAPER = (
    "saliency",
    "input_x_gradient",
    "integrated_gradients",
    "guided_backprop",
    "deconvolution",
    "guided_grad_cam",
    "lrp",
    "deep_lift",
)
MINIMUM_METHODS = 4
KAPPA = "κ (Meta-Rank) over MoRF and LeRF minus the {} κ of the paper's other methods"


def _pairs_differing(e: Evidence, kinds: tuple[str, str], field: str) -> list[tuple[int, int]]:
    return [pair for kind in kinds for pair in e.pairs_differing(e.out_of_domain_cases(kind), field)]


def _compare_orders(e: Evidence, kinds: tuple[str, str]) -> Measurement:
    first, second = (e.out_of_domain_cases(kind) for kind in kinds)
    return e.agreement(e.pairs_sharing(first, second))


@claim_of_difference(PAPER, "section 5.1, figure 3 a", AGREEMENT + ", between models, MoRF and LeRF")
def ranks_differ_between_models(e: Evidence) -> Measurement:
    """Under pixel deletion, rankings differ between models."""
    return e.agreement(_pairs_differing(e, DELETION, "model"))


@claim_of_difference(PAPER, "section 5.1, figure 3 b", AGREEMENT + ", between datasets, MoRF and LeRF")
def ranks_differ_between_datasets(e: Evidence) -> Measurement:
    """Under pixel deletion, rankings differ between datasets."""
    pairs = _pairs_differing(e, DELETION, "dataset")
    return e.agreement(required(pairs, "the config has one dataset, or no model on two datasets"))


@claim_of_difference(PAPER, "section 5.1, figure 3 c", AGREEMENT + ", MoRF against LeRF")
def morf_and_lerf_disagree(e: Evidence) -> Measurement:
    """MoRF and LeRF rank methods differently under pixel deletion."""
    return _compare_orders(e, DELETION)


@claim_of_difference(PAPER, "section 5.2, table 3", AGREEMENT + ", MoRF against LeRF, ROAD")
def road_orders_disagree(e: Evidence) -> Measurement:
    """Under ROAD too, MoRF and LeRF rank methods differently, although ROAD was designed to make them agree."""
    return _compare_orders(e, ROAD)


@claim_of_difference(PAPER, "section 5.2, table 3", AGREEMENT + ", between models, ROAD")
def road_ranks_differ_between_models(e: Evidence) -> Measurement:
    """Under ROAD too, rankings differ between models."""
    return e.agreement(_pairs_differing(e, ROAD, "model"))


@claim(
    PAPER,
    "section 5.1, checkpoints",
    AGREEMENT + ", between saved epochs of a training from scratch, MoRF and LeRF",
    over="networks",
    above=STRONG,
)
def ranks_agree_between_checkpoints(e: Evidence) -> Measurement:
    """Rankings agree between checkpoints of one training."""
    if not any(case.saved_epoch_of == "pretrained" for case in e.cases):
        raise Untestable(
            "no training from scratch saves epochs; epochs of a finetuning start from a trained network, and agree "
            "in any case"
        )
    pairs = [
        (a, b)
        for kind in DELETION
        for a, b in e.pairs_differing(e.find_cases(kind, saved_epochs=True), "weights")
        if e.cases[a].saved_epoch_of == e.cases[b].saved_epoch_of == "pretrained"
    ]
    return e.agreement(required(pairs, "every training saves one epoch, and a comparison needs two"))


def _kappa_difference(e: Evidence, kind: str, choose: np.ufunc) -> Measurement:
    """Return κ of an explainer over cases of plain deletion, minus the largest or the smallest κ of the others."""
    chosen = e.find_methods(METHODS_OF_PAPER)
    column = chosen.index(e.find_method(kind))
    if len(chosen) < MINIMUM_METHODS:
        raise Untestable(f"the config has {len(chosen)} of the eight methods that the paper ranks")
    cases = [c for kind in DELETION for c in e.out_of_domain_cases(kind)]
    cases = [c for c in cases if not np.isnan(e.means[0, c, chosen]).any()]
    units = sorted({e.network_kind(c) for c in required(cases, "no test case has scores of all of these methods")})
    counts = e.network_counts(len(units))[:, [units.index(e.network_kind(c)) for c in cases]]
    scores = e.means[:, cases][:, :, chosen]
    kappa = np.stack(
        [compute_kappa(case_scores, weights=count)[0] for case_scores, count in zip(scores, counts, strict=True)]
    )
    draws = kappa[:, column] - choose.reduce(np.delete(kappa, column, axis=1), axis=1)
    basis = f"test cases: {len(cases)}, networks: {len(units)}, methods: {len(chosen)}"
    return Measurement(draws, basis, len(units), choices=len(chosen) - 1)


@claim(PAPER, "section 5.3, table 4", KAPPA.format("largest"), over="networks", above=0)
def input_x_gradient_leads(e: Evidence) -> Measurement:
    """Input × gradient ranks first of the eight methods."""
    return _kappa_difference(e, "input_x_gradient", np.maximum)


@claim(PAPER, "section 5.3, table 4", KAPPA.format("smallest"), over="networks", below=0)
def deconvolution_trails(e: Evidence) -> Measurement:
    """Deconvolution ranks last of the eight methods."""
    return _kappa_difference(e, "deconvolution", np.minimum)

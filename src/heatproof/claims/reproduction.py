"""Claims of the study that reproduced the IDSDS paper."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from heatproof.claims.evidence import Evidence, mean_known
from heatproof.claims.idsds import AGREEMENT, CAMS, in_domain
from heatproof.claims.registry import Measured, claim, required

PAPER = "reproduction"


def _over_networks(values: np.ndarray, cases: Sequence[int]) -> Measured:
    """Return the mean over the networks, all that is behind the first axis, of values (1 + R, ...)."""
    return Measured(mean_known(values.reshape(len(values), -1).T), f"networks: {len(cases)}")


@claim(PAPER, "section 5.1, figure 1 a", "IDSDS of the better edge map less that of IG with SmoothGrad, VGGs", above=0)
def edges_rival_smoothed_ig_on_vgg(e: Evidence) -> Measured:
    """Edge maps rival IG with SmoothGrad on VGGs."""
    edges = e.any_of(("edges", "edge_detectors"))
    smooth = e.named("noise_integrated_gradients", map="integrated_gradients_smoothgrad")
    cases = e.find("idsds", metric="idsds", model=lambda model: model.family == "vgg")
    return _over_networks(e.best(cases, edges) - e.means[:, cases, smooth], cases)


@claim(
    PAPER, "section 5.1, figure 1 a", "best reference map's IDSDS less the best method's, mean over networks", below=0
)
def references_stay_below_methods(e: Evidence) -> Measured:
    """No map that knows no model comes near the best method."""
    cases = in_domain(e)
    return _over_networks(e.best(cases, e.references()) - e.best(cases, e.explaining()), cases)


@claim(PAPER, "section 5.1", "mean IDSDS over reference maps and networks, its size", below=0.1)
def references_score_around_zero(e: Evidence) -> Measured:
    """Maps that know no model score around zero."""
    cases = in_domain(e)
    mean = _over_networks(e.means[:, cases][:, :, e.references()], cases)
    return Measured(np.abs(mean.draws), mean.basis)


@claim(PAPER, "section 5.3, figure 1 b", "mean change of IDSDS over CAMs, VGG less ResNet", below=0)
def cams_collapse_on_vgg(e: Evidence) -> Measured:
    """On small images the CAMs collapse from ResNet to VGG."""
    pairs = e.pairs_of_families(in_domain(e), "vgg", "resnet")
    return e.change(required(pairs, "the config has no VGG beside a ResNet"), e.any_of(CAMS))


@claim(PAPER, "section 5.3", "its mean IDSDS over networks, its size", below=0.1)
def smoothed_ig_scores_around_zero(e: Evidence) -> Measured:
    """On small images IG with SmoothGrad scores around zero."""
    smooth = e.named("noise_integrated_gradients", map="integrated_gradients_smoothgrad")
    cases = in_domain(e)
    mean = _over_networks(e.means[:, cases, smooth], cases)
    return Measured(np.abs(mean.draws), mean.basis)


@claim(PAPER, "section 5.2, figure 1 c", AGREEMENT + ", drops of logits against drops of probabilities", above=0.9)
def probabilities_rank_like_logits(e: Evidence) -> Measured:
    """Ranking by drops of probabilities instead of logits moves few methods."""
    cases = e.find("idsds")
    probability = [c for c in cases if e.cases[c].metric.endswith("_probability")]
    required(probability, "drops of probabilities are not scored: drops.outputs [logit, probability] does")
    pairs = [
        (a, b)
        for a, b in e.pairs_sharing(probability, cases)
        if e.cases[a].metric.removesuffix("_probability") == e.cases[b].metric
    ]
    return e.agreement(pairs)


@claim(PAPER, "section 5.3", AGREEMENT + " between datasets", above=0.7)
def ranks_agree_between_datasets(e: Evidence) -> Measured:
    """Rankings agree between datasets."""
    return e.agreement(required(e.pairs_differing(in_domain(e), "dataset"), "the config has one dataset"))

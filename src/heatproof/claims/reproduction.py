"""Claims of the study that reproduced the IDSDS paper."""

from __future__ import annotations

import numpy as np

from heatproof.claims.evidence import Evidence, mean_known
from heatproof.claims.idsds import AGREEMENT, CAMS, in_domain
from heatproof.claims.registry import Measured, Untestable, claim

PAPER = "reproduction"


@claim(
    PAPER,
    "section 5.1, figure 1 a",
    "IDSDS of the better edge map less that of IG with SmoothGrad, VGGs",
)
def edges_rival_smoothed_ig_on_vgg(e: Evidence) -> Measured:
    """Edge maps rival IG with SmoothGrad on VGGs."""
    edges = e.any_of(("edges", "edge_detectors"))
    smooth = e.named("noise_integrated_gradients", map="integrated_gradients_smoothgrad")
    cases = e.find("idsds", metric="idsds", model=lambda model: model.family == "vgg")
    draws = mean_known((e.best(cases, edges) - e.means[:, cases, smooth]).T)
    return Measured(draws, above=0, basis=f"networks: {len(cases)}")


@claim(
    PAPER,
    "section 5.1, figure 1 a",
    "best reference map's IDSDS less the best method's, mean over networks",
)
def references_stay_below_methods(e: Evidence) -> Measured:
    """No map that knows no model comes near the best method."""
    cases = in_domain(e)
    below = e.best(cases, e.references()) - e.best(cases, e.explaining())
    return Measured(mean_known(below.T), below=0, basis=f"networks: {len(cases)}")


@claim(
    PAPER,
    "section 5.1",
    "mean IDSDS over reference maps and networks, its size",
)
def references_score_around_zero(e: Evidence) -> Measured:
    """Maps that know no model score around zero."""
    cases = in_domain(e)
    draws = np.abs(mean_known(e.means[:, cases][:, :, e.references()].reshape(len(e.means), -1).T))
    return Measured(draws, below=0.1, basis=f"networks: {len(cases)}")


@claim(
    PAPER,
    "section 5.3, figure 1 b",
    "mean change of IDSDS over CAMs, VGG less ResNet",
)
def cams_collapse_on_vgg(e: Evidence) -> Measured:
    """On small images the CAMs collapse from ResNet to VGG."""
    cases = in_domain(e)
    family = {c: e.models[e.cases[c].model].family for c in cases}
    pairs = [(a, b) if family[a] == "vgg" else (b, a) for a, b in e.pairs_of_models(cases)]
    pairs = [(a, b) for a, b in pairs if (family[a], family[b]) == ("vgg", "resnet")]
    if not pairs:
        raise Untestable("the config has no VGG beside a ResNet")
    draws, basis = e.change(pairs, e.any_of(CAMS))
    return Measured(draws, below=0, basis=basis)


@claim(
    PAPER,
    "section 5.3",
    "its mean IDSDS over networks, its size",
)
def smoothed_ig_scores_around_zero(e: Evidence) -> Measured:
    """On small images IG with SmoothGrad scores around zero."""
    smooth = e.named("noise_integrated_gradients", map="integrated_gradients_smoothgrad")
    cases = in_domain(e)
    return Measured(np.abs(mean_known(e.means[:, cases, smooth].T)), below=0.1, basis=f"networks: {len(cases)}")


@claim(
    PAPER,
    "section 5.2, figure 1 c",
    AGREEMENT + ", drops of logits against drops of probabilities",
)
def probabilities_rank_like_logits(e: Evidence) -> Measured:
    """Ranking by drops of probabilities instead of logits moves few methods."""
    cases = e.find("idsds")
    probability = [c for c in cases if e.cases[c].metric.endswith("_probability")]
    if not probability:
        raise Untestable("drops of probabilities are not scored: drops.outputs [logit, probability] does")
    pairs = [
        (a, b)
        for b in probability
        for a in cases
        if e.cases[a].metric == e.cases[b].metric.removesuffix("_probability")
        and e.cases[a].network == e.cases[b].network
    ]
    draws, basis = e.agreement(pairs)
    return Measured(draws, above=0.9, basis=basis)


@claim(
    PAPER,
    "section 5.3",
    AGREEMENT + " between datasets",
)
def ranks_agree_between_datasets(e: Evidence) -> Measured:
    """Rankings agree between datasets."""
    pairs = e.pairs_differing(in_domain(e), "dataset")
    if not pairs:
        raise Untestable("the config has one dataset")
    draws, basis = e.agreement(pairs)
    return Measured(draws, above=0.7, basis=basis)

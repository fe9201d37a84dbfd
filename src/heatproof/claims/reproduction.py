"""Claims of the study that reproduced the IDSDS paper, several of them against it."""

from __future__ import annotations

import numpy as np

from heatproof.claims.contrasts import contrast, families
from heatproof.claims.evidence import Evidence
from heatproof.claims.idsds import AGREEMENT, CAMS
from heatproof.claims.registry import Measured, claim, required

PAPER = "reproduction"
# Pixels a side up to which images count as small: those of CIFAR have 32.
SMALL = 64
OUTPUTS = "mean change of the score, drops of the probability less drops of the logit, on {}"


def smoothed_ig(e: Evidence) -> int:
    """Return the raw map of IG with SmoothGrad."""
    return e.named("noise_integrated_gradients", map="integrated_gradients_smoothgrad")


def edge_maps(e: Evidence) -> list[int]:
    """Return the two edge maps of the study: the size of the gradient by Sobel's operator and by differences."""
    return [e.named("edges"), e.named("edge_detectors", map="image_gradient")]


def small(e: Evidence, cases: list[int]) -> list[int]:
    """Return the test cases on images as small as CIFAR's."""
    known = [c for c in cases if (e.cases[c].pixels or SMALL + 1) <= SMALL]
    return required(known, f"no dataset has images of {SMALL} pixels or fewer a side")


@claim(PAPER, "section 5.1, figure 1 a", "lesser edge map's IDSDS less that of IG with SmoothGrad, VGGs", above=0)
def edges_beat_smoothed_ig_on_vgg(e: Evidence) -> Measured:
    """Both edge maps, which know no model, beat IG with SmoothGrad on VGGs."""
    two, smooth = edge_maps(e), smoothed_ig(e)
    cases = e.in_domain(model=lambda model: model.family == "vgg")
    found = e.over_cases(cases, lambda c: e.means[:, c, two].min(axis=1) - e.means[:, c, smooth])
    return found._replace(choices=len(two))


@claim(PAPER, "section 5.3, figure 1 b", "mean change of IDSDS over CAMs, VGG less ResNet", below=0)
def cams_collapse_on_vgg(e: Evidence) -> Measured:
    """On small images the CAMs collapse from ResNet to VGG."""
    cases = small(e, e.in_domain())
    pairs = families(e, cases, "vgg", "resnet")
    return contrast(e, cases, required(pairs, "no vgg stands beside a resnet"), e.any_of(CAMS))


@claim(PAPER, "section 5.3", "mean size of its IDSDS over networks", below=0.1)
def smoothed_ig_scores_around_zero(e: Evidence) -> Measured:
    """On small images IG with SmoothGrad scores around zero on all networks."""
    smooth = smoothed_ig(e)
    return e.over_cases(small(e, e.in_domain()), lambda c: np.abs(e.means[:, c, smooth]))


@claim(PAPER, "section 5.2, figure 1 c", AGREEMENT + ", drops of logits against drops of probabilities", above=0.9)
def probabilities_rank_like_logits(e: Evidence) -> Measured:
    """Ranking by drops of probabilities instead of logits moves two or three methods."""
    return e.agreement(e.variants("output"))


@claim(PAPER, "section 5.2", OUTPUTS.format("ResNets"), above=0)
def probability_drops_raise_resnets(e: Evidence) -> Measured:
    """Against the IDSDS paper: with probabilities the scores on ResNets do not fall but tend to rise."""
    return _change(e, "resnet")


@claim(PAPER, "section 5.2", OUTPUTS.format("VGGs"), below=0)
def probability_drops_lower_vggs(e: Evidence) -> Measured:
    """With probabilities the scores fall on VGGs alone."""
    return _change(e, "vgg")


def _change(e: Evidence, family: str) -> Measured:
    pairs = [(plain, other) for plain, other in e.variants("output") if e.model_of(plain).family == family]
    pairs = [(p, o) if e.cases[o].output == "probability" else (o, p) for p, o in pairs]
    required(pairs, f"no {family} has both")
    every = [(plain, other, method) for plain, other in pairs for method in e.explaining()]
    parts = [e.means[:, other, method] - e.means[:, plain, method] for plain, other, method in every]
    return e.pooled(parts, [(plain,) for plain, _, _ in every])


@claim(
    PAPER,
    "section 5.3; section 7",
    AGREEMENT + " between datasets, networks of one family",
    over="networks",
    below=0.7,
)
def idsds_ranks_differ_between_datasets(e: Evidence) -> Measured:
    """IDSDS is not robust across datasets: rankings differ, but for those within a family of methods."""
    cases = e.in_domain()
    dataset = [e.cases[c].dataset for c in cases]
    family = [e.model_of(c).family for c in cases]
    pairs = [
        (cases[i], cases[j])
        for i in range(len(cases))
        for j in range(i)
        if dataset[i] != dataset[j] and family[i] == family[j]
    ]
    return e.agreement(required(pairs, "the config has one dataset, or no family of networks on two"))
